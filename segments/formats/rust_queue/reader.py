"""Questions about one data file: is this a record, where is the next one, what is torn.

A record is believed for its checksum. Finding one where no length leads means trying positions, and
each try covers what some four bytes call a length: up to the whole file. ``credit`` bounds the sum:
such tries may cover four times the file, 1 MiB, and 16 bytes for each position; of CRC-64, which is
computed in Python, an eighth of that. A try may take all that is left if its length leads to
another record, else a sixteenth: so one wrong length never costs the rest of the file its chance.

Where a length leads, checksums that fail may cover four times the file and 1 MiB besides, whatever
the search has taken: of no file that is damaged here and there a whole record is given up.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import cached_property
from typing import Final

from ....errors import SegmentCorruptError
from ...checksums import crc64
from ...item import Damage, Hole, Item, Record, Torn
from ...source import Source

__all__ = ["LENGTH_BYTES", "Reader", "Variant", "corrupt"]

LENGTH_BYTES: Final = 4
_BLOCK: Final = 1 << 18  # one read
_HOP: Final = 1 << 12  # one read where only lengths are wanted
_HUNT: Final = 1 << 7  # the first read of a hunt: most find something soon
_ZEROS: Final = bytes(_BLOCK)
_CREDIT_BYTES: Final = 1 << 20
_CREDIT_FILES: Final = 4
_CREDIT_STEP: Final = 16
_SLOW: Final = 8  # times slower is CRC-64 than a try costs anyway
_TRY_BYTES: Final = 96  # what a try costs besides, in bytes that CRC-32 covers meanwhile
_CHAIN: Final = 4  # lengths that must make sense
_BEHIND_END: Final = "bytes follow the end of the data"
_CHECKSUM: Final = "the checksum does not match"
_LENGTH: Final = "the length is wrong: other records lie within"
_UNNUMBERED: Final = "; how many records are lost is unknown, so are the numbers of what follows"


class Variant(IntEnum):
    """The three checksums there have been. Nothing in a file names its own."""

    CRC32 = 1  # CRC-32/IEEE of length and payload: what the code writes now
    CRC64_PAYLOAD = 2  # CRC-64/ECMA-182 of the payload: what its README says
    CRC64_RECORD = 3  # CRC-64/ECMA-182 of length and payload: what its first version wrote

    @property
    def checksum_bytes(self) -> int:
        """How many bytes follow the payload."""
        return 4 if self is Variant.CRC32 else 8

    @property
    def checksum(self) -> Callable[[bytes, int], int]:
        """Function that goes on from the checksum of earlier bytes with some more."""
        return zlib.crc32 if self is Variant.CRC32 else crc64

    @property
    def checked_from(self) -> int:
        """Where in a record the checksum begins."""
        return LENGTH_BYTES if self is Variant.CRC64_PAYLOAD else 0


def corrupt(offset: int, reason: str) -> SegmentCorruptError:
    """The error for what is wrong at ``offset``."""
    return SegmentCorruptError(f"offset {offset}: {reason}", offset=offset, reason=reason)


class Reader:
    """One pass over one source, taken to have one variant. ``hop``: only lengths are read."""

    def __init__(self, source: Source, variant: Variant, *, hop: bool = False) -> None:
        self.source = source
        self.variant = variant
        slow = 1 if variant is Variant.CRC32 else _SLOW
        self._led_credit = _CREDIT_FILES * source.size + _CREDIT_BYTES  # where a length leads
        self.credit = self._led_credit // slow
        self._credit_step = _CREDIT_STEP // slow
        self._frame = LENGTH_BYTES + variant.checksum_bytes
        self._checksum = variant.checksum
        self._checked_from = variant.checked_from
        empty = self._checksum(bytes(LENGTH_BYTES)[self._checked_from :], 0)
        self._empty = bytes(LENGTH_BYTES) + empty.to_bytes(variant.checksum_bytes, "little")
        self._window_bytes = _HOP if hop else _BLOCK
        self._window, self._window_at = b"", 0

    # --- one record -----------------------------------------------------------------------------

    def size_at(self, offset: int) -> int:
        """Size of the record at ``offset`` by its length field; 0 if the file ends before."""
        length = int.from_bytes(self._read(offset, LENGTH_BYTES), "little")
        size = length + self._frame
        return size if length and offset + size <= self.source.size else 0

    def holds(self, offset: int, *, hunting: bool = False) -> bool:
        """Does the checksum match? For a record that fits. Reads it in pieces."""
        at, end = offset + self._checked_from, self._checksum_at(offset)
        checksum = 0
        while at < end:
            piece = self._read(at, min(_BLOCK, end - at))
            checksum = self._checksum(piece, checksum)
            at += len(piece)
        stored = self._read(end, self.variant.checksum_bytes)
        if stored == checksum.to_bytes(len(stored), "little"):
            return True
        if hunting:
            self.credit -= end - offset
        else:
            self._led_credit -= end - offset
        return False

    def is_good(self, offset: int, *, hunting: bool = False) -> bool:
        """Is there a whole record here? ``hunting``: no length leads here, which takes more."""
        size = self.size_at(offset)
        if not 0 < size <= (self.credit if hunting else self._led_credit):
            return False
        if hunting and size > self.credit >> 4 and not self._leads_on(offset):
            return False
        if not self.holds(offset, hunting=hunting):
            return False
        if self.variant is not Variant.CRC64_PAYLOAD or any(self._read(offset + size - 8, 8)):
            return True
        # A length before zeros has this checksum as well, and is how a torn record looks.
        behind = self.size_at(offset + size)
        return not hunting and 0 < behind <= self._led_credit and self.holds(offset + size)

    def is_empty(self, offset: int) -> bool:
        """Is this what the original writes for an empty payload? 12 zeros: only before a record."""
        if self._read(offset, self._frame) != self._empty:
            return False
        return self.variant is Variant.CRC32 or self.is_good(offset + self._frame)

    def is_confirmed(self, offset: int) -> bool:
        """Does a good record, or the end, follow the one here?"""
        behind = offset + (self.size_at(offset) or self._frame)
        return behind >= self.data_end or self.is_good(behind)

    def record(self, offset: int, sequence: int, *, bodies: bool = True) -> Record:
        """The record at ``offset``, which is known to be one."""
        size = self.size_at(offset) or self._frame
        payload = self._read(offset + LENGTH_BYTES, size - self._frame) if bodies else b""
        return Record(offset, size, payload, sequence=sequence)

    def take(self, offset: int, sequence: int, *, bodies: bool = True) -> Record | None:
        """The good record here, if there is one; without ``bodies``, what looks like one."""
        if not bodies:
            return self.record(offset, sequence, bodies=False) if self.size_at(offset) else None
        # Most lie in the block read last, and are found in a third of the time of `is_good`.
        raw, start = self._window, offset - self._window_at
        if start >= 0:
            length = int.from_bytes(raw[start : start + LENGTH_BYTES], "little")
            at = start + LENGTH_BYTES
            end = at + length
            stored = int.from_bytes(raw[end : end + self._frame - LENGTH_BYTES], "little")
            is_whole = end + self._frame - LENGTH_BYTES <= len(raw)
            if is_whole and stored and 0 < length <= self._led_credit:
                if stored == self._checksum(raw[start + self._checked_from : end], 0):
                    return Record(offset, length + self._frame, raw[at:end], sequence=sequence)
                self._led_credit -= length
                return None
        return self.record(offset, sequence) if self.is_good(offset) else None

    # --- no record ------------------------------------------------------------------------------

    def end(self, offset: int) -> Item:
        """How the file ends here, where no good record is.

        Raises:
            SegmentCorruptError: it does not.
        """
        if not any(self._read(offset, LENGTH_BYTES)):
            if self._zeros_end(offset) < self.source.size:
                raise corrupt(offset, _BEHIND_END)
            return Hole(offset, self.source.size - offset)
        if self._has_all(offset):
            raise corrupt(offset, _CHECKSUM)
        if next(self.hunt(offset + 1), None) is not None:
            raise corrupt(offset, _LENGTH)
        return Torn(offset, self.source.size - offset)

    def gap(self, offset: int) -> tuple[Item, int]:
        """Damage from here to the next good record; how many records were lost, or -1."""
        rest = self.source.size - offset
        if not any(self._read(offset, LENGTH_BYTES)):
            zeros_end = self._zeros_end(offset)
            if zeros_end == self.source.size:
                return Hole(offset, rest), 0
            found = next(self.hunt(max(offset + 1, zeros_end - LENGTH_BYTES + 1)), None)
            return self._damage(offset, found, _BEHIND_END), -1
        behind = self._checksum_at(offset) + self.variant.checksum_bytes
        if behind == self.data_end or self.is_good(behind):
            found = self._hunt_within(offset, behind)
            if found is None:
                return Damage(offset, behind - offset, _CHECKSUM), 1
            return self._damage(offset, found, _LENGTH), -1
        found = next(self.hunt(offset + 1), None)
        if found is None and not self._has_all(offset):
            return Torn(offset, rest), 0
        return self._damage(offset, found, _CHECKSUM if self.size_at(offset) else _LENGTH), -1

    def hunt(self, start: int, stop: int | None = None) -> Iterator[int]:
        """Where good records lie from ``start`` on, wherever they may begin."""
        stop = self.data_end if stop is None else stop
        count, paid = _HUNT, start
        while start < stop:
            count = min(count, stop - start)
            for offset in self._lengths(start, count):
                self.credit += self._credit_step * (offset - paid)
                paid = offset
                if self.credit < _TRY_BYTES:
                    continue
                self.credit -= _TRY_BYTES
                if self.is_good(offset, hunting=True):
                    self.credit -= self.size_at(offset)  # records may lie in records, many deep
                    yield offset
            start += count
            count = min(2 * count, _BLOCK)

    @cached_property
    def data_end(self) -> int:
        """Behind the last byte that is not zero."""
        end = self.source.size
        while end:
            start = max(0, end - _BLOCK)
            block = self.source.read(start, end - start)
            if block != _ZEROS and (kept := block.rstrip(b"\0")):
                return start + len(kept)
            end = start
        return 0

    # --- parts ----------------------------------------------------------------------------------

    def _read(self, offset: int, count: int) -> bytes:
        """From the block read last, if it is there."""
        start = offset - self._window_at
        if not 0 <= start <= start + count <= len(self._window):
            if count >= self._window_bytes:
                return self.source.read(offset, count)
            self._window = self.source.read(offset, self._window_bytes)
            self._window_at, start = offset, 0
        return self._window[start : start + count]

    def _checksum_at(self, offset: int) -> int:
        length = int.from_bytes(self._read(offset, LENGTH_BYTES), "little")
        return offset + LENGTH_BYTES + length

    def _has_all(self, offset: int) -> bool:
        """Is the record here whole, as far as zeros show? Of a torn one the last bytes are."""
        return self._checksum_at(offset) + self.variant.checksum_bytes <= self.data_end

    def _leads_on(self, offset: int) -> bool:
        for _ in range(_CHAIN):
            size = self.size_at(offset)
            offset += size
            if not size or offset >= self.data_end:
                return bool(size)
        return True

    def _lengths(self, start: int, count: int) -> list[int]:
        """Positions, of ``count``, at which four bytes are the length of something that fits."""
        # Of a record at the end of the data the checksum may end in zeros.
        most = min(self.data_end, self.source.size - self.variant.checksum_bytes)
        most -= start + LENGTH_BYTES
        block = self.source.read(start, count + LENGTH_BYTES - 1)
        if most <= 0 or not block.strip(b"\0"):
            return []
        found: list[int] = []
        for phase in range(LENGTH_BYTES):
            words = (len(block) - phase) // LENGTH_BYTES
            lengths = struct.unpack_from(f"<{words}I", block, phase)
            first = start + phase
            found += [
                first + LENGTH_BYTES * i for i, length in enumerate(lengths) if 0 < length <= most
            ]
        return sorted(found)

    def _hunt_within(self, offset: int, stop: int) -> int | None:
        """The first of good records that fill the rest up to ``stop``.

        Others belong to the payload: a message may well hold a file of this format.
        """
        tried = offset
        for found in self.hunt(offset + 1, stop):
            if found < tried:
                continue
            tried = found
            while tried < stop and self.is_good(tried, hunting=True):
                tried += self.size_at(tried)
            if tried == stop:
                return found
        return None

    def _damage(self, offset: int, found: int | None, reason: str) -> Damage:
        end = self.data_end if found is None else found
        return Damage(offset, end - offset, reason + _UNNUMBERED)

    def _zeros_end(self, offset: int) -> int:
        while offset < self.source.size:
            block = self.source.read(offset, _BLOCK)
            if block != _ZEROS and (rest := block.lstrip(b"\0")):
                return offset + len(block) - len(rest)
            offset += len(block)
        return offset
