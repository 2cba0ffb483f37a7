"""Traces of task functions: one from the enqueue to each run, and on to what that enqueues."""

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from support_behaviour import StillClock, in_memory, until

import lodeq
from lodeq.service.worker import tracing
from lodeq.service.worker.tracing import trace_app
from lodeq.testing import worker
from lodeq.worker import App, Bury, Retry, Snooze, current

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def exporter(monkeypatch):
    """Spans of a provider that is this test's alone."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", lambda: provider.get_tracer("test"))
    return exporter


@pytest.fixture
def spans(exporter):
    return lambda: {span.name: span for span in exporter.get_finished_spans()}


@pytest.fixture
def app():
    app = App()
    trace_app(app)
    return app


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_one_trace_from_the_enqueue_to_the_run_and_its_follow_up(app, spans, kind):
    inside = []

    @app.middleware
    async def around(context, call_next):
        inside.append(get_current_span().get_span_context().span_id)
        return await call_next()

    @app.task("mail", name="async")
    async def send(to: str) -> None:
        inside.append(get_current_span().get_span_context().span_id)
        current().then(audit.new(to))

    @app.task("mail", name="plain")
    def send_plain(to: str) -> None:
        inside.append(get_current_span().get_span_context().span_id)
        current().then(audit.new(to))

    @app.task("audit")
    async def audit(text: str) -> None: ...

    async with worker(app):
        function = send if kind == "async" else send_plain
        receipt = await function.options(tenant="acme", headers={"mine": "kept"}).enqueue("ann")
        assert (await app.drain()).completed == 2
    sent, run, after = (spans()[n] for n in ("send mail", "process mail", "process audit"))
    assert (sent.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert run.parent.span_id == sent.context.span_id
    assert after.parent.span_id == run.context.span_id
    assert inside[:2] == [run.context.span_id] * 2
    assert len({span.context.trace_id for span in (sent, run, after)}) == 1
    assert run.attributes["messaging.message.id"] == str(receipt.id)
    assert (run.attributes["lodeq.task"], run.attributes["lodeq.tenant"]) == (kind, "acme")
    assert run.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("way", ["raise", "return"])
@pytest.mark.parametrize(
    ("what", "status"),
    [
        (Retry(0, "again"), StatusCode.ERROR),
        (Bury("no"), StatusCode.ERROR),
        (Snooze(60), StatusCode.UNSET),
    ],
)
async def test_how_a_run_ends_is_in_its_span(app, spans, what, status, way):
    @app.task("mail", max_attempts=1)
    async def send() -> object:
        if way == "return":
            return what
        raise what

    async with worker(app):
        await send.enqueue()
        assert (await app.drain()).runs == 1
    assert spans()["process mail"].status.status_code is status


async def test_an_exception_and_a_timeout_are_failures(app, exporter):
    clock = StillClock()

    @app.task("mail", timeout=5, max_attempts=2, retry=lodeq.Backoff("fixed", base=0.01))
    async def send() -> None:
        if current().attempt == 2:
            raise ValueError("broken")
        await anyio.sleep_forever()

    async with in_memory(clock) as engine, app.use(engine), app.work() as running:
        await send.enqueue()
        await until(lambda: running.running)
        for _ in range(3):
            await clock.advance(5)
        await until(lambda: running.outcomes["failed"] == 2)
    first, second = [s for s in exporter.get_finished_spans() if s.name == "process mail"]
    assert (first.status.description, second.status.description) == (
        "timeout",
        "ValueError('broken')",
    )
    assert first.parent.span_id == second.parent.span_id


async def test_many_at_once_are_one_span(app, spans):
    @app.task("mail")
    async def send(n: int) -> None: ...

    async with worker(app):
        await send.enqueue_many([send.new(n) for n in range(3)])
        assert (await app.drain()).completed == 3
    assert spans()["send mail"].attributes["messaging.batch.message_count"] == 3
    assert spans()["process mail"].parent.span_id == spans()["send mail"].context.span_id
