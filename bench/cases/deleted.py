"""Calls on a store with rows just deleted and not yet compacted, beside one that never had them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from load import PAYLOAD
from looplag import LoopLag
from results import Bench, Goal, Result

import lodeq
from lodeq import NewTask
from lodeq.engine.records import keyspace as ks
from lodeq.engine.store.port import write_patiently

ROWS = 1_000_000  # of each family
LIVE = 5_000
BATCH = 5_000
TURNS = Goal("median", most=20.0)
TWICE = Goal("ratio", most=2.0)


def _keys(n: int, start_ms: int) -> Iterator[bytes]:
    """Rows of every family, of tasks that came and went in the hour before."""
    rng, prefix = random.Random(1), ks.shard_queue_prefix(b"mail", b"")
    for i in range(n):
        ms = start_ms + i * 3_000_000 // n
        task_id = ms.to_bytes(6, "big") + b"\x70" + rng.randbytes(9)
        for family in (ks.TASK, ks.LEASE, ks.MOVED, ks.RESULT, ks.BODY):
            yield family + task_id
        yield ks.GHOST + rng.randbytes(16)
        yield ks.ready_key(prefix, 5, ms * 1000, task_id)
        yield ks.delayed_key(prefix, ms, ms * 1000, task_id)
        yield ks.dead_key(prefix, ms, task_id)
        yield ks.expiry_key(ms, i)
        yield ks.events_key(i)
        yield ks.body_at_key(i >> 10, i, task_id)
        yield ks.counters_key(b"q%d" % i, b"")


async def _bury(engine: lodeq.Engine, n: int) -> None:
    store, start_ms = engine._state.shards[0].store, int(time.time() * 1000) - 3_600_000
    for value in (b"", None):
        batch: list[Any] = []
        for key in _keys(n, start_ms):
            batch.append((key, value))
            if len(batch) == BATCH:
                write_patiently(store, batch)
                batch.clear()
                await asyncio.sleep(0)
        write_patiently(store, batch)


async def _fill(queue: lodeq.Queue) -> None:
    for _ in range(LIVE // 1000):
        await queue.enqueue_many([NewTask(PAYLOAD)] * 1000)
    await queue.enqueue_many([NewTask(PAYLOAD, delay=3600)] * 100)
    for n, lease in enumerate(await queue.claim(limit=200)):
        await (lease.bury("no") if n % 2 else lease.complete())


def _calls(engine: lodeq.Engine) -> dict[str, Callable[[], Awaitable[object]]]:
    queue = engine.queue("mail")

    async def cycle() -> None:
        for lease in await queue.claim(limit=16):
            await lease.complete()

    def lists(state: str) -> Callable[[], Awaitable[object]]:
        return lambda: queue.list(state, limit=50)

    return {
        "claim and complete 16": cycle,
        **{f"list {state}": lists(state) for state in ("ready", "delayed", "dead", "completed")},
        "stats": queue.stats,
        "queues": engine.queues,
        "health": engine.health,
        "redrive": queue.redrive,
        "purge delayed": lambda: queue.purge("delayed"),
        "verify": engine.verify,
    }


async def deleted(bench: Bench) -> None:
    """Every call beside a million deleted rows of each family; the longest turn of the loop.

    They come behind the engine's back, so the first list of each state passes over them; the
    second is measured. A verify reads them all, each time.
    """
    n = max(1000, int(ROWS * bench.scale))
    took: dict[str, dict[str, float]] = {}
    turns: dict[str, float] = {}
    for name, rows in (("deleted", n), ("fresh", 0)):
        path, took[name] = bench.folder / name, {}
        async with lodeq.open(path) as engine:
            await _bury(engine, rows)
            await _fill(engine.queue("mail"))
            for what, call in _calls(engine).items():
                with LoopLag() as first:
                    if what.startswith("list"):  # deleted rows are passed over once
                        await call()
                    await asyncio.sleep(0)
                with LoopLag() as lag:
                    began = time.thread_time()
                    await call()
                    took[name][what] = time.thread_time() - began
                    await asyncio.sleep(0)  # a call that does not wait is a turn as well
                if rows:
                    turns[what] = max(one.summary()["cpu_max_ms"] for one in (first, lag))
            # What opening takes for its log is another matter: see the case "opening".
            await asyncio.to_thread(engine._state.shards[0].store.flush)
        with LoopLag() as lag:
            began = time.thread_time()
            async with lodeq.open(path) as engine:
                took[name]["open, and claim"] = time.thread_time() - began
                await engine.queue("mail").claim()
        if rows:
            turns["open, and claim"] = lag.summary()["cpu_max_ms"]
    for what, seconds in took["deleted"].items():
        bench.add(
            Result(
                "beside deleted rows",
                {"call": what, "rows": n},
                "ms",
                [seconds * 1e3],
                "a store without",
                [took["fresh"][what] * 1e3],
                goal=None if what == "verify" else TWICE,
            )
        )
    for what, ms in turns.items():
        bench.add(
            Result(
                "longest turn of the loop",
                {"under": what, "rows": n},
                "ms",
                [ms],
                goal=TURNS,
            )
        )
