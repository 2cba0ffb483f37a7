"""Who works in a simulated process: producers, workers, zombies, an operator, people who give up.

Every call goes through the ``Recorder``, so the history holds what a user of the engine could
know and no more. Errors that a fault explains end the process's work (the engine has to be
reopened), as a user would; any other error is a failure of the run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from sim.keys import SimKeys

import lodeq
from lodeq.testing import Recorder

TENANT_QUEUES = (("alpha", ""), ("alpha", "t"), ("beta", ""))
SHORT_S, LONG_S = 0.4, 900.0
KEYS = 8
PENDING_MAX = 60
BROKEN = (
    lodeq.CommitUnknownError,
    lodeq.StoragePoisonedError,
    lodeq.ClosedError,
)
USUAL = (
    lodeq.LeaseLostError,
    lodeq.DuplicateTaskError,
    lodeq.TaskNotFoundError,
    lodeq.QueueFullError,
)


class Actors:
    """All who use one engine during one life.

    Args:
        has_faults: whether the store may fail; without it every storage error is a failure.
        has_ttl, has_purge: whether tasks expire and queues are purged; drawn by ``world.py``.
        keys: a limit of keys.
    """

    def __init__(
        self,
        engine: lodeq.Engine,
        recorder: Recorder,
        draw: random.Random,
        *,
        has_faults: bool,
        has_ttl: bool,
        has_purge: bool,
        keys: SimKeys | None = None,
    ) -> None:
        self.engine = engine
        self.rec = recorder
        self.draw = draw
        self.has_faults = has_faults
        self.has_ttl = has_ttl
        self.has_purge = has_purge
        self.keys = keys
        backoff = lodeq.Backoff(draw.choice(("fixed", "full_jitter")), base=0.2, cap=2.0)
        retention = draw.choice((3600.0, 3600.0, 2.0, 0))
        self.queues = [
            engine.queue(name, tenant=tenant, lease=LONG_S, backoff=backoff, retention=retention)
            for name, tenant in TENANT_QUEUES
        ]
        self.every = engine.queue("alpha", tenant=lodeq.ALL_TENANTS, lease=LONG_S)
        self.ids: list[lodeq.TaskId] = []
        self.is_over = asyncio.Event()
        self.dead_draw = random.Random(f"{draw.getstate()[1][:4]} dead")  # of its own

    # -- what they have in common ----------------------------------------------------------

    async def attempt(self, doing: Coroutine[Any, Any, Any]) -> Any:
        """The answer; None for the errors a user lives with."""
        try:
            return await doing
        except USUAL:
            return None
        except BROKEN:
            if not self.has_faults:
                raise
            self.is_over.set()
            return None
        except (lodeq.StorageError, lodeq.BusyError):
            if not self.has_faults:
                raise
            return None

    async def nap(self, longest_s: float = 0.05) -> None:
        if self.draw.random() < 0.3:
            await asyncio.sleep(self.draw.random() * longest_s)
        else:
            for _ in range(self.draw.randrange(4)):
                await asyncio.sleep(0)

    async def while_alive(self, one: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while not self.is_over.is_set():
            await one()
            await self.nap()

    # -- producers -------------------------------------------------------------------------

    def task(self, *, is_keyed: bool) -> lodeq.NewTask:
        draw = self.draw
        name, tenant = draw.choice(TENANT_QUEUES)
        key = f"k{draw.randrange(KEYS)}" if is_keyed else None
        return lodeq.NewTask(
            b"x" * draw.choice((0, 10, 300)),
            name,
            tenant,
            priority=draw.choice((5, 5, 5, 0, 9, draw.randrange(10))),
            dedup_key=key,
            dedup_window=draw.choice((0.01, 60.0)) if key and draw.random() < 0.2 else None,
            delay=draw.choice((0.0, 0.05, 1.5)) if draw.random() < 0.2 else None,
            ttl=draw.choice((0.5, 3.0)) if self.has_ttl and draw.random() < 0.2 else None,
            max_attempts=draw.choice((1, 2, 3, 5)),
            labels=self.labels(),
        )

    def labels(self) -> dict[str, str] | None:
        return None if self.keys is None else self.keys.labels()

    async def produce(self) -> None:
        draw = self.draw
        stats = await self.engine.stats()
        if stats.ready + stats.delayed + stats.waiting > PENDING_MAX:
            await asyncio.sleep(0.1)
            return
        durable = True if draw.random() < 0.1 else None
        self.rec.in_payload = draw.random() < 0.5  # without headers it takes the shortest path
        if draw.random() < 0.7:
            task = self.task(is_keyed=draw.random() < 0.5)
            conflict = draw.choice(("return", "return", "raise", "replace"))
            task = task._replace(on_conflict=conflict if task.dedup_key else "return")
            queue = self.queues[TENANT_QUEUES.index((task.queue, task.tenant))]
            task = task._replace(queue=None, tenant=None)  # the queue's own policy
            receipt = await self.attempt(self.rec.enqueue(queue, task, durable=durable))
            receipts = [receipt] if receipt else []
        else:
            is_keyed = draw.random() < 0.3
            tasks = [self.task(is_keyed=is_keyed) for _ in range(draw.randint(2, 9))]
            receipts = await self.attempt(self.rec.enqueue_many(tasks, durable=durable)) or []
        self.ids = [*self.ids, *(r.id for r in receipts)][-60:]

    # -- workers ---------------------------------------------------------------------------

    async def claim(self, lease_s: float) -> list[lodeq.Lease]:
        draw = self.draw
        queues = draw.choice(
            ([self.queues[0]], [self.queues[1]], [self.queues[2]], self.queues, [self.every])
        )
        doing = self.rec.claim(
            queues,
            limit=draw.choice((1, 1, 2, 8)),
            lease=lease_s,
            wait=draw.choice((0.0, 0.0, 0.3)),
            worker="w",
            exported=lease_s == SHORT_S and draw.random() < 0.3,
        )
        return await self.attempt(doing) or []

    async def settle(self, lease: lodeq.Lease) -> None:
        draw, rec = self.draw, self.rec
        how = draw.choices(
            ("complete", "then", "nack", "release", "bury", "heartbeat"), (50, 12, 14, 14, 6, 6)
        )[0]
        if how == "complete":
            durable = True if draw.random() < 0.1 else None
            doing = rec.complete(lease, b"r", keep=draw.random() < 0.9, durable=durable)
        elif how == "then":
            then = [
                lodeq.NewTask(
                    b"next",
                    max_attempts=2,
                    delay=draw.choice((None, None, 0.1)),
                    labels=self.labels(),
                )
                for _ in range(draw.randint(1, 3))
            ]
            doing = rec.complete(lease, {"n": 1}, then=then)
        elif how == "nack":
            doing = rec.nack(lease, delay=draw.choice((None, 0, 0.3)), reason="no")
        elif how == "release":
            doing = rec.release(lease, delay=draw.choice((None, None, 0.2)))
        elif how == "bury":
            doing = rec.bury(lease, "bad")
        else:
            await self.attempt(rec.heartbeat(lease, draw.choice((None, SHORT_S, LONG_S))))
            await asyncio.sleep(draw.random() * 2 * SHORT_S)
            doing = rec.complete(lease, None)
        await self.attempt(doing)

    async def work(self) -> None:
        draw = self.draw
        lease_s = SHORT_S if draw.random() < 0.15 else LONG_S
        leases = await self.claim(lease_s)
        await self.nap(0.2)
        if lease_s == SHORT_S and draw.random() < 0.4:  # a worker that was paused: a zombie
            await asyncio.sleep(SHORT_S * 2 * draw.random())
        if len(leases) > 1 and draw.random() < 0.5:
            await self.attempt(self.rec.complete_many([(lease, b"m") for lease in leases]))
            return
        for lease in leases:
            await self.settle(lease)

    async def give_up(self) -> None:
        """A call that is cancelled somewhere on its way."""
        draw = self.draw
        kind = draw.choice((self.produce, self.work, self.claim_and_release))
        task = asyncio.ensure_future(kind())
        for _ in range(draw.randrange(10)):
            await asyncio.sleep(0)
        if draw.random() < 0.3:
            await asyncio.sleep(draw.random() * 0.3)
        task.cancel()
        (got,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(got, Exception):
            raise got

    async def claim_and_release(self) -> None:
        for lease in await self.claim(LONG_S):
            await self.attempt(self.rec.release(lease))

    async def consume_dead(self) -> None:
        """Somebody looks at dead letters under a lease: done, sent back, or let go."""
        draw = self.dead_draw
        queue = draw.choice(self.queues)
        lease_s = SHORT_S if draw.random() < 0.3 else LONG_S
        doing = self.rec.claim_dead(
            queue,
            limit=draw.choice((1, 1, 3)),
            lease=lease_s,
            wait=draw.choice((0.0, 0.3, 1.0)),
            worker="d",
            exported=draw.random() < 0.3,
        )
        for lease in await self.attempt(doing) or []:
            if draw.random() < 0.3:
                await asyncio.sleep(draw.random() * 2 * SHORT_S)
            how = draw.choice(("complete", "redrive", "redrive", "nack", "release", "leave"))
            if how == "complete":
                await self.attempt(self.rec.complete(lease, b"d", keep=draw.random() < 0.8))
            elif how == "redrive":
                await self.attempt(self.rec.redrive_lease(lease))
            elif how == "nack":
                await self.attempt(self.rec.nack(lease, reason="no"))
            elif how == "release":
                await self.attempt(self.rec.release(lease))
        await asyncio.sleep(draw.random() * 0.3)

    # -- operators -------------------------------------------------------------------------

    async def operate(self) -> None:
        draw, rec = self.draw, self.rec
        dice = draw.random()
        if dice < 0.35 and self.ids:
            await self.attempt(rec.cancel(draw.choice(self.ids)))
        elif dice < 0.6:
            queue = draw.choice(self.queues)
            dead = await self.attempt(queue.dead_letters(3)) or []
            for task in dead:
                await self.attempt(rec.redrive(queue, [task.id]))
        elif dice < 0.7:
            await self.attempt(rec.fsync())
        elif dice < 0.8 and self.ids:
            await self.attempt(self.engine.result(draw.choice(self.ids), wait=0.1))
        elif dice < 0.85:
            queue = draw.choice(self.queues)
            await self.attempt(rec.pause(queue))
            await asyncio.sleep(draw.random())
            await self.attempt(rec.resume(queue))
        elif dice < 0.88 and self.has_purge:
            state = draw.choice(("ready", "delayed", "dead", None))
            await self.attempt(rec.purge(draw.choice(self.queues), state))
        await asyncio.sleep(draw.random() * 0.2)

    async def limit(self, draw: random.Random) -> None:
        """Other limits for both queues, or none."""
        for name in dict(TENANT_QUEUES):
            rate = draw.choice((None, "1/s", "3/s", "5/2s"))
            await self.attempt(
                self.rec.configure(name, rate=rate, concurrency=draw.choice((None, 1, 2, 5)))
            )

    async def limit_keys(self, settings: dict[str, Any]) -> None:
        """Another limit of keys."""
        keys, text = self.keys, settings["key_concurrency"]
        assert keys is not None
        if self.has_faults:  # leases of a shard that fails count no more, and no record may say so
            settings = settings | {"concurrency": None}

        async def doing() -> None:
            await self.rec.configure(keys.queue, **settings)
            keys.changed(text)

        keys.changing(text)
        await self.attempt(doing())

    async def change_keys(self) -> None:
        assert self.keys is not None
        await asyncio.sleep(self.keys.draw.random() * self.keys.pause_s)
        await self.limit_keys(self.keys.drawn())

    async def fail_often(self, draw: random.Random) -> None:
        """More failed attempts than are kept."""
        task = lodeq.NewTask(b"fails", max_attempts=draw.choice((11, 13)))
        await self.attempt(self.rec.enqueue(self.queues[2], task))
        for _ in range(12):
            leases = await self.attempt(self.rec.claim([self.queues[2]], limit=8)) or []
            for lease in leases:
                await self.attempt(self.rec.nack(lease, delay=0, reason="again"))

    # -- all of them -----------------------------------------------------------------------

    async def run(self, for_s: float) -> None:
        """Until the time is up or the engine is broken; then everybody is cancelled."""
        ones = (
            self.produce,
            self.produce,
            self.work,
            self.work,
            self.work,
            self.give_up,
            self.operate,
            self.consume_dead,
        )
        if self.keys is not None:
            ones = (*ones, self.change_keys)
        tasks = [asyncio.ensure_future(self.while_alive(one)) for one in ones]
        over = asyncio.ensure_future(self.is_over.wait())
        await asyncio.wait([over, *tasks], timeout=for_s, return_when="FIRST_COMPLETED")
        self.is_over.set()
        for task in (over, *tasks):
            task.cancel()
        for answer in await asyncio.gather(over, *tasks, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, asyncio.CancelledError):
                raise answer

    async def drain(self, within_s: float) -> None:
        """Until nothing is left that a worker could get, in bounded virtual time."""
        for queue in self.queues:
            await self.rec.resume(queue)
        await self.rec.drain(
            self.queues, within=within_s, idle=lambda: asyncio.sleep(self.draw.random() * 20.0)
        )
