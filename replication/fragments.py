"""Records that are larger than one append: cut into fragments, put together again.

An adapter stores a record under its first index. One that does not fit is stored as *fragments*,
and under its first index stands a *head* that says how to put them together:

    u64 xxh3 of what follows
    msgpack [version, "cut", nonce, shard, term, first, last, fragments, bytes]

Fragments are keyed by (shard, first, term, nonce, number): the nonce, because a repeated request of
an attempt that was given up must not overwrite a fragment of the next one. They are stored in
order, each under the same fence as an append (the term leads, the tail is where the record
begins); the head goes last and moves the tail. So who sees the head sees all fragments, and
fragments without a head are no part of the log. They are left by leaders that were fenced: who wins
a campaign deletes those of other terms, and truncation deletes what goes with its records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgpack
from xxhash import xxh3_64_digest

from ..engine.records.compression import Compressor
from ..errors import RecordCorruptError
from .record import LogRecord, decode_record, encode_record

__all__ = ["ENTRY_BYTES_MAX", "CutRecord", "Head", "cut_record", "join_fragments", "read_stored"]

ENTRY_BYTES_MAX: Final = 8 << 20  # keys and values of one entry
_VERSION: Final = 1
_KIND: Final = "cut"
_FRAGMENTS_MAX: Final = 1 << 12


class Head(NamedTuple):
    """What stands in the place of a record that was cut."""

    nonce: bytes
    shard: int
    term: int
    first: int
    last: int
    fragments: int  # how many: 2 or more, numbered from 0
    size_bytes: int  # of all of them


class CutRecord(NamedTuple):
    """A record as it is stored: ``stored`` under its first index, after all ``fragments``."""

    stored: bytes
    fragments: tuple[bytes, ...]


def cut_record(record: LogRecord, bytes_max: int, packer: Compressor | None = None) -> CutRecord:
    """Encode ``record``; where that is longer than ``bytes_max``, into fragments and a head.

    Args:
        record: what to store.
        bytes_max: of one value.
        packer: as for ``encode_record``; what is cut is packed as a whole.
    """
    raw = encode_record(record, packer)
    if len(raw) <= bytes_max:
        return CutRecord(raw, ())
    parts = tuple(raw[at : at + bytes_max] for at in range(0, len(raw), bytes_max))
    head = [_VERSION, _KIND, *record[:4], record.last, len(parts), len(raw)]
    body: bytes = msgpack.packb(head)
    return CutRecord(xxh3_64_digest(body) + body, parts)


def read_stored(raw: bytes) -> LogRecord | Head:
    """What stands under the first index of a record: the record, or the head of its fragments.

    Raises:
        RecordCorruptError: neither.
    """
    body = raw[8:]
    if xxh3_64_digest(body) != raw[:8]:
        raise RecordCorruptError("a record of the log does not have its checksum")
    if body[2:6] != b"\xa3cut":  # array of nine, the version, a string of three
        return decode_record(raw)
    try:
        version, kind, nonce, *numbers = msgpack.unpackb(body)
        if (version, kind) != (_VERSION, _KIND) or not isinstance(nonce, bytes):
            raise ValueError(f"version {version!r}")
        if len(numbers) != 6 or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError("its numbers are none")
        head = Head(nonce, *numbers)
        if not 2 <= head.fragments <= _FRAGMENTS_MAX:
            raise ValueError(f"{head.fragments} fragments")
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise RecordCorruptError(f"the head of a cut record cannot be read: {error}") from error
    return head


def join_fragments(head: Head, fragments: Sequence[bytes]) -> LogRecord:
    """Put the record of ``head`` together.

    Raises:
        RecordCorruptError: a fragment is missing, damaged, or of another record.
    """
    raw = b"".join(fragments)
    if len(fragments) != head.fragments or len(raw) != head.size_bytes:
        raise RecordCorruptError(
            f"shard {head.shard}: the record at {head.first} has {len(fragments)} fragments of "
            f"{len(raw)} bytes, and its head says {head.fragments} of {head.size_bytes}"
        )
    record = decode_record(raw)
    found = (record.nonce, record.shard, record.term, record.first, record.last)
    if found != head[:5]:
        raise RecordCorruptError(
            f"shard {head.shard}: the fragments at {head.first} belong to another record"
        )
    return record
