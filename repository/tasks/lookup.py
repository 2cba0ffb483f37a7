"""Read one task or its result.

Everything goes through the overlay and then waits until what it saw is committed: an answer
never rests on somebody else's unfinished commit.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from ...engine.records.compression import inflate
from ...engine.records.frame import attempt
from ...engine.records.keyspace import (
    DEAD,
    DELAYED,
    ID_AT,
    MOVED,
    PROGRESS,
    RESULT,
    TASK,
    decode_index_key,
)
from ...engine.records.lease import LeaseRecord
from ...engine.records.policy import decode_policy
from ...engine.records.progress import ProgressRecord, decode_progress
from ...engine.records.result import HAS_VALUE, ResultRecord, Status, decode_result, is_history
from ...engine.records.rows import IndexRow
from ...engine.records.task import TaskRecord, created_us, is_streamed_task
from ...engine.records.workflow import HELD_MS
from ...engine.runtime.task_id import TaskId
from ...errors import (
    CommitUnknownError,
    CorruptionError,
    NotLeaderError,
    TaskNotFoundError,
)
from ..model.codec import (
    PackedBytes,
    deferred_headers,
    deferred_value,
    not_loaded_yet,
    stored_value,
)
from ..model.encoded_tasks import to_datetime
from ..model.faces import face_fields
from ..model.values import Progress, Result, Task
from ..state.engine_state import EngineState
from ..state.lease_state import LeaseState
from ..state.queue_state import Shard
from ..state.rows.task_location import is_alive, read_task, state_name, task_location
from .follower import foreign_lease
from .streamed_payloads import PayloadReader, open_streamed
from .task_end import DAMAGED, sound_task

__all__ = [
    "Payloads",
    "find_task",
    "finished_task",
    "foreign_lease_task",
    "foreign_or_damaged",
    "foreign_task",
    "get",
    "indexed_task",
    "lease_task",
    "leased_or_damaged",
    "leased_task",
    "open_payload",
    "result",
    "result_of",
    "row_task",
    "task_of",
]

# What is shown of payloads and headers: the user's values; their bytes, for whoever passes them on;
# or nothing, and then no body is read either.
Payloads = Literal["decoded", "stored", "none"]

_REASON_CHARS: Final = 200  # of a reason, in an error's message


def _ms(ms: int) -> datetime | None:
    return to_datetime(ms * 1000) if ms else None


def task_of(
    engine_state: EngineState,
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
    progress: Progress | None = None,
    priority: int | None = None,
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
        progress: of the run that has it leased.
        priority: as it is now; None: that of its enqueue.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    payload: Any = None
    headers: Any = {}
    if payloads != "none":
        is_apart = is_streamed_task(task)
        if not is_apart:
            task = engine_state.shard_of(task_id).whole_task(task_id, task)
        value = task.flags & 3, task.flags >> 2 & 3, task.payload, task.raw_bytes
        if payloads == "decoded":
            if is_apart:
                payload = not_loaded_yet(task_id, task.raw_bytes)
            else:
                payload = deferred_value(*value, engine_state.codecs.get(task.queue))
            headers = deferred_headers(task.headers)
        else:
            payload = not_loaded_yet(task_id, task.raw_bytes) if is_apart else stored_value(*value)
            # As ``client.documents.records.task_doc`` takes them.
            headers = PackedBytes(task.headers)
    return Task(
        id=TaskId(task_id),
        state=state,
        queue=task.queue.decode(),
        tenant=task.tenant.decode(),
        priority=task.priority if priority is None else priority,
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
        **face_fields(task.face),
        progress=progress,
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
        **face_fields(r.face),
    )


def leased_task(
    state: EngineState, lease: LeaseState, task: TaskRecord, payloads: Payloads = "decoded"
) -> Task:
    """A task somebody works on.

    Args:
        lease: a live one, in the engine's lease table.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    return task_of(
        state,
        lease.task_id,
        task,
        "leased",
        attempts=lease.attempt,
        expires_ms=lease.expires_ms,
        worker=lease.worker,
        priority=lease.priority,
        position=lease.leased_us.to_bytes(8, "big") + lease.task_id,
        progress=_progress_of(state, lease.task_id),
        payloads=payloads,
    )


def _progress_of(state: EngineState, task_id: bytes) -> Progress | None:
    return _shown(state.progress.get(task_id))


def _shown(record: ProgressRecord | None) -> Progress | None:
    if record is None:
        return None
    note = record.note.decode("utf-8", "replace")
    return Progress(record.fraction, note, to_datetime(record.at_us))


def foreign_task(
    state: EngineState,
    task_id: bytes,
    task: TaskRecord,
    lease: LeaseRecord,
    progress: bytes | None,
    payloads: Payloads = "decoded",
) -> Task:
    """A task that somebody works on under a lease of the replica that leads its shard.

    Args:
        state: of the engine.
        task_id: its id.
        task: its record.
        lease: the row, as the leader has written it.
        progress: the row of the run's progress, if there is one.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    return task_of(
        state,
        task_id,
        task,
        "leased",
        attempts=lease.attempts,
        expires_ms=lease.expires_ms,
        worker=lease.worker,
        position=lease.leased_us.to_bytes(8, "big") + task_id,
        progress=_shown(attempt(decode_progress, progress)),
        payloads=payloads,
    )


def foreign_or_damaged(
    state: EngineState,
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
    overlay = shard.overlay
    task, progress = sound_task(shard, task_id), overlay.get_sound(PROGRESS + task_id)
    return foreign_lease_task(state, task_id, lease, task, progress, payloads)


def foreign_lease_task(
    state: EngineState,
    task_id: bytes,
    lease: LeaseRecord,
    task: TaskRecord | None,
    progress: bytes | None,
    payloads: Payloads = "decoded",
) -> Task:
    """``foreign_or_damaged`` of rows that were read; without payloads in any thread.

    Args:
        state: of the engine.
        task_id: its id.
        lease: the row, as the leader has written it.
        task: the record; None: it is missing or damaged.
        progress: the row of the run's progress, if there is one.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    if task is not None:
        try:
            return foreign_task(state, task_id, task, lease, progress, payloads)
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
    state: EngineState, shard: Shard, lease: LeaseState, payloads: Payloads = "decoded"
) -> Task:
    """``leased_task``; where the record is damaged, what the lease knows of it.

    Args:
        lease: a live one, in the engine's lease table.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    return lease_task(state, lease, sound_task(shard, lease.task_id), payloads)


def lease_task(
    state: EngineState,
    lease: LeaseState,
    task: TaskRecord | None,
    payloads: Payloads = "decoded",
) -> Task:
    """``leased_or_damaged`` of a record that was read; without payloads in any thread.

    Args:
        state: of the engine.
        lease: of which nothing is read that changes.
        task: the record; None: it is missing or damaged.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    if task is not None:
        try:
            return leased_task(state, lease, task, payloads)
        except CorruptionError:
            pass
    tenant_queue = lease.shard_queue.tenant_queue
    return Task(
        id=TaskId(lease.task_id),
        state="leased",
        queue=tenant_queue.queue.decode(),
        tenant=tenant_queue.tenant.decode(),
        priority=lease.priority,
        attempts=lease.attempt,
        enqueued_at=to_datetime(created_us(lease.times)),
        expires_at=_ms(lease.expires_ms),
        worker=lease.worker.decode(),
        reason=DAMAGED.decode(),
        position=lease.leased_us.to_bytes(8, "big") + lease.task_id,
        **face_fields(lease.face),
    )


def indexed_task(
    state: EngineState, shard: Shard, key: bytes, row: IndexRow, payloads: Payloads = "decoded"
) -> Task:
    """A task by its index row. One whose record cannot be read must not hide the others.

    Args:
        shard: of the row.
        key: a ready, delayed or dead key.
        row: its value.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    return row_task(state, key, row, sound_task(shard, key[ID_AT:]), payloads)


def row_task(
    state: EngineState,
    key: bytes,
    row: IndexRow,
    task: TaskRecord | None,
    payloads: Payloads = "decoded",
) -> Task:
    """``indexed_task`` of a record that was read; without payloads in any thread.

    Args:
        state: of the engine.
        key: a ready, delayed or dead key.
        row: its value.
        task: the record; None: it is missing or damaged.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    at = decode_index_key(key)
    due_ms = at.at if at.kind == DELAYED and at.at < HELD_MS else 0
    finished_us = at.at * 1000 if at.kind == DEAD else 0
    if task is not None:
        try:
            return task_of(
                state,
                at.task_id,
                task,
                state_name(at.kind, at.at),
                attempts=row.attempts,
                priority=row.priority,
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
        state=state_name(at.kind, at.at),
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


async def get(state: EngineState, task_id: TaskId, payloads: Payloads = "decoded") -> Task | None:
    """See ``Engine.get``."""
    shard = state.shard_of(task_id)
    found = find_task(state, shard, task_id, payloads)
    if found is None:
        shard.coalescer.check_absence()
    await state.commit_barrier(shard)
    return found


def find_task(state: EngineState, shard: Shard, task_id: bytes, payloads: Payloads) -> Task | None:
    """A task wherever it is now; None if there is none. Others may still have to commit.

    Args:
        state: of the engine.
        shard: of the task.
        task_id: its id.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    lease = state.leases.get(task_id)
    if lease is not None:
        return leased_or_damaged(state, shard, lease, payloads)
    # A task that has no record any more is over, unless a row still says where it is.
    overlay = shard.overlay
    if overlay.has(TASK + task_id) or overlay.has(MOVED + task_id):
        location = task_location(state, shard, task_id)
        if location is not None:
            return indexed_task(state, shard, location.key, location.row, payloads)
        task = read_task(shard, task_id)
        foreign = foreign_lease(shard, task_id)
        if foreign is not None and task is not None:
            progress = overlay.get_sound(PROGRESS + task_id)
            return foreign_task(state, task_id, task, foreign, progress, payloads)
    raw = shard.overlay.get(RESULT + task_id)
    return finished_task(task_id, decode_result(raw)) if raw is not None else None


async def open_payload(state: EngineState, task_id: TaskId, slice_bytes: int) -> PayloadReader:
    """See ``Engine.open_payload``.

    Args:
        state: of the engine.
        task_id: of a task that has not ended.
        slice_bytes: of each slice.
    """
    shard = state.shard_of(task_id)
    task = read_task(shard, task_id)
    if task is None:
        shard.coalescer.check_absence()
        await state.commit_barrier(shard)
        raise TaskNotFoundError(f"task {task_id} is not there, or has ended: it has no payload")
    if is_streamed_task(task):
        reader = await open_streamed(state, shard, task_id, task.payload, slice_bytes)
    else:
        task = shard.whole_task(task_id, task)
        data = inflate(task.flags >> 2 & 3, task.payload, task.raw_bytes)
        reader = PayloadReader(state, data, slice_bytes)
    try:
        await state.commit_barrier(shard)
    except BaseException:
        await reader.aclose()
        raise
    return reader


async def result(
    state: EngineState, task_id: TaskId, wait_s: float, payloads: Payloads = "decoded"
) -> Result | None:
    """See ``Engine.result``.

    Args:
        wait_s: seconds to wait for the task's end.
        payloads: ``none`` reads no body; see ``Payloads``.
    """
    shard = state.shard_of(task_id)
    raw = _result_row(state, shard, task_id)
    if raw is None:
        exists = was_there = _has_not_ended(state, shard, task_id)
        if exists and wait_s > 0:
            if shard.coalescer.failure is not None:
                raise shard.coalescer.refusal()  # it cannot end here any more
            until = state.clock.mono() + wait_s
            is_woken_in_vain = True
            while is_woken_in_vain:
                is_woken_in_vain = await _is_lost_end(state, task_id, until)
                state.check()
                shard = state.shard_of(task_id)
                raw = _result_row(state, shard, task_id)
                exists = _has_not_ended(state, shard, task_id)
                is_woken_in_vain &= raw is None and exists
        if raw is None and not was_there:
            shard.coalescer.check_absence()
        await state.commit_barrier(shard)
        if raw is None:
            if exists:
                return None
            raise _no_result(state, shard, task_id, was_there=was_there)
    else:
        await state.commit_barrier(shard)
    return result_of(state, task_id, decode_result(raw), payloads)


def _no_result(
    state: EngineState, shard: Shard, task_id: TaskId, *, was_there: bool
) -> TaskNotFoundError:
    """The error for an id without a result; it says how the task ended, where that is known.

    ``was_there``: the task had not ended when the caller began to wait.
    """
    task = find_task(state, shard, task_id, "none")
    if was_there and (task is None or task.finished_at is None):
        return TaskNotFoundError(
            f"task {task_id} ended while this call waited, and its result is not kept (retention=)",
            task_id=task_id,
        )
    if task is None or task.finished_at is None:
        return TaskNotFoundError(
            f"no task and no result {task_id}: it never existed, or was forgotten after its "
            "retention",
            task_id=task_id,
        )
    why = f" ({task.reason[:_REASON_CHARS]})" if task.reason else ""
    return TaskNotFoundError(
        f"the result of {task_id} is no longer kept, or never was (retention=): the task ended as "
        f"{task.state} at {task.finished_at:%Y-%m-%dT%H:%M:%SZ}{why}",
        task_id=task_id,
        state=task.state,
        finished_at=task.finished_at,
        reason=task.reason,
    )


def result_of(
    state: EngineState, task_id: TaskId, record: ResultRecord, payloads: Payloads
) -> Result:
    """A result as users see it.

    Args:
        state: of the engine.
        task_id: whose result it is.
        record: the decoded row.
        payloads: what is shown of its value.
    """
    value = None
    if record.flags & HAS_VALUE and payloads != "none":
        stored = record.flags & 3, record.flags >> 2 & 3, record.value, record.raw_bytes
        if payloads == "decoded":
            value = deferred_value(*stored, state.codecs.get(record.queue))
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
        **face_fields(record.face),
    )


def _result_row(state: EngineState, shard: Shard, task_id: bytes) -> bytes | None:
    """The row of a result within its retention. What is kept of it afterwards is no result."""
    raw = shard.overlay.get(RESULT + task_id)
    if raw is not None and is_history(decode_result(raw), state.clock.wall_us() // 1000):
        return None
    return raw


def _has_not_ended(state: EngineState, shard: Shard, task_id: bytes) -> bool:
    try:
        return is_alive(state, shard, task_id)
    except CorruptionError:  # still in line: the claim that meets it will bury it
        return True


async def _is_lost_end(state: EngineState, task_id: bytes, until: float) -> bool:
    """Wait for the end of a task; True: for one that went with the leadership of its shard.

    This replica follows then, and hears of the end that counts, be it that one or another.
    """
    try:
        await _wait_result(state, task_id, until - state.clock.mono())
    except (CommitUnknownError, NotLeaderError):
        if not state.shard_of(task_id).coalescer.is_following:
            raise
        return True
    return False


async def _wait_result(state: EngineState, task_id: bytes, wait_s: float) -> None:
    future = state.spawner.future()
    waiting = state.result_waiters.setdefault(task_id, [])
    waiting.append(future)

    def time_out() -> None:
        if not future.done():
            future.set_result(False)

    timer = state.clock.call_at(state.spawner, state.clock.mono() + wait_s, time_out)
    try:
        await future
    finally:
        timer.cancel()
        if future in waiting:
            waiting.remove(future)
        if not waiting and state.result_waiters.get(task_id) is waiting:
            del state.result_waiters[task_id]
