"""What the supervisor does with the folder before its processes open shards of it.

It opens the whole store once, as any process would: that makes a new store, mends what a crash has
left, and refuses what may not be opened. Then it closes the shards and keeps the lock, so nobody
else opens the folder while the processes have the shards.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

from ...engine.files.paths import is_rocksdb, normal_path, shard_path
from ...engine.files.store_lock import StoreLock
from ...engine.offline.settings_rows import copy_settings
from ...engine.recovery.open_shard import OpenStore, open_store
from ...errors import UsageError
from ...segments.bodies.find import BodyFolder
from .plan import PROCESSES_MAX, SHARDS_A_PROCESS

__all__ = ["Held", "prepare"]


class Held(NamedTuple):
    """A store whose lock this process has, with no shard open."""

    root: str
    lock: StoreLock
    shards: int
    durability: Literal["nosync", "fsync"]


def prepare(
    path: str | os.PathLike[str],
    processes: int,
    *,
    shards: int | None = None,
    durability: Literal["nosync", "fsync"] | None = None,
) -> Held:
    """Make or check the store, and take its lock. Blocks.

    Args:
        path: the store's folder.
        processes: how many will open it, 1 to 64.
        shards: of the store; None: those that it has, four a process where it is new.
        durability: None: as the store is stamped.

    Raises:
        UsageError: there are more processes than shards.
        OpenError, StorageError: as ``lodeq.open``.
    """
    if not 1 <= processes <= PROCESSES_MAX:
        raise UsageError(f"expected 1 to {PROCESSES_MAX} processes, got {processes}")
    root = normal_path(path)
    is_new = not is_rocksdb(shard_path(root, 0))
    if is_new and shards is None:
        shards = SHARDS_A_PROCESS * processes
    if shards is not None:
        _check_shares(root, shards, processes, is_new=is_new)
    opened = open_store(root, shards=shards, durability=durability, bodies=BodyFolder)
    try:
        _check_shares(root, len(opened.shards), processes, is_new=is_new)
        copy_settings([one.store for one in opened.shards], range(1, processes))
    except BaseException:
        opened.close()
        raise
    return _kept(root, opened)


def _kept(root: str, opened: OpenStore) -> Held:
    """Close the shards, and keep the lock."""
    held = Held(root, _lock_of(opened), len(opened.shards), opened.durability)
    opened.lock = None  # else closing would let it go
    opened.close()
    held.lock.give_shards(root, held.shards)
    return held


def _lock_of(opened: OpenStore) -> StoreLock:
    if opened.lock is None:
        raise UsageError("a store in memory has no processes")
    return opened.lock


def _check_shares(root: str, shards: int, processes: int, *, is_new: bool) -> None:
    if shards >= processes:
        return
    if is_new:
        raise UsageError(f"{processes} processes need as many shards or more: --shards {shards}")
    raise UsageError(
        f"{root} has {shards} shards, fewer than {processes} processes: give it more first, with "
        f"'lodeq reshard {root} --shards {SHARDS_A_PROCESS * processes}', or start at most {shards}"
    )
