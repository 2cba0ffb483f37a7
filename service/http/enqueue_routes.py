"""Tasks in."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ...client.records import receipt_doc
from ...client.wire import Form, Stored
from ...errors import LodeqError, PayloadTooLargeError, UsageError
from ...repository.model.codec import MSGPACK, decode_headers
from ...repository.model.values import NewTask
from .request_context import DocumentReader, RequestContext

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["enqueue", "enqueue_many", "follow_ups"]

KEY_WINDOW_S: Final = 86_400.0  # how long an Idempotency-Key is remembered
_KEY_HEADER: Final = "idempotency-key"
_KEY: Final = re.compile(r"[A-Za-z0-9._:-]{1,255}")
_PASSED: Final = ("queue", "tenant", "delay", "ttl", "dedup_window", "on_conflict")
_WHOLE: Final = ("priority", "max_attempts")
_PLAIN: Final = {name: NewTask._field_defaults[name] for name in (*_PASSED, *_WHOLE)}
_MOMENT: Final = re.compile(  # RFC 3339
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d(:\d\d(\.\d+)?)?)", re.ASCII
)


async def enqueue(exchange: RequestContext) -> Response:
    """One task for the queue in the path."""
    members = await exchange.members()
    tenant = exchange.query("tenant").get("tenant", "")
    durable = members.durable()
    task = await _task(exchange, members)
    if task.queue is not None or task.tenant is not None:
        raise UsageError("the path and ?tenant= say where it goes: leave out queue and tenant")
    (task,) = _keyed(exchange, [task])
    queue = exchange.hub.queue(exchange.path("queue"), tenant)
    receipt = await queue.enqueue(task.payload, durable=durable, **_options(task))
    return exchange.answer(receipt_doc(exchange.out, receipt), 200 if receipt.duplicate else 201)


def _options(task: NewTask) -> dict[str, Any]:
    options = task._asdict()
    for name in ("payload", "queue", "tenant"):
        del options[name]
    return options


async def enqueue_many(exchange: RequestContext) -> Response:
    """Many tasks, of one queue or of several."""
    members = await exchange.members()
    form = members.form
    given = members.items("tasks", exchange.hub.settings.batch_max)
    tasks = _keyed(exchange, [await _task_of(exchange, form, doc) for doc in given])
    durable, atomic = members.durable(), members.flag("atomic", False)
    if not members.has("queue"):
        members.done()
        receipts = await exchange.hub.engine.enqueue_many(tasks, durable=durable, atomic=atomic)
    else:
        queue = exchange.hub.queue_in(members)
        members.done()
        receipts = await queue.enqueue_many(tasks, durable=durable, atomic=atomic)
    docs = (receipt_doc(exchange.out, receipt) for receipt in receipts)
    return await exchange.answer_list("receipts", docs, {})


async def follow_ups(exchange: RequestContext, form: Form, docs: object) -> list[NewTask]:
    """The ``then`` of a complete."""
    if not isinstance(docs, list):
        raise UsageError("then must be a list of tasks")
    return [await _task_of(exchange, form, doc) for doc in docs]


async def _task_of(exchange: RequestContext, form: Form, doc: Any) -> NewTask:
    await exchange.turns.give()
    if type(doc) is dict and len(doc) == 1 and "payload" in doc:  # nearly every one of a batch
        most = exchange.hub.core.limits.payload_bytes_max
        return NewTask(await exchange.value(form.take(doc, "payload"), most, "payload"))
    return await _task(exchange, DocumentReader(form, doc, "a task"))


async def _task(exchange: RequestContext, members: DocumentReader) -> NewTask:
    limits = exchange.hub.core.limits
    payload = members.value("payload")
    if payload is None:
        raise UsageError("a task needs 'payload' (or 'payload_base64')")
    headers = members.value("headers")
    options: dict[str, Any] = {name: members.take(name, _PLAIN[name]) for name in _PASSED}
    for name in _WHOLE:
        options[name] = members.whole(name, _PLAIN[name])
    run_at = members.take("run_at")
    task = NewTask(
        await exchange.value(payload, limits.payload_bytes_max, "payload"),
        run_at=None if run_at is None else _moment(run_at),
        headers=None if headers is None else _headers(headers, limits.headers_bytes_max),
        dedup_key=members.key("dedup_key"),
        shard_key=members.key("shard_key"),
        **options,
    )
    members.done()
    return task


def _headers(given: Stored, bytes_max: int) -> dict[str, Any]:
    if given.kind != MSGPACK:
        raise UsageError("headers must be a mapping with str keys")
    if len(given.data) > bytes_max:  # before they are decoded
        raise PayloadTooLargeError(
            f"headers is {len(given.data)} bytes, the limit is {bytes_max}",
            size_bytes=len(given.data),
            limit_bytes=bytes_max,
        )
    try:
        return decode_headers(given.data)
    except LodeqError as exc:
        raise UsageError(f"headers must be a mapping with str keys: {exc}") from exc


def _moment(text: object) -> datetime:
    if isinstance(text, datetime):
        return text
    if not isinstance(text, str) or not _MOMENT.fullmatch(text):
        raise UsageError(f"run_at {text!r} is not a time with its zone: 2030-01-31T12:00:00Z")
    try:
        return datetime.fromisoformat(text.upper())
    except ValueError as exc:
        raise UsageError(f"run_at {text!r} is no time: {exc}") from exc


def _keyed(exchange: RequestContext, tasks: list[NewTask]) -> list[NewTask]:
    """With an ``Idempotency-Key``: sent again, the same tasks are not enqueued again."""
    key = exchange.header(_KEY_HEADER)
    if key is None:
        return tasks
    if not _KEY.fullmatch(key):
        raise UsageError("Idempotency-Key must be 1 to 255 letters, digits and ._:-")
    if any(task.dedup_key is not None or task.shard_key is not None for task in tasks):
        raise UsageError("Idempotency-Key is a dedup key: give it, or dedup_key and shard_key")
    if any(task.dedup_window is not None or task.on_conflict != "return" for task in tasks):
        raise UsageError(
            "Idempotency-Key is remembered for a day and answered with the first receipt: "
            "dedup_window and on_conflict go with a dedup_key"
        )
    is_one = len(tasks) == 1
    return [
        task._replace(dedup_key=key if is_one else f"{key}/{n}", dedup_window=KEY_WINDOW_S)
        for n, task in enumerate(tasks)
    ]
