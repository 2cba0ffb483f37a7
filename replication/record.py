"""A record of the log: consecutive entries of one shard and one term, as bytes.

    u64 xxh3 of what follows | msgpack [version, nonce, shard, term, first, [[commit_seq, ops], …]]

or, where a log keeps its records packed, with the msgpack as a frame of Zstandard:

    u64 xxh3 of what follows | c1 | u32 bytes of the msgpack | frame

The version is the feature level of the cluster. ``ops`` is a flat list: key, value, key, value, …;
a deletion has nil for its value. The first entry has the index ``first``, the next one
``first + 1``, and so on. The nonce is drawn for each append: by it a leader without an answer
recognises its own record.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import msgpack
from xxhash import xxh3_64_digest

from ..coalescer.replicator import Entry
from ..engine.records.compression import NONE, ZSTD, Compressor, inflate
from ..engine.store.port import Op
from ..errors import RecordCorruptError

__all__ = [
    "LEVEL",
    "NONCE_BYTES",
    "Batch",
    "LogRecord",
    "decode_record",
    "encode_record",
    "entries_of",
    "unpacked_bytes",
]

T = TypeVar("T")
LEVEL = 1  # the newest version of records that this release reads and writes
NONCE_BYTES = 16
_KEYS, _VALUES = {bytes}, {bytes, type(None)}
_PACKED = b"\xc1"  # no msgpack begins with it
_PACKED_AT, _SIZE_AT, _FRAME_AT = 8, 9, 13
_UNPACKED_BYTES_MAX = 16 << 20  # an entry of 8 MiB, and what is around its keys and values


class Batch(NamedTuple):
    """What one entry writes."""

    commit_seq: int
    ops: tuple[Op, ...]


class LogRecord(NamedTuple):
    """What one append adds.

    ``level`` is the feature level that it is written at, which the cluster's genesis says: every
    release in the cluster reads it.
    """

    nonce: bytes
    shard: int
    term: int
    first: int
    batches: tuple[Batch, ...]
    level: int = 1

    @property
    def last(self) -> int:
        """Index of its last entry."""
        return self.first + len(self.batches) - 1


def entries_of(record: LogRecord) -> list[Entry]:
    """The entries of a record, in order."""
    return [
        Entry(record.shard, record.term, record.first + n, commit_seq, ops)
        for n, (commit_seq, ops) in enumerate(record.batches)
    ]


def encode_record(record: LogRecord, packer: Compressor | None = None) -> bytes:
    """Bytes of a record.

    Args:
        record: what to encode.
        packer: of zstd: the record is packed where that is worth it. None: it is not.
    """
    batches = [[seq, list(chain.from_iterable(ops))] for seq, ops in record.batches]
    body: bytes = msgpack.packb(
        [record.level, record.nonce, record.shard, record.term, record.first, batches]
    )
    if packer is not None and len(body) <= _UNPACKED_BYTES_MAX:
        code, frame = packer.pack(body)
        if code != NONE:
            body = _PACKED + len(body).to_bytes(4, "big") + frame
    return xxh3_64_digest(body) + body


def unpacked_bytes(raw: bytes) -> int:
    """How long the record is that ``raw`` holds, or begins, once it is unpacked."""
    if raw[_PACKED_AT:_SIZE_AT] != _PACKED:
        return len(raw)
    return _PACKED_AT + int.from_bytes(raw[_SIZE_AT:_FRAME_AT], "big")


def decode_record(raw: bytes) -> LogRecord:
    """The record that ``raw`` holds; ``RecordCorruptError`` if it holds none."""
    body = raw[8:]
    if xxh3_64_digest(body) != raw[:8]:
        raise RecordCorruptError("a record of the log does not have its checksum")
    if body[:1] == _PACKED:
        body = _unpacked(raw)
    try:
        version, nonce, shard, term, first, batches = msgpack.unpackb(body)
        if not 1 <= _checked(version, int) <= LEVEL:
            raise RecordCorruptError(
                f"a record of the log has version {version}, and this release reads up to {LEVEL}"
            )
        return LogRecord(
            _checked(nonce, bytes),
            _checked(shard, int),
            _checked(term, int),
            _checked(first, int),
            tuple(Batch(_checked(seq, int), _ops(parts)) for seq, parts in batches),
            version,
        )
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise RecordCorruptError(f"a record of the log cannot be read: {error}") from error


def _unpacked(raw: bytes) -> bytes:
    size = unpacked_bytes(raw) - _PACKED_AT
    try:
        return inflate(ZSTD, raw[_FRAME_AT:], size, _UNPACKED_BYTES_MAX)
    except RecordCorruptError as error:  # of a payload, says what unpacks those
        raise RecordCorruptError(
            f"a record of the log says that it has {size} bytes, and cannot be unpacked to them"
        ) from error


def _ops(parts: Sequence[Any]) -> tuple[Op, ...]:
    keys, values = parts[::2], parts[1::2]
    if not set(map(type, keys)) <= _KEYS or not set(map(type, values)) <= _VALUES:
        raise TypeError("expected keys and values as bytes")
    return tuple(zip(keys, values, strict=True))


def _checked(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value
