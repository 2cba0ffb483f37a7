"""Tables of RocksDB whose index cannot be read: their blocks are found one behind the other.

Data blocks lie without gaps from the first byte on, and each ends with a type and a checksum. So
the end of a block is where the checksum of all that came before stands; then the next one begins.
A new index gets the last key of each block. New properties say whose table it is; what they do not
say means that the index is of the plainest kind: internal keys, whole handles.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from xxhash import xxh3_64

from . import table_blocks as tb

__all__ = ["Found", "ScannedBlock", "scan_table", "write_scanned"]

_WINDOW: Final = 64 << 10
_BLOCK_BYTES_MAX: Final = 16 << 20  # larger than the largest row
_TYPE = re.compile(b"[\\x00\\x04]")
_SEQ_BYTES: Final = 8  # what an internal key has behind the user's
_PROPERTIES: Final = b"rocksdb.properties"
_MADE_PROPERTIES: Final = [  # by name
    (b"rocksdb.column.family.id", tb.varint(0)),
    (b"rocksdb.column.family.name", b"default"),
    (b"rocksdb.comparator", b"leveldb.BytewiseComparator"),
]


class ScannedBlock(NamedTuple):
    """Where a block lies, and its last key, with its sequence number."""

    offset: int
    size: int
    last: bytes


@dataclass(slots=True)
class Found:
    """The blocks of a table. ``is_cut``: what follows the last of them is damaged."""

    blocks: list[ScannedBlock] = field(default_factory=list)
    is_cut: bool = False

    @property
    def last_key(self) -> bytes:
        """The user's key at which the readable part ends."""
        return self.blocks[-1].last[:-_SEQ_BYTES] if self.blocks else b""


def scan_table(fd: int) -> Found:
    """Find the data blocks of a table from its start. Reads that fail end it."""
    found = Found()
    at = 0
    while (block := _block_at(fd, at)) is not None:
        raw, kind = block
        try:
            first, last = _first_and_last(tb.unpacked(raw, kind))
        except tb.StrangeError:
            return found  # no rows: the filter, or whatever follows the last of them
        if found.blocks and not found.last_key <= first[:-_SEQ_BYTES]:
            return found
        found.blocks.append(ScannedBlock(at, len(raw), last))
        at += len(raw) + tb.TRAILER_BYTES
    found.is_cut = True
    return found


def _block_at(fd: int, at: int) -> tuple[bytes, int] | None:
    """The shortest run of bytes at ``at`` with its checksum behind it, and its type."""
    window = _WINDOW
    while window <= _BLOCK_BYTES_MAX:
        try:
            raw = os.pread(fd, window, at)
        except OSError:
            return None
        so_far, done = xxh3_64(), 0
        for match in _TYPE.finditer(raw):
            end = match.start()
            so_far.update(raw[done:end])
            done = end
            wanted = raw[end + 1 : end + tb.TRAILER_BYTES]
            if tb.mixed(so_far.intdigest(), raw[end]).to_bytes(4, "little") == wanted and end:
                return raw[:end], raw[end]
        if len(raw) < window:
            return None
        window *= 4
    return None


def _first_and_last(block: bytes) -> tuple[bytes, bytes]:
    """The first and the last key of a data block. Raises ``StrangeError`` if it is none."""
    if len(block) < 8:
        raise tb.StrangeError("no rows")
    count = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * count
    if not 0 < count < 1 << 31 or end <= 0:
        raise tb.StrangeError("restarts")
    restart = int.from_bytes(block[len(block) - 8 : len(block) - 4], "little")
    first = last = b""
    at = 0
    for start in dict.fromkeys((0, restart)):
        at, key = start, b""
        while at < end:
            shared, at = tb.read_varint(block, at)
            rest, at = tb.read_varint(block, at)
            size, at = tb.read_varint(block, at)
            if shared > len(key) or at + rest + size > end:
                raise tb.StrangeError("row")
            key = key[:shared] + block[at : at + rest]
            at += rest + size
            if len(key) <= _SEQ_BYTES:
                raise tb.StrangeError("key")
            if not first:
                first = key
            last = key
            if start != restart:
                break
    if not last or (at != end and restart):
        raise tb.StrangeError("rows")
    return first, last


def write_scanned(source: str, target: str) -> None:
    """Copy the data blocks to ``target``, a new file, with an index of their own. Synced.

    Raises ``OSError``.
    """
    with open(source, "rb") as reader, open(target, "xb") as writer:
        found = scan_table(reader.fileno())
        if not found.blocks:  # there were some a moment ago
            raise OSError(errno.EIO, os.strerror(errno.EIO), source)
        index = [
            (block.last, tb.varint(block.offset) + tb.varint(block.size)) for block in found.blocks
        ]
        left = found.blocks[-1].offset + found.blocks[-1].size + tb.TRAILER_BYTES
        while left:
            part = reader.read(min(left, 1 << 20))
            if not part:
                raise OSError(errno.EIO, "the table became shorter", source)
            writer.write(part)
            left -= len(part)
        properties_at = tb.append_block(writer, _MADE_PROPERTIES)
        handle = b"".join(map(tb.varint, properties_at))
        meta_at = tb.append_block(writer, [(_PROPERTIES, handle)])
        tb.append_footer(writer, meta_at, tb.append_block(writer, index))
