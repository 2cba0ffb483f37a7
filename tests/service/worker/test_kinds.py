"""What may be a task function, and what is refused where it is written."""

import functools

import anyio
import pytest

import lodeq
from lodeq import NewTask, UsageError
from lodeq.testing import worker
from lodeq.worker import App, current

pytestmark = pytest.mark.anyio


class Sender:
    """Called, it is async, and does not look it."""

    async def __call__(self, to: str) -> str:
        return f"sent to {to}"


class Plain:
    def __call__(self, to: str) -> str:
        return f"sent to {to}"


async def send(to: str) -> str:
    return f"sent to {to}"


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "function",
    [
        Sender(),
        Plain(),
        Sender().__call__,
        functools.partial(send),
        wrapped(send),
        wrapped(Sender().__call__),
    ],
    ids=["async object", "object", "method", "partial", "wrapper", "wrapped method"],
)
async def test_what_is_async_inside_is_run(function):
    app = App()
    mail = app.task("mail", name="send")(function)
    async with worker(app) as bench:
        receipt = await mail.enqueue("ann")
        assert (await app.drain()).completed == 1
        assert (await bench.engine.result(receipt.id)).value == "sent to ann"


def generator():
    yield 1


async def async_generator():
    yield 1


class Generating:
    def __call__(self):
        yield 1


@pytest.mark.parametrize(
    "function", [generator, async_generator, Generating(), functools.partial(generator)]
)
def test_a_generator_is_refused(function):
    app = App()
    with pytest.raises(UsageError, match="generator"):
        app.task("mail", name="send")(function)
    assert "mail" not in repr(app)


def test_a_task_function_is_no_function_for_another():
    app = App()
    with pytest.raises(UsageError, match="already"):

        @app.task("one")
        @app.task("two")
        async def both() -> None: ...


async def test_attributes_of_the_function_are_not_those_of_the_task_function():
    async def mail(to: str) -> str:
        return to

    mail.queue, mail.name, mail.policy, mail._app = "other", "other", None, None
    app = App()
    made = app.task("mail")(mail)
    assert (made.queue, made.name, made.__name__, made.__wrapped__) == (
        "mail",
        "mail",
        "mail",
        mail,
    )
    async with worker(app) as bench:
        await made.enqueue("ann")
        assert (await bench.engine.queue("mail").stats()).ready == 1
        assert (await app.drain()).completed == 1


def test_a_function_of_cron_that_is_refused_is_not_registered():
    app = App()
    with pytest.raises(UsageError, match="to"):

        @app.cron("* * * * *")
        async def tick(to: str) -> None: ...

    assert "cron" not in repr(app)

    @app.cron("* * * * *", name="tick")
    async def better() -> None: ...


def test_a_queue_whose_only_function_was_refused_is_not_served():
    app = App()
    with pytest.raises(UsageError, match="name"):
        app.task("mail", name="")(send)
    assert "mail" not in repr(app)


async def test_more_follow_ups_than_there_may_be_are_told_at_once():
    app, told = App(), []

    @app.task("mail", max_attempts=1)
    async def mail() -> None:
        ctx = current()
        ctx.then(*[NewTask(b"", queue="next")] * 200)
        with pytest.raises(lodeq.LimitError, match="256") as caught:
            ctx.then(*[NewTask(b"", queue="next")] * 57)
        told.append(caught.value)
        ctx.then(*[NewTask(b"", queue="next")] * 56)

    async with worker(app) as bench:
        await mail.enqueue()
        assert (await app.drain()).completed == 1
        assert (await bench.engine.queue("next").stats()).ready == 256
    assert told


async def test_drain_beside_a_clock_that_is_moved_runs_a_function_out_of_its_time():
    app, inside = App(), anyio.Event()

    @app.task("mail", timeout=60, max_attempts=1)
    async def mail() -> None:
        inside.set()
        await anyio.sleep_forever()

    async with worker(app) as bench:
        receipt = await mail.enqueue()
        async with anyio.create_task_group() as group:
            group.start_soon(functools.partial(app.drain, errors="keep"))
            await inside.wait()
            bench.clock.advance(60)
        assert (await bench.engine.get(receipt.id)).reason == "timed out after 60 s"
