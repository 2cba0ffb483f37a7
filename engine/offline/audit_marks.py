"""How a row is named in what an audit hands on."""

from __future__ import annotations

from typing import NamedTuple

from xxhash import xxh3_64_intdigest

__all__ = ["RowMark", "mark_of"]


class RowMark(NamedTuple):
    """A row as it was: its key, and a checksum of its value."""

    key: bytes
    checksum: int


def mark_of(key: bytes, value: bytes | None) -> RowMark:
    """Mark of a row, also of one that is not there."""
    return RowMark(key, xxh3_64_intdigest(value or b""))
