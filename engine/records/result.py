"""The result record: every end writes one; what waiters, archive and analytics read.

::

    0   u8   'R'            1   u8  version, 1
    2   u16  flags: bits 0-1 value kind, 2-3 compression, 4 value present, 5 face present, 6 of a
             member of a join, 7 attempts, 8 history
    4   u8   status         5   u8  priority       6  u16 attempts
    8   u64  epoch          16  u64 token hash (xxh3_64 of the token; 0: never leased)
    24  i64  created_us     32  i64 ready_us       40 i64 leased_us (0: never leased)
    48  i64  finished_us    56  u64 retention_ms
    64  u32  value bytes    68  u32 value bytes before compression
    72  u32  error bytes    76  u16 worker bytes   78 u8 queue bytes   79 u8 tenant bytes
    80       queue, tenant, worker, error (UTF-8), [u16 face bytes, face], value
             with history: u32 seconds from the end on for which the row is kept
    end u64  xxh3_64

Epoch and token hash make a repeated ``complete`` of the same lease succeed again. The face is that
of the task record (face.py).

Retention keeps the *result*, history keeps the *row*. A row with a value that is to be kept for
longer than its retention is rewritten without it when that ends (``without_value``), and has
retention 0 from then on: it is no result any more. One without a value is never rewritten: by the
clock it is a result first, and history afterwards (``result_until_ms``). Flag ``attempts`` says
that the task may have a row in ``a/``, which goes together with this one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from ...errors import RecordCorruptError
from .fixed_fields import FixedFields
from .frame import open_frame, seal

__all__ = [
    "HAS_ATTEMPTS",
    "HAS_FACE",
    "HAS_HISTORY",
    "HAS_VALUE",
    "HISTORY_S_MAX",
    "RESULT_FIELDS",
    "RESULT_HEAD",
    "RESULT_MARK",
    "ResultRecord",
    "Status",
    "decode_result",
    "encode_result",
    "face_length",
    "history_tail",
    "is_history",
    "pack_result_head",
    "result_due_ms",
    "result_until_ms",
    "token_hash",
    "without_value",
]

RESULT_FIELDS: Final = FixedFields(
    kind="B",
    version="B",
    flags="H",
    status="B",
    priority="B",
    attempts="H",
    epoch="Q",
    token="Q",
    created="q",
    ready="q",
    leased="q",
    finished="q",
    retention="Q",
    value="I",
    raw="I",
    error="I",
    worker="H",
    queue="B",
    tenant="B",
)
RESULT_HEAD: Final = RESULT_FIELDS.whole
HAS_VALUE: Final = 16
HAS_FACE: Final = 32
HAS_HISTORY: Final = 256
HAS_ATTEMPTS: Final = 128
HISTORY_S_MAX: Final = (1 << 32) - 1
_VALUE_FLAGS: Final = 15 | HAS_VALUE
_TAIL: Final = struct.Struct("<I")
# Stands before a face, which stands before the value; the flags get ``HAS_FACE`` with it.
face_length: Final[Callable[[int], bytes]] = struct.Struct("<H").pack
token_hash: Final = xxh3_64_intdigest  # of a lease's token
_KIND: Final = 0x52
_VERSION: Final = 1
RESULT_MARK: Final[int] = 0x0152  # kind and version, as the u16 that they are together
# The head in one call of C, for the fast path: ``RESULT_MARK``, then the fields of ``RESULT_HEAD``
# from flags on, with created_us and ready_us as the 16 bytes that lease records have. Names,
# worker, error, value and checksum follow it.
pack_result_head: Final[Callable[..., bytes]] = struct.Struct(
    f"<H{RESULT_FIELDS.part('flags', 'token')}16s{RESULT_FIELDS.part('leased', 'tenant')}"
).pack


class Status(IntEnum):
    """How a task ended. On-disk: never renumber."""

    COMPLETED = 1
    DEAD = 2
    EXPIRED = 3
    CANCELLED = 4


class ResultRecord(NamedTuple):
    """A decoded result record."""

    flags: int
    status: int
    priority: int
    attempts: int
    epoch: int
    token_hash: int
    created_us: int
    ready_us: int
    leased_us: int
    finished_us: int
    retention_ms: int
    raw_bytes: int
    queue: bytes
    tenant: bytes
    worker: bytes
    error: bytes
    value: bytes
    face: bytes = b""  # ``flags`` of a decoded record are without its bit
    history_s: int = 0


def history_tail(seconds: int) -> bytes:
    """Pack the end of a record with ``HAS_HISTORY``, behind its value; nothing for 0 seconds."""
    return _TAIL.pack(seconds) if seconds else b""


def result_until_ms(r: ResultRecord) -> int:
    """Until when it is a result, wall milliseconds; from then on it is history, or nothing."""
    return r.finished_us // 1000 + r.retention_ms


def result_due_ms(r: ResultRecord) -> int:
    """When the sweep has to look at it: to drop its value, else the row. 0 for one that is kept."""
    history_ms = r.history_s * 1000
    if r.flags & HAS_VALUE or history_ms <= r.retention_ms:
        return result_until_ms(r) if r.retention_ms else 0
    return r.finished_us // 1000 + history_ms


def is_history(r: ResultRecord, now_ms: int) -> bool:
    """Whether the row is history only: its retention is over, by the second in which it is swept.

    Without history it never is: then the sweep takes the whole row.
    """
    if not r.history_s or r.flags & HAS_VALUE:
        return False
    return not r.retention_ms or -(-result_until_ms(r) // 1000) * 1000 <= now_ms


def without_value(r: ResultRecord) -> ResultRecord:
    """The row as history alone, once its retention is over."""
    return r._replace(flags=r.flags & ~_VALUE_FLAGS, retention_ms=0, raw_bytes=0, value=b"")


def _flags_of(r: ResultRecord) -> int:
    flags = r.flags | HAS_HISTORY if r.history_s else r.flags & ~HAS_HISTORY
    return flags | HAS_FACE if r.face else flags


def encode_result(r: ResultRecord) -> bytes:
    """The record's bytes."""
    return seal(
        RESULT_HEAD.pack(
            _KIND,
            _VERSION,
            _flags_of(r),
            r.status,
            r.priority,
            r.attempts,
            r.epoch,
            r.token_hash,
            r.created_us,
            r.ready_us,
            r.leased_us,
            r.finished_us,
            r.retention_ms,
            len(r.value),
            r.raw_bytes,
            len(r.error),
            len(r.worker),
            len(r.queue),
            len(r.tenant),
        )
        + r.queue
        + r.tenant
        + r.worker
        + r.error
        + (face_length(len(r.face)) + r.face if r.face else b"")
        + r.value
        + history_tail(r.history_s)
    )


def decode_result(raw: bytes) -> ResultRecord:
    """The inverse; ``RecordCorruptError`` on anything else."""
    open_frame(raw, RESULT_HEAD, _KIND, _VERSION, "result record")
    (
        _,
        _,
        flags,
        status,
        priority,
        attempts,
        epoch,
        token,
        created,
        ready,
        leased,
        finished,
        retention,
        nv,
        raw_bytes,
        ne,
        nw,
        nq,
        nt,
    ) = RESULT_HEAD.unpack_from(raw)
    a = RESULT_HEAD.size + nq
    b = a + nt
    c = b + nw
    d = c + ne
    face = b""
    if flags & HAS_FACE:
        flags &= ~HAS_FACE
        nf = int.from_bytes(raw[d : d + 2], "little")
        face = raw[d + 2 : d + 2 + nf]
        d += 2 + nf
        if not nf:
            raise RecordCorruptError("result record: a face without a byte")
    e = d + nv
    history_s = 0
    if flags & HAS_HISTORY and e + 12 == len(raw):
        history_s = int.from_bytes(raw[e : e + 4], "little")
    elif flags & HAS_HISTORY or e + 8 != len(raw):
        raise RecordCorruptError("result record: lengths do not add up")
    if not 1 <= status <= 4:
        raise RecordCorruptError(f"result record: status {status} is not known")
    return ResultRecord(
        flags,
        status,
        priority,
        attempts,
        epoch,
        token,
        created,
        ready,
        leased,
        finished,
        retention,
        raw_bytes,
        raw[RESULT_HEAD.size : a],
        raw[a:b],
        raw[b:c],
        raw[c : c + ne],
        raw[d:e],
        face,
        history_s,
    )
