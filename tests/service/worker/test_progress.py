"""Progress that functions report: stored at most once a second, gone when the run ends."""

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import anyio
import pytest
from support_behaviour import StillClock, in_memory, until

import lodeq
from lodeq import UsageError
from lodeq.service.worker.report import BEAT_S
from lodeq.worker import App, Retry, Snooze, current

pytestmark = pytest.mark.anyio


class Writes:
    """Counts the reports that reach the store."""

    def __init__(self, monkeypatch, error=None):
        self.seen = []
        real = lodeq.Lease.progress

        async def progress(lease, fraction=None, note=""):
            self.seen.append((fraction, note))
            if error is not None:
                raise error
            await real(lease, fraction, note)

        monkeypatch.setattr(lodeq.Lease, "progress", progress)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_last_report_of_each_second_is_stored(monkeypatch, kind):
    app, clock, writes, go, done = App(), StillClock(), Writes(monkeypatch), [], anyio.Event()

    @app.task("jobs", name="async")
    async def crunch() -> None:
        go.append(current())
        await done.wait()

    @app.task("jobs", name="thread")
    def crunch_in_thread() -> None:
        go.append(current())
        anyio.from_thread.run(done.wait)

    async with in_memory(clock) as engine, app.use(engine), app.work() as worker:
        receipt = await (crunch if kind == "async" else crunch_in_thread).enqueue()
        await until(lambda: go)
        (context,) = go
        context.progress(0.1, "first")
        await until(lambda: writes.seen)
        for step in range(2, 9):
            context.progress(step / 10)
            await until(lambda: True)
        assert writes.seen == [(0.1, "first")]
        await clock.advance(1)
        await until(lambda: len(writes.seen) == 2)
        assert writes.seen[1] == (0.8, "")
        assert (await engine.get(receipt.id)).progress[:2] == (0.8, "")
        done.set()
        await until(lambda: worker.outcomes)
        context.progress(1, "late")  # its lease is over
        await clock.advance(5)
        assert (await engine.get(receipt.id)).progress is None
        assert worker.error is None


async def test_a_store_that_takes_no_report_stops_no_run(monkeypatch):
    app, clock = App(), StillClock()
    writes = Writes(monkeypatch, OSError("away"))

    @app.task("jobs")
    async def crunch() -> None:
        current().progress(0.5)
        await until(lambda: writes.seen)

    async with in_memory(clock) as engine, app.use(engine), app.work() as worker:
        await crunch.enqueue()
        await until(lambda: worker.outcomes)
        assert worker.outcomes == {"completed": 1}


def fails(note):
    raise ValueError("no such pattern")


@pytest.mark.parametrize(("redact", "note"), [(str.upper, "SECRET"), (fails, "")])
async def test_notes_are_redacted_before_they_leave_the_process(monkeypatch, redact, note):
    app, writes = App(redact=redact), Writes(monkeypatch)

    @app.task("jobs")
    async def crunch() -> None:
        current().progress(None, "secret")
        await until(lambda: writes.seen)

    async with in_memory(StillClock()) as engine, app.use(engine), app.work() as worker:
        await crunch.enqueue()
        await until(lambda: worker.outcomes)
    assert writes.seen == [(None, note)]


async def test_notes_are_redacted_in_the_reports_of_a_worker():
    app, clock = App(redact=str.upper), StillClock()

    @app.task("jobs")
    async def crunch() -> None:
        current().progress(0.5, "secret")
        await anyio.sleep_forever()

    async with in_memory(clock) as engine, app.use(engine), app.work(grace=0) as worker:
        await crunch.enqueue()
        await until(lambda: worker.running and worker.running[0].note)
        await clock.advance(BEAT_S)
        (report,) = await engine.workers()
        assert [one.note for one in report.running] == ["SECRET"]


async def test_what_is_no_progress_is_refused_in_the_function():
    app, refused = App(), []

    @app.task("jobs")
    async def crunch() -> None:
        for fraction, note in ((True, ""), ("x", ""), ([], ""), (0.1, None)):
            with pytest.raises(UsageError):
                current().progress(fraction, note)
            refused.append(fraction)

    async with in_memory(StillClock()) as engine, app.use(engine):
        await crunch.enqueue()
        assert (await app.drain()).completed == 1
    assert len(refused) == 4


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (sum([1 / 49] * 49), 1),
        (1.0000000000000002, 1),
        (-1e-17, 0),
        (50, 1),
        (-3, 0),
        pytest.param(10**5000, 1, id="huge"),
        (float("inf"), 1),
        (float("nan"), None),
        (Fraction(1, 2), 0.5),
        (Decimal("0.5"), 0.5),
    ],
)
async def test_no_number_of_a_function_undoes_its_work(said, shown):
    app, clock, runs = App(), StillClock(), []

    @app.task("jobs", max_attempts=3)
    async def crunch() -> str:
        runs.append(current())
        current().progress(said)
        return "done"

    async with in_memory(clock) as engine, app.use(engine):
        receipt = await crunch.enqueue()
        assert (await app.drain()).completed == 1
        assert (await engine.result(receipt.id)).value == "done"
    assert [one.fraction for one in runs] == [shown]


@pytest.mark.parametrize(
    ("delay", "waits_s"),
    [(-0.001, 0), (timedelta(-1), 0), (Fraction(3, 2), 1.5), (float("inf"), 10 * 366 * 86_400)],
)
@pytest.mark.parametrize("kind", [Snooze, Retry])
def test_a_delay_that_is_over_is_none(kind, delay, waits_s):
    assert kind(delay).delay_s == waits_s


@pytest.mark.parametrize("delay", [float("nan"), "1", True])
@pytest.mark.parametrize("kind", [Snooze, Retry])
def test_a_delay_is_a_number(kind, delay):
    with pytest.raises(UsageError):
        kind(delay)
