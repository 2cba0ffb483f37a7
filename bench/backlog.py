"""A large backlog, in a process of its own: memory, claim rate, open after SIGKILL.

The rate is compared, round by round, with that of a store of 1,000 pending that is open beside
it. Both are flushed and neither keeps the bodies of fresh tasks in memory, so both read from
their tables what they claim. The memory told is that of both engines.

``fill PATH N`` prints JSON and kills itself; ``fill PATH N drain`` consumes the backlog and
measures again; ``fill PATH N close`` only fills, and closes; ``reopen PATH`` opens what is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

from load import PAYLOAD, drain, steady
from settling import settled

import lodeq
from lodeq import NewTask
from lodeq.repository.state import engine_state

REPEATS = 7
RATE_TASKS = 30_000
FEW = 1000


def resident_mib() -> float:
    """Resident set size of this process."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def compare(
    engine: lodeq.Engine, queue: lodeq.Queue, other: lodeq.Engine, few: lodeq.Queue
) -> tuple[list[float], list[float]]:
    """Claims per second, and those at 1,000 pending, of alternating rounds.

    One after the other they would be measured in different minutes of a busy machine.
    """
    rates, fews = [], []
    for _ in range(REPEATS):
        await settled([engine, other])
        fews.append(await steady(other, few, RATE_TASKS))
        await settled([engine, other])
        rates.append(await steady(engine, queue, RATE_TASKS))
    return rates, fews


async def put(queue: lodeq.Queue, n: int) -> None:
    for _ in range(n // 1000):
        await queue.enqueue_many([NewTask(PAYLOAD)] * 1000)


async def fill(path: str, n: int, then: str) -> None:
    """Claim rates at ``n`` pending, and after ``n`` consumed; then die."""
    engine_state.HELD_BYTES_MAX = 0
    report: dict[str, Any] = {}

    async def measure(name: str) -> None:
        await settled([other])
        report[name], report[f"{name}_few"] = await compare(engine, queue, other, few)

    async with lodeq.open(path) as engine, lodeq.open(f"{path}-few") as other:
        queue, few = engine.queue("backlog"), other.queue("backlog")
        started = time.perf_counter()
        await put(queue, n)
        report["enqueue_rate"] = n / (time.perf_counter() - started)
        if then == "close":
            return
        await put(few, FEW)
        await steady(other, few, RATE_TASKS)
        await settled([engine])
        await measure("backlog")
        report["pending"] = (await queue.stats()).ready
        report["pending_rss_mib"] = resident_mib()
        if then == "drain":
            started = time.perf_counter()
            await drain(engine, queue, n)
            report["drain_rate"] = n / (time.perf_counter() - started)
            await put(queue, FEW)
            await settled([engine])
            await measure("after")
            report["after_rss_mib"] = resident_mib()
        print(json.dumps(report), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def reopen(path: str) -> None:
    """Measure how long it takes until the store can be used again."""
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
        asyncio.run(fill(sys.argv[2], int(sys.argv[3]), (sys.argv[4:] or [""])[0]))
    else:
        asyncio.run(reopen(sys.argv[2]))
