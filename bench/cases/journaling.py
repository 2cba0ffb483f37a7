"""The cost of a lifecycle journal: the same cycles with one and without."""

from __future__ import annotations

import asyncio
from functools import partial

import load
from results import Bench, Goal, Result
from settling import settled

import lodeq

COST = Goal("ratio", least=0.85)
POLL_S, POLLS_MAX = 0.05, 1200
SYNC_S = 0.2  # of both: what is durable is moved, so the pump works within the round it belongs to


async def lifecycle(bench: Bench) -> None:
    """160 callers, one, and batches of 64; the two engines take turns in one process."""
    seconds, folder = 3.0 * bench.scale, bench.folder
    async with (
        lodeq.open(folder / "without", sync_interval=SYNC_S) as without,
        lodeq.open(folder / "with", sync_interval=SYNC_S, journal="tasks") as told,
    ):
        engines = {"without": without, "with": told}
        for api, callers in (("single", 160), ("single", 1), ("batches of 64", 1)):
            measures = {
                name: partial(_measure(api, callers), engine, seconds)
                for name, engine in engines.items()
            }
            runs = await bench.rounds(measures, before=partial(_quiet, list(engines.values())))
            bench.add(
                Result(
                    "cycle with a lifecycle journal",
                    {"api": api, "callers": callers, "durability": "nosync"},
                    "cycles/s",
                    runs["with"],
                    "without",
                    runs["without"],
                    goal=COST if callers != 1 else None,
                )
            )


def _measure(api: str, callers: int):
    if api != "single":
        return partial(load.batch_loop, callers=callers)
    return load.single_calls if callers > 1 else partial(load.closed_loop, callers=1)


async def _quiet(engines: list[lodeq.Engine]) -> None:
    """Wait until everything is durable and everything is moved."""
    for engine in engines:
        await engine.fsync()
        pump = engine._runtime.event_publisher
        for _ in range(POLLS_MAX):
            if pump is None or not pump.is_behind:
                break
            await asyncio.sleep(POLL_S)
    await settled(engines)
