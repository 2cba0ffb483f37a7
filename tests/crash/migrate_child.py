"""The child of ``test_kill_migrating``: migrates body files, or dies by its own hand meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import lodeq
from lodeq.engine.store.rocks import RocksStore
from lodeq.repository.background import body_liveness
from lodeq.segments.bodies.files import BodyFiles

STEPS = (
    (BodyFiles, "append_all"),
    (BodyFiles, "sync"),
    (BodyFiles, "unlink"),
    (RocksStore, "write"),
    (RocksStore, "_sync"),
)


def fuse(kills_after: int) -> None:
    """Die after so many steps, of whatever kind and in whatever thread."""
    left = iter(range(kills_after - 1, -1, -1))

    def fused(call: Any) -> Any:
        def step(*args: Any) -> Any:
            done = call(*args)
            if next(left, 0) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return step

    for where, name in STEPS:
        setattr(where, name, fused(getattr(where, name)))


async def life(fd: int, config: dict) -> None:
    async with lodeq.open(config["path"], reaper=False) as engine:
        body_liveness.SLICE_BYTES = 2000  # a few records each
        if config["kills_after"]:
            fuse(config["kills_after"])
        report = await engine.migrate_bodies()
        tasks = await engine.queue("q").list("ready", limit=100)
        found = {
            "findings": [repr(finding) for finding in (await engine.verify()).findings],
            "payloads": [task.payload and task.payload.decode() for task in tasks],
            "old": (await engine.stats()).old_body_files,
        }
        record = ["found", report.records, found]
        os.write(fd, json.dumps(record).encode() + b"\n")


def main(fd: int, config: dict) -> None:
    """See ``nursery``."""
    asyncio.run(life(fd, config))
