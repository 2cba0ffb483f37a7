"""The files of single shards in the store of one node: fetched, and removed.

::

    <path>.fetched/     a part of a checkpoint on its way here
    <path>.restored/    a shard that is whole, on its way into the store

What an interrupted run has left there, and files of shards in the store that are not noted, are
removed before the store is opened.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Protocol

from ...engine.files.paths import is_rocksdb, list_layout, shard_path
from ...engine.files.shard_files import remove_shard
from ...engine.recovery.restore_shard import copy_shard, restore_shard
from ...engine.runtime.event_loop import Spawner
from ...errors import CorruptionError, LodeqError, OpenError, StorePathError, UsageError
from ..bootstrap import CheckpointSource, checkpoints_of, manifest_digest, position_of
from ..port import Checkpoint, ShardState, SharedLog, index_of

__all__ = ["DiskShards", "NoFiles", "ShardFiles", "fetch_copy"]


class ShardFiles(Protocol):
    """The files of the shards of one store."""

    async def settle(self, noted: Collection[int] | None, spawner: Spawner) -> set[int]:
        """Before the store is opened: those of ``noted`` that are there; other shards are removed.

        Args:
            noted: shards that this node has; None: it has not noted anything yet.
            spawner: the event loop.

        Raises:
            StorePathError: nothing is noted, and there is a store.
        """

    async def position(self, shard: int, spawner: Spawner) -> int:
        """Index of the last entry in the rows of a shard that is there."""

    async def fetch(self, shard: int, checkpoint: Checkpoint, spawner: Spawner) -> None:
        """Put the shard's part of a checkpoint in the place of what is there of it.

        Raises:
            LodeqError, OSError: this checkpoint cannot be used; another one is tried.
        """

    async def remove(self, shard: int, spawner: Spawner) -> None:
        """Delete what there is of a shard, which nobody has open."""


class NoFiles:
    """Of a store in memory: nothing outlives it, and nothing can be fetched."""

    async def settle(self, noted: Collection[int] | None, spawner: Spawner) -> set[int]:
        """See ``ShardFiles.settle``."""
        return set()

    async def position(self, shard: int, spawner: Spawner) -> int:
        """See ``ShardFiles.position``."""
        return 0

    async def fetch(self, shard: int, checkpoint: Checkpoint, spawner: Spawner) -> None:
        """See ``ShardFiles.fetch``."""
        raise UsageError("a store in memory takes no checkpoint")

    async def remove(self, shard: int, spawner: Spawner) -> None:
        """See ``ShardFiles.remove``."""


class DiskShards:
    """Those of a store in a folder.

    Args:
        root: path of the store.
        source: where checkpoints of other nodes are read from.
    """

    def __init__(self, root: str, source: CheckpointSource) -> None:
        self._root = root
        self._source = source

    async def settle(self, noted: Collection[int] | None, spawner: Spawner) -> set[int]:
        """See ``ShardFiles.settle``."""
        found: set[int] = await spawner.run_in_thread(partial(self._settle, noted))
        return found

    def _settle(self, noted: Collection[int] | None) -> set[int]:
        self._clear()
        if not os.path.isdir(self._root):
            return set()
        layout = list_layout(self._root)
        if noted is None:
            if layout.shards:
                raise StorePathError(
                    f"{self._root} holds a store that is no replica of this cluster: choose "
                    "another path, and move its tasks with 'lodeq export' and 'lodeq import'"
                )
            return set()
        swapped = {*layout.accepted, *layout.before}  # an open that was interrupted goes on with it
        there = {
            shard
            for shard in noted
            if shard in swapped or is_rocksdb(shard_path(self._root, shard))
        }
        for shard in {shard for group in layout for shard in group} - there:
            remove_shard(self._root, shard)
        return there

    async def position(self, shard: int, spawner: Spawner) -> int:
        """See ``ShardFiles.position``."""
        found: int = await spawner.run_in_thread(partial(position_of, self._root, shard))
        return found

    async def fetch(self, shard: int, checkpoint: Checkpoint, spawner: Spawner) -> None:
        """See ``ShardFiles.fetch``."""
        work = f"{self._root}.fetched"
        try:
            folder = await self._source.fetch(checkpoint, work, spawner, shards=(shard,))
        except (LodeqError, OSError):
            await spawner.run_in_thread(self._clear)
            raise
        await spawner.run_in_thread(partial(self._restore, folder, checkpoint, shard))

    def _restore(self, folder: str, checkpoint: Checkpoint, shard: int) -> None:
        found, digest = manifest_digest(folder), checkpoint.digest
        if found != digest:
            raise CorruptionError(
                f"its manifest has the digest {found}, and {digest} was published"
            )
        work = f"{self._root}.restored"
        try:
            shutil.rmtree(work, ignore_errors=True)
            copy_shard(folder, work, shard)
            reached, published = position_of(work, shard), checkpoint.applied[shard]
            if reached < published:
                raise CorruptionError(f"it goes to {reached}, and {published} was published")
            restore_shard(work, self._root, shard)
        finally:
            self._clear()

    async def remove(self, shard: int, spawner: Spawner) -> None:
        """See ``ShardFiles.remove``."""
        await spawner.run_in_thread(partial(remove_shard, self._root, shard))

    def _clear(self) -> None:
        for name in ("fetched", "restored"):
            shutil.rmtree(f"{self._root}.{name}", ignore_errors=True)


async def fetch_copy(
    log: SharedLog,
    files: ShardFiles,
    state: ShardState,
    spawner: Spawner,
    pin: Callable[[int], Awaitable[None]],
) -> Checkpoint | None:
    """Make ready the files of a shard, of which there are none to be used. Returns from what.

    None: there is no folder, and the engine begins an empty shard, which the log fills.

    Args:
        log: joined.
        files: of this node.
        state: of the shard.
        spawner: the event loop.
        pin: called with the index that the log has to be kept behind.

    Raises:
        OpenError: the log no longer begins at 1, and no checkpoint can be used.
    """
    shard, failed = state.shard, list[str]()
    for checkpoint in await checkpoints_of(log):
        reach = index_of(checkpoint.applied, shard)
        if reach <= 0:
            continue
        name = f"that of {checkpoint.node} at {checkpoint.url}"
        if reach + 1 < state.floor:
            failed.append(f"{name} does not reach the log")
            continue
        await pin(reach)
        try:
            await files.fetch(shard, checkpoint, spawner)
        except (LodeqError, OSError) as error:
            failed.append(f"{name}: {error}")
        else:
            return checkpoint
    if state.floor > 1:
        why = "; ".join(failed) if failed else "there are none"
        raise OpenError(
            f"shard {shard}: the log begins at entry {state.floor}, and no checkpoint can be used "
            f"for a copy: {why}. Let a node that has the shard publish one ('lodeq cluster "
            "checkpoint')"
        )
    await pin(0)
    await files.remove(shard, spawner)
    return None
