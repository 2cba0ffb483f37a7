"""How calls and answers are told: from what users hand in to what JSON can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...engine.runtime.task_id import TaskId
from ...repository.api.queue import Queue, options_of
from ...repository.model.encoded_tasks import duration_s, when_ms
from ...repository.model.values import AnyId, Duration, NewTask, Receipt
from ...repository.tasks.lease import Lease

__all__ = [
    "bytes_of",
    "delay_told",
    "hex_of",
    "home_of",
    "lane_told",
    "receipts_told",
    "size_of",
    "tell_options",
]


def receipts_told(receipts: Sequence[Receipt | None]) -> list[list[Any] | None]:
    """``[id, is it a duplicate, id of what it replaced]`` each."""
    return [
        None if r is None else [r.id.hex(), r.duplicate, r.replaced.hex() if r.replaced else None]
        for r in receipts
    ]


def lane_told(queue: str | Queue) -> tuple[str, str | None]:
    """Queue and tenant; None for all tenants."""
    if isinstance(queue, str):
        return queue, ""
    options = options_of(queue)
    return options.queue.decode(), None if options.tenant is None else options.tenant.decode()


def home_of(task: NewTask, queue: Queue | None, parent: Lease | None) -> dict[str, Any]:
    """Queue and tenant a task goes to."""
    name = task.queue
    tenant = task.tenant
    if parent is not None:
        name = parent.queue if name is None else name
        tenant = parent.tenant if tenant is None else tenant
    elif queue is not None:
        name = queue.name if name is None else name
        tenant = queue.tenant if tenant is None else tenant
    return {"queue": name, "tenant": tenant or ""}


def tell_options(told: dict[str, Any], task: NewTask) -> None:
    """The options of a task, where they are not the defaults."""
    if task.priority != 5:
        told["priority"] = task.priority
    if task.delay is not None:
        told["delay_us"] = round(duration_s(task.delay, "delay") * 1000) * 1000
    if task.run_at is not None:
        told["run_at_us"] = when_ms(task.run_at, "run_at") * 1000
    if task.ttl is not None:
        told["ttl_us"] = round(duration_s(task.ttl, "ttl") * 1000) * 1000
    if task.dedup_key is not None:
        key = task.dedup_key
        told["key"] = key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
        told["windowed"] = task.dedup_window is not None
        told["conflict"] = task.on_conflict
    if task.shard_key is not None:
        told["alone"] = True


def delay_told(delay: Duration | None) -> dict[str, int]:
    """Of a nack or release; the backoff of a queue is not judged."""
    return {} if delay is None else {"delay_us": round(duration_s(delay, "delay") * 1000) * 1000}


def hex_of(task_id: AnyId) -> str:
    """An id in any form."""
    return TaskId(task_id).hex()


def bytes_of(value: object) -> int:
    """At least what the value takes in a record, roughly."""
    return len(value) if isinstance(value, bytes) else 4 * len(repr(value))


def size_of(task: NewTask) -> int:
    """At least what the task takes in a batch, roughly."""
    return 512 + bytes_of(task.payload) + bytes_of(task.headers)
