"""The child of ``test_kill_ingesting``: stages a load or takes one in, or dies meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import lodeq
from lodeq.engine.bulk import inbox, patch, sst
from lodeq.engine.store.rocks import RocksStore
from lodeq.segments.bodies.files import BodyFiles
from lodeq.segments.bodies.streams import StreamWriter

STEPS = (
    (sst.SstWriter, "finish"), (patch.SstWriter, "delete"), (inbox, "fsync_dir"),
    (inbox, "write_new"), (inbox, "replace_file"), (inbox, "_name_once"),
    (inbox.os, "unlink"), (inbox.os, "rename"), (inbox.os, "replace"),
    (StreamWriter, "write"), (StreamWriter, "finish"),
    (BodyFiles, "link"), (BodyFiles, "sync_folder"),
    (RocksStore, "write"), (RocksStore, "_sync"), (RocksStore, "flush"), (RocksStore, "ingest"),
)  # fmt: skip
KEYS = 40
LARGE = bytes(range(251)) * (4 << 12)  # 3.9 MiB


def fuse(kills_after: int) -> None:
    """Die after so many steps, of whatever kind and in whatever thread."""
    left = iter(range(kills_after - 1, -1, -1))

    def fused(call: Any) -> Any:
        def step(*args: Any, **how: Any) -> Any:
            done = call(*args, **how)
            if next(left, 0) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return step

    for where, name in STEPS:
        setattr(where, name, fused(getattr(where, name)))


def tasks() -> list[lodeq.NewTask]:
    small = [
        lodeq.NewTask(f"bulk {n}", dedup_key=f"k{n}", ttl=900, priority=n % 10) for n in range(KEYS)
    ]
    return [*small, lodeq.NewTask(LARGE, dedup_key="large")]


def stage(path: str) -> None:
    with lodeq.Stage(path, "j", on_conflict="skip", run_bytes=8000) as load:
        load.add(tasks(), queue="mail")
        load.publish()


def is_large(task: lodeq.Task) -> bool:
    try:
        return not task.payload
    except lodeq.PayloadNotLoadedError:
        return True


async def take(path: str) -> dict[str, Any]:
    async with lodeq.open(path, reaper=False, inbox=False) as engine:
        report = await engine.ingest()
        stats = await engine.stats()
        tasks = await engine.queue("mail").list("ready", limit=1000)
        large = [task.id for task in tasks if is_large(task)]
        return {
            "reasons": [job.reason for job in report.jobs],
            "findings": [repr(finding) for finding in (await engine.verify()).findings],
            "anomalies": list(stats.anomalies),
            "payloads": sorted(task.payload for task in tasks if task.id not in large),
            "large": [await engine.read_payload(one) == LARGE for one in large],
        }


def main(fd: int, config: dict) -> None:
    """See ``nursery``."""
    if config["kills_after"]:
        fuse(config["kills_after"])
    if config["stages"]:
        stage(config["path"])
        record: list[Any] = ["staged"]
    else:
        record = ["took", asyncio.run(take(config["path"]))]
    os.write(fd, json.dumps(record).encode() + b"\n")
