"""The end of a lease: a store out of reach, a lease that is another's by now."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
import pytest
from support_behaviour import StillClock, in_memory, settle, sound, until

import lodeq
from lodeq.repository.api.queue import Queue
from lodeq.repository.tasks.lease import Lease
from lodeq.service.worker.run import run_end
from lodeq.service.worker.worker import CLAIM_S
from lodeq.worker import App, Cancel

pytestmark = pytest.mark.anyio


class Outage:
    """While it lasts, no lease can be ended."""

    def __init__(self, monkeypatch) -> None:
        self.error: lodeq.LodeqError = lodeq.UnreachableError("no answer")
        self.lasts = True
        self.tries = 0
        for name in ("complete", "nack", "release", "bury", "cancel"):
            monkeypatch.setattr(Lease, name, self._behind(getattr(Lease, name)))

    def _behind(self, call):
        async def calling(lease, *args, **kwargs):
            self.tries += 1
            if self.lasts:
                raise self.error
            await call(lease, *args, **kwargs)

        return calling


@pytest.fixture
def clock():
    return StillClock()


@pytest.fixture
def outage(monkeypatch):
    return Outage(monkeypatch)


@pytest.fixture
def app():
    app = App(grace=20)

    @app.task("mail", max_attempts=1)
    async def send() -> str:
        return "sent"

    return app


@asynccontextmanager
async def working(app, clock, **options):
    async with in_memory(clock) as engine:
        async with app.use(engine), app.work(**options) as worker:
            yield engine, worker
        await sound(engine)


async def enqueue(engine):
    return await engine.queue("mail").enqueue({}, headers={"lodeq.task": "send"})


async def test_what_is_done_is_told_however_long_the_store_was_away(app, clock, outage):
    async with working(app, clock) as (engine, worker):
        await engine.queue("mail", max_attempts=1).enqueue({}, headers={"lodeq.task": "send"})
        for _ in range(600):
            await clock.advance(0.5, turns=8)
        assert outage.tries < 200  # at most one in two seconds
        outage.lasts = False
        await clock.advance(2)
        await until(lambda: worker.outcomes == {"completed": 1})
        assert (await engine.stats()).completed_total == 1


@pytest.mark.parametrize("error", [lodeq.BusyError("full"), ConnectionError("no key service")])
async def test_an_end_that_cannot_be_stored_for_long_is_logged_once(
    app, clock, outage, caplog, error
):
    """A store that is away, or a codec: both look alike, and the message tells which."""
    outage.error = error
    async with working(app, clock) as (engine, worker):
        await enqueue(engine)
        for _ in range(60):
            await clock.advance(0.5)
        outage.lasts = False
        await clock.advance(2)
        await until(lambda: worker.outcomes == {"completed": 1})
    (record,) = [one for one in caplog.records if getattr(one, "event", "") == "outcome_delayed"]
    assert repr(error) in record.getMessage()
    assert record.function == "send"


async def test_what_is_done_is_told_once_its_shard_has_a_leader_again(app, clock, outage):
    outage.error = lodeq.NotLeaderError("an election")
    async with working(app, clock, concurrency=1) as (engine, worker):
        receipt = await enqueue(engine)
        for _ in range(40):
            await clock.advance(0.5)
        outage.lasts = False
        await clock.advance(2)
        await until(lambda: worker.outcomes)
        assert worker.outcomes == {"completed": 1}
        assert (await engine.get(receipt.id)).state == "completed"


async def test_a_leader_that_is_another_process_is_not_waited_for_beyond_the_lease(
    app, clock, outage
):
    outage.error = lodeq.NotLeaderError("another one leads it", leader="https://b.example")
    async with working(app, clock, concurrency=1) as (engine, worker):
        await enqueue(engine)
        await until(lambda: outage.tries)
        (lease,) = worker._runs
        await clock.advance(lease.lease_s - 1)
        assert not worker.outcomes
        for _ in range(4):
            await clock.advance(1)
        await until(lambda: worker.outcomes)
        assert worker.outcomes == {"lost": 1}
        assert not worker.running


async def test_a_stop_does_not_wait_for_ever_for_the_store(app, clock, outage):
    async with working(app, clock) as (engine, worker):
        await enqueue(engine)
        for _ in range(20):
            await clock.advance(1)
        worker.stop()
        await settle()
        await clock.advance(19.9)
        assert not worker.finished.is_set()
        await clock.advance(0.2)
        await clock.advance(5)
        await until(lambda: worker.finished.is_set() and worker.outcomes)
        assert worker.outcomes == {"lost": 1}
        assert (await engine.stats()).leased == 1  # it runs out at the store


async def test_a_store_that_comes_back_during_the_stop_is_told(app, clock, outage):
    async with working(app, clock) as (engine, worker):
        receipt = await enqueue(engine)
        for _ in range(20):
            await clock.advance(1)
        worker.stop()
        await clock.advance(10)
        outage.lasts = False
        await clock.advance(2)
        await worker.finished.wait()
        assert worker.outcomes == {"completed": 1}
        assert (await engine.get(receipt.id)).state == "completed"


async def test_a_cancelled_host_waits_a_few_tries(app, clock, outage):
    async def host(engine):
        async with app.use(engine), app.work():
            await anyio.sleep_forever()

    async with in_memory(clock) as engine:
        task = asyncio.ensure_future(host(engine))
        await enqueue(engine)
        await until(lambda: outage.tries)
        await clock.advance(0.1)
        task.cancel()
        for _ in range(10):
            await clock.advance(1)
        assert task.done()
        assert outage.tries == 6


async def test_the_store_says_when_the_lease_is_lost(app, clock, outage):
    async with working(app, clock) as (engine, worker):
        receipt = await enqueue(engine)
        await until(lambda: outage.tries)
        await engine.cancel(receipt.id)
        outage.lasts = False
        await clock.advance(2)
        await until(lambda: worker.outcomes == {"lost": 1})


async def test_a_cancel_after_the_lease_was_lost_leaves_the_next_run_alone(clock):
    app, go_on = App(lease=10), asyncio.Event()

    @app.task("mail")
    async def send() -> None:
        await go_on.wait()
        raise Cancel

    async with working(app, clock) as (engine, worker):
        receipt = await enqueue(engine)
        await until(lambda: worker.running)
        worker.stop()
        await settle()
        (lease,) = worker._runs
        await lease.release()  # as if it had been frozen, and its lease taken back
        (other,) = await engine.queue("mail").claim()
        go_on.set()
        await worker.finished.wait()
        assert worker.outcomes == {"lost": 1}
        assert other.is_live
        assert (await engine.get(receipt.id)).state == "leased"
        await other.complete()


async def test_a_store_that_does_not_answer_holds_up_a_stop_once_however_many_queues(
    clock, monkeypatch
):
    app, asked = App(grace=0), []
    for name in "abcd":
        app.task(name, name=name)(lambda: None)

    async def claim(queue, **options):
        asked.append(queue.name)
        await anyio.sleep_forever()

    monkeypatch.setattr(Queue, "claim", claim)
    async with in_memory(clock) as engine, app.use(engine):
        app.backend().is_served = True  # its claims are not cancelled
        async with app.work() as worker:
            await until(lambda: len(asked) == 4)
            worker.stop()
            await settle()
            await clock.advance(CLAIM_S)
            await until(worker.finished.is_set)


@pytest.mark.parametrize("then", ["its time is over", "its host is cancelled"])
async def test_one_lease_that_is_not_taken_back_keeps_no_other_that_came_too_late(
    app, clock, monkeypatch, then
):
    """As where one node of a cluster is silent: the tasks of the others go back at once."""
    claims, hangs, release, claim = [], [], Lease.release, Queue.claim
    may_answer = asyncio.Event()

    async def claim_late(queue, **options):
        claims.append(queue)
        await may_answer.wait()
        return await claim(queue, **options)

    async def release_but_one(lease, **options):
        hangs.append(lease)
        if len(hangs) == 1:
            await anyio.sleep_forever()
        await release(lease, **options)

    async def host():
        async with app.work(concurrency=20) as host.worker:
            await host.worker.finished.wait()

    monkeypatch.setattr(Queue, "claim", claim_late)
    monkeypatch.setattr(Lease, "release", release_but_one)
    monkeypatch.setattr(run_end, "GIVE_BACK_S", 0.01)
    async with in_memory(clock) as engine, app.use(engine):
        app.backend().is_served = True  # its claims are not cancelled
        for _ in range(20):
            await enqueue(engine)
        task = asyncio.create_task(host())
        await until(lambda: claims)
        host.worker.stop()
        await settle()
        may_answer.set()
        await until(lambda: hangs)
        if then == "its host is cancelled":
            task.cancel()
        await clock.advance(CLAIM_S)
        await asyncio.wait([task])
        stats = await engine.queue("mail").stats()
        assert (stats.ready, stats.leased) == (19, 1)


async def test_one_run_that_is_left_behind_keeps_no_other_from_going_back(
    clock, monkeypatch, caplog
):
    app, begun, over, hangs = App(grace=0), [], asyncio.Event(), []
    release = Lease.release

    @app.task("mail")
    async def stubborn(n: int) -> None:
        begun.append(n)
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    async def release_but_one(lease, **options):
        hangs.append(lease)
        if len(hangs) == 1:
            await anyio.sleep_forever()
        await release(lease, **options)

    monkeypatch.setattr(Lease, "release", release_but_one)
    monkeypatch.setattr(run_end, "GIVE_BACK_S", 0.01)
    async with in_memory(clock) as engine, app.use(engine):
        for n in range(3):
            await stubborn.enqueue(n)
        async with app.work() as worker:
            await until(lambda: len(begun) == 3)
            worker.stop()
            await settle()
            await clock.advance(1000)
            await until(lambda: len(hangs) == 3)
            over.set()
            await worker.finished.wait()
        stats = await engine.queue("mail").stats()
        assert stats.ready == 2
    assert "was not released: no answer within 0.01 s" in caplog.text


async def test_a_process_that_ends_before_the_store_has_answered_names_what_it_had_done(
    app, clock, monkeypatch, caplog
):
    """A server that is frozen: it never answers, and no try ends before the process does."""
    caplog.set_level("INFO", "lodeq.worker")
    is_asked, answered = anyio.Event(), anyio.Event()

    async def silent(*_: object, **__: object) -> None:
        is_asked.set()
        await answered.wait()

    monkeypatch.setattr(Lease, "complete", silent)
    left: list[list[str]] = []

    def events() -> list[str]:
        return [getattr(one, "event", "") for one in caplog.records]

    def leave() -> None:  # ``lodeq worker`` ends the process here
        left.append(events())
        answered.set()

    async with in_memory(clock) as engine:
        receipt = await enqueue(engine)
        async with app.use(engine), anyio.create_task_group() as group:
            group.start_soon(partial(app.run, leave=leave))
            await is_asked.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: "worker_signalled" in events())
            for _ in range(30):
                await clock.advance(1)
            await until(lambda: left)
    assert left[0].count("outcome_not_stored") == 1
    assert "run_cancelled" not in left[0]  # its function was over
    (record,) = [one for one in caplog.records if one.event == "outcome_not_stored"]
    assert str(receipt.id) in record.getMessage()
