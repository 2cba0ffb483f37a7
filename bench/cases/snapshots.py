"""Reading a snapshot as columns, beside the plain decoders; and what taking one costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from looplag import LoopLag
from results import Bench, Goal, Result

import lodeq
from lodeq.engine.bulk.arrow.columns import read_columns, to_columns
from lodeq.engine.bulk.ranges import key_ranges
from lodeq.engine.bulk.reader import ShardReader, open_shard
from lodeq.engine.records.task import decode_task
from lodeq.engine.store.port import Rows

TASKS, PAYLOAD = 500_000, bytes(200)
FIXED = ("priority", "created_at")
SELECTED = ("id_at", "queue", "tenant", "priority", "created_at")
MILLION = 1_000_000


async def _filled(bench: Bench) -> lodeq.Snapshot:
    tasks = max(64, int(TASKS * bench.scale))
    async with lodeq.open(bench.folder / "read", shards=1) as engine:
        mail = engine.queue("mail", tenant="acme")
        for at in range(0, tasks, 1024):
            batch = [lodeq.NewTask(PAYLOAD, priority=n % 10) for n in range(min(1024, tasks - at))]
            await mail.enqueue_many(batch)
        return await engine.snapshot()


def _batches(reader: ShardReader) -> Iterator[Rows]:
    for one in key_ranges(reader, "tasks"):
        yield from reader.batches(one.lower, one.upper)


async def _rate(work: Callable[[], int]) -> float:
    """Rows a second."""
    began = time.perf_counter()
    rows = work()
    return rows / (time.perf_counter() - began)


def _decode(reader: ShardReader, batches: Sequence[Rows], columns: Sequence[str]) -> int:
    return sum(to_columns(reader, rows, "tasks", columns).num_rows for rows in batches)


def _read(reader: ShardReader, columns: Sequence[str]) -> int:
    return sum(
        batch.num_rows
        for one in key_ranges(reader, "tasks")
        for batch in read_columns(reader, one, "tasks", columns)
    )


def _plainly(batches: Callable[[], Iterator[Rows]]) -> int:
    return len([decode_task(value).created_us for rows in batches() for _, value in rows])


async def reading(bench: Bench) -> None:
    """Rows a second: fixed columns out of memory, and selected ones out of a snapshot."""
    snapshot = await _filled(bench)
    with open_shard(snapshot.path, 0) as reader:
        held = list(_batches(reader))
        decoded = await bench.rounds(
            {
                "columns": partial(_rate, partial(_decode, reader, held, FIXED)),
                "plain": partial(_rate, partial(_plainly, lambda: iter(held))),
            }
        )
        read = await bench.rounds(
            {
                "columns": partial(_rate, partial(_read, reader, SELECTED)),
                "plain": partial(_rate, partial(_plainly, lambda: _batches(reader))),
            }
        )
    for case, runs, columns, least in (
        ("decoding a snapshot", decoded, FIXED, 3 * MILLION),
        ("reading a snapshot", read, SELECTED, MILLION),
    ):
        bench.add(
            Result(
                case,
                {"columns": len(columns)},
                "rows/s",
                runs["columns"],
                "the plain decoders",
                runs["plain"],
                goal=Goal("median", least=least),
            )
        )


async def taking(bench: Bench) -> None:
    """The longest turn of the loop while it enqueues, with snapshots being taken and without."""
    seconds = 3.0 * bench.scale
    async with lodeq.open(bench.folder / "taken", shards=2) as engine:

        async def measure(*, is_taking: bool) -> float:
            stop = time.perf_counter() + seconds
            with LoopLag() as lag:
                callers = [asyncio.create_task(_enqueue(engine, stop)) for _ in range(16)]
                while is_taking and time.perf_counter() < stop:
                    await engine.release_snapshot((await engine.snapshot()).id)
                await asyncio.gather(*callers)
            return lag.summary()["wall_max_ms"]

        runs = await bench.rounds(
            {
                "taking": partial(measure, is_taking=True),
                "without": partial(measure, is_taking=False),
            }
        )
    bench.add(
        Result(
            "the longest turn while snapshots are taken",
            {"callers": 16},
            "ms",
            runs["taking"],
            "without",
            runs["without"],
        )
    )


async def _enqueue(engine: lodeq.Engine, stop: float) -> None:
    mail = engine.queue("mail")
    while time.perf_counter() < stop:
        await mail.enqueue(PAYLOAD)
