"""Tables of RocksDB, block by block: which are damaged, and the same table without them.

RocksDB reads a table through its index and believes no block without its checksum; what it lacks
is a way around one that fails: every scan over its range ends there, and so do its own repair and
every compaction. Blocks are independent of each other, so a table can do without one: its bytes
stay as they are, and a new index that leaves it out, with a new footer, is appended. What remains
keeps its sequence numbers, so rows of other tables in the same range stay above or below it.

::

    data blocks … filter, properties, index, metaindex … footer
    block    contents, then type (1: 0 plain, 4 LZ4) and checksum (4)
    footer   checksum type (1), handles of metaindex and index (varints), padded to 41 bytes,
             format version (4), magic number (8); all little-endian

Only what our own options make is read (format 5, XXH3, plain or LZ4, a restart point for every
entry of an index). Of any other table nothing is said: RocksDB has to judge it.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

__all__ = ["Range", "TableDamage", "inspect_table", "write_without"]

_FOOTER: Final = 53
_TAIL = struct.Struct("<IQ")
_MAGIC: Final = 0x88E241B785F4CFF7
_FORMAT: Final = 5
_XXH3: Final = 4
_PLAIN, _LZ4 = 0, 4
_TRAILER = struct.Struct("<BI")
_TRAILER_BYTES: Final = 5
_LAST_BYTE_FACTOR: Final = 0x6B9083D9
_INDEX_BYTES_MAX: Final = 256 << 20  # of a table of 64 MiB it is about one
_FILTER: Final = b"fullfilter."


class Range(NamedTuple):
    """Keys above ``after`` up to ``to`` (None: to the end of the table)."""

    after: bytes
    to: bytes | None


class _Handle(NamedTuple):
    offset: int
    size: int


@dataclass(slots=True)
class TableDamage:
    """What is wrong with one table. ``is_lost``: its index too, so nothing can be read of it."""

    is_lost: bool = False
    ranges: list[Range] = field(default_factory=list)
    is_filter_lost: bool = False
    index: list[tuple[bytes, bytes]] = field(default_factory=list)  # entries that are left
    meta: list[tuple[bytes, bytes]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Every block that was looked at is as it was written."""
        return not (self.is_lost or self.ranges or self.is_filter_lost)


class _StrangeError(Exception):
    """Not a table as our options make it, or not a block."""


def inspect_table(path: str) -> TableDamage:
    """Read every data block of a table, its index and its filter. Raises ``OSError``.

    A table of another make is told as whole; a block that the disk does not give is damaged.
    """
    found = TableDamage()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(fd).st_size
        try:
            meta_at, index_at = _read_footer(fd, size)
        except _StrangeError:
            return found
        try:
            entries = _entries(_read_block(fd, index_at, size), has_length=False)
        except _StrangeError:
            found.is_lost = True
            return found
        after = b""
        for key, value in entries:
            if _is_sound(fd, _handle(value), size):
                found.index.append((key, value))
            elif found.ranges and found.ranges[-1].to == after:
                found.ranges[-1] = Range(found.ranges[-1].after, key)
            else:
                found.ranges.append(Range(after, key))
            after = key
        try:
            found.meta = _entries(_read_block(fd, meta_at, size), has_length=True)
        except _StrangeError:
            found.is_lost = True  # without its properties RocksDB reads no index
            return found
        found.is_filter_lost = any(
            name.startswith(_FILTER) and not _is_sound(fd, _handle(value), size)
            for name, value in found.meta
        )
        return found
    finally:
        os.close(fd)


def write_without(source: str, target: str, damage: TableDamage) -> None:
    """Copy a table to ``target``, a new file, with an index that passes its damaged blocks over.

    Raises ``OSError``. The copy is synced.
    """
    meta = [(name, value) for name, value in damage.meta if not name.startswith(_FILTER)]
    with open(source, "rb") as reader, open(target, "xb") as writer:
        size = os.fstat(reader.fileno()).st_size - _FOOTER
        at = 0
        while at < size:
            wanted = min(1 << 20, size - at)
            try:
                part = os.pread(reader.fileno(), wanted, at)
            except OSError:
                part = bytes(wanted)  # what the disk does not give no index leads to
            part = part or bytes(wanted)
            writer.write(part)
            at += len(part)
        index_at = _append(writer.write, at, _block(damage.index, has_length=False))
        at = index_at.offset + index_at.size + _TRAILER_BYTES
        meta_at = _append(writer.write, at, _block(meta, has_length=True))
        handles = b"".join(_varint(n) for n in (*meta_at, *index_at))
        writer.write(bytes((_XXH3,)) + handles.ljust(40, b"\0") + _TAIL.pack(_FORMAT, _MAGIC))
        writer.flush()
        os.fsync(writer.fileno())


def _read_footer(fd: int, size: int) -> tuple[_Handle, _Handle]:
    raw = os.pread(fd, _FOOTER, max(0, size - _FOOTER))
    if len(raw) != _FOOTER or raw[0] != _XXH3 or _TAIL.unpack(raw[41:]) != (_FORMAT, _MAGIC):
        raise _StrangeError("another footer")
    numbers, at = [], 1
    for _ in range(4):
        number, at = _read_varint(raw[:41], at)
        numbers.append(number)
    return _Handle(*numbers[:2]), _Handle(*numbers[2:])


def _is_sound(fd: int, at: _Handle, size: int) -> bool:
    try:
        _read_raw(fd, at, size)
    except _StrangeError:
        return False
    return True


def _read_raw(fd: int, at: _Handle, size: int) -> tuple[bytes, int]:
    """Contents as stored, and their type; checked."""
    wanted = at.size + _TRAILER_BYTES
    if at.size < 1 or at.offset + wanted > size - _FOOTER:
        raise _StrangeError("beyond the end")
    try:
        raw = os.pread(fd, wanted, at.offset)
    except OSError as exc:
        raise _StrangeError(str(exc)) from exc
    if len(raw) != wanted:
        raise _StrangeError("too short")
    kind, checksum = _TRAILER.unpack_from(raw, at.size)
    if _checksum(raw[: at.size], kind) != checksum:
        raise _StrangeError("checksum")
    return raw[: at.size], kind


def _read_block(fd: int, at: _Handle, size: int) -> bytes:
    raw, kind = _read_raw(fd, at, size)
    if kind == _PLAIN:
        return raw
    if kind != _LZ4:
        raise _StrangeError("another compression")
    plain_bytes, start = _read_varint(raw, 0)
    if plain_bytes > _INDEX_BYTES_MAX:
        raise _StrangeError("too large")
    return _unpack_lz4(raw, start, plain_bytes)


def _checksum(contents: bytes, kind: int) -> int:
    return (xxh3_64_intdigest(contents) ^ kind * _LAST_BYTE_FACTOR) & 0xFFFFFFFF


def _entries(block: bytes, *, has_length: bool) -> list[tuple[bytes, bytes]]:
    """(key, value) of an index, whose values are handles without a length, or a metaindex."""
    if len(block) < 4:
        raise _StrangeError("no restarts")
    count = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * count
    if count >= 1 << 31 or end < 0:
        raise _StrangeError("restarts")
    out: list[tuple[bytes, bytes]] = []
    at, key = 0, b""
    while at < end:
        shared, at = _read_varint(block, at)
        rest, at = _read_varint(block, at)
        length = 0
        if has_length:
            length, at = _read_varint(block, at)
        elif shared:
            raise _StrangeError("not every entry is a restart point")
        if shared > len(key) or at + rest > end:
            raise _StrangeError("key")
        key, at = key[:shared] + block[at : at + rest], at + rest
        stop = at + length
        if not has_length:
            for _ in range(2):
                _, stop = _read_varint(block, stop)
        if stop > end:
            raise _StrangeError("value")
        out.append((key, block[at:stop]))
        at = stop
    return out


def _block(entries: list[tuple[bytes, bytes]], *, has_length: bool) -> bytes:
    out = bytearray()
    restarts: list[int] = []
    for key, value in entries:
        restarts.append(len(out))
        out += _varint(0) + _varint(len(key))
        if has_length:
            out += _varint(len(value))
        out += key + value
    for restart in restarts or [0]:
        out += restart.to_bytes(4, "little")
    return bytes(out) + max(1, len(restarts)).to_bytes(4, "little")


def _append(write: object, at: int, contents: bytes) -> _Handle:
    write(contents + _TRAILER.pack(_PLAIN, _checksum(contents, _PLAIN)))  # type: ignore[operator]
    return _Handle(at, len(contents))


def _handle(value: bytes) -> _Handle:
    offset, at = _read_varint(value, 0)
    return _Handle(offset, _read_varint(value, at)[0])


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends."""
    number = shift = 0
    while at < len(raw) and shift < 64:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise _StrangeError("varint")


def _unpack_lz4(raw: bytes, at: int, size: int) -> bytes:
    """One LZ4 block of ``size`` bytes. In Python, and only for indexes."""
    out = bytearray()
    end = len(raw)
    try:
        while at < end:
            token = raw[at]
            at += 1
            length, at = _lz4_length(raw, at, token >> 4)
            out += raw[at : at + length]
            at += length
            if at >= end:
                break
            back = raw[at] | raw[at + 1] << 8
            length, at = _lz4_length(raw, at + 2, token & 15)
            length += 4
            start = len(out) - back
            if not back or start < 0 or len(out) + length > size:
                raise _StrangeError("LZ4")
            if back >= length:
                out += out[start : start + length]
            else:
                out += (out[start:] * (length // back + 1))[:length]
    except IndexError as exc:
        raise _StrangeError("LZ4") from exc
    if len(out) != size:
        raise _StrangeError("LZ4")
    return bytes(out)


def _lz4_length(raw: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        while True:
            more = raw[at]
            at += 1
            length += more
            if more < 255:
                break
    return length, at
