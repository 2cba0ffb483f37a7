"""Syncs of a journal, and the note that says how far it is durable.

A sync is a job that blocks and touches nothing but file descriptors and this note, so it may run
in a thread while its writer goes on. The note is written after what it speaks of, never before.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final
from weakref import finalize

from ...engine.files.durable_files import replace_file, sync_data
from ...engine.files.paths import fsync_dir
from ...engine.store.io_thread import Done, Job, start_thread
from ...errors import StorageError
from .layout import TEMPORARY, position_path
from .small_files import POSITION_BYTES, SLOT_AT, Position, encode_slot

__all__ = ["PositionFile", "SyncJob", "SyncThread"]

NOTE_S: Final = 1.0  # how far the note may lag behind what is durable


class PositionFile:
    """The position of a journal, open for writing."""

    __slots__ = ("_fd", "_noted_mono", "position")

    def __init__(self, root: str, position: Position | None) -> None:
        """``position``: what the file holds; None: make it."""
        path = position_path(root)
        if position is None:
            position = Position(0, 0, 0, 0)
            image = bytearray(POSITION_BYTES)  # whole: a sync need not write its size
            slot = encode_slot(position)
            image[: len(slot)] = slot
            replace_file(path, bytes(image), suffix=TEMPORARY)
        self.position = position
        self._noted_mono = -NOTE_S
        self._fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)

    def following(
        self, durable: int, file: int, offset: int, now_mono: float, *, is_last: bool
    ) -> Position | None:
        """The position to write next, if it is time.

        Args:
            durable: number of the last durable record.
            file: first record of the file it is in.
            offset: where that file's durable bytes end.
            now_mono: monotonic seconds.
            is_last: whether the journal is being closed: then it is time.
        """
        if not is_last and now_mono < self._noted_mono + NOTE_S:
            return None
        self._noted_mono = now_mono
        return Position(self.position.generation + 1, durable, file, offset)

    def write(self, position: Position) -> None:
        """Durable on return. To the older slot: the newer stays whole, whatever happens."""
        slot = encode_slot(position)
        if os.pwrite(self._fd, slot, SLOT_AT[position.generation % 2]) != len(slot):
            raise OSError(errno.EIO, "short write")
        sync_data(self._fd)

    def close(self) -> None:
        """Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@dataclass(slots=True)
class SyncJob:
    """One sync, in any thread. ``durable`` is the last record it makes durable."""

    durable: int
    fds: list[int]
    sealed: list[int]  # of files that are left, to be closed afterwards
    folders: list[str]
    note: PositionFile
    position: Position | None

    def run(self) -> None:
        """Blocks. Raises OSError."""
        for fd in (*self.sealed, *self.fds):
            sync_data(fd)
        for folder in self.folders:
            fsync_dir(folder)
        if self.position is not None:
            self.note.write(self.position)


class SyncThread:
    """Runs what blocks, one job after another. Started by the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, fn: Callable[[], None], done: Done) -> None:
        """Run ``fn``, then ``done``, in the thread."""
        if self._thread is None or not self._thread.is_alive():  # ended, at exit
            try:
                self._thread = start_thread(self._name, self._jobs)
            except RuntimeError as exc:
                raise StorageError(f"no thread for a journal: {exc}") from exc
            finalize(self, self._jobs.put, None).atexit = False
        self._jobs.put((fn, done))

    def close(self) -> None:
        """Finish what was asked for. Blocks as long. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()
