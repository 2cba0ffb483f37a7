"""A worker at work: limits, timeouts, leases, and how it stops."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
from support_behaviour import StillClock, in_memory, settle, sound, until

import lodeq
from lodeq.worker import App, Snooze, current

pytestmark = pytest.mark.anyio


class Hall:
    """Runs that wait until the test lets them go."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.most = 0
        self.begun = 0
        self._gate = asyncio.Event()

    async def stay(self, name: str = "") -> None:
        self.inside.append(name)
        self.begun += 1
        self.most = max(self.most, len(self.inside))
        try:
            await self._gate.wait()
        finally:
            self.inside.remove(name)

    def open(self) -> None:
        self._gate.set()

    async def let_out(self) -> None:
        """Those who are inside now."""
        self._gate.set()
        await settle()
        self._gate = asyncio.Event()


@pytest.fixture
def clock():
    return StillClock()


@pytest.fixture
def hall():
    return Hall()


@asynccontextmanager
async def working(app, clock, **options):
    async with in_memory(clock) as engine:
        async with app.use(engine), app.work(**options) as worker:
            yield engine, worker
        await sound(engine)


async def test_it_runs_what_is_enqueued_at_once(clock, hall):
    app = App()

    @app.task("mail")
    async def send(to: str) -> str:
        await hall.stay(to)
        current().progress(0.5, "half")
        return to

    async with working(app, clock) as (engine, worker):
        receipt = await send.enqueue("a")
        await until(lambda: hall.inside == ["a"])
        (run,) = worker.running
        assert (run.name, run.task_id, run.attempt, run.progress) == ("send", receipt.id, 1, None)
        hall.open()
        assert (await engine.result(receipt.id, wait=60)).value == "a"
        await until(lambda: worker.outcomes == {"completed": 1})


async def test_no_more_run_at_once_than_may(clock, hall):
    app = App(concurrency=3)

    @app.task("mail")
    async def send() -> None:
        await hall.stay()

    @app.task("one", concurrency=1)
    async def one() -> None:
        await hall.stay("one")

    async with working(app, clock) as (engine, worker):
        await send.enqueue_many([send.new() for _ in range(10)])
        await one.enqueue_many([one.new() for _ in range(2)])
        for _ in range(5):
            await settle()
            await hall.let_out()
        await until(lambda: hall.begun == 12)
        assert hall.most == 3
        hall.open()
        await until(lambda: not worker.running)
        assert (await engine.stats()).completed_total == 12


async def test_a_rate_holds_in_any_window(clock):
    started = []
    app = App()

    @app.task("mail", rate="3/10s")
    async def send() -> None:
        started.append(clock.mono())

    async with working(app, clock):
        await send.enqueue_many([send.new() for _ in range(9)])
        await until(lambda: len(started) == 3)  # a start is the grant of a lease
        for _ in range(60):
            await clock.advance(0.7)
        assert len(started) == 9
        for first, fourth in zip(started, started[3:], strict=False):
            assert fourth - first >= 10
        assert started[8] - started[0] < 25


async def test_a_function_at_its_limit_waits_and_others_of_its_queue_go_past_it(clock, hall):
    app = App(concurrency=4)

    @app.task("mail", concurrency=1)
    async def slow() -> None:
        await hall.stay("slow")

    @app.task("mail")
    async def quick() -> None:
        await hall.stay("quick")

    async with working(app, clock) as (engine, worker):
        await slow.enqueue_many([slow.new() for _ in range(3)])
        await quick.enqueue()
        await until(lambda: sorted(hall.inside) == ["quick", "slow"])
        await settle()
        assert sorted(hall.inside) == ["quick", "slow"]
        hall.open()
        await until(lambda: not worker.running and hall.begun == 4)
        assert (await engine.stats()).completed_total == 4


async def test_what_finds_no_slot_of_the_process_goes_back(clock, hall):
    app = App(concurrency=2)

    @app.task("long")
    async def long() -> None:
        await hall.stay()

    @app.task("quick")
    async def quick() -> None: ...

    async with working(app, clock) as (engine, worker):
        await long.enqueue_many([long.new() for _ in range(2)])  # claimed by two polls at once
        await quick.enqueue_many([quick.new() for _ in range(2)])
        await until(lambda: len(hall.inside) == 2 and len(worker.running) == 4)
        await settle()  # until both wait for their slot: their second begins then
        await clock.advance(0.9)
        assert len(worker.running) == 4
        await clock.advance(0.2)
        await until(lambda: len(worker.running) == 2)
        assert [task.attempts for task in await engine.queue("quick").peek()] == [0, 0]
        (lease, other) = await engine.queue("quick").claim(limit=2)  # of a process beside it
        await lease.complete()
        await other.release()
        hall.open()
        await until(lambda: worker.outcomes.get("completed") == 3)
        assert (await engine.stats()).completed_total == 4


async def test_a_run_that_waits_for_its_function_is_released_at_a_stop(clock, hall):
    app = App(concurrency=4, grace=0)

    @app.task("mail", concurrency=1)
    async def slow() -> None:
        await hall.stay("slow")

    @app.task("mail")
    async def quick() -> None: ...

    async with lodeq.testing.open(clock=clock) as engine, app.use(engine):
        async with app.work() as worker:
            await slow.enqueue_many([slow.new() for _ in range(3)])
            await until(lambda: len(worker.running) == 3)
        stats = await engine.queue("mail").stats()
        assert (stats.ready, stats.leased, stats.dead) == (3, 0, 0)


async def test_a_limit_of_the_queue_holds_over_two_workers(clock, hall):
    one, two = App(name="one"), App(name="two")
    for app in (one, two):

        @app.task("mail", name="send", queue_concurrency=3)
        async def send() -> None:
            await hall.stay()

    async with (
        lodeq.testing.open(clock=clock) as engine,
        one.use(engine),
        two.use(engine),
        one.work() as first,
        two.work() as second,
    ):
        found = await engine.settings("mail")
        assert (found.concurrency, found.by) == (3, {"concurrency": "function send"})
        await engine.queue("mail").enqueue_many([lodeq.NewTask({})] * 9)
        for _ in range(20):
            await settle()
            await hall.let_out()
        await until(lambda: hall.begun == 9 and not first.running and not second.running)
        assert hall.most == 3


async def test_two_functions_that_differ_are_refused_with_both_names(clock):
    one, two = App(), App()

    @one.task("mail", rate="1/s")
    async def send() -> None: ...

    @two.task("mail", rate="2/s")
    async def post() -> None: ...

    async with (
        lodeq.testing.open(clock=clock) as engine,
        one.use(engine),
        two.use(engine),
        one.work(),
    ):
        with pytest.raises(lodeq.UsageError, match="function send has set 1/s, function post"):
            async with two.work():
                raise AssertionError("it works")
        assert (await engine.settings("mail")).rate == "1/s"


async def test_the_newest_start_of_a_function_wins_and_may_take_its_limit_back(clock, caplog):
    def version(**options):
        app = App()

        @app.task("mail", **options)
        async def send() -> None: ...

        return app

    async with lodeq.testing.open(clock=clock) as engine:

        async def start(**options):
            app = version(**options)
            async with app.use(engine), app.work():
                return await engine.settings("mail")

        assert (await start(rate="1/s", queue_concurrency=2)).concurrency == 2
        found = await start(rate="5/s")
        assert (found.rate, found.concurrency) == ("5/s", None)
        await engine.configure("mail", rate="1/m")  # an operator's stays
        assert (await start(rate="5/s")).rate == "1/m"
        assert "stays 1/m, as operator has set it; function 'send' declares 5/s" in caplog.text
        assert (await start()).rate == "1/m"


async def test_a_tenant_at_its_limit_does_not_hold_the_others_up(clock, hall):
    app = App(concurrency=4)

    @app.task("mail", max_inflight_per_tenant=2)
    async def send() -> None:
        await hall.stay(current().tenant)

    async with working(app, clock) as (engine, worker):
        loud = [send.options(tenant="loud").new() for _ in range(20)]
        await send.enqueue_many(loud)
        await until(lambda: hall.inside == ["loud"] * 2)
        await settle()
        assert len(hall.inside) == 2
        await send.options(tenant="soft").enqueue()
        await until(lambda: sorted(hall.inside) == ["loud", "loud", "soft"])
        assert (await engine.stats()).leased == 3  # the surplus was not claimed and given back
        await hall.let_out()
        await until(lambda: hall.inside == ["loud"] * 2)
        hall.open()
        await until(lambda: not worker.running and hall.begun == 21)


async def test_a_run_out_of_time_has_failed(clock, hall):
    app = App()

    @app.task("mail", timeout=5, retry=lodeq.Backoff("fixed", base=60))
    async def send() -> None:
        await hall.stay()

    async with working(app, clock) as (engine, worker):
        receipt = await send.enqueue()
        await until(lambda: hall.inside)
        await clock.advance(4.9)
        assert hall.inside
        await clock.advance(0.1)
        await until(lambda: not worker.running)
        task = await engine.get(receipt.id)
        assert (task.state, task.attempts, task.reason) == ("delayed", 1, "timed out after 5 s")


async def test_a_thread_is_told_when_its_time_is_over(clock):
    app = App()
    inside, go_on, told = threading.Event(), threading.Event(), []

    @app.task("mail", timeout=5)
    def send() -> None:
        ctx = current()
        inside.set()
        go_on.wait(10)
        told.append(ctx.cancelled)

    async with working(app, clock) as (engine, worker):
        receipt = await send.enqueue()
        await asyncio.to_thread(inside.wait, 10)
        await clock.advance(5)
        await until(lambda: not worker.running)
        assert (await engine.get(receipt.id)).reason == "timed out after 5 s"
        go_on.set()
        await asyncio.to_thread(lambda: worker._handlers.busy_threads)
        await until(lambda: told)
    assert told == [True]


@pytest.mark.parametrize("lease", [0.6, 1.5, 3.0, 30.0])
async def test_a_function_that_blocks_the_loop_keeps_its_lease(clock, lease):
    """For three times its lease, and more than once, whatever the reaper was about to do."""
    app = App(lease=lease)
    ran = []

    @app.task("mail")
    async def send(n: int) -> None:
        ran.append(n)
        for part in (0.2, 0.34, 0.9, 0.5, 0.9):
            clock.jump(part * lease)  # the reaper may be awake, and has its turn after this
            clock._mono += 3 * lease  # it computes: time goes by and no timer runs
            clock._wall_us += round(3e6 * lease)
            await settle(3)
            clock.jump(0)
            await settle(3)

    async with working(app, clock) as (engine, worker):
        for n in range(4):
            await send.enqueue(n)
            await settle()
            await clock.advance(0.9)
        await until(lambda: not worker.running)
        assert sorted(ran) == [0, 1, 2, 3]
        stats = await engine.stats()
        assert (stats.completed_total, stats.reaped_total, stats.claimed_total) == (4, 0, 4)


async def test_a_long_run_keeps_its_lease(clock, hall):
    app = App(lease=9)

    @app.task("mail")
    async def send() -> None:
        await hall.stay()

    async with working(app, clock) as (engine, worker):
        await send.enqueue()
        await until(lambda: hall.inside)
        for _ in range(200):
            await clock.advance(0.5)
        hall.open()
        await until(lambda: worker.outcomes["completed"])
        assert (await engine.stats()).reaped_total == 0


async def test_a_cancelled_task_stops_running(clock, hall):
    app = App()

    @app.task("mail")
    async def send() -> None:
        await hall.stay()

    async with working(app, clock) as (engine, worker):
        receipt = await send.enqueue()
        await until(lambda: hall.inside)
        assert await engine.cancel(receipt.id)
        await clock.advance(1)
        await until(lambda: not hall.inside and not worker.running)
        assert worker.outcomes == {"lost": 1}
        assert (await engine.get(receipt.id)).state == "cancelled"


# -- stopping --------------------------------------------------------------------------


async def test_what_runs_may_end_and_nothing_new_begins(clock, hall):
    app = App(grace=20, concurrency=2)

    @app.task("mail")
    async def send(n: int) -> None:
        await hall.stay()

    async with working(app, clock) as (engine, worker):
        await send.enqueue_many([send.new(n) for n in range(5)])
        await until(lambda: len(hall.inside) == 2)
        worker.stop()
        await settle()
        await clock.advance(19)
        assert len(hall.inside) == 2
        hall.open()
        await worker.finished.wait()
        assert (worker.outcomes, hall.begun) == ({"completed": 2}, 2)
        stats = await engine.queue("mail").stats()
        assert (stats.ready, stats.leased) == (3, 0)
        assert [task.attempts for task in await engine.queue("mail").peek()] == [0] * 3


async def test_what_does_not_end_in_time_is_released_uncounted_at_its_old_place(clock, hall):
    app = App(grace=20, concurrency=2)

    @app.task("mail")
    async def send(n: int) -> None:
        await hall.stay()

    async with working(app, clock) as (engine, worker):
        await send.enqueue_many([send.new(n) for n in range(3)])
        await until(lambda: len(hall.inside) == 2)
        worker.stop()
        await settle()
        await clock.advance(20)
        await worker.finished.wait()
        assert worker.outcomes == {"released": 2}
        assert not worker.has_left_some
        tasks = await engine.queue("mail").peek()
        assert [(task.payload["n"], task.attempts) for task in tasks] == [(0, 0), (1, 0), (2, 0)]


async def test_a_second_stop_does_not_wait(clock, hall):
    app = App(grace=20)

    @app.task("mail")
    async def send() -> None:
        await hall.stay()

    async with working(app, clock) as (engine, worker):
        receipt = await send.enqueue()
        await until(lambda: hall.inside)
        worker.stop()
        await settle()
        assert hall.inside
        worker.stop()
        await worker.finished.wait()
        task = await engine.get(receipt.id)
        assert (task.state, task.attempts) == ("ready", 0)


async def test_what_swallows_its_cancellation_is_left_behind(clock):
    app = App(grace=1)
    inside, out = asyncio.Event(), asyncio.Event()

    @app.task("mail")
    async def send() -> None:
        inside.set()
        waiter = asyncio.ensure_future(out.wait())
        while not out.is_set():
            try:
                await asyncio.shield(waiter)
            except asyncio.CancelledError:
                pass

    async with in_memory(clock) as engine, app.use(engine):
        async with app.work() as worker:
            receipt = await send.enqueue()
            await inside.wait()
            worker.stop()
            await settle()
            await clock.advance(1)
            await clock.advance(4.9)
            assert (await engine.get(receipt.id)).state == "leased"
            await clock.advance(0.2)
            await until(worker.finished.is_set)
            assert worker.has_left_some
            task = await engine.get(receipt.id)
            assert (task.state, task.attempts) == ("ready", 0)
            out.set()
        assert (await engine.get(receipt.id)).state == "ready"
        await sound(engine)


async def test_cancelling_the_host_releases_what_runs(clock, hall):
    app = App(grace=20)

    @app.task("mail")
    async def send() -> None:
        await hall.stay()

    async with in_memory(clock) as engine:

        async def host():
            async with app.use(engine), app.work():
                await asyncio.Event().wait()

        task = asyncio.ensure_future(host())
        await settle()
        receipt = await engine.queue("mail").enqueue({}, headers={"lodeq.task": "send"})
        await until(lambda: hall.inside)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not hall.inside
        found = await engine.get(receipt.id)
        assert (found.state, found.attempts) == ("ready", 0)
        await sound(engine)


async def test_an_error_of_the_host_arrives_as_it_was_and_the_worker_has_stopped(clock, hall):
    app = App()

    @app.task("mail")
    async def send() -> None: ...

    with pytest.raises(KeyError, match="mine"):
        async with working(app, clock) as (_, worker):
            raise KeyError("mine")
    assert worker.finished.is_set()


async def test_a_claim_that_waits_at_the_store_gives_its_task_back(clock):
    """Stopped in the very tick in which a task comes: it is claimed by nobody, or given back."""
    app = App()
    ran = []

    @app.task("mail")
    async def send(n: int) -> None:
        ran.append(n)

    for turns in range(12):
        async with in_memory(clock) as engine:
            async with app.use(engine), app.work() as worker:
                await settle()
                task = asyncio.ensure_future(send.enqueue(turns))
                for _ in range(turns):
                    await asyncio.sleep(0)
                worker.stop()
                await worker.finished.wait()
                receipt = await task
                found = await engine.get(receipt.id)
                assert (found.state, found.attempts) in {("ready", 0), ("completed", 1)}
            await sound(engine)


# -- what goes wrong -------------------------------------------------------------------


async def test_a_closed_store_stops_the_worker_and_says_so(clock):
    app = App()

    @app.task("mail")
    async def send() -> None: ...

    async with in_memory(clock) as engine, app.use(engine), app.work() as worker:
        await settle()
        await engine.close()
        await worker.finished.wait()
        assert isinstance(worker.error, lodeq.ClosedError)


async def test_a_snoozed_task_comes_back_when_it_said(clock):
    app = App()
    ran = []

    @app.task("mail")
    async def send() -> None:
        ran.append((clock.mono(), current().attempt))
        if len(ran) < 3:
            raise Snooze(30)

    async with working(app, clock):
        await send.enqueue()
        for _ in range(70):
            await clock.advance(1)
        assert [round(at - ran[0][0]) for at, _ in ran] == [0, 30, 60]
        assert [attempt for _, attempt in ran] == [1, 1, 1]


async def test_only_the_queues_that_are_named(clock):
    app = App()
    ran = []

    @app.task("mail")
    async def send() -> None:
        ran.append("mail")

    @app.task("slow")
    async def slow() -> None:
        ran.append("slow")

    async with working(app, clock, queues=["slow"]):
        await send.enqueue()
        await slow.enqueue()
        await until(lambda: ran)
        await settle()
    assert ran == ["slow"]
    async with in_memory(clock) as engine, app.use(engine):
        with pytest.raises(lodeq.UsageError, match="no task function"):
            async with app.work(queues=["nope"]):
                pass
