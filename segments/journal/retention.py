"""How much of a journal is kept. Only whole files go, the oldest first, and never the newest.

A file goes when any bound asks for it and no named tailer still needs it: one that is far behind
keeps what it has not read, and that is visible (``lag``), not an accident.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...errors import LodeqError, StorageError, UsageError
from ..source import FileSource
from .layout import LogFile, index_path
from .log_format import HEADER_BYTES, decode_header
from .positions import list_places
from .roll import Roll, check_bounds

__all__ = ["Retention", "due_files", "remove_file", "roll_for"]

EIGHTH: Final = 8  # only whole files go: so much more than asked for may be kept
ROLL_BYTES_MIN: Final = 64 << 10
ROLL_RECORDS_MIN: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Any of these: files go until none is exceeded. None: no such bound.

    Args:
        seconds: A file goes when its newest record is older.
        bytes: Of all log files together.
        records: Of all log files together.
        files: So many log files are kept at most, the one being written included; at least 1, and
            not below ``files_min``.
        files_min: So many files are kept whatever the bounds say; at least 1.
        tailers: Keep what a named tailer has not read. False deletes it all the same: the tailer is
            then gets a gap.
    """

    seconds: float | None = None
    bytes: int | None = None
    records: int | None = None
    files: int | None = None
    files_min: int = 1
    tailers: bool = True

    def __post_init__(self) -> None:
        whole = {"bytes": self.bytes, "records": self.records, "files": self.files}
        check_bounds(self, self.seconds, **whole, files_min=self.files_min)
        bounds = (self.seconds, self.bytes, self.records)
        keeps_none = self.files_min is None or self.files_min < 1
        if any(bound is not None and not bound >= 0 for bound in bounds) or keeps_none:
            raise UsageError(f"{self!r}: bounds are not negative, and at least one file is kept")
        if self.files is not None and self.files < self.files_min:
            raise UsageError(f"{self!r}: files is at least files_min, {self.files_min}")


def roll_for(retention: Retention | None) -> Roll:
    """When files are left, if nothing else was said: so that what is kept is several of them."""
    usual = Roll()
    if retention is None or usual.bytes is None:
        return usual
    size, age_s, records = usual.bytes, retention.seconds, retention.records
    if retention.bytes is not None:
        size = min(size, max(ROLL_BYTES_MIN, retention.bytes // EIGHTH))
    return Roll(
        bytes=size,
        seconds=None if age_s is None else max(1.0, age_s / EIGHTH),
        records=None if records is None else max(ROLL_RECORDS_MIN, records // EIGHTH),
    )


def due_files(
    root: str, files: Sequence[LogFile], retention: Retention, *, following: int, now_us: int
) -> list[LogFile]:
    """Files that may go now, in order. ``following``: the number the next record gets.

    Args:
        root: the journal's folder.
        files: its log files, ascending.
        retention: the limits.
        following: number of the next record.
        now_us: Unix microseconds.

    Raises:
        CorruptionError: the place of a tailer cannot be read: nothing is deleted that it may need.
    """
    left = 0 if retention.bytes is None else sum(_bytes(file.path) for file in files)
    starts = [*(file.first for file in files), following]
    needed = following
    if retention.tailers:
        needed = min((place.following for _, place in list_places(root)), default=following)
    due: list[LogFile] = []
    for i in range(max(0, len(files) - retention.files_min)):
        end = starts[i + 1]
        is_old = False
        if retention.seconds is not None:
            # No record of it is newer than the next file, or than any behind that. The first one
            # that says how old it is counts: the others need not be opened.
            ages = (_created_us(files[n].path) for n in range(i + 1, len(files)))
            newest_us = next((us for us in ages if us is not None), None)
            is_old = newest_us is not None and newest_us + retention.seconds * 1e6 <= now_us
        is_much = retention.bytes is not None and left > retention.bytes
        is_many = retention.records is not None and following - starts[i] > retention.records
        is_one_too_many = retention.files is not None and len(files) - i > retention.files
        if not (is_old or is_much or is_many or is_one_too_many) or end > needed:
            break
        due.append(files[i])
        if retention.bytes is not None:
            left -= _bytes(files[i].path)
    return due


def remove_file(file: LogFile) -> None:
    """The index first: without its log it would be nothing. Folders that become empty go, too."""
    for path in (index_path(file.path), file.path):
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise StorageError(f"cannot remove {path!r}: {exc.strerror}") from exc
    folder = os.path.dirname(file.path)
    for _ in file.day.split("/"):
        try:
            os.rmdir(folder)
        except OSError:  # not empty
            return
        folder = os.path.dirname(folder)


def _bytes(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _created_us(path: str) -> int | None:
    """None for a file that is damaged, or cannot be read now: it says of none how old it is."""
    try:
        with FileSource(path) as source:
            return decode_header(source.read(0, HEADER_BYTES)).created_us
    except LodeqError:
        return None
