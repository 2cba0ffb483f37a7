"""The loads: full cycles through the engine's public API, as services run them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count, cycle
from typing import NamedTuple

from watch import Watch

from lodeq import Engine, Limits, NewTask, Queue

PAYLOAD = bytes(range(100))
ALIKE = (PAYLOAD,)
_keys = count()
UNLIKE = tuple(map(random.Random(100).randbytes, [len(PAYLOAD)] * 4096))  # nothing packs them
SECONDS_MIN = 0.2  # in less, a slow machine ends nothing, and no ratio can be made of that
# Of a store in which no result is removed, so that no load pays for what another has left.
UNTRIMMED = Limits(results_max=1 << 40, history_rows=1 << 40, history_bytes=1 << 50)


async def single_calls(
    engine: Engine,
    seconds: float,
    *,
    producers: int = 32,
    workers: int = 128,
    name: str = "bench",
    watch: Watch | None = None,
) -> float:
    """Enqueue, claim, complete with a result, each awaited by itself. Cycles per second."""
    queue = engine.queue(name)
    done = 0
    stop = time.perf_counter() + max(SECONDS_MIN, seconds)

    async def produce() -> None:
        while time.perf_counter() < stop:
            await queue.enqueue(PAYLOAD)

    async def work() -> None:
        nonlocal done
        while time.perf_counter() < stop:
            for lease in await queue.claim(wait=0.2):
                await lease.complete(b"ok")
                done += 1

    with contextlib.nullcontext() if watch is None else watch.span() as span:
        started = time.perf_counter()
        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        await asyncio.gather(*(produce() for _ in range(producers)))
        took, finished = time.perf_counter() - started, done
        if span is not None:
            span.tasks = finished
    await asyncio.gather(*tasks)
    await drain(engine, queue)
    return finished / took


async def batches(
    engine: Engine, n: int, *, size: int = 64, payload: bytes = PAYLOAD, name: str = "batch"
) -> float:
    """enqueue_many, claim(limit), complete_many. Cycles per second."""
    queue = engine.queue(name)
    # An object each: what several tasks of a call share goes to a body file once.
    payloads = [bytes(bytearray(payload)) for _ in range(size)]
    started = time.perf_counter()
    for _ in range(n // size):
        await queue.enqueue_many([NewTask(one) for one in payloads])
        leases = await queue.claim(limit=size)
        await engine.complete_many([(lease, b"ok") for lease in leases])
    return n // size * size / (time.perf_counter() - started)


async def together(call: Callable[[], Awaitable[None]], callers: int) -> None:
    """Run so many callers, until all are through."""
    await asyncio.gather(*(call() for _ in range(callers)))


async def closed_loop(
    engine: Engine,
    seconds: float,
    callers: int,
    *,
    name: str = "loop",
    payloads: Sequence[bytes] = ALIKE,
    has_keys: bool = False,
) -> float:
    """Each caller enqueues, claims and completes in turn. Cycles per second.

    Args:
        engine: that is measured.
        seconds: how long.
        callers: how many.
        name: of the queue.
        payloads: taken in turn.
        has_keys: each task has a dedup key of its own.
    """
    queue = engine.queue(name)
    payload = cycle(payloads).__next__
    done = 0
    stop = time.perf_counter() + max(SECONDS_MIN, seconds)

    async def call() -> None:
        nonlocal done
        while time.perf_counter() < stop:
            if has_keys:
                await queue.enqueue(payload(), dedup_key=f"{name}-{next(_keys)}")
            else:
                await queue.enqueue(payload())
            for lease in await queue.claim():
                await lease.complete(b"ok")
                done += 1

    started = time.perf_counter()
    await together(call, callers)
    took = time.perf_counter() - started
    await drain(engine, queue)
    return done / took


async def batch_loop(
    engine: Engine,
    seconds: float,
    callers: int,
    *,
    size: int = 64,
    name: str = "batches",
    payloads: Sequence[bytes] = ALIKE,
) -> float:
    """The same in batches."""
    queue = engine.queue(name)
    payload = cycle(payloads).__next__
    done = 0
    stop = time.perf_counter() + max(SECONDS_MIN, seconds)

    async def call() -> None:
        nonlocal done
        while time.perf_counter() < stop:
            await queue.enqueue_many([NewTask(payload()) for _ in range(size)])
            leases = await queue.claim(limit=size)
            await engine.complete_many([(lease, b"ok") for lease in leases])
            done += len(leases)

    started = time.perf_counter()
    await together(call, callers)
    took = time.perf_counter() - started
    await drain(engine, queue)
    return done / took


class ReadBack(NamedTuple):
    """``rate`` counts what was read back in the window, ``checked`` all that was compared."""

    rate: float
    checked: int


async def read_back(
    engine: Engine, *, warm_s: float, window_s: float, producers: int = 32, workers: int = 128
) -> ReadBack:
    """Produce, work, acknowledge the result, read it back and compare."""
    queue = engine.queue("readback", retention=60.0)
    begins = time.perf_counter() + warm_s
    ends = begins + window_s
    counted = checked = 0

    async def produce() -> None:
        while time.perf_counter() < ends:
            await queue.enqueue(b"fourteen bytes")

    async def work() -> None:
        nonlocal counted, checked
        while time.perf_counter() < ends:
            for lease in await queue.claim(wait=0.2):
                want = lease.task_id[-8:]
                await lease.complete(want)
                found = await engine.result(lease.task_id)
                if found is None or found.value != want:
                    raise AssertionError(f"{lease.task_id}: {found} was read back")
                checked += 1
                counted += begins <= time.perf_counter() < ends

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())
        for _ in range(producers):
            group.create_task(produce())
    await drain(engine, queue)
    return ReadBack(counted / window_s, checked)


async def enqueue_only(queue: Queue, n: int, *, callers: int, size: int) -> float:
    """Tasks per second in."""
    left = iter(range(n // size))

    async def call() -> None:
        for _ in left:
            if size == 1:
                await queue.enqueue(PAYLOAD)
            else:
                await queue.enqueue_many([NewTask(PAYLOAD) for _ in range(size)])

    started = time.perf_counter()
    await together(call, callers)
    return n // size * size / (time.perf_counter() - started)


async def drain_only(engine: Engine, queue: Queue, n: int, *, callers: int, size: int) -> float:
    """Tasks per second out, each completed with a result."""
    done = 0

    async def call() -> None:
        nonlocal done
        while leases := await queue.claim(limit=size):
            if size == 1:
                await leases[0].complete(b"ok")
            else:
                await engine.complete_many([(lease, b"ok") for lease in leases])
            done += len(leases)

    started = time.perf_counter()
    await together(call, callers)
    took = time.perf_counter() - started
    if done != n // size * size:
        raise AssertionError(f"{done} came out of {n}")
    return done / took


async def mixed(engine: Engine, n: int, tasks: list[NewTask], name: str) -> float:
    """Batches of these tasks, claimed as they become ready. Cycles per second."""
    queue = engine.queue(name)
    rounds, done, total = n // len(tasks), 0, n // len(tasks) * len(tasks)
    started = time.perf_counter()
    for _ in range(rounds):
        await queue.enqueue_many(tasks)
        leases = await queue.claim(limit=len(tasks))
        await engine.complete_many([(lease, b"ok") for lease in leases])
        done += len(leases)
    while done < total:  # what was delayed
        leases = await queue.claim(limit=len(tasks), wait=1.0)
        await engine.complete_many([(lease, b"ok") for lease in leases])
        done += len(leases)
    return total / (time.perf_counter() - started)


class Timed(NamedTuple):
    """Tasks per second, and how long each call took."""

    rate: float
    took_us: list[float]


async def timed_enqueues(queue: Queue, seconds: float, callers: int) -> Timed:
    """Each caller enqueues one after another."""
    took: list[float] = []
    stop = time.perf_counter() + max(SECONDS_MIN, seconds)

    async def call() -> None:
        began = time.perf_counter()
        while began < stop:
            await queue.enqueue(PAYLOAD)
            ended = time.perf_counter()
            took.append((ended - began) * 1e6)
            began = ended

    started = time.perf_counter()
    await together(call, callers)
    return Timed(len(took) / (time.perf_counter() - started), took)


async def paced(engine: Engine, queue: Queue, n: int) -> int:
    """One batch of full cycles, whose results are kept for as long as the queue says."""
    await queue.enqueue_many([NewTask(PAYLOAD) for _ in range(n)])
    leases = await queue.claim(limit=n)
    await engine.complete_many([(lease, b"ok") for lease in leases])
    return len(leases)


async def steady(engine: Engine, queue: Queue, n: int) -> float:
    """Claim, complete and replace batches of 64 at whatever backlog there is. Claims per second."""
    started = time.perf_counter()
    for _ in range(n // 64):
        leases = await queue.claim(limit=64)
        await engine.complete_many([(lease, None) for lease in leases])
        await queue.enqueue_many([NewTask(PAYLOAD) for _ in range(64)])
    return n // 64 * 64 / (time.perf_counter() - started)


async def results_removed(engine: Engine, most: int) -> None:
    """Wait until the store has no more results than its bound: they are removed once a second."""
    for _ in range(1000):
        if sum(shard.results for shard in engine._state.shards) <= most:
            return
        await asyncio.sleep(0.01)
    raise RuntimeError("results beyond the bound stay")


async def drain(engine: Engine, queue: Queue, most: int = 1 << 62) -> int:
    """Claim and complete what there is."""
    n = 0
    while n < most and (leases := await queue.claim(limit=256)):
        await engine.complete_many([(lease, None) for lease in leases])
        n += len(leases)
    return n
