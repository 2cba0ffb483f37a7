"""The loads: full cycles through the engine's public API, as services run them."""

from __future__ import annotations

import asyncio
import time

from lodeq import Engine, NewTask, Queue

PAYLOAD = bytes(range(100))


async def single_calls(
    engine: Engine, seconds: float, *, producers: int = 32, workers: int = 128, name: str = "bench"
) -> float:
    """Enqueue, claim, complete with a result, each awaited by itself. Cycles per second."""
    queue = engine.queue(name)
    done = 0
    stop = time.perf_counter() + seconds

    async def produce() -> None:
        while time.perf_counter() < stop:
            await queue.enqueue(PAYLOAD)

    async def work() -> None:
        nonlocal done
        while time.perf_counter() < stop:
            for lease in await queue.claim(wait=0.2):
                await lease.complete(b"ok")
                done += 1

    started = time.perf_counter()
    tasks = [asyncio.create_task(work()) for _ in range(workers)]
    await asyncio.gather(*(produce() for _ in range(producers)))
    took, finished = time.perf_counter() - started, done
    await asyncio.gather(*tasks)
    await drain(engine, queue)
    return finished / took


async def batches(engine: Engine, n: int, *, size: int = 64, name: str = "batch") -> float:
    """enqueue_many, claim(limit), complete_many. Cycles per second."""
    queue = engine.queue(name)
    started = time.perf_counter()
    for _ in range(n // size):
        await queue.enqueue_many([NewTask(PAYLOAD) for _ in range(size)])
        leases = await queue.claim(limit=size)
        await engine.complete_many([(lease, b"ok") for lease in leases])
    return n // size * size / (time.perf_counter() - started)


async def one_caller(engine: Engine, n: int, *, name: str = "solo") -> float:
    """One task after another by one caller. Cycles per second."""
    queue = engine.queue(name)
    started = time.perf_counter()
    for _ in range(n):
        await queue.enqueue(PAYLOAD)
        (lease,) = await queue.claim()
        await lease.complete(b"ok")
    return n / (time.perf_counter() - started)


async def operations(engine: Engine, seconds: float, callers: int, *, name: str = "ops") -> float:
    """``callers`` running enqueue, claim, complete in turn. Acknowledged operations per second."""
    queue = engine.queue(name)
    done = 0
    stop = time.perf_counter() + seconds

    async def call() -> None:
        nonlocal done
        while time.perf_counter() < stop:
            await queue.enqueue(PAYLOAD)
            leases = await queue.claim()
            done += 2
            for lease in leases:
                await lease.complete(b"ok")
                done += 1

    started = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    took = time.perf_counter() - started
    await drain(engine, queue)
    return done / took


async def steady(engine: Engine, queue: Queue, n: int) -> float:
    """Claim, complete and replace batches of 64 at whatever backlog there is. Claims per second."""
    started = time.perf_counter()
    for _ in range(n // 64):
        leases = await queue.claim(limit=64)
        await engine.complete_many([(lease, None) for lease in leases])
        await queue.enqueue_many([NewTask(PAYLOAD) for _ in range(64)])
    return n // 64 * 64 / (time.perf_counter() - started)


async def drain(engine: Engine, queue: Queue, most: int = 1 << 62) -> int:
    """Claim and complete what there is."""
    n = 0
    while n < most and (leases := await queue.claim(limit=256)):
        await engine.complete_many([(lease, None) for lease in leases])
        n += len(leases)
    return n
