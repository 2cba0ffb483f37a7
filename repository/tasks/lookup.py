"""Read one task or its result.

Everything goes through the overlay and then waits until what it saw is committed: an answer
never rests on somebody else's unfinished commit.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ...engine.records.keyspace import (
    DEAD,
    DELAYED,
    MOVED,
    RESULT,
    TASK,
    decode_index_key,
)
from ...engine.records.lease import LeaseRecord
from ...engine.records.policy import decode_policy
from ...engine.records.result import HAS_VALUE, ResultRecord, Status, decode_result
from ...engine.records.rows import IndexRow
from ...engine.records.task import TaskRecord, created_us
from ...engine.runtime.task_id import TaskId
from ...errors import CorruptionError, TaskNotFoundError
from ..model.codec import PackedBytes, deferred_headers, deferred_value, stored_value
from ..model.encoded_tasks import to_datetime
from ..model.values import Result, Task
from ..state.engine_state import EngineState
from ..state.lease_state import LeaseState
from ..state.queue_state import Shard
from ..state.task_location import STATES, is_alive, read_task, task_location
from .follower import foreign_lease
from .task_end import DAMAGED, sound_task

__all__ = [
    "Payloads",
    "finished_task",
    "foreign_or_damaged",
    "foreign_task",
    "get",
    "indexed_task",
    "leased_or_damaged",
    "leased_task",
    "result",
    "task_of",
]

# What is shown of payloads and headers: the user's values; their bytes, for whoever passes them on;
# or nothing, and then no body is read either.
Payloads = Literal["decoded", "stored", "none"]


def _ms(ms: int) -> datetime | None:
    return to_datetime(ms * 1000) if ms else None


def task_of(
    core: EngineState,
    task_id: bytes,
    task: TaskRecord,
    state: str,
    *,
    attempts: int,
    due_ms: int = 0,
    expires_ms: int = 0,
    worker: bytes = b"",
    reason: bytes = b"",
    finished_us: int = 0,
    position: bytes = b"",
    payloads: Payloads = "decoded",
) -> Task:
    """A task that still has its record, as users see it. RecordCorruptError: it is damaged.

    Args:
        task: the record, its payload wherever it lies.
        state: as users see it.
        attempts: runs so far.
        due_ms: wall milliseconds, 0 for none.
        expires_ms: wall milliseconds, 0 for none.
        finished_us: wall microseconds, 0 for none.
        position: where a listing goes on after it.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    payload: Any = None
    headers: Any = {}
    if payloads != "none":
        task = core.shard_of(task_id).whole_task(task_id, task)
        value = task.flags & 3, task.flags >> 2 & 3, task.payload, task.raw_bytes
        if payloads == "decoded":
            payload = deferred_value(*value, core.codecs.get(task.queue))
            headers = deferred_headers(task.headers)
        else:
            payload = stored_value(*value)
            headers = PackedBytes(task.headers)  # as ``client.records.task_doc`` takes them
    return Task(
        id=TaskId(task_id),
        state=state,
        queue=task.queue.decode(),
        tenant=task.tenant.decode(),
        priority=task.priority,
        attempts=attempts,
        enqueued_at=to_datetime(task.created_us),
        payload=payload,
        headers=headers,
        due_at=_ms(due_ms),
        expires_at=_ms(expires_ms),
        finished_at=to_datetime(finished_us) if finished_us else None,
        max_attempts=decode_policy(task.policy).max_attempts,
        worker=worker.decode(),
        reason=reason.decode("utf-8", "replace"),
        position=position,
    )


def finished_task(task_id: bytes, r: ResultRecord, position: bytes = b"") -> Task:
    """A task that has ended, as its result shows it."""
    return Task(
        id=TaskId(task_id),
        state=Status(r.status).name.lower(),
        queue=r.queue.decode(),
        tenant=r.tenant.decode(),
        priority=r.priority,
        attempts=r.attempts,
        enqueued_at=to_datetime(r.created_us),
        finished_at=to_datetime(r.finished_us),
        worker=r.worker.decode(),
        reason=r.error.decode("utf-8", "replace"),
        position=position,
    )


def leased_task(
    core: EngineState, lease: LeaseState, task: TaskRecord, payloads: Payloads = "decoded"
) -> Task:
    """A task somebody works on.

    Args:
        lease: a live one, in the engine's lease table.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    return task_of(
        core,
        lease.task_id,
        task,
        "leased",
        attempts=lease.attempt,
        expires_ms=lease.expires_ms,
        worker=lease.worker,
        position=lease.leased_us.to_bytes(8, "big") + lease.task_id,
        payloads=payloads,
    )


def foreign_task(
    core: EngineState,
    task_id: bytes,
    task: TaskRecord,
    lease: LeaseRecord,
    payloads: Payloads = "decoded",
) -> Task:
    """A task that somebody works on under a lease of the replica that leads its shard.

    Args:
        lease: the row, as the leader has written it.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    return task_of(
        core,
        task_id,
        task,
        "leased",
        attempts=lease.attempts,
        expires_ms=lease.expires_ms,
        worker=lease.worker,
        position=lease.leased_us.to_bytes(8, "big") + task_id,
        payloads=payloads,
    )


def foreign_or_damaged(
    core: EngineState,
    shard: Shard,
    task_id: bytes,
    lease: LeaseRecord,
    payloads: Payloads = "decoded",
) -> Task:
    """``foreign_task``; where the record is damaged, what the lease's row knows of it.

    Args:
        lease: the row, as the leader has written it.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    task = sound_task(shard, task_id)
    if task is not None:
        try:
            return foreign_task(core, task_id, task, lease, payloads)
        except CorruptionError:
            pass
    return Task(
        id=TaskId(task_id),
        state="leased",
        queue=lease.queue.decode(),
        tenant=lease.tenant.decode(),
        priority=lease.priority,
        attempts=lease.attempts,
        enqueued_at=to_datetime(lease.created_us),
        expires_at=_ms(lease.expires_ms),
        worker=lease.worker.decode(),
        reason=DAMAGED.decode(),
        position=lease.leased_us.to_bytes(8, "big") + task_id,
    )


def leased_or_damaged(
    core: EngineState, shard: Shard, lease: LeaseState, payloads: Payloads = "decoded"
) -> Task:
    """``leased_task``; where the record is damaged, what the lease knows of it.

    Args:
        lease: a live one, in the engine's lease table.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    task = sound_task(shard, lease.task_id)
    if task is not None:
        try:
            return leased_task(core, lease, task, payloads)
        except CorruptionError:
            pass
    lane = lease.bucket.lane
    return Task(
        id=TaskId(lease.task_id),
        state="leased",
        queue=lane.queue.decode(),
        tenant=lane.tenant.decode(),
        priority=lease.priority,
        attempts=lease.attempt,
        enqueued_at=to_datetime(created_us(lease.times)),
        expires_at=_ms(lease.expires_ms),
        worker=lease.worker.decode(),
        reason=DAMAGED.decode(),
        position=lease.leased_us.to_bytes(8, "big") + lease.task_id,
    )


def indexed_task(
    core: EngineState, shard: Shard, key: bytes, row: IndexRow, payloads: Payloads = "decoded"
) -> Task:
    """A task by its index row. One whose record cannot be read must not hide the others.

    Args:
        shard: of the row.
        key: a ready, delayed or dead key.
        row: its value.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    at = decode_index_key(key)
    due_ms = at.at if at.kind == DELAYED else 0
    finished_us = at.at * 1000 if at.kind == DEAD else 0
    task = sound_task(shard, at.task_id)
    if task is not None:
        try:
            return task_of(
                core,
                at.task_id,
                task,
                STATES[at.kind],
                attempts=row.attempts,
                due_ms=due_ms,
                expires_ms=row.expires_ms,
                reason=row.reason,
                finished_us=finished_us,
                position=key,
                payloads=payloads,
            )
        except CorruptionError:
            pass
    return Task(
        id=TaskId(at.task_id),
        state=STATES[at.kind],
        queue=at.queue.decode(),
        tenant=at.tenant.decode(),
        priority=row.priority,
        attempts=row.attempts,
        enqueued_at=to_datetime(TaskId(at.task_id).created_ms * 1000),
        due_at=_ms(due_ms),
        expires_at=_ms(row.expires_ms),
        finished_at=to_datetime(finished_us) if finished_us else None,
        reason=(row.reason or DAMAGED).decode("utf-8", "replace"),
        position=key,
    )


# -- one task --------------------------------------------------------------------------


async def get(core: EngineState, task_id: TaskId, payloads: Payloads = "decoded") -> Task | None:
    """See ``Engine.get``."""
    shard = core.shard_of(task_id)
    found = _find(core, shard, task_id, payloads)
    await core.commit_barrier(shard)
    return found


def _find(core: EngineState, shard: Shard, task_id: bytes, payloads: Payloads) -> Task | None:
    lease = core.leases.get(task_id)
    if lease is not None:
        return leased_or_damaged(core, shard, lease, payloads)
    # A task that has no record any more is over, unless a row still says where it is.
    overlay = shard.overlay
    if overlay.has(TASK + task_id) or overlay.has(MOVED + task_id):
        location = task_location(core, shard, task_id)
        if location is not None:
            return indexed_task(core, shard, location.key, location.row, payloads)
        task = read_task(shard, task_id)
        foreign = foreign_lease(shard, task_id)
        if foreign is not None and task is not None:
            return foreign_task(core, task_id, task, foreign, payloads)
    raw = shard.overlay.get(RESULT + task_id)
    return finished_task(task_id, decode_result(raw)) if raw is not None else None


async def result(
    core: EngineState, task_id: TaskId, wait_s: float, payloads: Payloads = "decoded"
) -> Result | None:
    """See ``Engine.result``.

    Args:
        wait_s: seconds to wait for the task's end.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    shard = core.shard_of(task_id)
    raw = shard.overlay.get(RESULT + task_id)
    if raw is None:
        exists = _has_not_ended(core, shard, task_id)
        if exists and wait_s > 0:
            if shard.co.failure is not None:
                raise shard.co.refusal()  # it cannot end here any more
            await _wait_result(core, task_id, wait_s)
            core.check()
            raw = shard.overlay.get(RESULT + task_id)
            exists = _has_not_ended(core, shard, task_id)
        await core.commit_barrier(shard)
        if raw is None:
            if exists:
                return None
            raise TaskNotFoundError(
                f"no task and no result {task_id}: it never existed, or was forgotten after "
                "its retention",
                task_id=task_id,
            )
    else:
        await core.commit_barrier(shard)
    record = decode_result(raw)
    value = None
    if record.flags & HAS_VALUE and payloads != "none":
        stored = record.flags & 3, record.flags >> 2 & 3, record.value, record.raw_bytes
        if payloads == "decoded":
            value = deferred_value(*stored, core.codecs.get(record.queue))
        else:
            value = stored_value(*stored)
    return Result(
        task_id=task_id,
        status=Status(record.status).name.lower(),
        value=value,
        error=record.error.decode("utf-8", "replace"),
        attempts=record.attempts,
        queue=record.queue.decode(),
        tenant=record.tenant.decode(),
        worker=record.worker.decode(),
        priority=record.priority,
        enqueued_at=to_datetime(record.created_us),
        ready_at=to_datetime(record.ready_us) if record.ready_us else None,
        leased_at=to_datetime(record.leased_us) if record.leased_us else None,
        finished_at=to_datetime(record.finished_us),
    )


def _has_not_ended(core: EngineState, shard: Shard, task_id: bytes) -> bool:
    try:
        return is_alive(core, shard, task_id)
    except CorruptionError:  # still in line: the claim that meets it will bury it
        return True


async def _wait_result(core: EngineState, task_id: bytes, wait_s: float) -> None:
    future = core.spawner.future()
    waiting = core.result_waiters.setdefault(task_id, [])
    waiting.append(future)

    def time_out() -> None:
        if not future.done():
            future.set_result(False)

    timer = core.clock.call_at(core.spawner, core.clock.mono() + wait_s, time_out)
    try:
        await future
    finally:
        timer.cancel()
        if future in waiting:
            waiting.remove(future)
        if not waiting and core.result_waiters.get(task_id) is waiting:
            del core.result_waiters[task_id]
