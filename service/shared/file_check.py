"""Strict verification of segment files and folders. Nothing is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...errors import CorruptionError, RecordCorruptError, SegmentCorruptError, StorageError
from ...segments.detect import DetectedPath
from ...segments.formats.registry import foreign_format
from ...segments.item import Damage, Record
from ...segments.journal.layout import index_path, position_path, tailers_folder
from ...segments.journal.layout import is_tailer as is_tailer_name
from ...segments.journal.log_format import HEAD_BYTES, HEADER_BYTES, decode_head, decode_header
from ...segments.journal.positions import read_place
from ...segments.journal.recovery import read_position
from ...segments.journal.small_files import INDEX_BYTES_MAX, POSITION_BYTES, decode_index
from ...segments.source import FileSource, Source
from .file_reader import Part, name_in, parts_of, salvage_part, vanished

__all__ = ["Problem", "index_fault", "verify"]

At = Callable[[str, int], None]


class Problem(NamedTuple):
    """One damage in a file."""

    file: str
    damage: Damage


def verify(place: DetectedPath, at: At) -> Iterator[Problem]:
    """Find every damage of a file or folder.

    Args:
        place: what to read.
        at: called with a file and an offset, to show progress.

    Raises:
        StorageError: a file cannot be read.
    """
    foreign = foreign_format(place.format)
    if foreign is not None and foreign.damage_in is not None and place.is_folder:
        for file, damage in foreign.damage_in(place.path):
            yield Problem(name_in(place, file), damage)
    elif place.format == "journal":
        yield from _verify_journal(place, at)
    else:
        for part in parts_of(place):
            yield from _verify_part(part, at)


def index_fault(path: str, first: int, source: Source, *, is_damaged: bool) -> str:
    """The reason why the index of a log file is wrong; empty if it is right.

    Args:
        path: of the index.
        first: number of the log file's first record.
        source: the log file.
        is_damaged: whether the log file is damaged; frames may then be missing.

    Raises:
        StorageError: the index is missing, or cannot be read.
    """
    try:
        with FileSource(path) as small:
            index = decode_index(small.read(0, INDEX_BYTES_MAX + 1))
    except RecordCorruptError as exc:
        return str(exc)
    if index.first != first or index.log_bytes > source.size:
        return "index: it belongs to another file"
    for entry in index.entries:
        try:
            head = decode_head(source.read(entry.offset, HEAD_BYTES).ljust(HEAD_BYTES, b"\0"))
        except SegmentCorruptError:
            if is_damaged:  # the damage may have destroyed this frame
                continue
            return f"index: no frame lies at {entry.offset}"
        if head.first != entry.sequence:
            return f"index: record {entry.sequence} is not at {entry.offset}"
    return ""


class _Metered:
    """A source that reports its progress."""

    def __init__(self, source: Source, file: str, at: At) -> None:
        self.size = source.size
        self._source = source
        self._file = file
        self._at = at

    def read(self, offset: int, count: int) -> bytes:
        """See ``Source``."""
        self._at(self._file, offset)
        return self._source.read(offset, count)


def _verify_part(part: Part, at: At) -> Iterator[Problem]:
    try:
        with FileSource(part.path) as source:
            found = part.codec.verify(_Metered(source, part.name, at))
            size = source.size
    except StorageError as exc:
        if vanished(exc):
            return
        raise
    for damage in found:
        is_torn = damage.reason == "torn_tail" and damage.offset + damage.size == size
        if not (is_torn and part.is_current):
            yield Problem(part.name, damage)


# --- journals ---------------------------------------------------------------------------------


def _verify_journal(place: DetectedPath, at: At) -> Iterator[Problem]:
    """Each log file, gaps between them, and the small files beside them."""
    durable = 0
    if place.is_folder:  # read first: a writer may add records meanwhile, behind this position
        position = read_position(place.path)
        durable = position.durable if position is not None else 0
        if position is None and os.path.exists(position_path(place.path)):
            yield Problem("position", Damage(0, POSITION_BYTES, "position: no slot is whole"))
    following: int | None = None
    for part in parts_of(place):
        try:
            with FileSource(part.path) as source:
                is_damaged = False
                for damage, record in _verify_log(part, source, following, at):
                    if damage is not None:
                        is_damaged = True
                        yield Problem(part.name, damage)
                    following = record
                yield from _verify_index(part, source, is_damaged=is_damaged)
        except StorageError as exc:
            if not (place.is_folder and vanished(exc)):
                raise
            following = None
    if following is not None and durable >= following:
        reason = f"records {following} to {durable} were durable and are gone"
        yield Problem("position", Damage(0, 0, reason))
    if place.is_folder:
        yield from _verify_positions(place.path)


def _verify_log(
    part: Part, source: Source, following: int | None, at: At
) -> Iterator[tuple[Damage | None, int | None]]:
    """(damage, or None; the number of the record that should come next)."""
    name = os.path.basename(part.path).removesuffix(".log")
    try:
        first = decode_header(source.read(0, HEADER_BYTES)).first
    except SegmentCorruptError:  # reported below
        first = None
    if first is not None:
        if name.isdecimal() and len(name) == 20 and int(name) != first:
            yield Damage(0, HEADER_BYTES, f"its header says record {first}"), following
        if following is not None and first != following:
            yield Damage(0, 0, f"begins with record {first} where {following} should be"), first
        following = first
    for item in salvage_part(part, source):
        damage: Damage | None = None
        if isinstance(item, Record):
            if following is not None and item.sequence != following:
                reason = f"record {item.sequence} where {following} should be"
                damage = Damage(item.offset, 0, reason)
            following = item.sequence + 1
        elif isinstance(item, Damage):
            damage = item
        at(part.name, item.offset)
        yield damage, following


def _verify_index(part: Part, source: Source, *, is_damaged: bool) -> Iterator[Problem]:
    """Check the index of a log file. A missing one is no damage: it is rebuilt when needed."""
    path = index_path(part.path)
    if part.is_current or not os.path.isfile(path):
        return
    try:
        first = decode_header(source.read(0, HEADER_BYTES)).first
        if fault := index_fault(path, first, source, is_damaged=is_damaged):
            size = os.stat(path).st_size
            yield Problem(part.name.removesuffix(".log") + ".idx", Damage(0, size, fault))
    except SegmentCorruptError:
        return


def _verify_positions(root: str) -> Iterator[Problem]:
    """Check the stored positions of tailers."""
    folder = tailers_folder(root)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if is_tailer_name(name):
            try:
                read_place(root, name)
            except CorruptionError as exc:
                size = os.stat(os.path.join(folder, name)).st_size
                yield Problem(f"tailers/{name}", Damage(0, size, str(exc.__cause__ or exc)))
