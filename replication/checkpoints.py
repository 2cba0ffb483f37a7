"""The checkpoints of one node: taken, kept for those who fetch them, and published.

A checkpoint lies in ``<path>.checkpoints/<wall ms>/``. The newest ``KEPT`` stay, and of older ones
at most ``READ_MAX`` that somebody is fetching: that were asked for in the last ``READ_S`` seconds.
Where the log gave no answer to a publication, nobody knows if it has it. So it is asked before the
next checkpoint is taken; what it has is kept, and so is the last one that it may have yet.
Files are hard links where the file system has them, so a checkpoint costs little until the store
has moved on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from ..engine.files.paths import fsync_dir
from ..engine.recovery.checkpoint import read_manifest
from ..engine.runtime.clock import Clock
from ..engine.runtime.event_loop import Spawner
from ..errors import BusyError, ClosedError, LodeqError, UsageError
from .bootstrap import manifest_digest
from .port import NO_COPY, Checkpoint, LogUnavailableError
from .replica_note import read_note, write_note
from .replicator import LogReplicator
from .waiting import Waiting

__all__ = ["CheckpointFile", "Checkpoints"]

KEPT: Final = 2
READ_MAX: Final = 4
READ_S: Final = 600.0
LOOK_S: Final = 2.0
BETWEEN_S: Final = 5.0  # two checkpoints that are taken for the sake of new copies, at least …
BETWEEN_TIMES: Final = 2  # … and so many times as long as one took


class CheckpointFile(NamedTuple):
    """A file of a checkpoint: its path below the checkpoint's folder, and its size in bytes."""

    path: str
    size: int


class Checkpoints:
    """Takes and keeps the checkpoints of one node.

    Args:
        root: path of the node's store.
        take: makes a checkpoint at a path that is not there (``Engine.checkpoint``).
        replicator: of the store.
        node: its name.
        url: where others fetch from.
        spawner: the event loop.
        clock: names checkpoints, and says when the next one is due.
    """

    def __init__(
        self,
        root: str,
        take: Callable[[str], Awaitable[None]],
        replicator: LogReplicator,
        *,
        node: str,
        url: str,
        spawner: Spawner,
        clock: Clock,
    ) -> None:
        self._root = root
        self.folder = f"{root}.checkpoints"
        self.problem: str | None = None  # why the last one could not be taken
        self._take = take
        self._replicator = replicator
        self._node = node
        self._url = url
        self._waiting = Waiting(spawner, clock)
        self._by_digest: dict[str, str] = {}
        # By folder; threads share them: when it was asked for, and what is in it.
        self._read_at: dict[str, float] = {}
        self._paths: dict[str, frozenset[str]] = {}
        self._is_taking = False
        self._last: Checkpoint | None = None
        self._took_s = 0.0
        self._has_tried = False
        # By folder, the oldest first: those of which nobody knows if they were published.
        self._unsure: dict[str, Checkpoint] = {}

    async def run(self, every_s: float) -> None:
        """Take one every so many seconds, until cancelled. What fails is tried again next time.

        Also when a shard is here that nobody could start from, because it came since.
        """
        while True:
            await self._wait(every_s)
            try:
                await self.take()
            except (LodeqError, OSError) as error:
                self.problem = f"no checkpoint: {error}"
            else:
                self.problem = None

    async def _wait(self, every_s: float) -> None:
        """Wait until a checkpoint is due."""
        mono, began = self._waiting.clock.mono, self._waiting.clock.mono()
        soon_s = max(BETWEEN_S, BETWEEN_TIMES * self._took_s) if self._has_tried else 0.0
        while (left_s := began + every_s - mono()) > 0:
            await self._waiting.pause(min(left_s, LOOK_S))
            if mono() >= began + soon_s and self._replicator.lacks_checkpoint(self._last):
                return

    async def take(self) -> Checkpoint:
        """Take a checkpoint, publish it, and remove those that are too old.

        Raises:
            BusyError: one is being taken.
            LodeqError, OSError: it could not be taken, or not published.
        """
        if self._is_taking:
            raise BusyError("a checkpoint is being taken already: ask again when it is there")
        self._is_taking = self._has_tried = True
        began, folder = self._waiting.clock.mono(), ""
        found: Checkpoint | None = None
        try:
            await self._look_up()
            positions = tuple(one.applied for one in self._replicator.status().shards)
            now_ms = self._waiting.clock.wall_us() // 1000
            folder = os.path.join(self.folder, f"{now_ms:015}")
            await self._waiting.spawner.run_in_thread(partial(_make_folder, self.folder))
            await self._take(folder)
            # Shards come and go meanwhile: what is not in it, nobody can start from.
            manifest = await self._waiting.spawner.run_in_thread(partial(read_manifest, folder))
            there = {mark.shard for mark in manifest.shards}
            positions = tuple(
                at if shard in there else NO_COPY for shard, at in enumerate(positions)
            )
            await self._waiting.spawner.run_in_thread(partial(_copy_note, self._root, folder))
            digest = await self._waiting.spawner.run_in_thread(partial(manifest_digest, folder))
            found = Checkpoint(self._node, self._url, digest, positions, now_ms)
            self._by_digest[digest] = folder
            await self._replicator.publish(found)
            self._last = found
            self._unsure.clear()
            await self._waiting.spawner.run_in_thread(self._forget_old)
        except (LodeqError, OSError) as error:
            if found is not None and isinstance(error, LogUnavailableError | ClosedError):
                self._unsure[folder] = found
            elif folder and (found is None or found is not self._last):
                await self._waiting.spawner.run_in_thread(partial(_remove, [folder]))
            raise
        finally:
            self._took_s = self._waiting.clock.mono() - began
            self._is_taking = False
        return found

    async def _look_up(self) -> None:
        """Ask the log which of the unsure ones it has, and remove those that it will not have.

        The last one stays: it may be on its way. Raises as the log does, before one more is made.
        """
        if not self._unsure:
            return
        named = await self._replicator.own_checkpoint()
        if named in self._unsure.values():
            self._last = named
        *older, _ = self._unsure
        gone = [folder for folder in older if self._unsure[folder] != named]
        await self._waiting.spawner.run_in_thread(partial(_remove, gone))
        for folder in gone:
            del self._unsure[folder]

    def files(self, digest: str) -> list[CheckpointFile]:
        """The files of a checkpoint, which is kept for a while from now on. Blocks.

        Raises:
            UsageError: there is no such checkpoint.
        """
        folder = self.folder_of(digest)
        self._read_at[folder] = self._waiting.clock.mono()
        found = []
        for place, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(place, name)
                found.append(CheckpointFile(os.path.relpath(path, folder), os.path.getsize(path)))
        self._paths[folder] = frozenset(one.path for one in found)
        return sorted(found)

    def file(self, digest: str, path: str) -> str:
        """Where a file of a checkpoint lies, which is kept for a while from now on. Blocks.

        Raises:
            UsageError: there is no such checkpoint, or no such file in it.
        """
        folder = self.folder_of(digest)
        self._read_at[folder] = self._waiting.clock.mono()
        paths = self._paths.get(folder) or {one.path for one in self.files(digest)}
        if path not in paths:
            raise UsageError(f"the checkpoint {digest} has no file {path[:200]!r}")
        return os.path.join(folder, path)

    def _forget_old(self) -> None:
        """Remove those that are too old, but for what is being fetched. Blocks."""
        since = self._waiting.clock.mono() - READ_S
        read = {folder: at for folder, at in list(self._read_at.items()) if at > since}
        kept = sorted(read, key=lambda folder: read[folder])[-READ_MAX:]
        for name in _names(self.folder)[:-KEPT]:
            folder = os.path.join(self.folder, name)
            if folder not in kept:
                self._read_at.pop(folder, None)
                self._paths.pop(folder, None)
                shutil.rmtree(folder, ignore_errors=True)

    def folder_of(self, digest: str) -> str:
        """The folder of the checkpoint whose manifest has this digest. Blocks.

        Raises:
            UsageError: there is none.
        """
        known = self._by_digest.get(digest)
        if known is not None and os.path.isdir(known):
            return known
        for name in _names(self.folder):  # taken before this process began
            folder = os.path.join(self.folder, name)
            try:
                self._by_digest[manifest_digest(folder)] = folder
            except LodeqError:
                continue  # one that was never finished
        found = self._by_digest.get(digest)
        if found is None or not os.path.isdir(found):
            raise UsageError(f"this node has no checkpoint {digest[:64]!r}: ask for the newest")
        return found


def _names(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.isdecimal())
    except FileNotFoundError:
        return []


def _remove(folders: Sequence[str]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _copy_note(root: str, folder: str) -> None:
    """Say in a checkpoint of which cluster it is: who puts several together has to know."""
    note = read_note(root)
    if note is not None:
        write_note(folder, note)


def _make_folder(folder: str) -> None:
    if not os.path.isdir(folder):
        os.mkdir(folder, 0o700)
        fsync_dir(os.path.dirname(folder))
