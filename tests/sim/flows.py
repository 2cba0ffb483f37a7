"""Simulated worlds of workflows: producers that die between slices, workers, an operator.

Each seed is a few lives of a process on one disk, ended by kills or power cuts, and a last one that
drains. ``JoinLedger`` judges who got which callback when, and ``verify`` the rows.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from sim.slices import Slices

import lodeq
from lodeq import NewTask
from lodeq.repository.workflows import acts, joins
from lodeq.testing.history.joins import JoinLedger
from lodeq.testing.history.rules import broken
from lodeq.testing.simulation.world import Simulation

FLOWS = 5
ALIVE = ("ready", "delayed", "waiting", "leased")
USUAL = (lodeq.LeaseLostError, lodeq.UsageError, lodeq.TaskNotFoundError)


class Plan:
    """One workflow as its producer would fill it, each time the same."""

    def __init__(self, seed: int, n: int) -> None:
        draw = random.Random(f"{seed} flow {n}")
        self.key = f"flow-{n}"
        self.on_failure = draw.choice(("run", "run", "wait", "cancel"))
        self.slices = []
        for _ in range(draw.randint(1, 4)):
            count, shape = draw.randint(1, 5), draw.choice(("flat", "flat", "chain", "after"))
            ttl = draw.choice((None, None, None, 2.0))
            self.slices.append((count, shape, ttl))


class FlowWorld:
    """Runs one seed.

    Args:
        seed: what it draws from.
        lives: of its process before the last one; None: 1 to 4. Every one but few ends in a crash.
    """

    def __init__(self, seed: int, *, lives: int | None = None) -> None:
        self.slices = Slices(seed)  # with draws of their own
        self.draw = draw = random.Random(f"{seed} world")
        self.durability = draw.choice(("nosync", "fsync"))
        self.has_power = draw.random() < 0.5
        drawn = draw.choice((1, 2, 3, 4))
        self.lives = drawn if lives is None else lives
        self.plans = [Plan(seed, n) for n in range(FLOWS)]
        self.ledger = JoinLedger(is_durable=self.durability == "fsync")
        self.flows: dict[bytes, list[bytes]] = {}
        self.by_hand: set[bytes] = set()  # members that were redriven one by one
        self.known: set[bytes] = set()  # also those that a power cut may have taken
        # A power cut may have taken a redrive of the workflow of which a later claim is left: the
        # member runs alone, as one that was redriven by hand.
        self.is_torn = False
        self.sim = Simulation(
            seed,
            shards=draw.choice((1, 1, 2, 4)),
            durability=self.durability,
            order=draw.choice(("random", "fifo")),
        )
        self.options: dict[str, Any] = {
            "commit_batch_max": draw.choice((1, 2, 8, 64)),
            "interval_s": draw.choice((0.05, 0.3)),
        }

    # -- who works ---------------------------------------------------------------------------

    async def fill(self, engine: lodeq.Engine, plan: Plan) -> None:
        """A producer: it opens, fills slice by slice, and seals. It may die in between."""
        callback = NewTask(plan.key.encode(), "joins", max_attempts=50)
        flow = await engine.workflow(callback, key=plan.key, on_failure=plan.on_failure)
        info = await flow.info()
        if info.callback is not None:
            self.ledger.opened(flow.id, info.callback)
        self.known.add(flow.id)
        ids: list[bytes] = self.flows.setdefault(flow.id, [])
        got: list[bytes] = []
        for count, shape, ttl in plan.slices:
            await asyncio.sleep(self.draw.random() * 0.05)
            tasks = [NewTask(b"p", "parts", max_attempts=2, ttl=ttl) for _ in range(count)]
            after = got[-2:] if shape == "after" else ()
            got += await flow.add(tasks, after=after, chain=shape == "chain")
            ids[:] = got if len(got) > len(ids) else ids
        self.ledger.sealing(flow.id, got)
        await flow.seal()

    async def work(self, engine: lodeq.Engine, *, is_last: bool) -> int:
        draw = self.draw
        leases = await engine.claim(["parts", "joins"], limit=draw.choice((1, 2, 8)), lease=900)
        for lease in leases:
            if lease.queue == "joins":
                await self.judge(engine, lease)
            await asyncio.sleep(draw.random() * 0.02)
            how = draw.random()
            try:
                if is_last or lease.queue == "joins" or how < 0.6:
                    await lease.complete(b"v")
                elif how < 0.75:
                    await lease.bury("no")
                elif how < 0.9:
                    await lease.nack(delay=draw.choice((0, 0.2)))
                else:
                    await lease.release()
            except USUAL:
                pass
        return len(leases)

    async def judge(self, engine: lodeq.Engine, lease: lodeq.Lease) -> None:
        if self.is_torn and lease.attempt > 1:
            return  # a power cut may leave a claim, and not the ends before it
        parts, after = [], -1
        try:
            while page := await engine.parts_page(lease.task_id, after=after, limit=7):
                parts += page
                after = page[-1].number
        except lodeq.TaskNotFoundError as error:
            raise broken(20, f"{lease.task_id} runs, and is no callback any more") from error
        alive, redriven = 0, 0
        for part in parts:
            task = await engine.get(part.task_id)
            if task is not None and task.state in ALIVE:
                alive += 1
                is_alone = part.task_id in self.by_hand or self.is_torn
                redriven += part.status == "dead" and is_alone
        if not self.ledger.knows(lease.task_id):  # of a redrive whose answer nobody has heard
            await self.learn(engine)
        current = None
        if (flow := self.ledger.workflow_of(lease.task_id)) is not None:
            try:
                current = (await engine.workflow_info(flow)).callback
            except lodeq.TaskNotFoundError:
                pass
        statuses = [part.status for part in parts]
        self.ledger.delivered(lease.task_id, lease.attempt, statuses, alive - redriven, current)

    async def operate(self, engine: lodeq.Engine) -> None:
        draw = self.draw
        if not self.flows:
            return
        flow = draw.choice(sorted(self.flows))
        members = self.flows[flow]
        dice = draw.random()
        try:
            if dice < 0.08:
                self.ledger.cancelling(flow)
                await engine.cancel_workflow(flow)
            elif dice < 0.4:
                self.ledger.redriving(flow)
                await engine.redrive_workflow(flow)
                info = await engine.workflow_info(flow)
                if info.callback is not None:
                    self.ledger.opened(flow, info.callback)
            elif dice < 0.55 and members:
                one = draw.choice(members)
                await engine.cancel(one)
            elif dice < 0.6:
                await engine.queue("parts").purge()
            elif dice < 0.75:  # by hand: what waits for a redrive waits for the new end
                dead = await engine.queue("parts").list("dead", limit=4)
                if dead:
                    one = draw.choice(dead).id
                    self.by_hand.add(one)
                    await engine.queue("parts").redrive([one])
        except USUAL:
            pass

    # -- a life ------------------------------------------------------------------------------

    def live(self) -> None:
        draw = self.draw

        async def life(engine: lodeq.Engine) -> None:
            await self.learn(engine)

            async def often(one: Any, pause_s: float) -> None:
                while True:
                    await one()
                    await asyncio.sleep(draw.random() * pause_s)

            ones = [
                *(asyncio.ensure_future(self.fill(engine, plan)) for plan in self.plans),
                asyncio.ensure_future(often(lambda: self.work(engine, is_last=False), 0.05)),
                asyncio.ensure_future(often(lambda: self.work(engine, is_last=False), 0.05)),
                asyncio.ensure_future(often(lambda: self.operate(engine), 0.4)),
            ]
            await asyncio.sleep(draw.choice((0.2, 1.0, 3.0)))
            for one in ones:
                one.cancel()
            for answer in await asyncio.gather(*ones, return_exceptions=True):
                is_usual = isinstance(answer, (asyncio.CancelledError, *USUAL))
                if isinstance(answer, BaseException) and not is_usual:
                    raise answer

        crash = "power" if self.has_power and draw.random() < 0.6 else "kill"
        dies = None if draw.random() < 0.2 else int(10 ** draw.uniform(1.5, 3.5))
        self.sim.live(life, die_at_step=dies, crash=crash, **self.options)
        if crash == "power":
            self.ledger.power_cut()
            if self.durability == "nosync":
                self.is_torn = True
                self.flows.clear()  # what was opened may be gone, and its ids drawn anew

    async def learn(self, engine: lodeq.Engine) -> None:
        """After a crash: callbacks that a redrive has made, and nobody has heard of."""
        for flow in sorted(self.known):
            try:
                info = await engine.workflow_info(flow)
            except lodeq.TaskNotFoundError:
                continue
            if info.callback is not None:
                self.ledger.opened(flow, info.callback)

    def drain(self) -> None:
        async def last(engine: lodeq.Engine) -> None:
            await self.learn(engine)
            for plan in self.plans:
                try:
                    await self.fill(engine, plan)
                except lodeq.UsageError:  # it was cancelled
                    continue
            await self.work_all(engine)
            await self.redrive_by_hand(engine)
            await self.settle(engine)
            report = await engine.verify()
            if not report.ok:
                raise AssertionError(report.findings)
            if anomalies := (await engine.stats()).anomalies:
                raise AssertionError(anomalies)

        self.sim.live(last, **self.options)

    async def work_all(self, engine: lodeq.Engine) -> None:
        idle = 0
        while idle < 5:
            idle = 0 if await self.work(engine, is_last=True) else idle + 1
            await asyncio.sleep(2)

    async def redrive_by_hand(self, engine: lodeq.Engine) -> None:
        """A workflow that waits for a redrive, and in which all that failed is dead, goes on."""
        waits = []
        for plan in self.plans:
            flow = await engine.workflow(key=plan.key)
            failed = [part async for part in flow.parts(failed=True)]
            dead = {task.id for task in await engine.queue("parts").list("dead", limit=500)}
            is_all = all(part.task_id in dead for part in failed)
            if plan.on_failure == "wait" and (await flow.info()).state == "waiting" and is_all:
                waits.append(flow)
        self.by_hand.update(t.id for t in await engine.queue("parts").list("dead", limit=500))
        await engine.queue("parts").redrive()
        await self.work_all(engine)
        for flow in waits:
            info = await flow.info()
            if info.state != "over":
                raise self.ledger.stuck(flow.id, info.state, info.members, info.ended)

    async def settle(self, engine: lodeq.Engine) -> None:
        """All is done: every join has fired, or says why not."""
        ended, there = [], []
        for plan in self.plans:
            flow = await engine.workflow(key=plan.key)
            there.append(flow.id)
            info = await flow.info()
            is_stuck = plan.on_failure == "wait" and (  # members wait for a redrive too
                bool(info.failed) or (self.is_torn and await self.waits_for_lost(engine, flow))
            )
            if info.members != info.ended and not is_stuck:
                raise self.ledger.stuck(flow.id, info.state, info.members, info.ended)
            if is_stuck:
                self.ledger.callback_may_end(flow.id)
            elif info.state not in ("over", "waiting", "cancelled"):
                raise self.ledger.stuck(flow.id, info.state, info.members, info.ended)
            if info.failed and plan.on_failure == "cancel":
                self.ledger.callback_may_end(flow.id)
            if info.state == "waiting":
                if plan.on_failure != "wait" or not info.failed:
                    raise AssertionError(f"it waits for nothing: {info}")
                self.ledger.callback_may_end(flow.id)
            if info.callback is not None and info.callback_state == "completed":
                ended.append(info.callback)
            self.ledger.current(flow.id, info.callback)
        self.ledger.over(ended, there)

    async def waits_for_lost(self, engine: lodeq.Engine, flow: lodeq.Workflow) -> bool:
        """Whether a member waits for another that a power cut took: it counts as cancelled."""
        waiting = [part.task_id async for part in flow.parts() if part.status is None]
        return any(
            [
                part.status == "cancelled" and await engine.get(part.task_id) is None
                for one in waiting
                async for part in engine.parts(one)
            ]
        )

    def run(self) -> None:
        """All of it. Raises what is wrong."""
        with ExitStack() as stack:
            stack.enter_context(self.slices.turned())
            if self.draw.random() < 0.5:
                for module in (joins, acts):
                    stack.enter_context(patch.object(module, "SLICE", self.draw.choice((1, 2))))
                stack.enter_context(patch.object(joins, "CASCADE_MAX", self.draw.choice((1, 2))))
            for _ in range(self.lives):
                self.live()
            self.drain()
        if self.sim.complaints:
            raise AssertionError(self.sim.complaints[:5])
