"""Random operations, cancellations, stalls and clock steps, every single commit checked.

What the named tests do one at a time, all at once and repeatable by its seed: after each write
every rule of ``verify`` must hold, nobody may be left waiting, and when all time has passed the
store must be as empty as on its first day.
"""

import asyncio
import random

import pytest
from support_behaviour import settle, sound
from support_faults import Rig, faulty

import lodeq
from lodeq import ALL_TENANTS, Backoff, Limits, NewTask

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

EXPECTED = (
    lodeq.LeaseLostError,
    lodeq.DuplicateTaskError,
    lodeq.QueueFullError,
    lodeq.TaskNotFoundError,
)


class World:
    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self.rig, self.rng, engine = rig, rng, rig.engine
        self.queues = [
            engine.queue(
                "a",
                max_attempts=rng.choice([1, 2, 5]),
                lease=5,
                retention=rng.choice([0, 10]),
                dead_retention=20,
                backoff=Backoff(base=rng.choice([0, 2])),
                boost_after=rng.choice([None, 1]),
            ),
            engine.queue("a", tenant="t", max_attempts=2, lease=3, retention=7),
            engine.queue("b", lease=2),
        ]
        self.every = engine.queue("a", tenant=ALL_TENANTS)
        self.leases: list[lodeq.Lease] = []
        self.ids: list[lodeq.TaskId] = []

    async def one(self) -> None:
        rng = self.rng
        kind = rng.choices(
            [self.put, self.put_many, self.take, self.end, self.end_many, self.look, self.run],
            [8, 2, 6, 7, 1, 2, 3],
        )[0]
        try:
            await kind(rng.choice(self.queues))
        except EXPECTED:
            pass

    async def put(self, queue):
        rng = self.rng
        options = {"priority": rng.randrange(10), "ttl": rng.choice([None, None, 2, 8])}
        if rng.random() < 0.5:
            options |= {
                "dedup_key": rng.choice("xyz"),
                "dedup_window": rng.choice([None, 1, 6]),
                "on_conflict": rng.choice(["return", "raise", "replace"]),
            }
        if rng.random() < 0.4:
            options = {}
        self.ids.append((await queue.enqueue(b"x", delay=rng.choice([None, 1]), **options)).id)

    async def put_many(self, queue):
        rng = self.rng
        tasks = [
            NewTask(i, shard_key=rng.choice([None, "1", "2"]), delay=rng.choice([None, 2]))
            for i in range(rng.randrange(1, 9))
        ]
        self.ids += [receipt.id for receipt in await queue.enqueue_many(tasks)]

    async def take(self, queue):
        rng = self.rng
        if rng.random() < 0.2:
            self.leases += await self.rig.engine.claim([*self.queues, self.every], limit=3)
        else:
            queue = rng.choice([queue, self.every])
            self.leases += await queue.claim(limit=rng.randrange(1, 5), wait=rng.choice([0, 0, 2]))

    async def end(self, _):
        rng = self.rng
        if not self.leases:
            return
        lease = self.leases.pop(rng.randrange(len(self.leases)))
        how = rng.randrange(6)
        if how == 0:
            then = [NewTask(b"next")] if rng.random() < 0.3 else ()
            await lease.complete(b"r", then=then, keep=rng.random() < 0.7)
        elif how == 1:
            await lease.nack(delay=rng.choice([None, 0, 1]))
        elif how == 2:
            await lease.release(delay=rng.choice([None, None, 1]))
        elif how == 3:
            await lease.bury("x")
        elif how == 4:
            await lease.cancel()
        else:
            self.leases.append(lease)
            await lease.heartbeat(rng.choice([1, 4, 9]))

    async def end_many(self, _):
        some, self.leases = self.leases[:3], self.leases[3:]
        await self.rig.engine.complete_many([(lease, 1) for lease in some])

    async def look(self, _):
        if self.ids:
            task_id = self.rng.choice(self.ids)
            await self.rig.engine.get(task_id)
            await self.rig.engine.result(task_id, wait=self.rng.choice([0, 1]))

    async def run(self, queue):
        rng = self.rng
        if (dice := rng.random()) < 0.3 and self.ids:
            await self.rig.engine.cancel(rng.choice(self.ids))
        elif dice < 0.6:
            await rng.choice([queue, self.every]).redrive()
        elif dice < 0.65:
            await queue.purge(rng.choice([None, "ready", "delayed", "dead"]))
        elif dice < 0.75:
            await queue.pause()
        else:
            await queue.resume()


async def misuse(world: World, tasks: set[asyncio.Task]) -> None:
    """What goes wrong around the operations: stalls, cancellations, time."""
    rig, rng = world.rig, world.rng
    if rng.random() < 0.15:
        rng.choice(rig.stores).refusals.append(lodeq.StoreStalledError("now and then"))
    await settle(rng.randrange(3))
    if rng.random() < 0.1 and tasks:
        rng.choice(sorted(tasks, key=lambda task: int(task.get_name()))).cancel()
    if rng.random() < 0.3:
        rig.timers.fire(0.5)
    if rng.random() < 0.2:
        rig.clock.jump(rng.choice([0.3, 1, 2.5, 7]))
    if rng.random() < 0.05:
        rig.clock.step_wall(rng.choice([-3, 5]))


async def calm(world: World, tasks: set[asyncio.Task]) -> None:
    for store in world.rig.stores:
        store.refusals.clear()
    for _ in range(40):
        world.rig.timers.fire(0.5)
        await world.rig.clock.advance(1)
    assert all(task.done() for task in tasks)
    for queue in world.queues:
        await queue.resume()
    await sound(world.rig.engine)


async def finish(world: World) -> None:
    """Everything is done, and all that is kept runs out."""
    for _ in range(40):
        for lease in await world.rig.engine.claim([world.every, world.queues[2]], limit=500):
            await lease.complete(keep=False)
        await world.rig.clock.advance(1000)
    for _ in range(3):
        await world.rig.clock.advance(700_000, turns=400)  # a pass with a commit for each row
    stats = await world.rig.engine.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.dead, stats.results) == (0,) * 5
    for store in world.rig.stores:
        for family in (b"t/", b"q/", b"s/", b"l/", b"r/", b"g/", b"e/", b"m/c/"):
            assert store.scan(family, family[:-1] + b"0", 9) == [], family
    assert world.rig.state.held_bytes == 0
    await sound(world.rig.engine)


@pytest.mark.parametrize("seed", range(12))
async def test_random_lives_leave_every_commit_sound_and_nothing_behind(seed):
    rng = random.Random(seed)
    options = {
        "shards": rng.choice([1, 1, 2, 3]),
        "commit_batch_max": rng.choice([1, 2, 3, 64]),
        "submit_queue_max": rng.choice([2, 8, 1024]),
        "durability": rng.choice(["nosync", "fsync"]),
        "limits": Limits(results_max=rng.choice([0, 5, 1000]), pending_max=rng.choice([None, 30])),
    }
    async with faulty(**options) as rig:
        findings = rig.verify_every_commit()
        world = World(rig, rng)
        tasks: set[asyncio.Task] = set()
        n = 0
        for _ in range(120):
            for _ in range(rng.randrange(1, 6)):
                n += 1
                tasks.add(asyncio.create_task(world.one(), name=str(n)))
            await misuse(world, tasks)
            for task in [task for task in tasks if task.done()]:
                tasks.discard(task)
                assert task.cancelled() or task.exception() is None, task
        await calm(world, tasks)
        assert findings == []
        await finish(world)
        assert findings == []
