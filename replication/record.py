"""A record of the log: consecutive entries of one shard and one term, as bytes.

    u64 xxh3 of what follows | msgpack [version, nonce, shard, term, first, [[commit_seq, ops], …]]

The version is the feature level of the cluster. ``ops`` is a flat list: key, value, key, value, …;
a deletion has nil for its value. The first entry has the index ``first``, the next one
``first + 1``, and so on. The nonce is drawn for each append: by it a leader without an answer
recognises its own record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgpack
from xxhash import xxh3_64_digest

from ..coalescer.replicator import Entry
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
]

T = TypeVar("T")
LEVEL = 1  # the newest version of records that this release reads and writes
NONCE_BYTES = 16
_KEYS, _VALUES = {bytes}, {bytes, type(None)}


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


def encode_record(record: LogRecord) -> bytes:
    """Bytes of a record."""
    batches = [[seq, [part for op in ops for part in op]] for seq, ops in record.batches]
    body: bytes = msgpack.packb(
        [record.level, record.nonce, record.shard, record.term, record.first, batches]
    )
    return xxh3_64_digest(body) + body


def decode_record(raw: bytes) -> LogRecord:
    """The record that ``raw`` holds; ``RecordCorruptError`` if it holds none."""
    body = raw[8:]
    if xxh3_64_digest(body) != raw[:8]:
        raise RecordCorruptError("a record of the log does not have its checksum")
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


def _ops(parts: Sequence[Any]) -> tuple[Op, ...]:
    keys, values = parts[::2], parts[1::2]
    if not set(map(type, keys)) <= _KEYS or not set(map(type, values)) <= _VALUES:
        raise TypeError("expected keys and values as bytes")
    return tuple(zip(keys, values, strict=True))


def _checked(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value
