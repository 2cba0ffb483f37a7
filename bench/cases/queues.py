"""Claims over many queues beside one: batches and waited single claims."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import load
from peers.many_streams import ManyStreams
from results import Bench, Goal, Result
from settling import settled
from watch import Ceiling, Watch, add_turns, of_raw, watched

import lodeq
from lodeq import Engine, NewTask

COUNTS = (1, 8, 64, 256)
FULL = {"spread evenly": True, "all in one of them": False}
SIZE = 64
LEAST = 0.85


async def queues(bench: Bench) -> None:
    """Batches of 64 and waited single claims over 1, 8, 64 and 256 queues, in the same rounds.

    Turns are those of filling the queues too. Raw beside them makes full cycles, in batches of 64.
    Redis streams, everysec, stand beside those that are spread evenly: a stream a queue, one read
    over all of them, without an order across them.
    """
    n = max(4 * SIZE, int(16_384 * bench.scale) // SIZE * SIZE)
    measures: dict[tuple[str, str, int], Callable[[], Awaitable[float]]] = {}
    names = {count: [f"of-{count}-{nth}" for nth in range(count)] for count in COUNTS}
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(lodeq.open(bench.folder / "queues"))
        streams = await _streams(bench, stack, [name for some in names.values() for name in some])
        for spread, is_even in FULL.items():
            for count in COUNTS:
                # The last one: nothing is found early.
                full = names[count] if is_even else names[count][-1:]
                measures["batches", spread, count] = partial(drain, engine, names[count], full, n)
                measures["single", spread, count] = partial(
                    waited, engine, names[count], full, n // 4
                )
        watches = {key: Watch() for key in measures}
        with Ceiling(bench.folder / "raw-queues", bench.scale) as ceiling:
            watching = {repr(key): watched(watches[key], one) for key, one in measures.items()}
            peers = {} if streams is None else _peers(streams, names, n)
            runs = await bench.rounds(
                {"raw": ceiling, **watching, **peers},
                before=partial(settled, [engine], [ceiling.db]),
            )
    for api, spread, count in measures:
        bench.add(
            Result(
                "claims over many queues",
                {
                    "api": "batches of 64" if api == "batches" else "waited single claims",
                    "tasks": spread,
                    "queues": count,
                },
                "tasks/s",
                runs[repr((api, spread, count))],
                "" if count == 1 else "one queue",
                [] if count == 1 else runs[repr((api, spread, 1))],
                goal=None if count == 1 else Goal("ratio", least=LEAST),
                more={
                    **of_raw(runs[repr((api, spread, count))], runs["raw"]),
                    **_columns(runs, api, spread, count),
                },
            )
        )
    add_turns(
        bench,
        {
            f"{api} over {count} queues, {spread}": watch
            for (api, spread, count), watch in watches.items()
            if count in (1, COUNTS[-1])
        },
    )


async def _streams(
    bench: Bench, stack: contextlib.AsyncExitStack, names: Sequence[str]
) -> ManyStreams | None:
    """Redis with a stream for each of these; None where there is none, or nothing is measured."""
    lacking = ManyStreams.missing()
    if bench.scale < 0.1 or lacking is not None:
        if lacking is not None:
            bench.skipped.append(f"{ManyStreams.name} over many streams: {lacking}")
        return None
    # The path of a socket has 108 bytes at most.
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lodeq-"))
    streams = ManyStreams(Path(folder))
    await asyncio.to_thread(streams.open)
    stack.push_async_callback(asyncio.to_thread, streams.close)
    await streams.prepare(names)
    return streams


def _peers(
    streams: ManyStreams, names: dict[int, list[str]], n: int
) -> dict[str, Callable[[], Awaitable[float]]]:
    found: dict[str, Callable[[], Awaitable[float]]] = {}
    for count, some in names.items():
        found[f"redis batches {count}"] = partial(streams.drain, some, some, n, SIZE, load.PAYLOAD)
        found[f"redis single {count}"] = partial(streams.waited, some, some, n // 4, load.PAYLOAD)
    return found


def _columns(runs: dict[str, list[float]], api: str, spread: str, count: int) -> dict[str, float]:
    theirs = runs.get(f"redis {api} {count}")
    if theirs is None or not FULL[spread]:
        return {}
    own = runs[repr((api, spread, count))]
    return {
        "redis_streams": round(statistics.median(theirs)),
        "of_redis": round(statistics.median(a / b for a, b in zip(own, theirs, strict=True)), 2),
    }


async def drain(engine: Engine, names: list[str], full: list[str], n: int) -> float:
    """Claim over all of ``names`` and complete, in batches; tasks are in ``full`` in turn."""
    turns = itertools.cycle(full)
    for _ in range(n // SIZE):
        await engine.enqueue_many([NewTask(load.PAYLOAD, queue=next(turns)) for _ in range(SIZE)])
    done = 0
    started = time.perf_counter()
    while leases := await engine.claim(names, limit=SIZE):
        await engine.complete_many([(lease, b"ok") for lease in leases])
        done += len(leases)
    took = time.perf_counter() - started
    if done != n:
        raise AssertionError(f"{done} came out of {n}")
    return done / took


async def waited(
    engine: Engine,
    names: list[str],
    full: Iterable[str],
    n: int,
    *,
    producers: int = 16,
    workers: int = 64,
) -> float:
    """Cycles of single calls: workers wait over all of ``names``, tasks go to ``full`` in turn."""
    handles = itertools.cycle([engine.queue(name) for name in full])
    left, done = iter(range(n)), 0

    async def produce() -> None:
        for _ in left:
            await next(handles).enqueue(load.PAYLOAD)

    async def work() -> None:
        nonlocal done
        while done < n:
            for lease in await engine.claim(names, wait=0.05):
                await lease.complete(b"ok")
                done += 1

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        crew = [group.create_task(work()) for _ in range(workers)]
        for _ in range(producers):
            group.create_task(produce())
        while done < n:
            await asyncio.wait(crew, return_when=asyncio.FIRST_COMPLETED)
        took = time.perf_counter() - started
    return n / took
