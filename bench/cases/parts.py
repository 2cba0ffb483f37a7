"""The microseconds of a task by layer: the same load with one layer taken out after another.

CPU time of the loop's own thread, so that flushes and compactions, which have threads of their
own, do not count. Three runs a round:

- *loop*: coroutines that await futures told in batches, and do nothing else: what three awaited
  calls cost on this loop at the very least;
- *engine*: the whole engine, over a store that forgets what it is given;
- *whole*: the engine over RocksDB.

The differences are lodeq's own Python, and the writes. So the table adds up.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable

import load
from results import Bench, Result, percentiles

import lodeq
from lodeq.coalescer.fsync import Syncer
from lodeq.engine.runtime.clock import SystemClock
from lodeq.engine.store.memory import MemoryStore
from lodeq.engine.store.port import Op
from lodeq.engine.store.rocks import RocksStore
from lodeq.repository.api.open import open_in_memory

CALLERS = 160


class Forgetful(MemoryStore):
    """Takes every write and keeps none."""

    def write(self, ops: Iterable[Op]) -> None:
        """Write nothing."""


async def bare(seconds: float) -> int:
    """Cycles of three futures, told a batch at a time by a callback, by 160 callers."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []
    stop = time.perf_counter() + seconds
    done = 0

    def tell() -> None:
        told = waiting[:]
        waiting.clear()
        for future in told:
            future.set_result(None)

    async def call() -> None:
        if not waiting:
            loop.call_soon(tell)
        future = loop.create_future()
        waiting.append(future)
        await future

    async def cycles() -> None:
        nonlocal done
        while time.perf_counter() < stop:
            await call()
            await call()
            await call()
            done += 1

    await asyncio.gather(*(cycles() for _ in range(CALLERS)))
    return done


async def _us(cycles: Callable[[], Awaitable[float]]) -> float:
    """CPU microseconds a cycle."""
    began = time.thread_time()
    done = await cycles()
    return (time.thread_time() - began) * 1e6 / done


async def parts(bench: Bench) -> None:
    """CPU microseconds of a cycle, layer by layer: 160 callers, single calls, nosync."""
    seconds = max(0.2, 2.0 * bench.scale)  # in less, a slow disk lets no cycle end
    rows: dict[str, list[float]] = {"loop": [], "lodeq": [], "store": [], "whole": []}
    hollow_engine = open_in_memory(clock=SystemClock())
    async with lodeq.open(bench.folder / "parts") as engine, hollow_engine as hollow:
        (shard,) = hollow._state.shards
        shard.coalescer.store = Forgetful()

        async def run(which: lodeq.Engine) -> float:
            rate = await load.single_calls(which, seconds)
            return rate * seconds

        await run(engine)
        for _ in range(bench.repeats):
            loop_us = await _us(lambda: bare(seconds))
            engine_us = await _us(lambda: run(hollow))
            whole_us = await _us(lambda: run(engine))
            rows["loop"].append(loop_us)
            rows["lodeq"].append(engine_us - loop_us)
            rows["store"].append(whole_us - engine_us)
            rows["whole"].append(whole_us)
    told = {
        "loop": "tasks, futures and callbacks of the event loop",
        "lodeq": "lodeq: checks, ids, records, keys, memory, group commit",
        "store": "RocksDB: the batch, the log, the memtable",
        "whole": "the whole cycle: enqueue, claim, complete",
    }
    whole = statistics.median(rows["whole"])
    for name, runs in rows.items():
        share = round(statistics.median(runs) / whole, 2)
        bench.add(
            Result(
                "a cycle's microseconds",
                {"part": told[name]},
                "us of CPU",
                runs,
                more={"share": share},
            )
        )


class Watch:
    """The times of every sync: asked for, begun in its thread, over there, heard of by the loop."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.begun: list[float] = []
        self.over: list[float] = []
        self.heard: list[float] = []

    def __enter__(self) -> Watch:
        self._kept = kept = RocksStore.start_sync, RocksStore._sync, Syncer._done
        now = time.perf_counter

        def start_sync(store, done):
            self.asked.append(now())
            kept[0](store, done)

        def sync(store):
            self.begun.append(now())
            kept[1](store)
            self.over.append(now())

        def done(syncer, *args):
            self.heard.append(now())
            kept[2](syncer, *args)

        RocksStore.start_sync, RocksStore._sync, Syncer._done = start_sync, sync, done
        return self

    def __exit__(self, *_: object) -> None:
        RocksStore.start_sync, RocksStore._sync, Syncer._done = self._kept

    def spans(self) -> dict[str, list[float]]:
        """Microseconds, in the order in which they follow one another."""
        pairs = {
            "callers wake, enqueue, one write": (self.heard[:-1], self.asked[1:]),
            "the sync's thread wakes": (self.asked, self.begun),
            "flush_wal, and the interpreter's lock": (self.begun, self.over),
            "the loop hears of it": (self.over, self.heard),
        }
        return {
            name: [(b - a) * 1e6 for a, b in zip(first, then, strict=False) if b > a]
            for name, (first, then) in pairs.items()
        }


async def synced(bench: Bench) -> None:
    """The time of a synced enqueue by the steps of a commit and by callers.

    One caller's ``flush_wal`` is the disk's own time: nobody competes for the interpreter.
    """
    seconds = 3.0 * bench.scale
    for callers in (1, 16, 64):
        spans: dict[str, list[float]] = {}
        took: list[float] = []
        async with lodeq.open(bench.folder / f"synced-{callers}", durability="fsync") as engine:
            queue = engine.queue("synced")
            for _ in range(bench.repeats):
                with Watch() as watch:
                    run = await load.timed_enqueues(queue, seconds, callers)
                took += run.took_us
                for name, values in watch.spans().items():
                    spans.setdefault(name, []).extend(values)
                await load.drain(engine, queue)
        for name, values in (*spans.items(), ("the whole call", took)):
            bench.add(
                Result(
                    "a synced enqueue's microseconds",
                    {"callers": callers, "step": name},
                    "us",
                    [statistics.median(values)],
                    latency_us=percentiles(values),
                )
            )
