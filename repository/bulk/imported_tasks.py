"""Import of tasks from another queue, with the attempts they have had, or dead already.

Each task is placed as an enqueue places it and then, in the same atomic section, moved to where it
had come: so every row, counter and hint is the same as if it had lived here. It keeps the time of
its first enqueue.

Every task has a dedup key with a window, and a key that is held is left alone: importing the same
tasks again adds nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from ...coalescer.group import Group
from ...engine.records.face import NO_FACE, Face
from ...engine.records.keyspace import MOVED, dead_key, delayed_key
from ...engine.records.rows import (
    BODY_ROW,
    MOVED_ROW,
    Ghost,
    IndexRow,
    Moved,
    encode_ghost,
    encode_index_row,
    encode_moved,
)
from ...engine.records.task import ATTEMPTS_MAX
from ...errors import InvariantError, UsageError
from ..model.arguments import TIME_MS_MAX
from ..model.encoded_tasks import EncodedTask, TaskTemplate, encoded_task
from ..model.faces import labels_of
from ..model.task_options import DURATION_S_MAX
from ..model.values import NewTask
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from ..state.rows.dedup_entries import drop_old_entry, old_entry_of
from ..state.rows.task_location import TaskLocation, leave, task_location
from ..tasks.enqueue import holder, place
from ..tasks.lease_operations import reason_bytes
from ..tasks.streamed_payloads import write_streamed

__all__ = ["ImportedTask", "encode_imported", "enqueue_imported"]

_KIND_BITS = 3
_KINDS = 3


class ImportedTask(NamedTuple):
    """A task to import. Times are wall times; 0 stands for none.

    ``kind``: how the payload was encoded (see ``codec``): as given, by msgpack, or by a codec.
    ``died_ms``: None unless it is a dead letter. ``reason``: that of the last failure.
    ``dedup_until_ms``: in the future, at most ten years. ``is_over``: the task has ended, only its
    dedup key is kept.
    """

    payload: bytes
    dedup_key: str
    dedup_until_ms: int
    kind: int = 0
    headers: Mapping[str, Any] | None = None
    priority: int = 5
    created_us: int = 0
    due_ms: int = 0
    expires_ms: int = 0
    attempts: int = 0
    reason: str = ""
    died_ms: int | None = None
    is_over: bool = False
    face: Face = NO_FACE


def encode_imported(
    state: EngineState, shared: TaskTemplate, task: ImportedTask, now_us: int
) -> EncodedTask:
    """Validate and encode a task for ``enqueue_imported``.

    Args:
        state: the engine's state.
        shared: queue, tenant and defaults.
        task: the task to import.
        now_us: the current wall time in microseconds; delays and windows count from it.

    Raises:
        UsageError: payload or headers exceed the limits or cannot be packed, or a number is out of
            range.
    """
    now_ms = now_us // 1000
    _check(task)
    window_s = max(0, task.dedup_until_ms - now_ms) / 1000
    new = NewTask(
        b"" if task.is_over else task.payload,
        priority=task.priority,
        headers=task.headers,
        dedup_key=task.dedup_key,
        dedup_window=min(window_s, DURATION_S_MAX),
        function=task.face.function or None,
        preview=task.face.preview or None,
        labels=labels_of(task.face.labels) or None,
    )
    encoded = encoded_task(state, shared, new, now_us)
    encoded.flags = encoded.flags & ~_KIND_BITS | task.kind
    encoded.due_ms = task.due_ms if task.due_ms > now_ms and task.died_ms is None else 0
    encoded.expires_ms = task.expires_ms if task.died_ms is None else 0
    return encoded


def _check(task: ImportedTask) -> None:
    """Refuse what cannot be imported: later it would be in the middle of a batch."""
    times = (task.due_ms, task.expires_ms, task.dedup_until_ms, task.died_ms or 0)
    for name, value, most in (
        ("number of attempts", task.attempts, sys.maxsize),
        ("kind", task.kind, _KINDS - 1),
        ("enqueue time", task.created_us, TIME_MS_MAX * 1000),
        *(("time", time, TIME_MS_MAX) for time in times),
    ):
        if type(value) is not int or not 0 <= value <= most:
            raise UsageError(f"expected {name} from 0 to {most}, got {value!r}")
    if not isinstance(task.reason, str):
        raise UsageError(f"expected reason as a str, got {type(task.reason).__name__}")


async def enqueue_imported(
    state: EngineState, tasks: Sequence[tuple[ImportedTask, EncodedTask]]
) -> list[bool]:
    """Import tasks, in order. Returns for each whether it is new (False: its key is held).

    The tasks of one shard are one batch, so all together must stay below 4 MiB.
    ``Limits.pending_max`` does not apply.

    Raises:
        StorageFullError, StorageError: some may have been imported; call it again.

    Durability: all of them survive a power cut on return, in either mode.
    Cancellation: in the last wait it happens.
    """
    state.check_intake()
    plan: dict[Shard, list[int]] = {}
    for i, (_, encoded) in enumerate(tasks):
        plan.setdefault(_shard_of(state, encoded), []).append(i)
    with ExitStack() as stack:
        now_ms = state.clock.wall_us() // 1000
        for shard, indexes in plan.items():
            streamed = [encoded for i in indexes if (encoded := tasks[i][1]).is_streamed]
            fresh = [
                encoded for encoded in streamed if holder(state, shard, encoded, now_ms) is None
            ]
            await write_streamed(state, shard, fresh, stack, is_durable=True)
        return await _queue_imported(state, tasks, plan)


async def _queue_imported(
    state: EngineState,
    tasks: Sequence[tuple[ImportedTask, EncodedTask]],
    plan: dict[Shard, list[int]],
) -> list[bool]:
    """The rest of ``enqueue_imported``, once streamed payloads are written."""
    for shard in plan:
        if not shard.coalescer.has_capacity:
            await state.backpressure(shard)
    # atomic section
    now_us = state.clock.wall_us()
    groups: dict[Shard, Group] = {}
    for shard, indexes in plan.items():
        cost = sum(tasks[i][1].row_bytes + 512 for i in indexes)
        groups[shard] = shard.coalescer.begin(cost)
    is_new = []
    for task, encoded in tasks:
        shard = _shard_of(state, encoded)
        with groups[shard]:
            is_new.append(_take_over(state, shard, groups[shard], task, encoded, now_us))
    waits = [shard.coalescer.wait(group, None, is_durable=True) for shard, group in groups.items()]
    for future in waits:
        await future
    return is_new


def _shard_of(state: EngineState, encoded: EncodedTask) -> Shard:
    return state.shard_of_slot(encoded.slot or 0)


def _take_over(
    state: EngineState,
    shard: Shard,
    group: Group,
    task: ImportedTask,
    encoded: EncodedTask,
    now_us: int,
) -> bool:
    if holder(state, shard, encoded, now_us // 1000) is not None:
        state.totals.duplicates += 1
        return False
    task_id = state.ids.new(now_us // 1000, encoded.slot or 0)
    if task.is_over:
        ghost = encode_ghost(Ghost(task_id, encoded.ghost_expires_ms))
        old_ghost = old_entry_of(shard, encoded.routing) if shard.old_ghosts else None
        state.file_expiry(shard, group, encoded.ghost_expires_ms, b"g" + encoded.ghost)
        if old_ghost is not None:
            drop_old_entry(shard, group, old_ghost)
        shard.put_dedup(group, encoded.ghost, ghost)
        return True
    created_us = task.created_us if 0 < task.created_us < now_us else now_us
    place(state, shard, group, encoded, task_id, created_us)
    if task.attempts or task.died_ms is not None:
        _move_on(state, group, task, encoded, task_id, now_us)
    return True


def _move_on(
    state: EngineState,
    group: Group,
    task: ImportedTask,
    encoded: EncodedTask,
    task_id: bytes,
    now_us: int,
) -> None:
    """Move a task that was just placed to where it had come in its old queue."""
    shard = _shard_of(state, encoded)
    at = task_location(state, shard, task_id)
    if at is None:
        raise InvariantError(f"task {task_id.hex()} was placed and is not there")
    attempts = min(task.attempts, ATTEMPTS_MAX)
    reason = reason_bytes(state, task.reason)
    if task.died_ms is not None:
        _bury(state, group, at, attempts, reason or b"dead", task.died_ms, now_us, encoded)
        return
    flags = MOVED_ROW | at.row.flags & BODY_ROW
    row = IndexRow(
        flags, encoded.priority, attempts, at.row.record_bytes, encoded.expires_ms, reason
    )
    shard_queue, seq = at.shard_queue, state.next_seq(0)  # next in line, whatever the clock says
    if encoded.due_ms:
        key = delayed_key(shard_queue.prefix, encoded.due_ms, seq, task_id)
    else:
        key = shard_queue.ready_key(shard_queue.ready_prefixes[9 - encoded.priority], seq, task_id)
    moved = encode_moved(Moved(attempts, key))
    leave(state, group, at)
    group.ops.append((MOVED + task_id, moved))
    if encoded.due_ms:
        state.put_delayed(group, shard_queue, key, encoded.due_ms, encode_index_row(row))
    else:
        state.put_ready(group, shard_queue, 9 - encoded.priority, key, task_id, row)


def _bury(
    state: EngineState,
    group: Group,
    at: TaskLocation,
    attempts: int,
    reason: bytes,
    died_ms: int,
    now_us: int,
    encoded: EncodedTask,
) -> None:
    """Make it a dead letter, kept for its whole retention from now on."""
    shard_queue, task_id = at.shard_queue, at.task_id
    now_ms = now_us // 1000
    forget_ms = now_ms + round(encoded.shared.dead_retention_s * 1000)
    key = dead_key(shard_queue.prefix, min(died_ms, now_ms) if died_ms > 0 else now_ms, task_id)
    shard_queue.dead_head = min(shard_queue.dead_head, key)
    flags = MOVED_ROW | at.row.flags & BODY_ROW
    row = IndexRow(flags, encoded.priority, attempts, at.row.record_bytes, forget_ms, reason)
    value, moved = encode_index_row(row), encode_moved(Moved(attempts, key))
    leave(state, group, at)
    group.ops += ((key, value), (MOVED + task_id, moved))
    shard_queue.dead += 1
    state.file_expiry(shard_queue.shard, group, forget_ms, b"x" + task_id)
