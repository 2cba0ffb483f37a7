"""The lease record: at most one per task; its presence is what makes a task *leased*.

::

    0   u8   'L'            1   u8  version, 1
    2   u16  flags: 1 exported, 2 moved (an s/ row exists), 4 body (a b/ row), 8 member (of a join),
             16 restarted (in full, after an unclean end; no heartbeat has come since),
             32 dead (of a dead letter: it goes back there)
    4   u16  attempts (this run included)      6  u8 priority   7 u8 0
    8   u64  epoch          16  16 B token
    32  i64  leased_us      40  u32 lease_ms   44 u32 record bytes of the task
    48  i64  created_us     56  i64 seq (of the ready key; dead: when it died, microseconds)
    64  i64  expires_ms (TTL; dead: 0)
    72  32 B policy         104 16 B ghost key 120 i64 ghost_expires_ms
    128 u8   queue bytes    129 u8 tenant bytes   130 u16 worker bytes
    132 i32  its end, in eighths of a second from leased_us; 0: after lease_ms
    136      queue, tenant, worker; dead: the row that it goes back as, sealed like any other
    end u64  xxh3_64

It holds everything the reaper and ``complete`` need, so neither reads the task's body.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from ...errors import RecordCorruptError
from .fixed_fields import FixedFields
from .frame import open_frame, seal
from .rows import decode_index_row

__all__ = [
    "BODY_LEASE",
    "DEAD_LEASE",
    "EXPORTED",
    "LEASE_BODY",
    "LEASE_END_US",
    "LEASE_FIELDS",
    "LEASE_HEAD",
    "LEASE_MARK",
    "MOVED_FLAG",
    "RESTARTED",
    "LeaseRecord",
    "decode_lease",
    "encode_lease",
    "encode_lease_head",
    "encode_lease_tail",
    "ending_at",
    "ends_us",
    "lease_packer",
]

LEASE_FIELDS: Final = FixedFields(
    kind="B",
    version="B",
    flags="H",
    attempts="H",
    priority="B",
    unused="B",
    epoch="Q",
    token="16s",
    leased="q",
    lease_ms="I",
    record="I",
    created="q",
    seq="q",
    expires="q",
    policy="32s",
    ghost="16s",
    ghost_until="q",
    queue="B",
    tenant="B",
    worker="H",
    end="i",
)
# Head (changes with every lease) and tail (the same for all leases of a worker on a queue) are
# packed apart: the hot path keeps the tail.
LEASE_HEAD: Final = struct.Struct(f"<{LEASE_FIELDS.part('kind', 'expires')}")
LEASE_TAIL: Final = struct.Struct(f"<{LEASE_FIELDS.part('policy', 'end')}")
LEASE_BODY: Final = LEASE_FIELDS.whole
_KIND: Final = 0x4C
_VERSION: Final = 1
LEASE_MARK: Final[int] = 0x014C  # kind and version, as the u16 that they are together
EXPORTED: Final = 1
MOVED_FLAG: Final = 2
BODY_LEASE: Final = 4  # both are those of the index row, one bit up
RESTARTED: Final = 16
DEAD_LEASE: Final = 32
LEASE_END_US: Final = 125_000  # an eighth of a second
_END_MAX: Final = (1 << 31) - 1  # eighths of a second: 8 years


class LeaseRecord(NamedTuple):
    """A decoded lease record."""

    flags: int
    attempts: int
    priority: int
    epoch: int
    token: bytes
    leased_us: int
    lease_ms: int
    record_bytes: int
    created_us: int
    seq: int
    expires_ms: int
    policy: bytes
    ghost: bytes
    ghost_expires_ms: int
    queue: bytes
    tenant: bytes
    worker: bytes
    end: int = 0
    dead_row: bytes = b""  # of a dead letter


def ends_us(record: LeaseRecord) -> int:
    """When a lease ends, in wall microseconds, as its row has it: it knows no heartbeats."""
    after_us = record.end * LEASE_END_US if record.end else record.lease_ms * 1000
    return record.leased_us + after_us


def ending_at(record: LeaseRecord, until_us: int) -> LeaseRecord:
    """The same lease with another end, rounded up to an eighth of a second."""
    end = -((record.leased_us - until_us) // LEASE_END_US) or 1
    return record._replace(end=max(-_END_MAX, min(end, _END_MAX)))


def encode_lease_head(r: LeaseRecord) -> bytes:
    """The part that changes with every lease."""
    return LEASE_HEAD.pack(
        _KIND,
        _VERSION,
        r.flags,
        r.attempts,
        r.priority,
        0,
        r.epoch,
        r.token,
        r.leased_us,
        r.lease_ms,
        r.record_bytes,
        r.created_us,
        r.seq,
        r.expires_ms,
    )


def encode_lease_tail(
    policy: bytes,
    ghost: bytes,
    ghost_expires_ms: int,
    queue: bytes,
    tenant: bytes,
    worker: bytes,
    end: int = 0,
) -> bytes:
    """The part that stays.

    Args:
        policy: 32 bytes.
        ghost: 16 bytes, ``NO_GHOST`` for none.
        ghost_expires_ms: wall milliseconds; 0: while the task lives.
        queue: its name, at most 64 bytes.
        tenant: as ``queue``.
        worker: at most 256 bytes.
        end: as ``LeaseRecord`` has it.
    """
    return (
        LEASE_TAIL.pack(policy, ghost, ghost_expires_ms, len(queue), len(tenant), len(worker), end)
        + queue
        + tenant
        + worker
    )


@lru_cache(maxsize=1024)
def lease_packer(tail_bytes: int) -> Callable[..., bytes]:
    """``encode_lease`` but for the checksum, in one call of C: for the claims of the fast path.

    What is returned takes ``LEASE_MARK``, flags, attempts, priority, epoch, token, leased_us,
    lease_ms, record bytes of the task, its times (created_us and seq, packed), expires_ms, and a
    tail of ``tail_bytes`` from ``encode_lease_tail``.
    """
    until_priority = LEASE_FIELDS.part("flags", "priority")
    until_times = LEASE_FIELDS.part("epoch", "record")
    return struct.Struct(f"<H{until_priority}x{until_times}16sq{tail_bytes}s").pack


def encode_lease(r: LeaseRecord) -> bytes:
    """The record's bytes."""
    return seal(
        encode_lease_head(r)
        + encode_lease_tail(
            r.policy, r.ghost, r.ghost_expires_ms, r.queue, r.tenant, r.worker, r.end
        )
        + r.dead_row
    )


def decode_lease(raw: bytes) -> LeaseRecord:
    """The inverse; ``RecordCorruptError`` on anything else."""
    open_frame(raw, LEASE_BODY, _KIND, _VERSION, "lease record")
    (
        _,
        _,
        flags,
        attempts,
        priority,
        _,
        epoch,
        token,
        leased,
        lease_ms,
        nrec,
        created,
        seq,
        expires,
        policy,
        ghost,
        ghost_exp,
        nq,
        nt,
        nw,
        end,
    ) = LEASE_BODY.unpack_from(raw)
    a = LEASE_BODY.size + nq
    b = a + nt
    dead_row = raw[b + nw : -8]
    if b + nw + 8 > len(raw) or bool(dead_row) != bool(flags & DEAD_LEASE) or priority > 9:
        raise RecordCorruptError("lease record: lengths do not add up")
    if dead_row:
        decode_index_row(dead_row)
    return LeaseRecord(
        flags,
        attempts,
        priority,
        epoch,
        token,
        leased,
        lease_ms,
        nrec,
        created,
        seq,
        expires,
        policy,
        ghost,
        ghost_exp,
        raw[LEASE_BODY.size : a],
        raw[a:b],
        raw[b : b + nw],
        end,
        dead_row,
    )
