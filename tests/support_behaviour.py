"""A clock that only the test moves, and the few words every behaviour test needs.

Nothing here sleeps: time is moved by ``StillClock.advance``, and waiting is a bounded number of
turns of the loop, so a test either sees what it waits for or fails, on any machine.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from typing import Any

import lodeq
from lodeq.engine.runtime.clock import TimerHandle, Timers
from lodeq.engine.runtime.ids import SeededRng
from lodeq.repository.api.open import OpenHandle, open_in_memory

START_US = 1_700_000_000_000_000

__all__ = [
    "START_US",
    "StillClock",
    "drain",
    "in_memory",
    "payloads",
    "settle",
    "sound",
    "unchanged",
    "until",
]


class _Timer:
    def __init__(self, fn: Callable[[], None]) -> None:
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        self.fn = None


class StillClock:
    """Both clocks of the port. They move together in ``jump``, apart in ``step_wall``."""

    def __init__(self) -> None:
        self._wall_us = START_US
        self._mono = 1000.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._n = 0

    def wall_us(self) -> int:
        return self._wall_us

    def mono(self) -> float:
        return self._mono

    def call_at(self, timers: Timers, when_mono: float, fn: Callable[[], None]) -> TimerHandle:
        if when_mono <= self._mono:
            return timers.call_later(0.0, fn)
        timer = _Timer(fn)
        self._n += 1
        heappush(self._timers, (when_mono, self._n, timer))
        return timer

    def step_wall(self, seconds: float) -> None:
        """What an operator or NTP does: the wall clock alone."""
        self._wall_us += round(seconds * 1e6)

    def jump(self, seconds: float) -> None:
        """Move both clocks at once and run what has become due."""
        self._wall_us += round(seconds * 1e6)
        self._mono += seconds
        while self._timers and self._timers[0][0] <= self._mono:
            fn = heappop(self._timers)[2].fn
            if fn is not None:
                fn()

    async def advance(self, seconds: float, *, turns: int = 40) -> None:
        """``jump``, then let the engine do what that asks for."""
        self.jump(seconds)
        await settle(turns)


async def settle(turns: int = 40) -> None:
    """So many turns of the loop."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(holds: Callable[[], object], turns: int = 50_000) -> None:
    """Turns of the loop until it holds; fails if it never does."""
    for _ in range(turns):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never happened")


def in_memory(clock: StillClock | None = None, **options: Any) -> OpenHandle:
    """An engine in memory, with a repeatable source of randomness."""
    options.setdefault("rng", SeededRng(11))
    return open_in_memory(clock=clock or StillClock(), **options)


async def sound(engine: lodeq.Engine) -> None:
    """Every row agrees with every rule, the counters with a recount, nothing looked strange."""
    report = await engine.verify()
    assert report.ok, report.findings
    assert not (await engine.stats()).anomalies


def payloads(leases: Sequence[lodeq.Lease]) -> list[Any]:
    return [lease.payload for lease in leases]


async def drain(queue: lodeq.Queue, *, limit: int = 4096) -> list[Any]:
    """Claim and complete until nothing is ready; the payloads in the order they came."""
    out: list[Any] = []
    while leases := await queue.claim(limit=limit):
        for lease in leases:
            out.append(lease.payload)
            await lease.complete(keep=False)
    return out


@asynccontextmanager
async def unchanged(engine: lodeq.Engine) -> AsyncIterator[None]:
    """Neither a row nor a counter nor a commit more than before."""

    async def state() -> tuple[Any, ...]:
        stats = await engine.stats()
        rows = [s.store.scan(b"", b"\xff", 1 << 20) for s in engine._state.shards]
        commits = [s.coalescer.applied_number for s in engine._state.shards]
        counts = (stats.ready, stats.delayed, stats.leased, stats.dead, stats.results)
        return rows, commits, counts, set(engine._state.leases)

    before = await state()
    yield
    await settle(3)
    assert await state() == before
    await sound(engine)
