"""Go through the leased tasks of a queue in the order of their claims, off the loop if possible.

Which leases there are, only memory knows: the loop takes note of a few hundred at a time. Their
records are read, decoded and tested in a thread; of those that pass, the loop leaves out what has
ended meanwhile. On a shard that is led elsewhere a lease is a row, which the thread reads as well.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Final, NamedTuple

from ....engine.records.frame import attempt
from ....engine.records.keyspace import LEASE, PROGRESS, TASK
from ....engine.records.lease import decode_lease
from ....engine.records.task import decode_task
from ....errors import CorruptionError
from ...model.values import Task
from ...state.engine_state import EngineState
from ...state.lease_state import LeaseState
from ...state.queue_state import Shard
from ...state.turns import in_slices
from ..lookup import foreign_lease_task, lease_task, leased_or_damaged
from ..task_list import keep_run, leased_run
from .row_search import STEP, STEP_BYTES, is_beside

__all__ = ["LeasedPage", "leased_pages"]

_PAGE: Final = 256
# The parts of a position.
_TIME: Final = slice(8)
_TASK_ID: Final = slice(8, None)


class LeasedPage(NamedTuple):
    """Tasks of some leases that pass, the position of the last one, and how many were looked at."""

    found: list[Task]
    position: bytes
    looks: int


class _Granted(NamedTuple):
    """A lease as the loop has noted it. ``lease`` None: its shard is led elsewhere."""

    position: bytes
    shard: Shard
    lease: LeaseState | None


def _time_of(position: bytes) -> int:
    """Wall microseconds of the claim."""
    return int.from_bytes(position[_TIME], "big")


async def leased_pages(
    state: EngineState,
    queue: bytes,
    tenant: bytes | None,
    position: bytes,
    test: Callable[[Task], bool],
) -> AsyncGenerator[LeasedPage, None]:
    """Pages of the leased tasks behind ``position`` that pass, without payloads.

    Args:
        state: of the engine.
        queue: its name.
        tenant: None for all.
        position: of the last lease that was looked at; empty for none.
        test: of each task; called in the thread that reads.
    """
    while True:
        run, is_new = await leased_run(state, queue, tenant, position)
        start = bisect_right(run.keys, position)
        for at in range(start, len(run.keys), _PAGE):
            keys = run.keys[at : at + _PAGE]
            position = keys[-1]
            found = await _found(state, queue, _granted(state, keys), test)
            keep_run(state, queue, tenant, position, run)
            yield LeasedPage(found, position, len(keys))
        if is_new and run.is_last:
            state.leased_runs.pop((queue, tenant), None)
            return


def _granted(state: EngineState, keys: Sequence[bytes]) -> list[_Granted]:
    """Those of the leases that there are still."""
    out = []
    for key in keys:
        lease = state.leases.get(key[_TASK_ID])
        if lease is not None:
            if lease.is_live and lease.leased_us == _time_of(key):
                out.append(_Granted(key, lease.shard_queue.shard, lease))
            continue
        shard = state.shard_of(key[_TASK_ID])
        if shard.coalescer.is_following and not shard.is_stub:  # gone since the run was made
            out.append(_Granted(key, shard, None))
    return out


def _is_leased(state: EngineState, task: Task) -> bool:
    """Whether the task is still leased as it was when its lease was noted."""
    lease = state.leases.get(task.id)
    if lease is None:
        return state.shard_of(task.id).coalescer.is_following
    return lease.is_live and lease.leased_us == _time_of(task.position)


async def _found(
    state: EngineState, queue: bytes, granted: Sequence[_Granted], test: Callable[[Task], bool]
) -> list[Task]:
    """The tasks that pass, and are leased as they were."""
    read, without = await _read(state, queue, granted, test)
    found = [task for task in read if _is_leased(state, task)]
    for shard, lease in without:
        # It has ended; or was claimed so recently that no store has it; or its record is damaged.
        if lease.is_live:
            task = leased_or_damaged(state, shard, lease, "none")
            if test(task):
                found.append(task)
    return sorted(found, key=lambda task: task.position) if without else found


async def _read(
    state: EngineState, queue: bytes, granted: Sequence[_Granted], test: Callable[[Task], bool]
) -> tuple[list[Task], list[tuple[Shard, LeaseState]]]:
    if not granted:
        return [], []
    if all(is_beside(one.shard) for one in granted):
        try:
            work = _tested(state, queue, granted, test, beside=True)
            return await state.thread_reads.run(work, state.check)
        except CorruptionError:  # a record lies in a damaged block: the others count all the same
            pass
    return await in_slices(state, _tested(state, queue, granted, test, beside=False))


def _tested(
    state: EngineState,
    queue: bytes,
    granted: Sequence[_Granted],
    test: Callable[[Task], bool],
    *,
    beside: bool,
) -> Generator[None, None, tuple[list[Task], list[tuple[Shard, LeaseState]]]]:
    """The tasks that pass, and the leases without a record.

    Args:
        state: of the engine.
        queue: its name.
        granted: leases, as the loop has noted them.
        test: of each task.
        beside: it runs in a thread, and reads what was applied.
    """
    found, without = [], []
    size = 0
    for n, (position, shard, lease) in enumerate(granted, 1):
        get = shard.store.get if beside else shard.overlay.get_sound
        task_id = position[8:]
        raw = get(TASK + task_id)
        record = attempt(decode_task, raw)
        size += 0 if raw is None else len(raw)
        task: Task | None = None
        if lease is None:
            row = attempt(decode_lease, get(LEASE + task_id))
            if row is not None and row.queue == queue and row.leased_us == _time_of(position):
                progress = get(PROGRESS + task_id)
                task = foreign_lease_task(state, task_id, row, record, progress, "none")
        elif record is None:
            without.append((shard, lease))
        else:
            task = lease_task(state, lease, record, "none")
        if task is not None and test(task):
            found.append(task)
        if n % STEP == 0 or size >= STEP_BYTES:
            size = 0
            yield
    return found, without
