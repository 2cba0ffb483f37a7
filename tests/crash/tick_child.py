"""The child of ``test_kill_inside_tick``: dies by its own hand after the k-th write of a tick.

With ``commit_batch_max=2`` the submissions of one tick fill several groups, one write each, all in
one go without an ``await``. Dying between two of them is what a kill at that very instant is.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from typing import Any

import lodeq
from lodeq.engine.store.rocks import RocksStore
from lodeq.testing import contents

BEFORE = 6  # tasks that are there before the tick: two to complete, two to nack, two to claim
NEW = 8  # tasks the tick enqueues


class Fuse:
    """Counts the writes of every store; the one that is ``kills_after`` writes on dies there."""

    def __init__(self) -> None:
        self.kills_after = 0
        self.writes: Counter[int] = Counter()

    def fit(self) -> None:
        """Before anything is opened, so that nobody holds the method as it was."""
        write = RocksStore.write

        def fused(store: RocksStore, ops: Any) -> None:
            write(store, ops)
            self.writes[id(store)] += 1
            if self.writes[id(store)] == self.kills_after:
                os.kill(os.getpid(), signal.SIGKILL)

        RocksStore.write = fused  # type: ignore[method-assign]


async def tick(engine: lodeq.Engine, kills_after: int, fuse: Fuse) -> None:
    queue = engine.queue("q", backoff=lodeq.Backoff("fixed", base=0.0))
    await queue.enqueue_many([lodeq.NewTask(b"%d:" % n, priority=9) for n in range(BEFORE)])
    leases = await queue.claim(limit=4)
    fuse.writes.clear()
    fuse.kills_after = kills_after
    await asyncio.gather(
        *(leases[i].complete({"n": i}, then=[lodeq.NewTask(b"%d:" % (100 + i))]) for i in (0, 1)),
        *(leases[i].nack(delay=0) for i in (2, 3)),
        queue.claim(limit=2),
        *(
            queue.enqueue(
                b"%d:" % (200 + i), priority=i % 3, dedup_key=f"k{i}", delay=60.0 * (i % 2)
            )
            for i in range(NEW)
        ),
    )
    fuse.kills_after = 0


async def life(fd: int, config: dict) -> None:
    def tell(record: list) -> None:
        os.write(fd, json.dumps(record).encode() + b"\n")

    fuse = Fuse()
    fuse.fit()
    async with lodeq.open(
        config["path"],
        shards=config["shards"],
        durability=config["mode"],
        commit_batch_max=2,
        reaper=False,
    ) as engine:
        if config["kills_after"]:
            await tick(engine, config["kills_after"], fuse)
            return
        found = contents(engine)
        found["findings"] = [repr(finding) for finding in (await engine.verify()).findings]
        queue = engine.queue("q")
        order = [lease.payload.decode() for lease in await queue.claim(limit=64)]
        tell(["found", found, order])


def main(fd: int, config: dict) -> None:
    """See ``nursery``."""
    asyncio.run(life(fd, config))
