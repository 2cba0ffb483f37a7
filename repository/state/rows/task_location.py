"""Locate a task by its id, and take it out of its index.

Any id finds its row: a live lease, else the ``s/`` row of a task that has moved, else the first
index key, from its record. All reads go through the overlay, so this is the state as of the
last queued operation, and the caller acts on it before its next ``await``.
"""

from __future__ import annotations

from typing import NamedTuple

from ....coalescer.group import Group
from ....engine.records.frame import attempt
from ....engine.records.keyspace import (
    ATTEMPTS,
    DEAD,
    DELAYED,
    DUE_AT,
    GHOST,
    LEASE,
    MOVED,
    READY,
    RESULT,
    SEQ_AT,
    TASK,
    decode_index_key,
    delayed_key,
    ready_key,
    shard_queue_prefix,
)
from ....engine.records.lease import DEAD_LEASE, decode_lease
from ....engine.records.queues.key_waits import KEY_WAIT_MS
from ....engine.records.result import HAS_ATTEMPTS, ResultRecord, Status, encode_result
from ....engine.records.rows import BODY_ROW, IndexRow, decode_ghost, decode_index_row, decode_moved
from ....engine.records.task import NO_GHOST, TaskRecord, decode_task
from ....engine.records.workflow import HELD_MS, MEMBER_ROW
from ....errors import CorruptionError
from ..engine_state import READ, EngineState
from ..events import END_KINDS, emit
from ..queue_state import Shard, ShardQueue
from .dedup_entries import drop_ghost

__all__ = [
    "TaskLocation",
    "drop_result",
    "end_at",
    "first_key",
    "forget_ghost",
    "forget_result",
    "holds_ghost",
    "is_alive",
    "leave",
    "put_result",
    "read_task",
    "state_name",
    "task_location",
]

STATES = {READY: "ready", DELAYED: "delayed", DEAD: "dead"}


def state_name(kind: bytes, at_ms: int) -> str:
    """State of an index row, as users see it.

    Args:
        kind: of the row.
        at_ms: due time of a delayed one.
    """
    return "waiting" if kind == DELAYED and at_ms >= HELD_MS else STATES[kind]


class TaskLocation(NamedTuple):
    """A task that is ready, delayed or dead."""

    task_id: bytes
    shard_queue: ShardQueue
    kind: bytes
    key: bytes
    row: IndexRow
    has_moved: bool

    @property
    def state(self) -> str:
        """ready, delayed, waiting or dead."""
        return state_name(self.kind, int.from_bytes(self.key[DUE_AT:SEQ_AT], "big"))

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for other tasks, and not for a time, nor for room under a limit."""
        due_ms = int.from_bytes(self.key[DUE_AT:SEQ_AT], "big")
        return self.kind == DELAYED and HELD_MS <= due_ms < KEY_WAIT_MS


def first_key(task_id: bytes, task: TaskRecord) -> bytes:
    """The index key a task had when it was enqueued."""
    prefix = shard_queue_prefix(task.queue, task.tenant)
    if task.first_kind == READY[0]:
        return ready_key(prefix, task.priority, task.seq, task_id)
    return delayed_key(prefix, task.due_ms, task.seq, task_id)


def read_task(shard: Shard, task_id: bytes) -> TaskRecord | None:
    """The decoded record, as queued or on disk."""
    raw = shard.overlay.get(TASK + task_id)
    return decode_task(raw) if raw is not None else None


def task_location(state: EngineState, shard: Shard, task_id: bytes) -> TaskLocation | None:
    """The row of a task that is not leased; None for a leased, finished or unknown one."""
    if task_id in state.leases:
        return None
    moved = shard.overlay.get(MOVED + task_id)
    if moved is not None:
        key = decode_moved(moved).key
    else:
        task = read_task(shard, task_id)
        if task is None:
            return None
        key = first_key(task_id, task)
    raw = shard.overlay.get(key)
    if raw is None:
        if _lease_row(shard, task_id) is None:
            state.anomaly(f"shard {shard.index}: task {task_id.hex()} has no index row")
        return None
    parts = decode_index_key(key)
    shard_queue = state.tenant_queue(parts.queue, parts.tenant).shard_queue(shard)
    return TaskLocation(
        task_id, shard_queue, parts.kind, key, decode_index_row(raw), moved is not None
    )


def is_alive(state: EngineState, shard: Shard, task_id: bytes) -> bool:
    """Whether the task is still going to run: leased, ready or delayed. A dead letter is not.

    Nor is a leased one: it may be sent back, and then it holds its key again.
    """
    lease = state.leases.get(task_id)
    if lease is not None:
        return not lease.flags & DEAD_LEASE
    if not shard.overlay.has(TASK + task_id):
        return False
    location = task_location(state, shard, task_id)
    if location is None:
        row = _lease_row(shard, task_id)
        found = attempt(decode_lease, row)
        return row is not None and (found is None or not found.flags & DEAD_LEASE)
    return location.kind != DEAD


def _lease_row(shard: Shard, task_id: bytes) -> bytes | None:
    """The row of its lease, which tells of one whatever the lease table says.

    Where another replica leads the shard the table has none of its leases; where the shard is
    poisoned it has none whose end could not be written.
    """
    return None if shard.coalescer.takes_writes else shard.overlay.get(LEASE + task_id)


def leave(state: EngineState, group: Group, location: TaskLocation) -> None:
    """Take the task out of its index; the caller says where it goes."""
    shard_queue = location.shard_queue
    if location.kind == READY:
        state.drop_ready(group, shard_queue, location.key)
    elif location.kind == DELAYED:
        state.drop_delayed(group, shard_queue, location.key)
    else:
        group.ops.append((location.key, None))
        group.dirty[shard_queue] = None
        shard_queue.dead -= 1


def holds_ghost(state: EngineState, shard: Shard, task_id: bytes, task: TaskRecord) -> bool:
    """Whether the task's ghost is its own. One that cannot be read is left to repair.

    Args:
        shard: of the task.
        task: its record; one without a ghost holds none.
    """
    if task.ghost == NO_GHOST:
        return False
    try:
        raw = shard.overlay.get(GHOST + task.ghost)
        return raw is not None and decode_ghost(raw).task_id == task_id
    except CorruptionError as error:
        state.anomaly(f"shard {shard.index}: ghost of task {task_id.hex()}: {error}")
        return False


def forget_ghost(state: EngineState, shard: Shard, group: Group, task: TaskRecord) -> None:
    """At the end of the task that holds it: its ghost goes too, unless its window outlives it.

    Args:
        shard: of the task.
        group: of the task's shard; gets the rows.
        task: its record, with a ghost of its own.
    """
    if task.ghost_expires_ms > state.clock.wall_us() // 1000:
        state.refile(shard, group, task.ghost_expires_ms, b"g" + task.ghost)
    else:
        drop_ghost(shard, group, task.ghost)


def end_at(
    state: EngineState,
    group: Group,
    location: TaskLocation,
    task: TaskRecord,
    status: Status | None,
    *,
    error: str = "",
    retention_ms: int = 0,
) -> None:
    """Delete a task that is not leased, with row, body and ghost.

    ``status`` None writes no result (it has one: the task was dead). Waiters wake either way.
    Reads come before the first change: whatever they raise, the task is still where it was.

    Args:
        group: of the task's shard; gets the rows.
        location: of the task, as of this atomic section.
        task: its record.
        status: None writes no result (it has one: the task was dead).
        error: kept in the result.
        retention_ms: how long the result is kept; 0: its row is history from the beginning.
    """
    shard = location.shard_queue.shard
    task_id = location.task_id
    is_holder = holds_ghost(state, shard, task_id, task)
    seq = decode_index_key(location.key).seq
    record = b""
    now_us = state.clock.wall_us()
    history = location.shard_queue.tenant_queue.queue_state.history
    kept_ms = max(retention_ms, history.ms)
    if status is not None and kept_ms > 0 and state.limits.results_max:
        record = encode_result(
            ResultRecord(
                (HAS_ATTEMPTS if location.has_moved else 0)
                | (location.row.flags & MEMBER_ROW) << 4,
                status,
                location.row.priority,
                location.row.attempts,
                0,
                0,
                task.created_us,
                seq,
                0,
                now_us,
                retention_ms,
                0,
                task.queue,
                task.tenant,
                b"",
                error.encode(),
                b"",
                task.face,
                history.seconds,
            )
        )
    is_recorded = bool(record) or (status is None and shard.overlay.has(RESULT + task_id))
    emit(
        group,
        END_KINDS[status],
        location.shard_queue,
        task_id,
        location.row.priority,
        location.row.attempts,
        now_us,
        error.encode(),
    )
    if location.row.flags & BODY_ROW:
        shard.drop_body(group, task_id)
    leave(state, group, location)
    group.ops.append((TASK + task_id, None))
    if location.has_moved:
        group.ops.append((MOVED + task_id, None))
        if not is_recorded:
            group.ops.append((ATTEMPTS + task_id, None))
    if is_holder:
        forget_ghost(state, shard, group, task)
    if record:
        until_ms = now_us // 1000 + kept_ms
        put_result(state, shard, group, location.shard_queue, task_id, record, until_ms)
    if location.row.flags & MEMBER_ROW:
        state.flows.ended(group, shard, task_id, status or 0, now_us)
    state.notify_result(group, task_id)


def put_result(
    state: EngineState,
    shard: Shard,
    group: Group,
    shard_queue: ShardQueue,
    task_id: bytes,
    record: bytes,
    expires_ms: int,
) -> None:
    """A result that has no value, or whose value goes with it, is kept until ``expires_ms``.

    Args:
        group: of the task's shard; gets the rows.
        shard_queue: whose counter it goes into.
        record: the encoded result.
        expires_ms: wall milliseconds.
    """
    if shard_queue.tenant_queue.queue_state.history.ms:
        state.final_rows(shard, group, expires_ms, shard_queue, READ).append(task_id)
    else:
        state.file_expiry(shard, group, expires_ms, b"r" + task_id)
    group.ops.append((RESULT + task_id, record))
    group.dirty[shard_queue] = None
    shard_queue.results += 1
    shard.results += 1


def drop_result(
    state: EngineState, shard: Shard, group: Group, task_id: bytes, queue: bytes, tenant: bytes
) -> None:
    """A result goes: ``-r``, and its counter. What is known of its attempts stays.

    Args:
        group: of the task's shard; gets the rows.
        task_id: whose result it is.
        queue: as the result names it: the shard queue whose counter has it.
        tenant: as ``queue``.
    """
    shard_queue = state.tenant_queue(queue, tenant).shard_queue(shard)
    group.ops.append((RESULT + task_id, None))
    group.dirty[shard_queue] = None
    shard_queue.results -= 1
    shard.results -= 1


def forget_result(
    state: EngineState, shard: Shard, group: Group, task_id: bytes, record: ResultRecord
) -> None:
    """A result goes for good, and its attempts with it: ``-r [-a]``.

    A dead letter that is still there keeps its attempts: they go with the task.

    Args:
        group: of the task's shard; gets the rows.
        task_id: whose result it is.
        record: the result.
    """
    has_attempts = bool(record.flags & HAS_ATTEMPTS)
    if has_attempts and record.status == Status.DEAD:
        has_attempts = not shard.overlay.has(TASK + task_id)
    drop_result(state, shard, group, task_id, record.queue, record.tenant)
    if has_attempts:
        group.ops.append((ATTEMPTS + task_id, None))
