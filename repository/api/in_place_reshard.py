"""Reshard a closed store where it is: the new one takes the place of the old in one step.

What has no shards comes along: lifecycle journals and the places of their tailers, how far imports
have come, what became of loads. Snapshots stay with the old store, which is kept beside.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from anyio import to_thread

from ...engine.bulk.reader import open_shard
from ...engine.offline.reroute import Tally, tally
from ...engine.store.atomic_swap import (
    UnconfirmedError,
    begin_move,
    drop_note,
    end_move,
    exchange,
    finish_move,
    move_twice,
)
from ...engine.store.ballast import give_up
from ...engine.store.disk_errors import disk_error
from ...engine.store.lockfile import LockFile
from ...engine.store.paths import (
    JOURNALS,
    check_root,
    fsync_dir,
    fsync_file,
    inbox_path,
    list_layout,
    lock_path,
    normal_path,
    only_journal,
)
from ...errors import StorageError, StorePathError, UsageError
from ..maintenance.reshard import Plan, Reshard, Staged, build, plan_reshard, stage
from .open import open_engine

__all__ = ["Worker", "reshard", "reshard_with", "settle"]

Worker = Callable[[Plan], tuple[list[Staged], list[dict[str, Tally]]]]


async def settle(path: str | os.PathLike[str]) -> None:
    """Open a store and close it: recovered, and its lifecycle journal told of everything.

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
    """Reshard a closed store where it is. Blocks. See ``reshard_with`` for several workers.

    Args:
        path: of the store.
        shards: how many it is to have, 1 to 4,096.

    Returns: what was done, and where the store as it was lies now: remove it when you trust this.

    Raises:
        LockedError: somebody has it open.
        StorePathError, UsageError: of the arguments, or it has to be opened once more.
        CorruptionError: it is damaged; nothing has changed.
        StorageFullError, StorageError: the disk; nothing has changed, unless it says that the new
            shards are in place: then the next open makes that durable.

    Durability: the new shards are synced before they take the place of the old, in one step.
    """

    def work(plan: Plan) -> tuple[list[Staged], list[dict[str, Tally]]]:
        tallies = []
        for shard in range(plan.old_shards):
            with open_shard(plan.source, shard) as reader:
                tallies.append(tally(reader))
        return [stage(plan, unit) for unit in plan.units], tallies

    return reshard_with(path, shards, work)


def reshard_with(path: str | os.PathLike[str], shards: int, work: Worker) -> tuple[Reshard, str]:
    """``reshard``, with another to stage all units and to tally all shards of the source."""
    root = normal_path(path)
    finish_move(root)
    if not check_root(root):
        raise StorePathError(f"{root} does not exist")
    list_layout(root)
    lock = LockFile.acquire(lock_path(root))
    fresh: LockFile | None = None
    try:
        if lock.was_left:
            raise UsageError(f"{root} was not closed: open it once, and close it")
        aside = _free_name(root)
        plan = plan_reshard(root, aside, shards)
        old = os.stat(root)
        try:
            report = build(plan, *work(plan))
            _bring_along(root, plan.work)
            fresh = LockFile.acquire(lock_path(plan.work))
            kept = _take_place(plan.work, root, aside)
            with suppress(OSError):  # the new store makes its own; this one only holds room
                give_up(kept)
        except BaseException:
            if _is_still(root, old):  # else what has the name of the new one is the old one
                shutil.rmtree(plan.work, ignore_errors=True)
            raise
    except UnconfirmedError as exc:
        kept = aside if os.path.lexists(aside) else plan.work
        raise StorageError(
            f"{root} has {shards} shards now, and the store as it was is {kept}; but a power cut "
            f"may undo that, the sync of {exc.filename} failed: {exc.strerror}. Look at the disk; "
            "the next open makes it durable before it does anything; keep both until then"
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


def _bring_along(root: str, work: str) -> None:
    """Journals, notes of imports, what became of loads: what does not ask for a shard."""
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


def _take_place(work: str, root: str, aside: str) -> str:
    """``root`` is the old store or the new one, at any moment, where the system can do that.

    Where it cannot, an open finishes what a kill has left half done.

    Returns where the old one is now. Raises ``OSError``; then it is where it was, unless it is an
    ``UnconfirmedError``: then it is done, and the next open confirms it.
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
        kept = work  # it is done, but for the name
    end_move(root)
    return kept
