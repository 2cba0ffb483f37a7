"""The attempts record: how the runs of a task ended that did not complete it.

::

    0   u8  'a'    1  u8 version, 1    2  u16 attempts, at most 10, oldest first, each:
        u16 number    u8 outcome    u8 0    u16 worker bytes    u16 reason bytes
        i64 started_us    i64 ended_us    worker, reason (UTF-8)
    end u64 xxh3_64

A task whose first run completes it has none. The row is written by nack, reap and bury, outlives
the task as long as its result does, and goes together with it.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from ...errors import RecordCorruptError
from .frame import open_frame, seal

__all__ = [
    "ATTEMPTS_MAX",
    "REASON_BYTES_MAX",
    "AttemptRecord",
    "Outcome",
    "add_attempt",
    "decode_attempts",
    "encode_attempts",
]

ATTEMPTS_MAX: Final = 10
REASON_BYTES_MAX: Final = 512
_HEAD: Final = struct.Struct("<BBH")
_ONE: Final = struct.Struct("<HBBHHqq")
_KIND: Final = 0x61
_VERSION: Final = 1


class Outcome(IntEnum):
    """How a run ended. On-disk: never renumber."""

    NACKED = 1
    LEASE_EXPIRED = 2
    BURIED = 3


class AttemptRecord(NamedTuple):
    """One run. Times are wall microseconds; ``started_us`` 0: not known."""

    number: int
    outcome: int
    started_us: int
    ended_us: int
    worker: bytes
    reason: bytes


def _cut(text: bytes) -> bytes:
    """At most 512 bytes, cut at a character's edge."""
    if len(text) <= REASON_BYTES_MAX:
        return text
    return text[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode()


def encode_attempts(attempts: list[AttemptRecord]) -> bytes:
    """The record's bytes: of the last ten, reasons cut to 512 bytes."""
    parts = []
    for one in attempts[-ATTEMPTS_MAX:]:
        reason = _cut(one.reason)
        parts.append(
            _ONE.pack(
                one.number,
                one.outcome,
                0,
                len(one.worker),
                len(reason),
                one.started_us,
                one.ended_us,
            )
            + one.worker
            + reason
        )
    return seal(_HEAD.pack(_KIND, _VERSION, len(parts)) + b"".join(parts))


def decode_attempts(raw: bytes) -> list[AttemptRecord]:
    """The inverse; ``RecordCorruptError`` on anything else."""
    open_frame(raw, _HEAD, _KIND, _VERSION, "attempts record")
    count = int.from_bytes(raw[2:4], "little")
    at, end = _HEAD.size, len(raw) - 8
    found: list[AttemptRecord] = []
    for _ in range(count):
        if at + _ONE.size > end:
            raise RecordCorruptError("attempts record: lengths do not add up")
        number, outcome, _, n_worker, n_reason, started, ended = _ONE.unpack_from(raw, at)
        at += _ONE.size
        middle = at + n_worker
        if n_reason > REASON_BYTES_MAX:
            raise RecordCorruptError("attempts record: a reason is too long")
        if middle + n_reason > end or not 1 <= outcome <= len(Outcome):
            raise RecordCorruptError("attempts record: lengths do not add up")
        worker, reason = raw[at:middle], raw[middle : middle + n_reason]
        at = middle + n_reason
        found.append(AttemptRecord(number, outcome, started, ended, worker, reason))
    if at != end or not 1 <= count <= ATTEMPTS_MAX:
        raise RecordCorruptError("attempts record: lengths do not add up")
    return found


def add_attempt(raw: bytes | None, one: AttemptRecord) -> bytes:
    """The record with one more attempt; one that is damaged or not there begins anew."""
    earlier: list[AttemptRecord] = []
    if raw is not None:
        try:
            earlier = decode_attempts(raw)
        except RecordCorruptError:
            earlier = []
    earlier.append(one)
    return encode_attempts(earlier)
