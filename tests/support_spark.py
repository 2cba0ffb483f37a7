"""Stores for the pipeline's tests, and what their journals say by the plain reader."""

import asyncio
import subprocess
import sys
from pathlib import Path

import lodeq
from lodeq.pipeline.datasource.points import Point, Stretch, find_journal, records

CHILD_S = 200


def make_store(
    path: Path, tasks: int = 60, *, shards: int = 2, finish: int = 20, **options
) -> Path:
    """A closed store with a lifecycle journal; call it again for more."""

    async def live() -> None:
        async with lodeq.open(path, journal="tasks", shards=2, **options) as engine:
            mail = engine.queue("mail", tenant="acme")
            await mail.enqueue_many(
                [lodeq.NewTask(b"%d" % n, priority=7) for n in range(tasks // 2)]
            )
            for n in range(tasks - tasks // 2):
                await engine.queue("other").enqueue(b"%d" % n)
            for lease in await mail.claim(limit=finish, worker="w1"):
                await lease.complete(b"done")

    asyncio.run(live())
    return path


def told(store: Path) -> list[lodeq.lifecycle.Event | lodeq.lifecycle.RolledBack]:
    """All the journal says, without repeats."""
    reader = lodeq.lifecycle.Reader()
    stretch = Stretch(find_journal(store), Point(1), 0)
    return [said for record in records(stretch) for said in reader.read(record)]


def run_child(code: str, *args: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A Python of its own, with a Spark of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *args],
        env=env,
        capture_output=True,
        text=True,
        timeout=CHILD_S,
        check=False,
    )
