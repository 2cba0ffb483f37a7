"""RocksDB that takes the disk for full when it is not any more.

After a full disk RocksDB comes back by itself, some five seconds after there is space. Rarely it
does not, though a single append failed: it then refuses every write with the error of that one,
until it is reopened. Waiting would be for ever, so the wait has an end.
"""

from __future__ import annotations

import os

from ...errors import CommitUnknownError, LodeqError
from ..runtime.clock import perf_s

__all__ = ["FullWatch", "has_free_space"]

STUCK_S = 30.0  # six of its looks for space
ROOM_BYTES_MIN = 128 << 20  # with less, it may be right


class FullWatch:
    """How long one store has refused writes while its disk had free space."""

    __slots__ = ("_path", "_progress", "_since_s")

    def __init__(self, path: str) -> None:
        self._path = path
        self._progress = -1
        self._since_s = 0.0

    def judge(self, error: LodeqError, progress: int) -> LodeqError:
        """The error of a write that was refused because the disk is full.

        Args:
            error: the refusal: it may still heal.
            progress: a number that each write that succeeds changes.
        """
        now_s = perf_s()
        if progress != self._progress or not has_free_space(self._path):
            self._progress, self._since_s = progress, now_s
        if now_s - self._since_s < STUCK_S:
            return error
        return CommitUnknownError(
            f"{error} (for {STUCK_S:g} s, though the disk has space: RocksDB does not come back by "
            "itself, reopen the store)"
        )


def has_free_space(path: str) -> bool:
    """Bytes, and names where the file system counts them."""
    try:
        info = os.statvfs(path)
    except OSError:
        return False
    has_names = not info.f_files or info.f_favail > 0
    return has_names and info.f_bavail * info.f_frsize >= ROOM_BYTES_MIN
