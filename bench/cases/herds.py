"""Callers by the ten thousand at once: a call costs what it costs among a thousand.

The calls are the same many for each number of callers, over one store, in rounds: only how many are
made at a time differs. By the CPU time of the loop's thread, which is what the calls spend.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from results import Bench, Goal, Result
from settling import settled

import lodeq

CALLS = 30_000
CALLERS = (1_000, 10_000, 30_000)
KINDS = ("enqueue", "claim", "complete", "long poll")
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
