"""``bench``: a short measure of this machine, in a store of its own that is removed."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from typing import Any, Final, Literal

import click

from ....engine.runtime.clock import SystemClock
from ....repository.api.open import open_engine
from ....repository.api.queue import Queue
from ..connection import run
from ..display import as_json_option, print_json, print_rows
from ..output import Column
from ..progress import Steps
from ..values import duration

__all__ = ["bench", "measure"]

Mode = Literal["nosync", "fsync"]
_COLUMNS: Final = (
    Column("durability", 10, 10), Column("callers", 7, 7, is_number=True),
    Column("cycles/s", 8, 12, is_number=True), Column("commit p50", 10, 12, is_number=True),
    Column("commit p99", 10, 12, is_number=True), Column("fsync p50", 9, 12, is_number=True),
    Column("fsync p99", 9, 12, is_number=True), Column("tasks a commit", 14, 14, is_number=True),
)  # fmt: skip


@click.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False), default=".")
@click.option(
    "--seconds", type=duration, default="1s", show_default=True, help="Time for each row."
)
@click.option("--shards", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--payload-bytes", type=click.IntRange(0, 1 << 20), default=200, show_default=True)
@as_json_option
def bench(path: str, seconds: float, shards: int, payload_bytes: int, as_json: bool) -> None:
    """Measure how many full cycles (enqueue, claim, complete) a second PATH's disk and this CPU do.

    Works in a folder of its own within PATH, and removes it. A short measure: it shows orders of
    magnitude, and what each durability costs here; the project's own benchmarks are longer.

    Args:
        path: a folder on the disk to measure.
        seconds: for each of the four rows; above 0, at most 60.
        shards: of the store, 1 to 64.
        payload_bytes: of each task, at most 1 MiB.
        as_json: print JSON lines instead of a table.
    """
    if not 0 < seconds <= 60:
        raise click.BadParameter("expected more than 0 and at most 60 seconds for each row")
    cases: list[tuple[Mode, int]] = [("nosync", 1), ("nosync", 64), ("fsync", 1), ("fsync", 64)]
    found = []
    with Steps("bench", len(cases)) as steps:
        for mode, callers in cases:
            found.append(measure(path, mode, callers, seconds, shards, payload_bytes))
            steps.step()
    if as_json:
        print_json(found)
    else:
        print_rows(_COLUMNS, map(_row, found))


def measure(
    path: str, mode: Mode, callers: int, seconds: float, shards: int, payload_bytes: int
) -> dict[str, Any]:
    """Measure one row of the table. Blocks.

    Args:
        path: the folder to make a store in.
        mode: its durability.
        callers: tasks of the event loop that run cycles side by side.
        seconds: how long they start new cycles.
        shards: of the store.
        payload_bytes: of each task.
    """
    work = tempfile.mkdtemp(prefix="lodeq-bench-", dir=path)
    try:
        return run(lambda: _measure(work, mode, callers, seconds, shards, payload_bytes))
    finally:
        shutil.rmtree(work, ignore_errors=True)


async def _measure(
    work: str, mode: Mode, callers: int, seconds: float, shards: int, payload_bytes: int
) -> dict[str, Any]:
    clock, payload = SystemClock(), b"x" * payload_bytes
    async with open_engine(os.path.join(work, "store"), shards=shards, durability=mode) as engine:
        queue = engine.queue("bench")
        begun = clock.mono()
        done = await asyncio.gather(
            *(_cycles(queue, payload, clock, begun + seconds) for _ in range(callers))
        )
        span = clock.mono() - begun
        stats = (await engine.stats()).shards
    commits, busiest = sum(one.commits for one in stats), max(stats, key=lambda one: one.commits)
    return {
        "durability": mode,
        "callers": callers,
        "cycles": sum(done),
        "cycles_per_s": sum(done) / span,
        "seconds": span,
        "submissions_per_commit": sum(one.submissions for one in stats) / max(1, commits),
        "commit_p50_us": busiest.commit.p50_us,
        "commit_p99_us": busiest.commit.p99_us,
        "fsync_p50_us": busiest.fsync.p50_us,
        "fsync_p99_us": busiest.fsync.p99_us,
    }


async def _cycles(queue: Queue, payload: bytes, clock: SystemClock, end: float) -> int:
    done = 0
    while clock.mono() < end:
        await queue.enqueue(payload)
        for lease in await queue.claim():
            await lease.complete(keep=False)
            done += 1
        await asyncio.sleep(0)
    return done


def _row(found: dict[str, Any]) -> dict[str, str]:
    times = {
        f"{what} {p}": f"{found[f'{what}_{p}_us'] / 1000:.2f} ms"
        for what in ("commit", "fsync")
        for p in ("p50", "p99")
    }
    return {
        "durability": found["durability"],
        "callers": str(found["callers"]),
        "cycles/s": f"{found['cycles_per_s']:,.0f}",
        "tasks a commit": f"{found['submissions_per_commit']:.1f}",
        **times,
    }
