"""Enqueue: one task, many, and the follow-ups of a complete."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from msgspec import UNSET
from msgspec.structs import asdict
from starlette.responses import Response

from ....client.documents.records import receipt_doc
from ....client.documents.wire import Form, Stored
from ....errors import LodeqError, PayloadTooLargeError, UsageError
from ....repository.model.codec import MSGPACK, decode_headers
from ....repository.model.values import Backoff, Limits, NewTask, StreamOptions
from .. import schemas
from ..access.roles import Role
from ..document_reader import at_most, key_of, moment_of, stored_of
from ..named_queues import queue_in_path, task_for_path, tasks_of_document
from ..operations import operation
from ..request_context import RequestContext

__all__ = ["enqueue", "enqueue_many", "enqueue_stream", "new_tasks", "task_options"]

KEY_WINDOW_S: Final = 86_400.0  # how long an Idempotency-Key is remembered
_KEY_HEADER: Final = "idempotency-key"
_KEYS: Final = {"Idempotency-Key": schemas.IdempotencyKey}
_KEY: Final = re.compile(r"[A-Za-z0-9._:-]{1,255}")
_CONVERTED: Final = ("payload", "headers", "run_at", "dedup_key", "shard_key", "retry")
_OWN_POLICY: Final = (
    "retry",
    "retention",
    "dead_retention",
)  # that ``Queue.enqueue`` does not take
_PASSED: Final[Mapping[type[schemas.Request], Sequence[str]]] = {  # to the engine, as they are
    kind: [one for one in NewTask._fields if one in kind.__struct_fields__ if one not in _CONVERTED]
    for kind in (schemas.NewTask, schemas.Enqueue, schemas.EnqueueStream, schemas.TaskOptions)
}


@operation(
    "POST /queues/{queue}/tasks",
    by_status={201: schemas.Receipt, 200: schemas.Receipt},
    headers=_KEYS,
    needs=Role.PRODUCER,
    names=task_for_path,
)
async def enqueue(
    context: RequestContext, query: schemas.TenantQuery, document: schemas.Enqueue
) -> Response:
    """Enqueue one task into the queue in the path."""
    (task,) = _keyed(context, [await _task(context, document)])
    queue = context.server.queue(context.path("queue"), query.tenant)
    options = task._asdict()
    own = [options.pop(name) for name in _OWN_POLICY]
    if any(value is not None for value in own):
        (receipt,) = await queue.enqueue_many([task], durable=document.durable)
    else:
        for name in ("payload", "queue", "tenant"):
            del options[name]
        receipt = await queue.enqueue(task.payload, durable=document.durable, **options)
    return context.answer(receipt_doc(context.out, receipt), 200 if receipt.duplicate else 201)


@operation(
    "POST /queues/{queue}/tasks/stream",
    by_status={201: schemas.Receipt, 200: schemas.Receipt},
    headers=_KEYS,
    streams=True,
    needs=Role.PRODUCER,
    names=queue_in_path,
)
async def enqueue_stream(context: RequestContext, query: schemas.EnqueueStream) -> Response:
    """Enqueue one task into the queue in the path; the body is its payload, as it comes."""
    own = task_options(context.form, context.server.limits, query)
    (task,) = _keyed(context, [NewTask(b"", **own)])
    options = {name: getattr(task, name) for name in StreamOptions.__annotations__}
    queue = context.server.queue(context.path("queue"), query.tenant)
    with context.uploading() as chunks:
        receipt = await queue.enqueue_stream(
            chunks, durable=query.durable, **cast("StreamOptions", options)
        )
    return context.answer(receipt_doc(context.out, receipt), 200 if receipt.duplicate else 201)


@operation(
    "POST /tasks",
    {"receipts": schemas.list_of(schemas.Receipt)},
    headers=_KEYS,
    needs=Role.PRODUCER,
    names=tasks_of_document,
)
async def enqueue_many(context: RequestContext, document: schemas.EnqueueMany) -> Response:
    """Enqueue many tasks, of one queue or of several."""
    at_most(document.tasks, "tasks", context.server.settings.batch_max)
    tasks = _keyed(context, await new_tasks(context, document.tasks))
    durable, atomic = document.durable, document.atomic
    if document.queue is UNSET:
        _check_no_queue_options(document)
        receipts = await context.server.engine.enqueue_many(tasks, durable=durable, atomic=atomic)
    else:
        queue = context.server.queue_of(document)
        receipts = await queue.enqueue_many(tasks, durable=durable, atomic=atomic)
    docs = (receipt_doc(context.out, receipt) for receipt in receipts)
    return await context.answer_list("receipts", docs, {})


def _check_no_queue_options(document: schemas.EnqueueMany) -> None:
    """Refuse what says something about a queue where none is named."""
    for name in schemas.QUEUE_OPTIONS:
        if getattr(document, name) is not UNSET:
            raise UsageError(f"{name} needs 'queue': it says something about that of all tasks")


async def new_tasks(context: RequestContext, documents: Sequence[schemas.NewTask]) -> list[NewTask]:
    """The tasks of an enqueue or of a ``then``, for the engine."""
    tasks = []
    bytes_max = context.server.limits.value_bytes_max
    for document in documents:
        payload = document.payload
        if payload is not UNSET and document == schemas.NewTask(payload=payload):  # nearly all are
            tasks.append(NewTask(await context.value(document, "payload", bytes_max)))
        else:
            tasks.append(await _task(context, document))
        await context.turns.give()
    return tasks


async def _task(context: RequestContext, document: schemas.NewTask | schemas.Enqueue) -> NewTask:
    payload = await context.value(document, "payload", context.server.limits.value_bytes_max)
    if payload is None:
        raise UsageError("a task needs 'payload' (or 'payload_base64')")
    return NewTask(payload, **task_options(context.form, context.server.limits, document))


def task_options(
    form: Form,
    limits: Limits,
    document: schemas.NewTask | schemas.Enqueue | schemas.EnqueueStream | schemas.TaskOptions,
) -> dict[str, Any]:
    """The members of a task but its payload.

    Args:
        form: of the document.
        limits: of the engine.
        document: with options.
    """
    headers = stored_of(form, document, "headers")
    bytes_max = limits.headers_bytes_max
    return {
        "run_at": moment_of(document.run_at, "run_at"),
        "headers": None if headers is None else _headers(headers, bytes_max),
        "dedup_key": key_of(document, "dedup_key"),
        "shard_key": key_of(document, "shard_key"),
        "retry": None if document.retry is None else Backoff(**asdict(document.retry)),
        **{name: getattr(document, name) for name in _PASSED[type(document)]},
    }


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


def _keyed(context: RequestContext, tasks: list[NewTask]) -> list[NewTask]:
    """With an ``Idempotency-Key``: sent again, the same tasks are not enqueued again."""
    key = context.header(_KEY_HEADER)
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
