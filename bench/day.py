"""A mixed day: what services do to a queue, all of it at once, by single calls.

Priorities, delays, dedup keys (some held), retries with backoff, dead letters, heartbeats, TTLs
that pass, cancelled tasks, 64 KiB payloads, eight queues of three tenants each. The first byte of
a payload says what its worker does. What became of every task is counted here and in the engine,
and the two must agree.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from watch import Span, Watch

import lodeq
from lodeq import ALL_TENANTS, Backoff, Engine, Lease, Queue

__all__ = ["MEAN_BYTES", "Day"]

SMALL, LARGE = bytes(range(91)), random.Random(18).randbytes((64 << 10) - 9)
SHARES = {
    "plain": 44,
    "priority": 20,
    "delayed": 8,
    "keyed": 10,
    "retried": 8,
    "kept": 4,  # with heartbeats
    "large": 2,
    "perishable": 2,
    "cancelled": 1,
    "doomed": 1,
}
KINDS = {bytes([i]): name for i, name in enumerate(SHARES)}
CODES = {name: code for code, name in KINDS.items()}
MEAN_BYTES = (100 * (100 - SHARES["large"]) + (64 << 10) * SHARES["large"]) // 100
QUEUES = [f"day-{i}" for i in range(8)]
TENANTS = ["", "blue", "green"]
LIVE_MAX = 5_000  # a service with more open tasks than this would hold its producers back too
WAIT_S, POLL_S, DRAIN_S_MAX = 0.2, 0.02, 120.0
TTL_S = 0.2


class Day:
    """The load on one engine, and the book of what became of its tasks."""

    def __init__(self, engine: Engine, seed: int = 18) -> None:
        self.engine = engine
        self.draw = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.numbers = count(1)
        self.key = 0
        backoff = Backoff("fixed", base=0.02)
        self.queues = [
            engine.queue(name, tenant=tenant, backoff=backoff)
            for name in QUEUES
            for tenant in TENANTS
        ]
        self.all = [engine.queue(name, tenant=ALL_TENANTS) for name in QUEUES]
        self.perishable = engine.queue("perishable")

    @property
    def live(self) -> int:
        """Tasks that have not ended, but those that only wait for their TTL."""
        c = self.counts
        return c["enqueued"] - c["completed"] - c["dead"] - c["cancelled"] - c["perishable"]

    # -- the load ----------------------------------------------------------------------

    async def run(
        self, seconds: float, watch: Watch, *, producers: int = 32, workers: int = 128
    ) -> float:
        """Work for so long, then drain and compare the books. Cycles per second.

        Args:
            seconds: how long the producers work; what they leave is drained after it, uncounted.
            watch: gets CPU time and turns of the counted part.
            producers: callers that enqueue.
            workers: callers that claim, with waits.
        """
        with watch.span() as span:
            stop = time.perf_counter() + seconds
            begun = self.counts["completed"]
            working = [asyncio.create_task(self._work(i)) for i in range(workers)]
            await asyncio.gather(*(self._produce(stop) for _ in range(producers)))
            span.tasks = self.counts["completed"] - begun
        await self._drain(working)
        await self.check()
        return _rate(span)

    async def _produce(self, stop: float) -> None:
        names, weights = list(SHARES), list(SHARES.values())
        while time.perf_counter() < stop:
            if self.live >= LIVE_MAX:
                await asyncio.sleep(POLL_S)
                continue
            (kind,) = self.draw.choices(names, weights)
            await self._put(kind, self.draw.choice(self.queues))

    async def _put(self, kind: str, queue: Queue) -> None:
        number = next(self.numbers)
        payload = CODES[kind] + number.to_bytes(8, "big") + (LARGE if kind == "large" else SMALL)
        options: dict[str, Any] = {}
        match kind:
            case "priority":
                options = {"priority": self.draw.randrange(10)}
            case "delayed":
                options = {"delay": self.draw.uniform(0.005, 0.05)}
            case "keyed":  # the last key again now and then: its window holds it
                queue = self.queues[0]
                if self.draw.random() >= 0.3:
                    self.key = number
                options = {"dedup_key": b"%d" % self.key, "dedup_window": 60.0}
            case "doomed":
                options = {"max_attempts": 1}
            case "cancelled":
                options = {"delay": 3600.0}
            case "perishable":
                queue, options = self.perishable, {"ttl": TTL_S}
        receipt = await queue.enqueue(payload, **options)
        if receipt.duplicate:
            self.counts["duplicates"] += 1
            return
        self.counts["enqueued"] += 1
        if kind == "perishable":
            self.counts["perishable"] += 1
        elif kind == "cancelled":
            if not await self.engine.cancel(receipt.id):
                raise AssertionError(f"{receipt.id} could not be cancelled")
            self.counts["cancelled"] += 1

    async def _work(self, i: int) -> None:
        claim: Callable[[], Awaitable[list[Lease]]]
        match i % 4:
            case 0:
                one = self.queues[i % len(self.queues)]
                claim = lambda: one.claim(wait=WAIT_S)  # noqa: E731
            case 1:
                claim = lambda: self.engine.claim(self.all, wait=WAIT_S)  # noqa: E731
            case _:
                every = self.all[i % len(self.all)]
                claim = lambda: every.claim(wait=WAIT_S)  # noqa: E731
        while True:
            for lease in await claim():
                await self._end(lease)

    async def _end(self, lease: Lease) -> None:
        kind = KINDS[lease.payload[:1]]
        if kind == "doomed":
            await lease.nack(reason="it always fails")
            self.counts["dead"] += 1
            self.counts["nacked"] += 1
        elif kind == "retried" and lease.attempt == 1:
            await lease.nack(reason="the first attempt fails")
            self.counts["nacked"] += 1
        else:
            if kind == "kept":
                for _ in range(2):
                    await lease.heartbeat()
                    await asyncio.sleep(0)
            await lease.complete(b"ok")
            self.counts["completed"] += 1

    # -- the books ---------------------------------------------------------------------

    async def _drain(self, working: list[asyncio.Task[None]]) -> None:
        until = time.perf_counter() + DRAIN_S_MAX
        try:
            while True:
                stats = await self.engine.stats()
                if not (stats.ready or stats.delayed or stats.leased):
                    return
                for task in working:
                    if task.done():
                        task.result()  # it never ends by itself: this raises
                if time.perf_counter() > until:
                    raise AssertionError(f"tasks are left after {DRAIN_S_MAX:g} s: {stats}")
                await asyncio.sleep(POLL_S)
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)

    async def check(self) -> None:
        """Every task is accounted for, by outcome, here as in the engine."""
        stats, own = await self.engine.stats(), self.counts
        pairs = {
            "enqueued": (stats.enqueued_total, own["enqueued"]),
            "duplicates": (stats.duplicates_total, own["duplicates"]),
            "completed": (stats.completed_total, own["completed"]),
            "nacked": (stats.nacked_total, own["nacked"]),
            "dead": (stats.dead_total, own["dead"]),
            "expired": (stats.expired_total, own["perishable"]),
            "reaped": (stats.reaped_total, 0),
            "dead letters": (stats.dead, own["dead"]),
            "all that ended": (
                own["completed"] + own["dead"] + own["cancelled"] + own["perishable"],
                own["enqueued"],
            ),
        }
        wrong = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        if wrong:
            raise AssertionError(f"the books differ (engine, load): {wrong}")

    def outcomes(self) -> dict[str, int]:
        """Columns of a result."""
        names = ("completed", "nacked", "dead", "perishable", "cancelled", "duplicates")
        return {("expired" if name == "perishable" else name): self.counts[name] for name in names}


def _rate(span: Span) -> float:
    if not span.tasks:
        raise lodeq.LodeqError("nothing was completed")
    return span.rate
