"""The child of the ballast test: a store fills a small file system, is killed, is opened again.

``python -m fault.ballastchild FOLDER``; what happened is one JSON object on stdout. The life that
is killed runs in a process of its own (``… FOLDER fill``), which tells what was acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Any

from fault import quick
from fault.fullchild import Ballast as Filler
from fault.fullchild import until

import lodeq
from lodeq.engine.files.ballast import needed_bytes
from lodeq.engine.recovery.health import disk_free_bytes
from lodeq.engine.recovery.open_shard import open_store
from lodeq.engine.runtime.ids import SystemRng
from lodeq.engine.store.upkeep import compact as compact_shard

TASKS, LEASED, PAYLOAD_BYTES = 380, 12, 30_000  # two memtables in tables, nearly one in the log
CACHE_BYTES = 32 << 20  # memtables of 4 MiB
LOOKS = 100


def ballast_bytes(store: str) -> int:
    path = os.path.join(store, "ballast")
    return os.path.getsize(path) if os.path.exists(path) else 0


async def fill(folder: str) -> None:
    store = os.path.join(folder, "store")
    engine = await lodeq.open(store, durability="fsync", block_cache_bytes=CACHE_BYTES)
    queue = engine.queue("q", lease=3600.0)
    for _ in range(LOOKS):  # one is enough
        if ballast_bytes(store):
            break
        await asyncio.sleep(0.1)
    acknowledged = [str((await queue.enqueue(os.urandom(PAYLOAD_BYTES))).id) for _ in range(TASKS)]
    leases = await queue.claim(limit=LEASED)
    told = {
        "tasks": acknowledged,
        "leased": len(leases),
        "ballast": ballast_bytes(store),
    }
    Filler(folder).fill()

    async def is_stalled() -> bool:
        return any("is stalled" in reason for reason in (await engine.health()).reasons)

    ending = [asyncio.ensure_future(x.complete(os.urandom(30_000))) for x in leases]
    await until(is_stalled, "health says that the shard is stalled")
    told["waiting"] = sum(not task.done() for task in ending)
    sys.stdout.write(json.dumps(told))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def first_life(folder: str) -> dict[str, Any]:
    """Until it is killed."""
    command = [sys.executable, "-m", "fault.ballastchild", folder, "fill"]
    filled = subprocess.run(command, capture_output=True, text=True, timeout=150)
    if filled.returncode != -signal.SIGKILL:
        raise AssertionError(filled.stderr)
    told: dict[str, Any] = json.loads(filled.stdout)
    return told


async def life(folder: str) -> dict[str, Any]:
    told = first_life(folder)
    expected, store = set(told.pop("tasks", ())), os.path.join(folder, "store")
    told["free"] = disk_free_bytes(folder)
    told["wanted"] = needed_bytes(store, (0,))
    async with lodeq.open(store, block_cache_bytes=CACHE_BYTES) as engine:
        told["recoveries"] = list((await engine.stats()).recoveries)
        told["left"] = ballast_bytes(store) > 0
        queue, done = engine.queue("q"), set()
        while leases := await queue.claim(limit=16):
            for lease in leases:
                await lease.complete()
                done.add(str(lease.task_id))
        told["missing"] = len(expected - done)
        told["findings"] = [repr(f) for f in (await engine.verify()).findings]
    opened = open_store(
        store,
        shards=None,
        durability=None,
        block_cache_bytes=CACHE_BYTES,
        recovery="strict",
        rng=SystemRng(),
    )
    told["again"] = opened.recoveries
    compact_shard(opened.shards[0].store)
    opened.close()
    told["gained"] = disk_free_bytes(folder) - told["free"]
    Filler(folder).drop()
    async with lodeq.open(store, block_cache_bytes=CACHE_BYTES) as engine:

        async def is_back() -> bool:
            return ballast_bytes(store) > 0

        await until(is_back, "there is ballast again")
        told["back"] = ballast_bytes(store)
    return told


if __name__ == "__main__":
    if sys.argv[2:] == ["fill"]:
        quick.run(fill(sys.argv[1]))
    else:
        sys.stdout.write(json.dumps(quick.run(life(sys.argv[1]))))
