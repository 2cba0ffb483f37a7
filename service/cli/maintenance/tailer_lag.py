"""How far the named tailers of a journal are behind. Nothing is written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from ....engine.runtime.clock import Clock
from ....errors import CorruptionError, UsageError
from ....segments.detect import DetectedPath
from ....segments.item import Damage
from ....segments.journal.cursor import LogCursor
from ....segments.journal.layout import is_tailer, tailer_path, tailers_folder
from ....segments.journal.positions import read_place
from ....segments.journal.view import FolderView
from ...shared.file_check import Problem

__all__ = ["Lag", "lags"]


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one tailer is behind. ``behind`` counts numbers, also of records that are gone.

    ``first_unread_us`` is the time of the first unread record that is there, 0 if there is none.
    """

    tailer: str
    following: int
    behind: int
    first_unread_us: int
    age_s: float | None
    stored_us: int


def lags(detected: DetectedPath, clock: Clock) -> Iterator[Lag | Problem]:
    """The lag of each named tailer, in order of names; a position that cannot be read is a problem.

    Raises:
        UsageError: the path is not the folder of a journal.
        StorageError: something cannot be read.
    """
    if detected.format != "journal" or not detected.is_folder:
        raise UsageError(
            f"{detected.path!r} is not the folder of a journal, and only a journal has tailers"
        )
    folder = tailers_folder(detected.path)
    names = sorted(filter(is_tailer, os.listdir(folder))) if os.path.isdir(folder) else []
    cursor = LogCursor(FolderView(detected.path), lambda _: None)
    try:
        cursor.seek_end()
        end = cursor.following
        for name in names:
            yield from _lag(detected.path, name, cursor, end, clock.wall_us())
    finally:
        cursor.close()


def _lag(root: str, name: str, cursor: LogCursor, end: int, now_us: int) -> Iterator[Lag | Problem]:
    try:
        stored = read_place(root, name)
    except CorruptionError as exc:
        size = os.stat(tailer_path(root, name)).st_size
        yield Problem(f"tailers/{name}", Damage(0, size, str(exc.__cause__ or exc)))
        return
    if stored is None:  # forgotten meanwhile
        return
    behind = max(0, end - stored.following)  # a tailer may have gone on since the end was looked up
    first_us = 0
    if behind:
        cursor.seek(stored.following)
        first_us = next((record.time_us for record in cursor.read(1)), 0)
    yield Lag(
        tailer=name,
        following=stored.following,
        behind=behind,
        first_unread_us=first_us,
        age_s=max(0, now_us - first_us) / 1e6 if first_us else None,
        stored_us=stored.stored_us,
    )
