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
from typing import BinaryIO, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from ..files.durable_files import sync_file

__all__ = [
    "TRAILER_BYTES",
    "Handle",
    "Range",
    "StrangeError",
    "TableDamage",
    "append_block",
    "append_footer",
    "inspect_table",
    "mixed",
    "properties_of",
    "read_varint",
    "unpacked",
    "varint",
    "write_without",
]

_FOOTER: Final = 53
_TAIL = struct.Struct("<IQ")
_MAGIC: Final = 0x88E241B785F4CFF7
_FORMAT: Final = 5
_XXH3: Final = 4
_PLAIN, _LZ4 = 0, 4
_TRAILER = struct.Struct("<BI")
TRAILER_BYTES: Final = 5
_LAST_BYTE_FACTOR: Final = 0x6B9083D9
_INDEX_BYTES_MAX: Final = 256 << 20  # of a table of 64 MiB it is about one
_FILTER: Final = b"fullfilter."
_PROPERTIES: Final = b"rocksdb.properties"
_ROWS: Final = b"rocksdb.num.entries"
_INGESTED: Final = b"rocksdb.external_sst_file.global_seqno"


class Range(NamedTuple):
    """Keys above ``after`` up to ``to`` (None: to the end of the table)."""

    after: bytes
    to: bytes | None


class Handle(NamedTuple):
    """Where a block lies; ``size`` is without its trailer."""

    offset: int
    size: int


@dataclass(slots=True)
class TableDamage:
    """Damage of one table.

    ``is_strange``: it does not end as a table of ours. ``is_lost``: nothing leads to its blocks.
    ``is_scanned``: they were found without it (``table_scan.py``).
    """

    is_strange: bool = False
    is_lost: bool = False
    is_scanned: bool = False
    ranges: list[Range] = field(default_factory=list)
    is_filter_lost: bool = False
    rows: int = 0  # deletions among them; 0: not known
    index: list[tuple[bytes, bytes]] = field(default_factory=list)  # entries that are left
    meta: list[tuple[bytes, bytes]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Every block that was looked at is as it was written."""
        return not (self.is_lost or self.is_scanned or self.ranges or self.is_filter_lost)


class StrangeError(Exception):
    """Not a table as our options make it, or not a block."""


def inspect_table(path: str) -> TableDamage:
    """Read every data block of a table, its index and its filter. Raises ``OSError``.

    A table of another make is strange, and whole; a block that the disk does not give is damaged.
    """
    found = TableDamage()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(fd).st_size
        try:
            meta_at, index_at = _read_footer(fd, size)
        except StrangeError:
            found.is_strange = True
            return found
        try:
            _inspect_blocks(fd, size, meta_at, index_at, found)
        except StrangeError:
            found.is_lost = True
        return found
    finally:
        os.close(fd)


def _inspect_blocks(
    fd: int, size: int, meta_at: Handle, index_at: Handle, found: TableDamage
) -> None:
    """Look at all that the footer leads to. ``StrangeError``: RocksDB would not find the blocks."""
    after = b""
    for key, value in _entries(_read_block(fd, index_at, size), has_length=False):
        if _is_sound(fd, _handle(value), size):
            found.index.append((key, value))
        elif found.ranges and found.ranges[-1].to == after:
            found.ranges[-1] = Range(found.ranges[-1].after, key)
        else:
            found.ranges.append(Range(after, key))
        after = key
    # Without its properties RocksDB reads no index.
    found.meta = _entries(_read_block(fd, meta_at, size), has_length=True)
    properties = dict(found.meta).get(_PROPERTIES, b"")
    if not _are_properties(fd, _handle(properties), size):
        raise StrangeError("properties")
    found.rows = _count_rows(fd, _handle(properties), size)
    found.is_filter_lost = any(
        name.startswith(_FILTER) and not _is_sound(fd, _handle(value), size)
        for name, value in found.meta
    )


def properties_of(path: str) -> dict[bytes, bytes]:
    """Read how a table was made; empty where that cannot be read. Raises ``OSError``."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(fd).st_size
        meta_at, _ = _read_footer(fd, size)
        meta = dict(_entries(_read_block(fd, meta_at, size), has_length=True))
        at = _handle(meta.get(_PROPERTIES, b""))
        return dict(_entries(_read_block(fd, at, size), has_length=True))
    except StrangeError:
        return {}
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
        index_at = append_block(writer, damage.index, has_length=False)
        append_footer(writer, append_block(writer, meta), index_at)


def _read_footer(fd: int, size: int) -> tuple[Handle, Handle]:
    raw = os.pread(fd, _FOOTER, max(0, size - _FOOTER))
    if len(raw) != _FOOTER or raw[0] != _XXH3 or _TAIL.unpack(raw[41:]) != (_FORMAT, _MAGIC):
        raise StrangeError("another footer")
    numbers, at = [], 1
    for _ in range(4):
        number, at = read_varint(raw[:41], at)
        numbers.append(number)
    return Handle(*numbers[:2]), Handle(*numbers[2:])


def _is_sound(fd: int, at: Handle, size: int) -> bool:
    try:
        _read_raw(fd, at, size)
    except StrangeError:
        return False
    return True


def _are_properties(fd: int, at: Handle, size: int) -> bool:
    """Whether they are sound. Of a table that was ingested RocksDB has changed them in place."""
    if _is_sound(fd, at, size):
        return True
    try:
        return _INGESTED in os.pread(fd, min(at.size, 1 << 20), at.offset)
    except OSError:
        return False


def _count_rows(fd: int, at: Handle, size: int) -> int:
    try:
        properties = dict(_entries(_read_block(fd, at, size), has_length=True))
        return read_varint(properties.get(_ROWS, b""), 0)[0]
    except StrangeError:
        return 0


def _read_raw(fd: int, at: Handle, size: int) -> tuple[bytes, int]:
    """Contents as stored, and their type; checked."""
    wanted = at.size + TRAILER_BYTES
    if at.size < 1 or at.offset + wanted > size - _FOOTER:
        raise StrangeError("beyond the end")
    try:
        raw = os.pread(fd, wanted, at.offset)
    except OSError as exc:
        raise StrangeError(str(exc)) from exc
    if len(raw) != wanted:
        raise StrangeError("too short")
    kind, checksum = _TRAILER.unpack_from(raw, at.size)
    if _checksum(raw[: at.size], kind) != checksum:
        raise StrangeError("checksum")
    return raw[: at.size], kind


def _read_block(fd: int, at: Handle, size: int) -> bytes:
    return unpacked(*_read_raw(fd, at, size))


def unpacked(raw: bytes, kind: int) -> bytes:
    """The contents of a block as it was before compression."""
    if kind == _PLAIN:
        return raw
    if kind != _LZ4:
        raise StrangeError("another compression")
    plain_bytes, start = read_varint(raw, 0)
    if plain_bytes > _INDEX_BYTES_MAX:
        raise StrangeError("too large")
    return _unpack_lz4(raw, start, plain_bytes)


def _checksum(contents: bytes, kind: int) -> int:
    return mixed(xxh3_64_intdigest(contents), kind)


def mixed(digest: int, kind: int) -> int:
    """The checksum of a block whose contents have that digest."""
    return (digest ^ kind * _LAST_BYTE_FACTOR) & 0xFFFFFFFF


def _entries(block: bytes, *, has_length: bool) -> list[tuple[bytes, bytes]]:
    """(key, value) of an index, whose values are handles without a length, or a metaindex."""
    if len(block) < 4:
        raise StrangeError("no restarts")
    count = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * count
    if count >= 1 << 31 or end < 0:
        raise StrangeError("restarts")
    out: list[tuple[bytes, bytes]] = []
    at, key = 0, b""
    while at < end:
        shared, at = read_varint(block, at)
        rest, at = read_varint(block, at)
        length = 0
        if has_length:
            length, at = read_varint(block, at)
        elif shared:
            raise StrangeError("not every entry is a restart point")
        if shared > len(key) or at + rest > end:
            raise StrangeError("key")
        key, at = key[:shared] + block[at : at + rest], at + rest
        stop = at + length
        if not has_length:
            for _ in range(2):
                _, stop = read_varint(block, stop)
        if stop > end:
            raise StrangeError("value")
        out.append((key, block[at:stop]))
        at = stop
    return out


def _block(entries: list[tuple[bytes, bytes]], *, has_length: bool) -> bytes:
    out = bytearray()
    restarts: list[int] = []
    for key, value in entries:
        restarts.append(len(out))
        out += varint(0) + varint(len(key))
        if has_length:
            out += varint(len(value))
        out += key + value
    for restart in restarts or [0]:
        out += restart.to_bytes(4, "little")
    return bytes(out) + max(1, len(restarts)).to_bytes(4, "little")


def append_block(
    writer: BinaryIO, entries: list[tuple[bytes, bytes]], *, has_length: bool = True
) -> Handle:
    """Write a block at the end of a new table; where it lies."""
    at, contents = writer.tell(), _block(entries, has_length=has_length)
    writer.write(contents + _TRAILER.pack(_PLAIN, _checksum(contents, _PLAIN)))
    return Handle(at, len(contents))


def append_footer(writer: BinaryIO, meta_at: Handle, index_at: Handle) -> None:
    """The end of a new table; synced."""
    handles = b"".join(varint(n) for n in (*meta_at, *index_at))
    writer.write(bytes((_XXH3,)) + handles.ljust(40, b"\0") + _TAIL.pack(_FORMAT, _MAGIC))
    sync_file(writer)


def _handle(value: bytes) -> Handle:
    offset, at = read_varint(value, 0)
    return Handle(offset, read_varint(value, at)[0])


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends."""
    number = shift = 0
    while at < len(raw) and shift < 64:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise StrangeError("varint")


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
                raise StrangeError("LZ4")
            if back >= length:
                out += out[start : start + length]
            else:
                out += (out[start:] * (length // back + 1))[:length]
    except IndexError as exc:
        raise StrangeError("LZ4") from exc
    if len(out) != size:
        raise StrangeError("LZ4")
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
