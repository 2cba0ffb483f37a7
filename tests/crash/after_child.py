"""The child of ``test_kill_after``: tasks that wait for others on other shards, the reaper at work.

It dies by its own hand after the k-th write of any shard. The second life drains what is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import lodeq
from lodeq import NewTask
from lodeq.engine.store.rocks import RocksStore

SHARDS = 3
SOURCES, WAITING = 6, 4
ALIVE = ("ready", "delayed", "waiting", "leased")


class Fuse:
    """Counts the writes of all stores; the process dies after the ``kills_after``-th."""

    def __init__(self, kills_after: int) -> None:
        self.left = kills_after
        self.is_lit = False
        write = RocksStore.write

        def fused(store: RocksStore, ops: Any) -> None:
            write(store, ops)
            if self.is_lit:
                self.left -= 1
                if not self.left:
                    os.kill(os.getpid(), signal.SIGKILL)

        RocksStore.write = fused  # type: ignore[method-assign]


class Life:
    """One process: what it does, and what it tells."""

    def __init__(self, fd: int, engine: lodeq.Engine) -> None:
        self.fd, self.engine = fd, engine
        self.dead_left = 0

    def tell(self, *record: object) -> None:
        os.write(self.fd, json.dumps(record).encode() + b"\n")

    async def fill(self) -> None:
        """Half of what waits waits for a redrive; each for three tasks of three shards."""
        parts = self.engine.queue("parts", max_attempts=50)
        sources = [(await parts.enqueue(b"p", shard_key=f"k{n}")).id for n in range(SOURCES)]
        for n in range(WAITING):
            on_failure = ("run", "wait")[n % 2]
            task = NewTask(on_failure, "tops", shard_key=f"t{n}", max_attempts=50)
            after = [sources[(n + i) % SOURCES] for i in range(3)]
            waits = await self.engine.enqueue_after(task, after, on_failure=on_failure)
            self.tell("waits", str(waits))

    async def work(self) -> int:
        """Whatever is ready: the first parts die."""
        leases = await self.engine.claim(["parts", "tops"], limit=2)
        for lease in leases:
            if lease.queue == "tops":
                parts = await self.engine.parts_page(lease.task_id)
                tasks = [await self.engine.get(part.task_id) for part in parts]
                alive = sum(task is not None and task.state in ALIVE for task in tasks)
                statuses = [part.status for part in parts]
                self.tell("ran", str(lease.task_id), lease.attempt, lease.payload, statuses, alive)
                await lease.complete(b"v")
            elif self.dead_left:
                self.dead_left -= 1
                await lease.bury("no")
            else:
                await lease.complete(b"v")
        return len(leases)

    async def drain(self) -> None:
        """Until nothing is left and nothing has happened for some passes of the reaper."""
        idle = 0
        while idle < 3:
            did = await self.work()
            if not did:
                did = await self.engine.queue("parts").redrive()
            idle = 0 if did else idle + 1
            await asyncio.sleep(0.01 if not did else 0)
            if not did and (await self.engine.stats()).waiting and idle < 3:
                idle = 0

    async def judge(self) -> None:
        shards = self.engine._state.shards  # the outbox has no public face
        left = 1
        async with asyncio.timeout(20):
            while left:  # a row goes when its end is synced where it counts
                left = sum(len(shard.store.scan(b"u/", b"u0", 9)) for shard in shards)
                await asyncio.sleep(0.01)
        report = await self.engine.verify()
        anomalies = (await self.engine.stats()).anomalies
        self.tell("over", [repr(one) for one in report.findings], left, [*map(str, anomalies)])


async def life(fd: int, config: dict) -> None:
    fuse = Fuse(config["kills_after"])
    async with lodeq.open(
        config["path"], shards=SHARDS, durability=config["mode"], sync_interval=0.02
    ) as engine:
        one = Life(fd, engine)
        fuse.is_lit = config["kills_after"] > 0
        if config["fills"]:
            one.dead_left = 2
            await one.fill()
        async with asyncio.timeout(20):
            await one.drain()
        await engine.fsync()
        if not config["kills_after"]:
            await one.judge()


def main(fd: int, config: dict) -> None:
    """See ``nursery``."""
    asyncio.run(life(fd, config))
