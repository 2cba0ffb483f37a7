"""The folder of a journal: names, and the order of its files.

A log file is named after its first sequence number, and only that number orders: days are folders
for people. A day never goes back, though, so a listing by path has the same order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple

from ...engine.files.paths import fsync_dir
from ...errors import CorruptionError, InvalidNameError, StorageError
from .log_format import SEQUENCE_MAX

__all__ = [
    "TEMPORARY",
    "LogFile",
    "day_for",
    "index_path",
    "is_tailer",
    "list_files",
    "lock_path",
    "log_path",
    "make_folders",
    "position_path",
    "tailer_path",
    "tailers_folder",
]

_LOG = re.compile(r"[0-9]{20}\.log")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
TEMPORARY: Final = "~"  # ends the name of a file that is yet to replace one; no tailer has it
_YEAR, _MONTH_OR_DAY = re.compile(r"[0-9]{4}"), re.compile(r"[0-9]{2}")
_LAST_SECOND: Final = 253_402_300_799  # of the year 9999


class LogFile(NamedTuple):
    """``first`` is its first record's sequence number; ``day`` its folder, ``2023/11/14``."""

    first: int
    path: str
    day: str


def lock_path(root: str) -> str:
    """Who writes."""
    return os.path.join(root, "LOCK")


def position_path(root: str) -> str:
    """Path of the file that says what is durable."""
    return os.path.join(root, "position")


def log_path(root: str, first: int, day: str) -> str:
    """Path of the log file that begins with record ``first``."""
    return os.path.join(root, day, f"{first:020d}.log")


def index_path(path: str) -> str:
    """Path of a log file's index."""
    return path.removesuffix(".log") + ".idx"


def tailers_folder(root: str) -> str:
    """Where positions of named tailers lie."""
    return os.path.join(root, "tailers")


def is_tailer(name: str) -> bool:
    """Whether a tailer may have that name."""
    return _NAME.fullmatch(name) is not None


def tailer_path(root: str, name: str) -> str:
    """Path of a tailer's position file. The name is checked first: it becomes part of a path.

    Raises:
        InvalidNameError: it is none.
    """
    if not is_tailer(name):
        raise InvalidNameError(f"{name!r} is no name of a tailer: [a-z0-9][a-z0-9._-]{{0,63}} is")
    return os.path.join(tailers_folder(root), name)


def day_for(time_us: int, least: str = "") -> str:
    """The folder of that day, or the last one where the clock has gone back."""
    second = min(max(time_us // 1_000_000, 0), _LAST_SECOND)
    return max(datetime.fromtimestamp(second, UTC).strftime("%Y/%m/%d"), least)


def list_files(root: str, since: str = "") -> list[LogFile]:
    """All log files, in the order of their records; only those of the day ``since`` and later.

    Raises:
        CorruptionError: two files begin with the same record, or one with a number of none.
        StorageError: a folder cannot be read.
    """
    found = sorted(_find(root, since))
    if found and found[-1].first > SEQUENCE_MAX:
        raise CorruptionError(f"{found[-1].path!r}: no record has that number: move it away")
    for one, other in pairwise(found):
        if one.first == other.first:
            raise CorruptionError(
                f"{one.path!r} and {other.path!r} begin with the same record: move one of them away"
            )
    return found


def _find(root: str, since: str) -> Iterator[LogFile]:
    days = [""]
    for part in (_YEAR, _MONTH_OR_DAY, _MONTH_OR_DAY):
        days = [
            f"{day}/{name}" if day else name
            for day in days
            for name in _folders(os.path.join(root, day), part)
        ]
        days = [day for day in days if day >= since[: len(day)]]
    for day in days:
        folder = os.path.join(root, day)
        for name in _names(folder):
            if _LOG.fullmatch(name):
                yield LogFile(int(name[:20]), os.path.join(folder, name), day)


def _folders(path: str, name: re.Pattern[str]) -> list[str]:
    return [
        found
        for found in _names(path)
        if name.fullmatch(found) and os.path.isdir(os.path.join(path, found))
    ]


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:  # removed by retention meanwhile
        return []
    except OSError as exc:
        raise StorageError(f"cannot list {path!r}: {exc.strerror}") from exc


def make_folders(root: str, day: str) -> None:
    """The folder of a day, durably: a file's name is only as safe as every folder above it."""
    path = root
    for part in day.split("/"):
        above, path = path, os.path.join(path, part)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            continue
        fsync_dir(above)
