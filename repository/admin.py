"""What operators do: cancel, redrive, purge, pause. Each in slices, each one batch a slice."""

from __future__ import annotations

from collections.abc import Sequence

from ..coalescer.group import Group
from ..engine.ids import TaskId
from ..engine.keyspace import (
    ALL_TENANTS_MARK,
    DEAD,
    DELAYED,
    GHOST,
    MOVED,
    READY,
    RESULT,
    pause_key,
    prefix_end,
)
from ..engine.records.policy import decode_policy
from ..engine.records.result import Status, decode_result
from ..engine.records.rows import (
    MOVED_ROW,
    Ghost,
    IndexRow,
    Moved,
    decode_ghost,
    encode_ghost,
    encode_moved,
    encode_pause,
)
from ..engine.records.task import NO_GHOST
from ..errors import DuplicateTaskError, NotLeaderError, TaskNotFoundError, UsageError
from .core import Core
from .ending import finish
from .places import Place, end_at, is_alive, locate, read_task
from .state import Lane, Shard
from .sweep import drop_result

__all__ = [
    "cancel",
    "pause",
    "purge",
    "redrive",
    "resume",
    "set_pause",
]

SLICE = 128
PURGE_STATES = {"ready": READY, "delayed": DELAYED, "dead": DEAD}


# -- cancel ----------------------------------------------------------------------------


async def cancel(core: Core, task_id: TaskId) -> bool:
    """See ``Engine.cancel``."""
    shard = core.shard_of(task_id)
    if isinstance(shard.co.poison, NotLeaderError):
        shard.co.begin()  # raises: "there is no such task" is not for a follower to say
    if not shard.co.has_room:
        await core.room(shard)
    lease = core.leases.get(task_id)
    if lease is not None:
        group = shard.co.begin()
        finish(core, group, lease, Status.CANCELLED, error=b"cancelled")
        await shard.co.wait(group)
        return True
    task = read_task(shard, task_id)
    place = locate(core, shard, task_id) if task is not None else None
    if task is None or place is None or place.kind == DEAD:
        await core.settled(shard)
        return False
    group = shard.co.begin()
    end_at(
        core, group, place, task, Status.CANCELLED,
        error="cancelled", retention_ms=decode_policy(task.policy).retention_ms,
    )  # fmt: skip
    await shard.co.wait(group)
    return True


# -- redrive ---------------------------------------------------------------------------


def _holder(core: Core, shard: Shard, task_id: bytes, ghost: bytes, now_ms: int) -> bytes | None:
    """Who else holds the task's dedup key, if anybody does."""
    raw = shard.overlay.get(GHOST + ghost) if ghost != NO_GHOST else None
    if raw is None:
        return None
    held = decode_ghost(raw)
    if held.task_id == task_id:
        return None
    is_over = 0 < held.expires_ms <= now_ms
    if is_over and not is_alive(core, shard, held.task_id):
        return None
    return held.task_id


def _redrive_one(core: Core, group: Group, place: Place) -> bytes | None:
    """Put a dead task back to the tail with a fresh set of attempts. Returns a rival holder."""
    shard, task_id = place.bucket.shard, place.task_id
    task = read_task(shard, task_id)
    if task is None:
        return None
    now_us = core.clock.wall_us()
    rival = _holder(core, shard, task_id, task.ghost, now_us // 1000)
    if rival is not None:
        return rival
    bucket = place.bucket
    group.ops.append((place.key, None))
    group.dirty[bucket] = None
    bucket.dead -= 1
    if task.ghost != NO_GHOST:
        group.ops.append((GHOST + task.ghost, encode_ghost(Ghost(task_id, task.ghost_expires_ms))))
        if task.ghost_expires_ms:
            core.file_expiry(shard, group, task.ghost_expires_ms, b"g" + task.ghost)
    raw = shard.overlay.get(RESULT + task_id)
    if raw is not None:
        record = decode_result(raw)
        drop_result(core, shard, group, task_id, record.queue, record.tenant)
    seq = core.next_seq(now_us)
    key = bucket.ready_prefixes[9 - task.priority] + seq.to_bytes(8, "big") + task_id
    group.ops.append((MOVED + task_id, encode_moved(Moved(0, key))))
    # Whoever redrives wants it to run: its TTL, counted from the enqueue, no longer applies.
    row = IndexRow(MOVED_ROW, task.priority, 0, place.row.record_bytes, 0, b"")
    core.put_ready(group, bucket, 9 - task.priority, key, task_id, row)
    return None


async def redrive(core: Core, lanes: Sequence[Lane], ids: Sequence[TaskId] | None) -> int:
    """See ``Queue.redrive``."""
    if ids is not None:
        return await _redrive_ids(core, lanes, ids)
    count = 0
    for lane in lanes:
        for bucket in [b for b in lane.buckets if b is not None]:
            shard = bucket.shard
            prefix = bucket.prefix + DEAD
            lower: bytes | None = prefix
            while lower is not None:
                if not shard.co.has_room:
                    await core.room(shard)
                rows, lower = shard.overlay.scan(lower, prefix_end(prefix), SLICE)
                group = shard.co.begin(len(rows) * 256)
                for key, _ in rows:
                    place = locate(core, shard, key[-16:])
                    if place is not None and place.kind == DEAD:
                        count += _redrive_one(core, group, place) is None
                await shard.co.wait(group)
                core.check()
    return count


async def _redrive_ids(core: Core, lanes: Sequence[Lane], ids: Sequence[TaskId]) -> int:
    """Named tasks: all that can be are; the first that cannot be is then reported."""
    problem: DuplicateTaskError | TaskNotFoundError | None = None
    count = 0
    for task_id in ids:
        shard = core.shard_of(task_id)
        if not shard.co.has_room:
            await core.room(shard)
        place = locate(core, shard, task_id)
        if place is None or place.kind != DEAD or place.bucket.lane not in lanes:
            problem = problem or TaskNotFoundError(
                f"{task_id} is not a dead letter of this queue", task_id=task_id
            )
            continue
        group = shard.co.begin()
        rival = _redrive_one(core, group, place)
        await shard.co.wait(group)
        core.check()
        if rival is not None:
            problem = problem or DuplicateTaskError(
                f"{task_id} cannot be redriven: its dedup key is held by {TaskId(rival)}",
                task_id=rival,
            )
        else:
            count += 1
    if problem is not None:
        raise problem
    return count


# -- purge -----------------------------------------------------------------------------


async def purge(core: Core, lanes: Sequence[Lane], state: str | None) -> int:
    """See ``Queue.purge``."""
    if state is not None and state not in PURGE_STATES:
        raise UsageError(f"state {state!r} is not one of {', '.join(PURGE_STATES)}, or None")
    count = 0
    for lane in lanes:
        for bucket in [b for b in lane.buckets if b is not None]:
            for name, kind in PURGE_STATES.items():
                if state in (None, name):
                    count += await _purge_range(core, bucket.shard, bucket.prefix + kind)
    return count


async def _purge_range(core: Core, shard: Shard, prefix: bytes) -> int:
    count = 0
    lower: bytes | None = prefix
    while lower is not None:
        if not shard.co.has_room:
            await core.room(shard)
        rows, lower = shard.overlay.scan(lower, prefix_end(prefix), SLICE)
        group = shard.co.begin(len(rows) * 256)
        for key, _ in rows:
            place = locate(core, shard, key[-16:])
            task = read_task(shard, key[-16:])
            if place is None or task is None or place.key != key:
                continue
            end_at(
                core, group, place, task, None if place.kind == DEAD else Status.CANCELLED,
                error="purged", retention_ms=decode_policy(task.policy).retention_ms,
            )  # fmt: skip
            count += 1
        await shard.co.wait(group)
        await core.spawner.checkpoint()
        core.check()
    return count


# -- pause -----------------------------------------------------------------------------


async def pause(core: Core, queue: bytes, tenant: bytes | None) -> None:
    """See ``Queue.pause``."""
    await _write_pause(core, queue, tenant, encode_pause(core.clock.wall_us()))


async def resume(core: Core, queue: bytes, tenant: bytes | None) -> None:
    """See ``Queue.resume``."""
    await _write_pause(core, queue, tenant, None)


async def _write_pause(core: Core, queue: bytes, tenant: bytes | None, value: bytes | None) -> None:
    shard = core.shards[0]
    if not shard.co.has_room:
        await core.room(shard)
    group = shard.co.begin()
    set_pause(core, queue, tenant, is_paused=value is not None)
    mark = ALL_TENANTS_MARK if tenant is None else tenant
    group.ops.append((pause_key(queue, mark), value))
    await shard.co.wait(group)


def set_pause(core: Core, queue: bytes, tenant: bytes | None, *, is_paused: bool) -> None:
    """The memory side; also what open calls for every pause row."""
    lane = core.lane(queue, tenant if tenant is not None else b"")
    if tenant is None:
        lane.topic.is_paused = is_paused
    else:
        lane.is_paused = is_paused
    if not is_paused:
        for other in lane.topic.lanes.values():
            if other.ready:
                core.waiters.note(other)
