"""The frame of every record of ours: a type byte, a version byte, and a checksum at the end.

Integers in values are little-endian (columns decode straight into Arrow and NumPy); in keys
they are big-endian (byte order is logical order). The checksum is xxh3_64 of everything before
it, big-endian as xxhash prints it: end to end, above RocksDB's own block checksums.

Type, version and checksum stand where they stand in every version, so the checksum is verified
before the version is looked at: a flipped bit is damage, and never reads as a newer format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from xxhash import xxh3_64_digest

from ...errors import RecordCorruptError

__all__ = [
    "CHECKSUM_BYTES",
    "RECORD_BYTES_MAX",
    "attempt",
    "checksum",
    "frame_version",
    "open_frame",
    "seal",
]

_T = TypeVar("_T")

checksum: Final = xxh3_64_digest
CHECKSUM_BYTES: Final = 8
# 64 MiB: no record of ours comes near; what claims to be larger is damage, not data.
RECORD_BYTES_MAX: Final = 64 << 20


def seal(body: bytes) -> bytes:
    """``body`` with its checksum behind it."""
    return body + checksum(body)


def open_frame(raw: bytes, layout: struct.Struct, kind: int, version: int, what: str) -> None:
    """Check type, version, length and checksum before a single field is believed.

    Args:
        raw: of a row.
        layout: of the fixed part.
        kind: the type byte.
        version: the only one that is read.
        what: its name in errors.
    """
    size = len(raw)
    if size < layout.size + CHECKSUM_BYTES or size > RECORD_BYTES_MAX:
        raise RecordCorruptError(f"{what}: {size} bytes is not a possible size")
    if frame_version(raw, kind, what) != version:
        raise RecordCorruptError(f"{what}: type {raw[0]:#x} version {raw[1]} is not known")


def frame_version(raw: bytes, kind: int, what: str) -> int:
    """The version that a frame names: believed only after type and checksum, of any version."""
    size = len(raw)
    if size < 2 + CHECKSUM_BYTES or size > RECORD_BYTES_MAX:
        raise RecordCorruptError(f"{what}: {size} bytes is not a possible size")
    if raw[0] != kind:
        raise RecordCorruptError(f"{what}: type {raw[0]:#x} is not known")
    if checksum(raw[:-CHECKSUM_BYTES]) != raw[-CHECKSUM_BYTES:]:
        raise RecordCorruptError(f"{what}: checksum mismatch")
    return raw[1]


def attempt(decode: Callable[[bytes], _T], raw: bytes | None) -> _T | None:
    """The record, or None where there is none or it is damaged (which is reported elsewhere)."""
    if raw is None:
        return None
    try:
        return decode(raw)
    except RecordCorruptError:
        return None
