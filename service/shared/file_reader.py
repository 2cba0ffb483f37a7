"""Readers of segment files and folders, item by item. Nothing is written, and no lock is taken.

Reading goes on behind damage. An incomplete last record counts as damage, unless a writer is at
work in that file: then the record is not there yet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from ...errors import SegmentCorruptError, StorageError, UsageError
from ...segments.detect import DetectedPath, codec_of
from ...segments.formats.rdq import store_files
from ...segments.formats.registry import foreign_format
from ...segments.item import Damage, Format, Hole, Item, Record, Torn
from ...segments.journal.layout import LogFile, list_files, lock_path
from ...segments.journal.log_format import HEADER_BYTES, decode_header
from ...segments.journal.view import entry_before, file_at, index_of
from ...segments.source import FileSource, Source

__all__ = [
    "TORN",
    "FoundItem",
    "Part",
    "bytes_of",
    "is_written",
    "items",
    "journal_of",
    "lock_of",
    "name_in",
    "of_part",
    "parts_of",
    "salvage_part",
    "vanished",
]

TORN: Final = "the last record is not whole"
_IN_JOURNAL: Final = re.compile(r"(.*)/\d{4}/\d\d/\d\d/(\d{20})\.log", re.ASCII | re.DOTALL)
_ABOVE_MAX: Final = 3  # folders between a body's file and the lock of its store
_UNKNOWN: Final = -1  # the number of a record behind a gap of unknown length


class Part(NamedTuple):
    """One file of a place. ``name`` is for messages; ``is_current``: it is being written."""

    path: str
    name: str
    codec: Format
    is_current: bool


class FoundItem(NamedTuple):
    """An item, and the name of the file it lies in."""

    file: str
    item: Record | Hole | Damage


def parts_of(place: DetectedPath) -> list[Part]:
    """The files of a place, in order."""
    if not place.is_folder:
        is_current = _is_current(place)
        codec = codec_of(place.path, place.format, is_current=is_current)
        return [Part(place.path, os.path.basename(place.path), codec, is_current)]
    if place.format == "journal":
        files = list_files(place.path)
        is_held = _is_held(lock_path(place.path))
        codec = codec_of("", "journal")
        return [
            Part(
                file.path,
                os.path.relpath(file.path, place.path),
                codec,
                is_held and file is files[-1],
            )
            for file in files
        ]
    foreign = foreign_format(place.format)
    found = foreign.files_in(place.path) if foreign is not None else store_files(place.path)
    return [_part(place, path, name, is_last=name == found[-1][1]) for path, name in found]


def items(
    place: DetectedPath, *, start: int | None = None, bodies: bool = True
) -> Generator[FoundItem, None, None]:
    """Everything that can be read, in order, and the damage between.

    Args:
        place: what to read.
        start: leave out records of lower numbers, and files that have no others.
        bodies: without, payloads may be left out, and are not checked then.

    Raises:
        UsageError: ``start``, in a format that has no numbers.
        StorageError: a file cannot be read.
    """
    foreign = foreign_format(place.format)
    has_numbers = foreign.has_numbers if foreign is not None else place.format != "sqs"
    if start is not None and not has_numbers:
        raise UsageError(f"messages in {place.format} files have no numbers: there is no --from")
    for found in _all(place, start, bodies):
        item = found.item
        is_before = isinstance(item, Record) and _UNKNOWN < item.sequence < (start or 0)
        if not is_before:
            yield found


def salvage_part(part: Part, source: Source) -> Iterator[Record | Hole | Damage]:
    """The items of one file, and the damage between them."""
    if part.codec.name == "journal":  # its codec starts behind the header
        raw = source.read(0, HEADER_BYTES)
        try:
            decode_header(raw)
        except SegmentCorruptError as exc:
            if source.size > HEADER_BYTES:
                yield Damage(0, HEADER_BYTES, exc.reason)
            elif raw and not part.is_current:
                yield Damage(0, len(raw), TORN)
    for item in part.codec.salvage(source):
        yield from _without_torn(part, item)


def bytes_of(place: DetectedPath) -> int:
    """The size of all files of a place that exist."""
    if not place.is_folder:
        return os.stat(place.path).st_size
    return sum(os.stat(part.path).st_size for part in parts_of(place) if os.path.exists(part.path))


def journal_of(place: DetectedPath) -> str | None:
    """The folder of the journal that a place is, or belongs to."""
    if place.is_folder:
        return place.path
    match = _IN_JOURNAL.fullmatch(place.path)
    return match[1] if match else None


def lock_of(place: DetectedPath) -> str | None:
    """The lock file of a place's writer; None: there is none."""
    if place.format == "journal":
        root = journal_of(place)
        return None if root is None else lock_path(root)
    folder = place.path if place.is_folder else os.path.dirname(place.path)
    for _ in range(_ABOVE_MAX):
        if os.path.isfile(path := os.path.join(folder, "lock")):
            return path
        folder = os.path.dirname(folder)
    return None


def is_written(place: DetectedPath) -> bool:
    """Whether a writer is at work there, as far as the system shows locks."""
    path = lock_of(place)
    return path is not None and _is_held(path)


def name_in(place: DetectedPath, path: str) -> str:
    """The name of a folder's file for messages; the file need not exist."""
    return os.path.relpath(path, place.path) if os.path.isabs(path) else path


def vanished(exc: StorageError) -> bool:
    """Whether the file is gone: retention or a compaction was faster."""
    return isinstance(exc.__cause__, FileNotFoundError)


def _all(place: DetectedPath, start: int | None, bodies: bool) -> Iterator[FoundItem]:
    foreign = foreign_format(place.format)
    if foreign is not None and foreign.items_in is not None and place.is_folder:
        for name, item in foreign.items_in(place.path):
            damage = Damage(item.offset, item.size, TORN) if isinstance(item, Torn) else item
            yield FoundItem(name, damage)
        return
    parts = parts_of(place)
    if place.format == "journal" and place.is_folder and start is not None:
        files = list_files(place.path)
        first = file_at(files, start)
        parts = [part for part in parts if first is None or part.path >= first.path]
    for i, part in enumerate(parts):
        is_first_journal = place.format == "journal" and start is not None and i == 0
        try:
            with FileSource(part.path) as source:
                at = _near(part, source, start) if is_first_journal else None
                for item in of_part(part, source, at, bodies):
                    yield FoundItem(part.name, item)
        except StorageError as exc:
            if not (place.is_folder and vanished(exc)):
                raise


def _near(part: Part, source: FileSource, start: int | None) -> int | None:
    """The offset from which reading comes to record ``start`` soon; None: the beginning."""
    file = LogFile(0, part.path, "")
    try:
        file = file._replace(first=decode_header(source.read(0, HEADER_BYTES)).first)
    except SegmentCorruptError:
        return None
    entry = entry_before(index_of(file, source), start or 0)
    return None if entry is None else entry.offset


def of_part(
    part: Part, source: Source, at: int | None, bodies: bool
) -> Iterator[Record | Hole | Damage]:
    """The items of one file: by ``scan`` where that is faster, by ``salvage`` from damage on.

    Args:
        part: the file.
        source: its bytes.
        at: the offset of a record to begin with; None: the first.
        bodies: without, payloads may be left out, and are not checked then.
    """
    if part.codec.name == "journal":
        bodies = True  # headers lie within the payloads
    end = 0
    if at is not None or not bodies:
        try:
            for item in part.codec.scan(source, at, bodies=bodies):
                yield from _without_torn(part, item)
                end = item.offset + item.size
            return
        except SegmentCorruptError:
            pass  # salvage finds the damage, too
    for item in salvage_part(part, source):
        if item.offset >= end or (isinstance(item, Damage) and item.offset + item.size > end):
            yield item


def _without_torn(part: Part, item: Item) -> Iterator[Record | Hole | Damage]:
    if not isinstance(item, Torn):
        yield item
    elif not part.is_current:
        yield Damage(item.offset, item.size, TORN)


def _part(place: DetectedPath, path: str, name: str, *, is_last: bool) -> Part:
    """One file of several; a converted store has files of both formats."""
    own = name[-3:] if name.endswith((".sqs", ".rdq")) else place.format
    is_current = own == "sqs" and is_last and is_written(place)
    return Part(path, name, codec_of(path, own, is_current=is_current), is_current)


def _is_current(place: DetectedPath) -> bool:
    """Whether a single file is being written."""
    if place.format not in ("journal", "sqs") or not is_written(place):
        return False
    if place.format == "journal":
        files = list_files(journal_of(place) or "")
        return bool(files) and files[-1].path == place.path
    newest = [name for _, name in store_files(os.path.dirname(place.path))[-1:]]
    return newest == [os.path.basename(place.path)]


def _is_held(path: str) -> bool:
    """Whether a process holds ``flock`` on a file; read from the system, no lock is taken."""
    try:
        inode = os.stat(path).st_ino
        with open("/proc/locks", encoding="ascii") as file:
            fields = [line.split() for line in file]
    except OSError:
        return False
    # The device is left out: some file systems show another one here than in stat.
    return any(
        "FLOCK" in line and any(word.endswith(f":{inode}") for word in line) for line in fields
    )
