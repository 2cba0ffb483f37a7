"""The reason for two speeds of claims from round to round: a bound of kept results.

Rounds of claims at a backlog fell into two clusters, a third as fast again one as the other. What
made them is the work of the store itself: from ``Limits.results_max`` kept results on, each end of
a task also removes the oldest result. So one store here has no bound, and another is at it all the
time. Beside that this case turns on and off what else could make two speeds: a process that keeps
the other cores busy, compaction, Python's collector, huge pages.

Each is compared with rounds beside which nothing runs, in CPU time of the loop's thread, so that
waiting for a core does not count. Beside each a loop of plain arithmetic is timed, that has no
queue in it. Passes of the collector are counted and timed in each round: if they made the two
speeds, rounds with a pass over all objects would be the slow ones, and there would be one speed
with the collector off, and with all that exists frozen.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

import load
from passes import Passes, frozen
from results import Bench, Result
from settling import settled

import lodeq
from lodeq import NewTask
from lodeq.repository.state import engine_state

PENDING, CLAIMS, STEPS = 200_000, 30_000, 400_000
_SET_THP_DISABLE = 41  # of prctl
_SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"

NAMES = ALONE, FULL, BUSY, COMPACTS, UNCOLLECTED, FROZEN, SMALL = (
    "nothing",
    "results at their bound",
    "other cores busy",
    "compaction",
    "no collector",
    "collector frozen",
    "no huge pages",
)


@contextmanager
def _busy() -> Iterator[None]:
    """A process on every core but ours, that touches no memory and no disk."""
    ours, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {ours})  # this thread alone
    spinning = [subprocess.Popen([sys.executable, "-c", _SPIN, str(core)]) for core in others]
    try:
        time.sleep(0.2)
        yield
    finally:
        for one in spinning:
            one.kill()
            one.wait()
        os.sched_setaffinity(0, {ours, *others})


@contextmanager
def _no_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _no_huge_pages() -> Iterator[None]:
    prctl = ctypes.CDLL(None).prctl
    prctl(_SET_THP_DISABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_SET_THP_DISABLE, 0, 0, 0, 0)


SWITCHES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    BUSY: _busy,
    UNCOLLECTED: _no_collector,
    FROZEN: frozen,
    SMALL: _no_huge_pages,
}


def _arithmetic() -> float:
    """Steps a CPU second of a loop that has nothing to do with us."""
    before, x = time.thread_time(), 0
    for i in range(STEPS):
        x = (x * 31 + i) & 0xFFFF
    return STEPS / (time.thread_time() - before)


class _Rounds:
    """Rounds of claims in two stores: one without a bound of results, one that is at it.

    Args:
        bench: what is asked for.
        engine, full: the two stores.
        other: a store beside them, for compaction.
        claims: of one round.
    """

    def __init__(
        self,
        bench: Bench,
        engine: lodeq.Engine,
        full: lodeq.Engine,
        other: lodeq.Engine,
        claims: int,
    ) -> None:
        self._bench = bench
        self._stores = (engine, full, other)
        self._claims = claims
        self._queues = {one: one.queue("speeds") for one in self._stores}
        self.rates: dict[str, list[float]] = {name: [] for name in NAMES}
        self.steps: dict[str, list[float]] = {name: [] for name in NAMES}
        self.passes: dict[str, list[Passes]] = {name: [] for name in NAMES}
        self.faults: dict[str, list[int]] = {name: [] for name in NAMES}

    async def run(self, pending: int) -> None:
        """Fill the stores, and run all measures in turns."""
        _, full, _ = self._stores
        for queue in self._queues.values():
            for _ in range(pending // 1000):
                await queue.enqueue_many([NewTask(load.PAYLOAD)] * 1000)
        await self._claim(full)
        await self._bench.rounds(
            {name: partial(self._beside, name) for name in NAMES},
            max(self._bench.repeats, 7),
            before=lambda: settled(self._stores),
        )

    async def _beside(self, name: str) -> float:
        engine, full, other = self._stores
        if name in SWITCHES:
            with SWITCHES[name]():
                return await self._measure(name, engine)
        if name == COMPACTS:  # of the other store: it shares threads and cores, not tables
            work = asyncio.ensure_future(asyncio.to_thread(_compact, other))
            rate = await self._measure(name, engine)
            await work
            return rate
        return await self._measure(name, full if name == FULL else engine)

    async def _measure(self, name: str, engine: lodeq.Engine) -> float:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        with Passes() as passes:
            before = time.thread_time()
            await self._claim(engine)
            rate = self._claims / (time.thread_time() - before)
        self.faults[name].append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
        self.passes[name].append(passes)
        self.rates[name].append(rate)
        self.steps[name].append(_arithmetic())
        return rate

    async def _claim(self, engine: lodeq.Engine) -> None:
        await load.steady(engine, self._queues[engine], self._claims)
        if engine is self._stores[1]:
            await load.results_removed(engine, self._claims)


async def two_speeds(bench: Bench) -> None:
    """Claims a CPU second at a backlog, with and without what may slow them down."""
    pending = max(10_000, int(PENDING * bench.scale)) // 1000 * 1000
    claims = max(6_400, int(CLAIMS * bench.scale)) // 64 * 64
    few = replace(load.UNTRIMMED, results_max=claims)
    held, engine_state.HELD_BYTES_MAX = engine_state.HELD_BYTES_MAX, 0
    try:
        async with (
            lodeq.open(bench.folder / "speeds", limits=load.UNTRIMMED) as engine,
            lodeq.open(bench.folder / "speeds-full", limits=few) as full,
            lodeq.open(bench.folder / "speeds-other") as other,
        ):
            rounds = _Rounds(bench, engine, full, other, claims)
            await rounds.run(pending)
    finally:
        engine_state.HELD_BYTES_MAX = held
    for name in NAMES:
        params = {"beside": name, "pending": pending}
        more = _told(rounds.rates[name], rounds.passes[name])
        more["page faults"] = sorted(rounds.faults[name])[len(rounds.faults[name]) // 2]
        bench.add(
            Result(
                "claims a CPU second",
                params,
                "claims/s",
                rounds.rates[name],
                "beside nothing",
                rounds.rates[ALONE],
                more=more,
            )
        )
        bench.add(
            Result(
                "arithmetic a CPU second",
                params,
                "steps/s",
                rounds.steps[name],
                "beside nothing",
                rounds.steps[ALONE],
            )
        )


def _told(rates: list[float], passes: list[Passes]) -> dict[str, float]:
    """Tell what the collector did in these rounds, and the rate of those without a full pass."""
    of_none = [rate for rate, one in zip(rates, passes, strict=True) if not one.of_all]
    told = {
        "rounds": len(rates),
        "rounds with a full pass": len(rates) - len(of_none),
        "longest pass, ms": round(max(one.longest_ms for one in passes), 2),
        "passes, ms a round": round(statistics.median(one.total_ms for one in passes), 2),
    }
    if of_none:
        told["without a full pass: least"] = round(min(of_none))
        told["without a full pass: most"] = round(max(of_none))
    return told


def _compact(engine: lodeq.Engine) -> None:
    for shard in engine._state.shards:
        shard.store._db.compact_range(None, None)
