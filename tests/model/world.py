"""The engine and the reference side by side, and what both are asked."""

import asyncio

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
)
from model.compare import Compare, compare, payload, us
from model.facts import Policy, RefusedError, Spec
from model.reference import Reference

import lodeq
from lodeq import ALL_TENANTS, Backoff, Limits, NewTask
from lodeq.engine.runtime.ids import SeededRng
from lodeq.repository.api.open import open_in_memory
from lodeq.testing import ManualClock

MONO_US = 1_000_000_000
TENANT_QUEUES = [("a", ""), ("a", "t"), ("a", "u"), ("b", "")]
OPTIONS = {
    "a": {"max_attempts": 3, "retention": 10, "dead_retention": 6.5, "backoff": 2.0},
    "b": {"max_attempts": 2, "retention": 0, "dead_retention": 20, "backoff": 0.0},
}
POLICIES = {
    name: Policy(
        o["max_attempts"],
        round(o["retention"] * 1000),
        round(o["dead_retention"] * 1000),
        round(o["backoff"] * 1000),
    )
    for name, o in OPTIONS.items()
}
STARVATION_S = 0  # whatever is ready is overdue, or a few steps would not show it
STATES = ("ready", "delayed", "leased", "dead")
ENDS = ("completed", "expired", "cancelled")


def ms(seconds):
    return None if seconds is None else round(seconds * 1000)


class World(RuleBasedStateMachine):
    """An engine, the reference, and how to ask both; over a store in memory."""

    comparison = Compare

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.engine = self.ref = None
        self.opens = 0
        self.shards, self.pending_max = 1, None
        self.n = 0
        self.ids = {}  # number -> id
        self.leases = []  # (engine's, reference's, number)
        self.epochs = {}  # number -> the last lease's
        self.touched = set()  # numbers whose results are looked at after this step
        self.is_same = False  # whether the last step was compared, and well

    def run(self, coro):
        self.is_same = False
        return self.loop.run_until_complete(coro)

    async def open(self):
        self.opens += 1
        options = {
            "shards": self.shards,
            "clock": self.clock,
            "rng": SeededRng(self.opens),
            "limits": Limits(pending_max=self.pending_max, history_s=self.history_s),
        }
        self.engine = await self.opening(options)
        self.queues = {
            tenant_queue: self.engine.queue(
                tenant_queue[0],
                tenant=tenant_queue[1],
                **OPTIONS[tenant_queue[0]]
                | {"backoff": Backoff("fixed", OPTIONS[tenant_queue[0]]["backoff"])},
            )
            for tenant_queue in TENANT_QUEUES
        }
        self.hungry = {
            tenant_queue: self.engine.queue(
                tenant_queue[0], tenant=tenant_queue[1], boost_after=STARVATION_S
            )
            for tenant_queue in TENANT_QUEUES
        }
        for name in OPTIONS:
            self.queues[name, None] = self.engine.queue(name, tenant=ALL_TENANTS)

    def opening(self, options):
        return open_in_memory(**options)

    @initialize(
        shards=st.sampled_from([1, 1, 3]),
        pending_max=st.sampled_from([None, None, 6]),
        history_s=st.sampled_from([0, 0, 20, 200]),
    )
    def start(self, shards, pending_max, history_s=0):
        self.shards, self.pending_max, self.history_s = shards, pending_max, history_s
        self.ref = Reference(us(self.clock.now), MONO_US, pending_max, history_s * 1000)
        self.run(self.open())

    def teardown(self):
        try:
            if self.is_same:
                self.touched = set(self.ids)
                self.same()
                report = self.run(self.engine.verify())
                assert report.ok, report.findings
                self.run(self.engine.close())
        finally:
            self.loop.close()

    # -- doing the same twice --------------------------------------------------------------

    async def engines(self, awaitable):
        """(value, name of the error, the error)."""
        try:
            return await awaitable, None, None
        except lodeq.LodeqError as error:
            return None, type(error).__name__, error

    def refs(self, call, *args, **more):
        try:
            return call(*args, **more), None, None
        except RefusedError as error:
            return None, *(*error.args, None)[:2]

    def both(self, awaitable, call, *args, **more):
        """The value of each, once they agree whether there is one."""
        theirs = self.refs(call, *args, **more)
        ours = self.run(self.engines(awaitable))
        assert ours[1] == theirs[1], f"{ours} instead of {theirs}"
        return ours[0], theirs[0]

    def spec(self, tenant_queue, policy, o):
        self.n += 1
        if o["max_attempts"] is not None:
            policy = policy._replace(attempts=o["max_attempts"])
        keyed = o["key"] is not None
        return Spec(
            self.n,
            *tenant_queue,
            policy,
            o["priority"],
            ms(o["delay"]) or 0,
            ms(o["ttl"]),
            (*tenant_queue, o["key"]) if keyed else None,
            ms(o["window"]) if keyed else None,
            o["on_conflict"] if keyed else "return",
            o["headers"],
            self.labels_of(self.n),
        )

    def labels_of(self, n):
        """The labels of a task."""
        return

    def new_task(self, s, o, tenant_queue=None):
        return NewTask(
            payload(s.n),
            *(tenant_queue or (None, None)),
            s.priority,
            o["delay"],
            None,
            o["ttl"],
            o["key"],
            o["window"] if s.key else None,
            s.on_conflict,
            s.headers,
            o["max_attempts"],
            labels=s.labels,
        )

    def same_receipt(self, receipt, expected):
        n, is_duplicate, replaced = expected
        if not is_duplicate:
            assert receipt.id not in self.ids.values()
            self.ids[n] = receipt.id
        self.touched.update({n, replaced} - {None})
        assert receipt == (self.ids[n], is_duplicate, self.ids.get(replaced)), expected

    # -- comparing -----------------------------------------------------------------------------

    @invariant()
    def same(self):
        if self.engine is not None:
            self.run(compare(self))
            self.touched.clear()
            self.is_same = True
