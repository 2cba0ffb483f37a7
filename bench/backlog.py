"""A million pending, in a process of its own: memory, claim rate, open after SIGKILL.

The memory told is that of two engines: the empty one to compare with is open beside it.

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


async def compare(
    engine: lodeq.Engine, queue: lodeq.Queue, other: lodeq.Engine, empty: lodeq.Queue
) -> tuple[float, float, float]:
    """Claims per second, those of an empty queue, and their ratio: medians of alternating rounds.

    One after the other they would be measured in different minutes of a busy machine.
    """
    rates, empties = [], []
    for _ in range(REPEATS):
        empties.append(await steady(other, empty, RATE_TASKS))
        rates.append(await steady(engine, queue, RATE_TASKS))
    ratios = [rate / of for rate, of in zip(rates, empties, strict=True)]
    return statistics.median(rates), statistics.median(empties), statistics.median(ratios)


async def settle(engine: lodeq.Engine) -> None:
    """Let flushes and compactions of the phase before come to an end."""
    for _ in range(60):
        await asyncio.sleep(0.5)
        store = engine._core.shards[0].store
        names = ("num-running-compactions", "num-running-flushes", "compaction-pending")
        if not any(store.property_int(f"rocksdb.{name}") for name in names):
            return


async def fill(path: str, n: int) -> None:
    """Claim rates at ``n`` pending, and after ``n`` consumed; then die."""
    report: dict[str, float] = {}

    async def measure(name: str) -> None:
        figures = await compare(engine, queue, other, empty)
        for of, figure in zip(("rate", "empty", "ratio"), figures, strict=True):
            report[f"{name}_{of}"] = figure

    async with lodeq.open(path) as engine, lodeq.open(f"{path}-empty") as other:
        queue, empty = engine.queue("backlog"), other.queue("backlog")
        await empty.enqueue_many([NewTask(PAYLOAD)] * 64)
        await steady(other, empty, RATE_TASKS)
        started = time.perf_counter()
        for _ in range(n // 1000):
            await queue.enqueue_many([NewTask(PAYLOAD)] * 1000)
        report["enqueue_rate"] = n / (time.perf_counter() - started)
        await settle(engine)
        await measure("backlog")
        report["pending"] = (await queue.stats()).ready
        report["pending_rss_mib"] = resident_mib()
        if len(sys.argv) > 4:
            await drain(engine, queue, n)
            await settle(engine)
            await measure("after")
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
