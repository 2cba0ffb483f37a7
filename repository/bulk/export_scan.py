"""Every task of a queue with its bytes as they are stored, for those who carry them elsewhere.

In the order of claims, over all shards; then what is not yet due, then the dead. For an engine that
nobody else is using: rows are read between awaits of nobody, and a task that moves meanwhile may
be told twice or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import NamedTuple

from ...engine.records.compression import inflate
from ...engine.records.keyspace import DEAD, DELAYED, READY, TASK, decode_index_key, prefix_end
from ...engine.records.rows import decode_index_row
from ...engine.records.task import TaskRecord, decode_task
from ...engine.runtime.task_id import TaskId
from ...errors import RecordCorruptError
from ..state.engine_state import EngineState
from ..state.queue_state import Shard, ShardQueue
from ..state.task_location import STATES

__all__ = ["DumpedTask", "LostTask", "dump"]

_PAGE = 256


class DumpedTask(NamedTuple):
    """``payload`` is as it was handed in, or as codec or msgpack made it: see ``kind``.

    ``since_us``: since when it is where it is (ready, leased, or dead); ``due_ms``: of a delayed
    one. A leased task is one whose worker is in another process; it has its attempt counted.
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
        """Of the payload: ``RAW``, ``MSGPACK`` or ``CODEC`` of the module ``codec``."""
        return self.task.flags & 3


class LostTask(NamedTuple):
    """One whose rows or payload cannot be read."""

    task_id: TaskId
    why: str


def dump(
    core: EngineState, queue: bytes, tenant: bytes, *, dead: bool = True
) -> Iterator[DumpedTask | LostTask]:
    """All of them. What has been finished is not among them."""
    lane = core.find_lane(queue, tenant)
    buckets = [bucket for bucket in lane.buckets if bucket is not None] if lane is not None else []
    for lease in sorted(core.leases.values(), key=lambda lease: lease.leased_us):
        if lease.bucket in buckets:
            yield _read(
                lease.bucket.shard,
                lease.task_id,
                "leased",
                lease.attempt,
                b"",
                lease.leased_us,
                0,
                lease.expires_ms,
            )
    for kind in (READY, DELAYED, DEAD) if dead else (READY, DELAYED):
        for key, raw, shard in merge(*(_rows(bucket, kind) for bucket in buckets), key=_key):
            yield _row(shard, key, raw)


def _key(row: tuple[bytes, bytes, Shard]) -> bytes:
    return row[0]


def _rows(bucket: ShardQueue, kind: bytes) -> Iterator[tuple[bytes, bytes, Shard]]:
    upper = prefix_end(bucket.prefix + kind)
    for rows in bucket.shard.overlay.pages(bucket.floor(kind), upper, _PAGE):
        for key, raw in rows:
            yield key, raw, bucket.shard


def _row(shard: Shard, key: bytes, raw: bytes) -> DumpedTask | LostTask:
    task_id = TaskId(key[-16:])
    try:
        at, row = decode_index_key(key), decode_index_row(raw)
    except RecordCorruptError as exc:
        return LostTask(task_id, str(exc))
    is_dead, is_delayed = at.kind == DEAD, at.kind == DELAYED
    return _read(
        shard,
        task_id,
        STATES[at.kind],
        row.attempts,
        row.reason,
        at.at * 1000 if is_dead else at.seq,
        at.at if is_delayed else 0,
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
) -> DumpedTask | LostTask:
    raw = shard.overlay.get(TASK + task_id)
    if raw is None:
        return LostTask(task_id, "its record is missing")
    try:
        task = shard.whole_task(task_id, decode_task(raw))
        payload = inflate(task.flags >> 2 & 3, task.payload, task.raw_bytes)
    except RecordCorruptError as exc:
        return LostTask(task_id, str(exc))
    return DumpedTask(task_id, task, payload, state, attempts, reason, since_us, due_ms, expires_ms)
