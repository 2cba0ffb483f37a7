"""The result record: every end writes one; what waiters, archive and analytics read.

::

    0   u8   'R'            1   u8  version, 1
    2   u16  flags: bits 0-1 value kind, 2-3 compression, 4 value present
    4   u8   status         5   u8  priority       6  u16 attempts
    8   u64  epoch          16  u64 token hash (xxh3_64 of the token; 0: never leased)
    24  i64  created_us     32  i64 ready_us       40 i64 leased_us (0: never leased)
    48  i64  finished_us    56  u64 retention_ms
    64  u32  value bytes    68  u32 value bytes before compression
    72  u32  error bytes    76  u16 worker bytes   78 u8 queue bytes   79 u8 tenant bytes
    80       queue, tenant, worker, error (UTF-8), value
    end u64  xxh3_64

Epoch and token hash make a repeated ``complete`` of the same lease succeed again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from ...errors import RecordCorruptError
from .frame import open_frame, seal

__all__ = [
    "HAS_VALUE",
    "RESULT_HEAD",
    "RESULT_MARK",
    "ResultRecord",
    "Status",
    "decode_result",
    "encode_result",
    "pack_result_head",
    "token_hash",
]

RESULT_HEAD: Final = struct.Struct("<BBHBBHQQqqqqQIIIHBB")
HAS_VALUE: Final = 16
token_hash: Final = xxh3_64_intdigest  # of a lease's token
_KIND: Final = 0x52
_VERSION: Final = 1
RESULT_MARK: Final[int] = 0x0152  # kind and version, as the u16 that they are together
# The head in one call of C, for the fast path: ``RESULT_MARK``, then the fields of ``RESULT_HEAD``
# from flags on, with created_us and ready_us as the 16 bytes that lease records have. Names,
# worker, error, value and checksum follow it.
pack_result_head: Final[Callable[..., bytes]] = struct.Struct("<HHBBHQQ16sqqQIIIHBB").pack


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


def encode_result(r: ResultRecord) -> bytes:
    """The record's bytes."""
    return seal(
        RESULT_HEAD.pack(
            _KIND,
            _VERSION,
            r.flags,
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
        + r.value
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
    if d + nv + 8 != len(raw) or not 1 <= status <= 4:
        raise RecordCorruptError("result record: lengths do not add up")
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
        raw[c:d],
        raw[d : d + nv],
    )
