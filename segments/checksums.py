"""Checksums of files: CRC-32 (ours), CRC-32C (LedgerQ) and CRC-64/ECMA-182 (the Rust queue).

``crc32`` is zlib's, or the same by the library ``fastcrc`` where that is installed: a microsecond
for 64 KiB in place of fifteen. The other two need it (extra ``formats``, part of ``cli``).

CRC-32C is reflected, polynomial 0x82f63b78, start and end all ones. CRC-64/ECMA-182 has polynomial
0x42f0e1eba9ea3693, not reflected, from 0 and not inverted: the XZ format's is another. As it starts
from zero, leading zero bytes do not show: the checksum of any number of zeros is 0.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any, Final, Protocol

from ..errors import UsageError

__all__ = ["crc32", "crc32c", "crc64"]


class _Crc32(Protocol):
    """CRC-32 of ``data``; ``crc`` is the checksum of the bytes before it."""

    def __call__(self, data: bytes | memoryview, crc: int = 0, /) -> int:
        """Its value, 0 to 2**32 - 1."""


def _fastest_crc32() -> _Crc32:
    try:
        from fastcrc.crc32 import iso_hdlc  # noqa: PLC0415 - an extra

        iso_hdlc(memoryview(b""), 0)  # an older one may take nothing but bytes
    except (ImportError, TypeError):
        return zlib.crc32
    else:
        fast: _Crc32 = iso_hdlc
        return fast


crc32: Final = _fastest_crc32()


@cache
def _library() -> Any:
    try:
        import fastcrc  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError(
            'files of LedgerQ and of the Rust queue need an extra: pip install "lodeq[formats]"'
        ) from None
    return fastcrc


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C of ``data``; ``crc`` is the checksum of the bytes before it.

    Raises:
        UsageError: the extra is not installed.
    """
    return int(_library().crc32.iscsi(data, crc))


def crc64(data: bytes, crc: int = 0) -> int:
    """CRC-64/ECMA-182 of ``data``; ``crc`` is the checksum of the bytes before it.

    Raises:
        UsageError: the extra is not installed.
    """
    return int(_library().crc64.ecma_182(data, crc))
