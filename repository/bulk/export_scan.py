"""A scan over every task of a queue with its stored bytes, for exports.

In claim order over all shards, then delayed tasks, then dead letters. For an engine that nobody
else uses meanwhile: the rows are not of one moment, so a task that moves during the scan may come
twice or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import NamedTuple

from ...engine.records.compression import inflate
from ...engine.records.keyspace import (
    DEAD,
    DELAYED,
    ID_AT,
    READY,
    TASK,
    decode_index_key,
    prefix_end,
)
from ...engine.records.lease import DEAD_LEASE
from ...engine.records.rows import decode_index_row
from ...engine.records.task import TaskRecord, decode_task
from ...engine.runtime.task_id import TaskId
from ...errors import RecordCorruptError
from ..state.engine_state import EngineState
from ..state.queue_state import Shard, ShardQueue
from ..state.rows.task_location import state_name

__all__ = ["ExportedTask", "UnreadableTask", "scan_tasks"]

_PAGE = 256


class ExportedTask(NamedTuple):
    """A stored task. ``payload``: as given, or as codec or msgpack made it (``kind``).

    ``since_us``: when it became ready, was leased or died; ``due_ms``: when a delayed one is due. A
    leased task is one whose worker is in another process; its attempt is counted. A dead letter is
    one whoever works on it.
    """

    task_id: TaskId
    task: TaskRecord
    payload: bytes
    state: str
    attempts: int
    reason: bytes
    since_us: int
    due_ms: int
    expires_ms: int

    @property
    def kind(self) -> int:
        """How the payload was encoded: ``RAW``, ``MSGPACK`` or ``CODEC`` of ``model.codec``."""
        return self.task.flags & 3


class UnreadableTask(NamedTuple):
    """A task whose rows or payload cannot be read, and why."""

    task_id: TaskId
    why: str


def scan_tasks(
    state: EngineState, queue: bytes, tenant: bytes, *, dead: bool = True
) -> Iterator[ExportedTask | UnreadableTask]:
    """All tasks of one queue and tenant that have not ended, in the order given above.

    Args:
        state: the engine's state.
        queue: the queue's name.
        tenant: the tenant's name; empty for the default tenant.
        dead: include dead letters.
    """
    tenant_queue = state.find_tenant_queue(queue, tenant)
    shard_queues = (
        [shard_queue for shard_queue in tenant_queue.shard_queues if shard_queue is not None]
        if tenant_queue is not None
        else []
    )
    leases = [lease for lease in state.leases.values() if lease.shard_queue in shard_queues]
    leases.sort(key=lambda lease: lease.leased_us)
    for lease in leases:
        if not lease.flags & DEAD_LEASE:
            yield _read(
                lease.shard_queue.shard,
                lease.task_id,
                "leased",
                lease.attempt,
                b"",
                lease.leased_us,
                0,
                lease.expires_ms,
            )
    for kind in (READY, DELAYED, DEAD) if dead else (READY, DELAYED):
        for key, raw, shard in merge(
            *(_rows(shard_queue, kind) for shard_queue in shard_queues), key=_key
        ):
            yield _row(shard, key, raw)
    for lease in leases:  # dead letters that somebody works on: they never run by that
        if dead and lease.flags & DEAD_LEASE:
            yield _row(lease.shard_queue.shard, lease.key, lease.dead_row)


def _key(row: tuple[bytes, bytes, Shard]) -> bytes:
    return row[0]


def _rows(shard_queue: ShardQueue, kind: bytes) -> Iterator[tuple[bytes, bytes, Shard]]:
    upper = prefix_end(shard_queue.prefix + kind)
    for rows in shard_queue.shard.overlay.pages(shard_queue.floor(kind), upper, _PAGE):
        for key, raw in rows:
            yield key, raw, shard_queue.shard


def _row(shard: Shard, key: bytes, raw: bytes) -> ExportedTask | UnreadableTask:
    task_id = TaskId(key[ID_AT:])
    try:
        at, row = decode_index_key(key), decode_index_row(raw)
    except RecordCorruptError as exc:
        return UnreadableTask(task_id, str(exc))
    is_dead, name = at.kind == DEAD, state_name(at.kind, at.at)
    return _read(
        shard,
        task_id,
        name,
        row.attempts,
        row.reason,
        at.at * 1000 if is_dead else at.seq,
        at.at if name == "delayed" else 0,
        0 if is_dead else row.expires_ms,
    )


def _read(
    shard: Shard,
    task_id: TaskId,
    state: str,
    attempts: int,
    reason: bytes,
    since_us: int,
    due_ms: int,
    expires_ms: int,
) -> ExportedTask | UnreadableTask:
    raw = shard.overlay.get(TASK + task_id)
    if raw is None:
        return UnreadableTask(task_id, "its record is missing")
    try:
        task = shard.whole_task(task_id, decode_task(raw))
        code = task.flags >> 2 & 3
        payload = inflate(code, task.payload, task.raw_bytes) if code else task.payload
    except RecordCorruptError as exc:
        return UnreadableTask(task_id, str(exc))
    return ExportedTask(
        task_id, task, payload, state, attempts, reason, since_us, due_ms, expires_ms
    )
