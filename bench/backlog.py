"""A million pending, in a process of its own: memory, claim rate, open after SIGKILL.

Run by ``run.py``: ``fill PATH N`` prints JSON and kills itself; ``reopen PATH`` opens what is
left.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import time

from load import PAYLOAD, drain, steady

import lodeq
from lodeq import NewTask

REPEATS = 5
RATE_TASKS = 30_000


def resident_mib() -> float:
    """Resident set size of this process."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def rate(engine: lodeq.Engine, queue: lodeq.Queue) -> float:
    """Median of several rounds."""
    rates = [await steady(engine, queue, RATE_TASKS) for _ in range(REPEATS)]
    return statistics.median(rates)


async def settle(engine: lodeq.Engine) -> None:
    """Let flushes and compactions of the phase before come to an end."""
    for _ in range(60):
        await asyncio.sleep(0.5)
        store = engine._core.shards[0].store
        names = ("num-running-compactions", "num-running-flushes", "compaction-pending")
        if not any(store.property_int(f"rocksdb.{name}") for name in names):
            return


async def fill(path: str, n: int) -> None:
    """Claim rates at nearly nothing, at ``n`` pending, and after ``n`` consumed; then die."""
    report: dict[str, float] = {}
    async with lodeq.open(path) as engine:
        queue = engine.queue("backlog")
        await queue.enqueue_many([NewTask(PAYLOAD)] * 64)
        await rate(engine, queue)
        await settle(engine)
        report["empty_rate"] = await rate(engine, queue)
        started = time.perf_counter()
        for _ in range(n // 1000):
            await queue.enqueue_many([NewTask(PAYLOAD)] * 1000)
        report["enqueue_rate"] = n / (time.perf_counter() - started)
        await settle(engine)
        report["backlog_rate"] = await rate(engine, queue)
        report["pending"] = (await queue.stats()).ready
        report["pending_rss_mib"] = resident_mib()
        if len(sys.argv) > 4:
            await drain(engine, queue, n)
            await settle(engine)
            report["after_rate"] = await rate(engine, queue)
            report["after_rss_mib"] = resident_mib()
        print(json.dumps(report), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def reopen(path: str) -> None:
    """How long until it can be used again."""
    started = time.perf_counter()
    async with lodeq.open(path) as engine:
        took = time.perf_counter() - started
        queue = engine.queue("backlog")
        (lease,) = await queue.claim()
        first = time.perf_counter() - started
        await lease.release()
        report = {
            "open_s": took,
            "first_claim_s": first,
            "pending": (await queue.stats()).ready,
            "rss_mib": resident_mib(),
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        asyncio.run(fill(sys.argv[2], int(sys.argv[3])))
    else:
        asyncio.run(reopen(sys.argv[2]))
