"""The log record of a failed run says which it was."""

import logging
import re

import pytest
from support_behaviour import StillClock, in_memory, until

from lodeq.worker import App


@pytest.mark.anyio
async def test_a_failed_run_tells_which_it_was(caplog):
    app = App()

    @app.task("mail")
    async def send() -> None:
        raise ValueError

    async with in_memory(StillClock()) as engine, app.use(engine), app.work() as worker:
        receipt = await send.enqueue()
        await until(lambda: worker.outcomes["failed"])
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "run_failed"]
    assert (record.task_id, record.queue, record.attempt) == (str(receipt.id), "mail", 1)


async def _logged(caplog, app, function, *args):
    """The record of a failed run, and the files of the traceback that is printed with it."""
    async with in_memory(StillClock()) as engine, app.use(engine), app.work() as worker:
        await function.enqueue(*args)
        await until(lambda: worker.outcomes["failed"])
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "run_failed"]
    text = logging.Formatter().format(record)
    return record, re.findall(r'File ".*?([\w.]+)", line', text), text


@pytest.mark.anyio
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_traceback_begins_at_the_users_function(caplog, is_async):
    app = App()
    if is_async:

        @app.task("mail", max_attempts=1)
        async def send() -> None:
            _raise()

    else:

        @app.task("mail", max_attempts=1)
        def send() -> None:
            _raise()

    record, files, text = await _logged(caplog, app, send)
    assert files == ["test_logged.py", "test_logged.py"]
    assert "in send\n" in text
    assert text.endswith("ValueError: no box")
    assert record.exc_info[1].__traceback__ is not record.exc_info[2]  # the error is as it was


@pytest.mark.anyio
async def test_a_traceback_keeps_middleware_and_causes(caplog):
    app = App()

    @app.middleware
    async def around(context, call_next):
        return await call_next()

    @app.task("mail", max_attempts=1)
    async def send() -> None:
        try:
            _raise()
        except ValueError as error:
            raise RuntimeError("not sent") from error

    _, files, text = await _logged(caplog, app, send)
    assert files == ["test_logged.py"] * 4  # send and _raise; the middleware and send
    assert "direct cause" in text


@pytest.mark.anyio
async def test_arguments_that_do_not_fit_have_no_traceback(caplog):
    """No frame is the user's, and the message says all."""
    app = App()

    @app.task("mail", max_attempts=1)
    async def send(to: str) -> None: ...

    async with in_memory(StillClock()) as engine, app.use(engine), app.work() as worker:
        await engine.queue("mail", max_attempts=1).enqueue(b"x")
        await until(lambda: worker.outcomes["failed"])
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "run_failed"]
    assert "argument to: expected str" in record.getMessage()
    assert not record.exc_info


@pytest.mark.anyio
async def test_an_error_of_lodeq_itself_keeps_its_traceback(caplog, monkeypatch):
    app = App()

    @app.task("mail", max_attempts=1)
    async def send() -> None: ...

    async with in_memory(StillClock()) as engine, app.use(engine), app.work() as worker:
        await send.enqueue()
        monkeypatch.setattr(send, "typed", None)
        await until(lambda: worker.outcomes["failed"])
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "run_failed"]
    text = logging.Formatter().format(record)
    assert "task_run.py" in text
    assert "AttributeError: 'NoneType' object" in text


def _raise():
    raise ValueError("no box")
