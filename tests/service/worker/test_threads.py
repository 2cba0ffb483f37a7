"""Plain functions: a thread that nobody can stop keeps its place, and may end what it does."""

import asyncio
import functools
import threading
from contextlib import asynccontextmanager

import pytest
from support_behaviour import StillClock, in_memory, settle, sound, until

from lodeq.worker import App, Snooze, current

pytestmark = pytest.mark.anyio


class Room:
    """Threads that wait in it until they are let go."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.begun = self.most = 0
        self._lock = threading.Lock()
        self._door = threading.Event()

    def stay(self, name: str = "") -> None:
        with self._lock:
            self.inside.append(name)
            self.begun += 1
            self.most = max(self.most, len(self.inside))
        assert self._door.wait(30)
        with self._lock:
            self.inside.remove(name)

    def open(self) -> None:
        self._door.set()


@pytest.fixture
def clock():
    return StillClock()


@pytest.fixture
def room():
    room = Room()
    yield room
    room.open()


@asynccontextmanager
async def working(app, clock, **options):
    async with in_memory(clock) as engine:
        async with app.use(engine), app.work(**options) as worker:
            yield engine, worker
        await sound(engine)


async def test_a_thread_out_of_time_keeps_its_place_until_it_returns(clock, room):
    app = App(threads=2)

    @app.task("one", timeout=5, concurrency=1, max_attempts=1)
    def one() -> None:
        room.stay("one")

    async with working(app, clock) as (engine, worker):
        await one.enqueue_many([one.new() for _ in range(3)])
        await until(lambda: room.inside)
        for _ in range(10):
            await clock.advance(5)
        assert (room.begun, worker.outcomes) == (1, {"failed": 1})
        assert (await engine.stats()).dead == 1
        room.open()
        await until(lambda: room.begun == 3 and not worker.running and not room.inside)
        assert room.most == 1


async def test_threads_out_of_time_count_among_all_threads(clock, room):
    app = App(threads=2)

    @app.task("slow", timeout=5, max_attempts=1)
    def slow() -> None:
        room.stay("slow")

    async with working(app, clock) as (_, worker):
        await slow.enqueue_many([slow.new() for _ in range(6)])
        await until(lambda: len(room.inside) == 2)
        for _ in range(4):
            await clock.advance(5)
        assert (room.begun, worker.outcomes["failed"]) == (2, 2)
        room.open()
        await until(lambda: room.begun == 6)
        assert room.most == 2


async def test_the_timeout_begins_when_there_is_a_thread(clock, room):
    app = App(threads=1)

    @app.task("slow")
    def slow() -> None:
        room.stay("slow")

    @app.task("quick", timeout=5, max_attempts=1)
    def quick() -> str:
        return "quick"

    async with working(app, clock) as (engine, worker):
        await slow.enqueue()
        await until(lambda: room.inside)
        receipt = await quick.enqueue()
        await until(lambda: len(worker.running) == 2)
        await settle()
        await clock.advance(60)
        room.open()
        assert (await engine.result(receipt.id, wait=60)).value == "quick"


async def test_a_run_that_never_got_a_thread_is_released_by_a_stop(clock, room):
    app = App(threads=1, grace=1)

    @app.task("slow")
    def slow(n: int) -> None:
        room.stay("slow")

    async with working(app, clock) as (engine, worker):
        await slow.enqueue(0)
        await until(lambda: room.inside)
        second = await slow.enqueue(1)
        await until(lambda: len(worker.running) == 2)
        await settle()
        worker.stop()
        await settle()
        await clock.advance(1)
        await until(lambda: len(worker.running) == 1)
        assert (await engine.get(second.id)).state == "ready"
        room.open()
        await worker.finished.wait()
        assert (room.begun, worker.outcomes) == (1, {"released": 1, "completed": 1})


@pytest.mark.parametrize(
    ("end", "outcome", "state"),
    [
        ("return", "completed", "completed"),
        ("give up", "released", "ready"),
        ("raise", "released", "ready"),
        ("snooze", "snoozed", "ready"),
    ],
)
async def test_a_thread_that_ends_when_told_counts(clock, end, outcome, state):
    app = App(grace=1)
    inside, go_on, told = threading.Event(), threading.Event(), []

    @app.task("mail")
    def send() -> str | None:
        inside.set()
        assert go_on.wait(30)
        told.append(current().cancelled)
        if end == "give up":
            return None
        if end == "raise":
            raise OSError("interrupted")
        if end == "snooze":
            raise Snooze(0)
        return "cleaned up"

    async with working(app, clock) as (engine, worker):
        receipt = await send.enqueue()
        await asyncio.to_thread(inside.wait, 30)
        worker.stop()
        await settle()
        await clock.advance(1)
        await clock.advance(4.9)
        assert not worker.finished.is_set()
        go_on.set()
        await worker.finished.wait()
        assert told == [True]
        assert worker.outcomes == {outcome: 1}
        assert not worker.has_left_some
        task = await engine.get(receipt.id)
        assert task.state == state
        assert task.attempts == (1 if end == "return" else 0)


async def test_a_thread_that_does_not_end_when_told_is_left_behind(clock, room, caplog):
    app = App(grace=1)

    @app.task("mail")
    def send() -> None:
        room.stay()

    async with working(app, clock) as (engine, worker):
        receipt = await send.enqueue()
        await until(lambda: room.inside)
        worker.stop()
        await settle()
        await clock.advance(1)
        assert not worker.finished.is_set()
        await clock.advance(5)
        await worker.finished.wait()
        assert worker.has_left_some
        task = await engine.get(receipt.id)
        assert (task.state, task.attempts) == ("ready", 0)
        room.open()
    told = [one.getMessage() for one in caplog.records if str(receipt.id) in one.getMessage()]
    assert told == [f"task {receipt.id} ('send') does not end; its lease is released"]


async def test_a_stop_waits_for_a_thread_that_was_out_of_time(clock, room):
    app = App(grace=1)

    @app.task("mail", timeout=5, max_attempts=1)
    def send() -> None:
        room.stay()

    async with working(app, clock) as (_, worker):
        await send.enqueue()
        await until(lambda: room.inside)
        await clock.advance(5)
        await until(lambda: worker.outcomes["failed"])
        worker.stop()
        await settle()
        assert not worker.finished.is_set()
        room.open()
        await worker.finished.wait()
        assert not worker.has_left_some


async def test_out_of_time_while_it_is_told_to_stop(clock, room):
    app = App(grace=1)

    @app.task("mail", timeout=3, max_attempts=1)
    def send() -> None:
        room.stay()

    async with working(app, clock) as (engine, worker):
        receipt = await send.enqueue()
        await until(lambda: room.inside)
        worker.stop()
        await settle()
        await clock.advance(1)
        await clock.advance(2)
        await until(lambda: worker.outcomes["failed"])
        assert (await engine.get(receipt.id)).reason == "timed out after 3 s"
        room.open()
        await worker.finished.wait()


async def test_a_plain_wrapper_around_an_async_function_is_awaited(clock):
    app = App(grace=1)
    inside = asyncio.Event()

    async def real(stays: bool) -> str:
        inside.set()
        if stays:
            await asyncio.Event().wait()
        return "ran"

    @app.task("mail")
    @functools.wraps(real)
    def send(stays: bool) -> object:
        return real(stays)

    async with working(app, clock) as (engine, worker):
        receipt = await send.enqueue(False)
        assert (await engine.result(receipt.id, wait=60)).value == "ran"
        inside.clear()
        receipt = await send.enqueue(True)
        await inside.wait()
        worker.stop()
        await settle()
        await clock.advance(1)
        await worker.finished.wait()
        assert worker.outcomes == {"completed": 1, "released": 1}


@pytest.fixture
def no_threads(monkeypatch):
    """Whether no thread can be started: a list, as for a limit of tasks that comes and goes."""
    refusing = []
    real = threading.Thread.start

    def start(self):
        if refusing:
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    return refusing


async def test_where_no_thread_can_be_started_a_task_waits_uncounted(clock, no_threads, caplog):
    app, seen = App(), []

    @app.task("one", max_attempts=1)
    def one(number: int) -> None:
        seen.append((number, current().attempt))

    async with working(app, clock) as (engine, worker):
        no_threads.append(True)
        await one.enqueue_many([one.new(n) for n in range(3)])
        for n in range(1, 4):
            await until(lambda n=n: worker.outcomes["released"] == 3 * n and not worker.running)
            if n < 3:
                await clock.advance(5)
        stats = await engine.stats()
        assert (stats.dead, stats.delayed) == (0, 3)
        no_threads.clear()
        await clock.advance(5)
        await until(lambda: worker.outcomes["completed"] == 3)
    assert sorted(seen) == [(0, 1), (1, 1), (2, 1)]
    logged = [one for one in caplog.records if getattr(one, "event", "") == "no_thread"]
    assert len(logged) == 1


async def test_a_function_that_finds_no_thread_itself_has_failed(clock):
    app = App()

    @app.task("one", max_attempts=1)
    def one() -> None:
        raise RuntimeError("can't start new thread")

    async with working(app, clock) as (engine, worker):
        await one.enqueue()
        await until(lambda: worker.outcomes["failed"] == 1)
        assert (await engine.stats()).dead == 1


async def test_a_batch_that_gets_no_thread_waits_uncounted(clock, no_threads):
    app, seen = App(), []

    @app.batch("many", size=2, wait=0, max_attempts=1)
    def many(items: list[int]) -> None:
        seen.append(items)

    async with working(app, clock) as (engine, worker):
        no_threads.append(True)
        await many.enqueue_many([many.new(n) for n in range(2)])
        await until(lambda: worker.outcomes["released"] == 2)
        no_threads.clear()
        await clock.advance(5)
        await until(lambda: worker.outcomes["completed"] == 2)
        assert (await engine.stats()).dead == 0
    assert sorted(number for items in seen for number in items) == [0, 1]
