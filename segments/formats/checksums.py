"""Checksums of other systems' files: CRC-32C (LedgerQ) and CRC-64/ECMA-182 (the Rust queue).

The library ``fastcrc`` (extra ``formats``, part of ``cli``) computes them. CRC-32C is reflected,
polynomial 0x82f63b78, start and end all ones. CRC-64/ECMA-182 has polynomial 0x42f0e1eba9ea3693,
not reflected, from 0 and not inverted: the XZ format's is another. As it starts from zero, leading
zero bytes do not show: the checksum of any number of zeros is 0.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ...errors import UsageError

__all__ = ["crc32c", "crc64"]


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
