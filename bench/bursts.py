"""Loads in which a backlog exists: bursts, drains, and cycles beside tasks that wait.

All by single calls. A claim here takes a task that was enqueued long before, not the one that was
enqueued a moment ago: the loads of ``load.py`` do mostly the latter.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from load import PAYLOAD, together
from watch import Watch

from lodeq import NewTask, Queue

__all__ = ["Burst", "burst", "drain", "refill", "turnover"]


class Burst(NamedTuple):
    """Tasks per second: of the whole, of its enqueues, of its claims and completions."""

    rate: float
    put: float
    drain: float


async def burst(queue: Queue, n: int, callers: int, watch: Watch) -> Burst:
    """``callers`` producers enqueue ``n`` tasks; when all are in, as many workers drain them."""
    left = iter(range(n))
    done = 0

    async def produce() -> None:
        for _ in left:
            await queue.enqueue(PAYLOAD)

    async def work() -> None:
        nonlocal done
        while leases := await queue.claim():
            await leases[0].complete(b"ok")
            done += 1

    with watch.span() as span:
        began = time.perf_counter()
        await together(produce, callers)
        middle = time.perf_counter()
        await together(work, callers)
        ended = time.perf_counter()
        span.tasks = done
    if done != n:
        raise AssertionError(f"{done} came out of {n}")
    return Burst(span.rate, n / (middle - began), n / (ended - middle))


async def turnover(queue: Queue, seconds: float, callers: int, watch: Watch) -> float:
    """Each caller enqueues, claims one and completes it, in turn: what waits stays as many.

    Cycles per second.
    """
    done = 0
    stop = time.perf_counter() + seconds

    async def call() -> None:
        nonlocal done
        while time.perf_counter() < stop:
            await queue.enqueue(PAYLOAD)
            for lease in await queue.claim():
                await lease.complete(b"ok")
                done += 1

    with watch.span() as span:
        await together(call, callers)
        span.tasks = done
    return span.rate


async def drain(queue: Queue, n: int, callers: int, watch: Watch) -> float:
    """``callers`` workers claim one and complete it, until ``n`` are done. Tasks per second."""
    left = iter(range(n))
    done = 0

    async def work() -> None:
        nonlocal done
        for _ in left:
            (lease,) = await queue.claim()
            await lease.complete(b"ok")
            done += 1

    with watch.span() as span:
        await together(work, callers)
        span.tasks = done
    return span.rate


async def refill(queue: Queue, n: int) -> None:
    """Enqueue until ``n`` wait; more than that stay."""
    lacking = n - (await queue.stats()).ready
    while lacking > 0:
        few = min(lacking, 1000)
        await queue.enqueue_many([NewTask(bytes(bytearray(PAYLOAD))) for _ in range(few)])
        lacking -= few
