"""Make one plain store of the replicas that are left of a cluster, or of checkpoints of them.

For a cluster whose log is gone for good. Of each shard the copy is taken that is most advanced: the
log gave every copy the same entries in the same order, so it has all that any other has. What only
a lost copy had is lost. The new store belongs to no cluster; ``begin_cluster`` begins one with it.

The replicas stay as they are. They have to be closed.

::

    <path>.assembling/    the new store, until all of it is there
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from ..engine.bulk.reader import open_shard
from ..engine.files.disk_errors import disk_error
from ..engine.files.paths import (
    NOT_COPIED,
    bodies_path,
    check_root,
    clone_folder,
    fsync_dir,
    is_rocksdb,
    list_layout,
    make_root,
    normal_path,
    shard_path,
    watermark_path,
)
from ..engine.files.store_lock import StoreLock
from ..engine.records.keyspace import APPLIED
from ..engine.records.rows import decode_applied
from ..engine.recovery.checkpoint import MANIFEST, check_target, read_manifest
from ..engine.recovery.open_shard import open_store
from ..engine.recovery.restore_shard import copy_shard, restore_shard
from ..errors import (
    CorruptionError,
    OpenError,
    RecoveryRefusedError,
    StorageError,
    StorePathError,
    UsageError,
)
from ..repository.maintenance.detach import detach
from .backup import parts_of
from .replica_note import NOTE, ReplicaNote, read_note

__all__ = ["ShardSource", "assemble"]


class ShardSource(NamedTuple):
    """Where a shard of the new store is from.

    Attributes:
        shard: its index.
        folder: the replica, or the checkpoint.
        entry: index of the last one that it has.
        behind: the others, and how far they are.
        damaged: copies that cannot be read, and why.
    """

    shard: int
    folder: str
    entry: int
    behind: tuple[tuple[str, int], ...]
    damaged: tuple[tuple[str, str], ...] = ()


def assemble(
    path: str | os.PathLike[str], folders: Sequence[str | os.PathLike[str]]
) -> list[ShardSource]:
    """Make a store at ``path`` of the most advanced copy of every shard. Blocks.

    Args:
        path: of the new store; there is nothing, or an empty folder.
        folders: stores of nodes of one cluster, all closed, checkpoints of them, or backups of the
            cluster; the more there are, the less is lost.

    Returns: where each shard is from, by index.

    Raises:
        UsageError: the folders are of different clusters, or may be, or none has a copy of some
            shard.
        OpenError: one of them is no replica, is open, or cannot be read.
        CorruptionError: a checkpoint is damaged.
        StorageError: the disk failed or is full. Call it again.

    Durability: on return the store survives a power cut. Until then there is nothing at ``path``.
    """
    root = normal_path(path)
    given = [normal_path(one) for one in folders]
    roots = dict.fromkeys(part for one in given for part in parts_of(one) or [one])
    check_target(root)
    work = f"{root}.assembling"
    shutil.rmtree(work, ignore_errors=True)  # of a run that was stopped
    if os.path.lexists(work):
        raise StorePathError(f"{work} is no folder of an earlier run: remove it first")
    with ExitStack() as locks:
        copies = [_copies_in(one, locks) for one in roots]
        found = [_best(copies, shard) for shard in range(_shards_of(copies))]
        try:
            make_root(work)
            for source in found:
                _copy(source.folder, work, source.shard)
            _settle(work, found)
            os.rename(work, root)  # over an empty folder too
            fsync_dir(os.path.dirname(root))
        except OSError as error:
            raise disk_error(error, root) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
            shutil.rmtree(f"{work}.shard", ignore_errors=True)
    return found


class _Copies(NamedTuple):
    """The copies in one folder: by shard the index of the last entry, or why it is unreadable."""

    root: str
    note: ReplicaNote | None
    shards: int
    entries: dict[int, int]
    damaged: dict[int, str]


def _copies_in(root: str, locks: ExitStack) -> _Copies:
    """Look at a folder, which stays locked if it is a store."""
    if not check_root(root):
        raise StorePathError(f"{root} does not exist")
    note, is_checkpoint = read_note(root), _is_checkpoint(root)
    if not is_checkpoint:
        locks.callback(StoreLock.of_store(root).abandon)
    if is_checkpoint:  # in a backup a part of one
        named = [mark.shard for mark in read_manifest(root).shards]
    else:
        named = list(list_layout(root).shards)
    there = [shard for shard in named if is_rocksdb(shard_path(root, shard))]
    if note is not None and note.hosted and not is_checkpoint:  # else it may be half a copy
        there = [shard for shard in there if shard in note.hosted]
    found = _Copies(root, note, 0 if note is None else note.shards, {}, {})
    for shard in there:
        try:
            with open_shard(root, shard) as reader:
                shards, raw = reader.shards, reader.get(APPLIED)
                entry = 0 if raw is None else decode_applied(raw).index
        except (CorruptionError, OpenError, StorageError) as error:
            found.damaged[shard] = str(error)
            continue
        if note is None:
            found = found._replace(shards=shards)
        if raw is not None or note is not None:
            found.entries[shard] = entry
    if note is None and not found.entries:
        raise StorePathError(f"{root} has no copies of a cluster's shards: it is no replica")
    return found


def _is_checkpoint(root: str) -> bool:
    return os.path.isfile(os.path.join(root, MANIFEST))


def _shards_of(copies: Sequence[_Copies]) -> int:
    """The number of shards of the cluster whose copies these are.

    Entries of different clusters, or of a cluster and of one that was begun with what was left of
    it, have the same numbers: nothing but the note tells them apart.
    """
    if not copies:
        raise UsageError("name the folders of the nodes' stores, one or more")
    if len(copies) > 1:
        unknown = next((one.root for one in copies if one.note is None), None)
        if unknown is not None:
            raise UsageError(
                f"{unknown} has no {NOTE}, so nothing says of which cluster it is: give it alone, "
                "or folders that have one, as nodes' stores and the checkpoints that they take"
            )
    noted = {(one.note.cluster, one.note.nonce) for one in copies if one.note is not None}
    if len(noted) > 1:
        which = ", ".join(
            f"{one.root} of {one.note.cluster!r}, nonce {one.note.nonce.hex()}"
            for one in copies
            if one.note is not None
        )
        raise UsageError(f"these are replicas of different clusters: {which}")
    return copies[0].shards


def _best(copies: Sequence[_Copies], shard: int) -> ShardSource:
    at = {one.root: one.entries[shard] for one in copies if shard in one.entries}
    damaged = tuple((one.root, one.damaged[shard]) for one in copies if shard in one.damaged)
    if not at:
        why = "".join(f"; {root}: {text}" for root, text in damaged)
        raise UsageError(
            f"none of these folders has a copy of shard {shard} that can be read: name those of "
            f"all nodes{why}"
        )
    best = max(at, key=lambda root: at[root])
    behind = tuple((root, entry) for root, entry in at.items() if root != best)
    return ShardSource(shard, best, at[best], behind, damaged)


def _copy(source: str, target: str, shard: int) -> None:
    """Copy all that is of a shard; of a store, what never changes is linked where it can be."""
    if _is_checkpoint(source):
        work = f"{target}.shard"
        copy_shard(source, work, shard)
        restore_shard(work, target, shard)
        return
    clone_folder(
        shard_path(source, shard), shard_path(target, shard), links=(".sst",), skip=NOT_COPIED
    )
    if shard in list_layout(source).bodies:
        clone_folder(bodies_path(source, shard), bodies_path(target, shard), links=(), skip=())
    shutil.copyfile(watermark_path(source, shard), watermark_path(target, shard))


def _settle(work: str, sources: Sequence[ShardSource]) -> None:
    """Make one store of shards that were of several, and no replica."""
    try:
        open_store(work, is_replica=True, hosts=lambda _: True).close()
        detach(work)
    except RecoveryRefusedError as error:
        if error.shard < 0:
            raise
        source = sources[error.shard]
        raise RecoveryRefusedError(
            f"the copy of shard {error.shard} in {source.folder}, entry {source.entry}, lacks "
            f"commits ({error}): leave that folder out, and the next best copy is taken",
            shard=error.shard,
            missing=error.missing,
        ) from error
