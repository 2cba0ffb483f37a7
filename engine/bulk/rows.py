"""From a task to its rows, as the engine's own enqueue would write them.

A task that is loaded in bulk has never run: a record, its first index row, and where they apply a
ghost and entries in the expiry range. Its payload lies in the record, unless it is a streamed one,
which is staged as a file of its own. ``seq`` is the microsecond of its staging.

Expiry rows are keyed by (bucket, commit number); no commit wrote these. Theirs is a hash of job,
shard and place with the top bit set: above every commit's, and apart from every other load's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import xxhash

from ...errors import UsageError
from ..records.keyspace import (
    DELAYED,
    delayed_key,
    expiry_key,
    old_ghost_hash,
    ready_key,
    shard_queue_prefix,
)
from ..records.rows import BODY_ROW, IndexRow, encode_expiry, encode_index_row
from ..records.task import BODY_FLAG, NO_GHOST, decode_task
from ..recovery.verify import bucket_of
from ..runtime.ids import is_task_id, shard_of

__all__ = ["EXPIRY_ENTRIES", "TaskRows", "expiry_rows", "rows_of", "task_rows"]

EXPIRY_ENTRIES: Final = 1024  # of one row: a sweep decodes it whole
_TOP: Final = 1 << 63
_make: Final = tuple.__new__  # what TaskRows(…) does, without its Python frame
_prefix: Final = lru_cache(maxsize=1024)(shard_queue_prefix)


class TaskRows(NamedTuple):
    """One task, ready to be sorted among others of its shard.

    ``due_ms`` 0: it is ready at once. ``ghost`` is ``NO_GHOST`` without a dedup key. ``old_ghost``
    is where an entry of format 1 would lie: zeros where the key itself is not known.
    """

    shard: int
    task_id: bytes
    queue: bytes
    tenant: bytes
    priority: int
    seq: int
    due_ms: int
    expires_ms: int
    ghost: bytes
    ghost_expires_ms: int
    record: bytes
    index_key: bytes
    index_value: bytes
    old_ghost: bytes = NO_GHOST

    @property
    def expiries(self) -> list[tuple[int, bytes]]:
        """(bucket_ms, entry) of what is to be looked at later."""
        due = []
        if self.expires_ms:
            due.append((bucket_of(self.expires_ms), b"t" + self.task_id))
        if self.ghost != NO_GHOST and self.ghost_expires_ms:
            due.append((bucket_of(self.ghost_expires_ms), b"g" + self.ghost))
        return due


def task_rows(task_id: bytes, record: bytes, shards: int) -> TaskRows:
    """The rows of a task that has never run, of its encoded record.

    Args:
        task_id: 16 bytes; its slot says the shard. That of a task with a dedup key is
            ``slot_of(queue NUL tenant NUL key)``.
        record: ``encode_task(…)``; checked here. Its ghost is that of ``Secrets.ghost_of``.
        shards: of the store it is for.

    Raises:
        RecordCorruptError: not the record of a task.
        UsageError: a record whose payload lies elsewhere, or an id that is none.
    """
    t = decode_task(record)
    if not is_task_id(task_id):
        raise UsageError(f"{task_id!r} is no id of a task: 16 bytes, a UUID of version 7")
    if t.flags & BODY_FLAG:
        raise UsageError("a task that is staged holds its payload itself")
    if (t.first_kind == DELAYED[0]) != (t.due_ms > 0):
        raise UsageError("the record's first index kind and its due time do not agree")
    return rows_of(
        task_id,
        record,
        shards,
        t.queue,
        t.tenant,
        t.priority,
        t.seq,
        t.due_ms,
        t.expires_ms,
        t.ghost,
        t.ghost_expires_ms,
    )


def rows_of(
    task_id: bytes,
    record: bytes,
    shards: int,
    queue: bytes,
    tenant: bytes,
    priority: int,
    seq: int,
    due_ms: int,
    expires_ms: int,
    ghost: bytes,
    ghost_expires_ms: int,
    routing: bytes = b"",
    streamed_bytes: int = 0,
) -> TaskRows:
    """``task_rows`` for those who have just made the record of these very values.

    ``routing``: of a dedup key, queue NUL tenant NUL key.

    Args:
        task_id: 16 bytes.
        record: the task record, framed.
        shards: shards of the store, 1 to 4,096.
        queue: its name, as stored.
        tenant: its name; empty for the default one.
        priority: 0 to 9.
        seq: its position, in microseconds.
        due_ms: Unix milliseconds; 0: ready at once.
        expires_ms: Unix milliseconds; 0: no TTL.
        ghost: the dedup hash; empty: no dedup key.
        ghost_expires_ms: until when the dedup entry holds, in Unix milliseconds.
        routing: queue NUL tenant NUL key; empty without a dedup key.
        streamed_bytes: of the record, were a streamed payload in it; 0: all of it is in ``record``.
    """
    prefix = _prefix(queue, tenant)
    if due_ms:
        key = delayed_key(prefix, due_ms, seq, task_id)
    else:
        key = ready_key(prefix, priority, seq, task_id)
    return _make(
        TaskRows,
        (
            shard_of(task_id, shards),
            task_id,
            queue,
            tenant,
            priority,
            seq,
            due_ms,
            expires_ms,
            ghost,
            ghost_expires_ms,
            record,
            key,
            _index_value(priority, streamed_bytes or len(record), expires_ms, streamed_bytes > 0),
            old_ghost_hash(routing) if routing else NO_GHOST,
        ),
    )


@lru_cache(maxsize=8192)
def _index_value(priority: int, record_bytes: int, expires_ms: int, is_streamed: bool) -> bytes:
    flags = BODY_ROW if is_streamed else 0
    return encode_index_row(IndexRow(flags, priority, 0, record_bytes, expires_ms, b""))


def expiry_rows(stem: str, buckets: dict[int, list[bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The sorted rows of ``buckets``: bucket_ms to entries. ``stem`` is unique among all loads."""
    for bucket_ms in sorted(buckets):
        entries = buckets[bucket_ms]
        rows = []
        for at in range(0, len(entries), EXPIRY_ENTRIES):
            number = _TOP | xxhash.xxh3_64_intdigest(f"{stem}/{at}".encode())
            value = encode_expiry(entries[at : at + EXPIRY_ENTRIES])
            rows.append((expiry_key(bucket_ms, number), value))
        yield from sorted(rows)
