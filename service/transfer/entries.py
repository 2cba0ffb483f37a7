"""Sources of an import: the protocol, and the entries they yield in the order of their claims.

A source knows nothing of stores. Each entry says where it lies and what it is (``identity``: the
same whenever it is read), so that it is imported once; damage is yielded with its position. Where a
format has neither numbers nor times, an identity holds within its source alone: ``source_id`` says
which one that is, by default its path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias

from xxhash import xxh3_128_hexdigest

from ...engine.records.face import NO_FACE, Face
from ...segments.item import Damage

__all__ = [
    "CONTENT_ENCODING",
    "CONTENT_TYPE",
    "PICKLE",
    "Entry",
    "Foreign",
    "Mark",
    "SourceItem",
    "Unreadable",
    "compressed_headers",
    "digest",
    "pickle_headers",
]

CONTENT_TYPE: Final = "content-type"
CONTENT_ENCODING: Final = "content-encoding"
PICKLE: Final = "application/python-pickle"
_NONE: Mapping[str, Any] = MappingProxyType({})
_PICKLE_PROTOCOLS: Final = range(2, 6)
_COMPRESSED: Final = {b"\x1f\x8b": "gzip", b"\x78": "deflate"}  # by first bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A task to import, with the fields of ``ImportedTask``. ``queue`` is empty if there is one.

    ``offset`` is that of its record in ``file``, or its row's number in a table; ``end``: this many
    bytes of the file have been read by then. ``died_ms`` is None unless it is a dead letter.
    ``dedup_key`` is the source's own. ``is_over``: nothing but that key is left of it.
    """

    file: str
    offset: int
    end: int
    identity: str
    payload: bytes
    queue: str = ""
    kind: int = 0
    headers: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    priority: int = 5
    created_us: int = 0
    due_ms: int = 0
    expires_ms: int = 0
    attempts: int = 0
    reason: str = ""
    died_ms: int | None = None
    dedup_key: str = ""
    dedup_until_ms: int = 0
    is_over: bool = False
    face: Face = NO_FACE


class Unreadable(NamedTuple):
    """Damage in a file where an entry should be; in a table, ``offset`` is a row's number."""

    file: str
    damage: Damage


SourceItem: TypeAlias = Entry | Unreadable


class Mark(NamedTuple):
    """The last imported entry, and the digest of its payload; all before it is imported, too."""

    file: str
    offset: int
    digest: str


class Foreign(Protocol):
    """A source: the queue, or queues, to import from."""

    @property
    def kind(self) -> str:
        """The name that users give it: ``ledgerq``."""

    @property
    def path(self) -> str:
        """The folder or file, without links."""

    @property
    def source_id(self) -> str:
        """The source that identities hold within; empty if they are unique anywhere."""

    @property
    def queues(self) -> Sequence[str]:
        """The names of its queues; empty if it has one without a name."""

    @property
    def mark(self) -> Mark | None:
        """The last entry yielded; None where positions do not show which entries are new."""

    @property
    def total_bytes(self) -> int:
        """The approximate number of bytes to read."""

    @property
    def left_out(self) -> Counter[str]:
        """Counts of entries left out on purpose so far, by reason."""

    @classmethod
    def opened(cls, path: str) -> Self | None:
        """The source at a path without links; None if there is none of this kind.

        Raises:
            UsageError: there are several.
            StorageError: it cannot be read.
        """

    def holds(self, mark: Mark) -> bool:
        """Whether the marked entry is unchanged, so that reading may go on behind it."""

    def entries(self, after: Mark | None = None) -> Iterator[SourceItem]:
        """All entries, in order; or those behind ``after``, which the source holds.

        Raises:
            StorageError: it cannot be read.
        """


def digest(payload: bytes) -> str:
    """Digest of a payload, for an entry's identity."""
    return xxh3_128_hexdigest(payload)


def pickle_headers(payload: bytes) -> dict[str, str]:
    """Headers for bytes made by Python: pickled, or nothing.

    Nothing is loaded, and a compressed payload is not decompressed.
    """
    is_pickled = (
        len(payload) > 2
        and payload[0] == 0x80
        and payload[1] in _PICKLE_PROTOCOLS
        and payload.endswith(b".")
    )
    if is_pickled:
        return {CONTENT_TYPE: PICKLE}
    return {}


def compressed_headers(payload: bytes) -> dict[str, str]:
    """Headers for a payload that is a pickle, compressed or not."""
    for begin, encoding in _COMPRESSED.items():
        if payload.startswith(begin):
            return {CONTENT_TYPE: PICKLE, CONTENT_ENCODING: encoding}
    return pickle_headers(payload)
