"""What workers publish of their functions, and report of themselves."""

import anyio
import pytest
from support_behaviour import until
from support_http import ServedOpening

import lodeq
import lodeq.testing
from lodeq import FunctionParameter
from lodeq.testing import ManualClock
from lodeq.worker import App, current

pytestmark = pytest.mark.anyio


def mail_app(name="w1", **options):
    app = App(name=name)

    @app.task("mail", **options)
    async def send(to: str, *, subject: str = "Hello", **more: object) -> str:
        """Send it.

        With care.
        """
        current().progress(0.5, "half")
        await anyio.sleep_forever()

    @app.cron("*/5 * * * *", tz="Europe/Berlin")
    async def sweep() -> None: ...

    return app, send


@pytest.fixture(params=["embedded", "served"])
async def engine(request, anyio_backend):
    clock = ManualClock()
    opening = lodeq.testing.open(clock=clock)
    if request.param == "served":
        opening = ServedOpening(opening)
    async with opening as engine, anyio.create_task_group() as group:
        group.start_soon(tick, clock)
        engine.test_clock = clock
        yield engine
        group.cancel_scope.cancel()


async def tick(clock):
    """Time goes by, also at a served store whose long polls have to end."""
    while True:
        clock.advance(0.1)
        await anyio.lowlevel.checkpoint()


async def published(engine, count=2):
    while len(found := await engine.functions()) < count:
        await anyio.lowlevel.checkpoint()
    return found


@pytest.mark.slow
async def test_a_worker_publishes_what_it_can_run(engine):
    retry = lodeq.Backoff("fixed", base=5.0)
    app, _ = mail_app(retry=retry, max_attempts=3, timeout=9, ttl=60, priority=7, retention=1)
    async with app.use(engine), app.work(grace=0):
        sweep, send = await published(engine)
    assert (send.queue, send.name, send.max_attempts, send.retry) == ("mail", "send", 3, retry)
    assert (send.timeout, send.ttl, send.priority, send.retention) == (9.0, 60.0, 7, 1.0)
    assert send.doc == "Send it."
    assert send.parameters == (
        FunctionParameter("to", "required", "to: str", '"str"'),
        FunctionParameter("subject", "optional", "subject: str = 'Hello'", '"str"'),
        FunctionParameter("more", "rest", "**more: object"),
    )
    assert (sweep.queue, sweep.cron, sweep.tz) == ("cron", "*/5 * * * *", "Europe/Berlin")
    receipt = await engine.enqueue_function("mail", "send", {"to": "a"})
    assert (await engine.get(receipt.id)).max_attempts == 3


async def test_a_worker_is_seen_with_what_it_runs(engine):
    app, send = mail_app()
    async with app.use(engine):
        app.backend().clock = engine.test_clock  # also of a served store
        receipt = await send.enqueue("a")
        async with app.work(grace=0) as worker:
            await until(lambda: worker.running and worker.running[0].progress)
            found = []
            while not any(one.progress for report in found for one in report.running):
                await anyio.lowlevel.checkpoint()
                found = await engine.workers()
            (seen,) = found
            assert (seen.name, seen.queues, seen.functions) == ("w1", ("mail", "cron"), 2)
            (run,) = seen.running
            assert (run.task_id, run.function, run.queue) == (str(receipt.id), "send", "mail")
            assert (run.progress, run.note, seen.running_count) == (0.5, "half", 1)
            (sweep,) = seen.ticks
            assert (sweep.queue, sweep.function) == ("cron", "sweep")
            assert sweep.next_at is not None
            assert (sweep.upcoming[0], len(sweep.upcoming)) == (sweep.next_at, 5)
            assert list(sweep.upcoming) == sorted(set(sweep.upcoming))
            worker.stop()
            worker.stop()
        assert await engine.workers() == []  # it said that it is over


@pytest.mark.slow
async def test_two_versions_are_told_apart(engine):
    old, _ = mail_app("old")
    new, _ = mail_app("new", max_attempts=9)
    async with old.use(engine), old.work(grace=0):
        await published(engine)
        async with new.use(engine), new.work(grace=0):
            while len(found := await engine.workers()) < 2:
                await anyio.lowlevel.checkpoint()
            by_name = {one.name: one for one in found}
            assert by_name["new"].version != by_name["old"].version
            while (await engine.functions("mail"))[0].max_attempts != 9:
                await anyio.lowlevel.checkpoint()


@pytest.mark.slow
async def test_a_store_that_takes_no_functions_holds_up_no_work(engine, caplog, monkeypatch):
    app = App(name="w")

    @app.task("mail")
    async def send() -> str:
        return "sent"

    async def refused(*_):
        raise lodeq.UsageError("no")

    monkeypatch.setattr(engine, "publish_functions", refused, raising=False)
    monkeypatch.setattr(engine, "beat", refused, raising=False)
    async with app.use(engine), app.work(grace=0):
        receipt = await send.enqueue()
        while (result := await engine.result(receipt.id)) is None:
            await anyio.lowlevel.checkpoint()
    assert result.value == "sent"
    assert "nobody can call them by name" in caplog.text
