"""The data files of rsketch's persistent queue (``docs/formats/rust-queue.md``).

::

    file   := record* zeros                    no header; a length of 0 ends the data
    record := length:4 payload checksum        little-endian

The checksum is one of three (``Variant``), and nothing in a file says which: its records do. Little
else is written down, so what a wrong byte means must be found out. Two questions decide.

- *Is there a good record further on?* A record that reaches past the end of the file, or lacks its
  last bytes with only zeros behind, is torn: unless something good follows, for then its length is
  wrong. Zeros are the end of the data: unless something follows.
- *Does the length of a bad record lead to a good one?* Then one record is lost, and the numbers go
  on: unless good records fill its bytes up to there, for then its length is wrong after all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ....errors import PayloadTooLargeError, SegmentCorruptError, UsageError
from ...item import Damage, Hole, Item, Record, Torn
from ...source import BytesSource, Source
from .reader import LENGTH_BYTES, Reader, Variant, corrupt

__all__ = [
    "PAYLOAD_BYTES_MAX",
    "UNKNOWN_SEQUENCE",
    "RustQueue",
    "variant_of",
    "wrong_with",
]

PAYLOAD_BYTES_MAX: Final = (1 << 32) - 1
UNKNOWN_SEQUENCE: Final = -1  # of a record behind a gap in which any number of others lay


class RustQueue:
    """The codec of one data file: ``Format``, and ``encode``.

    Args:
        variant: which checksum. None reads it off the records of each file (and writes CRC32).
        start_sequence: of the first record that is read. The format stores no numbers: they are
            counted, over all files of a queue.
    """

    __slots__ = ("start_sequence", "variant")

    name: Final = "rust-queue"
    suffix: Final = ".data"
    data_offset: Final = 0

    def __init__(self, variant: Variant | None = None, *, start_sequence: int = 0) -> None:
        self.variant = variant
        self.start_sequence = start_sequence

    def encode(self, payload: bytes) -> bytes:
        """The record's bytes.

        Raises:
            UsageError: the format cannot hold it. An empty payload reads as the end of the data;
                zeros alone have the checksum zero in ``CRC64_PAYLOAD``, and read as torn.
            PayloadTooLargeError: its length does not fit into 32 bits.
        """
        variant = self.variant or Variant.CRC32
        if not payload:
            raise UsageError("the Rust queue cannot hold an empty payload: it reads as the end")
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise PayloadTooLargeError(
                f"the Rust queue cannot hold {len(payload):,} bytes: the limit is 4 GiB less one",
                size_bytes=len(payload),
                limit_bytes=PAYLOAD_BYTES_MAX,
            )
        raw = len(payload).to_bytes(LENGTH_BYTES, "little") + payload
        checksum = variant.checksum(raw[variant.checked_from :], 0)
        if variant is Variant.CRC64_PAYLOAD and not checksum:
            raise UsageError("with this checksum a payload of zeros looks like a torn one")
        return raw + checksum.to_bytes(variant.checksum_bytes, "little")

    def decode(self, raw: bytes, offset: int = 0) -> Record:
        """See ``Format``."""
        variants = [self.variant] if self.variant else list(Variant)
        readers = [Reader(BytesSource(raw), variant) for variant in variants]
        fits = [reader for reader in readers if reader.size_at(0) and reader.holds(0)]
        if len(fits) != 1:
            raise corrupt(
                offset, "more than one checksum fits" if fits else "this is no whole record"
            )
        record = fits[0].record(0, self.start_sequence)
        return replace(record, offset=offset)

    def scan(
        self, source: Source, start: int | None = None, *, bodies: bool = True
    ) -> Iterator[Item]:
        """See ``Format``.

        Without ``bodies``, a last record that is torn within the file is returned as a record: only
        its checksum shows it.
        """
        variant = self.variant or variant_of(source)
        offset, sequence = start or 0, self.start_sequence
        reader = Reader(source, variant or Variant.CRC32, hop=not bodies)
        while offset < source.size:
            record = reader.take(offset, sequence, bodies=bodies) if variant else None
            if record is None:
                yield reader.end(offset)
                return
            yield record
            offset += record.size
            if sequence != UNKNOWN_SEQUENCE:
                sequence += 1

    def salvage(self, source: Source) -> Iterator[Item]:
        """See ``Format``.

        Gives empty records, too, where ``scan`` says that bytes follow the end of the data. What
        comes behind a gap of unknown length has ``UNKNOWN_SEQUENCE``.
        """
        return (item for item, _ in self.salvage_numbered(source))

    def salvage_numbered(self, source: Source) -> Iterator[tuple[Item, int]]:
        """Items of ``salvage``, each with the number that the next record would have."""
        offset, sequence = 0, self.start_sequence
        try:
            variant = self.variant or variant_of(source)
            if variant is None:
                if source.size:  # all zeros, or torn, or it raises
                    yield Reader(source, Variant.CRC32).end(0), sequence
                return
        except SegmentCorruptError as exc:
            end = Reader(source, Variant.CRC32).data_end
            yield (
                Damage(0, end, f"which checksum this file has is unknown: {exc.reason}"),
                UNKNOWN_SEQUENCE,
            )
            if end < source.size:
                yield Hole(end, source.size - end), UNKNOWN_SEQUENCE
            return
        reader = Reader(source, variant)
        while offset < source.size:
            item: Item | None = reader.take(offset, sequence)
            taken = 1
            if item is None and reader.is_empty(offset):
                item = reader.record(offset, sequence)
            if item is None:
                item, taken = reader.gap(offset)
            is_known = sequence != UNKNOWN_SEQUENCE and taken >= 0
            sequence = sequence + taken if is_known else UNKNOWN_SEQUENCE
            yield item, sequence
            offset += item.size

    def verify(self, source: Source) -> list[Damage]:
        """See ``Format``."""
        return [damage for item in self.salvage(source) if (damage := wrong_with(item))]


def wrong_with(item: Item) -> Damage | None:
    """The reason why a strict reader refuses an item of ``salvage``."""
    if isinstance(item, Damage):
        return item
    if isinstance(item, Torn):
        return Damage(item.offset, item.size, "the last record is not whole")
    if isinstance(item, Record) and not item.payload:
        return Damage(item.offset, item.size, "an empty record reads as the end of the data")
    return None


def variant_of(source: Source) -> Variant | None:
    """Which checksum a file has; None if no record shows it.

    That is the one which the first record has, else the first that can be found with another, or
    the end of the data, behind it.

    Raises:
        SegmentCorruptError: more than one fits.
    """
    readers = [Reader(source, variant) for variant in Variant]
    fits = [reader for reader in readers if reader.is_good(0) or reader.is_empty(0)]
    if len(fits) > 1:
        fits = [reader for reader in fits if reader.is_confirmed(0)] or fits
    at = 0
    if not fits:
        places = {
            reader: next((at for at in reader.hunt(1) if reader.is_confirmed(at)), source.size)
            for reader in readers
        }
        at = min(places.values())
        fits = [reader for reader, place in places.items() if place == at < source.size]
    if len(fits) > 1:
        raise corrupt(at, "more than one checksum fits")
    return fits[0].variant if fits else None
