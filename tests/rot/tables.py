"""RocksDB's tables as the oracle reads them: which rows lie in which block.

Written from RocksDB's description of its block-based table (format version 5), apart from
RocksDB's own code, which is what is being damaged::

    table   := block* footer
    block   := bytes, compression type (1), checksum (4)
    footer  := checksum type (1), handle of the metaindex, handle of the index, padding to 41 bytes,
               format version (4, little endian), magic (8, little endian)
    handle  := varint offset, varint size
    entries := (varint shared, varint unshared, varint value size, rest of the key, value)*,
               restarts (4 bytes each), number of restarts (4)

A key in a data block ends with eight bytes: sequence number and kind. In an index block of this
version there is no size before a value: it is a handle.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = 0x88E241B785F4CFF7
FOOTER_BYTES = 53
TRAILER_BYTES = 5
NONE, LZ4 = 0, 4


class Block(NamedTuple):
    """One block of a table. ``keys``: those a data block holds, deletions among them."""

    kind: str
    offset: int
    size: int
    keys: tuple[bytes, ...] = ()


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def handle(data: bytes, at: int) -> tuple[int, int, int]:
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return offset, size, at


def lz4(data: bytes) -> bytes:
    """A block of LZ4, with its size in front as RocksDB writes it."""
    size, at = varint(data, 0)
    out = bytearray()
    while at < len(data):
        token = data[at]
        at += 1
        literals, at = _length(data, at, token >> 4)
        out += data[at : at + literals]
        at += literals
        if at >= len(data):
            break
        back = int.from_bytes(data[at : at + 2], "little")
        count, at = _length(data, at + 2, token & 15)
        start = len(out) - back
        for n in range(count + 4):
            out.append(out[start + n])
    assert len(out) == size
    return bytes(out)


def _length(data: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        while True:
            length += data[at]
            at += 1
            if data[at - 1] != 255:
                break
    return length, at


def content(table: bytes, offset: int, size: int) -> bytes:
    kind = table[offset + size]
    data = table[offset : offset + size]
    assert kind in (NONE, LZ4), kind
    return lz4(data) if kind == LZ4 else data


def entries(block: bytes, *, has_sizes: bool = True) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values. Without sizes (an index) a value is a handle."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    at, key = 0, b""
    while at < end:
        shared, at = varint(block, at)
        unshared, at = varint(block, at)
        size = 0
        if has_sizes:
            size, at = varint(block, at)
        key = key[:shared] + block[at : at + unshared]
        at += unshared
        if not has_sizes:
            _, _, stop = handle(block, at)
            size = stop - at
        yield key, block[at : at + size]
        at += size


def blocks(path: Path) -> list[Block]:
    """All blocks of a table, in the order of the file, and its footer."""
    table = path.read_bytes()
    footer = table[-FOOTER_BYTES:]
    assert int.from_bytes(footer[-8:], "little") == MAGIC, path
    assert int.from_bytes(footer[-12:-8], "little") == 5, path
    meta_at, meta_size, at = handle(footer, 1)
    index_at, index_size, _ = handle(footer, at)
    found = [
        Block("index", index_at, index_size),
        Block("metaindex", meta_at, meta_size),
        Block("footer", len(table) - FOOTER_BYTES, FOOTER_BYTES),
    ]
    for key, value in entries(content(table, meta_at, meta_size)):
        offset, size, _ = handle(value, 0)
        if key == b"rocksdb.properties":
            found.append(Block("properties", offset, size))
        elif key.startswith(b"fullfilter."):
            found.append(Block("filter", offset, size))
    for _, value in entries(content(table, index_at, index_size), has_sizes=False):
        offset, size, _ = handle(value, 0)
        keys = tuple(key[:-8] for key, _ in entries(content(table, offset, size)))
        found.append(Block("data", offset, size, keys))
    return sorted(found, key=lambda block: block.offset)


def keys_of(path: Path) -> set[bytes]:
    """Keys of all rows of a table, deletions among them."""
    return {key for block in blocks(path) for key in block.keys}
