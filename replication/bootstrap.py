"""A replica whose log no longer reaches it starts from another one's checkpoint.

Before a store is opened its positions are compared with the floors of the log. A new store, where
the log does not begin at 1, and one that has fallen behind are *restored*: the newest checkpoint
that reaches the floor of every shard is fetched, its manifest compared with the digest that was
published, every file verified while it is copied, and the store appears in one rename. A
checkpoint that is damaged, or cannot be fetched, gives way to the next one; those of nodes that are
not there come last. What an interrupted run has left beside the store is removed first; the store
itself is only replaced by one that is whole.

::

    <path>.fetched/     a checkpoint on its way here
    <path>.restored/    the new store
    <path>.behind/      the store it replaces; put back if the run was interrupted
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol
from urllib.parse import unquote, urlsplit

import xxhash

from ..engine.bulk.reader import open_shard
from ..engine.files.disk_errors import disk_error
from ..engine.files.lockfile import LockFile
from ..engine.files.paths import JOURNALS, fsync_dir, is_rocksdb, lock_path, shard_path
from ..engine.offline.read_only import look_at
from ..engine.records.keyspace import APPLIED
from ..engine.records.rows import decode_applied
from ..engine.recovery.checkpoint import MANIFEST, restore
from ..engine.runtime.event_loop import Spawner
from ..errors import (
    CorruptionError,
    LockedError,
    LodeqError,
    OpenError,
    RecoveryRefusedError,
    StorePathError,
    UsageError,
)
from .port import Checkpoint, ShardState, SharedLog

__all__ = [
    "CheckpointSource",
    "LocalCheckpoints",
    "bootstrap",
    "checkpoints_of",
    "manifest_digest",
    "position_of",
]

ROUNDS_MAX = 3  # the log may be truncated while a checkpoint is copied


class CheckpointSource(Protocol):
    """Where checkpoints of other nodes are read from."""

    async def fetch(
        self,
        checkpoint: Checkpoint,
        work: str,
        spawner: Spawner,
        *,
        shards: Collection[int] | None = None,
    ) -> str:
        """Bring ``checkpoint`` here; returns its folder: ``work``, which is made, or another.

        Args:
            checkpoint: as it was published.
            work: a folder that may be there, with a part of it.
            spawner: the event loop.
            shards: only these are wanted; None: all of them.

        Raises:
            LodeqError, OSError: it cannot be had; another checkpoint is tried.
        """


class LocalCheckpoints:
    """Checkpoints in folders of this machine: paths, or ``file:`` addresses."""

    async def fetch(
        self,
        checkpoint: Checkpoint,
        work: str,
        spawner: Spawner,
        *,
        shards: Collection[int] | None = None,
    ) -> str:
        """The folder itself: restoring copies it."""
        parts = urlsplit(checkpoint.url)
        if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
            raise UsageError(f"{checkpoint.url!r} is not a folder of this machine")
        return unquote(parts.path)


def manifest_digest(folder: str) -> str:
    """The digest under which the checkpoint in ``folder`` is published. Blocks."""
    try:
        with open(os.path.join(folder, MANIFEST), "rb") as file:
            return xxhash.xxh3_128_hexdigest(file.read())
    except OSError as error:
        raise CorruptionError(
            f"{folder}: {error.strerror}; this is no finished checkpoint"
        ) from error


async def bootstrap(
    log: SharedLog, source: CheckpointSource, root: str, spawner: Spawner, *, is_known: bool
) -> Checkpoint | None:
    """Restore the closed store at ``root`` if the log does not reach it. Returns from what.

    Args:
        log: connected.
        source: where checkpoints are read from.
        root: path of the store, which may not be there yet.
        spawner: the event loop; files are copied in a thread.
        is_known: the store has a note that it is a replica of this cluster.

    Raises:
        StorePathError: there is a store that is no replica.
        LockedError: another process has the store.
        OpenError: a checkpoint is needed, and none can be used.
    """
    used: Checkpoint | None = None
    for _ in range(ROUNDS_MAX):
        await spawner.run_in_thread(partial(_clear, root))
        positions: Sequence[int] | None = await spawner.run_in_thread(
            partial(_positions, root, is_known or used is not None)
        )
        states = await log.states()
        if positions is None or _is_reached(states, positions):
            return used
        used = await _restore_one(log, source, root, spawner, states, positions)
    raise OpenError(
        f"the log is truncated faster than {root} can be restored: truncate less often, or take "
        "checkpoints more often"
    )


def _is_reached(states: Sequence[ShardState], positions: Sequence[int]) -> bool:
    """Whether the log has the next entry of every shard."""
    return all(state.floor <= _at(positions, state.shard) + 1 for state in states)


def _at(positions: Sequence[int], shard: int) -> int:
    return positions[shard] if shard < len(positions) else 0


async def _restore_one(
    log: SharedLog,
    source: CheckpointSource,
    root: str,
    spawner: Spawner,
    states: Sequence[ShardState],
    positions: Sequence[int],
) -> Checkpoint:
    """Replace the store by the newest checkpoint that can be used."""
    failed: list[str] = []
    for checkpoint in await checkpoints_of(log):
        name = f"that of {checkpoint.node} at {checkpoint.url}"
        if not _is_reached(states, checkpoint.applied):
            failed.append(f"{name} does not reach the log")
            continue
        try:
            folder = await source.fetch(checkpoint, f"{root}.fetched", spawner)
            await spawner.run_in_thread(partial(_restore, folder, checkpoint, root))
        except LockedError:  # it is this store that is in use
            raise
        except (LodeqError, OSError) as error:
            failed.append(f"{name}: {error}")
            await spawner.run_in_thread(partial(_clear, root))
        else:
            return checkpoint
    why = "; ".join(failed) if failed else "there are none"
    floors = {state.shard: state.floor for state in states if state.floor > 1}
    raise OpenError(
        f"{root} is behind the log, which begins at {floors} (by shard), and no checkpoint can be "
        f"used: {why}. Let a live node publish one"
    )


async def checkpoints_of(log: SharedLog) -> list[Checkpoint]:
    """Checkpoints in the order in which they are tried: of live nodes first, the newest first.

    To ask the address of a node that is not there takes long.
    """
    live = {member.node for member in await log.members()}
    return sorted(await log.checkpoints(), key=lambda one: one.node not in live)


def position_of(root: str, shard: int) -> int:
    """Index of the last entry in the rows of a shard that nobody has open. Blocks."""
    with open_shard(root, shard) as reader:
        raw = reader.get(APPLIED)
    return 0 if raw is None else decode_applied(raw).index


def _positions(root: str, is_known: bool) -> Sequence[int] | None:
    """Indexes up to which the store's shards go; empty: there is none yet. Blocks.

    None: it cannot be read as it is; the open recovers it, and says what it lacks.
    """
    if not is_rocksdb(shard_path(root, 0)):
        return ()
    try:
        looked = look_at(root)
    except RecoveryRefusedError:
        return None
    try:
        raws = [one.store.get(APPLIED) for one in looked.shards]
        incarnations = [one.incarnation for one in looked.shards]
    finally:
        looked.close()
    if not is_known and any(incarnations) and not any(raws):
        raise StorePathError(
            f"{root} is a store of its own, not a replica of this cluster: choose another path, "
            "and move its tasks with 'lodeq export' and 'lodeq import'"
        )
    return [0 if raw is None else decode_applied(raw).index for raw in raws]


def _restore(folder: str, checkpoint: Checkpoint, root: str) -> None:
    """Make the store at ``root`` out of a checkpoint, in place of what is there."""
    found, digest = manifest_digest(folder), checkpoint.digest
    if found != digest:
        raise CorruptionError(f"its manifest has the digest {found}, and {digest} was published")
    fresh, behind = f"{root}.restored", f"{root}.behind"
    restore(folder, fresh)
    reached = _positions(fresh, is_known=True) or ()
    if any(_at(reached, shard) < index for shard, index in enumerate(checkpoint.applied)):
        raise CorruptionError(f"it goes to {reached}, and {checkpoint.applied} was published")
    try:
        if os.path.isdir(root) and os.listdir(root):
            lock = LockFile.acquire(lock_path(root))
            try:
                os.rename(root, behind)
                with suppress(FileNotFoundError):  # its journals go on
                    os.rename(os.path.join(behind, JOURNALS), os.path.join(fresh, JOURNALS))
                os.rename(fresh, root)
            finally:
                lock.release()
        else:
            os.rename(fresh, root)
        fsync_dir(os.path.dirname(root))
    except OSError as error:
        raise disk_error(error, root) from error
    shutil.rmtree(behind, ignore_errors=True)
    shutil.rmtree(f"{root}.fetched", ignore_errors=True)


def _clear(root: str) -> None:
    """Undo what an interrupted run has left. Blocks."""
    fresh, behind = f"{root}.restored", f"{root}.behind"
    try:
        if os.path.isdir(behind) and not os.path.lexists(root):
            with suppress(FileNotFoundError):
                os.rename(os.path.join(fresh, JOURNALS), os.path.join(behind, JOURNALS))
            os.rename(behind, root)
            fsync_dir(os.path.dirname(root))
    except OSError as error:
        raise disk_error(error, root) from error
    for left in (f"{root}.fetched", fresh, f"{fresh}.restoring", behind):
        shutil.rmtree(left, ignore_errors=True)
