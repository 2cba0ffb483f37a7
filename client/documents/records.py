"""Documents of tasks, leases, results and statistics: how each is written and read.

One side writes what the other reads, so the writer and the reader of each document stand here
together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from ...engine.records.keyspace import check_name
from ...engine.records.policy import Policy, decode_policy
from ...engine.records.task import WHOLE_BYTES_MAX
from ...engine.runtime.task_id import TaskId
from ...engine.values import Finding, Health, LatencySummary
from ...errors import PayloadNotLoadedError, PayloadTooLargeError, UsageError
from ...repository.model.arguments import (
    check_after,
    check_attempts,
    check_on_conflict,
    check_priority,
    check_retry,
    check_tenant,
    duration_s,
    is_plain,
    shard_key_bytes,
    waits,
)
from ...repository.model.codec import (
    MSGPACK,
    PackedBytes,
    decode_value,
    deferred_headers,
    deferred_value,
    encode_value,
    not_loaded_yet,
)
from ...repository.model.faces import NO_LABELS, face_fields, packed_face
from ...repository.model.queue_settings import QueueSettings
from ...repository.model.reports import VerifyReport
from ...repository.model.values import (
    Attempt,
    Backoff,
    Codec,
    EngineStats,
    NewTask,
    Part,
    Progress,
    QueueStats,
    Receipt,
    Result,
    ShardStats,
    Task,
)
from .wire import Form, Stored

__all__ = [
    "Codecs",
    "Granted",
    "attempt_doc",
    "attempt_of",
    "backoff_doc",
    "decoded",
    "deferred",
    "encode_payload",
    "flat_of",
    "health_of",
    "new_task_doc",
    "options_doc",
    "part_doc",
    "plain_doc",
    "queue_doc",
    "queues_of",
    "receipt_doc",
    "receipt_of",
    "report_doc",
    "report_of",
    "result_doc",
    "result_of",
    "settings_doc",
    "settings_of",
    "stats_of",
    "stored_value",
    "task_doc",
    "task_of",
    "when",
    "when_text",
]

Codecs = Mapping[str, Codec]
T = TypeVar("T")
_NO_LIMIT: Final = 1 << 40  # bytes; a value from the store is not checked again
_KEYS: Final = ("dedup_key", "shard_key")


# -- values ----------------------------------------------------------------------------


def stored_value(value: Any, codec: Codec | None, limit: int, what: str) -> Stored:
    """Encode a value as it will be stored, or raise the error the engine would raise.

    Args:
        value: bytes, anything msgpack packs, or anything the codec takes.
        codec: the queue's; None: msgpack.
        limit: the most bytes after encoding; then ``PayloadTooLargeError``.
        what: the name of the value in errors.
    """
    return Stored(*encode_value(value, codec, limit, what))


def encode_payload(payload: Any, codec: Codec | None, session: Any) -> tuple[int, bytes]:
    """Encode the payload of a task, as ``stored_value``; the error names the call to use instead.

    Args:
        payload: of the task.
        codec: the queue's; None: msgpack.
        session: the server's bounds.
    """
    most, streamed = session.limits.value_bytes_max, session.stream_bytes_max
    if type(payload) is bytes and most < len(payload) <= streamed:
        raise PayloadTooLargeError(
            f"payload is {len(payload)} bytes, the limit of this call is {most}: enqueue_stream "
            f"of the queue takes up to {streamed}",
            size_bytes=len(payload),
            limit_bytes=most,
        )
    return encode_value(payload, codec, most, "payload")


def decoded(stored: Stored | None, codec: Codec | None) -> Any:
    """Decode a stored value."""
    if stored is None:
        return None
    return decode_value(stored.kind, 0, stored.data, len(stored.data), codec)


def deferred(stored: Stored | None, codec: Codec | None) -> Any:
    """A stored value that is decoded when it is first read."""
    if stored is None:
        return None
    return deferred_value(stored.kind, 0, stored.data, len(stored.data), codec)


def when_text(moment: datetime | None) -> str | None:
    """A moment as ISO 8601 text."""
    return None if moment is None else moment.isoformat()


def when(text: str | None) -> datetime | None:
    """A moment from ISO 8601 text."""
    return None if text is None else datetime.fromisoformat(text)


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


# -- a task to be -----------------------------------------------------------------------

_PLAIN: Final = NewTask(None)
# Options that are sent as they are given: each raises what the engine would raise.
_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "queue": lambda name: check_name(name, "queue").decode(),
    "tenant": lambda name: check_tenant(name).decode(),
    "priority": check_priority,
    "on_conflict": check_on_conflict,
    "max_attempts": check_attempts,
}


def backoff_doc(backoff: Backoff) -> dict[str, Any]:
    """Write how long a failed task waits."""
    return {
        "kind": backoff.kind,
        "base": backoff.base,
        "factor": backoff.factor,
        "cap": backoff.cap,
    }


def new_task_doc(form: Form, task: NewTask, codecs: Codecs, queue: str, session: Any) -> Any:
    """Write a task to enqueue. Options that have their default are left out.

    Args:
        form: JSON or msgpack.
        task: checked as the engine would check it.
        codecs: by queue name; a queue without one packs with msgpack.
        queue: the queue of a task that names none.
        session: the server's bounds, and what it takes.
    """
    doc: dict[str, Any] = {}
    name = task.queue
    codec = codecs.get(name if isinstance(name, str) and name else queue)
    form.put(doc, "payload", Stored(*encode_payload(task.payload, codec, session)))
    return doc if is_plain(task) else doc | options_doc(form, task, session)


def options_doc(form: Form, task: NewTask, session: Any) -> dict[str, Any]:
    """Write what a task to enqueue has beside its payload, as ``new_task_doc``."""
    doc: dict[str, Any] = {}
    for name, check in _CHECKS.items():
        value = getattr(task, name)
        if value is not getattr(_PLAIN, name):
            doc[name] = check(value)
    for name in ("delay", "ttl", "dedup_window"):
        value = getattr(task, name)
        if value is not None:
            doc[name] = duration_s(value, name)
    for name in ("retention", "dead_retention"):
        value = getattr(task, name)
        if value is not None:
            doc[name] = duration_s(value, name)
    if task.retry is not None:
        doc["retry"] = backoff_doc(check_retry(task.retry))
    if task.run_at is not None:
        if not isinstance(task.run_at, datetime) or task.run_at.tzinfo is None:
            raise UsageError("run_at must be an aware datetime: use datetime.now(UTC)")
        doc["run_at"] = task.run_at.isoformat()
    if task.function is not None or task.preview is not None or task.labels is not None:
        # Raises what the engine would raise.
        face = packed_face(task.function, task.preview, task.labels, session.redaction)
        if not session.takes_faces:
            raise UsageError(
                "the server is of a release without labels, function and preview: upgrade it, or "
                "leave them out"
            )
        doc |= {name: value for name, value in face_fields(face).items() if value}
    for name in _KEYS:
        key = getattr(task, name)
        if key is None:
            continue
        shard_key_bytes(key, name)  # raises what the engine would raise
        form.put_key(doc, name, key)
    if waits(task.after, task.on_failure):
        if not session.takes_dependencies:
            raise UsageError(
                "the server is of a release without after=: upgrade it, or leave it out"
            )
        doc["after"] = [bytes(one) for one in check_after(task)]
        if task.on_failure != "run":
            doc["on_failure"] = task.on_failure
    headers = {} if task.headers is None else task.headers
    if not isinstance(headers, Mapping) or not all(isinstance(k, str) for k in headers):
        raise UsageError("headers must be a mapping with str keys")
    if headers:
        form.put(
            doc,
            "headers",
            stored_value(dict(headers), None, session.limits.headers_bytes_max, "headers"),
        )
    return doc


def _face_of(doc: Mapping[str, Any]) -> tuple[str, str, Mapping[str, str]]:
    """Function, preview and labels; an older server sends none."""
    return doc.get("function", ""), doc.get("preview", ""), doc.get("labels", NO_LABELS)


def attempt_doc(attempt: Attempt) -> dict[str, Any]:
    """Write one attempt."""
    return {
        "number": attempt.number,
        "outcome": attempt.outcome,
        "started_at": when_text(attempt.started_at),
        "ended_at": when_text(attempt.ended_at),
        "worker": attempt.worker,
        "reason": attempt.reason,
    }


def attempt_of(doc: Mapping[str, Any]) -> Attempt:
    """Read one attempt."""
    return Attempt(
        doc["number"],
        doc["outcome"],
        when(doc["started_at"]),
        _at(doc["ended_at"]),
        doc["worker"],
        doc["reason"],
    )


def receipt_doc(form: Form, receipt: Receipt) -> dict[str, Any]:
    """Write a receipt."""
    replaced = receipt.replaced
    return {
        "id": form.id(receipt.id),
        "duplicate": receipt.duplicate,
        "replaced": None if replaced is None else form.id(replaced),
    }


def receipt_of(doc: Mapping[str, Any]) -> Receipt:
    """Read a receipt."""
    replaced = doc["replaced"]
    return Receipt(
        TaskId(doc["id"]), doc["duplicate"], None if replaced is None else TaskId(replaced)
    )


# -- tasks and results ------------------------------------------------------------------


class Granted(NamedTuple):
    """A lease as the server granted it."""

    task_id: TaskId
    epoch: int
    token: bytes
    queue: str
    tenant: str
    priority: int
    attempt: int
    policy: Policy
    enqueued_at: datetime
    deadline: datetime
    lease_s: float
    payload: Stored
    headers: Stored | None
    function: str = ""
    preview: str = ""
    labels: Mapping[str, str] = NO_LABELS
    dead_at: datetime | None = None  # of a dead letter, as the next one
    reason: str = ""
    payload_bytes: int = 0  # above ``WHOLE_BYTES_MAX``: ``payload`` is not in it

    def __repr__(self) -> str:
        return f"<Granted {self.task_id} epoch={self.epoch}>"  # not the token

    @classmethod
    def of(cls, form: Form, doc: Mapping[str, Any]) -> Granted:
        """Read a lease; ``service.http.routes.claims`` writes them."""
        return cls(
            TaskId(doc["task_id"]),
            doc["epoch"],
            form.take_raw(doc, "token"),
            doc["queue"],
            doc["tenant"],
            doc["priority"],
            doc["attempt"],
            decode_policy(form.take_raw(doc, "policy")),
            _at(doc["enqueued_at"]),
            _at(doc["deadline"]),
            doc["lease_s"],
            form.take(doc, "payload") or Stored(0, b""),
            form.take(doc, "headers"),
            *_face_of(doc),
            _at(doc["dead_at"]) if doc.get("dead_at") else None,
            doc.get("reason", ""),
            payload_bytes=doc.get("payload_bytes", 0),  # older: none
        )


def task_doc(form: Form, task: Task, codec: Codec | None) -> dict[str, Any]:
    """Write a task as ``get`` and ``list`` return it. Stored values are passed on undecoded."""
    doc: dict[str, Any] = {
        "id": form.id(task.id),
        "state": task.state,
        "queue": task.queue,
        "tenant": task.tenant,
        "priority": task.priority,
        "attempts": task.attempts,
        "max_attempts": task.max_attempts,
        "worker": task.worker,
        "reason": task.reason,
        "enqueued_at": when_text(task.enqueued_at),
        "due_at": when_text(task.due_at),
        "expires_at": when_text(task.expires_at),
        "finished_at": when_text(task.finished_at),
        "position": form.raw(task.position),
        "progress": None,
        "function": task.function,
        "preview": task.preview,
        "labels": dict(task.labels),
    }
    if task.progress is not None:
        fraction, note, at = task.progress
        doc["progress"] = {"fraction": fraction, "note": note, "at": when_text(at)}
    try:
        stored = stored_value(task.payload, codec, _NO_LIMIT, "payload")
    except PayloadNotLoadedError as exc:
        doc["payload_bytes"] = exc.size_bytes
    else:
        doc["payload_bytes"] = 0 if task.payload is None else len(stored.data)
        form.put(doc, "payload", stored)
    if isinstance(task.headers, PackedBytes):
        if task.headers:
            form.put(doc, "headers", Stored(MSGPACK, task.headers))
    elif task.headers:
        form.put(doc, "headers", stored_value(dict(task.headers), None, _NO_LIMIT, "headers"))
    return doc


def task_of(form: Form, doc: Mapping[str, Any], codecs: Codecs) -> Task:
    """Read a task. A value that cannot be decoded raises when it is read, not before."""
    headers = form.take(doc, "headers")
    function, preview, labels = _face_of(doc)
    return Task(
        TaskId(doc["id"]),
        doc["state"],
        doc["queue"],
        doc["tenant"],
        doc["priority"],
        doc["attempts"],
        _at(doc["enqueued_at"]),
        payload=not_loaded_yet(TaskId(doc["id"]), doc["payload_bytes"])
        if doc.get("payload_bytes", 0) > WHOLE_BYTES_MAX
        else deferred(form.take(doc, "payload"), codecs.get(doc["queue"])),
        headers={} if headers is None else deferred_headers(headers.data),
        due_at=when(doc["due_at"]),
        expires_at=when(doc["expires_at"]),
        finished_at=when(doc["finished_at"]),
        max_attempts=doc["max_attempts"],
        worker=doc["worker"],
        reason=doc["reason"],
        position=form.take_raw(doc, "position"),
        progress=_progress_of(doc.get("progress")),
        function=function,
        preview=preview,
        labels=labels,
    )


def _progress_of(doc: Mapping[str, Any] | None) -> Progress | None:
    return None if doc is None else Progress(doc["fraction"], doc["note"], _at(doc["at"]))


def result_doc(form: Form, result: Result, codec: Codec | None) -> dict[str, Any]:
    """Write a result."""
    doc: dict[str, Any] = {
        "task_id": form.id(result.task_id),
        "status": result.status,
        "error": result.error,
        "attempts": result.attempts,
        "queue": result.queue,
        "tenant": result.tenant,
        "worker": result.worker,
        "priority": result.priority,
        "enqueued_at": when_text(result.enqueued_at),
        "ready_at": when_text(result.ready_at),
        "leased_at": when_text(result.leased_at),
        "finished_at": when_text(result.finished_at),
        "function": result.function,
        "preview": result.preview,
        "labels": dict(result.labels),
    }
    form.put(doc, "value", stored_value(result.value, codec, _NO_LIMIT, "result"))
    return doc


def result_of(form: Form, doc: Mapping[str, Any], codecs: Codecs) -> Result:
    """Read a result."""
    return Result(
        TaskId(doc["task_id"]),
        doc["status"],
        deferred(form.take(doc, "value"), codecs.get(doc["queue"])),
        doc["error"],
        doc["attempts"],
        doc["queue"],
        doc["tenant"],
        doc["worker"],
        doc["priority"],
        _at(doc["enqueued_at"]),
        when(doc["ready_at"]),
        when(doc["leased_at"]),
        _at(doc["finished_at"]),
        *_face_of(doc),
    )


def part_doc(form: Form, part: Part, codec: Codec | None) -> dict[str, Any]:
    """Write a part of a workflow."""
    doc: dict[str, Any] = {
        "number": part.number,
        "task_id": form.id(part.task_id),
        "status": part.status,
        "error": part.error,
        "queue": part.queue,
        "ended_at": when_text(part.ended_at),
    }
    form.put(doc, "value", stored_value(part.value, codec, _NO_LIMIT, "result"))
    return doc


# -- statistics and reports -------------------------------------------------------------


def plain_doc(value: Any) -> dict[str, Any]:
    """Write a flat dataclass of numbers and text."""
    return asdict(value)


def queue_doc(key: tuple[str, str], stats: QueueStats) -> dict[str, Any]:
    """Write the counts of one queue and tenant."""
    return {
        "queue": key[0],
        "tenant": key[1],
        "ready": stats.ready,
        "delayed": stats.delayed,
        "waiting": stats.waiting,
        "leased": stats.leased,
        "dead": stats.dead,
        "results": stats.results,
        "oldest_ready_age": stats.oldest_ready_age,
        "is_paused": stats.is_paused,
        "is_queue_paused": stats.is_queue_paused,
    }


def queues_of(doc: Mapping[str, Any]) -> dict[tuple[str, str], QueueStats]:
    """Read a page of queues with their counts."""
    return {(one["queue"], one["tenant"]): flat_of(QueueStats, one) for one in doc["queues"]}


def settings_doc(settings: QueueSettings) -> dict[str, Any]:
    """Write what is set for a queue."""
    return asdict(settings)


def settings_of(doc: Mapping[str, Any]) -> QueueSettings:
    """Read what is set for a queue."""
    return QueueSettings(**_known(QueueSettings, doc))


def stats_of(doc: Mapping[str, Any]) -> EngineStats:
    """Read the statistics of an engine."""
    given = dict(doc)
    given["recoveries"] = tuple(given["recoveries"])
    given["anomalies"] = tuple(given["anomalies"])
    given["unreadable"] = tuple(given.get("unreadable", ()))  # an older server omits it
    given["shards"] = tuple(_shard_stats(shard) for shard in given["shards"])
    return EngineStats(**_known(EngineStats, given))


def _shard_stats(doc: Mapping[str, Any]) -> ShardStats:
    given = dict(doc)
    given["merge_sizes"] = tuple(tuple(pair) for pair in given["merge_sizes"])
    for name in ("commit", "fsync"):
        given[name] = LatencySummary(**_known(LatencySummary, given[name]))
    return ShardStats(**_known(ShardStats, given))


def report_doc(form: Form, report: VerifyReport) -> dict[str, Any]:
    """Write the report of ``verify``."""
    findings = [
        {
            "shard": one.shard,
            "kind": one.kind,
            "detail": one.detail,
            "task_id": None if one.task_id is None else form.id(one.task_id),
        }
        for one in report.findings
    ]
    return {"ok": report.ok, "findings": findings}


def report_of(doc: Mapping[str, Any]) -> VerifyReport:
    """Read the report of ``verify``."""
    findings = tuple(
        Finding(
            one["shard"],
            one["kind"],
            one["detail"],
            None if one["task_id"] is None else TaskId(one["task_id"]),
        )
        for one in doc["findings"]
    )
    return VerifyReport(doc["ok"], findings)


def flat_of(cls: type[T], doc: Mapping[str, Any]) -> T:
    """Read a flat dataclass, such as ``QueueStats`` or ``MigrationReport``."""
    return cls(**_known(cls, doc))


def health_of(doc: Mapping[str, Any]) -> Health:
    """Read the health of an engine."""
    return Health(doc["ok"], tuple(doc["reasons"]))


def _known(cls: type[Any], doc: Mapping[str, Any]) -> dict[str, Any]:
    """The members this version knows: a newer server may send more."""
    names = (field.name for field in fields(cls) if field.default is MISSING or field.name in doc)
    return {name: doc[name] for name in names}  # an older one omits what has a default
