"""The progress row: how far a run has come, as its function last said. Gone with its lease."""

from __future__ import annotations

import math
import struct
from typing import Final, NamedTuple

from ...errors import RecordCorruptError
from ..values import NOTE_BYTES_MAX
from .frame import open_frame, seal

__all__ = ["ProgressRecord", "decode_progress", "encode_progress"]

# type 0x50, version, two bytes that are zero, wall microseconds, fraction (NaN: none), …
_LAYOUT: Final = struct.Struct("<BBHQd")  # … then the note, UTF-8


class ProgressRecord(NamedTuple):
    """The last report of one run. ``fraction`` is from 0 to 1, or None."""

    at_us: int
    fraction: float | None
    note: bytes


def encode_progress(r: ProgressRecord) -> bytes:
    """The value's bytes."""
    fraction = math.nan if r.fraction is None else r.fraction
    return seal(_LAYOUT.pack(0x50, 1, 0, r.at_us, fraction) + r.note)


def decode_progress(raw: bytes) -> ProgressRecord:
    """The inverse."""
    open_frame(raw, _LAYOUT, 0x50, 1, "progress row")
    _, _, _, at_us, fraction = _LAYOUT.unpack_from(raw)
    note = raw[_LAYOUT.size : -8]
    is_none = math.isnan(fraction)
    if len(note) > NOTE_BYTES_MAX or not (is_none or 0 <= fraction <= 1):
        raise RecordCorruptError("progress row: no such fraction, or a note that is too long")
    return ProgressRecord(at_us, None if is_none else fraction, note)
