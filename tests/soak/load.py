"""The mixed load of a soak: everything users do, at a pace a machine can keep up for hours."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import lodeq

BACKLOG_MAX = 4000
BURST = 500
# As time moves tasks on, so that one that moves meanwhile is met again, and not missed.
STATES = ("delayed", "leased", "ready", "dead")
LOST = (lodeq.LeaseLostError, lodeq.TaskNotFoundError)
Tell = Callable[[str, int], object]


class Load:
    """Producers, workers and an operator on one engine; ``tell`` hears of every task."""

    def __init__(self, engine: lodeq.Engine, tell: Tell, *, seed: int, first: int, pace: float):
        self.engine = engine
        self.tell = tell
        self.random = random.Random(seed)
        self.next = first
        self.pause_s = 1 / pace
        self.queues = [
            engine.queue(
                name,
                tenant=tenant,
                retention=20.0,
                dead_retention=600.0,
                max_attempts=3,
                backoff=lodeq.Backoff("fixed", base=0.05),
            )
            for name, tenant in (("alpha", ""), ("beta", "t"))
        ]
        self.took_s: list[float] = []

    # -- pieces ----------------------------------------------------------------------------

    async def timed(self, call: Awaitable[Any]) -> Any:
        start = time.perf_counter()
        try:
            return await call
        finally:
            self.took_s.append(time.perf_counter() - start)

    async def rest(self) -> None:
        await asyncio.sleep(self.random.expovariate(1.0) * self.pause_s)

    def task(self) -> tuple[int, lodeq.NewTask]:
        """A new one, and its number."""
        draw, number = self.random, self.next
        self.next += 1
        size = draw.choices((0, 100, 1000, 20_000), (30, 50, 18, 2))[0]
        task = lodeq.NewTask(
            b"%d:" % number + draw.randbytes(size),
            priority=draw.randrange(10),
            delay=draw.random() if draw.random() < 0.1 else None,
            headers={"n": number} if draw.random() < 0.2 else None,
        )
        return number, task

    def pick(self) -> lodeq.Queue:
        return self.random.choice(self.queues)

    # -- who works -------------------------------------------------------------------------

    async def produce(self) -> None:
        draw, queue = self.random, self.pick()
        if draw.random() < 0.05:  # is gone before anybody wants it; not in the book
            await self.timed(queue.enqueue(b"ttl:", delay=0.5, ttl=0.2))
            return
        number, task = self.task()
        key = f"k{draw.randrange(50)}" if draw.random() < 0.1 else None
        self.tell("invoked", number)
        durable = draw.random() < 0.02
        call = queue.enqueue(
            task.payload,
            priority=task.priority,
            delay=task.delay,
            headers=task.headers,
            dedup_key=key,
            durable=durable or None,
        )
        # What waits for a sync takes as long as that: few enough to be noise in a p99.
        receipt = await (call if durable else self.timed(call))
        self.tell("refused" if receipt.duplicate else "enqueued", number)

    async def producer(self) -> None:
        while True:
            stats = await self.engine.stats()
            if stats.ready + stats.delayed < BACKLOG_MAX:
                await self.produce()
            await self.rest()

    async def bursts(self, every_s: float) -> None:
        """Many at once, now and then: queues grow and shrink."""
        while True:
            await asyncio.sleep(every_s)
            made = [self.task() for _ in range(BURST)]
            for number, _ in made:
                self.tell("invoked", number)
            await self.timed(self.pick().enqueue_many([task for _, task in made]))
            for number, _ in made:
                self.tell("enqueued", number)

    async def worker(self) -> None:
        draw = self.random
        while True:
            queue = self.pick()
            leases = await self.timed(queue.claim(limit=draw.choice((1, 4, 32)), lease=20.0))
            if not leases:
                forgets = draw.random() < 0.1
                last = await self.engine.claim(
                    self.queues, lease=0.05 if forgets else 20.0, wait=0.2
                )
                for lease in () if forgets else last:
                    await self.settle(lease)
                continue
            for lease in leases:
                await self.settle(lease)
            await asyncio.sleep(self.pause_s / 4)

    async def settle(self, lease: lodeq.Lease) -> None:
        number = number_of(lease.payload)
        if number is None:
            await lease.complete(keep=False)
            return
        self.tell("claimed", number)
        draw = self.random
        how = draw.choices(("complete", "then", "nack", "release", "bury"), (85, 5, 5, 3, 2))[0]
        try:
            if how == "nack":
                await self.timed(lease.nack(reason="again"))
            elif how == "release":
                await lease.release()
            elif how == "bury":
                await lease.bury("for later")
            else:
                await self.complete(lease, number, follows=how == "then")
        except LOST:
            self.tell("kept", number)

    async def complete(self, lease: lodeq.Lease, number: int, *, follows: bool) -> None:
        new = [self.task()] if follows else []
        for other, _ in new:
            self.tell("invoked", other)
        self.tell("ending", number)
        await self.timed(
            lease.complete(
                self.random.randbytes(self.random.choice((0, 50, 500))), then=[t for _, t in new]
            )
        )
        self.tell("completed", number)
        for other, _ in new:
            self.tell("enqueued", other)

    async def operator(self) -> None:
        while True:
            for queue in self.queues:
                await self.revive(queue)
                await queue.peek(limit=20)
                await queue.list("ready", limit=20)
            await asyncio.sleep(1.0)

    async def revive(self, queue: lodeq.Queue) -> None:
        """Dead letters go back to work; one whose key another task has taken waits for the next."""
        after = None
        while page := await queue.dead_letters(limit=100, after=after):
            after = page[-1]
            for dead in page:
                try:
                    await queue.redrive([dead.id])
                except lodeq.DuplicateTaskError:
                    continue

    async def run(self, *, burst_s: float) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(self.producer())
                group.create_task(self.worker())
            group.create_task(self.operator())
            group.create_task(self.bursts(burst_s))

    # -- looking ---------------------------------------------------------------------------

    async def numbers(self) -> list[int]:
        """Of all tasks there are; nothing else may be going on."""
        found = []
        for queue in self.queues:
            for state in STATES:
                after = None
                while page := await queue.list(state, limit=500, after=after):
                    found += [number_of(task.payload) for task in page]
                    after = page[-1]
        return [number for number in found if number is not None]


def number_of(payload: bytes) -> int | None:
    """None for tasks that are not in the book."""
    head = payload.partition(b":")[0]
    return int(head) if head.isdigit() else None
