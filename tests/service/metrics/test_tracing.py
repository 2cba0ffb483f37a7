"""Traces: from the enqueue to each attempt, through the headers of a task."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import lodeq.testing
from lodeq import NewTask
from lodeq.service.worker import tracing
from lodeq.service.worker.tracing import TracedQueue, context_of, sending, with_context, working

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def queue():
    async with lodeq.testing.open() as engine:
        yield TracedQueue(engine.queue("mail", tenant="acme"))


@pytest.fixture
def spans(monkeypatch):
    """Those that have ended, of a provider that is this test's alone."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", lambda: provider.get_tracer("test"))
    return lambda: {span.name: span for span in exporter.get_finished_spans()}


async def test_one_trace_from_the_enqueue_to_the_work(queue, spans):
    receipt = await queue.enqueue({"n": 1}, headers={"mine": "kept"}, priority=7)
    (lease,) = await queue.claim()
    assert lease.headers["mine"] == "kept"
    assert lease.priority == 7
    async with working(lease), lease:
        pass
    sent, worked = spans()["send mail"], spans()["process mail"]
    assert (sent.kind, worked.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert worked.parent.span_id == sent.context.span_id
    assert worked.context.trace_id == sent.context.trace_id
    for span in (sent, worked):
        assert span.attributes["messaging.system"] == "lodeq"
        assert span.attributes["messaging.destination.name"] == "mail"
        assert span.attributes["messaging.message.id"] == str(receipt.id)
        assert span.attributes["lodeq.tenant"] == "acme"
    assert worked.attributes["lodeq.attempt"] == 1
    assert worked.status.status_code is StatusCode.UNSET


async def test_a_failure_is_in_the_span_and_the_retry_in_the_same_trace(queue, spans):
    await queue.enqueue(b"x")
    (lease,) = await queue.claim()
    with pytest.raises(RuntimeError):
        async with working(lease), lease:
            raise RuntimeError("no net")
    failed = spans()["process mail"]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.events[0].name == "exception"
    (task,) = await queue.list("delayed")
    carried = trace.get_current_span(context_of(task.headers)).get_span_context()
    assert carried.trace_id == failed.context.trace_id


async def test_many_share_a_producer(queue, spans):
    await queue.enqueue_many([NewTask(n, headers={"n": n}) for n in range(3)])
    sent = spans()["send mail"]
    assert sent.attributes["messaging.batch.message_count"] == 3
    for n, lease in enumerate(await queue.claim(limit=3)):
        assert lease.headers["n"] == n
        context = trace.get_current_span(context_of(lease.headers)).get_span_context()
        assert context.span_id == sent.context.span_id


async def test_a_duplicate_says_so(queue, spans):
    for _ in range(2):
        await queue.enqueue(b"x", dedup_key="k")
    assert spans()["send mail"].attributes["lodeq.duplicate"]


async def test_within_a_span_of_ones_own(queue, spans):
    with sending("mail") as span:
        carried = with_context({"a": 1})
    assert carried["a"] == 1
    assert f"{span.get_span_context().span_id:016x}" in carried["traceparent"]


async def test_strange_headers_are_no_context(queue, spans):
    await queue._queue.enqueue(b"x", headers={"traceparent": 7, "tracestate": ["x"], "other": b"y"})
    await queue._queue.enqueue(b"x", headers={"traceparent": "00-zz-zz-00"})
    for lease in await queue.claim(limit=2):
        async with working(lease), lease:
            pass
        assert spans()["process mail"].parent is None


async def test_without_an_sdk_nothing_happens(queue):
    await queue.enqueue(b"x", headers={"a": 1})
    (lease,) = await queue.claim()
    assert dict(lease.headers) == {"a": 1}
    async with working(lease) as span, lease:
        assert not span.is_recording()
    assert (await queue.stats()).leased == 0
