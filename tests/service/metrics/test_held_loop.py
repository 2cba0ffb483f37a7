"""Of thousands of queues nobody counts more than a few in one turn of the loop."""

import threading
from types import SimpleNamespace

from anyio.lowlevel import checkpoint
from support_behaviour import in_memory, until
from support_loop import on_loop

import lodeq
from lodeq.repository.state.turns import TURN_S
from lodeq.repository.tasks import task_list
from lodeq.service.dashboard import remote
from lodeq.service.metrics.collector import LodeqCollector
from lodeq.service.processes import front
from lodeq.service.shared.engine_status import STALE_S, StatusCache

QUEUES = 300
QUEUE_S = 0.001  # what a queue costs, on a clock that only they move


class Cost:
    """A clock that each counted queue moves, and the longest time without a turn for others."""

    def __init__(self) -> None:
        self.now, self.since, self.longest, self.turns = 1000.0, 1000.0, 0.0, 0

    def mono(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return 0

    def queue(self) -> None:
        self.now += QUEUE_S
        self.longest = max(self.longest, self.now - self.since)

    async def give(self) -> None:
        if self.now - self.since >= TURN_S:
            await self.give_now()

    async def give_now(self) -> None:
        self.turns += 1
        await checkpoint()
        self.since = self.now


class Costly:
    """An engine's view whose queues cost time."""

    def __init__(self, view, cost: Cost) -> None:
        self._view, self._cost, self.clock = view, cost, cost

    def __getattr__(self, name: str):
        return getattr(self._view, name)

    def turns(self) -> Cost:
        return self._cost

    def tenant_queues(self):
        for one in self._view.tenant_queues():
            self._cost.queue()
            yield one


@on_loop
async def test_a_scrape_on_the_loop_does_not_hold_it_for_every_queue() -> None:
    async with in_memory() as engine:
        await engine.enqueue_many([lodeq.NewTask(b"x", f"q{n:03}") for n in range(QUEUES)])
        cost, collector = Cost(), LodeqCollector(engine)
        cache = collector._status = StatusCache(engine)
        cache._view = Costly(cache._view, cost)

        def ready() -> float:
            families = {one.name: one for one in collector.collect()}
            return sum(
                s.value for s in families["lodeq_tasks"].samples if "ready" in s.labels.values()
            )

        assert ready() == QUEUES  # the first one has nothing to show yet
        await engine.queue("q000").enqueue(b"x")
        cost.now += 60
        cost.since, cost.longest = cost.now, 0.0
        first = cache.latest()
        assert ready() == QUEUES
        assert cost.longest == 0, "the scrape itself counts no queue"
        await until(lambda: cache.latest() is not first)
        assert cost.longest <= TURN_S + 16 * QUEUE_S
        assert cost.turns >= QUEUES // 20
        assert ready() == QUEUES + 1
        await engine.queue("q000").enqueue(b"x")
        cost.now += STALE_S
        assert ready() == QUEUES + 2, "nothing so old is shown"
        collector.close()


@on_loop
async def test_a_served_dashboard_counts_queues_in_turns(monkeypatch) -> None:
    cost, status_of = Cost(), remote._queue_status

    def counted(name, tenants):
        cost.queue()
        return status_of(name, tenants)

    monkeypatch.setattr(remote, "_queue_status", counted)
    monkeypatch.setattr(remote, "checkpoint", cost.give_now)
    async with in_memory() as engine:
        await engine.enqueue_many([lodeq.NewTask(b"x", f"q{n:03}") for n in range(QUEUES)])
        statuses = remote.RemoteStatuses(engine)
        statuses._clock = cost
        status = await statuses.get()
    assert len(status.queues) == QUEUES
    assert cost.longest <= TURN_S + 16 * QUEUE_S
    assert cost.turns >= QUEUES // 20


@on_loop
async def test_the_stats_of_a_queue_read_the_heads_of_its_tenants_in_turns(monkeypatch) -> None:
    cost, head_seq = Cost(), task_list.head_seq

    def looked(state, tenant_queue):
        cost.queue()
        return head_seq(state, tenant_queue)

    monkeypatch.setattr(task_list, "head_seq", looked)
    monkeypatch.setattr(task_list, "Turns", lambda _: cost)
    async with in_memory() as engine:
        everybody = engine.queue("mail", tenant=lodeq.ALL_TENANTS)
        given = [lodeq.NewTask(b"x", tenant=f"t{n:03}") for n in range(QUEUES)]
        await engine.queue("mail").enqueue_many([*given, lodeq.NewTask(b"x", delay=60)])
        await engine.queue("mail", tenant="t299").pause()
        stats = await everybody.stats()
        assert (stats.ready, stats.delayed, stats.is_paused) == (QUEUES, 1, False)
        assert stats.oldest_ready_age is not None
        assert cost.longest <= TURN_S + 32 * QUEUE_S
        assert cost.turns >= QUEUES // 40
        await everybody.pause()
        stats = await everybody.stats()
        assert (stats.is_paused, stats.is_queue_paused) == (True, True)
        await everybody.resume()
        for name in ("", *(f"t{n:03}" for n in range(QUEUES))):
            await engine.queue("mail", tenant=name).pause()
        stats = await everybody.stats()
        assert (stats.is_paused, stats.is_queue_paused) == (True, False)


@on_loop
async def test_pages_of_several_processes_are_joined_away_from_the_loop(monkeypatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(front, "joined", lambda *_: threads.append(threading.get_ident()) or "")
    one = SimpleNamespace(_statuses=list)
    answer = await front.Front._metrics(one, None)
    assert answer.status_code == 200
    assert threads
    assert threads[0] != threading.get_ident()
