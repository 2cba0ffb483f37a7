"""Whatever a function does to itself: its own task ends, the worker and its host go on."""

import asyncio
from contextlib import asynccontextmanager

import anyio
import pytest
from support_behaviour import StillClock, in_memory, settle, sound, until

import lodeq
from lodeq.service.worker import worker as module
from lodeq.worker import App, current

pytestmark = pytest.mark.anyio


class Panic(BaseException):
    """As pyo3's PanicException, gevent's Timeout, pytest's Failed: no Exception."""


@pytest.fixture
def clock():
    return StillClock()


@asynccontextmanager
async def working(app, clock, **options):
    async with in_memory(clock) as engine:
        async with app.use(engine), app.work(**options) as worker:
            yield engine, worker
        await sound(engine)


ODD = [
    Panic("odd"),
    SystemExit(3),
    GeneratorExit("odd"),
    BaseExceptionGroup("odd", [Panic("in it")]),
    asyncio.CancelledError("odd"),
]


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_no_exception_of_a_function_reaches_the_worker(clock, kind, error):
    app = App()

    @app.task("odd", max_attempts=1, name="async")
    async def odd() -> None:
        raise error

    @app.task("odd", max_attempts=1, name="thread")
    def odd_too() -> None:
        raise error

    @app.task("good")
    async def good() -> str:
        return "good"

    async with working(app, clock) as (engine, worker):
        function = odd if kind == "async" else odd_too
        receipt = await function.enqueue()
        await until(lambda: worker.outcomes["failed"] and not worker.running)
        assert (await engine.get(receipt.id)).state == "dead"
        after = await good.enqueue()
        assert (await engine.result(after.id, wait=60)).value == "good"
        assert (worker.finished.is_set(), worker.error) == (False, None)


async def test_a_keyboard_interrupt_of_a_thread_is_the_threads(clock):
    app = App()

    @app.task("odd", max_attempts=1)
    def odd() -> None:
        raise KeyboardInterrupt

    async with working(app, clock) as (engine, worker):
        receipt = await odd.enqueue()
        await until(lambda: worker.outcomes["failed"])
        assert "KeyboardInterrupt" in (await engine.get(receipt.id)).reason


async def test_a_codec_that_panics_fails_its_own_task(clock):
    class Codec:
        def encode(self, value: object) -> bytes:
            if value == "odd":
                raise Panic
            return str(value).encode()

        def decode(self, data: bytes) -> object:
            return data.decode()

    app = App(codec=Codec())

    @app.task("odd")
    async def odd(value: bytes) -> object:
        return object() if value == b"unpacked" else "odd"

    async with working(app, clock) as (engine, worker):
        receipt = await engine.queue("odd").enqueue(b"x")
        await until(lambda: worker.outcomes and not worker.running)
        assert (await engine.get(receipt.id)).state == "dead"
        assert not worker.finished.is_set()


async def test_an_error_without_a_text_fails_a_task_that_cannot_be_unpacked(clock):
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    class Codec:
        def encode(self, value: object) -> bytes:
            return b"x"

        def decode(self, data: bytes) -> object:
            raise MuteError

    app = App(codec=Codec())

    @app.task("odd", max_attempts=1)
    async def odd(value: object) -> None: ...

    async with working(app, clock) as (engine, worker):
        receipt = await odd.enqueue(1)
        await until(lambda: not worker.running and worker.outcomes)
        task = await engine.get(receipt.id)
        assert (task.state, task.reason) == ("dead", "MuteError")


async def test_a_result_whose_error_cannot_be_shown_is_buried(clock):
    class MuteError(Exception):
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    class Codec:
        def encode(self, value: object) -> bytes:
            if value == "odd":
                raise MuteError
            return b"x"

        def decode(self, data: bytes) -> object:
            return {}

    app = App(codec=Codec())

    @app.task("odd")
    async def odd() -> str:
        return "odd"

    async with working(app, clock) as (engine, worker):
        receipt = await odd.enqueue()
        await until(lambda: worker.outcomes and not worker.running)
        task = await engine.get(receipt.id)
        assert (task.state, task.reason) == (
            "dead",
            "it ran, but its result could not be stored: MuteError",
        )


@pytest.mark.parametrize("waits", [True, False], ids=["and waits", "and returns"])
async def test_a_function_that_cancels_its_own_task_has_failed_or_returned(clock, waits):
    app = App()

    @app.task("odd", max_attempts=2, retry=lodeq.Backoff("fixed", base=1))
    async def odd() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if waits:
            await asyncio.sleep(1)
        return "returned"

    @app.task("good")
    async def good() -> str:
        return "good"

    async with working(app, clock) as (engine, worker):
        receipt = await odd.enqueue()
        for _ in range(3):
            await clock.advance(1)
        await until(lambda: not worker.running)
        task = await engine.get(receipt.id)
        assert task.state == ("dead" if waits else "completed")
        assert worker.outcomes == ({"failed": 2} if waits else {"completed": 1})
        after = await good.enqueue()
        assert (await engine.result(after.id, wait=60)).value == "good"
        assert (worker.finished.is_set(), worker.error) == (False, None)


async def test_a_run_cancelled_by_a_callback_that_came_late_does_not_stop_the_worker(clock):
    """The cancellation arrives while the lease is ended: then the lease runs out."""
    app = App(lease=1)

    @app.task("odd")
    async def odd() -> None:
        task = asyncio.current_task()
        assert task is not None
        if current().attempt == 1:
            asyncio.get_running_loop().call_soon(task.cancel)

    async with working(app, clock) as (engine, worker):
        receipt = await odd.enqueue()
        for _ in range(10):
            await clock.advance(1)
        assert (await engine.get(receipt.id)).state == "completed"
        assert not worker.finished.is_set()


async def test_a_worker_that_ends_unasked_says_so(clock, monkeypatch, caplog):
    app = App()

    @app.task("mail")
    async def send() -> None: ...

    class Claimer(module.Claimer):
        async def run(self) -> None:
            raise asyncio.CancelledError

    monkeypatch.setattr(module, "Claimer", Claimer)
    async with in_memory(clock) as engine, app.use(engine), app.work() as worker:
        await until(worker.finished.is_set)
    assert isinstance(worker.error, lodeq.InvariantError)
    (record,) = [r for r in caplog.records if r.levelname == "CRITICAL"]
    assert record.event == "worker_stops"


async def test_a_cancelled_host_is_no_error_of_the_worker(clock, caplog):
    app, workers = App(), []

    @app.task("mail")
    async def send() -> None:
        await anyio.sleep_forever()

    async with in_memory(clock) as engine, app.use(engine):
        with anyio.CancelScope() as scope:
            async with app.work() as worker:
                workers.append(worker)
                await send.enqueue()
                await until(lambda: worker.running)
                await settle()
                scope.cancel()
                await anyio.sleep_forever()
        assert (worker.error, worker.outcomes) == (None, {"released": 1})
        assert (await engine.stats()).ready == 1
    assert not [r for r in caplog.records if r.levelname == "CRITICAL"]
