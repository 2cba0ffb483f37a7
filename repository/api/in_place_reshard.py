"""Reshard a closed store in place: the new store takes the path of the old one in one step.

What does not depend on shards is copied along: lifecycle journals with the positions of their
tailers, progress notes of imports, outcomes of loads. Snapshots stay with the old store, which is
kept beside the new one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from anyio import to_thread

from ...engine.bulk.reader import open_shard
from ...engine.files.atomic_swap import (
    UnconfirmedError,
    begin_move,
    drop_note,
    end_move,
    exchange,
    finish_move,
    move_twice,
)
from ...engine.files.ballast import give_up
from ...engine.files.disk_errors import disk_error
from ...engine.files.paths import (
    JOURNALS,
    check_root,
    fsync_dir,
    fsync_file,
    inbox_path,
    list_layout,
    normal_path,
    only_journal,
)
from ...engine.files.store_lock import StoreLock
from ...engine.offline.reroute import Tally, tally
from ...engine.recovery.incarnation import refuse_replica
from ...errors import StorageError, StorePathError, UsageError
from ..maintenance.reshard import Plan, Reshard, Staged, build, plan_reshard, stage
from .open import open_engine

__all__ = ["Worker", "recover_and_close", "reshard", "reshard_with"]

Worker = Callable[[Plan], tuple[list[Staged], list[dict[str, Tally]]]]


async def recover_and_close(path: str | os.PathLike[str]) -> None:
    """Open a store and close it, so that it is recovered and all its events are published.

    Raises as ``lodeq.open``.

    Durability: what was there survives a power cut. Cancellation: the store is closed.
    """
    root = normal_path(path)
    await to_thread.run_sync(finish_move, root)
    if not check_root(root):
        raise StorePathError(f"{root} does not exist")
    journal = await to_thread.run_sync(only_journal, root)
    async with open_engine(root, reaper=False, inbox=False, journal=journal):
        pass


def reshard(path: str | os.PathLike[str], shards: int) -> tuple[Reshard, str]:
    """Reshard a closed store in place. Blocks. See ``reshard_with`` for several workers.

    Args:
        path: the store's folder.
        shards: its new number of shards, 1 to 4,096.

    Returns: a report, and the path of the old store: remove that once you trust the new one.

    Raises:
        LockedError: another process has it open.
        StorePathError, UsageError: an argument is wrong, or it must be opened once more.
        ReplicaStoreError: it is a replica, and the number of shards is its cluster's.
        CorruptionError: it is damaged; nothing has changed.
        StorageFullError, StorageError: the disk failed; nothing has changed, unless the message
            says that the new shards are in place: then the next open makes that durable.

    Durability: the new shards are synced before they replace the old ones, in one step.
    """

    def work(plan: Plan) -> tuple[list[Staged], list[dict[str, Tally]]]:
        tallies = []
        for shard in range(plan.old_shards):
            with open_shard(plan.source, shard) as reader:
                tallies.append(tally(reader))
        return [stage(plan, unit) for unit in plan.units], tallies

    return reshard_with(path, shards, work)


def reshard_with(path: str | os.PathLike[str], shards: int, work: Worker) -> tuple[Reshard, str]:
    """Do ``reshard``; ``work`` stages all units and tallies all shards of the source."""
    root = normal_path(path)
    finish_move(root)
    if not check_root(root):
        raise StorePathError(f"{root} does not exist")
    list_layout(root)
    lock = StoreLock.of_store(root)
    fresh: StoreLock | None = None
    try:
        if lock.was_left:
            raise UsageError(f"{root} was not closed properly: open it once, and close it")
        aside = _free_name(root)
        with open_shard(root, 0) as first:
            count = first.shards
        for shard in range(count):
            with open_shard(root, shard) as reader:
                refuse_replica(root, reader)
        plan = plan_reshard(root, aside, shards)
        old = os.stat(root)
        try:
            report = build(plan, *work(plan))
            _copy_side_files(root, plan.work)
            fresh = StoreLock.of_store(plan.work)
            kept = _swap(plan.work, root, aside)
            with suppress(OSError):  # the new store makes its own; this one only takes space
                give_up(kept)
        except BaseException:
            if _is_still(root, old):  # else the old store has the new one's path
                shutil.rmtree(plan.work, ignore_errors=True)
            raise
    except UnconfirmedError as exc:
        kept = aside if os.path.lexists(aside) else plan.work
        raise StorageError(
            f"{root} has {shards} shards now, and the old store is {kept}; a power cut may undo "
            f"that, because the sync of {exc.filename} failed: {exc.strerror}. Look at the disk; "
            "the next open makes it durable first; keep both until then"
        ) from exc
    except OSError as exc:
        raise disk_error(exc, root) from exc
    finally:
        for held in (fresh, lock):
            if held is not None:
                held.release(is_sound=not lock.was_left)
    return replace(report, path=root), kept


def _free_name(root: str) -> str:
    with open_shard(root, 0) as reader:
        first = f"{root}.{reader.shards}-shards"
    name, again = first, 0
    while os.path.lexists(name):
        again += 1
        name = f"{first}.{again}"
    return name


def _copy_side_files(root: str, work: str) -> None:
    """Copy what does not depend on shards: journals, notes of imports, outcomes of loads."""
    for name in sorted(os.listdir(root)):
        path, twin = os.path.join(root, name), os.path.join(work, name)
        if name == JOURNALS:
            shutil.copytree(path, twin)
        elif name.startswith("import-") and name.endswith(".json"):
            shutil.copyfile(path, twin)
    done = os.path.join(inbox_path(root), "done")
    if os.path.isdir(done):
        os.mkdir(inbox_path(work), 0o700)
        shutil.copytree(done, os.path.join(inbox_path(work), "done"))
    for folder, _, names in os.walk(work):
        if os.path.basename(os.path.dirname(folder)) == JOURNALS or folder == work:
            for name in names:
                fsync_file(os.path.join(folder, name))
        fsync_dir(folder)


def _is_still(root: str, old: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(root), old)
    except OSError:
        return False


def _swap(work: str, root: str, aside: str) -> str:
    """Put the new store at ``root``; returns the path of the old one.

    If the system can exchange two folders, ``root`` is one of the stores at any moment; if not, the
    next open completes what a crash has left half done.

    Raises ``OSError``: nothing has moved. Only after ``UnconfirmedError`` it has, and the next open
    makes it durable.
    """
    begin_move(work, root, aside)
    try:
        is_done = exchange(work, root)
    except OSError:
        drop_note(root)
        raise
    if not is_done:
        move_twice(work, root, aside)
        return aside
    kept = aside
    try:
        os.rename(work, aside)
    except OSError:
        kept = work  # all done but the rename
    end_move(root)
    return kept
