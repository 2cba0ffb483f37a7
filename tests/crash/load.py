"""The child of the kill tests: opens a store, says what it finds, works it until it is killed.

Every operation goes through a ``Recorder``, whose records the parent reads from a pipe: so what
the parent holds is exactly what a user of the engine could know.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

from support_lifecycle import judge_told

import lodeq
from lodeq.repository.background import body_gc, event_publisher
from lodeq.segments.bodies import files
from lodeq.testing import Recorder

TENANT_QUEUES = (("alpha", ""), ("beta", "t"))
BACKOFF = lodeq.Backoff("fixed", base=0.01)
KEYS = 24
READY_MAX = 150
SHORT_S, LONG_S = 0.03, 600.0
LIFE_S_MAX = 600.0  # nobody came to kill it
ROLL = lodeq.journal.Roll(records=20)  # of the lifecycle journal: its files are left, too
EXPECTED = (lodeq.LeaseLostError, lodeq.TaskNotFoundError, lodeq.DuplicateTaskError)


class Load:
    """Producers, workers and an operator, all at once."""

    def __init__(self, engine: lodeq.Engine, recorder: Recorder, config: dict) -> None:
        self.engine = engine
        self.recorder = recorder
        self.random = random.Random(config["seed"])
        self.queues = [
            engine.queue(name, tenant=tenant, lease=LONG_S, backoff=BACKOFF)
            for name, tenant in TENANT_QUEUES
        ]
        self.ids: list[Any] = []

    async def call(self, operation: Any) -> Any:
        """One operation. Returns None for the errors a user expects."""
        try:
            return await operation
        except EXPECTED:
            return None

    # -- producers -------------------------------------------------------------------------

    def task(self, queue: int, *, keyed: bool, follows: bool = False) -> lodeq.NewTask:
        draw = self.random
        key = f"k{draw.randrange(KEYS)}" if keyed else None
        name, tenant = TENANT_QUEUES[queue]
        is_own = not follows and draw.random() < 0.5  # of the queue it is given to
        return lodeq.NewTask(
            b"x" * draw.choice((0, 10, 100, 5000)),
            None if is_own else name,
            None if is_own else tenant,
            priority=draw.randrange(10),
            dedup_key=key,
            delay=draw.choice((0.0, 0.001, 0.02)) if draw.random() < 0.3 else None,
            dedup_window=draw.choice((0.01, 60.0)) if keyed and draw.random() < 0.1 else None,
            on_conflict=draw.choice(("return", "raise", "replace")) if keyed else "return",
            max_attempts=draw.choice((1, 2, 3, 5)),
            headers={"n": name} if draw.random() < 0.2 else None,
        )

    def remember(self, receipts: list[lodeq.Receipt]) -> None:
        self.ids += [receipt.id for receipt in receipts if not receipt.duplicate]

    async def produce(self) -> None:
        """One task or many. The number is in the payload of most: they take the shortest path."""
        draw, recorder = self.random, self.recorder
        queue = draw.randrange(2)
        recorder.in_payload = draw.random() < 0.8
        if draw.random() < 0.2:
            payload = b"x" * draw.choice((0, 100))
            receipt = await self.call(recorder.enqueue(self.queues[queue], payload))
            self.remember([receipt])
        elif draw.random() < 0.5:
            task = self.task(queue, keyed=draw.random() < 0.4)._replace(queue=None, tenant=None)
            receipt = await self.call(recorder.enqueue(self.queues[queue], task))
            self.remember([receipt] if receipt else [])
        else:
            keyed = draw.random() < 0.3
            tasks = [self.task(queue, keyed=keyed) for _ in range(draw.randint(2, 20))]
            tasks = [task._replace(on_conflict="return") for task in tasks]
            many = recorder.enqueue_many(tasks, queue=self.queues[queue])
            self.remember(await self.call(many))

    async def producer(self) -> None:
        while True:
            if (
                sum(tenant_queue.pending for tenant_queue in [await q.stats() for q in self.queues])
                > READY_MAX
            ):
                await asyncio.sleep(0.001)
                continue
            await self.produce()
            for _ in range(self.random.randrange(4)):
                await asyncio.sleep(0)

    # -- workers ---------------------------------------------------------------------------

    async def claim(self, limit: int, *, lease_s: float, wait: float) -> list[lodeq.Lease]:
        draw = self.random
        use: Any = draw.choice((self.queues[:1], self.queues[1:], self.queues))
        if len(use) == 1 and draw.random() < 0.5:
            use = use[0]
        leases = await self.recorder.claim(
            use,
            limit=limit,
            lease=lease_s,
            wait=wait,
            worker="w",
            exported=lease_s == SHORT_S and draw.random() < 0.5,
        )
        self.ids += [lease.task_id for lease in leases]
        return leases

    async def settle(self, lease: lodeq.Lease, how: str) -> None:
        recorder, draw = self.recorder, self.random
        then: list[lodeq.NewTask] = []
        if how == "then":
            how = "complete"
            tasks = [self.task(draw.randrange(2), keyed=False, follows=True) for _ in range(3)]
            then = tasks[: draw.randint(1, 3)]
        keep = draw.random() < 0.9
        await self.call(
            {
                "complete": lambda: recorder.complete(lease, {"n": 1}, then=then, keep=keep),
                "nack": lambda: recorder.nack(lease, delay=draw.choice((0, 0.005)), reason="no"),
                "release": lambda: recorder.release(lease, delay=draw.choice((None, 0.005))),
                "bury": lambda: recorder.bury(lease, "bad"),
                "cancel": lambda: recorder.cancel_lease(lease),
                "heartbeat": lambda: recorder.heartbeat(lease),
            }[how]()
        )

    async def work(self) -> None:
        draw = self.random
        lease_s = SHORT_S if draw.random() < 0.1 else LONG_S
        limit = draw.choice((1, 1, 1, 4, 16))
        leases = await self.claim(limit, lease_s=lease_s, wait=draw.choice((0.0, 0.01)))
        for _ in range(draw.randrange(6)):
            await asyncio.sleep(0)
        if lease_s == SHORT_S and leases and draw.random() < 0.5:
            # As long as its lease; whoever completes it meanwhile may keep no result.
            await self.call(self.engine.result(leases[0].task_id, wait=SHORT_S))
        if len(leases) > 1 and draw.random() < 0.5:
            await self.call(self.recorder.complete_many([(x, {"n": 1}) for x in leases]))
            return
        hows = ("complete", "then", "nack", "release", "bury", "cancel", "heartbeat")
        for lease in leases:
            how = draw.choices(hows, (48, 12, 15, 12, 5, 3, 5))[0]
            await self.settle(lease, how)
            if how == "heartbeat":
                await self.settle(lease, "complete")

    async def worker(self) -> None:
        while True:
            await self.work()

    async def fickle(self) -> None:
        """A claim or an enqueue that is cancelled somewhere on its way."""
        while True:
            claims = self.random.random() < 0.7
            doing = self.claim(4, lease_s=LONG_S, wait=0.01) if claims else self.produce()
            task = asyncio.ensure_future(doing)
            for _ in range(self.random.randrange(8)):
                await asyncio.sleep(0)
            task.cancel()
            (got,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(got, list):
                for lease in got:
                    await self.settle(lease, "release")
            elif isinstance(got, Exception):
                raise got
            await asyncio.sleep(0.002)

    async def operator(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            if self.random.random() < 0.5 and self.ids:
                task_id = self.random.choice(self.ids[-200:])
                await self.call(self.recorder.cancel(task_id))
            for queue in self.queues:
                for dead in await queue.dead_letters(3):
                    await self.call(self.recorder.redrive(queue, [dead.id]))

    # -- all of it -------------------------------------------------------------------------

    async def run(self) -> None:
        doing = [self.producer() for _ in range(3)] + [self.worker() for _ in range(5)]
        async with asyncio.timeout(LIFE_S_MAX), asyncio.TaskGroup() as group:
            for one in (*doing, self.fickle(), self.operator()):
                group.create_task(one)


async def life(fd: int, config: dict) -> None:
    def tell(record: list) -> None:
        data = json.dumps(record).encode() + b"\n"
        while data:
            data = data[os.write(fd, data) :]

    # Lives of milliseconds: body files fill, and are copied together, within them; events move.
    files.FILE_BYTES, body_gc.LOOK_S, body_gc.QUIET_S = 20_000, 0.002, 0.004
    event_publisher.PAUSE_S = 0.003
    async with lodeq.open(
        config["path"],
        shards=config["shards"],
        durability=config["mode"],
        sync_interval=0.02,
        commit_batch_max=config["commit_batch_max"],
        submit_queue_max=config["submit_queue_max"],
        body_bytes_min=config["body_bytes_min"],
        journal=config["journal"],
        journal_roll=ROLL if config["journal"] else None,
    ) as engine:
        recorder = Recorder(engine, tell, first_number=config["first"])
        load = Load(engine, recorder, config)
        found = await recorder.look()
        load.ids = [lodeq.TaskId(bytes.fromhex(i)) for i, *_ in found["tasks"]]
        if not config["drain"]:
            await load.run()
        await recorder.drain(load.queues)
        if config["drain"]:
            found = await recorder.look()
    if config["drain"] and config["journal"]:
        await judge_told(config["path"], [task_id for task_id, *_ in found["tasks"]])


def main(fd: int, config: dict) -> None:
    """See ``nursery``."""
    asyncio.run(life(fd, config))
