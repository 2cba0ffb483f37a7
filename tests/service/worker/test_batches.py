"""Batch functions: one call for several tasks, each with an end of its own."""

import threading
from datetime import date

import anyio
import pytest
from support_behaviour import StillClock, in_memory, settle, sound, until

from lodeq import UsageError
from lodeq.testing import worker
from lodeq.worker import FROM_SETUP, App, Bury, Snooze

pytestmark = pytest.mark.anyio
DAYS = [date(2026, 1, day) for day in range(1, 8)]


class Calls:
    """A batch function that notes what it gets."""

    def __init__(self, answer=None):
        self.seen = []
        self.answer = answer
        self.go = anyio.Event()
        self.go.set()

    async def __call__(self, items):
        self.seen.append(items)
        await self.go.wait()
        return self.answer(items) if self.answer else None


def registered(app, calls, kind=list[date], **options):
    async def index(days):
        return await calls(days)

    index.__annotations__ = {"days": kind}
    return app.batch("index", **{"size": 3, "wait": 0.5, **options})(index)


async def test_full_batches_start_at_once_and_the_rest_after_its_wait():
    app, calls, clock = App(), Calls(), StillClock()
    index = registered(app, calls)
    async with in_memory(clock) as engine:
        async with app.use(engine), app.work() as running:
            receipts = [await index.enqueue(day) for day in DAYS]
            (task,) = await engine.queue("index").peek() or [None]
            await until(lambda: len(calls.seen) == 2)
            await until(lambda: running.outcomes["completed"] == 6)
            assert len(calls.seen) == 2
            await clock.advance(0.5)
            await until(lambda: running.outcomes["completed"] == 7)
            assert calls.seen == [DAYS[:3], DAYS[3:6], DAYS[6:]]
            assert (await receipts[6].result()).status == "completed"
        await sound(engine)
    assert task is None or task.payload == {"item": "2026-01-01"}


async def test_without_wait_a_call_takes_what_is_there():
    app, calls = App(), Calls()
    index = registered(app, calls, wait=0)
    async with in_memory(StillClock()) as engine, app.use(engine):
        await index.enqueue_many([index.new(day) for day in DAYS[:2]])
        async with app.work() as running:
            await until(lambda: running.outcomes["completed"] == 2)
    assert sorted(day for items in calls.seen for day in items) == DAYS[:2]


async def test_each_task_has_its_own_end():
    def answer(items):
        return [7, ValueError("no such day"), Bury("never"), Snooze(60), None][: len(items)]

    app = App()
    index = registered(app, Calls(answer), size=5, retry=None, max_attempts=1)
    async with worker(app) as bench:
        receipts = [await index.enqueue(day) for day in DAYS[:5]]
        done = await app.drain(errors="keep")
        assert (done.completed, done.failed, done.dead, done.snoozed) == (2, 0, 2, 1)
        assert (await receipts[0].result()).value == 7
        tasks = [await bench.engine.get(receipt.id) for receipt in receipts]
        assert [task.state for task in tasks] == [
            "completed",
            "dead",
            "dead",
            "delayed",
            "completed",
        ]
        assert tasks[1].reason.startswith("ValueError: no such day")


async def test_what_it_raises_ends_all_of_them():
    def answer(items):
        raise OSError("index is down")

    app, calls = App(), Calls(answer)
    index = registered(app, calls, max_attempts=1)
    async with worker(app) as bench:
        receipts = [await index.enqueue(day) for day in DAYS[:2]]
        assert (await app.drain(errors="keep")).dead == 2
        for receipt in receipts:
            assert "index is down" in (await bench.engine.get(receipt.id)).reason
        await index.enqueue(DAYS[0])
        with pytest.raises(OSError, match="index is down"):
            await app.drain()


@pytest.mark.parametrize(("value", "got"), [([1], "1 of them"), ("ab", "str"), ({}, "dict")])
async def test_a_wrong_answer_ends_all_of_them(value, got):
    app = App()
    index = registered(app, Calls(lambda items: value), max_attempts=1)
    async with worker(app) as bench:
        receipts = [await index.enqueue(day) for day in DAYS[:2]]
        assert (await app.drain(errors="keep")).dead == 2
        reason = (await bench.engine.get(receipts[0].id)).reason
        assert f"one entry for each of its 2 items, not {got}" in reason


async def test_a_plain_function_runs_in_a_thread():
    app, seen = App(), []

    @app.batch("index", size=2)
    def index(days: list[date]) -> list[int]:
        seen.append(threading.current_thread() is threading.main_thread())
        return [day.day for day in days]

    async with worker(app):
        receipts = [await index.enqueue(day) for day in DAYS[:3]]
        assert (await app.drain()).completed == 3
        assert [(await receipt.result()).value for receipt in receipts] == [1, 2, 3]
    assert seen == [False, False]


async def test_one_that_times_out_leaves_the_others():
    app, calls, clock = App(), Calls(), StillClock()
    calls.go = anyio.Event()
    index = registered(app, calls, timeout=10, max_attempts=1)
    async with in_memory(clock) as engine, app.use(engine), app.work() as running:
        first = await index.enqueue(DAYS[0])
        await until(lambda: running.running)
        await settle()
        await clock.advance(0.25)
        second = await index.enqueue(DAYS[1])
        await until(lambda: len(running.running) == 2)
        await clock.advance(0.25)
        await until(lambda: calls.seen)
        assert calls.seen == [DAYS[:2]]
        await clock.advance(9.5)
        await until(lambda: running.outcomes["failed"] == 1)
        calls.go.set()
        await until(lambda: running.outcomes["completed"] == 1)
        assert (await engine.get(first.id)).state == "dead"
        assert (await engine.get(second.id)).state == "completed"


async def test_a_stop_gives_all_of_them_back():
    app, calls, clock = App(), Calls(), StillClock()
    calls.go = anyio.Event()
    index = registered(app, calls)
    async with in_memory(clock) as engine:
        async with app.use(engine), app.work(grace=0) as running:
            for day in DAYS[:3]:
                await index.enqueue(day)
            await until(lambda: calls.seen)
            running.stop()
            await until(lambda: running.outcomes["released"] == 3)
        assert (await engine.queue("index").stats()).ready == 3
        await sound(engine)


async def test_items_are_checked_and_setup_is_given():
    app = App(setup=lambda app: Entered({"factor": 10}))

    @app.batch("index", size=3)
    async def index(days: list[date], factor: int = FROM_SETUP) -> list[int]:
        return [day.day * factor for day in days]

    async with worker(app):
        with pytest.raises(UsageError, match=r"index\(\): argument item: expected date, got str"):
            await index.enqueue("x")
        receipts = [await index.enqueue(day) for day in DAYS[:2]]
        await app.drain()
        assert [(await receipt.result()).value for receipt in receipts] == [10, 20]


class Entered:
    """A context manager of one value."""

    def __init__(self, value):
        self.value = value

    async def __aenter__(self):
        return self.value

    async def __aexit__(self, *error):
        pass


def test_wrong_batch_functions_are_refused_where_they_are_written():
    app = App()
    for wrong in ({"size": 0}, {"size": 1001}, {"size": 1, "wait": -1}):
        with pytest.raises(UsageError):
            app.batch("a", **wrong)

    async def none(): ...
    async def two(items: list[int], more: int): ...
    async def single(item: int): ...
    async def fine(items): ...

    for function in (none, two, single):
        with pytest.raises(UsageError, match="list"):
            app.batch("a", size=2)(function)
    app.batch("a", size=2)(fine)
    with pytest.raises(UsageError, match="a batch function has its queue for itself"):
        app.task("a", name="other")(fine)
    app.task("b")(fine)
    with pytest.raises(UsageError, match="a batch function has its queue for itself"):
        app.batch("b", size=2, name="other")(fine)


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_an_item_that_cannot_be_read_fails_alone_and_nobody_waits_for_it(number):
    app, calls = App(), []

    @app.batch("index", size=10, wait=5, max_attempts=1)
    async def index(items: list[int]) -> None:
        calls.append(items)

    async with worker(app) as bench:
        for i in range(3):
            payload = {"item": "x" if i == number else i}
            headers = {"lodeq.task": "index"}
            await bench.engine.queue("index", max_attempts=1).enqueue(payload, headers=headers)
        with anyio.fail_after(20):
            report = await app.drain(errors="keep")
    assert (report.completed, report.dead) == (2, 1)
    assert calls == [[i for i in range(3) if i != number]]


async def test_a_thread_out_of_time_keeps_its_place_until_it_returns():
    app, clock, door = App(), StillClock(), threading.Event()
    inside, most = [], []

    @app.batch("index", size=1, wait=0, concurrency=1, timeout=10, max_attempts=1)
    def index(items: list[int]) -> None:
        inside.append(items)
        most.append(len(inside))
        assert door.wait(30)
        inside.remove(items)

    try:
        async with in_memory(clock) as engine:
            async with app.use(engine), app.work() as running:
                await index.enqueue_many([index.new(n) for n in range(3)])
                await until(lambda: inside)
                for _ in range(10):
                    await clock.advance(10)
                assert (len(most), running.outcomes) == (1, {"failed": 1})
                door.set()
                await until(lambda: len(most) == 3 and not running.running and not inside)
                assert max(most) == 1
            await sound(engine)
    finally:
        door.set()


async def test_a_thread_that_does_not_end_is_told_of_at_the_stop():
    app, clock, door = App(threads=2), StillClock(), threading.Event()
    begun = []

    @app.batch("index", size=2, wait=0)
    def index(items: list[int]) -> None:
        begun.append(items)
        assert door.wait(30)

    try:
        async with in_memory(clock) as engine:
            async with app.use(engine), app.work(grace=1) as running:
                await index.enqueue_many([index.new(n) for n in range(2)])
                await until(lambda: begun)
                running.stop()
                for _ in range(10):
                    await settle()
                    await clock.advance(1)
                await running.finished.wait()
                assert running.has_left_some
            await sound(engine)
    finally:
        door.set()
