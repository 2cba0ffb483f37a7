"""Serialise calls and answers: from the users' values to the JSON of a history record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....engine.runtime.task_id import TaskId
from ....repository.api.queue import Queue, options_of
from ....repository.model.arguments import duration_s, when_ms
from ....repository.model.values import AnyId, Duration, NewTask, Receipt
from ....repository.tasks.lease import Lease

__all__ = [
    "bytes_of",
    "hex_of",
    "home_of",
    "serialise_delay",
    "serialise_options",
    "serialise_queue",
    "serialise_receipts",
    "size_of",
]


def serialise_receipts(receipts: Sequence[Receipt | None]) -> list[list[Any] | None]:
    """Return ``[id, is duplicate, replaced id]`` for each receipt."""
    return [
        None if r is None else [r.id.hex(), r.duplicate, r.replaced.hex() if r.replaced else None]
        for r in receipts
    ]


def serialise_queue(queue: str | Queue) -> tuple[str, str | None]:
    """Return queue and tenant; a tenant of None for all tenants."""
    if isinstance(queue, str):
        return queue, ""
    options = options_of(queue)
    return options.queue.decode(), None if options.tenant is None else options.tenant.decode()


def home_of(task: NewTask, queue: Queue | None, parent: Lease | None) -> dict[str, Any]:
    """Return queue and tenant that a task goes to, as fields of its record."""
    name = task.queue
    tenant = task.tenant
    if parent is not None:
        name = parent.queue if name is None else name
        tenant = parent.tenant if tenant is None else tenant
    elif queue is not None:
        name = queue.name if name is None else name
        tenant = queue.tenant if tenant is None else tenant
    return {"queue": name, "tenant": tenant or ""}


def serialise_options(fields: dict[str, Any], task: NewTask) -> None:
    """Add the options of a task that are not the defaults to the fields of its record."""
    if task.priority != 5:
        fields["priority"] = task.priority
    if task.delay is not None:
        fields["delay_us"] = round(duration_s(task.delay, "delay") * 1000) * 1000
    if task.run_at is not None:
        fields["run_at_us"] = when_ms(task.run_at, "run_at") * 1000
    if task.ttl is not None:
        fields["ttl_us"] = round(duration_s(task.ttl, "ttl") * 1000) * 1000
    if task.dedup_key is not None:
        key = task.dedup_key
        fields["key"] = key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
        fields["windowed"] = task.dedup_window is not None
        fields["conflict"] = task.on_conflict
    if task.shard_key is not None:
        fields["alone"] = True
    if task.labels:
        fields["labels"] = dict(task.labels)


def serialise_delay(delay: Duration | None) -> dict[str, int]:
    """Return the delay of a nack or release as a parameter; backoff is not checked."""
    return {} if delay is None else {"delay_us": round(duration_s(delay, "delay") * 1000) * 1000}


def hex_of(task_id: AnyId) -> str:
    """Return an id of any form in hexadecimal."""
    return TaskId(task_id).hex()


def bytes_of(value: object) -> int:
    """Return a rough upper bound of the value's size in a record."""
    return len(value) if isinstance(value, bytes) else 4 * len(repr(value))


def size_of(task: NewTask) -> int:
    """Return a rough upper bound of the task's size in a batch."""
    return 512 + bytes_of(task.payload) + bytes_of(task.headers)
