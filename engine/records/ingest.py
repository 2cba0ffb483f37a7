"""The rows a load leaves in ``m/``: that it came in, and what of it is not counted yet.

============ ===== ==========================================================================
row          type  layout (little-endian), each sealed with xxh3_64
============ ===== ==========================================================================
ingested     'D'   u8 type, u8 version, u16 0, i64 taken_us, digest of the manifest:16,
                   u64 tasks, u64 skipped, u64 replaced
uncounted    'U'   u8 type, u8 version, u16 0, u32 shard queues, i64 seq_max, then each: u8 queue
                   bytes, u8 tenant bytes, u64 ready, u64 delayed, queue, tenant
============ ===== ==========================================================================

Both come in with the rows they speak of, in one atomic step. The commit that adds an *uncounted*
row to the counters deletes it; so at any moment the counters and what these rows say are what a
recount gives.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ...errors import RecordCorruptError
from .frame import CHECKSUM_BYTES, open_frame, seal

__all__ = [
    "Ingested",
    "LoadedRows",
    "Uncounted",
    "decode_ingested",
    "decode_uncounted",
    "encode_ingested",
    "encode_uncounted",
]

_INGESTED: Final = struct.Struct("<BBHq16sQQQ")
_UNCOUNTED: Final = struct.Struct("<BBHIq")
_ONE: Final = struct.Struct("<BBQQ")


class Ingested(NamedTuple):
    """A load that has come in on this shard, and by which manifest.

    ``skipped`` tasks of it did not, for their dedup key or their id was held; ``replaced`` is how
    many holders gave way.
    """

    taken_us: int
    digest: bytes
    tasks: int
    skipped: int
    replaced: int


class LoadedRows(NamedTuple):
    """How many rows a load has brought to one (queue, tenant)."""

    queue: bytes
    tenant: bytes
    ready: int
    delayed: int


class Uncounted(NamedTuple):
    """Tasks that no counter row has yet; ``seq_max``: no row of the load has a greater seq."""

    seq_max: int
    rows: tuple[LoadedRows, ...]


def encode_ingested(r: Ingested) -> bytes:
    """The value's bytes."""
    return seal(_INGESTED.pack(0x44, 1, 0, *r))


def decode_ingested(raw: bytes) -> Ingested:
    """The inverse."""
    open_frame(raw, _INGESTED, 0x44, 1, "ingested row")
    return Ingested(*_INGESTED.unpack_from(raw)[3:])


def encode_uncounted(seq_max: int, rows: Sequence[LoadedRows]) -> bytes:
    """The value's bytes."""
    each = [
        _ONE.pack(len(one.queue), len(one.tenant), one.ready, one.delayed) + one.queue + one.tenant
        for one in rows
    ]
    return seal(_UNCOUNTED.pack(0x55, 1, 0, len(each), seq_max) + b"".join(each))


def decode_uncounted(raw: bytes) -> Uncounted:
    """The inverse."""
    open_frame(raw, _UNCOUNTED, 0x55, 1, "uncounted row")
    _, _, _, count, seq_max = _UNCOUNTED.unpack_from(raw)
    at, end = _UNCOUNTED.size, len(raw) - CHECKSUM_BYTES
    rows: list[LoadedRows] = []
    while at + _ONE.size <= end:
        queue_bytes, tenant_bytes, ready, delayed = _ONE.unpack_from(raw, at)
        queue_at = at + _ONE.size
        tenant_at = queue_at + queue_bytes
        at = tenant_at + tenant_bytes
        rows.append(LoadedRows(raw[queue_at:tenant_at], raw[tenant_at:at], ready, delayed))
    if at != end or len(rows) != count:
        raise RecordCorruptError("uncounted row: lengths do not add up")
    return Uncounted(seq_max, tuple(rows))
