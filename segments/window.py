"""Reading ahead, for the codecs that hop from record to record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .source import Source

__all__ = ["ReadAhead"]

_AHEAD_MIN: Final = 4096  # a page: what a read costs anyway
_AHEAD_MAX: Final = 256 * 1024
_BLOCK_MIN: Final = 64


class ReadAhead:
    """A part of a source, read ahead: further while reads follow one another, little after a hop.

    So a scan that hops over large bodies reads a page of each, and one of small records reads
    blocks. It is a source itself.
    """

    __slots__ = ("_ahead", "_at", "_data", "_source", "size")

    def __init__(self, source: Source) -> None:
        self._source = source
        self.size = source.size
        self._at = 0
        self._data = b""
        self._ahead = _AHEAD_MIN

    def read(self, offset: int, count: int) -> bytes:
        """See ``Source``. It ends where the source ended at first, should that have grown."""
        left = max(0, self.size - offset)
        count = min(count, left)
        at, have = offset - self._at, len(self._data)
        if at >= 0 and at + count <= have:
            return self._data[at : at + count]
        if count >= _AHEAD_MAX:
            return self._source.read(offset, count)  # handed through, not kept
        is_next = 0 <= at <= have + _AHEAD_MIN
        self._ahead = min(2 * self._ahead, _AHEAD_MAX) if is_next else _AHEAD_MIN
        self._at = offset
        self._data = self._source.read(offset, min(max(count, self._ahead), left))
        return self._data[:count]

    def peek(self, offset: int) -> bytes:
        """One byte, without a move of the window to it."""
        at = offset - self._at
        if 0 <= at < len(self._data):
            return self._data[at : at + 1]
        return self._source.read(offset, 1)

    def blocks(self, start: int, overlap: int = 0) -> Iterator[tuple[int, bytes]]:
        """All from ``start`` on in blocks that grow, each beginning ``overlap`` bytes back."""
        count = _BLOCK_MIN
        while start < self.size:
            block = self.read(start, count)
            yield start, block
            if start + len(block) >= self.size:
                return
            start += len(block) - overlap
            count = min(4 * count, _AHEAD_MAX // 2)  # not all of it: the window keeps the block

    def run(self, start: int, byte: bytes) -> int:
        """How often ``byte`` is repeated from ``start`` on."""
        for at, block in self.blocks(start):
            rest = len(block.lstrip(byte))
            if rest:
                return at + len(block) - rest - start
        return self.size - start
