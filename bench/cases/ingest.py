"""A load that is staged and taken in, beside ``enqueue_many`` of the same tasks."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from looplag import LoopLag
from results import Bench, Goal, Result

import lodeq

PAYLOAD = b"x" * 200
BATCH = 1000
RATE = Goal("ratio", least=0.5)
BLOCKED = Goal("ratio", most=0.02)


def tasks(n: int) -> list[lodeq.NewTask]:
    return [lodeq.NewTask(PAYLOAD) for _ in range(n)]


async def enqueued(path: Path, n: int) -> tuple[float, float]:
    """(tasks/s, milliseconds in which the loop could do nothing else)."""
    async with lodeq.open(path, shards=2, inbox=False) as engine:
        queue = engine.queue("mail")
        started = time.perf_counter()
        with LoopLag() as lag:
            for at in range(0, n, BATCH):
                await queue.enqueue_many(tasks(min(BATCH, n - at)))
        return n / (time.perf_counter() - started), sum(lag.cpu_ms)


async def loaded(path: Path, n: int) -> tuple[float, float, float]:
    """The same of staging and taking in, and the longest turn of the loop."""

    def stage() -> None:
        with lodeq.Stage(path, "bench") as load:
            for at in range(0, n, BATCH):
                load.add(tasks(min(BATCH, n - at)), queue="mail")
            load.publish()

    async with lodeq.open(path, shards=2, inbox=False) as engine:
        started = time.perf_counter()
        await asyncio.to_thread(stage)
        with LoopLag() as lag:
            report = await engine.ingest()
        took = time.perf_counter() - started
        if report.tasks != n:
            raise RuntimeError(f"{report} of {n}")
        return n / took, sum(lag.cpu_ms), lag.summary()["wall_max_ms"]


async def ingest(bench: Bench) -> None:
    """Rates in one process, and how long the loop of the live engine is taken."""
    n = max(BATCH, int(1_000_000 * bench.scale))

    async def measured(fn: Callable[[Path, int], Awaitable[Any]]) -> list[Any]:
        found = []
        for _ in range(bench.repeats):
            path = bench.folder / "ingest"
            shutil.rmtree(path, ignore_errors=True)
            found.append(await fn(path, n))
            shutil.rmtree(path, ignore_errors=True)
        return found

    many, bulk = await measured(enqueued), await measured(loaded)
    params = {"tasks": n, "payload": len(PAYLOAD)}
    bench.add(
        Result(
            "a load, staged and taken in",
            params,
            "tasks/s",
            [one[0] for one in bulk],
            "enqueue_many",
            [one[0] for one in many],
            goal=RATE,
        )
    )
    bench.add(
        Result(
            "the loop, while a load comes in",
            params,
            "ms of CPU",
            [one[1] for one in bulk],
            "enqueue_many",
            [one[1] for one in many],
            goal=BLOCKED,
            more={"longest_turn_ms": max(one[2] for one in bulk)},
        )
    )
