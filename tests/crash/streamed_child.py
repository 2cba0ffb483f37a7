"""The child of ``test_kill_streamed``: puts and takes payloads above 3 MiB, or dies meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import lodeq
from lodeq.engine.store.rocks import RocksStore
from lodeq.segments.bodies.files import BodyFiles
from lodeq.segments.bodies.streams import StreamWriter

TASKS = 4
SLICES, SLICE_BYTES = 4, 900_000
STEPS = (
    (StreamWriter, "write"),
    (StreamWriter, "finish"),
    (BodyFiles, "take_in"),
    (BodyFiles, "sync"),
    (BodyFiles, "unlink"),
    (RocksStore, "write"),
    (RocksStore, "_sync"),
)


def fuse(kills_after: int) -> None:
    """Die after so many steps, of whatever kind and in whatever thread."""
    left = iter(range(kills_after - 1, -1, -1))

    def fused(call: Any) -> Any:
        def step(*args: Any, **options: Any) -> Any:
            done = call(*args, **options)
            if next(left, 0) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return step

    for where, name in STEPS:
        setattr(where, name, fused(getattr(where, name)))


async def slices(n: int) -> AsyncIterator[bytes]:
    for at in range(SLICES):
        yield bytes([16 * n + at]) * SLICE_BYTES


def whole(n: int) -> bytes:
    """The payload of task ``n``."""
    return b"".join(bytes([16 * n + at]) * SLICE_BYTES for at in range(SLICES))


async def work(engine: lodeq.Engine, say: Any) -> None:
    """All at once; then half of them end."""
    queue = engine.queue("q")

    async def one(n: int) -> None:
        if n % 2:
            receipt = await queue.enqueue_stream(slices(n), headers={"n": n})
        else:
            receipt = await queue.enqueue(whole(n), headers={"n": n})
        say("acked", n, str(receipt.id))

    await asyncio.gather(*map(one, range(TASKS)))
    for lease in await queue.claim(limit=TASKS // 2, lease=600):
        say("ends", lease.headers["n"])
        await lease.complete()
    await engine._runtime.body_gc.do_all()


async def look(engine: lodeq.Engine, say: Any) -> None:
    """Look at the store after a crash."""
    await engine._runtime.body_gc.do_all()
    tasks = await engine.queue("q").list("ready", limit=100)
    good = [await engine.read_payload(task.id) == whole(task.headers["n"]) for task in tasks]
    found = {
        "findings": [repr(finding) for finding in (await engine.verify()).findings],
        "tasks": sorted(task.headers["n"] for task in tasks),
        "good": all(good),
    }
    say("found", found)


async def life(fd: int, config: dict) -> None:
    def say(*record: Any) -> None:
        os.write(fd, json.dumps(record).encode() + b"\n")

    limits = lodeq.Limits(payload_bytes_max=4 << 20)
    path, mode = config["path"], config["mode"]
    async with lodeq.open(path, limits=limits, durability=mode, reaper=False) as engine:
        if config["kills_after"]:
            fuse(config["kills_after"])
            await work(engine, say)
        else:
            await look(engine, say)


def main(fd: int, config: dict) -> None:
    """See ``nursery``."""
    asyncio.run(life(fd, config))
