"""Operators' calls: cancel, redrive, purge, pause. Each works in slices, one batch a slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ...coalescer.group import Group
from ...engine.records.events import REDRIVEN
from ...engine.records.frame import attempt
from ...engine.records.keyspace import (
    ALL_TENANTS_MARK,
    DEAD,
    DELAYED,
    GHOST,
    MOVED,
    READY,
    RESULT,
    TASK,
    pause_key,
    prefix_end,
)
from ...engine.records.result import Status, decode_result
from ...engine.records.rows import (
    BODY_ROW,
    MOVED_ROW,
    OLD_FORM,
    Ghost,
    IndexRow,
    Moved,
    decode_ghost,
    decode_index_row,
    encode_ghost,
    encode_moved,
    encode_pause,
)
from ...engine.records.task import NO_GHOST, encode_task
from ...engine.runtime.task_id import TaskId
from ...errors import (
    CorruptionError,
    DuplicateTaskError,
    LodeqError,
    RecordCorruptError,
    TaskNotFoundError,
    UsageError,
)
from ..state.dedup_entries import is_old_entry
from ..state.engine_state import EngineState
from ..state.events import emit
from ..state.pages import Pages, find_floor
from ..state.queue_state import Shard, ShardQueue, TenantQueue
from ..state.task_location import TaskLocation, drop_result, is_alive, read_task, task_location
from ..state.turns import Turns
from .task_end import end_task, finish

__all__ = [
    "cancel",
    "pause",
    "purge",
    "redrive",
    "resume",
]

SLICE = 128
PURGE_STATES = {"ready": READY, "delayed": DELAYED, "dead": DEAD}


# -- cancel ----------------------------------------------------------------------------


async def cancel(core: EngineState, task_id: TaskId) -> bool:
    """See ``Engine.cancel``."""
    shard = core.shard_of(task_id)
    if not shard.co.has_capacity:
        await core.backpressure(shard)
    if not shard.co.takes_writes:
        shard.co.begin()  # raises: "there is no such task" is not for this shard to say
    lease = core.leases.get(task_id)
    if lease is not None:
        group = shard.co.begin()
        with group:
            finish(core, group, lease, Status.CANCELLED, error=b"cancelled")
        await shard.co.wait(group)
        return True
    location = task_location(core, shard, task_id)
    if location is None or location.kind == DEAD:
        await core.commit_barrier(shard)
        return False
    group = shard.co.begin()
    with group:
        end_task(core, group, location, Status.CANCELLED, "cancelled")
    await shard.co.wait(group)
    return True


# -- in slices --------------------------------------------------------------------------


class _Range(NamedTuple):
    """Index rows of one bucket as of a call: neither later ones nor their number count.

    ``last``: the latest seq (of a dead row: the moment of dying) that is meant, as in the key.
    ``rows``: at most so many are meant, so an end is reached whatever others add meanwhile.
    """

    bucket: ShardQueue
    lower: bytes
    upper: bytes
    last: bytes
    rows: int


async def _all(
    core: EngineState,
    lanes: Sequence[TenantQueue],
    kinds: Sequence[bytes],
    act: Callable[[Group, TaskLocation], bool],
) -> int:
    """``act`` on every task of these kinds that is there now; how often it did."""
    turns = Turns(core)
    count = 0
    for found in _ranges(core, lanes, kinds, core.seq, core.clock.wall_us() // 1000):
        count += await _each(core, found, act)
        if turns.is_over:
            await turns.give_now()
            core.check()
    return count


def _ranges(
    core: EngineState,
    lanes: Sequence[TenantQueue],
    kinds: Sequence[bytes],
    last_seq: int,
    now_ms: int,
) -> Iterator[_Range]:
    """Ranges of the rows that existed at ``now_ms``; each as of when it is asked for."""
    seq = last_seq.to_bytes(8, "big")
    for lane in lanes:
        for bucket in [b for b in lane.buckets if b is not None]:
            for kind in kinds:
                lower = bucket.prefix + kind
                upper = prefix_end(lower)
                if kind == READY:
                    for start in bucket.ready_prefixes:
                        end = start + seq + b"\xff" * 17
                        yield _Range(bucket, start, end, seq, bucket.ready)
                elif kind == DELAYED:
                    yield _Range(bucket, lower, upper, seq, bucket.delayed)
                else:
                    last = now_ms.to_bytes(8, "big")
                    try:
                        key = bucket.shard.overlay.last_key(lower, upper) if bucket.dead else None
                    except CorruptionError:  # the others are meant all the same
                        key = None
                    if key is not None:  # later than now where the clock has stepped back
                        last = max(last, key[-24:-16])
                    yield _Range(bucket, lower, upper, last, bucket.dead)


def _location_of_row(
    core: EngineState, bucket: ShardQueue, key: bytes, raw: bytes
) -> TaskLocation | None:
    """Location of a scanned row, from the row alone where nothing else can be read."""
    task_id = key[-16:]
    if task_id in core.leases:
        return None
    try:
        location = task_location(core, bucket.shard, task_id)
    except CorruptionError:
        location = None
    if location is not None:
        return location if location.key == key else None
    row = attempt(decode_index_row, raw) or IndexRow(MOVED_ROW, 0, 0, 0, 0, b"")
    at, lane = len(bucket.prefix), bucket.lane
    # Leadership may have been lost and won since the range was noted: that bucket counts no more.
    bucket = core.lane(lane.queue, lane.tenant).bucket(bucket.shard)
    return TaskLocation(task_id, bucket, key[at : at + 1], key, row, True)


async def _each(
    core: EngineState, found: _Range, act: Callable[[Group, TaskLocation], bool]
) -> int:
    """``act`` on every task of the range, a slice and a batch at a time; how often it did."""
    count, left, shard = 0, found.rows, found.bucket.shard
    lower, kind = found.lower, found.lower[len(found.bucket.prefix) :]
    if left > 0 and kind in (DELAYED, DEAD):
        lower = max(lower, await find_floor(core, found.bucket, kind))
    elif left > 0:
        lower = max(lower, min(found.upper, found.bucket.floor(READY)))  # as the windows know
    pages = Pages(core, shard, lower, found.upper, SLICE, for_writing=True)
    while left > 0 and (rows := await pages.following()):
        meant = [row for row in rows if row[0][-24:-16] <= found.last][:left]
        left -= len(meant)
        if meant:
            group = shard.co.begin(len(meant) * 256)
            for key, raw in meant:
                location = _location_of_row(core, found.bucket, key, raw)
                with group:
                    count += location is not None and act(group, location)
            await shard.co.wait(group)
    if left < found.rows:  # nine of ten priorities may be empty: not a turn of the loop for each
        await core.spawner.checkpoint()
        core.check()
    return count


# -- redrive ---------------------------------------------------------------------------


def _holder(
    core: EngineState, shard: Shard, task_id: bytes, ghost: bytes, now_ms: int
) -> bytes | None:
    """Id of another task that holds the task's dedup key, or None."""
    raw = shard.overlay.get(GHOST + ghost) if ghost != NO_GHOST else None
    if raw is None:
        return None
    held = decode_ghost(raw)
    if held.task_id == task_id:
        return None
    try:  # as an enqueue sees it
        is_held = held.expires_ms > now_ms or is_alive(core, shard, held.task_id)
    except CorruptionError:  # still in line: the claim that meets it will bury it
        is_held = True
    return held.task_id if is_held else None


def _redrive_one(core: EngineState, group: Group, location: TaskLocation) -> LodeqError | None:
    """Put a dead task back to the tail with a fresh set of attempts; or say why that cannot be."""
    shard, task_id = location.bucket.shard, location.task_id
    now_us = core.clock.wall_us()
    # Every read that can fail comes before the first operation that is queued.
    try:
        task = read_task(shard, task_id)
        ghost = task.ghost if task is not None else NO_GHOST
        rival = _holder(core, shard, task_id, ghost, now_us // 1000)
    except CorruptionError:
        task = rival = None
    if task is None:
        return RecordCorruptError(
            f"{TaskId(task_id)} cannot be redriven: its record is missing or damaged; purge it"
        )
    if rival is not None:
        return DuplicateTaskError(
            f"{TaskId(task_id)} cannot be redriven: its dedup key is held by {TaskId(rival)}",
            task_id=rival,
        )
    has_result = shard.overlay.has(RESULT + task_id)
    result = attempt(decode_result, shard.overlay.get_sound(RESULT + task_id))
    bucket = location.bucket
    key = bucket.ready_key(bucket.ready_prefixes[9 - task.priority], core.next_seq(now_us), task_id)
    moved = encode_moved(Moved(0, key))
    own_ghost = encode_ghost(Ghost(task_id, task.ghost_expires_ms, task.ghost_form))
    record = None
    if task.ghost_form == OLD_FORM and not is_old_entry(shard, task.ghost):
        # Its key has been taken under the new hash since, or has lapsed; nobody knows which.
        record = encode_task(task._replace(ghost=NO_GHOST, ghost_expires_ms=0))
    # Whoever redrives wants it to run: its TTL, counted from the enqueue, no longer applies.
    flags = MOVED_ROW | location.row.flags & BODY_ROW
    row = IndexRow(flags, task.priority, 0, location.row.record_bytes, 0, b"")
    emit(group, REDRIVEN, bucket, task_id, task.priority, 0, now_us)
    core.put_ready(group, bucket, 9 - task.priority, key, task_id, row)
    group.ops += ((location.key, None), (MOVED + task_id, moved))
    bucket.dead -= 1
    if record is not None:
        group.ops.append((TASK + task_id, record))
    elif task.ghost != NO_GHOST:
        group.ops.append((GHOST + task.ghost, own_ghost))
        if task.ghost_expires_ms:
            core.file_expiry(shard, group, task.ghost_expires_ms, b"g" + task.ghost)
    if result is not None:
        drop_result(core, shard, group, task_id, result.queue, result.tenant)
    elif has_result:  # damaged: it was counted where its task is
        drop_result(core, shard, group, task_id, bucket.lane.queue, bucket.lane.tenant)
    return None


async def redrive(
    core: EngineState, lanes: Sequence[TenantQueue], ids: Sequence[TaskId] | None
) -> int:
    """See ``Queue.redrive``."""
    if ids is not None:
        return await _redrive_ids(core, lanes, ids)
    return await _all(
        core, lanes, [DEAD], lambda group, location: _redrive_one(core, group, location) is None
    )


async def _redrive_ids(
    core: EngineState, lanes: Sequence[TenantQueue], ids: Sequence[TaskId]
) -> int:
    """Named tasks: all that can be are; the first that cannot be is then reported."""
    problem: LodeqError | None = None
    count = 0
    for task_id in ids:
        shard = core.shard_of(task_id)
        if not shard.co.has_capacity:
            await core.backpressure(shard)
        try:
            location = task_location(core, shard, task_id)
        except CorruptionError as error:
            problem = problem or error
            continue
        if location is None or location.kind != DEAD or location.bucket.lane not in lanes:
            problem = problem or TaskNotFoundError(
                f"{task_id} is not a dead letter of this queue", task_id=task_id
            )
            continue
        group = shard.co.begin()
        with group:
            refusal = _redrive_one(core, group, location)
        await shard.co.wait(group)
        core.check()
        problem = problem or refusal
        count += refusal is None
    if problem is not None:
        raise problem
    return count


# -- purge -----------------------------------------------------------------------------


async def purge(core: EngineState, lanes: Sequence[TenantQueue], state: str | None) -> int:
    """See ``Queue.purge``."""
    if state is not None and state not in PURGE_STATES:
        raise UsageError(f"state {state!r} is not one of {', '.join(PURGE_STATES)}, or None")
    kinds = [kind for name, kind in PURGE_STATES.items() if state in (None, name)]
    return await _all(core, lanes, kinds, lambda group, location: _purge_one(core, group, location))


def _purge_one(core: EngineState, group: Group, location: TaskLocation) -> bool:
    end_task(core, group, location, None if location.kind == DEAD else Status.CANCELLED, "purged")
    return True


# -- pause -----------------------------------------------------------------------------


async def pause(core: EngineState, queue: bytes, tenant: bytes | None) -> None:
    """See ``Queue.pause``."""
    await _write_pause(core, queue, tenant, encode_pause(core.clock.wall_us()))


async def resume(core: EngineState, queue: bytes, tenant: bytes | None) -> None:
    """See ``Queue.resume``."""
    await _write_pause(core, queue, tenant, None)


async def _write_pause(
    core: EngineState, queue: bytes, tenant: bytes | None, value: bytes | None
) -> None:
    shard = core.shards[0]
    if not shard.co.has_capacity:
        await core.backpressure(shard)
    key = pause_key(queue, ALL_TENANTS_MARK if tenant is None else tenant)
    group = shard.co.begin()
    core.set_pause(queue, tenant, is_paused=value is not None)
    group.ops.append((key, value))
    await shard.co.wait(group)
