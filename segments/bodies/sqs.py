"""Typed records and explicit holes: version 2 of the shared message store's segments.

::

    header     magic:4 version:1 zero:59                       the first record lies at 64
    small      1:1                                             a hole of 1 byte
    hole       2:1 size:4 inner:(size - 5)
    message    3:1 size:4 id:16 body:(size - 21)
    checked    4:1 size:4 id:16 crc:4 body:(size - 25)         big-endian; size is the record's

A hole is passed over by its size, whatever it has inside. ``crc`` is CRC-32 over the record without
the field itself. ``docs/formats/sqs.md`` has the rules of scan, salvage and verify.

Behind damage, salvage looks at every byte for a record whose checksum holds (``sqs_search``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from ...errors import LimitError, PayloadTooLargeError, SegmentCorruptError, UsageError
from ..checksums import crc32
from ..item import Damage, Hole, Item, Record, Torn
from ..source import Source
from ..window import ReadAhead
from .sqs_search import (
    CHECKED,
    CHECKED_BYTES,
    CRC_AT,
    Sums,
    candidates,
    crc_of_both,
    is_intact,
)

__all__ = ["HEADER", "HEADER_BYTES", "SIZE_MAX", "Sqs"]

# On disk: never renumber.
_MAGIC: Final = b"LDQS"
_VERSION: Final = 2
_UNWRITTEN: Final = 0
_SMALL_HOLE: Final = 1
_HOLE: Final = 2
_MESSAGE: Final = 3

HEADER_BYTES: Final = 64
HEADER: Final = (_MAGIC + bytes([_VERSION])).ljust(HEADER_BYTES, b"\0")
SIZE_MAX: Final = (1 << 32) - 1  # of a record or hole: what its size can say
_SIZE_MIN: Final = {_HOLE: 5, _MESSAGE: 21, CHECKED: CHECKED_BYTES}
_HOLE_BYTES: Final = 5
_SMALL_HOLES_MAX: Final = 4
_FOREIGN: Final = re.compile(rb"RSQS|RCQ[A-HJ-RT-Z]")  # RCQI and RCQS have other records


@dataclass(frozen=True, slots=True)
class Sqs:
    """The codec.

    Args:
        foreign: The files are RabbitMQ's: of other magics, and without records of type 4.
        is_current: The file is being written and may be preallocated: zeros at its end are a torn
            rest.
    """

    foreign: bool = False
    is_current: bool = False

    name: ClassVar[str] = "sqs"
    suffix: ClassVar[str] = ".sqs"
    data_offset: ClassVar[int] = HEADER_BYTES

    def encode(self, id: bytes, body: bytes, *, checksum: bool = True) -> bytes:
        """The record's bytes. Raises PayloadTooLargeError."""
        return self.encode_head(id, body, checksum=checksum) + body

    def encode_head(self, id: bytes, body: bytes, *, checksum: bool = True) -> bytes:
        """Bytes before the body, for a writer that passes both on without a copy.

        Raises:
            PayloadTooLargeError: the record would have more than ``SIZE_MAX`` bytes.
        """
        kind = CHECKED if checksum else _MESSAGE
        body_max = SIZE_MAX - _SIZE_MIN[kind]
        if len(body) > body_max:
            raise PayloadTooLargeError(
                f"a body of {len(body):,} bytes; a record takes {body_max:,}",
                size_bytes=len(body),
                limit_bytes=body_max,
            )
        if len(id) != 16:
            raise UsageError(f"a message's id has 16 bytes, not {len(id)}")
        size = _SIZE_MIN[kind] + len(body)
        head = bytes([kind]) + size.to_bytes(4, "big") + id
        return head + crc32(body, crc32(head)).to_bytes(4, "big") if checksum else head

    def head_of(self, id: bytes, body_bytes: int, body_crc: int) -> bytes:
        """As ``encode_head``, for a body that is written already: its bytes and its CRC-32."""
        size = _SIZE_MIN[CHECKED] + body_bytes
        head = bytes([CHECKED]) + size.to_bytes(4, "big") + id
        return head + crc_of_both(crc32(head), body_crc, body_bytes).to_bytes(4, "big")

    def holes(self, gap: int) -> bytes:
        """Bytes to write where a gap begins; the rest of it may stay as it is.

        Raises:
            LimitError: the gap needs several holes, see ``split``.
        """
        if gap > SIZE_MAX:
            raise LimitError(f"a hole has at most {SIZE_MAX:,} bytes, not {gap:,}")
        if gap < _HOLE_BYTES:
            return bytes([_SMALL_HOLE]) * gap
        return bytes([_HOLE]) + gap.to_bytes(4, "big")

    def split(self, gap: int) -> list[int]:
        """The gaps, one behind the other, that ``holes`` takes each of."""
        full, rest = divmod(gap, SIZE_MAX)
        return [SIZE_MAX] * full + [rest] * bool(rest)

    def check_header(self, raw: bytes) -> None:
        """Raises SegmentCorruptError if ``raw`` does not begin with a header of ours, or theirs."""
        magic = raw[:4]
        known = _FOREIGN.fullmatch(magic) if self.foreign else magic == _MAGIC
        if not known or raw[4:HEADER_BYTES] != HEADER[4:]:
            raise SegmentCorruptError(
                f"bad_header: magic {magic!r}, version {raw[4:5].hex()}", reason="bad_header"
            )

    def decode(self, raw: bytes, offset: int = 0) -> Record:
        """See ``Format``."""
        kind, size = self._extent(raw, offset)
        if size > len(raw):
            raise _corrupt(offset, "torn_tail")
        if kind in (_SMALL_HOLE, _HOLE):
            raise _corrupt(offset, "no_record")
        if kind == CHECKED and not is_intact(raw[:size]):
            raise _corrupt(offset, "bad_checksum")
        return Record(offset, size, raw[_SIZE_MIN[kind] : size], id=raw[5:CRC_AT], kind=kind)

    def scan(
        self, source: Source, start: int | None = None, *, bodies: bool = True
    ) -> Iterator[Item]:
        """See ``Format``. A row of small holes is one hole."""
        window = ReadAhead(source)
        offset = HEADER_BYTES if start is None else start
        if start is None and not self._is_begun(window):
            yield from _rest(0, window.size)
            return
        if start is None:
            self.check_header(window.read(0, HEADER_BYTES))
        while offset < window.size:
            kind, size = self._measure(window, offset)
            if kind == _UNWRITTEN or offset + size > window.size:
                yield Torn(offset, window.size - offset)
                return
            if kind in (_SMALL_HOLE, _HOLE):
                yield Hole(offset, size)
            elif bodies:
                yield self.decode(window.read(offset, size), offset)
            else:
                yield Record(offset, size, b"", id=window.read(offset, CRC_AT)[5:], kind=kind)
            offset += size

    def salvage(self, source: Source) -> Iterator[Item]:
        """See ``Format``. Of records with one id the first that is whole is returned."""
        window, sums = ReadAhead(source), Sums(source)
        if not self._is_begun(window):
            yield from _rest(0, window.size)
            return
        try:
            self.check_header(window.read(0, HEADER_BYTES))
        except SegmentCorruptError as exc:
            yield Damage(0, HEADER_BYTES, exc.reason)
        seen: set[bytes] = set()
        offset = HEADER_BYTES
        while offset < window.size:
            item = self._mend(window, sums, offset)
            if isinstance(item, Record):
                if item.id in seen:
                    item = Damage(item.offset, item.size, "duplicate_id")
                else:
                    seen.add(item.id)
            yield item
            offset += item.size

    def verify(self, source: Source) -> list[Damage]:
        """See ``Format``."""
        found: list[Damage] = []
        before: Item | None = None
        for item in self.salvage(source):
            if isinstance(item, Damage):
                found.append(item)
            elif isinstance(item, Torn):
                if not (self.is_current and source.read(item.offset, 1) == b"\0"):
                    found.append(Damage(item.offset, item.size, "torn_tail"))
            elif isinstance(item, Hole):
                if isinstance(before, Hole) and before.size != SIZE_MAX:
                    found.append(Damage(item.offset, item.size, "hole_after_hole"))
                if item.size > _SMALL_HOLES_MAX and source.read(item.offset, 1) == b"\x01":
                    found.append(Damage(item.offset, item.size, "small_hole_run_too_long"))
            before = item
        return found

    def _is_begun(self, window: ReadAhead) -> bool:
        """If the header was written."""
        unwritten = self.is_current and window.run(0, b"\0") == window.size
        return window.size >= HEADER_BYTES and not unwritten

    def _extent(self, head: bytes, offset: int) -> tuple[int, int]:
        """Type and size of the record that ``head`` begins with; of a cut size, more than is there.

        Raises:
            SegmentCorruptError: nothing begins so.
        """
        kind = head[0] if head else _UNWRITTEN
        if kind == _SMALL_HOLE:
            return kind, 1
        least = 0 if kind == CHECKED and self.foreign else _SIZE_MIN.get(kind, 0)
        if not least:
            raise _corrupt(offset, "unrecognised_record_type")
        if len(head) < _HOLE_BYTES:
            return kind, _HOLE_BYTES
        size = int.from_bytes(head[1:5], "big")
        if size < least:
            raise _corrupt(offset, "invalid_hole_size" if kind == _HOLE else "invalid_message_size")
        return kind, size

    def _measure(self, window: ReadAhead, offset: int) -> tuple[int, int]:
        """The same of what lies at ``offset``: a row of small holes is one, and so is the rest."""
        head = window.read(offset, _HOLE_BYTES)
        if head[0] == _SMALL_HOLE:
            return _SMALL_HOLE, window.run(offset, b"\x01")
        left = window.size - offset
        if self.is_current and head[0] == _UNWRITTEN and window.run(offset, b"\0") == left:
            return _UNWRITTEN, left
        return self._extent(head, offset)

    def _mend(self, window: ReadAhead, sums: Sums, offset: int) -> Item:
        """Item at ``offset``; damage reaches to the next item that can be read."""
        left = window.size - offset
        try:
            kind, size = self._measure(window, offset)
        except SegmentCorruptError as exc:
            return Damage(offset, self._hunt(window, sums, offset + 1) - offset, exc.reason)
        if kind == _UNWRITTEN:
            return Torn(offset, left)
        if size > left:
            size = self._hunt(window, sums, offset + 1) - offset
            return Torn(offset, left) if size == left else Damage(offset, size, "torn_record")
        if kind in (_SMALL_HOLE, _HOLE):
            return Hole(offset, size)
        if kind == CHECKED and not sums.hold(offset, size):
            if not self._is_plausible(window, offset + size):
                size = self._hunt(window, sums, offset + 1) - offset
            return Damage(offset, size, "bad_checksum")
        return self.decode(window.read(offset, size), offset)

    def _is_plausible(self, window: ReadAhead, offset: int) -> bool:
        """If a record, or the end, can be at ``offset``. Zeros are no sign that one ends there."""
        if offset == window.size:
            return True
        try:
            _, size = self._extent(window.read(offset, _HOLE_BYTES), offset)
        except SegmentCorruptError:
            return False
        return offset + size <= window.size

    def _hunt(self, window: ReadAhead, sums: Sums, start: int) -> int:
        """Where the next record lies whose checksum holds; the end of the file if none does."""
        if self.foreign:
            return window.size
        for offset, size in candidates(window, start):
            if sums.is_spent():
                break
            if sums.hold(offset, size):
                return offset
        return window.size


def _rest(start: int, end: int) -> Iterator[Torn]:
    if start < end:
        yield Torn(start, end - start)


def _corrupt(offset: int, reason: str) -> SegmentCorruptError:
    return SegmentCorruptError(f"no record at {offset}: {reason}", offset=offset, reason=reason)
