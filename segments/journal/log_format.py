"""The journal's log file: frames of records, each checked as a whole.

::

    header  "LDJL" version:1 zero:3 first:8 created_us:8 zero:32 check:8                 64 bytes
    head    "F" version:1 flags:1 zero:1 count:4 size:4 first:8 time_us:8 check32:4      32 bytes
    frame   head lengths:4*count [raws:4*count] [metas] payloads check:8
    end     head with "E", count 0 and the next file's first record, check:8             40 bytes

A batch is one frame: a hundred small records cost one header, one checksum and one write. The price
is that one flipped bit costs the whole frame, so a frame is bounded. The head has a check of its
own: a damaged size is never followed, and a reader can hop over a frame without reading it.

``docs/formats/journal.md`` is the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, pairwise, repeat
from struct import Struct
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgpack
from xxhash import xxh3_64_digest

from ...engine.records.compression import inflate
from ...errors import PayloadTooLargeError, RecordCorruptError, SegmentCorruptError, UsageError

__all__ = [
    "CHECK_BYTES",
    "END_BYTES",
    "FRAME_BYTES_MAX",
    "FRAME_BYTES_MIN",
    "FRAME_RECORDS_MAX",
    "HEADER_BYTES",
    "HEAD_BYTES",
    "RECORD_BYTES_MAX",
    "SEQUENCE_MAX",
    "Head",
    "LogHeader",
    "LogRecord",
    "check_frame",
    "decode_frame",
    "decode_head",
    "decode_header",
    "encode_end",
    "encode_frame",
    "encode_header",
    "encode_meta",
    "too_large",
]

MAGIC: Final = b"LDJL"
VERSION: Final = 1
HEADER_BYTES: Final = 64
HEAD_BYTES: Final = 32
CHECK_BYTES: Final = 8
END_BYTES: Final = HEAD_BYTES + CHECK_BYTES
FRAME_RECORDS_MAX: Final = 65_535
FRAME_BYTES_MAX: Final = 16 << 20  # of several records: what one damaged byte can cost
RECORD_BYTES_MAX: Final = 1 << 30
FRAME_BYTES_MIN: Final = HEAD_BYTES + 4 + CHECK_BYTES
META_BYTES_MAX: Final = 1 << 20
_EVEN_MAX: Final = 1024  # records of a frame whose lengths, if they are one, are kept packed
RAW_BYTES_MAX: Final = 64 << 20  # of several records, before compression

SEQUENCE_MAX: Final = (1 << 64) - (1 << 32)  # what is appended behind it must be countable
_FRAME, _END = 0x46, 0x45
METAS, ZLIB, ZSTD = 1, 2, 4  # the last two: twice the code of a Compressor
_KNOWN = METAS | ZLIB | ZSTD

_header = Struct("<4sB3xQq32x")
_head = Struct("<BBBxIIQq")  # and its check
_checked_head = Struct("<BBBBIIQq4s")
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class LogHeader(NamedTuple):
    """``first``: the sequence number its first record has, or will have."""

    first: int
    created_us: int


class LogRecord(NamedTuple):
    """One record. ``expires_us`` is 0 where it never does."""

    sequence: int
    payload: bytes
    time_us: int
    headers: Mapping[str, str] = _NO_HEADERS
    expires_us: int = 0


class Head(NamedTuple):
    """Head of a frame; at the end it has no records, and ``first`` is the next file's."""

    size: int
    first: int
    records: int
    time_us: int
    flags: int
    is_end: bool


_record = partial(tuple.__new__, LogRecord)  # what ``LogRecord._make`` does, without the call


def _corrupt(offset: int, reason: str) -> SegmentCorruptError:
    return SegmentCorruptError(f"journal: {reason} at {offset}", offset=offset, reason=reason)


@lru_cache(maxsize=1024)
def _ints(count: int) -> Struct:
    return Struct(f"<{count}I")


def encode_header(first: int, created_us: int) -> bytes:
    """The first 64 bytes of a file."""
    body = _header.pack(MAGIC, VERSION, first, created_us)
    return body + xxh3_64_digest(body)


def decode_header(raw: bytes) -> LogHeader:
    """Decode the first 64 bytes of a file.

    Raises:
        SegmentCorruptError: they are none of ours.
    """
    if len(raw) < HEADER_BYTES or raw[:4] != MAGIC:
        raise _corrupt(0, "no header of a journal")
    if xxh3_64_digest(raw[:56]) != raw[56:HEADER_BYTES]:
        raise _corrupt(0, "checksum of the header")
    if raw[4] != VERSION:
        raise _corrupt(0, f"version {raw[4]} is not known")
    _, _, first, created_us = _header.unpack(raw[:56])
    if first > SEQUENCE_MAX:
        raise _corrupt(0, f"no record has number {first}")
    return LogHeader(first, created_us)


def encode_frame(
    first: int,
    time_us: int,
    payloads: Sequence[bytes],
    *,
    metas: Sequence[bytes] = (),
    raws: Sequence[int] = (),
    compression: int = 0,
) -> bytes:
    """One frame. ``metas`` and, with ``compression``, ``raws`` are empty or one per payload.

    Args:
        first: number of the first record.
        time_us: Unix microseconds of all records.
        payloads: at least one.
        metas: encoded headers, times and expiries.
        raws: sizes before compression.
        compression: number of the codec; 0: none.

    Raises:
        PayloadTooLargeError: more than a frame may hold.
        UsageError: a payload is not bytes.
    """
    count = len(payloads)
    limit = FRAME_BYTES_MAX if count > 1 else RECORD_BYTES_MAX
    try:
        data = b"".join(payloads)
    except TypeError as exc:
        raise UsageError(f"payloads are bytes: {exc}") from exc
    lengths = [*map(len, payloads)]
    is_even = 1 < count <= _EVEN_MAX and lengths.count(lengths[0]) == count
    in_all = lengths[0] * count if is_even else sum(lengths)
    if in_all != len(data):  # a buffer whose items are not bytes
        raise UsageError(f"payloads are bytes: {in_all} items have {len(data)}")
    if len(data) > limit or not 0 < count <= FRAME_RECORDS_MAX:
        raise too_large(count, len(data), limit)
    flags, tables = compression, _even(count, lengths[0]) if is_even else _packed(lengths)
    if compression:
        tables += _packed(raws)
    if metas:
        flags |= METAS
        tables = b"".join((tables, _packed([*map(len, metas)]), *metas))
    size = HEAD_BYTES + len(tables) + len(data) + CHECK_BYTES
    if size > limit:
        raise too_large(count, size, limit)
    head = _head.pack(_FRAME, VERSION, flags, count, size, first, time_us)
    frame = b"".join((head, xxh3_64_digest(head)[4:], tables, data))
    return frame + xxh3_64_digest(frame)


def _packed(numbers: Sequence[int]) -> bytes:
    return _ints(len(numbers)).pack(*numbers)


@lru_cache(maxsize=64)
def _even(count: int, length: int) -> bytes:
    """The lengths of so many payloads, all of one size."""
    return length.to_bytes(4, "little") * count


def too_large(count: int, size: int, limit: int) -> PayloadTooLargeError:
    """The error for a frame of this many records."""
    return PayloadTooLargeError(
        f"{count} records of {size} bytes are not one frame", size_bytes=size, limit_bytes=limit
    )


def encode_end(following: int, time_us: int) -> bytes:
    """The end of a complete file; the next one begins with record ``following``."""
    head = _head.pack(_END, VERSION, 0, 0, END_BYTES, following, time_us)
    head += xxh3_64_digest(head)[4:]
    return head + xxh3_64_digest(head)


def decode_head(raw: bytes, at: int = 0, offset: int = 0) -> Head:
    """The head at ``raw[at]``, of which 32 bytes must be there; ``offset`` is for the error.

    Raises:
        SegmentCorruptError: it is none.
    """
    kind, version, flags, zero, count, size, first, time_us, check = _checked_head.unpack_from(
        raw, at
    )
    if kind not in (_FRAME, _END):
        raise _corrupt(offset, f"no frame begins with byte {kind:#04x}")
    if xxh3_64_digest(raw[at : at + 28])[4:] != check:
        raise _corrupt(offset, "checksum of a head")
    if version != VERSION or flags & ~_KNOWN or zero:
        raise _corrupt(offset, f"version {version} with flags {flags:#x} is not known")
    if first > SEQUENCE_MAX:
        raise _corrupt(offset, f"no record has number {first}")
    if kind == _END:
        if size != END_BYTES or count or flags:
            raise _corrupt(offset, "an end that is none")
        return Head(size, first, 0, time_us, 0, True)
    most = RECORD_BYTES_MAX if count == 1 else FRAME_BYTES_MAX
    if not 0 < count <= FRAME_RECORDS_MAX or not FRAME_BYTES_MIN + 4 * (count - 1) <= size <= most:
        raise _corrupt(offset, f"{count} records in {size} bytes")
    return Head(size, first, count, time_us, flags, False)


def check_frame(head: Head, raw: bytes, offset: int = 0) -> None:
    """``raw`` is all of a frame, as it was written. Whether it can be decoded is another question.

    Raises:
        SegmentCorruptError: it is not.
    """
    end = head.size - CHECK_BYTES
    if len(raw) != head.size or xxh3_64_digest(raw[:end]) != raw[end:]:
        raise _corrupt(offset, "checksum of a frame")


def decode_frame(head: Head, raw: bytes, offset: int = 0) -> list[LogRecord]:
    """The records of a frame; ``raw`` is all of it.

    Raises:
        SegmentCorruptError: it is not what was written.
    """
    check_frame(head, raw, offset)
    end, count = head.size - CHECK_BYTES, head.records
    if head.flags:
        return _decode_rich(head, raw, offset)
    lengths = _ints(count).unpack_from(raw, HEAD_BYTES)
    return list(
        map(
            _record,
            zip(
                range(head.first, head.first + count),
                _slices(raw, lengths, HEAD_BYTES + 4 * count, end, offset),
                repeat(head.time_us),
                repeat(_NO_HEADERS),
                repeat(0),
            ),
        )
    )


def _slices(
    raw: bytes, lengths: Sequence[int], begin: int, end: int | None, offset: int
) -> list[bytes]:
    """Consecutive pieces from ``begin`` on, which must reach ``end``."""
    bounds = list(accumulate(lengths, initial=begin))
    if bounds[-1] > len(raw) or (end is not None and bounds[-1] != end):
        raise _corrupt(offset, "lengths that do not add up")
    return [raw[a:b] for a, b in pairwise(bounds)]


def _decode_rich(head: Head, raw: bytes, offset: int) -> list[LogRecord]:
    """Decode a frame with more than payloads."""
    count, end = head.records, head.size - CHECK_BYTES
    ints, at = _ints(count), HEAD_BYTES

    def numbers() -> tuple[int, ...]:
        nonlocal at
        if at + 4 * count > end:
            raise _corrupt(offset, "lengths that do not add up")
        at += 4 * count
        return ints.unpack_from(raw, at - 4 * count)

    lengths = numbers()
    code = (head.flags & (ZLIB | ZSTD)) >> 1
    raws = numbers() if code else lengths
    if count > 1 and sum(raws) > RAW_BYTES_MAX:
        raise _corrupt(offset, "records too large to be a frame")
    if head.flags & METAS:
        sizes = numbers()
        metas = _slices(raw, sizes, at, None, offset)
        at += sum(sizes)
    else:
        metas = [b""] * count
    payloads = _slices(raw, lengths, at, end, offset)
    records = []
    for i, (payload, size, meta) in enumerate(zip(payloads, raws, metas, strict=True)):
        whole = payload if size == len(payload) else _inflate(code, payload, size, offset)
        records.append(LogRecord(head.first + i, whole, *_decode_meta(meta, head.time_us, offset)))
    return records


def encode_meta(headers: Mapping[str, str] | None, time_us: int, expires_us: int) -> bytes:
    """Fields of one record alone; 0 and None are left out, and no field gives no bytes.

    Raises:
        PayloadTooLargeError: more than 1 MiB: it could not be read again.
        UsageError: not text to text, or not whole numbers of 64 bits.
    """
    meta: dict[str, Any] = {}
    if headers:
        if not isinstance(headers, Mapping) or not _are_texts(headers):
            raise UsageError("headers are text to text")
        meta["h"] = dict(headers)
    if type(time_us) is not int or type(expires_us) is not int:
        raise UsageError(f"times are whole microseconds, not {time_us!r} and {expires_us!r}")
    if time_us:
        meta["t"] = time_us
    if expires_us:
        meta["x"] = expires_us
    if not meta:
        return b""
    try:
        raw: bytes = msgpack.packb(meta)
    except (ValueError, OverflowError) as exc:  # surrogates; more than 64 bits
        raise UsageError(f"headers or times that cannot be written: {exc}") from exc
    if len(raw) > META_BYTES_MAX:
        raise PayloadTooLargeError(
            f"headers of {len(raw)} bytes", size_bytes=len(raw), limit_bytes=META_BYTES_MAX
        )
    return raw


def _are_texts(headers: Mapping[Any, Any]) -> bool:
    return all(isinstance(k, str) and isinstance(v, str) for k, v in headers.items())


def _decode_meta(raw: bytes, time_us: int, offset: int) -> tuple[int, Mapping[str, str], int]:
    if not raw:
        return time_us, _NO_HEADERS, 0
    if len(raw) > META_BYTES_MAX:
        raise _corrupt(offset, "metas too large to be read")
    try:
        meta = msgpack.unpackb(raw)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as exc:
        raise _corrupt(offset, "metas that are no msgpack") from exc
    if not isinstance(meta, dict) or not meta.keys() <= {"h", "t", "x"}:
        raise _corrupt(offset, "metas of another version")
    headers, at_us, expires_us = meta.get("h", {}), meta.get("t", time_us), meta.get("x", 0)
    are_texts = isinstance(headers, dict) and _are_texts(headers)
    if not (are_texts and type(at_us) is int and type(expires_us) is int):
        raise _corrupt(offset, "metas of another version")
    return at_us, headers, expires_us


def _inflate(code: int, payload: bytes, size: int, offset: int) -> bytes:
    try:
        return inflate(code, payload, size, RECORD_BYTES_MAX)
    except RecordCorruptError as exc:
        raise _corrupt(offset, str(exc)) from exc
