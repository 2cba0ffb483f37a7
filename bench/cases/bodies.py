"""Large payloads: in body files beside the tree, in the tree, in RocksDB's own blob files.

The tree and the blob files are raw rocksdict with the engine's options, and nothing of an engine in
between: a payload as it is under a key of the engine's, with an index row, in batches as large.
``lodeq, inline`` is the engine with ``body_bytes_min=None``. Payloads are random, so that no
compression helps, and no two of a batch are one object: the engine would write it once.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import load
import raw
from cases.backlogs import disk_bytes, written_bytes
from results import Bench, Goal, Result
from settling import settled
from watch import Watch, add_turns

import lodeq
from lodeq import NewTask
from lodeq.repository.api.open import BODY_BYTES_MIN

KIB = 1 << 10
BODY_BYTES = 64 * KIB
OWN, INLINE, TREE, BLOBS = "lodeq, body files", "lodeq, inline", "RocksDB", "BlobDB"
DRAIN = 64  # of a claim: what it holds in memory

WRITTEN = Goal("median", most=1.1)
FASTER = Goal("ratio", least=3.0)

Durability = Literal["nosync", "fsync"]


def random_bodies(payload_bytes: int, count: int = 64) -> list[bytes]:
    """Distinct, and the same in every run."""
    draw = random.Random(payload_bytes)
    return [draw.randbytes(payload_bytes) for _ in range(count)]


def open_engine(folder: Path, *, inline: bool = False, durability: Durability = "nosync"):
    return lodeq.open(
        folder, durability=durability, body_bytes_min=None if inline else BODY_BYTES_MIN
    )


async def put(queue: lodeq.Queue, bodies: Sequence[bytes], n: int, batch: int) -> float:
    """Tasks per second in, each call awaited."""
    started = time.perf_counter()
    for at in range(0, n, batch):
        if batch == 1:
            await queue.enqueue(bodies[at % len(bodies)])
        else:
            await queue.enqueue_many(
                [NewTask(bodies[i % len(bodies)]) for i in range(at, at + batch)]
            )
    return n / (time.perf_counter() - started)


# -- bytes written ---------------------------------------------------------------------------


async def body_writes(bench: Bench) -> None:
    """Bytes that reach the disk for each byte of 64 KiB payloads, until nothing is left to do.

    Put, flushed and compacted; then, for the engines, claimed and completed too. Counted by the
    kernel for the whole process, one store at a time, up to the end of settling and closing.
    """
    n = max(DRAIN, int(4000 * bench.scale)) // DRAIN * DRAIN
    bodies = random_bodies(BODY_BYTES)
    measures: dict[str, Callable[[], Awaitable[float]]] = {}
    lives: dict[str, list[float]] = {OWN: [], INLINE: []}
    lefts: dict[str, list[float]] = {}

    def share(count: int) -> float:
        return count / (n * BODY_BYTES)

    async def engine(name: str) -> float:
        folder, before = bench.folder / "writes", written_bytes()
        async with open_engine(folder, inline=name == INLINE) as opened:
            queue = opened.queue("writes")
            await put(queue, bodies, n, 16)
            await settled([opened])
            done = share(written_bytes() - before)
            lefts.setdefault(name, []).append(share(disk_bytes(folder)))
            await load.drain_only(opened, queue, n, callers=1, size=DRAIN)
            await settled([opened])
        lives[name].append(share(written_bytes() - before))
        await asyncio.to_thread(shutil.rmtree, folder)
        return done

    async def rocks(name: str) -> float:
        folder, before = bench.folder / "writes", written_bytes()
        db = raw.open_raw(str(folder), blobs=name == BLOBS)
        await asyncio.to_thread(raw.puts, db, bodies, n, 16, is_synced=False)
        await settled([], [db])
        db.close()
        done = share(written_bytes() - before)
        lefts.setdefault(name, []).append(share(disk_bytes(folder)))
        await asyncio.to_thread(shutil.rmtree, folder)
        return done

    for name in (OWN, INLINE):
        measures[name] = partial(engine, name)
    for name in (TREE, BLOBS):
        measures[name] = partial(rocks, name)
    runs = await bench.rounds(measures, min(3, bench.repeats), before=_synced)
    if not max(runs[TREE]):
        bench.skipped.append("bytes written: the stores lie where the kernel does not count")
        return
    for life, found in (("put", runs), ("put, claimed, completed", lives)):
        for name, values in found.items():
            more = {"left_per_byte": round(sorted(lefts[name])[len(lefts[name]) // 2], 2)}
            bench.add(
                Result(
                    "bytes written for large payloads",
                    {"store": name, "life": life, "payload_bytes": BODY_BYTES},
                    "bytes a byte of payload",
                    values,
                    goal=WRITTEN if name == OWN else None,
                    more=more if life == "put" else {},
                )
            )


async def _synced() -> None:
    """Dirty pages that one leaves are not written at the next one's cost."""
    await asyncio.to_thread(os.sync)


# -- puts ------------------------------------------------------------------------------------


async def body_puts(bench: Bench) -> None:
    """64 KiB puts per second, one at a time and in batches of 16, beside raw RocksDB and BlobDB.

    Each into a store of its own that is new. Once up to the last acknowledgement, flushes that
    begin meanwhile included; and once up to when all is flushed and compacted: nothing is owed.
    """
    bodies = random_bodies(BODY_BYTES)
    settings: tuple[tuple[Durability, int, int], ...] = (
        ("nosync", 1, 4000),
        ("nosync", 16, 4000),
        ("fsync", 16, 1600),
    )
    for durability, batch, most in settings:
        n = max(16, int(most * bench.scale)) // 16 * 16
        paid: dict[str, list[float]] = {name: [] for name in (OWN, INLINE, TREE, BLOBS)}
        watches = {name: Watch() for name in (OWN, INLINE)}

        async def measure(
            name: str, durability=durability, batch=batch, n=n, paid=paid, watches=watches
        ) -> float:
            folder = bench.folder / "puts"
            if name in (OWN, INLINE):
                async with open_engine(
                    folder, inline=name == INLINE, durability=durability
                ) as opened:
                    queue, started = opened.queue("puts"), time.perf_counter()
                    with watches[name].span() as span:
                        rate = await put(queue, bodies, n, batch)
                        span.tasks = n
                    await settled([opened])
                    paid[name].append(n / (time.perf_counter() - started))
            else:
                db = raw.open_raw(str(folder), blobs=name == BLOBS)
                started = time.perf_counter()
                rate = raw.puts(db, bodies, n, batch, is_synced=durability == "fsync")
                await settled([], [db])
                paid[name].append(n / (time.perf_counter() - started))
                db.close()
            await asyncio.to_thread(shutil.rmtree, folder)
            return rate

        runs = await bench.rounds({name: partial(measure, name) for name in paid}, before=_synced)
        for upto, found in (("acknowledged", runs), ("settled", paid)):
            for than in (TREE, BLOBS, INLINE):
                bench.add(
                    Result(
                        "puts of large payloads",
                        {
                            "durability": durability,
                            "batch": batch,
                            "payload_bytes": BODY_BYTES,
                            "upto": upto,
                        },
                        "puts/s",
                        found[OWN],
                        than,
                        found[than],
                        goal=FASTER if than != INLINE else None,
                    )
                )
        add_turns(bench, {f"64 KiB puts by {batch}, {durability}": watches[OWN]})
