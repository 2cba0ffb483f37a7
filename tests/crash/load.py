"""The child of the kill tests: opens a store, says what it finds, works it until it is killed.

Every operation is told to the parent twice: ``["i", op, kind, params]`` is in the pipe before
the call is made, ``["a", op, outcome]`` right after it returned (``["e", op, error, id]`` if it
raised, ``["c", op]`` if it was cancelled). So what the parent holds is exactly what a user of
the engine could know.

A task's number is in its payload: a task whose enqueue was never acknowledged is recognised, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

from crash.contents import at_rest, contents

import lodeq

LANES = (("alpha", ""), ("beta", "t"))
BACKOFF = lodeq.Backoff("fixed", base=0.01)
KEYS = 24
READY_MAX = 150
SHORT_S, LONG_S = 0.03, 600.0


class Load:
    """Producers, workers and an operator, all at once."""

    def __init__(self, engine: lodeq.Engine, fd: int, config: dict) -> None:
        self.engine = engine
        self.fd = fd
        self.random = random.Random(config["seed"])
        self.first = config["first"]
        self.ops = 0
        self.queues = [
            engine.queue(name, tenant=tenant, lease=LONG_S, backoff=BACKOFF)
            for name, tenant in LANES
        ]
        self.ids: dict[int, Any] = {}

    def tell(self, *record: Any) -> None:
        data = json.dumps(record).encode() + b"\n"
        while data:
            data = data[os.write(self.fd, data) :]

    async def call(self, kind: str, params: dict, make: Any, show: Any = None) -> Any:
        """One operation, told before and after. Returns None for the errors a user expects."""
        self.ops += 1
        op = self.ops
        self.tell("i", op, kind, params)
        try:
            answer = await make()
        except (lodeq.LeaseLostError, lodeq.TaskNotFoundError) as error:
            self.tell("e", op, type(error).__name__, None)
            return None
        except lodeq.DuplicateTaskError as error:
            self.tell("e", op, "DuplicateTaskError", bytes(error.task_id).hex())
            return None
        except asyncio.CancelledError:
            self.tell("c", op)
            raise
        self.tell("a", op, show(answer) if show else None)
        return answer

    # -- producers -------------------------------------------------------------------------

    def task(self, queue: int, *, keyed: bool) -> tuple[list, lodeq.NewTask]:
        """A new task: what the parent is told of it, and what is enqueued."""
        draw = self.random
        self.first += 1
        key = f"k{draw.randrange(KEYS)}" if keyed else None
        window = draw.choice((0.01, 60.0)) if keyed and draw.random() < 0.1 else None
        max_attempts = draw.choice((1, 2, 3, 5))
        name, tenant = LANES[queue]
        payload = b"%d:" % self.first + b"x" * draw.choice((0, 10, 100, 5000))
        new = lodeq.NewTask(
            payload, name, tenant, priority=draw.randrange(10), dedup_key=key,
            delay=draw.choice((0.0, 0.001, 0.02)) if draw.random() < 0.3 else None,
            dedup_window=window, max_attempts=max_attempts,
            headers={"n": self.first} if draw.random() < 0.2 else None,
        )  # fmt: skip
        return [self.first, queue, key, max_attempts, window is not None], new

    def receipts(self, told: list[list]) -> Any:
        def show(answer: Any) -> list:
            for task, receipt in zip(told, answer, strict=True):
                if not receipt.duplicate:
                    self.ids[task[0]] = receipt.id
            return [[r.id.hex(), r.duplicate, r.replaced.hex() if r.replaced else None]
                    for r in answer]  # fmt: skip

        return show

    async def produce(self) -> None:
        draw = self.random
        queue = draw.randrange(2)
        if draw.random() < 0.6:
            told, new = self.task(queue, keyed=draw.random() < 0.4)
            conflict = draw.choice(("return", "raise", "replace")) if new.dedup_key else "return"

            async def one() -> list:
                return [await self.queues[queue].enqueue(
                    new.payload, priority=new.priority, delay=new.delay, headers=new.headers,
                    dedup_key=new.dedup_key, dedup_window=new.dedup_window,
                    max_attempts=new.max_attempts, on_conflict=conflict,
                )]  # fmt: skip

            await self.call(
                "enqueue", {"tasks": [told], "conflict": conflict}, one, self.receipts([told])
            )
            return
        keyed = draw.random() < 0.3
        made = [self.task(queue, keyed=keyed) for _ in range(draw.randint(2, 20))]
        told_all, news = [m[0] for m in made], [m[1] for m in made]
        await self.call(
            "enqueue", {"tasks": told_all, "conflict": "return"},
            lambda: self.engine.enqueue_many(news), self.receipts(told_all),
        )  # fmt: skip

    async def producer(self) -> None:
        while True:
            if sum(lane.pending for lane in [await q.stats() for q in self.queues]) > READY_MAX:
                await asyncio.sleep(0.001)
                continue
            await self.produce()
            for _ in range(self.random.randrange(4)):
                await asyncio.sleep(0)

    # -- workers ---------------------------------------------------------------------------

    def delivered(self, leases: list[lodeq.Lease]) -> list:
        out = []
        for lease in leases:
            n = int(lease.payload.partition(b":")[0])
            self.ids[n] = lease.task_id
            out.append([n, lease.task_id.hex(), lease.attempt, lease.epoch])
        return out

    async def claim(self, limit: int, *, lease_s: float, wait: float) -> list[lodeq.Lease]:
        draw = self.random
        use = draw.choice(([0], [1], [0, 1]))
        is_exported = lease_s == SHORT_S and draw.random() < 0.5

        async def make() -> list[lodeq.Lease]:
            return await self.engine.claim(
                [self.queues[i] for i in use], limit=limit, lease=lease_s, wait=wait, worker="w",
                exported=is_exported,
            )  # fmt: skip

        params = {"queues": use, "limit": limit, "short": lease_s == SHORT_S}
        return await self.call("claim", params, make, self.delivered)

    async def settle(self, lease: lodeq.Lease, how: str) -> None:
        n = self.delivered([lease])[0][0]
        then: list[list] = []
        news: list[lodeq.NewTask] = []
        if how == "then":
            how = "complete"
            for _ in range(self.random.randint(1, 5)):
                told, new = self.task(self.random.randrange(2), keyed=False)
                then.append(told)
                news.append(new)
        make = {
            "complete": lambda: lease.complete({"n": n}, then=news),
            "nack": lambda: lease.nack(delay=self.random.choice((0, 0.005)), reason="no"),
            "release": lambda: lease.release(delay=self.random.choice((None, 0.005))),
            "bury": lambda: lease.bury("bad"),
            "heartbeat": lease.heartbeat,
        }[how]
        await self.call(how, {"n": n, "epoch": lease.epoch, "then": then}, make)

    async def complete_many(self, leases: list[lodeq.Lease]) -> None:
        pairs = [[x[0], x[3]] for x in self.delivered(leases)]
        await self.call(
            "complete_many", {"pairs": pairs},
            lambda: self.engine.complete_many([(x, {"n": n}) for x, (n, _) in zip(
                leases, pairs, strict=True)]),
            lambda answer: [error is None for error in answer],
        )  # fmt: skip

    async def work(self) -> None:
        draw = self.random
        lease_s = SHORT_S if draw.random() < 0.1 else LONG_S
        limit = draw.choice((1, 1, 1, 4, 16))
        leases = await self.claim(limit, lease_s=lease_s, wait=draw.choice((0.0, 0.01)))
        for _ in range(draw.randrange(6)):
            await asyncio.sleep(0)
        if lease_s == SHORT_S and leases and draw.random() < 0.5:
            await self.engine.result(leases[0].task_id, wait=SHORT_S)  # as long as its lease
        if len(leases) > 1 and draw.random() < 0.5:
            await self.complete_many(leases)
            return
        hows = ("complete", "then", "nack", "release", "bury", "heartbeat")
        for lease in leases:
            how = draw.choices(hows, (50, 12, 15, 12, 6, 5))[0]
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
                n = self.random.choice(list(self.ids)[-200:])
                await self.call(
                    "cancel", {"n": n}, lambda n=n: self.engine.cancel(self.ids[n]), bool
                )
            for queue in self.queues:
                for dead in await queue.dead_letters(3):
                    await self.redrive(queue, dead)

    async def redrive(self, queue: lodeq.Queue, dead: lodeq.Task) -> None:
        n = int(dead.payload.partition(b":")[0])
        await self.call("redrive", {"n": n}, lambda: queue.redrive([dead.id]))

    # -- all of it -------------------------------------------------------------------------

    async def run(self) -> None:
        doing = [self.producer() for _ in range(3)] + [self.worker() for _ in range(5)]
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            for one in (*doing, self.fickle(), self.operator()):
                group.create_task(one)

    async def drain(self) -> None:
        """Until nothing is left that a worker could get."""
        async with asyncio.timeout(60):
            while any(s.pending or s.leased for s in [await q.stats() for q in self.queues]):
                leases = await self.claim(64, lease_s=LONG_S, wait=0.05)
                if leases:
                    await self.complete_many(leases)


async def life(fd: int, config: dict) -> None:
    async with lodeq.open(
        config["path"], shards=config["shards"], durability=config["mode"], sync_interval=0.02,
        merge_max=config["merge_max"], queue_max=config["queue_max"],
    ) as engine:  # fmt: skip
        load = Load(engine, fd, config)
        found = contents(engine)
        load.ids = {n: lodeq.TaskId(bytes.fromhex(i)) for i, n, *_ in found["tasks"]}
        report = await engine.verify()
        found["findings"] = [repr(finding) for finding in report.findings]
        load.tell("found", found)
        if not config["drain"]:
            await load.run()
        await load.drain()
        findings = [repr(finding) for finding in (await engine.verify()).findings]
        await at_rest(engine)
        load.tell("found", {**contents(engine), "findings": findings})


def main(fd: int, config: dict) -> None:
    """See ``nursery``."""
    asyncio.run(life(fd, config))
