"""Positions in the lifecycle journal, and stretches of it that can be read independently.

A *point* is the number of the next record, with the last commit of each shard that was read: after
a crash the engine may write the events of a commit again. So a stretch that is read from its point
gives the same rows each time, also after a failure, and several stretches can be read at once.

Records that are fsynced are read at once. The note of the last fsync may be a second old, so
records behind it are read when they are ``SETTLE_S`` old: after a power cut, events that were not
synced may come back under other numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...engine.files.paths import JOURNALS, journal_path, normal_path
from ...engine.runtime.clock import Clock, SystemClock
from ...errors import SegmentCorruptError, StorePathError, UsageError
from ...segments.journal.cursor import Gap, LogCursor
from ...segments.journal.layout import LogFile, is_tailer
from ...segments.journal.log_format import LogRecord
from ...segments.journal.recovery import read_position
from ...segments.journal.small_files import IndexEntry
from ...segments.journal.view import FolderView, entry_before, file_at
from ...segments.lifecycle import Reader
from ...segments.source import FileSource

__all__ = [
    "Hint",
    "Point",
    "Stretch",
    "end_of",
    "find_journal",
    "first_point",
    "hint_at",
    "last_point",
    "records",
    "scan",
]

SETTLE_S: Final = 2.0
_READ: Final = 1024


@dataclass(frozen=True, slots=True)
class Hint:
    """Offset of a frame at or before a record. It saves a walk over the newest file."""

    file: int
    sequence: int
    offset: int


@dataclass(frozen=True, slots=True)
class Point:
    """A position. ``next``: number of the next record. ``seen``: as ``lifecycle.Reader.seen``."""

    next: int
    seen: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the offset as JSON, equal for equal points: Spark compares the texts."""
        seen = {str(shard): f"{at[0]}/{at[1]}" for shard, at in sorted(self.seen.items())}
        return {"next": self.next, "seen": seen}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Point:
        """Make the point of an offset.

        Raises:
            UsageError: it is not an offset of this source.
        """
        try:
            seen = {int(shard): _pair(at) for shard, at in raw["seen"].items()}
            return cls(int(raw["next"]), seen)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise UsageError(
                f"{raw!r} is not an offset of a lifecycle journal: the checkpoint belongs to "
                "another source; give this query a checkpointLocation of its own"
            ) from exc


def _pair(text: str) -> tuple[int, int]:
    incarnation, _, number = text.partition("/")
    return int(incarnation), int(number)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Records from ``start.next`` up to, but not including, ``end``."""

    root: str
    start: Point
    end: int
    fail_on_loss: bool = True
    hint: Hint | None = None


def find_journal(store: str | os.PathLike[str], name: str | None = None) -> str:
    """Find the folder of a store's lifecycle journal; without a name, of its only one.

    Raises:
        StorePathError: there is none, or none of that name.
        UsageError: there are several.
    """
    path = normal_path(store)
    if name is not None:
        root = journal_path(path, name) if is_tailer(name) else ""
        if not os.path.isdir(root):
            raise StorePathError(f"no journal {name!r} in {path!r}")
        return root
    try:
        names = sorted(found for found in os.listdir(os.path.join(path, JOURNALS)))
    except OSError:
        names = []
    if not names:
        raise StorePathError(
            f"no lifecycle journal in {path!r}: lodeq.open(path, journal=...) writes one"
        )
    if len(names) > 1:
        raise UsageError(f"{path!r} has the journals {', '.join(names)}: give the option 'journal'")
    return journal_path(path, names[0])


def first_point(root: str) -> Point:
    """Return the point of the oldest record that is kept."""
    files = FolderView(root).files()
    return Point(files[0].first if files else 1)


def last_point(root: str, view: FolderView) -> Point:
    """Return the point behind all records that may be read now.

    The last commit of each shard is looked for in the two newest files only: after a crash the
    engine writes again only what it wrote just before.
    """
    files = view.files()
    start = Point(files[max(0, len(files) - 2)].first if files else 1)
    *_, (point, _) = scan(Stretch(root, start, 0, fail_on_loss=False), view)
    return point


def end_of(view: FolderView) -> int:
    """Return the number of the record that will be written next."""
    cursor = LogCursor(view, lambda gap: None)
    try:
        cursor.seek_end()
        return cursor.following
    finally:
        cursor.close()


def hint_at(view: FolderView, sequence: int) -> Hint | None:
    """Return the offset of a record; None if its file has no index entry before it."""
    file = file_at(view.files(), sequence)
    if file is None:
        return None
    with FileSource(file.path) as source:
        entry = entry_before(view.entries(file, source), sequence)
    return None if entry is None else Hint(file.first, entry.sequence, entry.offset)


class _HintedView(FolderView):
    """A view that knows the offset of one record, and reads all others from the folder."""

    def __init__(self, root: str, hint: Hint) -> None:
        super().__init__(root)
        self._hint = hint

    def entries(self, file: LogFile, source: FileSource) -> Sequence[IndexEntry]:
        """See ``View``."""
        hint, self._hint = self._hint, Hint(0, 0, 0)  # used by the first read only, which it is for
        if file.first != hint.file:
            return super().entries(file, source)
        return [IndexEntry(hint.sequence, 0, hint.offset)]


def scan(
    stretch: Stretch,
    view: FolderView,
    *,
    most: int | None = None,
    every: int | None = None,
    stop: int = 0,
    clock: Clock | None = None,
) -> Iterator[tuple[Point, int]]:
    """Walk over a stretch; yield (point, rows so far) every ``every`` rows and at its end.

    Args:
        stretch: an ``end`` of 0 is behind all records that may be read now.
        view: of the journal's folder.
        most: rows at most; a first record with more is read nevertheless.
        every: rows between two points; None yields only the end.
        stop: end before this record; 0 does not.
        clock: for the age of records; the machine's by default.

    Raises:
        SegmentCorruptError: records are damaged or gone, and ``fail_on_loss``.
    """
    rows = yielded = 0
    reader, following = Reader(stretch.start.seen), stretch.start.next
    for record in records(stretch, view, clock):
        if stop and record.sequence >= stop:
            break
        if every is not None and rows - yielded >= every:
            yielded = rows
            yield Point(following, reader.seen), rows
        seen = reader.seen if most is not None else {}
        more = len(reader.read(record))
        if most is not None and rows and rows + more > most:
            yield Point(following, seen), rows
            return
        rows += more
        following = record.sequence + 1
    yield Point(following, reader.seen), rows


def records(
    stretch: Stretch, view: FolderView | None = None, clock: Clock | None = None
) -> Iterator[LogRecord]:
    """Yield the records of a stretch, in order.

    Raises:
        SegmentCorruptError: some are damaged or gone, and ``fail_on_loss``.
    """
    if view is None:
        hint = stretch.hint
        view = FolderView(stretch.root) if hint is None else _HintedView(stretch.root, hint)
    settled_us = (clock or SystemClock()).wall_us() - int(SETTLE_S * 1e6)
    position = read_position(stretch.root)
    durable = position.durable if position is not None else 0

    def lost(gap: Gap) -> None:
        if stretch.fail_on_loss and (not stretch.end or gap.first < stretch.end):
            raise _lost(stretch, gap)

    cursor = LogCursor(view, lost)
    cursor.seek(stretch.start.next)
    try:
        while found := cursor.read(_READ):
            for record in found:
                if stretch.end and record.sequence >= stretch.end:
                    return
                if not stretch.end and not (
                    record.sequence <= durable or record.time_us <= settled_us
                ):
                    return
                yield record
        if cursor.following < (upto := stretch.end or durable + 1):
            lost(Gap(cursor.following, upto - 1, ()))
    finally:
        cursor.close()


def _lost(stretch: Stretch, gap: Gap) -> SegmentCorruptError:
    where = gap.findings[0] if gap.findings else None
    reason = where.reason if where is not None else "removed, or unreadable at the end"
    location = f" in {where.path!r} at {where.offset}" if where is not None else ""
    return SegmentCorruptError(
        f"journal {stretch.root!r}: records {gap.first} to {gap.last} are missing: "
        f"{reason}{location}; the option failOnDataLoss=false continues after them",
        offset=where.offset if where is not None else 0,
        reason=reason,
    )
