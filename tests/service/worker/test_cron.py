"""Cron: each tick once, whatever the number of workers; what was missed."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from support_behaviour import StillClock, in_memory, settle, until

from lodeq import Limits, NewTask, UsageError
from lodeq.testing import ManualClock, worker
from lodeq.worker import App, current

pytestmark = pytest.mark.anyio


def ticking(expression="*/5 * * * *", **options):
    app, ticks = App(), []

    @app.cron(expression, **options)
    async def tick() -> None:
        ticks.append(current().headers["lodeq.tick"][11:16])

    return app, ticks


async def test_a_tick_is_a_task_at_its_moment():
    app, ticks = ticking()
    clock = ManualClock(datetime(2030, 5, 1, 11, 58, tzinfo=UTC))
    async with worker(app, clock=clock) as bench:
        assert (await app.drain()).runs == 0
        clock.advance(119)
        assert (await app.drain()).runs == 0
        clock.advance(1)
        assert (await app.drain()).runs == 1
        clock.advance(3600)
        assert (await app.drain()).runs == 12
        assert ticks[:3] + ticks[-1:] == ["12:00", "12:05", "12:10", "13:00"]
        assert (await bench.engine.stats()).enqueued_total == 13


async def test_once_over_all_workers():
    clock = StillClock()
    (one, ran_here), (two, ran_there) = ticking(), ticking()
    async with in_memory(clock) as engine, one.use(engine), two.use(engine):
        async with one.work() as first, two.work() as second:
            for _ in range(700):
                await clock.advance(1, turns=12)
            await until(lambda: not first.running and not second.running)
        assert sorted(ran_here + ran_there) == sorted(set(ran_here + ran_there))
        assert len(ran_here + ran_there) in (2, 3)
        assert (await engine.stats()).duplicates_total == len(ran_here + ran_there)


async def test_a_worker_that_was_frozen_enqueues_the_latest_tick_alone():
    clock = StillClock()
    app, ticks = ticking()
    async with in_memory(clock) as engine, app.use(engine), app.work() as running:
        await settle()
        clock.jump(3600)
        await until(lambda: ticks)
        await settle()
        assert len(ticks) == 1
        assert not running.running


@pytest.mark.parametrize(
    ("catch_up", "ran"), [(0, []), (60, []), (180, ["12:00"]), (86_400, ["12:00"])]
)
async def test_what_passed_while_nobody_worked(catch_up, ran):
    app, ticks = ticking("0 * * * *", catch_up=catch_up)
    clock = ManualClock(datetime(2030, 5, 1, 12, 2, tzinfo=UTC))
    async with worker(app, clock=clock):
        await app.drain()
        assert ticks == ran


async def test_what_was_caught_up_on_is_not_done_again():
    app, ticks = ticking("0 * * * *", catch_up=3600)
    clock = ManualClock(datetime(2030, 5, 1, 12, 2, tzinfo=UTC))
    async with in_memory(clock) as engine:
        for _ in range(3):
            async with app.use(engine), app.prepared():
                await app.drain()
            clock.advance(60)
        assert ticks == ["12:00"]


@pytest.mark.slow
async def test_a_time_zone_and_its_summer():
    app, ticks = ticking("30 2 * * *", tz="Europe/Berlin")
    clock = ManualClock(datetime(2030, 3, 29, 12, tzinfo=UTC))  # summer time from the 31st
    async with worker(app, clock=clock):
        for _ in range(4):
            clock.advance(86_400)
        await app.drain()
        assert ticks == ["01:30", "01:00", "00:30", "00:30"]  # as Debian's cron does


@pytest.mark.parametrize(
    ("expression", "options"),
    [
        ("every day", {}),
        ("* * * *", {}),
        ("61 * * * *", {}),
        ("0 0 31 2 *", {}),
        (5, {}),
        ("* * * * *", {"tz": "Mars/Olympus"}),
        ("* * * * *", {"tz": 5}),
        ("* * * * *", {"catch_up": -1}),
        ("* * * * *", {"queue": "No"}),
        ("* * * * *", {"rate": "x"}),
    ],
)
def test_a_wrong_schedule_is_told_where_it_is_written(expression, options):
    with pytest.raises(UsageError):
        ticking(expression, **options)


def test_a_cron_function_does_without_arguments():
    app = App()
    with pytest.raises(UsageError, match="to"):

        @app.cron("* * * * *")
        async def send(to: str) -> None: ...


async def test_a_step_of_the_wall_clock_is_seen_within_a_second():
    clock = StillClock()
    app, ticks = ticking("0 0 * * *")
    async with in_memory(clock) as engine, app.use(engine), app.work():
        await settle()
        clock.step_wall(86_400)
        await clock.advance(1)
        await until(lambda: len(ticks) == 1)
        await asyncio.sleep(0)


async def test_a_worker_that_starts_in_the_hour_that_comes_twice():
    app, ticks = ticking("30 2 * * *", tz="Europe/Berlin", catch_up=6 * 3600)
    clock = ManualClock(datetime(2026, 10, 25, 1, 5, tzinfo=UTC))  # 02:05 for the second time
    async with worker(app, clock=clock) as bench:
        await app.drain()
        assert ticks == ["00:30"]  # tonight's, the first time that clocks showed it
        clock.advance(3600)  # past 02:30, which comes again
        await app.drain()
        assert ticks == ["00:30"]
        assert (await bench.engine.stats()).enqueued_total == 1


@pytest.mark.slow
async def test_a_worker_that_starts_at_any_minute_of_a_change_goes_on_like_one_that_runs():
    start = datetime(2026, 10, 24, 23, 55, tzinfo=UTC)
    for minute in range(0, 120, 9):
        app, ticks = ticking("*/30 2 * * *", tz="Europe/Berlin")
        clock = ManualClock(start + timedelta(minutes=minute))
        async with worker(app, clock=clock):
            clock.advance(7200 - 60 * minute)
            await app.drain()
        through = ["00:00", "00:30", "01:00", "01:30"]
        assert ticks == [one for n, one in enumerate(through) if minute < 5 + 30 * n]


@pytest.mark.parametrize(
    ("step_s", "ran"),
    [(600, 4), (3600, 6), (86_400, 6), (40 * 86_400, 6)],  # ten minutes: two ticks have been
)
async def test_a_clock_that_is_set_back_is_followed(step_s, ran, caplog):
    clock = StillClock()
    app, ticks = ticking("*/5 * * * *")
    async with in_memory(clock) as engine, app.use(engine), app.work() as running:
        await settle()
        for _ in range(10):
            await clock.advance(60)
        await until(lambda: len(ticks) == 2 and not running.running)
        clock.step_wall(-step_s)
        await clock.advance(1)
        for _ in range(20):
            await clock.advance(60)
        await until(lambda: len(ticks) == ran and not running.running)
    (said,) = [one for one in caplog.records if getattr(one, "event", "") == "clock_set_back"]
    assert said.levelname == "WARNING"
    assert f"set back by {step_s} s" in said.getMessage()


async def test_a_clock_that_was_years_ahead_for_a_moment_silences_nothing():
    clock = StillClock()
    app, ticks = ticking("0 * * * *")
    async with in_memory(clock) as engine, app.use(engine), app.work() as running:
        await settle()
        for by in (3653 * 86_400, -3653 * 86_400):
            clock.step_wall(by)
            await clock.advance(1)
        await until(lambda: len(ticks) == 1 and not running.running)  # the latest of then
        for _ in range(120):
            await clock.advance(60)
        await until(lambda: len(ticks) == 3)


async def test_a_small_step_back_runs_no_tick_twice(caplog):
    clock = StillClock()
    app, ticks = ticking("*/5 * * * *")
    async with in_memory(clock) as engine, app.use(engine), app.work() as running:
        for _ in range(301):
            await clock.advance(1, turns=5)
        await until(lambda: len(ticks) == 1 and not running.running)
        for _ in range(600):
            clock.step_wall(-0.9)
            await clock.advance(1, turns=5)
        await until(lambda: not running.running)
        assert len(ticks) == len(set(ticks))
    assert not caplog.records


async def test_a_function_whose_queue_is_full_holds_up_no_other():
    clock = StillClock()
    app, ticks = App(), []

    @app.cron("* * * * *", queue="full")
    async def stuck() -> None:
        ticks.append("stuck")

    @app.cron("* * * * *", queue="free")
    async def tick() -> None:
        ticks.append("tick")

    options = {"limits": Limits(pending_max=1)}
    async with in_memory(clock, **options) as engine, app.use(engine), app.work(queues=["free"]):
        blocker = await engine.queue("full").enqueue(b"x", delay=86_400)
        for _ in range(300):
            await clock.advance(1, turns=12)
        await until(lambda: ticks == ["tick"] * 5)
        await engine.cancel(blocker.id)
        for _ in range(20):
            await clock.advance(1, turns=12)
        assert (await engine.queue("full").stats()).ready == 1  # and four are due


async def test_a_worker_that_was_frozen_for_hours_repeats_no_tick():
    """It enqueues the latest tick, which another worker has enqueued at its moment."""
    clock = StillClock()
    (one, ran_here), (two, ran_there) = ticking("0 0 * * *"), ticking("0 0 * * *")
    async with in_memory(clock) as engine, one.use(engine), two.use(engine):
        async with one.work(), two.work():
            two._cron._timer.cancel()
            for _ in range(145):  # a day; the tick was hours ago
                await clock.advance(600, turns=12)
                if (await engine.stats()).enqueued_total:
                    break
            for _ in range(18):
                await clock.advance(600, turns=12)
            two._cron._look()
            await settle(200)
        assert ran_here + ran_there == ["00:00"]
        assert (await engine.stats()).duplicates_total == 1


async def test_a_tick_that_was_refused_for_hours_is_given_up(caplog):
    """Others may have done it, and its key may be forgotten: it would run twice."""
    clock = StillClock()
    app = App()

    @app.cron("*/5 * * * *", queue="full")
    async def tick() -> None: ...

    @app.task("free")
    async def other() -> None: ...

    options = {"limits": Limits(pending_max=100)}
    async with in_memory(clock, **options) as engine, app.use(engine), app.work(queues=["free"]):
        full = engine.queue("full")
        await full.enqueue_many([NewTask(b"x", delay=86_400)] * 100)
        for _ in range(4 * 360):
            await clock.advance(10, turns=12)
        await full.purge()
        for _ in range(4):
            await clock.advance(10, turns=60)
        assert (await full.stats()).ready == 12  # those of the last hour
    said = [one for one in caplog.records if getattr(one, "event", "") == "tick_given_up"]
    assert len(said) == 36


async def test_a_drain_beside_a_worker_enqueues_a_tick_that_both_see_once():
    clock, (app, ran) = StillClock(), ticking()
    async with in_memory(clock) as engine, app.use(engine), app.work() as worker:
        await settle()
        entry = app._cron.entries[0]
        entry.note(datetime.fromtimestamp(clock.wall_us() / 1e6, UTC))  # wakes the worker
        await app._cron.flush()
        await settle()
        assert not worker.finished.is_set()
        assert (worker.error, list(entry.due), len(ran)) == (None, [], 1)
        assert (await engine.stats()).completed_total == 1
