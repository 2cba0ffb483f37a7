"""A worker in simulated processes: any order of callbacks, stalls, kills, stops in the middle."""

import asyncio
from collections import Counter

import pytest

import lodeq
from lodeq.testing.simulation.world import Simulation
from lodeq.worker import App, Cancel, Retry, Snooze, current

TASKS = 25
LEASE_S = 3.0


class World:
    """One store over several lives of one worker, and what ran in them."""

    def __init__(self, seed: int) -> None:
        self.sim = Simulation(seed, shards=1 + seed % 2)
        self.runs: dict[int, list[int]] = {}  # attempts by task
        self.failures: Counter[int] = Counter()  # runs that count, beside those a kill cut short
        self.inside: set[int] = set()
        self.twice: list[int] = []  # tasks that ran twice at once, in one process
        self.ended: dict[int, str] = {}
        self.ids: dict[int, object] = {}

    def app(self) -> App:
        app, sim = App(name="sim", concurrency=4, lease=LEASE_S, grace=1), self.sim

        @app.task("mail", max_attempts=100, retry=lodeq.Backoff("fixed", base=0.5))
        async def run(n: int) -> int:
            self.runs.setdefault(n, []).append(current().attempt)
            if n in self.inside:
                self.twice.append(n)
            self.inside.add(n)
            try:
                return await act(n)
            finally:
                self.inside.discard(n)

        async def act(n: int) -> int:
            for _ in range(int(sim.random.random() * 3)):
                await asyncio.sleep(sim.random.random() * 2)
                if sim.random.random() < 0.2:  # it computes, and the loop stands still
                    sim.loop.pause(sim.random.random() * 3 * LEASE_S)
            chance = sim.random.random()
            if chance < 0.1:
                raise Snooze(sim.random.random())
            if chance < 0.3:
                self.failures[n] += not current().cancelled
                raise Retry if chance < 0.2 else ValueError(n)
            self.ended[n] = "cancelled" if chance < 0.35 else "completed"
            if chance < 0.35:
                raise Cancel
            return n

        self.function = run
        return app

    async def enqueue(self, engine: lodeq.Engine) -> None:
        async with self.app().use(engine):
            receipts = await self.function.enqueue_many(
                [self.function.new(n) for n in range(TASKS)], durable=True
            )
        self.ids = {n: receipt.id for n, receipt in enumerate(receipts)}

    async def work(self, engine: lodeq.Engine, seconds: float) -> None:
        app = self.app()
        async with app.use(engine), app.work():
            await asyncio.sleep(seconds)

    async def work_to_the_end(self, engine: lodeq.Engine) -> None:
        app = self.app()
        async with app.use(engine), app.work() as worker:
            for task_id in self.ids.values():
                assert await engine.result(task_id, wait=600) is not None
            worker.stop()
            await worker.finished.wait()
        for n, task_id in self.ids.items():
            assert (await engine.get(task_id)).state == self.ended[n]
        stats = await engine.stats()
        assert (stats.leased, stats.reaped_total, stats.anomalies) == (0, 0, ())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_every_task_ends_whatever_stalls_stops_and_kills(seed: int) -> None:
    world = World(seed)
    assert world.sim.live(world.enqueue)
    for life in range(4):
        kill = 200 + int(world.sim.random.random() * 3000) if life % 2 else None
        world.sim.live(lambda engine: world.work(engine, 4.0), die_at_step=kill)
    assert world.sim.live(world.work_to_the_end)
    assert sorted(world.runs) == list(range(TASKS))
    assert world.twice == []
    for n, attempts in world.runs.items():
        assert attempts == sorted(attempts)
        # Each of the two kills burns one at most: claimed, or running.
        assert world.failures[n] <= attempts[-1] - 1 <= world.failures[n] + 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 106))
def test_without_kills_no_task_runs_twice_at_once_or_after_its_end(seed: int) -> None:
    """However long functions block the loop: nothing is reaped."""
    world = World(seed)
    assert world.sim.live(world.enqueue)
    for _ in range(3):
        assert world.sim.live(lambda engine: world.work(engine, 5.0))
    assert world.sim.live(world.work_to_the_end)
    assert world.sim.complaints == []
    assert world.twice == []
    for n, attempts in world.runs.items():
        assert attempts[-1] - 1 == world.failures[n]
