"""The journal: records in, records out, and the way to one of them.

What goes in is compared with one ``os.write`` a batch of the very bytes the journal writes, framed
beforehand; with syncs, with one ``os.fdatasync`` behind each. So the ratio tells what the journal
adds, whatever the disk is like.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Literal

import load
from results import Bench, Goal, Result, percentiles
from watch import Watch, add_turns, watched

import lodeq.sync
from lodeq import journal
from lodeq.journal import ThreadJournal
from lodeq.segments.journal.log_format import encode_frame

PAYLOAD = bytes(range(64))
BATCH = 100
BATCHED = [PAYLOAD] * BATCH
# LedgerQ with AutoSync, batches of 100: 11 us a message, measured on a machine of this kind.
LEDGERQ_US = 11.0

THREADS = 8

LIKE_ONE = Goal("ratio", least=1.0)
HALF = Goal("ratio", least=0.5)
AHEAD = Goal("median", most=LEDGERQ_US)
READS = Goal("median", least=500_000)
SEEK = Goal("median", most=1.0)

Flush = Literal["async", "batch", "sync"]


def _writes(path: Path, n: int, *, is_synced: bool) -> float:
    """Records per second, a batch a write: the floor."""
    frame = encode_frame(1, time.time_ns() // 1000, BATCHED)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        started = time.perf_counter()
        for _ in range(n // BATCH):
            os.write(fd, frame)
            if is_synced:
                os.fdatasync(fd)
        return n / (time.perf_counter() - started)
    finally:
        os.close(fd)
        path.unlink()


async def _batches(opened: journal.Journal, n: int) -> float:
    """Records per second, batch after batch, each awaited, until the kernel has the last."""
    started = time.perf_counter()
    for _ in range(n // BATCH):
        await opened.append_many(BATCHED)
    await opened.flush()
    return n / (time.perf_counter() - started)


async def _singles(opened: journal.Journal, n: int, callers: int) -> float:
    """The same one by one."""
    left = iter(range(n))

    async def call() -> None:
        for _ in left:
            await opened.append(PAYLOAD)

    started = time.perf_counter()
    await load.together(call, callers)
    await opened.flush()
    return n / (time.perf_counter() - started)


async def journal_appends(bench: Bench) -> None:
    """64 bytes in batches of 100 and one by one; buffered, flushed and fsynced.

    *buffered* (the default) returns before the write, and one write takes what 64 KiB hold.
    *flushed* waits for it: a write a batch, as the floor does. LedgerQ's figure is a published one.
    """
    flushes: tuple[tuple[Flush, int], ...] = (("async", 500_000), ("batch", 500_000))
    for flush, most in (*flushes, ("sync", 10_000)):
        n = max(BATCH, int(most * bench.scale)) // BATCH * BATCH
        is_synced = flush == "sync"
        folder = bench.folder / f"appends-{flush}"

        async def floor(n=n, is_synced=is_synced) -> float:
            work = partial(_writes, bench.folder / "floor", n, is_synced=is_synced)
            return await asyncio.to_thread(work) if is_synced else work()

        watch, alone = Watch(), {1: Watch(), 64: Watch()}
        async with journal.open(folder, flush=flush) as opened:
            measures: dict[str, Callable[[], Awaitable[float]]] = {
                "own": watched(watch, partial(_batches, opened, n)),
                "floor": floor,
            }
            runs = await bench.rounds(measures, before=opened.sync)
            state = (await opened.append(PAYLOAD)).state
            params = {"api": "batches of 100", "until": state, "callers": 1}
            bench.add(
                Result(
                    "journal appends",
                    params,
                    "records/s",
                    runs["own"],
                    "write and fdatasync" if is_synced else "write",
                    runs["floor"],
                    goal=HALF if flush == "async" else None,
                )
            )
            if is_synced:
                _beside_ledgerq(bench, runs)
            for callers, own in alone.items():
                few = max(1, n // (20 if is_synced else 10))
                single = (
                    await bench.rounds(
                        {"own": watched(own, partial(_singles, opened, few, callers))},
                        before=opened.sync,
                    )
                )["own"]
                bench.add(
                    Result(
                        "journal appends",
                        {"api": "single", "until": state, "callers": callers},
                        "records/s",
                        single,
                        more={
                            "us_a_call": round(callers * 1e6 / sorted(single)[len(single) // 2], 1)
                        },
                    )
                )
        add_turns(bench, {f"journal appends, batches, {state}": watch})
        add_turns(bench, {f"journal appends, {state}, {k} callers": w for k, w in alone.items()})
        await asyncio.to_thread(shutil.rmtree, folder)


def _beside_ledgerq(bench: Bench, runs: dict[str, list[float]]) -> None:
    own, floor = ([1e6 / rate for rate in runs[name]] for name in ("own", "floor"))
    bench.add(
        Result(
            "a synced batch of 100 beside LedgerQ",
            {"records": BATCH, "payload_bytes": len(PAYLOAD)},
            "us a record",
            own,
            "write and fdatasync",
            floor,
            goal=AHEAD,
            more={"ledgerq_us": LEDGERQ_US},
        )
    )


# -- threads ---------------------------------------------------------------------------------


def _threads(opened: ThreadJournal, n: int) -> float:
    """Records per CPU second of the process, eight threads, each of which awaits each append."""

    def work() -> None:
        appender = opened.appender()
        for _ in range(n // THREADS):
            appender.append(PAYLOAD)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    begun = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened.flush()
    return n / (time.process_time() - begun)


async def _alone(opened: journal.Journal, n: int) -> float:
    """The same of one caller on an event loop."""
    begun = time.process_time()
    for _ in range(n):
        await opened.append(PAYLOAD)
    await opened.flush()
    return n / (time.process_time() - begun)


async def journal_threads(bench: Bench) -> None:
    """Eight threads that share a journal, beside one appender on an event loop.

    Per CPU second of the process: with one interpreter lock threads cannot be faster by the
    clock, but they can cost more. *buffered* (the default) returns before the write; *flushed*
    waits for it, so each append of the loop is a write of its own, and each of a thread two
    switches of threads.
    """
    flushes: tuple[tuple[Flush, int], ...] = (("async", 100_000), ("batch", 5_000))
    for flush, each in flushes:
        n = max(THREADS, int(each * THREADS * bench.scale)) // THREADS * THREADS
        shared, alone = (bench.folder / f"threads-{flush}-{name}" for name in ("8", "1"))
        opening = partial(lodeq.sync.open_journal, shared, flush=flush)
        async with journal.open(alone, flush=flush) as own:
            together = await asyncio.to_thread(opening)
            try:
                runs = await bench.rounds(
                    {
                        "threads": partial(asyncio.to_thread, _threads, together, n),
                        "loop": partial(_alone, own, n),
                    },
                    before=own.sync,
                )
                state = (await own.append(PAYLOAD)).state
            finally:
                await asyncio.to_thread(together.close)
        bench.add(
            Result(
                "journal appends of threads",
                {"threads": THREADS, "until": state},
                "records/CPU s",
                runs["threads"],
                "one asyncio appender",
                runs["loop"],
                goal=LIKE_ONE if flush == "async" else None,
            )
        )
        for folder in (shared, alone):
            await asyncio.to_thread(shutil.rmtree, folder)


# -- reading ---------------------------------------------------------------------------------


async def _fill(opened: journal.Journal, n: int, size: int) -> None:
    """``n`` records, in frames of ``size``."""
    payloads = [PAYLOAD] * size
    for _ in range(n // size):
        await opened.append_many(payloads)
    await opened.sync()


async def _read(tailer: journal.Tailer, n: int, most: int) -> float:
    """Records per second from the start to the end."""
    tailer.seek("start")
    done, started = 0, time.perf_counter()
    while found := await tailer.read(most):
        done += len(found)
    took = time.perf_counter() - started
    if done != n:
        raise AssertionError(f"{done} of {n} records were told")
    return n / took


async def journal_reads(bench: Bench) -> None:
    """A tailer from start to end, 1,024 at a time: of batches of 100, and of single appends.

    From the page cache. In the writer's own loop, and from the folder alone, as another process.
    """
    for size, most in ((BATCH, 1_000_000), (1, 200_000)):
        n = max(1000, int(most * bench.scale)) // BATCH * BATCH
        folder = bench.folder / f"reads-{size}"
        async with journal.open(folder) as opened:
            await _fill(opened, n, size)
            tailers = {"with the writer": opened.tailer(), "alone": journal.open_tailer(folder)}
            runs = await bench.rounds(
                {name: partial(_read, tailer, n, 1024) for name, tailer in tailers.items()}
            )
            for name, tailer in tailers.items():
                tailer.close()
                bench.add(
                    Result(
                        "journal reads",
                        {"tailer": name, "records_a_frame": size},
                        "records/s",
                        runs[name],
                        goal=READS if size == BATCH else None,
                    )
                )
        await asyncio.to_thread(shutil.rmtree, folder)


# -- seeking ---------------------------------------------------------------------------------


async def journal_seeks(bench: Bench) -> None:
    """Seeks to random records and times, each with the read of one record: 10 M, or 200,000.

    Files of 128 MiB, or of 4 MiB in a quick run, whose last one has no index yet.
    """
    n = 10_000_000 if bench.scale >= 1 else max(1000, min(200_000, int(700_000 * bench.scale)))
    folder, draw = bench.folder / "seeks", random.Random(5)
    n = n // BATCH * BATCH
    rule = journal.Roll(bytes=128 << 20 if bench.scale >= 1 else 4 << 20)
    seeks = max(10, int(2000 * min(1.0, bench.scale)))
    async with journal.open(folder, roll=rule) as opened:
        began_us = time.time_ns() // 1000
        await _fill(opened, n, BATCH)
        ended_us = time.time_ns() // 1000
        for name, tailer in (
            ("with the writer", opened.tailer()),
            ("alone", journal.open_tailer(folder)),
        ):
            newest = opened.following - 10 * BATCH
            for by, seek, least, most in (
                ("sequence", _seek, 1, newest),
                ("time", _seek_time, began_us, ended_us),
                ("sequence, the file being written", _seek, newest, opened.following - 1),
            ):
                runs: list[float] = []
                took: list[float] = []
                for _ in range(bench.repeats):
                    us = [await seek(tailer, draw.randint(least, most)) for _ in range(seeks)]
                    runs.append(sum(us) / seeks / 1000)
                    took += us
                bench.add(
                    Result(
                        "journal seeks",
                        {"tailer": name, "by": by, "records": n},
                        "ms",
                        runs,
                        latency_us=percentiles(took),
                        goal=SEEK,
                    )
                )
            tailer.close()
    await asyncio.to_thread(shutil.rmtree, folder)


async def _seek(tailer: journal.Tailer, sequence: int) -> float:
    """Microseconds."""
    began = time.perf_counter()
    tailer.seek(sequence)
    found = await tailer.read(1)
    took = time.perf_counter() - began
    if found[0].sequence != sequence:
        raise AssertionError(f"{found[0].sequence} was told for {sequence}")
    return took * 1e6


async def _seek_time(tailer: journal.Tailer, time_us: int) -> float:
    """The same; behind the last record there is nothing to be told."""
    began = time.perf_counter()
    tailer.seek_time(time_us)
    found = await tailer.read(1)
    took = time.perf_counter() - began
    if found and found[0].time_us < time_us:
        raise AssertionError(f"a record of {found[0].time_us} was told for {time_us}")
    return took * 1e6
