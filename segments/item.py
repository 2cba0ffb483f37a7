"""Items of a segment file, in any format, and the interface of every codec.

A file is a header and then items, without a gap: records, holes that may be skipped, and, where
bytes are not what was written, damage. ``scan`` believes a file and stops at the first thing that
is wrong; ``salvage`` goes on behind it as far as the format allows. Both give exact offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeAlias

from .source import Source

__all__ = ["Damage", "Format", "Hole", "Item", "Record", "Torn"]

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Record:
    """One message. What a format does not know stays at its default.

    ``offset`` and ``size`` are those of the whole record in the file, framing included. ``payload``
    is as stored: ``encoding`` says if that is compressed. ``id`` is the format's own 16 bytes,
    ``sequence`` its own number.
    """

    offset: int
    size: int
    payload: bytes
    id: bytes = b""
    sequence: int = 0
    timestamp_ns: int = 0
    expires_ns: int = 0
    priority: int | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: _NONE)
    encoding: str = ""
    kind: int = 0  # the format's own type number


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes that hold nothing, and say so."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Torn:
    """The file ends within its last record, which was being written: it may be dropped."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are not what was written. ``reason`` says how that shows."""

    offset: int
    size: int
    reason: str


Item: TypeAlias = Record | Hole | Torn | Damage


class Format(Protocol):
    """Interface of each codec. Its essay has the layout; ``docs/formats/`` the page."""

    @property
    def name(self) -> str:
        """As users write it: ``sqs``."""

    @property
    def suffix(self) -> str:
        """Suffix of its files: ``.sqs``."""

    @property
    def data_offset(self) -> int:
        """Where the first record lies."""

    def decode(self, raw: bytes, offset: int = 0) -> Record:
        """The record that ``raw`` begins with; ``offset`` is where it lies, for errors and result.

        Raises:
            SegmentCorruptError: there is none, or not all of it.
        """

    def scan(
        self, source: Source, start: int | None = None, *, bodies: bool = True
    ) -> Iterator[Item]:
        """Records and holes from ``start`` (a record's offset) on, at last ``Torn`` if it is.

        Without ``bodies`` payloads are left out (``b""``), not read, and not checked: a scan then
        hops from header to header.

        Raises:
            SegmentCorruptError: at the first byte that is not what was written. What was returned
                before it is good.
        """

    def salvage(self, source: Source) -> Iterator[Item]:
        """All that can still be read, in order, and ``Damage``. Raises StorageError only."""

    def verify(self, source: Source) -> list[Damage]:
        """All that is wrong, strictly: also what ``salvage`` puts up with. Reads every byte."""
