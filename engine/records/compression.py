"""Payload and result compression: off by default, per engine, self-describing on disk.

Bytes are compressed from 1 KiB up and only kept compressed when that saves 5 %. The size before
compression is stored with the record and is a hard bound when inflating: a bomb stops there. What
a record declares is itself bounded by what could ever have been enqueued.
"""

from __future__ import annotations

import zlib
from typing import Any

from ...errors import RecordCorruptError, UsageError

__all__ = ["VALUE_BYTES_MAX", "Compressor", "inflate"]

COMPRESS_BYTES_MIN = 1024
# What is larger was never taken: a submission (coalescer/) is no larger, and a record only *says*
# how large.
VALUE_BYTES_MAX = 4 << 20
PIECE_BYTES = 1 << 20
NONE, ZLIB, ZSTD = 0, 1, 2


def _zstd() -> Any:
    try:
        import zstandard  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError('zstd needs an extra: pip install "lodeq[zstd]"') from None
    return zstandard


class Compressor:
    """Compresses what is worth it.

    Args:
        name: None, ``zlib`` or ``zstd``.
        level: of zstd: 1 takes less time, up to 22, which saves more.
    """

    def __init__(self, name: str | None, level: int = 3) -> None:
        if name not in (None, "zlib", "zstd"):
            raise UsageError(f"compression {name!r} is not None, 'zlib' or 'zstd'")
        self.code = {None: NONE, "zlib": ZLIB, "zstd": ZSTD}[name]
        self._zstd = _zstd().ZstdCompressor(level=level) if self.code == ZSTD else None

    def pack(self, data: bytes) -> tuple[int, bytes]:
        """(compression code, bytes to store)."""
        if self.code == NONE or len(data) < COMPRESS_BYTES_MIN:
            return NONE, data
        small: bytes = zlib.compress(data, 1) if self._zstd is None else self._zstd.compress(data)
        return (self.code, small) if len(small) * 20 <= len(data) * 19 else (NONE, data)


def inflate(code: int, data: bytes, raw_bytes: int, most: int = VALUE_BYTES_MAX) -> bytes:
    """The bytes as they were handed in; never more than ``raw_bytes`` of memory for them.

    Args:
        code: of the record's flags.
        data: as it was stored.
        raw_bytes: before compression; any other size is damage.
        most: more bytes, stored or declared, are refused before any memory is spent.
    """
    if len(data) > most or raw_bytes > most:
        raise RecordCorruptError(
            f"payload: {max(len(data), raw_bytes)} bytes is not a possible size"
        )
    if code == NONE:
        return data
    if code == ZLIB:
        engine = zlib.decompressobj()
        try:
            out = engine.decompress(data, raw_bytes + 1)
        except zlib.error as exc:
            raise RecordCorruptError(f"compressed payload: {exc}") from exc
    elif code == ZSTD:
        module = _zstd()
        try:
            # A frame may declare any size, and one-shot decompress would believe it.
            with module.ZstdDecompressor(max_window_size=8 << 20).stream_reader(data) as reader:
                # Piece by piece: what is declared is not allocated before it is there.
                pieces, left = [], raw_bytes + 1
                while left > 0 and (piece := reader.read(min(left, PIECE_BYTES))):
                    pieces.append(piece)
                    left -= len(piece)
                out = b"".join(pieces)
        except module.ZstdError as exc:
            raise RecordCorruptError(f"compressed payload: {exc}") from exc
    else:
        raise RecordCorruptError(f"unknown compression {code}")
    if len(out) != raw_bytes:
        raise RecordCorruptError("compressed payload: size is not the declared one")
    return out
