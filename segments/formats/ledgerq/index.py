"""Finding records in a segment of LedgerQ: by its index (``.idx``), or by looking for them.

::

    header  "IQDL" version:2 0:2 base:8 count:8 0:4 crc:4     32 bytes; the CRC-32C of the first 28
    entry   id:8 offset:8 time_ns:8                           of the first record, and of each that
                                                              begins 4096 bytes after the last entry

All little-endian. The index is written when its segment is closed, and nothing depends on it.

Nothing marks the start of a record. Behind a damaged one every offset is looked at: where the fixed
fields could be those of a record, its checksum decides. What may be spent on checksums grows with
the bytes passed, so no file takes longer than in proportion to its size.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ....errors import SegmentCorruptError
from ...checksums import crc32c
from ...item import Damage, Record
from ...source import Source

__all__ = [
    "INDEX_INTERVAL_BYTES",
    "RECORD_BYTES_MAX",
    "Hunt",
    "Index",
    "IndexEntry",
    "decode_index",
    "encode_index",
    "index_damage",
    "is_indexed",
]

INDEX_INTERVAL_BYTES: Final = 4096
RECORD_BYTES_MAX: Final = 256 << 20  # LedgerQ takes 10 MiB by default, and u32 at most
_MAGIC: Final = 0x4C445149
_HEADER: Final = struct.Struct("<IHHQQI")
_ENTRY: Final = struct.Struct("<QQq")
_U32: Final = struct.Struct("<I")
_HEADER_BYTES: Final = _HEADER.size + 4

_HEAD_BYTES: Final = 22  # length to time
_LENGTH_MIN: Final = _HEAD_BYTES + 4
_BLOCK: Final = 256 << 10
_TYPES: Final = rb"[\x01-\x03]"
_FLAGS: Final = rb"[\x00\x01\x04\x05\x08\x09\x0c\x0d\x10\x11\x14\x15\x18\x19\x1c\x1d]"
# A head: a length up to RECORD_BYTES_MAX, a type, known flags, an id, a time that is not negative.
_CANDIDATE: Final = re.compile(
    rb"(?=.{3}[\x00-\x10]" + _TYPES + _FLAGS + rb".{15}[\x00-\x7f])", re.DOTALL
)
_BEGUN: Final = re.compile(_TYPES + rb"?\Z|" + _TYPES + _FLAGS, re.DOTALL)
# Checksums while hunting: this much in any case, and so much for every byte passed.
_HUNT_BYTES: Final = 64 << 20
_HUNT_RATE: Final = 16
_LED_BYTES: Final = 4 << 20
_LED_FILES: Final = 2  # so often the file where a length leads, whatever the hunt has taken


class IndexEntry(NamedTuple):
    """Where one record lies in the segment, and what is in it."""

    id: int
    offset: int
    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class Index:
    """``base`` is the number in the file's name."""

    base: int
    entries: tuple[IndexEntry, ...]

    def offset_before(self, message_id: int) -> int | None:
        """Where to start a scan for this id; None: with the segment's first record."""
        at = bisect_right(self.entries, message_id, key=lambda entry: entry.id)
        return self.entries[at - 1].offset if at else None


def encode_index(index: Index) -> bytes:
    """The whole file."""
    head = _HEADER.pack(_MAGIC, 1, 0, index.base, len(index.entries), 0)
    entries = b"".join(_ENTRY.pack(*entry) for entry in index.entries)
    return head + _U32.pack(crc32c(head)) + entries


def decode_index(raw: bytes) -> Index:
    """The inverse; ``SegmentCorruptError`` on anything else.

    The checksum does not cover the entries: what they say is a hint until the record is read.
    """
    if len(raw) < _HEADER_BYTES:
        raise _corrupt(0, f"only {len(raw)} of {_HEADER_BYTES} bytes")
    magic, version, flags, base, count, rest = _HEADER.unpack_from(raw)
    if magic != _MAGIC:
        raise _corrupt(0, "not an index of LedgerQ")
    if crc32c(raw[: _HEADER.size]) != _U32.unpack_from(raw, _HEADER.size)[0]:
        raise _corrupt(0, "wrong checksum")
    if version != 1 or flags or rest:
        raise _corrupt(0, "not version 1")
    if len(raw) != _HEADER_BYTES + count * _ENTRY.size:
        raise _corrupt(_HEADER_BYTES, f"{len(raw)} bytes are not {count} entries")
    entries = tuple(IndexEntry(*entry) for entry in _ENTRY.iter_unpack(raw[_HEADER_BYTES:]))
    last = IndexEntry(0, 0, 0)
    for number, entry in enumerate(entries):
        if entry.id <= last.id or entry.offset <= last.offset:
            raise _corrupt(_HEADER_BYTES + number * _ENTRY.size, "entries out of order")
        last = entry
    return Index(base, entries)


def is_indexed(offset: int, last: int | None) -> bool:
    """Whether LedgerQ gives a record an entry; ``last`` is the offset that has the last one."""
    return last is None or offset - last >= INDEX_INTERVAL_BYTES


def index_damage(index: Index, base: int, records: Iterable[IndexEntry]) -> list[Damage]:
    """Findings: entries that do not fit the segment's records, by offset in the index.

    LedgerQ starts reading where an entry points to, so that must be a record, with that id.
    """
    found = []
    if index.base != base:
        found.append(Damage(8, 8, f"index of segment {index.base}, not {base}"))
    there = iter(records)
    record = next(there, None)
    for number, entry in enumerate(index.entries):
        while record is not None and record.offset < entry.offset:
            record = next(there, None)
        if record != entry:
            at = _HEADER_BYTES + number * _ENTRY.size
            found.append(Damage(at, _ENTRY.size, f"no record {entry.id} at {entry.offset}"))
    return found


class Hunt:
    """The way on behind damage.

    Args:
        source: the segment.
        whole: reads the record at an offset; ``SegmentCorruptError`` where there is none.
    """

    def __init__(self, source: Source, whole: Callable[[int], Record]) -> None:
        self._source = source
        self._size = source.size
        self._whole = whole
        self._allowance = _HUNT_BYTES
        self._led_allowance = _LED_BYTES + _LED_FILES * self._size

    def next_good(self, bad: int) -> int:
        """Where reading goes on behind the bad record at ``bad``; the end, if nowhere.

        Its length is believed if a record, or the end, lies where it points to, and if no records
        lie in between that lead there: then it is the length that is damaged. A record that is
        part of the payload leads elsewhere.
        """
        target = self._after(bad)
        visited: set[int] = set()
        for at in self._candidates(bad + 1, self._size if target is None else target):
            if at in visited or not self._holds(at):
                continue
            if target is None or self._leads(at, target, visited):
                return at
        return self._size if target is None else target

    def is_torn(self, bad: int) -> bool:
        """Whether the bad record at ``bad``, behind which is none, was never written whole.

        Either it is longer than what is left, or what is left ends with zeros where its checksum
        would be.
        """
        left = self._size - bad
        length = self._length(bad)
        if left < 4 or length > left:
            return self._is_begun(bad, left, length)
        zeros_at = bad + (length - 4 if length >= _LENGTH_MIN else 4)
        return not any(
            any(self._source.read(at, _BLOCK)) for at in range(zeros_at, self._size, _BLOCK)
        )

    def _length(self, at: int) -> int:
        raw = self._source.read(at, 4)
        return int.from_bytes(raw, "little") if len(raw) == 4 else 0

    def _is_begun(self, bad: int, left: int, length: int) -> bool:
        """Whether the last ``left`` bytes are the start of a record of ``length``.

        They are not if they are a whole record but for their length.
        """
        if max(length, left) > RECORD_BYTES_MAX:
            return False
        raw = self._source.read(bad, left)
        if not _BEGUN.match(raw, 4) and left >= 4:
            return False
        whole = left - 4
        if whole < _LENGTH_MIN:
            return True
        check = crc32c(raw[4 : whole - 4], crc32c(_U32.pack(whole)))
        return bool(check != _U32.unpack_from(raw, whole - 4)[0])

    def _after(self, bad: int) -> int | None:
        """Offset that the length of a bad record points to, if a record or the end is there."""
        length = self._length(bad)
        if length < _LENGTH_MIN or bad + length > self._size:
            return None
        at = min(bad + length + 4, self._size)
        return at if at == self._size or self._holds(at, is_led=True) else None

    def _candidates(self, start: int, end: int) -> Iterator[int]:
        """Offsets from ``start`` on, before ``end``, where a record could begin."""
        while start < end:
            count = min(_BLOCK, end - start)
            block = self._source.read(start, count + _HEAD_BYTES - 1)
            for match in _CANDIDATE.finditer(block):
                if match.start() < count:
                    yield start + match.start()
            self._allowance += _HUNT_RATE * count
            start += count

    def _holds(self, at: int, *, is_led: bool = False) -> int:
        """The size of the record there, as far as the allowance goes; 0 if there is none."""
        length = self._length(at)
        allowance = self._led_allowance if is_led else self._allowance
        if not _LENGTH_MIN <= length <= min(self._size - at, allowance):
            return 0
        if is_led:
            self._led_allowance -= length
        else:
            self._allowance -= length
        try:
            return self._whole(at).size
        except SegmentCorruptError:
            return 0

    def _leads(self, at: int, target: int, visited: set[int]) -> bool:
        """Whether one record after the other leads from ``at`` to ``target``."""
        while at < target and at not in visited:
            visited.add(at)
            size = self._holds(at)
            if not size:
                return False
            at += size
        return at == target


def _corrupt(offset: int, reason: str) -> SegmentCorruptError:
    return SegmentCorruptError(f"index at {offset}: {reason}", offset=offset, reason=reason)
