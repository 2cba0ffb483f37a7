"""Callers by the ten thousand at once: a call costs what it costs among a thousand.

The calls are the same many for each number of callers, over one store, in rounds: only how many are
made at a time differs. ``herd`` makes calls of one kind at a time and counts the CPU time of the
loop's thread, which is what the calls spend; ``herd-cycles`` has callers that all live at once and
make their cycles one after another, and counts wall time. Thirty thousand tasks are themselves what
a pass of Python's collector goes over, so the longest pass stands beside the longest turn, and the
many run once more with the collector as ``lodeq serve`` sets it.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from load import PAYLOAD
from passes import frozen
from results import Bench, Goal, Result
from settling import settled
from watch import Ceiling, Watch, add_turns, beside

import lodeq

CALLS = 30_000
CALLERS = (1_000, 10_000, 30_000)
KINDS = ("enqueue", "claim", "complete", "long poll")
STARTS = 500
AS_FAST = Goal("ratio", least=0.8)
Call = Callable[[], Awaitable[Any]]


async def herd(bench: Bench) -> None:
    """Enqueue, claim and complete by 1,000, 10,000 and 30,000 callers at once, and long polls."""
    rates: dict[tuple[str, int], list[float]] = {}
    async with lodeq.open(bench.folder / "herd") as engine:
        await _lives(engine, CALLERS[0], {})
        measures = {str(n): partial(_lives, engine, n, rates) for n in CALLERS}
        await bench.rounds(measures, before=partial(settled, [engine], []))
    for kind in KINDS:
        for n in CALLERS:
            is_first = n == CALLERS[0]
            bench.add(
                Result(
                    "calls of a herd",
                    {"call": kind, "callers": n},
                    "calls/s of CPU",
                    rates[kind, n],
                    "" if is_first else "1,000 callers",
                    [] if is_first else rates[kind, CALLERS[0]],
                    goal=None if is_first else AS_FAST,
                )
            )


async def herd_cycles(bench: Bench) -> None:
    """Cycles of 30,000 callers that live at once, beside those of 1,000, and beside raw."""
    few, many = (CALLERS[0], max(CALLERS)) if bench.scale >= 0.1 else (10, 300)
    n = many * max(1, round(2 * bench.scale))  # as many cycles for both
    columns = {"few": few, "many": many, "frozen": many}
    watches = {name: Watch() for name in columns}
    with Ceiling(bench.folder / "raw-herd", 2.0 * bench.scale) as ceiling:
        async with lodeq.open(bench.folder / "herd-cycles") as engine:
            measures: dict[str, Callable[[], Awaitable[float]]] = {"raw": ceiling}
            for name, callers in columns.items():
                one = partial(_cycles, engine, n, callers, watches[name])
                measures[name] = partial(_frozen, one) if name == "frozen" else one
            runs = await bench.rounds(measures, before=partial(settled, [engine], [ceiling.db]))
    for name, callers in columns.items():
        bench.add(
            beside(
                "cycles of a herd",
                {"callers": callers, "cycles": n, "collector": _collector(name)},
                "cycles/s",
                runs[name],
                watches[name],
                runs["raw"],
                ceiling,
            )
        )
    for name in ("many", "frozen"):
        for by, own, than in (
            ("wall time", runs[name], runs["few"]),
            ("CPU time", *([1e6 / us for us in watches[key].cpu_us] for key in (name, "few"))),
        ):
            bench.add(
                Result(
                    "a herd beside a thousand",
                    {"callers": many, "by": by, "collector": _collector(name)},
                    "cycles/s",
                    own,
                    f"{few:,} callers",
                    than,
                    goal=AS_FAST,
                )
            )
    turns = {f"cycles of {columns[name]:,} callers": watches[name] for name in ("few", "many")}
    add_turns(bench, turns | {f"cycles of {many:,} callers, collector frozen": watches["frozen"]})


def _collector(name: str) -> str:
    return "frozen" if name == "frozen" else "as it is"


async def _frozen(measure: Callable[[], Awaitable[float]]) -> float:
    with frozen():  # before there are callers: a server does it when it opens
        return await measure()


async def _cycles(engine: lodeq.Engine, n: int, callers: int, watch: Watch) -> float:
    """``n`` cycles by callers that are all there before the first begins.

    They begin ``STARTS`` a turn of the loop: their own first steps are no turn of the engine's. Nor
    is what it takes to wait for them: the last to end says so. (``gather`` over 30,000 takes longer
    than any turn of the engine.)
    """
    queue = engine.queue("herd")
    starts = [asyncio.Event() for _ in range(0, callers, STARTS)]
    ended = asyncio.Event()
    done, living = 0, callers

    async def call(start: asyncio.Event) -> None:
        nonlocal done, living
        await start.wait()
        try:
            for _ in range(n // callers):
                await queue.enqueue(PAYLOAD)
                for lease in await queue.claim():
                    await lease.complete(b"ok")
                    done += 1
        finally:
            living -= 1
            if not living:
                ended.set()

    tasks = [asyncio.create_task(call(starts[i // STARTS])) for i in range(callers)]
    await asyncio.sleep(0)  # all wait
    with watch.span() as span:
        for start in starts:
            start.set()
            await asyncio.sleep(0)
        await ended.wait()
        span.tasks = done
    await asyncio.gather(*tasks)  # raises what a caller has raised
    if done != n:
        raise AssertionError(f"{done} cycles of {n}")
    return span.rate


async def _lives(
    engine: lodeq.Engine, callers: int, rates: dict[tuple[str, int], list[float]]
) -> float:
    queue = engine.queue("herd")
    enqueue, claim = partial(queue.enqueue, b"x" * 100), partial(queue.claim, lease=3600)
    spent = dict.fromkeys(KINDS, 0.0)
    _, spent["enqueue"] = await _in_herds([enqueue] * CALLS, callers)
    claimed, spent["claim"] = await _in_herds([claim] * CALLS, callers)
    ends: list[Call] = [leases[0].complete for leases in claimed]
    _, spent["complete"] = await _in_herds(ends, callers)
    for _ in range(0, CALLS, callers):
        waiting = [asyncio.create_task(queue.claim(wait=600, lease=3600)) for _ in range(callers)]
        for _ in range(9):  # until they wait
            await asyncio.sleep(0)
        _, seconds = await _in_herds([enqueue] * callers, callers, waiting)
        spent["long poll"] += seconds
        served = [task.result()[0].complete for task in waiting]
        await _in_herds(served, callers)
    for kind, seconds in spent.items():
        rates.setdefault((kind, callers), []).append(CALLS / seconds)
    return CALLS / spent["enqueue"]


async def _in_herds(
    calls: Sequence[Call], callers: int, others: Sequence[Awaitable[Any]] = ()
) -> tuple[list[Any], float]:
    """Results of the calls, and the CPU seconds they took; ``others`` are waited for as well."""
    found: list[Any] = []
    gc.collect()
    before = time.thread_time()
    for at in range(0, len(calls), callers):
        found += await asyncio.gather(*[call() for call in calls[at : at + callers]])
    await asyncio.gather(*others)
    return found, time.thread_time() - before
