"""The search for records behind damage: each byte of a segment may begin one of type 4.

Summing up each candidate would take the square of the file's size. ``Sums`` knows the CRC of
everything before each mark, and gets that of a range from two of those: CRC-32 is linear, and
appending n bytes to X multiplies CRC(X) by x^8n in GF(2)[x] modulo its polynomial.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ..checksums import crc32
from ..source import Source
from ..window import ReadAhead

__all__ = ["CHECKED", "CHECKED_BYTES", "CRC_AT", "Sums", "candidates", "crc_of_both", "is_intact"]

# On disk: never renumber.
CHECKED: Final = 4  # the type of a message with a checksum
CRC_AT: Final = 21
CHECKED_BYTES: Final = 25  # before its body

_HEAD_BYTES: Final = 5
_MARK_BYTES: Final = 4096


class Sums:
    """Says of any range whether it is a record whose checksum holds, without reading all of it.

    What is short is read. Of the rest, at most a mark's distance is at either end.
    """

    __slots__ = ("_marks", "_source", "_tries")

    def __init__(self, source: Source) -> None:
        self._source = source
        self._marks = [0]  # the CRC of all before each multiple of _MARK_BYTES
        self._tries = source.size // 512 + 1024  # random bytes need less than half of that

    def hold(self, offset: int, size: int) -> bool:
        """If the record's checksum is right. Its size must fit into the file."""
        if size <= _MARK_BYTES:
            good = is_intact(self._source.read(offset, size))
        else:
            head = self._source.read(offset, CHECKED_BYTES)
            body, end = offset + len(head), offset + size
            before = self._upto(body) ^ crc32(head[:CRC_AT])
            crc = self._upto(end) ^ _shift(before, end - body)
            good = crc == int.from_bytes(head[CRC_AT:], "big")
        self._tries -= not good
        return good

    def is_spent(self) -> bool:
        """After too many records that were none. Only a file made for it has so many."""
        return self._tries <= 0

    def _upto(self, offset: int) -> int:
        """The CRC of all before ``offset``."""
        mark, rest = divmod(offset, _MARK_BYTES)
        while len(self._marks) <= mark:
            block = self._source.read((len(self._marks) - 1) * _MARK_BYTES, _MARK_BYTES)
            self._marks.append(crc32(block, self._marks[-1]))
        return crc32(self._source.read(mark * _MARK_BYTES, rest), self._marks[mark])


def is_intact(raw: bytes) -> bool:
    """If the checksum of a whole record of type 4 is right."""
    crc = crc32(memoryview(raw)[CHECKED_BYTES:], crc32(raw[:CRC_AT]))
    return crc == int.from_bytes(raw[CRC_AT:CHECKED_BYTES], "big")


def _times(a: int, b: int) -> int:
    """The product of two polynomials modulo that of CRC-32; bit 31 is x^0."""
    product = 0
    for power in range(31, -1, -1):
        if a >> power & 1:
            product ^= b
        b = b >> 1 ^ (0xEDB88320 if b & 1 else 0)
    return product


def _powers() -> list[int]:
    """x^8, x^16, x^32 and so on: to append 1, 2, 4 bytes."""
    powers = [1 << 23]
    for _ in range(31):
        powers.append(_times(powers[-1], powers[-1]))
    return powers


_POWERS: Final = _powers()


def _shift(crc: int, count: int) -> int:
    """Contribution of ``crc`` once ``count`` bytes have been appended."""
    for bit in range(count.bit_length()):
        if count >> bit & 1:
            crc = _times(_POWERS[bit], crc)
    return crc


def crc_of_both(first: int, second: int, count: int) -> int:
    """CRC of two ranges side by side, from that of each; ``count``: bytes of the second."""
    return _shift(first, count) ^ second


def candidates(window: ReadAhead, start: int) -> Iterator[tuple[int, int]]:
    """Offset and size of what begins like a record of type 4 that fits into the file."""
    high = min(window.size >> 24, 0xFF)
    heads = re.compile(rb"%c(?=[\0-%b])" % (CHECKED, re.escape(bytes([high]))), re.DOTALL)
    for block_at, block in window.blocks(start, _HEAD_BYTES - 1):
        for head in heads.finditer(block, 0, len(block) - 3):
            at = head.start()
            size = int.from_bytes(block[at + 1 : at + 5], "big")
            if CHECKED_BYTES <= size <= window.size - block_at - at:
                yield block_at + at, size
