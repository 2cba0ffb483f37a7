"""A journal's small files: the position, the index of a log file, the place of a tailer.

::

    slot     "LDJP" version:1 zero:3 generation:8 durable:8 file:8 offset:8 zero:16 check:8
    index    "LDJI" version:1 zero:3 first:8 count:4 every:4 log_bytes:8 entry* check:8
    entry    sequence:8 time_us:8 offset:8
    tailer   "LDJT" version:1 zero:3 next:8 stored_us:8 check:8
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple, overload

from xxhash import xxh3_64_digest

from ...errors import RecordCorruptError
from .log_format import SEQUENCE_MAX

__all__ = [
    "INDEX_BYTES_MAX",
    "POSITION_BYTES",
    "SLOT_AT",
    "TAILER_BYTES",
    "IndexEntry",
    "LogIndex",
    "Position",
    "TailerPosition",
    "decode_index",
    "decode_place",
    "decode_position",
    "encode_index",
    "encode_place",
    "encode_slot",
]

VERSION: Final = 1
SLOT_AT: Final = (0, 4096)
SLOT_BYTES: Final = 64
POSITION_BYTES: Final = 8192
TAILER_BYTES: Final = 32
INDEX_BYTES_MAX: Final = 64 << 20

_slot = Struct("<4sB3xQQQQ16x")
_index = Struct("<4sB3xQIIQ")
_entry = Struct("<QqQ")
_place = Struct("<4sB3xQq")


class Position(NamedTuple):
    """Records up to ``durable`` are fsynced; the last ends at ``offset`` of the file ``file``."""

    generation: int
    durable: int
    file: int
    offset: int


class IndexEntry(NamedTuple):
    """The frame at ``offset`` begins with record ``sequence``."""

    sequence: int
    time_us: int
    offset: int


class LogIndex(NamedTuple):
    """Index of a log file from record ``first`` on; its last frame ends at ``log_bytes``."""

    first: int
    every: int
    log_bytes: int
    entries: Sequence[IndexEntry]


class _Entries(Sequence[IndexEntry]):
    """Those of an index file. A search looks at a few of thousands: each is unpacked when asked."""

    def __init__(self, raw: bytes, count: int) -> None:
        self._raw = raw
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> IndexEntry: ...
    @overload
    def __getitem__(self, at: slice) -> list[IndexEntry]: ...
    def __getitem__(self, at: int | slice) -> IndexEntry | list[IndexEntry]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(self._count))]
        if not -self._count <= at < self._count:
            raise IndexError(at)
        return IndexEntry(
            *_entry.unpack_from(self._raw, _index.size + at % self._count * _entry.size)
        )


class TailerPosition(NamedTuple):
    """A tailer goes on with record ``following``."""

    following: int
    stored_us: int


def _sealed(body: bytes) -> bytes:
    return body + xxh3_64_digest(body)


def _opened(raw: bytes, magic: bytes, what: str) -> bytes:
    """Without its checksum."""
    if raw[:4] != magic or xxh3_64_digest(raw[:-8]) != raw[-8:]:
        raise RecordCorruptError(f"{what}: not what was written")
    if raw[4] != VERSION:
        raise RecordCorruptError(f"{what}: version {raw[4]} is not known")
    return raw[:-8]


def encode_slot(position: Position) -> bytes:
    """The 64 bytes that go to ``SLOT_AT[generation % 2]``."""
    return _sealed(_slot.pack(b"LDJP", VERSION, *position))


def decode_position(raw: bytes) -> Position | None:
    """The newer slot that is whole; None if neither is."""
    found = []
    for slot, at in enumerate(SLOT_AT):
        part = raw[at : at + SLOT_BYTES]
        if len(part) < SLOT_BYTES:
            continue
        try:
            position = Position(*_slot.unpack(_opened(part, b"LDJP", "position"))[2:])
        except RecordCorruptError:
            continue
        if position.generation % 2 == slot and position.durable < SEQUENCE_MAX:
            found.append(position)
    return max(found, default=None)


def encode_index(index: LogIndex) -> bytes:
    """The whole file."""
    parts = [
        _index.pack(b"LDJI", VERSION, index.first, len(index.entries), index.every, index.log_bytes)
    ]
    parts += [_entry.pack(*entry) for entry in index.entries]
    return _sealed(b"".join(parts))


def decode_index(raw: bytes) -> LogIndex:
    """Decode a whole index file.

    Raises:
        RecordCorruptError: it is none.
    """
    if not _index.size + 8 <= len(raw) <= INDEX_BYTES_MAX:
        raise RecordCorruptError(f"index: {len(raw)} bytes is not a possible size")
    body = _opened(raw, b"LDJI", "index")
    _, _, first, count, every, log_bytes = _index.unpack_from(body)
    if len(body) != _index.size + count * _entry.size:
        raise RecordCorruptError(f"index: {count} entries in {len(raw)} bytes")
    return LogIndex(first, every, log_bytes, _Entries(body, count))


def encode_place(place: TailerPosition) -> bytes:
    """The whole file."""
    return _sealed(_place.pack(b"LDJT", VERSION, *place))


def decode_place(raw: bytes) -> TailerPosition:
    """Decode a whole position file.

    Raises:
        RecordCorruptError: it is none.
    """
    if len(raw) != TAILER_BYTES:
        raise RecordCorruptError(f"tailer: {len(raw)} bytes is not a possible size")
    return TailerPosition(*_place.unpack(_opened(raw, b"LDJT", "tailer"))[2:])
