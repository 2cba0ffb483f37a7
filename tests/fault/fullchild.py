"""The child of the full-disk test: fills a small file system under a store, then makes room again.

``python -m fault.fullchild FOLDER``; what happened is one JSON object on stdout.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
import time
from typing import Any

from fault import quick

import lodeq

TASKS, RESULT_BYTES, LEASED = 60, 200_000, 30
REAL_S_MAX = 60.0


class Ballast:
    """A file that takes all the room there is."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "ballast")

    def fill(self) -> None:
        with open(self.path, "wb", buffering=0) as file:
            size = 1 << 20
            while size >= 512:
                try:
                    file.write(b"\0" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def drop(self) -> None:
        os.remove(self.path)


async def until(holds: Any, what: str) -> None:
    end = time.monotonic() + REAL_S_MAX
    while not await holds():
        if time.monotonic() > end:
            raise AssertionError(f"never: {what}")
        await asyncio.sleep(0.5)


async def life(folder: str, mode: Any) -> dict[str, Any]:
    ballast, told = Ballast(folder), {}
    store = os.path.join(folder, "store")
    async with lodeq.open(store, durability=mode, block_cache_bytes=16 << 20) as engine:
        queue = engine.queue("q", lease=3600.0)
        for n in range(TASKS):
            await queue.enqueue(b"%d" % n)
        leases = await queue.claim(limit=LEASED)
        ballast.fill()

        async def says(words: str) -> bool:
            return any(words in reason for reason in (await engine.health()).reasons)

        await until(lambda: says("nearly full"), "health says that the disk is full")
        try:
            await queue.enqueue(b"refused")
        except lodeq.StorageFullError as error:
            told["refused"] = type(error).__name__
        ending = [asyncio.ensure_future(x.complete(os.urandom(RESULT_BYTES))) for x in leases]
        await until(lambda: says("is stalled"), "health says that the shard is stalled")
        told["waiting"] = sum(not task.done() for task in ending)
        ballast.drop()
        async with asyncio.timeout(REAL_S_MAX * quick.SPEED):
            told["ended"] = len(await asyncio.gather(*ending))

        async def takes() -> bool:
            try:
                await queue.enqueue(b"more")
            except lodeq.StorageFullError:
                return False
            return True

        await until(takes, "enqueues are taken again")
        told["healthy"] = list((await engine.health()).reasons)
    async with lodeq.open(store) as engine:
        told["recoveries"] = list((await engine.stats()).recoveries)
        told["findings"] = [repr(f) for f in (await engine.verify()).findings]
        stats = await engine.stats()
        told["ready"], told["results"] = stats.ready, stats.results
    return told


if __name__ == "__main__":
    sys.stdout.write(json.dumps(quick.run(life(sys.argv[1], sys.argv[2]))))
