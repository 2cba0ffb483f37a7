"""A limit of keys in a simulated cluster: what is set, and that no leader goes beyond it.

Each leader counts its own leases, so after every step that grants something this looks into the
lease tables of all nodes: nobody has been given a task of a key that was full there. A leader that
gains a shard takes its leases over, which may be more than the limit: these are not grants. With
one shard there is one leader at a time, so clients hold no more of a key either, whoever granted
it: a lease counts from its answer until a call that may end it is made, or its time may be over;
that of a task that somebody has tried to cancel does not. (All are exported: others go back when
another node leads.) That nothing waits for ever is shown at the end, where all tasks are drained
with the limit as it is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from sim.keys import KNOBS

import lodeq
from lodeq.engine.records.face import unpack_face

LABEL = "customer"
SURE_S = 0.001  # times of leases are whole milliseconds


class ReplicaKeys:
    """The limit of one world; draws of its own.

    Args:
        seed: of the world.
        queue: that has the limit.
        has_one_shard: whether clients can count.
    """

    def __init__(self, seed: int, queue: str, *, has_one_shard: bool) -> None:
        self.draw = draw = random.Random(f"{seed} cluster keys")
        self.queue = queue
        self.n = draw.choice((1, 1, 2, 3))
        self.values = draw.choice(("a", "ab", "abc"))
        self.has_one_shard = has_one_shard
        self.checked = 0  # grants of tasks with a key
        self.aside = 0  # looks that met a task that was set aside
        self.broken = ""
        self._known: dict[lodeq.Engine, tuple[int, set[bytes]]] = {}  # its claims and its leases
        self._tried: set[lodeq.TaskId] = set()  # to be cancelled
        self._held: dict[Any, tuple[str, float]] = {}  # by lease: its key, and until when, at least

    @contextmanager
    def turned(self) -> Iterator[None]:
        """Some sizes made small."""
        with ExitStack() as stack:
            for module, name, values in KNOBS:
                if self.draw.random() < 0.4:
                    stack.enter_context(patch.object(module, name, self.draw.choice(values)))
            yield

    def labels(self) -> dict[str, str] | None:
        """Those of a new task."""
        draw = self.draw
        return {LABEL: draw.choice(self.values)} if draw.random() < 0.85 else None

    async def set(self, engine: lodeq.Engine) -> None:
        """Set the limit: it can be done again."""
        await engine.configure(self.queue, key_concurrency=f"{self.n}/{LABEL}")

    # -- at the nodes ----------------------------------------------------------------------

    def look(self, engine: lodeq.Engine) -> None:
        """After a step of any process: what this one has granted since the last."""
        state = engine._state
        claimed, before = self._known.get(engine, (0, set()))
        if state.totals.claimed == claimed:
            return
        limit = state.key_limits.by_queue.get(self.queue.encode())
        counts: dict[str, int] = {}
        granted: set[str] = set()
        now: set[bytes] = set()
        for task_id, lease in state.leases.items():
            key = _key(unpack_face(lease.face).labels if lease.face else ())
            counts[key] = counts.get(key, 0) + 1
            now.add(one := task_id + lease.epoch.to_bytes(8, "big"))
            if one not in before and lease.epoch >= lease.shard_queue.shard.first_epoch:
                granted.add(key)
        for key in granted - {""}:
            self.checked += 1
            if limit is not None and counts[key] > limit.n:
                self.broken = f"{counts[key]} leases of {key} where {limit.n} may be"
        self.aside += any(
            one is not None and one.waiting
            for tenant_queue in state.queue_states[self.queue.encode()].tenant_queues.values()
            for one in tenant_queue.shard_queues
        )
        self._known[engine] = state.totals.claimed, now

    # -- at the clients --------------------------------------------------------------------

    def claimed(self, lease: Any, until: float, now: float) -> str:
        """A lease was answered that lasts so long at least. Returns what is wrong with it."""
        key = lease.labels.get(LABEL)
        if key is None or not self.has_one_shard or lease.task_id in self._tried:
            return ""
        self._held[lease] = key, until - SURE_S
        held = [one for one, (its, end) in self._held.items() if its == key and end > now]
        return f"{len(held)} leases of {key} where {self.n} may be" if len(held) > self.n else ""

    def ending(self, lease: Any) -> None:
        """A call that may end it is about to be made."""
        self._held.pop(lease, None)

    def cancelling(self, task_id: lodeq.TaskId) -> None:
        """A cancel is about to be asked for: it ends any lease of its task, heard of or not."""
        self._tried.add(task_id)
        for lease in [one for one in self._held if one.task_id == task_id]:
            self.ending(lease)


def _key(labels: tuple[str, ...]) -> str:
    return next((one for one in labels if one.startswith(LABEL + "=")), "")
