"""A checkpoint of a store whose shards several processes have: one part each, put together.

Nothing links two shards of a checkpoint (``engine/recovery/checkpoint.py``), so it is no less
consistent than one that a single process makes. It is made in a folder ``NAME.partial`` beside its
place, and has its name once it is whole.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence

from ...engine.files.paths import bodies_path, shard_path
from ...engine.recovery.checkpoint import (
    abandon_checkpoint,
    begin_checkpoint,
    read_manifest,
    write_manifest,
)
from ...engine.values import ShardMark
from ...errors import StorageError

__all__ = ["joined_checkpoint"]


async def joined_checkpoint(
    target: str, processes: Sequence[Callable[[str], Awaitable[object]]], shards: int
) -> None:
    """Let every process copy its shards, and make one checkpoint of the copies.

    Args:
        target: its path, where nothing may be.
        processes: each makes a checkpoint of its own shards at a path.
        shards: of the store.

    Raises:
        StorePathError: there is something at ``target``.
        LodeqError: a process could not; nothing is left.

    Durability: holds everything acknowledged before the call. Cancellation: leaves nothing.
    """
    work = await asyncio.to_thread(begin_checkpoint, target)
    try:
        parts = [os.path.join(work, f"part{n}") for n in range(len(processes))]
        copies = [copy(part) for copy, part in zip(processes, parts, strict=True)]
        for outcome in await asyncio.gather(*copies, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        await asyncio.to_thread(_join, work, parts, shards)
    except BaseException:
        abandon_checkpoint(work)
        raise


def _join(work: str, parts: Sequence[str], shards: int) -> None:
    marks: list[ShardMark] = []
    store_ids: set[bytes] = set()
    for part in parts:
        manifest = read_manifest(part)
        store_ids.add(manifest.store_id)
        for mark in manifest.shards:
            for path_of in (shard_path, bodies_path):
                if os.path.isdir(folder := path_of(part, mark.shard)):
                    os.rename(folder, path_of(work, mark.shard))
            marks.append(mark)
        shutil.rmtree(part)
    if sorted(mark.shard for mark in marks) != list(range(shards)) or len(store_ids) != 1:
        raise StorageError(f"{work}: the processes have not copied every shard once: try again")
    write_manifest(work, store_id=store_ids.pop(), shards=marks)
