"""Properties that hold while it is fast: the loop keeps turning, stalls and mass expiry too."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import load
import raw
from looplag import LoopLag
from results import Bench, Goal, Result
from settling import settled

import lodeq
from lodeq import NewTask

TURNS = Goal("median", most=20.0)


async def group_commit(bench: Bench) -> None:
    """256 callers, every acknowledgement synced, beside synced writes one after another."""
    seconds = 3.0 * bench.scale
    db = raw.open_raw(str(bench.folder / "raw-sync"))

    async def one_by_one() -> float:
        return raw.synced_writes(db, seconds / 2)

    async def operations(engine: lodeq.Engine) -> float:
        return 3 * await load.closed_loop(engine, seconds, 256)  # enqueue, claim, complete

    async with (
        lodeq.open(bench.folder / "synced", durability="fsync") as durable,
        lodeq.open(bench.folder / "fast") as fast,
    ):
        runs = await bench.rounds(
            {
                "raw": one_by_one,
                "fsync": partial(operations, durable),
                "nosync": partial(operations, fast),
            },
            before=partial(settled, [durable, fast], [db]),
        )
    params = {"durability": "fsync", "callers": 256}
    for than, least in (("raw", 12.0), ("nosync", 0.5)):
        bench.add(
            Result(
                "acknowledged operations",
                params,
                "ops/s",
                runs["fsync"],
                "one synced write after another" if than == "raw" else "nosync",
                runs[than],
                goal=Goal("ratio", least=least),
            )
        )
    db.close()


def _lag(bench: Bench, what: str, lag: LoopLag, **more: Any) -> None:
    told = lag.summary()
    bench.add(
        Result(
            "longest turn of the loop",
            {"under": what},
            "ms",
            [told["wall_max_ms"]],
            goal=TURNS,
            more={**told, **more},
        )
    )


async def loop_turns(bench: Bench) -> None:
    """The single-call load, and the same while RocksDB refuses writes for half a second."""
    seconds = 10.0 * bench.scale
    async with lodeq.open(bench.folder / "loop") as engine:
        await load.single_calls(engine, 1.0)
        with LoopLag() as lag:
            await load.single_calls(engine, seconds)
        _lag(bench, "single calls", lag)
        await _stalled(bench, engine)


async def _stalled(bench: Bench, engine: lodeq.Engine) -> None:
    coalescer: Any = engine._state.shards[0].coalescer
    store = coalescer.store
    until = 0.0

    class Refusing:
        @staticmethod
        def write(ops: Any) -> None:
            if time.perf_counter() < until:
                raise lodeq.StoreStalledError("stalled by the benchmark")
            store.write(ops)

    coalescer.store = Refusing
    running = asyncio.create_task(load.single_calls(engine, 3.0))
    await asyncio.sleep(1.0)
    with LoopLag() as lag:
        until = time.perf_counter() + 0.5
        await asyncio.sleep(1.0)
    await running
    coalescer.store = store
    stalls = (await engine.stats()).shards[0].stalls
    if not stalls:
        raise AssertionError("the store was to refuse writes, and did not")
    _lag(bench, "a store stalled for 0.5 s", lag, stalls=stalls)


async def expiry(bench: Bench) -> None:
    """100,000 leases that expire together."""
    n = int(100_000 * bench.scale) // 1000 * 1000
    async with lodeq.open(bench.folder / "expiry") as engine:
        queue = engine.queue("expiry")
        for _ in range(n // 1000):
            await queue.enqueue_many([NewTask(load.PAYLOAD)] * 1000)
        length, claimed = 6.0, 0
        started = time.perf_counter()
        while claimed < n:
            left = max(0.05, length - (time.perf_counter() - started))
            claimed += len(await queue.claim(limit=1000, lease=left))
        expires = started + length
        await asyncio.sleep(max(0.0, expires - 0.2 - time.perf_counter()))
        with LoopLag() as lag:
            while (await queue.stats()).leased:  # noqa: ASYNC110 - polling is the measurement
                await asyncio.sleep(0.01)
        took = time.perf_counter() - expires
        if (await queue.stats()).ready != n:
            raise AssertionError("leases expired, and not all tasks came back")
    bench.add(
        Result(
            "leases expire together",
            {"leases": n},
            "s until ready",
            [took],
            goal=Goal("median", most=10.0),
        )
    )
    _lag(bench, f"the expiry of {n:,} leases", lag)
