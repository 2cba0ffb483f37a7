"""First keys: the index key that a task was enqueued under."""

from __future__ import annotations

from ...records import keyspace as ks
from ...records.task import TaskRecord

__all__ = ["first_key"]


def first_key(task_id: bytes, task: TaskRecord) -> bytes:
    """The index key a task was enqueued under."""
    prefix = ks.shard_queue_prefix(task.queue, task.tenant)
    if task.first_kind == ks.DELAYED[0]:
        return ks.delayed_key(prefix, task.due_ms, task.seq, task_id)
    return ks.ready_key(prefix, task.priority, task.seq, task_id)
