"""A segment of LedgerQ, version 1 (``.log``). ``docs/formats/ledgerq.md`` has the whole directory.

::

    header  "QQDL" version:2 0:2 base:8 created_ns:8 min_id:8 max_id:8 0:20 crc:4           64 bytes
    record  length:4 type:1 flags:1 id:8 time_ns:8 [priority:1] [expires_ns:8]
            [count:2 (size:2 key size:2 value)*] [compression:1] payload crc:4   00 00 00 00

All little-endian. ``length`` counts itself and the checksum, not the four zeros; the checksum, a
CRC-32C, covers what is before it. The flags 16, 4, 8 and 1 say which of the optional fields are
there. ``min_id`` and ``max_id`` are 0 until the segment is closed.

How reading goes on behind a damaged record is in ``index``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ....errors import CorruptionError, PayloadTooLargeError, SegmentCorruptError, UsageError
from ...checksums import crc32c
from ...item import Damage, Item, Record, Torn
from ...source import Source
from ...window import ReadAhead
from .index import RECORD_BYTES_MAX, Hunt

__all__ = [
    "CONTENT_BYTES_MAX",
    "DATA",
    "HEADER_BYTES",
    "LedgerQ",
    "SegmentHeader",
    "content",
    "decode_header",
    "encode",
    "encode_header",
]

HEADER_BYTES: Final = 64
CONTENT_BYTES_MAX: Final = 100 << 20  # LedgerQ inflates no more either
DATA: Final = 1  # the type of what was enqueued; 2 is a tombstone, 3 a checkpoint, never written
_U16_MAX: Final = 0xFFFF
_MAGIC: Final = 0x4C445151
_HEADER: Final = struct.Struct("<IHHQqQQ20s")
_HEAD: Final = struct.Struct("<IBBQq")
_U16, _U32, _I64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<q")
_LENGTH_MIN: Final = _HEAD.size + 4
_PAD: Final = bytes(4)
_COMPRESSED, _EXPIRES, _HEADERS, _PRIORITY = 1, 4, 8, 16
_FLAGS: Final = _COMPRESSED | _EXPIRES | _HEADERS | _PRIORITY  # 2 is encrypted: never written
_ENCODINGS: Final = ("none", "gzip")  # by the number in the compression field
_HEAD_BYTES: Final = 256  # usually all before the payload
_START: Final = struct.pack("<IHH", _MAGIC, 1, 0)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """``base`` is the number in the file's name. Ids are 0 while the segment is open, or empty."""

    base: int
    created_ns: int
    min_id: int = 0
    max_id: int = 0


def encode_header(header: SegmentHeader) -> bytes:
    """64 bytes."""
    raw = _HEADER.pack(
        _MAGIC, 1, 0, header.base, header.created_ns, header.min_id, header.max_id, b""
    )
    return raw + _U32.pack(crc32c(raw))


def decode_header(raw: bytes) -> SegmentHeader:
    """The inverse; ``SegmentCorruptError`` on anything else."""
    if len(raw) < HEADER_BYTES:
        raise _corrupt(0, f"header: only {len(raw)} of {HEADER_BYTES} bytes")
    magic, version, flags, base, created_ns, min_id, max_id, rest = _HEADER.unpack_from(raw)
    if magic != _MAGIC:
        raise _corrupt(0, "header: not a segment of LedgerQ")
    if crc32c(raw[: _HEADER.size]) != _U32.unpack_from(raw, _HEADER.size)[0]:
        raise _corrupt(0, "header: wrong checksum")
    if version != 1 or flags or any(rest):
        raise _corrupt(0, "header: not version 1")
    return SegmentHeader(base, created_ns, min_id, max_id)


def encode(record: Record) -> bytes:
    """The record's bytes, with the four zeros behind it.

    ``offset``, ``size`` and ``id`` are not part of it; ``kind`` 0 stands for ``DATA``. What LedgerQ
    would let wrap is refused.

    Raises:
        PayloadTooLargeError: headers or record exceed what their length fields can say, or
            ``RECORD_BYTES_MAX``.
        UsageError: another field is not one that LedgerQ reads back.
    """
    priority, expires_ns = record.priority, record.expires_ns
    if not (
        0 < record.sequence < 1 << 64
        and 0 < record.timestamp_ns < 1 << 63
        and (expires_ns == 0 or record.timestamp_ns < expires_ns < 1 << 63)
        and (priority is None or 0 <= priority <= 2)
        and 0 <= record.kind <= 3
        and record.encoding in ("", *_ENCODINGS)
    ):
        raise UsageError(f"record {record.sequence} has a field that LedgerQ would not read back")
    flags, options = 0, b""
    if priority is not None:
        flags, options = flags | _PRIORITY, bytes((priority,))
    if expires_ns:
        flags, options = flags | _EXPIRES, options + _I64.pack(expires_ns)
    if record.headers:
        flags, options = flags | _HEADERS, options + _encode_headers(record.headers)
    if record.encoding:
        flags |= _COMPRESSED
        options += bytes((_ENCODINGS.index(record.encoding),))
    length = _bounded("record", _LENGTH_MIN + len(options) + len(record.payload), RECORD_BYTES_MAX)
    head = _HEAD.pack(length, record.kind or DATA, flags, record.sequence, record.timestamp_ns)
    raw = head + options + record.payload
    return raw + _U32.pack(crc32c(raw)) + _PAD


def content(record: Record) -> bytes:
    """The payload as it was enqueued.

    Raises:
        SegmentCorruptError: it is not what gzip writes, or says or turns out to be larger than
            ``CONTENT_BYTES_MAX``. No more than what it says is ever inflated.
    """
    if record.encoding != "gzip":
        return record.payload
    said = int.from_bytes(record.payload[-4:], "little")
    if said > CONTENT_BYTES_MAX:
        raise _corrupt(record.offset, f"payload of {said} bytes; {CONTENT_BYTES_MAX} at most")
    engine = zlib.decompressobj(31)
    try:
        data = engine.decompress(record.payload, said + 1)
    except zlib.error as exc:
        raise _corrupt(record.offset, f"payload: {exc}") from exc
    # LedgerQ writes one member; what follows it would be skipped or inflated in turn.
    if not engine.eof or engine.unused_data or len(data) != said:
        raise _corrupt(record.offset, "payload: its size is not the one it says")
    return data


class LedgerQ:
    """The codec; see ``Format``. Without state: one instance serves all."""

    name = "ledgerq"
    suffix = ".log"
    data_offset = HEADER_BYTES

    def decode(self, raw: bytes, offset: int = 0) -> Record:
        """See ``Format``. The four zeros may be cut off, and are not looked at."""
        length = _length(raw, offset)
        if length > len(raw):
            raise _corrupt(offset, f"only {len(raw)} of {length} bytes")
        end = length - 4
        checked = raw[:end]
        if crc32c(checked) != _U32.unpack_from(raw, end)[0]:
            raise _corrupt(offset, "wrong checksum")
        fields = _fields(checked, offset)
        return fields.record(offset, min(length + 4, len(raw)), raw[fields.end : end])

    def encode(self, record: Record) -> bytes:
        """See ``encode``."""
        return encode(record)

    def scan(
        self, source: Source, start: int | None = None, *, bodies: bool = True
    ) -> Iterator[Item]:
        """See ``Format``. A damaged header is an error, whatever ``start`` is."""
        start = HEADER_BYTES if start is None else start
        if start < HEADER_BYTES:
            raise UsageError(f"no record starts at {start}: the header has {HEADER_BYTES} bytes")
        for item in _Segment(self, source).items(start, bodies=bodies):
            if isinstance(item, Damage):
                raise _corrupt(item.offset, item.reason)
            yield item

    def salvage(self, source: Source) -> Iterator[Item]:
        """See ``Format``. Damage of the header comes first; the rest tiles the file."""
        yield from _Segment(self, source).all_items()

    def verify(self, source: Source) -> list[Damage]:
        """See ``Format``: also the zeros, the order of ids, and the ids in the header."""
        found: list[Damage] = []
        lowest = highest = last = 0
        segment = _Segment(self, source)
        for item in segment.all_items():
            if isinstance(item, Record):
                found += _oddities(source, item, last)
                last = item.sequence
                lowest, highest = min(lowest or last, last), max(highest, last)
            elif isinstance(item, Torn):
                found.append(Damage(item.offset, item.size, "ends within a record, or its header"))
            elif isinstance(item, Damage):
                found.append(item)
        said = (segment.header.min_id, segment.header.max_id) if segment.header else (0, 0)
        if any(said) and said != (lowest, highest):
            reason = f"header: ids {said[0]} to {said[1]}, but {lowest} to {highest} are there"
            found.insert(0, Damage(24, 16, reason))
        return found


class _Segment:
    """One file under way."""

    def __init__(self, codec: LedgerQ, source: Source) -> None:
        self.header: SegmentHeader | None = None
        self._codec = codec
        self._size = source.size
        self._window = ReadAhead(source)
        self._hunt = Hunt(source, self._whole)

    def items(self, start: int, *, bodies: bool) -> Iterator[Item]:
        """Records from ``start`` on, and whatever else is there; the header if it is damaged."""
        raw = self._window.read(0, HEADER_BYTES)
        try:
            self.header = decode_header(raw)
        except SegmentCorruptError as exc:
            # The header is written together with the first records: both may be missing.
            is_torn = len(raw) < HEADER_BYTES and (not any(raw) or _START.startswith(raw[:8]))
            yield Torn(0, len(raw)) if is_torn else Damage(0, len(raw), exc.reason)
        read = self._whole if bodies else self._head
        last, at = 0, start
        while at < self._size:
            try:
                record = read(at)
            except SegmentCorruptError as exc:
                end = self._hunt.next_good(at)
                is_closed = self.header is not None and self.header.max_id > last
                if end == self._size and not is_closed and self._hunt.is_torn(at):
                    yield Torn(at, end - at)
                else:
                    yield Damage(at, end - at, exc.reason)
                at = end
            else:
                yield record
                last = record.sequence
                at += record.size
        if at > self._size and start > HEADER_BYTES:
            yield Damage(self._size, 0, f"ends before {start}")

    def all_items(self) -> Iterator[Item]:
        """All that there is; what the file has lost since it was opened is damage."""
        at = 0
        try:
            for item in self.items(HEADER_BYTES, bodies=True):
                at = item.offset + item.size
                yield item
        except CorruptionError as exc:
            yield Damage(at, self._size - at, str(exc))

    def _fitting(self, at: int) -> int:
        """The length of the record, which lies within the file."""
        length = _length(self._window.read(at, 4), at)
        if length > self._size - at:
            raise _corrupt(at, f"only {self._size - at} of {length} bytes")
        return length

    def _whole(self, at: int) -> Record:
        return self._codec.decode(self._window.read(at, self._fitting(at) + 4), at)

    def _head(self, at: int) -> Record:
        """The record without its payload; its checksum is not looked at."""
        length = self._fitting(at)
        count = min(length - 4, _HEAD_BYTES)
        while True:
            try:
                fields = _fields(self._window.read(at, count), at)
            except _CutOffError:
                if count == length - 4:
                    raise
                count = min(length - 4, 8 * count)  # many headers
            else:
                return fields.record(at, min(length + 4, self._size - at), b"")


class _CutOffError(SegmentCorruptError):
    """The bytes end within the fields before the payload."""


class _Fields(NamedTuple):
    """Fields before the payload, which begins at ``end``."""

    kind: int
    sequence: int
    timestamp_ns: int
    expires_ns: int
    priority: int | None
    headers: Mapping[str, str]
    encoding: str
    end: int

    def record(self, offset: int, size: int, payload: bytes) -> Record:
        return Record(
            offset,
            size,
            payload,
            sequence=self.sequence,
            timestamp_ns=self.timestamp_ns,
            expires_ns=self.expires_ns,
            priority=self.priority,
            headers=self.headers,
            encoding=self.encoding,
            kind=self.kind,
        )


def _fields(raw: bytes, offset: int) -> _Fields:
    """Fields of the record at ``offset``; ``raw`` is the record without its checksum, or a part."""
    expires_ns, priority, encoding = 0, None, ""
    headers: dict[str, str] = {}
    try:
        _, kind, flags, sequence, timestamp_ns = _HEAD.unpack_from(raw)
        at = _HEAD.size
        if not 1 <= kind <= 3 or flags & ~_FLAGS or sequence == 0 or timestamp_ns <= 0:
            raise _corrupt(offset, "its type, flags, id or time is none")
        if flags & _PRIORITY:
            priority, at = raw[at], at + 1
        if flags & _EXPIRES:
            expires_ns, at = _I64.unpack_from(raw, at)[0], at + 8
            if expires_ns <= timestamp_ns:
                raise _corrupt(offset, "it expires before its time")
        if flags & _HEADERS:
            headers, at = _decode_headers(raw, at)
        if flags & _COMPRESSED:
            if raw[at] >= len(_ENCODINGS):
                raise _corrupt(offset, f"unknown compression {raw[at]}")
            encoding, at = _ENCODINGS[raw[at]], at + 1
    except (IndexError, struct.error) as exc:
        reason = "its fields are longer than it"
        raise _CutOffError(f"record at {offset}: {reason}", offset=offset, reason=reason) from exc
    return _Fields(kind, sequence, timestamp_ns, expires_ns, priority, headers, encoding, at)


def _decode_headers(raw: bytes, at: int) -> tuple[dict[str, str], int]:
    count = _U16.unpack_from(raw, at)[0]
    at += 2
    headers = {}
    for _ in range(count):
        key, at = _text(raw, at)
        headers[key], at = _text(raw, at)
    return headers, at


def _text(raw: bytes, at: int) -> tuple[str, int]:
    begin = at + 2
    end = begin + _U16.unpack_from(raw, at)[0]
    if end > len(raw):
        raise IndexError(end)
    return raw[begin:end].decode("utf-8", "surrogateescape"), end  # Go's strings are any bytes


def _encode_headers(headers: Mapping[str, str]) -> bytes:
    parts = [_U16.pack(_bounded("headers", len(headers), _U16_MAX))]
    try:
        for text in (text for pair in headers.items() for text in pair):
            data = text.encode("utf-8", "surrogateescape")
            parts += (_U16.pack(_bounded("header", len(data), _U16_MAX)), data)
    except UnicodeEncodeError as exc:
        raise UsageError(f"header: {exc}") from exc
    return b"".join(parts)


def _bounded(what: str, size: int, limit: int) -> int:
    if size > limit:
        raise PayloadTooLargeError(
            f"{what}: {size}, and LedgerQ has space for {limit}", size_bytes=size, limit_bytes=limit
        )
    return size


def _length(raw: bytes, offset: int) -> int:
    """The length that the record gives, if it is possible."""
    if len(raw) < 4:
        raise _corrupt(offset, f"only {len(raw)} bytes")
    length: int = _U32.unpack_from(raw)[0]
    if not _LENGTH_MIN <= length <= RECORD_BYTES_MAX:
        raise _corrupt(offset, f"{length} is no length of a record")
    return length


def _oddities(source: Source, record: Record, last: int) -> Iterator[Damage]:
    """Findings in a readable record that LedgerQ itself accepts."""
    pad_at = record.offset + _U32.unpack(source.read(record.offset, 4))[0]
    pad = source.read(pad_at, 4)
    if pad != _PAD:
        yield Damage(pad_at, len(pad), "no four zeros behind the record")
    if record.sequence <= last:
        yield Damage(record.offset, record.size, f"id {record.sequence} after {last}")
    if record.priority is not None and record.priority > 2:
        yield Damage(record.offset, record.size, f"priority {record.priority}")


def _corrupt(offset: int, reason: str) -> SegmentCorruptError:
    return SegmentCorruptError(f"at {offset}: {reason}", offset=offset, reason=reason)
