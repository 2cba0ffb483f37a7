"""The batches in which a lease ends: the lease row goes, and the task gets what comes next.

A result (``finish``), a dead letter (``die``), or another position in the queue (``put_back``).
The lease table in memory decides whether a lease is still valid, so none of them reads the disk.
All are atomic sections: they queue operations and change memory, and never wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...coalescer.group import Group
from ...engine.records.attempts import AttemptRecord, add_attempt
from ...engine.records.events import COMPLETED, DIED, NACKED, RELEASED, pack_one
from ...engine.records.frame import attempt, checksum
from ...engine.records.keyspace import (
    ATTEMPTS,
    ID_AT,
    LEASE,
    MOVED,
    ORDER_AT,
    PROGRESS,
    RESULT,
    TASK,
    dead_key,
    delayed_key,
)
from ...engine.records.lease import BODY_LEASE, DEAD_LEASE, MOVED_FLAG
from ...engine.records.policy import Policy, decode_policy
from ...engine.records.result import (
    HAS_ATTEMPTS,
    HAS_FACE,
    HAS_VALUE,
    RESULT_MARK,
    ResultRecord,
    Status,
    decode_result,
    face_length,
    pack_result_head,
    token_hash,
)
from ...engine.records.result import encode_result as encode_result_record
from ...engine.records.rows import (
    BODY_ROW,
    MOVED_ROW,
    IndexRow,
    Moved,
    decode_index_row,
    encode_index_row,
    encode_moved,
)
from ...engine.records.task import NO_GHOST, TIMES, TaskRecord, decode_task, is_streamed
from ...engine.records.workflow import MEMBER_LEASE, MEMBER_ROW
from ...engine.runtime.task_id import TaskId
from ..state.caches.ready_cache import Row
from ..state.engine_state import GOES, LOSES_VALUE, READ, SECOND_MS, EngineState
from ..state.events import END_KINDS, emit, emit_leases
from ..state.function_counts import DEAD as RUN_DEAD
from ..state.function_counts import FAILED as RUN_FAILED
from ..state.function_counts import RELEASED as RUN_RELEASED
from ..state.lease_state import LeaseState
from ..state.queue_state import Shard, ShardQueue
from ..state.rows.dedup_entries import drop_ghost
from ..state.rows.task_location import TaskLocation, drop_result, end_at, leave, put_result

__all__ = [
    "DAMAGED",
    "End",
    "bury_at",
    "bury_row",
    "die",
    "end_if_past_ttl",
    "end_task",
    "finish",
    "finish_all",
    "finish_one",
    "give_back",
    "lay_back",
    "leave_lease",
    "put_back",
    "sound_task",
    "step_behind",
]

DAMAGED: Final = b"record missing or damaged"
STEP_MS: Final = 60_000  # until a task is tried again whose payload's file is not there
# For a record that cannot be read: the defaults of ``Engine.queue``.
RETENTION_MS: Final = 3_600_000
DEAD_RETENTION_MS: Final = 604_800_000

# A lease and its result: record flags, bytes to store, bytes before compression.
End = tuple[LeaseState, int, bytes, int]


def _forget_progress(state: EngineState, group: Group, task_id: bytes) -> None:
    if task_id in state.progress:
        group.ops.append((PROGRESS + task_id, None))


def leave_lease(state: EngineState, group: Group, lease: LeaseState) -> None:
    """The lease row, its counter, its entry in memory; the caller says where the task goes.

    Args:
        state: the engine's state.
        group: of the task's shard; gets the rows.
        lease: a live one, in the engine's lease table.
    """
    if state.progress:
        _forget_progress(state, group, lease.task_id)
    state.end_lease(lease)
    shard_queue = lease.shard_queue
    shard_queue.leased -= 1
    group.dirty[shard_queue] = None
    group.ops.append((LEASE + lease.task_id, None))


def _forget_ghost(
    state: EngineState, group: Group, shard: Shard, ghost: bytes, ghost_expires_ms: int
) -> None:
    # While its task lives a ghost can have no other holder, so there is nothing to compare.
    if ghost == NO_GHOST:
        return
    if ghost_expires_ms <= state.clock.wall_us() // 1000:
        drop_ghost(shard, group, ghost)
    else:
        state.refile(shard, group, ghost_expires_ms, b"g" + ghost)


def finish(
    state: EngineState, group: Group, lease: LeaseState, status: int, *, error: bytes = b""
) -> None:
    """One task is over, without a value.

    Args:
        group: of the task's shard; gets the rows.
        lease: a live one, in the engine's lease table.
        status: how it ended.
        error: kept in the result.
    """
    finish_all(state, group, ((lease, 0, b"", 0),), status, error=error)


def finish_all(
    state: EngineState,
    group: Group,
    ends: Sequence[End],
    status: int,
    *,
    keep: bool = True,
    error: bytes = b"",
) -> None:
    """The tasks are over: ``-l -t +r``, [``-s``], [``-g``] each.

    Nearly every complete comes through here, so what a run has in common is looked up once.

    Args:
        group: of the task's shard; gets the rows.
        ends: of live leases, all of the group's shard.
        status: how they ended.
        keep: False stores no results.
        error: kept in the results.
    """
    append = group.ops.append
    is_kept = state.limits.results_max > 0
    keep = keep and is_kept
    now_us = state.wall_ns() // 1000
    shard_queue: ShardQueue | None = None
    policy = noted_kind = b""
    retention_ms = kept_ms = noted_ms = at_ms = 0
    final: list[bytes] | None = None  # where completed tasks of this shard queue and policy expire
    if group.events is not None:
        reason = None if status == 1 else error
        emit_leases(group, END_KINDS[status], [end[0] for end in ends], now_us, reason)
    for lease, flags, value, raw_bytes in ends:
        task_id = lease.task_id
        if lease.flags & DEAD_LEASE:
            _take_death_back(state, group, lease)
        if lease.shard_queue is not shard_queue:
            shard_queue = lease.shard_queue
            shard, queue, tenant = (
                shard_queue.shard,
                shard_queue.tenant_queue.queue,
                shard_queue.tenant_queue.tenant,
            )
            names = queue + tenant
            history = shard_queue.tenant_queue.queue_state.history
            group.dirty[shard_queue] = None
            final = None
        lease_flags = lease.flags
        if lease.packed_policy != policy:
            policy = lease.packed_policy
            retention_ms, final = decode_policy(policy).retention_ms, None
        record = b""
        if (keep and retention_ms) or (history.ms and is_kept):
            worker = lease.worker
            if not keep or not retention_ms:
                flags, value, raw_bytes = 0, b"", 0
            flags |= history.flag
            if lease_flags & MOVED_FLAG:
                flags |= HAS_ATTEMPTS
            kept_ms = retention_ms if keep else 0
            tail = value + history.tail
            face = lease.face
            if face:
                flags |= HAS_FACE
                tail = face_length(len(face)) + face + tail
            body = (
                pack_result_head(
                    RESULT_MARK,
                    flags | (lease_flags & MEMBER_LEASE) << 3,
                    status,
                    lease.priority,
                    lease.attempt,
                    lease.epoch,
                    token_hash(lease.token),
                    lease.times,
                    lease.leased_us,
                    now_us,
                    kept_ms,
                    len(value),
                    raw_bytes,
                    len(error),
                    len(worker),
                    len(queue),
                    len(tenant),
                )
                + names
                + worker
                + error
                + tail
            )
            record = body + checksum(body)
        # Of this task all is encoded; what remains to be read comes next.
        if lease_flags & BODY_LEASE:
            shard.drop_body(group, task_id)
        if state.progress:
            _forget_progress(state, group, task_id)
        state.end_lease(lease)
        shard_queue.leased -= 1
        if lease.runs is not None:
            lease.runs.ended(status, now_us - lease.leased_us)
        if status == Status.COMPLETED:
            flow = shard_queue.tenant_queue.flow
            flow.completed += 1
            flow.ran_us += now_us - lease.leased_us
        append((LEASE + task_id, None))
        append((TASK + task_id, None))
        if lease_flags & MOVED_FLAG:
            append((MOVED + task_id, None))
            if not record:
                append((ATTEMPTS + task_id, None))
        if lease.ghost != NO_GHOST:
            _forget_ghost(state, group, shard, lease.ghost, lease.ghost_expires_ms)
        if record:
            append((RESULT + task_id, record))
            shard_queue.results += 1
            shard.results += 1
            until_ms = now_us // 1000 + kept_ms
            kind = GOES
            if history.ms > kept_ms:
                if flags & HAS_VALUE:
                    kind = LOSES_VALUE
                else:
                    until_ms = now_us // 1000 + history.ms
            # A redriven task has left an older hint behind.
            if status == 1 and not lease_flags & (MOVED_FLAG | MEMBER_LEASE):
                if final is None or kind is not noted_kind:
                    if until_ms != noted_ms:
                        final = state.final_rows(shard, group, until_ms, shard_queue, kind)
                        noted_ms = until_ms
                        at_ms = -(-until_ms // SECOND_MS) * SECOND_MS
                    else:  # as there, for another shard queue of the same shard
                        final = group.final.setdefault((at_ms, shard_queue, kind), [])
                    noted_kind = kind
                final.append(task_id)
            elif history.ms:
                state.final_rows(shard, group, until_ms, shard_queue, READ).append(task_id)
            else:
                state.file_expiry(shard, group, until_ms, b"r" + task_id)
        if lease_flags & MEMBER_LEASE:
            state.flows.ended(group, shard, task_id, status, now_us)
        if state.result_waiters:
            state.notify_result(group, task_id)


def finish_one(
    state: EngineState,
    group: Group,
    lease: LeaseState,
    flags: int,
    value: bytes,
    raw_bytes: int,
    keep: bool,
) -> None:
    """``finish_all`` for one completed task, without the loop.

    Args:
        group: of the task's shard; gets the rows.
        lease: a live one, in the engine's lease table.
        flags: of the result record: value kind, compression, whether there is a value.
        value: as it is stored.
        raw_bytes: of the value before compression.
        keep: False stores no result.
    """
    retention_ms = decode_policy(lease.packed_policy).retention_ms
    if (
        lease.flags & (MOVED_FLAG | BODY_LEASE | MEMBER_LEASE)
        or not keep
        or not retention_ms
        or not state.limits.results_max
        or state.result_waiters
    ):
        finish_all(state, group, ((lease, flags, value, raw_bytes),), 1, keep=keep)
        return
    task_id, shard_queue, worker = lease.task_id, lease.shard_queue, lease.worker
    queue, tenant, history = (
        shard_queue.tenant_queue.queue,
        shard_queue.tenant_queue.tenant,
        shard_queue.tenant_queue.queue_state.history,
    )
    now_us = state.wall_ns() // 1000
    tail = value + history.tail
    face = lease.face
    if face:
        flags |= HAS_FACE
        tail = face_length(len(face)) + face + tail
    body = (
        pack_result_head(
            RESULT_MARK,
            flags | history.flag,
            1,
            lease.priority,
            lease.attempt,
            lease.epoch,
            token_hash(lease.token),
            lease.times,
            lease.leased_us,
            now_us,
            retention_ms,
            len(value),
            raw_bytes,
            0,
            len(worker),
            len(queue),
            len(tenant),
        )
        + queue
        + tenant
        + worker
        + tail
    )
    shard = shard_queue.shard
    record = body + checksum(body)
    kind = GOES
    if history.ms > retention_ms:
        if flags & HAS_VALUE:
            kind = LOSES_VALUE
        else:
            retention_ms = history.ms  # of the row: the record is packed
    until_ms = -(-(now_us // 1000 + retention_ms) // SECOND_MS) * SECOND_MS  # as ``final_rows``
    final = group.final.get((until_ms, shard_queue, kind))
    if final is None:
        final = state.final_rows(shard, group, until_ms, shard_queue, kind)
    if lease.ghost != NO_GHOST:  # first: it may have to read
        _forget_ghost(state, group, shard, lease.ghost, lease.ghost_expires_ms)
    if group.events is not None:  # and rows are queued when all is encoded
        one = pack_one(COMPLETED, lease.priority, lease.attempt, 1, len(worker), now_us, task_id)
        group.events.append(one + shard_queue.tenant_queue.tag + worker)
    if state.progress:
        _forget_progress(state, group, task_id)
    state.end_lease(lease)
    group.ops += ((LEASE + task_id, None), (TASK + task_id, None), (RESULT + task_id, record))
    shard.results += 1
    shard_queue.results += 1
    shard_queue.leased -= 1
    flow = shard_queue.tenant_queue.flow
    flow.completed += 1
    flow.ran_us += now_us - lease.leased_us
    if lease.runs is not None:
        lease.runs.completed(now_us - lease.leased_us)
    group.dirty[shard_queue] = None
    final.append(task_id)


def _attempt_row(lease: LeaseState, outcome: int, now_us: int, reason: bytes) -> bytes:
    """The attempts record of the task with this run in it. Reads the disk if it has moved before.

    Args:
        lease: of the run, which ends now.
        outcome: how it ended.
        now_us: wall microseconds.
        reason: cut to 512 bytes.
    """
    raw = None
    if lease.flags & MOVED_FLAG:
        raw = lease.shard_queue.shard.overlay.get_sound(ATTEMPTS + lease.task_id)
    one = AttemptRecord(lease.attempt, outcome, lease.leased_us, now_us, lease.worker, reason)
    return add_attempt(raw, one)


def die(
    state: EngineState, group: Group, lease: LeaseState, reason: bytes, outcome: int = 1
) -> None:
    """Out of attempts, or buried: ``-l +q(x) +s +a``, and a result that says so.

    One that was dead when it was claimed is laid back as it was.

    Args:
        group: of the task's shard; gets the rows.
        lease: a live one, in the engine's lease table.
        reason: kept with the dead letter, in the result and with the attempt.
        outcome: of the run: ``Outcome``.
    """
    if lease.flags & DEAD_LEASE:
        lay_back(state, group, lease)
        return
    created_us, seq = TIMES.unpack(lease.times)
    policy = decode_policy(lease.packed_policy)
    task_id, shard_queue = lease.task_id, lease.shard_queue
    now_us = state.clock.wall_us()
    now_ms = now_us // 1000
    result = b""
    attempts = _attempt_row(lease, outcome, now_us, reason)
    history = shard_queue.tenant_queue.queue_state.history
    if (policy.retention_ms or history.ms) and state.limits.results_max:
        tenant_queue = shard_queue.tenant_queue
        record = ResultRecord(
            HAS_ATTEMPTS | (lease.flags & MEMBER_LEASE) << 3,
            Status.DEAD,
            lease.priority,
            lease.attempt,
            lease.epoch,
            token_hash(lease.token),
            created_us,
            seq,
            lease.leased_us,
            now_us,
            policy.retention_ms,
            0,
            tenant_queue.queue,
            tenant_queue.tenant,
            lease.worker,
            reason,
            b"",
            lease.face,
            history.seconds,
        )
        result = encode_result_record(record)
    emit(group, DIED, shard_queue, task_id, lease.priority, lease.attempt, now_us, reason)
    bury_at(
        state,
        group,
        shard_queue,
        task_id,
        lease.priority,
        lease.attempt,
        lease.record_bytes,
        reason,
        now_ms,
        policy,
        flags=lease.flags >> 1 & (BODY_ROW | MEMBER_ROW),
    )
    leave_lease(state, group, lease)
    group.ops.append((ATTEMPTS + task_id, attempts))
    shard_queue.tenant_queue.flow.failed += 1
    if lease.runs is not None:
        lease.runs.ended(RUN_DEAD, now_us - lease.leased_us)
    _forget_ghost(state, group, shard_queue.shard, lease.ghost, lease.ghost_expires_ms)
    if result:
        until_ms = now_ms + max(policy.retention_ms, history.ms)
        put_result(state, shard_queue.shard, group, shard_queue, task_id, result, until_ms)
    if lease.flags & MEMBER_LEASE:
        state.flows.ended(group, shard_queue.shard, task_id, Status.DEAD, now_us)
    state.totals.dead += 1
    state.notify_result(group, task_id)


def bury_at(
    state: EngineState,
    group: Group,
    shard_queue: ShardQueue,
    task_id: bytes,
    priority: int,
    attempts: int,
    record_bytes: int,
    reason: bytes,
    now_ms: int,
    policy: Policy | None,
    *,
    flags: int,
) -> None:
    """The dead row, its moved row, its counter, its own end.

    Args:
        group: of the task's shard; gets the rows.
        attempts: runs so far.
        record_bytes: of the whole task record.
        reason: kept with the dead letter.
        now_ms: wall milliseconds.
        policy: None where it cannot be read: kept for a week.
        flags: ``BODY_ROW``, ``MEMBER_ROW``, both or 0.
    """
    forget_ms = now_ms + (policy.dead_retention_ms if policy is not None else DEAD_RETENTION_MS)
    key = dead_key(shard_queue.prefix, now_ms, task_id)
    shard_queue.dead_head = min(shard_queue.dead_head, key)
    row = IndexRow(MOVED_ROW | flags, priority, attempts, record_bytes, forget_ms, reason)
    value, moved = encode_index_row(row), encode_moved(Moved(attempts, key))
    state.file_expiry(shard_queue.shard, group, forget_ms, b"x" + task_id)
    group.ops += ((key, value), (MOVED + task_id, moved))
    group.dirty[shard_queue] = None
    shard_queue.dead += 1
    if state.dead_waiters:
        state.wake_dead(shard_queue.tenant_queue)


def lay_back(state: EngineState, group: Group, lease: LeaseState) -> None:
    """A dead letter whose lease is over is one again: ``-l +q(x)``, the same key, the same row.

    Args:
        state: the engine's state.
        group: of the task's shard; gets the rows.
        lease: a live one of a dead letter, in the engine's lease table.
    """
    shard_queue, key = lease.shard_queue, lease.key
    row = decode_index_row(lease.dead_row)
    flags = MOVED_ROW | lease.flags >> 1 & (BODY_ROW | MEMBER_ROW)
    value = encode_index_row(row._replace(flags=flags))
    leave_lease(state, group, lease)
    if row.expires_ms:  # a sweep may have passed it by meanwhile
        state.refile(shard_queue.shard, group, row.expires_ms, b"x" + lease.task_id)
    group.ops.append((key, value))
    state.laid_back += 1
    shard_queue.dead += 1
    shard_queue.dead_head = min(shard_queue.dead_head, key)
    if state.dead_waiters:
        state.wake_dead(shard_queue.tenant_queue)


def _take_death_back(state: EngineState, group: Group, lease: LeaseState) -> None:
    """A leased dead letter ends in another way: its first end counts no more, as in a redrive."""
    shard, tenant_queue, task_id = (
        lease.shard_queue.shard,
        lease.shard_queue.tenant_queue,
        lease.task_id,
    )
    raw = shard.overlay.get_sound(RESULT + task_id)
    if raw is not None:
        result = attempt(decode_result, raw)
        queue, tenant = (
            tenant_queue.queue,
            tenant_queue.tenant,
        )  # a damaged one was counted where its task is
        if result is not None:
            queue, tenant = result.queue, result.tenant
        drop_result(state, shard, group, task_id, queue, tenant)
    if lease.flags & MEMBER_LEASE:
        state.flows.redriven(group, shard, task_id)


def step_behind(
    state: EngineState, group: Group, shard_queue: ShardQueue, row: Row, reason: bytes
) -> None:
    """A ready row that was popped cannot be delivered now: ``-q(r) +q(d) +s``, no run counted.

    Args:
        group: of the task's shard; gets the rows.
        shard_queue: of the row.
        row: a ready one, popped.
        reason: kept with the task.
    """
    key, task_id, attempts, flags, expires_ms, size, _ = row
    now_us = state.clock.wall_us()
    due_ms = now_us // 1000 + STEP_MS
    later = delayed_key(shard_queue.prefix, due_ms, state.next_seq(now_us), task_id)
    packed = encode_index_row(
        IndexRow(flags | MOVED_ROW, 9 - key[ORDER_AT], attempts, size, expires_ms, reason)
    )
    group.ops += ((key, None), (MOVED + task_id, encode_moved(Moved(attempts, later))))
    state.put_delayed(group, shard_queue, later, due_ms, packed)
    state.key_limits.gone(task_id)


def bury_row(
    state: EngineState, group: Group, shard_queue: ShardQueue, row: Row, reason: bytes
) -> None:
    """A ready row that was popped but cannot be delivered.

    Args:
        group: of the task's shard; gets the rows.
        shard_queue: of the row.
        row: a ready one, popped.
        reason: kept with the dead letter and in the result.
    """
    key, task_id, attempts, flags, _, size, _ = row
    now_us = state.clock.wall_us()
    priority = 9 - key[ORDER_AT]
    result = _damaged_result(
        state, shard_queue, task_id, Status.DEAD, priority, attempts, reason, now_us
    )
    emit(group, DIED, shard_queue, task_id, priority, attempts, now_us, reason)
    bury_at(
        state,
        group,
        shard_queue,
        task_id,
        priority,
        attempts,
        size,
        reason,
        now_us // 1000,
        None,
        flags=flags & (BODY_ROW | MEMBER_ROW),
    )
    group.ops.append((key, None))
    _put_damaged(state, group, shard_queue, task_id, result, now_us)
    state.key_limits.gone(task_id)
    if flags & MEMBER_ROW:
        state.flows.ended(group, shard_queue.shard, task_id, Status.DEAD, now_us)
    state.totals.dead += 1
    state.notify_result(group, task_id)


def _damaged_result(
    state: EngineState,
    shard_queue: ShardQueue,
    task_id: bytes,
    status: Status,
    priority: int,
    attempts: int,
    reason: bytes,
    now_us: int,
) -> bytes:
    """The result of a task whose record cannot be read, from its row and id.

    Empty where no results are kept.
    """
    if not state.limits.results_max:
        return b""
    tenant_queue = shard_queue.tenant_queue
    record = ResultRecord(
        HAS_ATTEMPTS,
        status,
        priority,
        attempts,
        0,
        0,
        TaskId(task_id).created_ms * 1000,
        0,
        0,
        now_us,
        RETENTION_MS,
        0,
        tenant_queue.queue,
        tenant_queue.tenant,
        b"",
        reason,
        b"",
        history_s=tenant_queue.queue_state.history.seconds,
    )
    return encode_result_record(record)


def _put_damaged(
    state: EngineState,
    group: Group,
    shard_queue: ShardQueue,
    task_id: bytes,
    result: bytes,
    now_us: int,
) -> None:
    if result:
        kept_ms = max(RETENTION_MS, shard_queue.tenant_queue.queue_state.history.ms)
        until_ms = now_us // 1000 + kept_ms
        put_result(state, shard_queue.shard, group, shard_queue, task_id, result, until_ms)


def sound_task(shard: Shard, task_id: bytes) -> TaskRecord | None:
    """The decoded record; None where it is missing or damaged."""
    return attempt(decode_task, shard.overlay.get_sound(TASK + task_id))


def end_task(
    state: EngineState, group: Group, location: TaskLocation, status: Status | None, error: str
) -> None:
    """``end_at`` for a task whose record may be missing or damaged: then the row is enough.

    Its dedup key, which only the record has, is left to the next enqueue of that key.

    Args:
        group: of the task's shard; gets the rows.
        location: of the task, as of this atomic section.
        status: None writes no result (it has one: the task was dead).
        error: kept in the result.
    """
    shard, task_id = location.shard_queue.shard, location.task_id
    task = sound_task(shard, task_id)
    if task is not None:
        retention_ms = decode_policy(task.policy).retention_ms
        end_at(state, group, location, task, status, error=error, retention_ms=retention_ms)
        return
    row, reason, shard_queue = location.row, error.encode(), location.shard_queue
    now_us, result = state.clock.wall_us(), b""
    if status is not None:
        result = _damaged_result(
            state, shard_queue, task_id, status, row.priority, row.attempts, reason, now_us
        )
    emit(
        group,
        END_KINDS[status],
        shard_queue,
        task_id,
        row.priority,
        row.attempts,
        now_us,
        reason,
    )
    if row.flags & BODY_ROW:
        shard.drop_body(group, task_id)
    leave(state, group, location)
    if not result and not (status is None and shard.overlay.has(RESULT + task_id)):
        group.ops.append((ATTEMPTS + task_id, None))
    group.ops += [(TASK + task_id, None), (MOVED + task_id, None)]
    _put_damaged(state, group, shard_queue, task_id, result, now_us)
    if row.flags & MEMBER_ROW:
        state.flows.ended(group, shard, task_id, status or 0, now_us)
    state.notify_result(group, task_id)


def end_if_past_ttl(state: EngineState, group: Group, lease: LeaseState) -> bool:
    """A task that comes back past its TTL ends instead. Returns whether it did."""
    if not lease.expires_ms or lease.expires_ms > state.clock.wall_us() // 1000:
        return False
    finish(state, group, lease, Status.EXPIRED, error=b"ttl")
    state.totals.expired += 1
    return True


def put_back(
    state: EngineState,
    group: Group,
    lease: LeaseState,
    *,
    delay_ms: int,
    reason: bytes,
    is_counted: bool,
    outcome: int = 1,
) -> None:
    """Requeue the task: at its old position (released), at the tail, or for a later time.

    A dead letter is laid back as it was.

    Args:
        group: of the task's shard; gets the rows.
        lease: a live one, in the engine's lease table.
        delay_ms: until it is ready again; 0: at once.
        reason: kept with the task.
        is_counted: whether the run counts as an attempt; if not, a task without delay keeps its
            position.
        outcome: of a run that counts: ``Outcome``.
    """
    if lease.flags & DEAD_LEASE:
        lay_back(state, group, lease)
        return
    if end_if_past_ttl(state, group, lease):
        return
    shard_queue, task_id = lease.shard_queue, lease.task_id
    now_us = state.clock.wall_us()
    ended = _attempt_row(lease, outcome, now_us, reason) if is_counted else None
    attempts = lease.attempt if is_counted else lease.attempt - 1
    kind = NACKED if is_counted else RELEASED
    emit(group, kind, shard_queue, task_id, lease.priority, attempts, now_us, reason)
    had_moved = bool(lease.flags & MOVED_FLAG)
    stays = not is_counted and delay_ms == 0
    if stays:
        key = lease.key
        moved = had_moved or attempts > 0
    else:
        seq = state.next_seq(now_us)
        if delay_ms:
            key = delayed_key(shard_queue.prefix, now_us // 1000 + delay_ms, seq, task_id)
        else:
            key = shard_queue.ready_key(
                shard_queue.ready_prefixes[9 - lease.priority], seq, task_id
            )
        moved = True
    row = IndexRow(
        (MOVED_ROW if moved else 0) | lease.flags >> 1 & (BODY_ROW | MEMBER_ROW),
        lease.priority,
        attempts,
        lease.record_bytes,
        lease.expires_ms,
        reason,
    )
    value = encode_moved(Moved(attempts, key)) if moved and not (stays and had_moved) else None
    if delay_ms:
        packed, size = encode_index_row(row), lease.record_bytes
        kept = None if lease.record is None or is_streamed(lease.record) else lease.record
        facts = (row.priority, attempts, row.flags, row.expires_ms, size, kept)
        held = (key, key[ID_AT:], *facts, packed)  # it is the ready row's value, too
        state.put_delayed(group, shard_queue, key, now_us // 1000 + delay_ms, packed, held)
    else:
        state.put_ready(group, shard_queue, 9 - lease.priority, key, task_id, row)
    leave_lease(state, group, lease)
    shard_queue.tenant_queue.flow.failed += is_counted
    if lease.runs is not None:
        end = RUN_FAILED if is_counted else RUN_RELEASED
        lease.runs.ended(end, now_us - lease.leased_us)
    if lease.expires_ms:
        state.refile(shard_queue.shard, group, lease.expires_ms, b"t" + task_id)
    if value is not None:
        group.ops.append((MOVED + task_id, value))
    if ended is not None:
        group.ops.append((ATTEMPTS + task_id, ended))


def give_back(state: EngineState, leases: Sequence[LeaseState]) -> None:
    """Release leases that nobody will work on; does not wait and is never refused."""
    groups: dict[Shard, Group] = {}
    for lease in leases:
        if not lease.is_live or state.leases.get(lease.task_id) is not lease:
            continue
        shard = lease.shard_queue.shard
        if not shard.coalescer.takes_writes or state.is_closed:
            continue
        if shard not in groups:
            groups[shard] = shard.coalescer.begin()
        group = groups[shard]
        with group:
            put_back(state, group, lease, delay_ms=0, reason=b"", is_counted=False)
