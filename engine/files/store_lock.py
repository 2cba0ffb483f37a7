"""The locks of an open store: one of the whole, or one for each shard that a process has.

A store is opened whole by one process, which holds ``lock``. Where several processes share it, each
holds ``shard<i>.lock`` of its shards, and ``lock`` belongs to the process that has started them: so
whoever opens the store whole learns who has it, and a shard is never open twice. The order decides:

- Who opens it whole takes ``lock`` first, and then the locks of single shards that ever were: of a
  supervisor that was killed, processes may be left.
- Who opens shards takes theirs first, and then looks whether its parent (or this process) holds
  ``lock``. Without one it does not open.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress

from ...errors import LockedError
from .lockfile import LockFile, is_held_by
from .paths import list_layout, lock_path, shard_lock_path

__all__ = ["StoreLock"]


class StoreLock:
    """Held locks of a store. ``release`` (idempotent) or the end of the process frees them."""

    def __init__(self, whole: LockFile | None, of_shards: dict[int, LockFile]) -> None:
        self._whole = whole
        self._of_shards = of_shards

    @classmethod
    def of_store(cls, root: str, free_bytes: Callable[[], int] = lambda: 0) -> StoreLock:
        """Take the whole store, without waiting.

        Args:
            root: its folder.
            free_bytes: as ``LockFile.acquire`` takes it.

        Raises:
            LockedError: another process has it, or a shard of it.
        """
        taken = cls(LockFile.acquire(lock_path(root), free_bytes), {})
        try:
            taken._take(root, list_layout(root).locks, free_bytes)
        except BaseException:
            taken.abandon()
            raise
        return taken

    @classmethod
    def of_shards(
        cls, root: str, shards: Iterable[int], free_bytes: Callable[[], int] = lambda: 0
    ) -> StoreLock:
        """Take single shards of a store that the parent of this process has, or this process.

        Args:
            root: its folder.
            shards: their indexes.
            free_bytes: as ``LockFile.acquire`` takes it.

        Raises:
            LockedError: another process has one of them, or nobody above has the store.
        """
        taken = cls(None, {})
        try:
            taken._take(root, shards, free_bytes)
            if not any(is_held_by(lock_path(root), pid) for pid in (os.getppid(), os.getpid())):
                raise LockedError(
                    f"{root}: some of its shards are only opened below a process that holds the "
                    "store, as 'lodeq serve --processes' does; open all of it, or start that"
                )
        except BaseException:
            taken.abandon()
            raise
        return taken

    def _take(
        self, root: str, shards: Iterable[int], free_bytes: Callable[[], int] = lambda: 0
    ) -> None:
        for shard in shards:
            self._of_shards[shard] = LockFile.acquire(shard_lock_path(root, shard), free_bytes)

    @property
    def _all(self) -> list[LockFile]:
        return [*self._of_shards.values(), *([] if self._whole is None else [self._whole])]

    @property
    def is_held(self) -> bool:
        """False once released, and in a forked child."""
        return any(lock.is_held for lock in self._all)

    @property
    def was_left(self) -> bool:
        """Whether one of them was left by a holder that did not release it."""
        return any(lock.was_left for lock in self._all)

    def give_shards(self, root: str, shards: int) -> None:
        """Let go of single shards and keep the whole: processes below this one are to take them.

        For who has opened the store whole and closed it again, with nothing left to recover. What
        was left stays so for the processes, whose engines look at its leases.

        Args:
            root: the store's folder.
            shards: how many it has.
        """
        was_left = self.was_left
        if was_left:
            self._take(root, [one for one in range(shards) if one not in self._of_shards])
        for lock in self._of_shards.values():
            lock.release(is_sound=not was_left)
        self._of_shards.clear()

    def release(self, *, is_sound: bool = True) -> None:
        """Let go, of the whole last; if not ``is_sound``, as a process that dies does."""
        for lock in self._all:
            lock.release(is_sound=is_sound)

    def abandon(self) -> None:
        """Let go after a failure: what was left when they were taken is still."""
        for lock in self._all:
            with suppress(OSError):
                lock.release(is_sound=not lock.was_left)
