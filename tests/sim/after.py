"""Simulated worlds of tasks that wait for others on other shards, of which one alone loses power.

Sources and waiting tasks are spread over four shards by shard keys. A life ends with a kill, or
with the power cut of one shard alone: what that shard had not synced may be gone, in whatever
subset, while the others have all that was written. In the last life everything is drained: every
task that waits must have run, after the others had ended.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from sim.slices import Slices

import lodeq
from lodeq import NewTask
from lodeq.engine.records.keyspace import TASK
from lodeq.testing.history.rules import broken
from lodeq.testing.simulation.disk import SimDisk
from lodeq.testing.simulation.world import Simulation

SHARDS = 4
USUAL = (lodeq.LeaseLostError, lodeq.UsageError, lodeq.UnknownDependencyError)
ALIVE = ("ready", "delayed", "waiting", "leased")


def cut_one(disk: SimDisk, index: int) -> None:
    """The power of one shard goes; the others are only killed."""
    others = [p for i, p in enumerate(disk.platters) if i != index]
    whole = disk.platters
    disk.platters = others
    disk.kill()
    disk.platters = [whole[index]]
    disk.cut_power()
    disk.platters = whole


class AfterWorld:
    """Runs one seed."""

    def __init__(self, seed: int) -> None:
        self.slices = Slices(seed)  # with draws of their own
        self.draw = draw = random.Random(f"{seed} after")
        self.durability = draw.choice(("nosync", "fsync"))
        self.lives = draw.choice((1, 2, 3))
        self.has_cut = False
        self.sources: list[lodeq.TaskId] = []
        self.waiting: dict[bytes, list[lodeq.TaskId]] = {}  # acknowledged
        self.by_hand: set[bytes] = set()  # redriven: what had counted their end does not wait
        self.runs: dict[bytes, int] = {}
        self.sim = Simulation(
            seed,
            shards=SHARDS,
            durability=self.durability,
            order=draw.choice(("random", "fifo")),
        )
        self.options: dict[str, Any] = {"interval_s": draw.choice((0.05, 0.3))}

    async def enqueue(self, engine: lodeq.Engine) -> None:
        draw = self.draw
        key = f"k{draw.randrange(40)}"
        receipt = await engine.queue("parts", retention=86_400).enqueue(b"p", shard_key=key)
        self.sources = [*self.sources, receipt.id][-12:]

    async def wait_for(self, engine: lodeq.Engine) -> None:
        draw = self.draw
        if not self.sources:
            return
        after = draw.sample(self.sources, min(len(self.sources), draw.randint(1, 5)))
        on_failure = draw.choice(("run", "wait"))
        task = NewTask(
            on_failure.encode(), "tops", shard_key=f"t{draw.randrange(40)}", max_attempts=50
        )
        try:
            waits = await engine.enqueue_after(task, after, on_failure=on_failure)
            self.waiting[waits] = after
        except USUAL:
            pass

    async def redrive(self, engine: lodeq.Engine) -> None:
        """By hand: what waits for a redrive counts the new end."""
        dead = await engine.queue("parts").list("dead", limit=8)
        if not dead:
            return
        one = self.draw.choice(dead).id
        self.by_hand.add(one)
        try:
            await engine.queue("parts").redrive([one])
        except lodeq.TaskNotFoundError:
            pass

    async def work(self, engine: lodeq.Engine, *, is_last: bool) -> int:
        leases = await engine.claim(["parts", "tops"], limit=self.draw.choice((1, 4)), lease=900)
        for lease in leases:
            if lease.queue == "tops":
                await self.judge(engine, lease)
            elif not is_last and self.draw.random() < 0.2:
                await asyncio.sleep(self.draw.random() * 0.1)
            try:
                if is_last or self.draw.random() < 0.8:
                    await lease.complete(b"v")
                else:
                    await lease.bury("no")
            except USUAL:
                pass
        return len(leases)

    async def judge(self, engine: lodeq.Engine, lease: lodeq.Lease) -> None:
        parts = await engine.parts_page(lease.task_id)
        early = [part.task_id for part in parts if part.status is None]
        if self.has_cut and self.durability == "nosync":
            # A claim may be left, and not the count before it: of what has ended all the same.
            early = [one for one in early if await self.is_under_way(engine, one)]
        if not parts or early:
            raise broken(21, f"{lease.task_id} runs before {parts}")
        if not self.has_cut or self.durability == "fsync":
            if lease.payload == b"wait" and {part.status for part in parts} != {"completed"}:
                raise broken(21, f"{lease.task_id} waits for a redrive, and runs after {parts}")
            for part in parts:
                is_alive = await self.is_under_way(engine, part.task_id)
                if is_alive and part.task_id not in self.by_hand:
                    raise broken(21, f"{lease.task_id} runs while {part.task_id} does")
            self.runs[lease.task_id] = self.runs.get(lease.task_id, 0) + (lease.attempt == 1)
            if self.runs[lease.task_id] > 1:
                raise broken(20, f"{lease.task_id} was let go twice")

    async def is_under_way(self, engine: lodeq.Engine, task_id: lodeq.TaskId) -> bool:
        task = await engine.get(task_id)
        return task is not None and task.state in ALIVE

    def is_gone(self, engine: lodeq.Engine, part: lodeq.Part) -> bool:
        """Whether nobody can redrive it: the power cut of its shard took it, or its dead letter."""
        if part.status == "cancelled":
            return True
        is_torn = self.has_cut and self.durability == "nosync" and part.status == "dead"
        shard = engine._state.shard_of(part.task_id)
        return is_torn and not shard.overlay.has(TASK + part.task_id)

    def live(self) -> None:
        draw = self.draw

        async def life(engine: lodeq.Engine) -> None:
            async def often(one: Any, pause_s: float) -> None:
                while True:
                    await one()
                    await asyncio.sleep(draw.random() * pause_s)

            ones = [
                asyncio.ensure_future(often(lambda: self.enqueue(engine), 0.05)),
                asyncio.ensure_future(often(lambda: self.wait_for(engine), 0.08)),
                asyncio.ensure_future(often(lambda: self.work(engine, is_last=False), 0.05)),
                asyncio.ensure_future(often(lambda: self.redrive(engine), 0.1)),
            ]
            await asyncio.sleep(draw.choice((0.2, 0.6, 1.5)))
            for one in ones:
                one.cancel()
            for answer in await asyncio.gather(*ones, return_exceptions=True):
                if isinstance(answer, Exception) and not isinstance(answer, USUAL):
                    raise answer

        is_cut = draw.random() < 0.6
        disk, index = self.sim.disk, draw.randrange(SHARDS)
        dies = int(10 ** draw.uniform(2, 3.3))
        real = disk.kill
        if is_cut:
            self.has_cut = True

            def kill() -> None:
                disk.kill = real  # type: ignore[method-assign]
                cut_one(disk, index)

            disk.kill = kill  # type: ignore[method-assign]
        self.sim.live(life, die_at_step=dies, crash="kill", **self.options)
        disk.kill = real  # type: ignore[method-assign]

    def run(self) -> None:
        """All of it. Raises what is wrong."""
        with self.slices.turned():
            self.live_all()
        if self.sim.complaints:
            raise AssertionError(self.sim.complaints[:5])

    def live_all(self) -> None:
        """All lives, and the last one, in which everything ends."""
        for _ in range(self.lives):
            self.live()

        async def last(engine: lodeq.Engine) -> None:
            idle = 0
            while idle < 6:
                idle = 0 if await self.work(engine, is_last=True) else idle + 1
                self.by_hand.update(t.id for t in await engine.queue("parts").list("dead"))
                idle = 0 if await engine.queue("parts").redrive() else idle
                await asyncio.sleep(2 if idle else self.draw.random() * 0.4)
            for task_id in self.waiting:
                task = await engine.get(lodeq.TaskId(task_id))
                if task is not None and task.state in ALIVE:
                    parts = await engine.parts_page(task_id)
                    gone = [part for part in parts if self.is_gone(engine, part)]
                    if task.payload != b"wait" or not gone:
                        raise broken(22, f"{task} still waits")
                if task is None and (self.durability == "fsync" or not self.has_cut):
                    raise AssertionError(f"{lodeq.TaskId(task_id)} is lost")
            for shard in engine._state.shards:
                left = shard.store.scan(b"u/", b"u0", 10)
                if left:
                    raise AssertionError(f"outbox rows are left: {left}")
            report = await engine.verify()
            if not report.ok:
                raise AssertionError(report.findings)
            if anomalies := (await engine.stats()).anomalies:
                raise AssertionError(anomalies)

        self.sim.live(last, **self.options)
