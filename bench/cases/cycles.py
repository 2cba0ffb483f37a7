"""Full cycles: enqueue, claim, complete with a result, by one caller or many, alone or in batches.

The ceiling is raw rocksdict in the same process and in the same rounds: the same keys and values
in batches of 64, or one by one for a lone caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import load
import raw
from results import Bench, Goal, Result
from rocksdict import Rdict
from settling import settled

import lodeq

SINGLE = Goal("ratio", least=0.35)
BATCHES = Goal("ratio", least=0.5)
HEADLINE = Goal("median", least=76_639)  # tasks/s that are never completed, on twelve cores


async def cycles(bench: Bench) -> None:
    """One caller, 64, 160 and 512, single calls and batches, both modes.

    All for as long, and what one has left to flush or compact is done before the next begins: the
    ceiling would else leave its compactions to the engine's turn.
    """
    seconds = 3.0 * bench.scale
    with contextlib.ExitStack() as stack:
        raws: dict[int, Rdict] = {}
        ceilings: dict[int, Callable[[], Awaitable[float]]] = {}
        for batch in (1, 64):
            raws[batch] = raw.open_raw(str(bench.folder / f"raw-{batch}"))
            stack.callback(raws[batch].close)
            runs = raw.cycles(raws[batch], 6400, batch, seconds=seconds)
            ceilings[batch] = partial(_next, runs)
        for mode in ("nosync", "fsync"):
            async with lodeq.open(bench.folder / f"cycles-{mode}", durability=mode) as engine:
                await load.single_calls(engine, 0.5)
                before = partial(settled, [engine], list(raws.values()))
                for api, callers, own, goal in _measures(engine, seconds, mode):
                    batch = 1 if (api, callers) == ("single", 1) else 64
                    measures = {"own": own, "raw": ceilings[batch]}
                    found = await bench.rounds(measures, before=before)
                    bench.add(
                        Result(
                            "cycle",
                            {"api": api, "durability": mode, "callers": callers},
                            "cycles/s",
                            found["own"],
                            "raw by 64" if batch == 64 else "raw one by one",
                            found["raw"],
                            goal=goal,
                        )
                    )


def _measures(engine: lodeq.Engine, seconds: float, mode: str) -> Iterator[Any]:
    """(api, callers, measure, goal)."""
    is_held = mode == "nosync"
    for callers in (1, 64):
        yield "single", callers, partial(load.closed_loop, engine, seconds, callers), None
    for callers, producers in ((160, 32), (512, 102)):
        own = partial(
            load.single_calls, engine, seconds, producers=producers, workers=callers - producers
        )
        yield "single", callers, own, SINGLE if is_held else None
    for callers in (1, 64):
        own = partial(load.batch_loop, engine, seconds, callers)
        yield "batches of 64", callers, own, BATCHES if is_held and callers == 1 else None


async def _next(runs: Iterator[float]) -> float:
    return next(runs)


async def original(bench: Bench) -> None:
    """32 producers, 128 workers, 14 bytes, 2 s to warm up, a window of 20 s.

    A task counts when its result has been acknowledged *and read back*. That is a fourth call,
    which the benchmark this shape is taken from does not make: its tasks never complete.
    """
    for mode in ("nosync", "fsync"):
        runs, checked = [], 0
        async with lodeq.open(bench.folder / f"original-{mode}", durability=mode) as engine:
            for _ in range(bench.repeats):
                run = await load.read_back(engine, warm_s=2.0, window_s=20.0 * bench.scale)
                runs.append(run.rate)
                checked += run.checked
        bench.add(
            Result(
                "original's shape",
                {"durability": mode, "callers": 160, "payload_bytes": 14},
                "results read back/s",
                runs,
                more={"results_compared": checked},
            )
        )
    async with lodeq.open(bench.folder / "headline") as engine:
        measure = partial(load.batches, engine, int(100_000 * bench.scale), size=100)
        runs = (await bench.rounds({"own": measure}))["own"]
    bench.add(
        Result(
            "batches of 100",
            {"durability": "nosync", "callers": 1},
            "cycles/s",
            runs,
            goal=HEADLINE,
        )
    )
