"""CRC-32C (Castagnoli), as LedgerQ writes it: reflected 0x82f63b78, start and end all ones.

The wheel ``google-crc32c`` (extra ``formats``) computes it in hardware. Without it, or where it has
come without its compiled part, eight bytes at a time are looked up in tables: right, but hundreds
of times slower.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from typing import Final

__all__ = ["IS_FAST", "crc32c", "crc32c_tables"]

_POLYNOMIAL: Final = 0x82F63B78
_WORDS: Final = struct.Struct("<II")


def _tables() -> tuple[tuple[int, ...], ...]:
    """Table k: what a byte does to the checksum when k more bytes follow it."""
    first = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        first.append(crc)
    tables = [tuple(first)]
    for _ in range(7):
        tables.append(tuple(crc >> 8 ^ first[crc & 255] for crc in tables[-1]))
    return tuple(tables)


_TABLES: Final = _tables()


def crc32c_tables(data: bytes, crc: int = 0) -> int:
    """See ``crc32c``; in Python alone."""
    t0, t1, t2, t3, t4, t5, t6, t7 = _TABLES
    crc ^= 0xFFFFFFFF
    whole = len(data) & ~7
    for low, high in _WORDS.iter_unpack(memoryview(data)[:whole]):
        low ^= crc
        crc = (
            t7[low & 255]
            ^ t6[low >> 8 & 255]
            ^ t5[low >> 16 & 255]
            ^ t4[low >> 24]
            ^ t3[high & 255]
            ^ t2[high >> 8 & 255]
            ^ t1[high >> 16 & 255]
            ^ t0[high >> 24]
        )
    for byte in data[whole:]:
        crc = crc >> 8 ^ t0[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def _extend() -> Callable[[int, bytes], int] | None:
    """What the wheel has for it, if that is the compiled one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns where it came without its compiled part
            import google_crc32c  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    extend: Callable[[int, bytes], int] = google_crc32c.extend
    return extend if google_crc32c.implementation == "c" else None


_FAST: Final = _extend()
IS_FAST: Final = _FAST is not None


def crc32c(data: bytes, crc: int = 0) -> int:
    """The checksum of ``data``; of what came before it as well, if ``crc`` is that one's."""
    return crc32c_tables(data, crc) if _FAST is None else _FAST(crc, data)
