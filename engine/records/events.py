"""The rows of ``j/``: what happened to tasks, packed as it is written to the lifecycle journal.

========= ===== =============================================================================
row       type  layout (little-endian), sealed with xxh3_64
========= ===== =============================================================================
events    'J'   u8 type, u8 version, u16 shard, u32 runs, u64 commit_seq, the runs
a run           u8 kind, u8 priority, u16 attempts, u16 ids, u16 text bytes, i64 time_us,
                id:16 each, u8 queue bytes, u8 tenant bytes, queue, tenant, text (UTF-8)
start     'N'   u8 type, u8 version, u16 shard, u32 ranges, u64 commit_seq (of the incarnation
                that starts, number 0), u64 commit_seq that was found last, then of commits
                before it that are missing (u64 first, u64 last) each
begin     'm'   u8 type, u8 version, u16 shard, u64 commit_seq; only in journals of replicas: the
                events of the shard up to this commit may not be there
========= ===== =============================================================================

A *run* is one kind of event of tasks that have everything but the id in common: a batch of a
thousand is one. A single event is a run of one, packed where it happens with one call of
``pack_one`` and an addition, because each of them is paid for by a task.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from ...errors import RecordCorruptError
from .frame import CHECKSUM_BYTES, open_frame, seal

__all__ = [
    "CANCELLED",
    "CLAIMED",
    "COMPLETED",
    "DIED",
    "ENQUEUED",
    "EXPIRED",
    "FORGOTTEN",
    "INGESTED",
    "NACKED",
    "REDRIVEN",
    "RELEASED",
    "EventKind",
    "EventRow",
    "Run",
    "StartRow",
    "decode_begin_row",
    "decode_event_row",
    "decode_start_row",
    "encode_begin_row",
    "encode_event_row",
    "encode_run",
    "encode_start_row",
    "pack_one",
    "pack_run",
    "tenant_queue_tag",
]


class EventKind(IntEnum):
    """Kinds of events of a task; ``INGESTED`` is of many. On-disk: never renumber."""

    ENQUEUED = 1
    CLAIMED = 2
    COMPLETED = 3
    NACKED = 4
    RELEASED = 5
    DIED = 6
    EXPIRED = 7
    REDRIVEN = 8
    CANCELLED = 9
    FORGOTTEN = 10
    INGESTED = 11


# The same as plain numbers, for those who pack one a task.
ENQUEUED: Final = 1
CLAIMED: Final = 2
COMPLETED: Final = 3
NACKED: Final = 4
RELEASED: Final = 5
DIED: Final = 6
EXPIRED: Final = 7
REDRIVEN: Final = 8
CANCELLED: Final = 9
FORGOTTEN: Final = 10
INGESTED: Final = 11

_KINDS: Final = frozenset(range(1, 12))
_NAME_BYTES_MAX: Final = 64
_HEAD: Final = struct.Struct("<BBHIQ")
_RUN: Final = struct.Struct("<BBHHHq")
_ONE: Final = struct.Struct("<BBHHHq16s")
_START: Final = struct.Struct("<BBHIQQ")
_RANGE: Final = struct.Struct("<QQ")
_BEGIN: Final = struct.Struct("<BBHQ")
# kind, priority, attempts, 1, text bytes, time_us, id; the tenant queue's tag and the text follow.
pack_one: Final = _ONE.pack


class Run(NamedTuple):
    """One kind of event of ``ids``, which have the rest in common."""

    kind: int
    priority: int
    attempts: int
    time_us: int
    queue: bytes
    tenant: bytes
    text: bytes
    ids: tuple[bytes, ...]


class EventRow(NamedTuple):
    """All events of one commit, in the order in which they happened."""

    shard: int
    commit_seq: int
    runs: tuple[Run, ...]


class StartRow(NamedTuple):
    """An incarnation starts at ``commit_seq``; what it found ends at commit ``last``.

    ``missing``: commits before that which are not there either, (first, last) of each range.
    """

    shard: int
    commit_seq: int
    last: int
    missing: tuple[tuple[int, int], ...]


def tenant_queue_tag(queue: bytes, tenant: bytes) -> bytes:
    """How a run names queue and tenant."""
    return bytes((len(queue), len(tenant))) + queue + tenant


def pack_run(
    kind: int,
    priority: int,
    attempts: int,
    time_us: int,
    tag: bytes,
    text: bytes,
    ids: Sequence[bytes],
) -> bytes:
    """Pack an event that several tasks have in common.

    Args:
        kind: see ``EventKind``.
        priority: 0 to 9.
        attempts: runs so far.
        time_us: wall microseconds.
        tag: from ``tenant_queue_tag``.
        text: a worker or a reason, at most 65,535 bytes.
        ids: of the tasks, 1 to 65,535.
    """
    head = _RUN.pack(kind, priority, attempts, len(ids), len(text), time_us)
    return head + b"".join(ids) + tag + text


def encode_run(run: Run) -> bytes:
    """The run's bytes."""
    tag = tenant_queue_tag(run.queue, run.tenant)
    return pack_run(run.kind, run.priority, run.attempts, run.time_us, tag, run.text, run.ids)


def encode_event_row(shard: int, commit_seq: int, runs: Sequence[bytes]) -> bytes:
    """The value's bytes, of packed runs."""
    return seal(_HEAD.pack(0x4A, 1, shard, len(runs), commit_seq) + b"".join(runs))


def decode_event_row(raw: bytes) -> EventRow:
    """The inverse."""
    open_frame(raw, _HEAD, 0x4A, 1, "events")
    _, _, shard, count, commit_seq = _HEAD.unpack_from(raw)
    at, end = _HEAD.size, len(raw) - CHECKSUM_BYTES
    runs: list[Run] = []
    while at < end:
        run, at = _run(raw, at, end)
        runs.append(run)
    if len(runs) != count:
        raise RecordCorruptError(f"events: {len(runs)} runs, {count} are announced")
    return EventRow(shard, commit_seq, tuple(runs))


def _run(raw: bytes, at: int, end: int) -> tuple[Run, int]:
    """The run that begins there, and where the next one does."""
    if at + _RUN.size > end:
        raise RecordCorruptError("events: a run is cut off")
    kind, priority, attempts, count, text_bytes, time_us = _RUN.unpack_from(raw, at)
    if kind not in _KINDS or priority > 9 or not count:
        raise RecordCorruptError(f"events: kind {kind}, priority {priority}, {count} ids")
    first = at + _RUN.size
    names = first + 16 * count
    if names + 2 > end:
        raise RecordCorruptError("events: a run is cut off")
    tenant_at = names + 2 + raw[names]
    text_at = tenant_at + raw[names + 1]
    behind = text_at + text_bytes
    if behind > end or raw[names] > _NAME_BYTES_MAX or raw[names + 1] > _NAME_BYTES_MAX:
        raise RecordCorruptError("events: lengths do not add up")
    ids = tuple(raw[i : i + 16] for i in range(first, names, 16))
    queue, tenant = raw[names + 2 : tenant_at], raw[tenant_at:text_at]
    text = raw[text_at:behind]
    return Run(kind, priority, attempts, time_us, queue, tenant, text, ids), behind


def encode_start_row(
    shard: int, commit_seq: int, last: int, missing: Iterable[tuple[int, int]]
) -> bytes:
    """The value's bytes.

    Args:
        shard: its number.
        commit_seq: of the incarnation's first commit.
        last: the last commit that the incarnation has found.
        missing: (first, last) of each range of commits before that which are not there.
    """
    ranges = [_RANGE.pack(*pair) for pair in missing]
    return seal(_START.pack(0x4E, 1, shard, len(ranges), commit_seq, last) + b"".join(ranges))


def decode_start_row(raw: bytes) -> StartRow:
    """The inverse."""
    open_frame(raw, _START, 0x4E, 1, "start of an incarnation")
    _, _, shard, count, commit_seq, last = _START.unpack_from(raw)
    if _START.size + count * _RANGE.size + CHECKSUM_BYTES != len(raw):
        raise RecordCorruptError("start of an incarnation: lengths do not add up")
    missing = tuple(_RANGE.unpack_from(raw, _START.size + i * _RANGE.size) for i in range(count))
    return StartRow(shard, commit_seq, last, missing)


def encode_begin_row(shard: int, commit_seq: int) -> bytes:
    """The record's bytes. ``commit_seq``: the last commit whose events may not be there."""
    return seal(_BEGIN.pack(0x6D, 1, shard, commit_seq))


def decode_begin_row(raw: bytes) -> tuple[int, int]:
    """(shard, commit_seq)."""
    open_frame(raw, _BEGIN, 0x6D, 1, "begin of a journal")
    if _BEGIN.size + CHECKSUM_BYTES != len(raw):
        raise RecordCorruptError("begin of a journal: lengths do not add up")
    _, _, shard, commit_seq = _BEGIN.unpack_from(raw)
    return shard, commit_seq
