"""CRC-64/ECMA-182: polynomial 0x42f0e1eba9ea3693, not reflected, from 0, not inverted at the end.

The XZ format has the same polynomial, but reflected and inverted: its checksums are others. Nothing
in the standard library computes this one. Eight tables take eight bytes a step: half as fast again
as one table and one byte a step.

As it starts from zero, leading zero bytes do not show: the checksum of zeros is 0, of any number of
them.
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["crc64"]

_POLYNOMIAL: Final = 0x42F0E1EBA9EA3693
_MASK: Final = (1 << 64) - 1


def _tables() -> tuple[tuple[int, ...], ...]:
    """Table k: what a byte becomes that k bytes follow."""
    table = []
    for byte in range(256):
        crc = byte << 56
        for _ in range(8):
            crc = (crc << 1 ^ (_POLYNOMIAL if crc >> 63 else 0)) & _MASK
        table.append(crc)
    tables = [tuple(table)]
    for _ in range(7):
        tables.append(tuple((crc << 8 & _MASK) ^ table[crc >> 56] for crc in tables[-1]))
    return tuple(tables)


_T0, _T1, _T2, _T3, _T4, _T5, _T6, _T7 = _tables()


def crc64(data: bytes, crc: int = 0) -> int:
    """The checksum of ``data``, or of more: ``crc`` is that of the bytes before.

    Like ``zlib.crc32``.
    """
    whole = len(data) & ~7
    for (word,) in struct.iter_unpack(">Q", memoryview(data)[:whole]):
        x = crc ^ word
        crc = (
            _T7[x >> 56]
            ^ _T6[x >> 48 & 255]
            ^ _T5[x >> 40 & 255]
            ^ _T4[x >> 32 & 255]
            ^ _T3[x >> 24 & 255]
            ^ _T2[x >> 16 & 255]
            ^ _T1[x >> 8 & 255]
            ^ _T0[x & 255]
        )
    for byte in data[whole:]:
        crc = (crc << 8 & _MASK) ^ _T0[crc >> 56 ^ byte]
    return crc
