"""Ids of a load that the store has already: of tasks in any state, and of results.

Ids are drawn so that two are never the same, but a load may bring ids of its own. One that the
store has would overwrite a task: its payload goes, and two rows of the index lead to one record. So
all are looked up before anything is visible, in slices, in the shard's own thread: a scan where the
store has no row in between, else a read each, which the tables' filters answer. Only a load brings
ids from outside, and loads come in one by one: what is free stays free until this one is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from ...engine.bulk.ids import IdTable, ListedTask, merged_ids
from ...engine.bulk.manifest import FileMark
from ...engine.records.keyspace import RESULT, TASK
from ...engine.store.port import Store
from ...errors import CorruptionError, InvariantError
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from ..state.waits import on_shard_thread

__all__ = ["any_may_be_held", "find_held"]

SLICE: Final = 256  # ids in one read, in which the GIL is held
SLICES: Final = 16  # in a turn of the shard's thread, which fsyncs wait for


async def find_held(
    state: EngineState, shard: Shard, job: str, tables: Sequence[IdTable]
) -> list[ListedTask]:
    """Find the tasks of a load whose id the store has.

    Args:
        state: the engine's state.
        shard: the shard of these tables.
        job: the load's name, for messages.
        tables: the ids of the load on this shard.

    Raises:
        CorruptionError: the store's rows cannot be read: the load waits.
        DuplicateTaskError: the load has an id twice.
    """
    held: list[ListedTask] = []
    ids = merged_ids(tables, SLICE)
    is_over = False

    def turn() -> None:
        nonlocal is_over
        for _ in range(SLICES):
            some = next(ids, None)
            if some is None:
                is_over = True
                return
            for at in range(0, len(some), SLICE):
                found = _held_of(shard, job, some[at : at + SLICE])
                held.extend(_listed(tables, task_id) for task_id in found)

    while not is_over:
        await on_shard_thread(state.spawner, shard, turn)
        state.check()
    return held


def _held_of(shard: Shard, job: str, ids: Sequence[bytes]) -> list[bytes]:
    store = shard.store
    held: set[bytes] = set()
    if _has_any(store, TASK, ids):
        try:
            rows = store.multi_get([TASK + task_id for task_id in ids])
        except CorruptionError as error:
            raise _unreadable(shard, job, error) from error
        held.update(i for i, raw in zip(ids, rows, strict=True) if raw is not None)
    if _has_any(store, RESULT, ids):
        held.update(_with_result(store, ids))
    return sorted(held)


def _with_result(store: Store, ids: Sequence[bytes]) -> list[bytes]:
    """Those that have a result; one that cannot be read is lost already, and holds up no load."""
    try:
        rows = store.multi_get([RESULT + task_id for task_id in ids])
    except CorruptionError:
        return [one for one in ids if _can_read(store, RESULT + one)]
    return [i for i, raw in zip(ids, rows, strict=True) if raw is not None]


def _can_read(store: Store, key: bytes) -> bool:
    try:
        return store.get(key) is not None
    except CorruptionError:
        return False


def _has_any(store: Store, family: bytes, ids: Sequence[bytes]) -> bool:
    """Whether the store may have rows of a family between the first and the last of these."""
    try:
        rows, resume = store.scan_part(family + ids[0], family + ids[-1] + b"\0", 1)
    except CorruptionError:
        return True  # a read of one id need not meet the damage
    return bool(rows) or resume is not None


def _listed(tables: Sequence[IdTable], task_id: bytes) -> ListedTask:
    for table in tables:
        if task := table.find(task_id):
            return task
    raise InvariantError("an id is held that the load does not bring")


async def any_may_be_held(
    state: EngineState, shard: Shard, job: str, files: Sequence[FileMark]
) -> bool:
    """Whether tasks whose ids are not listed may have an id twice, or one that the store has.

    Args:
        state: the engine's state.
        shard: the shard of these files.
        job: the load's name, for messages.
        files: the load's files of task rows on this shard.

    Raises:
        CorruptionError: the store's rows cannot be read: the load waits.
    """
    ranges = sorted((mark.first, mark.last) for mark in files)
    if any(after[0] <= before[1] for before, after in pairwise(ranges)):
        return True
    found: list[bytes] = []

    def look() -> None:
        for first, last in ranges:
            for family in (TASK, RESULT):
                lower: bytes | None = family + first[len(TASK) :]
                upper = family + last[len(TASK) :] + b"\0"
                while lower is not None and not found:
                    try:
                        rows, lower = shard.store.scan_part(lower, upper, 1)
                    except CorruptionError as error:
                        raise _unreadable(shard, job, error) from error
                    found.extend(key for key, _ in rows)

    await on_shard_thread(state.spawner, shard, look)
    state.check()
    return bool(found)


def _unreadable(shard: Shard, job: str, error: CorruptionError) -> CorruptionError:
    return CorruptionError(
        f"whether shard {shard.index} has ids of load {job!r} cannot be read ({error}): close the "
        'store, and open it with recovery="salvage"; the load waits'
    )
