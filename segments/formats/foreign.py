"""Description of a foreign format: how it is recognised, read, verified, listed and saved.

Each format makes one of its own (``FORMAT``), and ``registry`` lists them. Whoever deals with files
of any format asks it, and knows none by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from ..item import Damage, Format, Item, Record

__all__ = ["ForeignFormat", "Saving"]

_NONE: Mapping[bytes, str] = MappingProxyType({})


class Saving(Protocol):
    """A salvage under way: what is saved, and who hears of each record."""

    @property
    def path(self) -> str:
        """The damaged file or folder."""

    @property
    def is_folder(self) -> bool:
        """Which of the two it is."""

    def records(self) -> Iterator[tuple[str, Record]]:
        """All that can be read: the name of its file, and the record. Damage between is counted."""

    def saved(self, record: Record) -> None:
        """Count a record that is written."""

    def skipped(self, file: str, record: Record, reason: str) -> None:
        """Count a record that was read, and that the format cannot hold."""

    def lost(self, file: str, damage: Damage) -> None:
        """Count damage beside the records, or a field of a record that had to change."""


def _never(name: str) -> bool:
    return False


def _as_stored(record: Record) -> bytes:
    return record.payload


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFormat:
    """A format of another system.

    Args:
        name: as users write it.
        codec: makes the codec of one file.
        files_in: path and name of each file in a folder, in order.
        magic: first four bytes of its files; empty: it has none.
        suffix: stands for it where bytes do not say; empty: others use it, too.
        beside: magics of its other files, and what those are.
        is_sign: whether a name directly in a folder stands for it.
        is_sign_in_day: the same of a name in ``YYYY/MM/DD``.
        has_numbers: whether records have numbers.
        columns: of a listing, besides id, offset and payload.
        content: the payload as it was enqueued, of a record whose payload may be encoded.
        items_in: everything in a folder, with the names of files, where that is more than one file
            after the other.
        damage_in: all that is wrong with a folder, with the names of files, where that is more than
            what is wrong with each.
        save: writes what can be read to a new path. None: as one ``.sqs``, since records have ids
            of 16 bytes, as those do.
    """

    name: str
    codec: Callable[[], Format]
    files_in: Callable[[str], Sequence[tuple[str, str]]]
    magic: bytes = b""
    suffix: str = ""
    beside: Mapping[bytes, str] = field(default_factory=lambda: _NONE)
    is_sign: Callable[[str], bool]
    is_sign_in_day: Callable[[str], bool] = _never
    has_numbers: bool = True
    columns: tuple[str, ...] = ()
    content: Callable[[Record], bytes] = _as_stored
    items_in: Callable[[str], Iterator[tuple[str, Item]]] | None = None
    damage_in: Callable[[str], Iterator[tuple[str, Damage]]] | None = None
    save: Callable[[Saving, str], None] | None = None
