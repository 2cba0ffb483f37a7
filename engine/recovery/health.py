"""Small questions about a store's health that RocksDB's own properties do not answer.

``rocksdb.background-errors`` stays 0 for a failed log write and ``is-write-stopped`` stays 0 on
a poisoned store (facts pinned by tests), so health is asked of the thing itself: is there space,
does a read come back, and does a row decode. ``Census`` asks the last one of every row and counts
on the way; ``verify`` and ``repair`` both start with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ...errors import LodeqError, RecordCorruptError, StorageError
from ..records import keyspace as ks
from ..records import rows as small
from ..records.attempts import decode_attempts
from ..records.events import decode_event_row, decode_start_row
from ..records.ingest import decode_ingested, decode_uncounted
from ..records.keyspace import FLOWS, OUTBOX
from ..records.lease import decode_lease
from ..records.progress import decode_progress
from ..records.queues.functions import decode_function, decode_function_key
from ..records.queues.queue_settings import decode_queue_settings
from ..records.result import decode_result
from ..records.task import decode_task
from ..records.workflow import HELD_MS, check_flow_row, flow_slot_id
from ..store.port import StoreView
from ..values import Health

__all__ = ["Census", "disk_free_bytes", "has_inodes", "read_probe"]


def disk_free_bytes(path: str) -> int:
    """Bytes this process may still write to the file system of ``path``."""
    try:
        info = os.statvfs(path)
    except OSError as exc:
        raise StorageError(f"{path}: {exc.strerror}; is the disk still there?") from exc
    return info.f_bavail * info.f_frsize


def has_inodes(path: str) -> bool:
    """Whether a file can be made there: a file system without inodes is full, whatever its bytes.

    Also where it counts none, or where nobody can look.
    """
    try:
        info = os.statvfs(path)
    except OSError:
        return True
    return not info.f_files or info.f_favail > 0


def read_probe(store: StoreView) -> Health:
    """Read one key; a store that cannot is not healthy. The key need not exist."""
    try:
        store.get(ks.HEALTH)
    except LodeqError as exc:
        return Health.of(f"read failed: {exc}")
    return Health.of()


_BY_ID = frozenset(
    (ks.TASK, ks.LEASE, ks.RESULT, ks.MOVED, ks.GHOST, ks.BODY, ks.ATTEMPTS, ks.PROGRESS)
)


class Census:
    """Decodes every row once and counts what the counter rows should say."""

    __slots__ = ("_counts", "expiry_entries", "index_rows")

    def __init__(self) -> None:
        self._counts: dict[tuple[bytes, bytes], list[int]] = {}
        self.index_rows = 0
        self.expiry_entries = 0

    def counters(self) -> Iterator[tuple[bytes, bytes, small.Counters]]:
        """(queue, tenant, counters) of each that has any rows."""
        for (queue, tenant), counts in self._counts.items():
            yield queue, tenant, small.Counters(*counts)

    def _count(self, queue: bytes, tenant: bytes, field: int) -> None:
        self._counts.setdefault((queue, tenant), [0] * 6)[field] += 1

    def add(self, key: bytes, value: bytes) -> list[bytes]:
        """Decode one row of any family; returns the ids it names. Raises if it is damaged."""
        family = key[ks.FAMILY]
        if family == ks.INDEX:
            at = ks.decode_index_key(key)
            small.decode_index_row(value)
            self._count(at.queue, at.tenant, {ks.READY: 0, ks.DELAYED: 1, ks.DEAD: 3}[at.kind])
            if at.kind == ks.DELAYED and at.at >= HELD_MS:
                self._count(at.queue, at.tenant, 5)
            self.index_rows += 1
            return [at.task_id]
        if family == ks.EXPIRY:
            ks.decode_expiry_key(key)
            entries = small.decode_expiry(value)
            self.expiry_entries += len(entries)
            return [named for kind, named in entries if kind not in b"gbB"]
        if family == b"m/":
            _decode_meta(key, value)
            return []
        if family in (FLOWS, OUTBOX):
            check_flow_row(key, value)
            return [flow_slot_id(key, value)]
        if family == ks.EVENTS:
            return _decode_events(key, value)
        if family == ks.BODY_AT:
            task_id = ks.decode_body_at_key(key)[2]
            small.decode_body_at(value)
            return [task_id]
        if family in _BY_ID:
            if len(key) != 18:
                raise RecordCorruptError(f"not a key of family {family!r}: {key!r}")
            return [self._add_by_id(family, key[ks.ROW_ID], value)]
        return []

    def _add_by_id(self, family: bytes, task_id: bytes, value: bytes) -> bytes:
        if family == ks.TASK:
            decode_task(value)
        elif family == ks.LEASE:
            lease = decode_lease(value)
            self._count(lease.queue, lease.tenant, 2)
        elif family == ks.RESULT:
            result = decode_result(value)
            self._count(result.queue, result.tenant, 4)
        elif family == ks.MOVED:
            if ks.decode_index_key(small.decode_moved(value).key).task_id != task_id:
                raise RecordCorruptError("moved row: names the key of another task")
        elif family == ks.ATTEMPTS:
            decode_attempts(value)
        elif family == ks.BODY:
            small.decode_body(value)
        elif family == ks.PROGRESS:
            decode_progress(value)
        else:
            return small.decode_ghost(value).task_id
        return task_id


def _decode_events(key: bytes, value: bytes) -> list[bytes]:
    if value[:1] == b"N":
        commit_seq, named = decode_start_row(value).commit_seq, []
    else:
        row = decode_event_row(value)
        commit_seq, named = row.commit_seq, [task_id for run in row.runs for task_id in run.ids]
    if ks.decode_events_key(key) != commit_seq:
        raise RecordCorruptError("events: they are of another commit")
    return named


def _decode_meta(key: bytes, value: bytes) -> None:
    if key.startswith(ks.RING):
        if ks.ring_key(small.decode_ring(value)[0]) != key:
            raise RecordCorruptError("ring row: lies in the slot of another commit")
    elif key.startswith(ks.COUNTERS):
        ks.decode_counters_key(key)
        small.decode_counters(value)
    elif key.startswith(ks.PAUSE):
        ks.decode_pause_key(key)
        small.decode_pause(value)
    elif key.startswith(ks.QUEUE_SETTINGS):
        ks.decode_queue_settings_key(key)
        decode_queue_settings(value)
    elif key.startswith(ks.FUNCTIONS):
        decode_function_key(key)
        decode_function(value)
    elif key.startswith(ks.INGESTED):
        decode_ingested(value)
    elif key.startswith(ks.UNCOUNTED):
        decode_uncounted(value)
    elif key == ks.STAMP:
        small.decode_stamp(value)
    elif key == ks.OPEN:
        small.decode_open(value)
    elif key == ks.SECRET:
        small.decode_secret(value)
    elif key == ks.OLD_GHOSTS:
        small.decode_old_ghosts(value)
    elif key == ks.APPLIED:
        small.decode_applied(value)
    elif key == ks.BODY_FILES:
        small.decode_files(value)
    elif key == ks.JOURNAL:
        small.decode_journal(value)
