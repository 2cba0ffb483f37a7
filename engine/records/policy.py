"""The policy of a task: how often it may fail and how long its end is kept; frozen at enqueue.

::

    0  u16 max_attempts      2  u8 backoff kind     3  u8 0
    4  f32 backoff factor    8  u32 base_ms         12 u32 cap_ms
    16 u64 retention_ms      24 u64 dead_retention_ms

Thirty-two bytes, carried verbatim by the task and its lease record, so that the reaper never
has to read a body to know what to do with an expired lease. Never renumber a backoff kind.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

__all__ = ["POLICY", "BackoffKind", "Policy", "decode_policy", "encode_policy"]

POLICY: Final = struct.Struct("<HBBfIIQQ")


class BackoffKind(IntEnum):
    """On-disk: never renumber."""

    FIXED = 0
    LINEAR = 1
    EXPONENTIAL = 2
    EQUAL_JITTER = 3
    FULL_JITTER = 4


class Policy(NamedTuple):
    """A decoded policy. Milliseconds throughout."""

    max_attempts: int
    backoff_kind: int
    backoff_factor: float
    backoff_base_ms: int
    backoff_cap_ms: int
    retention_ms: int
    dead_retention_ms: int


def encode_policy(p: Policy) -> bytes:
    """Thirty-two bytes."""
    return POLICY.pack(
        p.max_attempts,
        p.backoff_kind,
        0,
        p.backoff_factor,
        p.backoff_base_ms,
        p.backoff_cap_ms,
        p.retention_ms,
        p.dead_retention_ms,
    )


@lru_cache(maxsize=4096)  # a service has few policies and very many tasks
def decode_policy(raw: bytes) -> Policy:
    """The inverse (32 bytes, already under a record's checksum)."""
    attempts, kind, _, factor, base, cap, retention, dead = POLICY.unpack(raw)
    return Policy(attempts, kind, factor, base, cap, retention, dead)
