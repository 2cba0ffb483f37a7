"""Stores with tasks in every state, for the tests of jobs."""

import asyncio
from pathlib import Path
from typing import Any

import lodeq
from lodeq.engine.values import Snapshot

DONE, DEAD, READY = 40, 6, 14


def live(path: Path, main: Any, **options: Any) -> Any:
    """``await main(engine)`` on the store, open for so long."""

    async def inner() -> Any:
        async with lodeq.open(path, **{"shards": 2} | options) as engine:
            return await main(engine)

    return asyncio.run(inner())


async def work(engine: lodeq.Engine) -> Snapshot:
    """40 completed, some after a retry; 6 dead, of them one with headers; 14 ready; a snapshot."""
    mail = engine.queue("mail", tenant="acme", max_attempts=3)
    other = engine.queue("other", max_attempts=1)
    await mail.enqueue_many([lodeq.NewTask(b"%d" % n, priority=7) for n in range(30)])
    for lease in await mail.claim(limit=10, worker="w0"):
        await lease.nack(reason="not yet", delay=0)
    await other.enqueue_many([lodeq.NewTask(b"%d" % n, headers={"n": str(n)}) for n in range(30)])
    left = 30
    while left:
        for lease in await mail.claim(limit=64, worker="w1", wait=60):
            await lease.complete(b"done")
            left -= 1
    for n, lease in enumerate(await other.claim(limit=16, worker="w2")):
        await (lease.complete({"n": n}) if n < 10 else lease.nack(reason="boom"))
    return await engine.snapshot(keep=86_400)


def make_worked(path: Path, **options: Any) -> Path:
    """A closed store on which ``work`` was done."""
    live(path, work, **options)
    return path


def refuse(path: Path, job: str, **options: Any) -> None:
    """A load of that name, which a closed store has refused; it holds one task more."""

    async def main(engine: lodeq.Engine) -> None:
        await engine.queue("held").enqueue(b"", dedup_key="k")
        with lodeq.Stage(path, job) as stage:
            stage.add([lodeq.NewTask(b"", dedup_key="k")], queue="held")
            stage.publish()
        assert not (await engine.ingest(job)).ok

    live(path, main, inbox=False, **options)


def job(spark: Any, name: str, **config: Any) -> Any:
    """Run a job, as a program would."""
    from importlib import import_module

    from lodeq.pipeline.cli import run_job

    module = import_module(f"lodeq.pipeline.jobs.{name}")
    given = {key: str(value) if isinstance(value, Path) else value for key, value in config.items()}
    return run_job(name, spark, module.Config(**given))
