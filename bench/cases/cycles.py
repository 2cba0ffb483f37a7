"""Full cycles: enqueue, claim, complete with a result, by one caller or many, alone or in batches.

The ceiling is raw rocksdict in the same process and in the same rounds: the same keys and values
in batches of 64, or one by one for a lone caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import load
import raw
from results import Bench, Goal, Result

import lodeq

SINGLE = {160: Goal("ratio", least=0.35), 512: Goal("ratio", least=0.35)}
BATCHES = Goal("ratio", least=0.5)
HEADLINE = Goal("median", least=76_639)  # tasks/s that are never completed, on twelve cores


@contextlib.contextmanager
def ceiling(folder: Path, batch: int, n: int) -> Iterator[Any]:
    """A measure: raw cycles per second."""
    db = raw.open_raw(str(folder / f"raw-{batch}"))
    runs = raw.cycles(db, n, batch)

    async def measure() -> float:
        return next(runs)

    try:
        yield measure
    finally:
        db.close()


async def cycles(bench: Bench) -> None:
    """One caller, 64, 160 and 512, single calls and batches, both modes."""
    seconds, n = 3.0 * bench.scale, int(64_000 * bench.scale)
    with ceiling(bench.folder, 64, n) as raw64, ceiling(bench.folder, 1, n // 4) as raw1:
        for mode in ("nosync", "fsync"):
            async with lodeq.open(bench.folder / f"cycles-{mode}", durability=mode) as engine:
                await load.single_calls(engine, 0.5)
                measures = {
                    1: partial(load.closed_loop, engine, seconds, 1),
                    64: partial(load.closed_loop, engine, seconds, 64),
                    160: partial(load.single_calls, engine, seconds),
                    512: partial(load.single_calls, engine, seconds, producers=102, workers=410),
                }
                for callers, measure in measures.items():
                    base, than = (raw1, "raw one by one") if callers == 1 else (raw64, "raw by 64")
                    runs = await bench.rounds({"own": measure, "raw": base})
                    bench.add(Result(
                        "cycle", {"api": "single", "durability": mode, "callers": callers},
                        "cycles/s", runs["own"], than, runs["raw"],
                        goal=SINGLE.get(callers) if mode == "nosync" else None,
                    ))  # fmt: skip
                for callers in (1, 64):
                    measure = partial(load.batch_loop, engine, seconds, callers)
                    runs = await bench.rounds({"own": measure, "raw": raw64})
                    bench.add(Result(
                        "cycle", {"api": "batches of 64", "durability": mode, "callers": callers},
                        "cycles/s", runs["own"], "raw by 64", runs["raw"],
                        goal=BATCHES if mode == "nosync" and callers == 1 else None,
                    ))  # fmt: skip


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
        bench.add(Result(
            "original's shape", {"durability": mode, "callers": 160, "payload_bytes": 14},
            "results read back/s", runs, more={"results_compared": checked},
        ))  # fmt: skip
    async with lodeq.open(bench.folder / "headline") as engine:
        measure = partial(load.batches, engine, int(100_000 * bench.scale), size=100)
        runs = (await bench.rounds({"own": measure}))["own"]
    bench.add(Result(
        "batches of 100", {"durability": "nosync", "callers": 1}, "cycles/s", runs, goal=HEADLINE,
    ))  # fmt: skip
