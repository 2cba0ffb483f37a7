"""Traces with OpenTelemetry: enqueue and runs of a task in one trace.

The trace context travels in the task's headers (``traceparent``, ``tracestate``: W3C), so it
crosses processes, restarts and retries. Each attempt is a span of its own beneath the enqueue's.

::

    mail = TracedQueue(engine.queue("mail"))
    await mail.enqueue({"to": "ann"})                # a producer span
    for lease in await mail.claim(limit=10):
        async with working(lease), lease:            # a consumer span
            await send(lease.payload)

``trace_app`` does the same for the task functions of an app.

Only the API of OpenTelemetry is needed; without an SDK every call is a no-op, and headers stay as
they are. Names and attributes are those of its messaging conventions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from ... import __version__
from ...engine.runtime.clock import SystemClock
from ...errors import UsageError
from ...repository.api.queue import Queue
from ...repository.model.values import NewTask, Receipt
from .run.control import Bury, Control, Retry

if TYPE_CHECKING:
    from .app import App
    from .run.context import Context
    from .run.task_run import CallNext

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode
except ImportError as exc:
    raise UsageError('traces need an extra: pip install "lodeq[otel]"') from exc

__all__ = [
    "TracedQueue",
    "Worked",
    "context_of",
    "sending",
    "trace_app",
    "with_context",
    "working",
]

_SYSTEM: Final = "lodeq"
_CLOCK: Final = SystemClock()


class Worked(Protocol):
    """A lease of any kind, as far as spans describe it."""

    @property
    def task_id(self) -> Any:
        """The task's id."""

    @property
    def queue(self) -> str:
        """Queue of the task."""

    @property
    def tenant(self) -> str:
        """Tenant of the task."""

    @property
    def attempt(self) -> int:
        """Number of this attempt."""

    @property
    def headers(self) -> Mapping[str, Any]:
        """Headers given at the enqueue."""


def _tracer() -> trace.Tracer:
    return trace.get_tracer("lodeq", __version__)


def with_context(headers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return these headers with the current trace context added, for an enqueue."""
    carried: dict[str, str] = {}
    propagate.inject(carried)
    return {**(headers or {}), **carried}


def context_of(headers: Mapping[str, Any]) -> Any:
    """Return the trace context in headers. Values that are not str are ignored."""
    carrier = {key: value for key, value in headers.items() if isinstance(value, str)}
    return propagate.extract(carrier)


@contextmanager
def sending(queue: str, *, tenant: str = "", count: int = 1) -> Iterator[Span]:
    """Open a producer span. Tasks enqueued inside, ``with_context``, belong to it."""
    attributes = _attributes(queue, tenant, "send")
    if count != 1:
        attributes["messaging.batch.message_count"] = count
    with _tracer().start_as_current_span(
        f"send {queue}", kind=SpanKind.PRODUCER, attributes=attributes
    ) as span:
        yield span


@asynccontextmanager
async def working(lease: Worked) -> AsyncIterator[Span]:
    """Open a consumer span for the work on a lease; put it outside the lease's own block.

    An exception that leaves the block is recorded and marks the span as failed.
    """
    attributes = {
        **_attributes(lease.queue, lease.tenant, "process"),
        "messaging.message.id": str(lease.task_id),
        "lodeq.attempt": lease.attempt,
        **_face_attributes(lease),
    }
    with _tracer().start_as_current_span(
        f"process {lease.queue}",
        context=context_of(lease.headers),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except Exception as error:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, repr(error)))
            raise


@cache  # one instrument: what it goes to may be set later
def _duration() -> metrics.Histogram:
    meter = metrics.get_meter("lodeq", __version__)
    return meter.create_histogram("messaging.process.duration", "s", "Time of a run, by function")


def _note_duration(context: Context, since: float, error_type: str) -> None:
    attributes: dict[str, str | int] = {
        **_attributes(context.queue, "", "process"),
        "lodeq.function": context.name,
    }
    if error_type:
        attributes["error.type"] = error_type
    _duration().record(_CLOCK.mono() - since, attributes)


def _face_attributes(lease: Worked) -> dict[str, str]:
    """Function, preview and labels of a lease that has them."""
    lease = getattr(lease, "lease", lease)  # of a context
    found = {}
    for name in ("function", "preview"):
        value = getattr(lease, name, "")
        if value:
            found[f"lodeq.{name}"] = value
    for key, value in getattr(lease, "labels", {}).items():
        found[f"lodeq.label.{key}"] = value
    return found


def _attributes(queue: str, tenant: str, operation: str) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": _SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if tenant:
        attributes["lodeq.tenant"] = tenant
    return attributes


class TracedQueue:
    """A queue whose enqueues are producer spans; everything else is the queue's own.

    Args:
        queue: a ``Queue``, or that of a client.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def enqueue(
        self, payload: Any, *, headers: Mapping[str, Any] | None = None, **options: Any
    ) -> Receipt:
        """See ``Queue.enqueue``, also for Durability and Cancellation."""
        queue = self._queue
        with sending(queue.name, tenant=queue.tenant) as span:
            if options.get("function"):
                span.set_attribute("lodeq.function", options["function"])
            receipt = await queue.enqueue(payload, headers=with_context(headers), **options)
            span.set_attribute("messaging.message.id", str(receipt.id))
            if receipt.duplicate:
                span.set_attribute("lodeq.duplicate", True)
            return receipt

    async def enqueue_many(self, tasks: Iterable[NewTask], **options: Any) -> list[Receipt]:
        """See ``Queue.enqueue_many``, also for Durability and Cancellation."""
        queue, given = self._queue, list(tasks)
        with sending(queue.name, tenant=queue.tenant, count=len(given)):
            carried = [task._replace(headers=with_context(task.headers)) for task in given]
            return await queue.enqueue_many(carried, **options)


def trace_app(app: App) -> None:
    """Trace a ``lodeq.worker.App``: a producer span for each enqueue, a consumer span for each run.

    Tasks that a function makes (``new``, and so follow-ups) carry the trace they are made in. The
    consumer span encloses the middleware of the app. It ends with the run; if a plain function is
    out of time, that is before its thread returns.

    Call it once, before the app works.
    """
    app.instrument(_run, TracedQueue, with_context)


async def _run(context: Context, call_next: CallNext) -> Any:
    since = _CLOCK.mono()
    async with working(context) as span:
        span.set_attribute("lodeq.task", context.name)
        try:
            value = await call_next()
        except Control as control:
            value = control  # the same as a returned one, and not an error by itself
        except BaseException as error:
            if not isinstance(error, Exception) and context.why_cancelled != "stopping":
                span.set_status(Status(StatusCode.ERROR, context.why_cancelled or repr(error)))
            _note_duration(context, since, type(error).__qualname__)
            raise
        _note_duration(context, since, "")
        if isinstance(value, Bury | Retry):
            span.set_status(Status(StatusCode.ERROR, value.reason))
        return value
