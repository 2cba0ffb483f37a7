"""Enqueue of a streamed payload as a request: options in the query, the payload is the body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from ..errors import LimitError, UsageError
from ..repository.model.arguments import check_on_conflict, check_priority
from ..repository.model.values import NewTask, StreamOptions
from .calls import Call, QueueTemplate, Session, check_durable
from .documents.records import new_task_doc
from .documents.wire import JSON

__all__ = ["enqueue_stream"]

_QUERY_BYTES_MAX: Final = 28 << 10  # of the 32 KiB that the head of a request may have


def enqueue_stream(
    session: Session, template: QueueTemplate, options: StreamOptions, durable: bool | None
) -> Call:
    """Enqueue one task whose payload follows as the body.

    Args:
        session: what the server takes.
        template: the queue, and the options of its tasks.
        options: of this task.
        durable: None waits as the store's durability says; False is refused in fsync mode.

    Raises:
        UsageError: an option is wrong, or the server is too old.
        LimitError: the options do not fit the head of a request.
    """
    if template.is_all:
        raise UsageError("a queue of ALL_TENANTS takes no enqueue: name the tenant")
    if not session.stream_bytes_max:
        raise UsageError(
            "this server takes no streamed payloads: it runs an older lodeq; upgrade the server"
        )
    check_durable(session, durable)
    if unknown := options.keys() - StreamOptions.__annotations__.keys():
        raise UsageError(f"enqueue_stream has no option {sorted(unknown)[0]!r}")
    task = NewTask(b"", **options)
    check_priority(task.priority)
    check_on_conflict(task.on_conflict)
    if not template.faces:
        task = task._replace(labels=None, function=None, preview=None)
    doc = new_task_doc(JSON, task, {}, template.name, session)
    del doc["payload_base64"], doc["payload_kind"]
    query = template.query | _members(_policy(template) | doc)
    if durable is not None:
        query["durable"] = _text(durable)
    size = len(urlencode(query))
    if size > _QUERY_BYTES_MAX:
        raise LimitError(
            f"headers and other options are {size} bytes as they are sent, and with a streamed "
            f"payload they have {_QUERY_BYTES_MAX}: put them into the payload"
        )
    path = f"/queues/{quote(template.name)}/tasks/stream"
    return Call("POST", path, None, query, is_write=True)


def _policy(template: QueueTemplate) -> dict[str, Any]:
    """The queue's policy as options of a task."""
    policy = dict(template.doc.get("policy", {}))
    if "backoff" in policy:
        policy["retry"] = policy.pop("backoff")
    return policy


def _members(doc: Mapping[str, Any]) -> dict[str, str]:
    return {name: one if isinstance(one, str) else _text(one) for name, one in doc.items()}


def _text(value: Any) -> str:
    """A value as the query has it: as JSON writes it."""
    return JSON.dumps(value).decode()
