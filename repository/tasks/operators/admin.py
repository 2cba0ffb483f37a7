"""Operators' calls: cancel, redrive, purge, pause. Each works in slices, one batch a slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from ....coalescer.group import Group
from ....engine.records.events import REDRIVEN
from ....engine.records.frame import attempt
from ....engine.records.keyspace import (
    ALL_TENANTS_MARK,
    DEAD,
    DELAYED,
    GHOST,
    MOVED,
    READY,
    RESULT,
    TASK,
    delayed_key,
    pause_key,
    prefix_end,
)
from ....engine.records.result import Status, decode_result
from ....engine.records.rows import (
    BODY_ROW,
    MOVED_ROW,
    OLD_FORM,
    Ghost,
    IndexRow,
    Moved,
    decode_ghost,
    decode_index_row,
    encode_ghost,
    encode_index_row,
    encode_moved,
    encode_pause,
)
from ....engine.records.task import NO_GHOST, TaskRecord, encode_task
from ....engine.records.workflow import HELD_MS, MEMBER_ROW
from ....engine.runtime.task_id import TaskId
from ....errors import (
    CorruptionError,
    DuplicateTaskError,
    LodeqError,
    RecordCorruptError,
    TaskNotFoundError,
    UsageError,
)
from ...state.engine_state import EngineState
from ...state.events import emit
from ...state.pages import Pages, find_floor
from ...state.queue_state import Shard, ShardQueue, TenantQueue
from ...state.rows.dedup_entries import is_old_entry
from ...state.rows.task_location import (
    TaskLocation,
    drop_result,
    is_alive,
    read_task,
    task_location,
)
from ...state.shard_scope import buckets_meant, is_meant
from ...state.turns import Turns
from ..task_end import end_task, finish

Renew = Callable[[TaskRecord], bytes]  # the policy of a task that is redriven

__all__ = [
    "Renew",
    "cancel",
    "cancel_all",
    "pause",
    "purge",
    "redrive",
    "redrive_one",
    "resume",
]

SLICE = 128
BATCH_BYTES_MAX: Final = 256 << 10  # a redrive may write whole records: then fewer share a batch
# A state, and of which rows: those of ``d`` that wait for tasks are behind the others.
# A purge of all goes through them in this order: what becomes ready meanwhile is met after that.
PURGE_STATES = {"delayed": DELAYED, "waiting": DELAYED, "ready": READY, "dead": DEAD}


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
        core.check_inherited(lease)
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


async def cancel_all(core: EngineState, lanes: Sequence[TenantQueue], is_leased: bool) -> int:
    """See ``Queue.cancel_all``."""
    count = await _cancel_leased(core, set(lanes)) if is_leased else 0
    return count + await _all(core, lanes, (DELAYED, READY), partial(_cancel_one, core))


def _cancel_one(core: EngineState, group: Group, location: TaskLocation) -> bool:
    end_task(core, group, location, Status.CANCELLED, "cancelled")
    return True


async def _cancel_leased(core: EngineState, lanes: set[TenantQueue]) -> int:
    turns, count = Turns(core), 0
    there = list(core.leases.values())
    for start in range(0, len(there), SLICE):
        part = [
            lease
            for lease in there[start : start + SLICE]
            if lease.bucket.lane in lanes and is_meant(lease.bucket.shard)
        ]
        for shard in {lease.bucket.shard: None for lease in part}:
            if not shard.co.has_capacity:
                await core.backpressure(shard)
            # atomic section
            live = [
                lease
                for lease in part
                if lease.bucket.shard is shard and core.leases.get(lease.task_id) is lease
            ]
            for lease in live:
                core.check_inherited(lease)
            if live:
                group = shard.co.begin(len(live) * 512)
                for lease in live:
                    with group:
                        finish(core, group, lease, Status.CANCELLED, error=b"cancelled")
                await shard.co.wait(group)
                count += len(live)
        if turns.is_over:
            await turns.give_now()
            core.check()
    return count


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
    *,
    delayed: str = "",
) -> int:
    """``act`` on every task of these kinds that is there now; how often it did.

    Args:
        core: of the engine.
        lanes: whose tasks.
        kinds: of their rows.
        act: whether it did something.
        delayed: of the delayed rows only those in this state, ``delayed`` or ``waiting``.
    """
    turns = Turns(core)
    count = 0
    now_ms = core.clock.wall_us() // 1000
    takes = DELAYED in kinds and delayed != "delayed"
    taker = _Taker(core, lanes if takes else (), act)
    core.flows.takers.append(taker)
    try:
        for found in _ranges(core, lanes, kinds, core.seq, now_ms, delayed):
            count += await _each(core, found, act)
            if turns.is_over:
                await turns.give_now()
                core.check()
    finally:
        core.flows.takers.remove(taker)
    count += taker.count
    if not count:  # no write shows that it is still for this process to say so
        for shard in core.shards:
            shard.co.check_session()
    return count


class _Taker:
    """``act`` at once on a task that waits now, where an end would let it go or cancel it.

    Else it would be ready behind all that was there at the call, maybe of a tenant already passed.
    """

    def __init__(
        self,
        core: EngineState,
        lanes: Sequence[TenantQueue],
        act: Callable[[Group, TaskLocation], bool],
    ) -> None:
        self._core, self._act = core, act
        self._meant, self._last = set(lanes), core.seq.to_bytes(8, "big")
        self.count = 0

    def __call__(self, group: Group, bucket: ShardQueue, key: bytes) -> bool:
        if bucket.lane not in self._meant or key[-24:-16] > self._last:
            return False
        location = task_location(self._core, bucket.shard, key[-16:])
        if location is None or not is_meant(bucket.shard) or not self._act(group, location):
            return False
        self.count += 1
        return True


def _ranges(
    core: EngineState,
    lanes: Sequence[TenantQueue],
    kinds: Sequence[bytes],
    last_seq: int,
    now_ms: int,
    delayed: str = "",
) -> Iterator[_Range]:
    """Ranges of the rows that existed at ``now_ms``; each as of when it is asked for."""
    seq = last_seq.to_bytes(8, "big")
    for lane in lanes:
        for bucket in buckets_meant(lane.buckets):
            for kind in kinds:
                lower = bucket.prefix + kind
                upper = prefix_end(lower)
                if kind == READY:
                    for start in bucket.ready_prefixes:
                        end = start + seq + b"\xff" * 17
                        yield _Range(bucket, start, end, seq, bucket.ready)
                elif kind == DELAYED:
                    held, rows = lower + HELD_MS.to_bytes(8, "big"), bucket.delayed
                    if delayed == "waiting":
                        lower, rows = held, bucket.waiting
                    elif delayed:
                        upper, rows = held, rows - bucket.waiting
                    yield _Range(bucket, lower, upper, seq, rows)
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
    if not bucket.shard.overlay.has(key):  # an end before it in the slice has ended it as well
        return None
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
    at = len(found.bucket.prefix)
    lower, kind = found.lower, found.lower[at : at + 1]
    if left > 0 and kind in (DELAYED, DEAD):
        lower = max(lower, await find_floor(core, found.bucket, kind))
    elif left > 0:
        lower = max(lower, min(found.upper, found.bucket.floor(READY)))  # as the windows know
    pages = Pages(core, shard, lower, found.upper, SLICE, for_writing=True)
    while left > 0 and (rows := await pages.following()):
        meant = [row for row in rows if row[0][-24:-16] <= found.last][:left]
        left -= len(meant)
        if meant:
            count += await _act_on(core, found.bucket, meant, act)
    if left < found.rows:  # nine of ten priorities may be empty: not a turn of the loop for each
        await core.spawner.checkpoint()
        core.check()
    return count


async def _act_on(
    core: EngineState,
    bucket: ShardQueue,
    rows: Sequence[tuple[bytes, bytes]],
    act: Callable[[Group, TaskLocation], bool],
) -> int:
    """``act`` on the tasks of these rows, in batches of bounded bytes; how often it did."""
    count, size, shard = 0, 0, bucket.shard
    group = shard.co.begin(len(rows) * 256)
    for at, (key, raw) in enumerate(rows):
        if size >= BATCH_BYTES_MAX:
            await shard.co.wait(group)
            core.check()
            group, size = shard.co.begin((len(rows) - at) * 256), 0
        queued = len(group.ops)
        location = _location_of_row(core, bucket, key, raw)
        with group:
            count += location is not None and act(group, location)
        size += group.count_from(queued)
    await shard.co.wait(group)
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


def redrive_one(
    core: EngineState,
    group: Group,
    location: TaskLocation,
    *,
    is_held: bool = False,
    renew: Renew | None = None,
) -> LodeqError | None:
    """Put a dead task back to the tail with a fresh set of attempts; or say why that cannot be.

    Args:
        group: the open group of the task's shard; the rows go into it.
        location: of a dead task.
        is_held: it waits for others instead: its join lets it go.
        renew: returns the policy it is to have from now on; None keeps that of its record.
    """
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
    bucket, priority = location.bucket, location.row.priority
    seq = core.next_seq(now_us)
    if is_held:
        key = delayed_key(bucket.prefix, HELD_MS, seq, task_id)
    else:
        key = bucket.ready_key(bucket.ready_prefixes[9 - priority], seq, task_id)
    moved = encode_moved(Moved(0, key))
    own_ghost = encode_ghost(Ghost(task_id, task.ghost_expires_ms, task.ghost_form))
    stored = task
    drops_ghost = task.ghost_form == OLD_FORM and not is_old_entry(shard, task.ghost)
    if drops_ghost:
        # Its key has been taken under the new hash since, or has lapsed; nobody knows which.
        stored = stored._replace(ghost=NO_GHOST, ghost_expires_ms=0)
    policy = task.policy if renew is None else renew(task)
    if policy != task.policy:
        stored = stored._replace(policy=policy)
    try:
        record = None if stored is task else encode_task(shard.entry_task(task_id, stored))
    except CorruptionError as error:
        return RecordCorruptError(f"{TaskId(task_id)} cannot be redriven: {error}; purge it")
    # Whoever redrives wants it to run: its TTL, counted from the enqueue, no longer applies.
    flags = MOVED_ROW | location.row.flags & (BODY_ROW | MEMBER_ROW)
    row = IndexRow(flags, priority, 0, location.row.record_bytes, 0, b"")
    emit(group, REDRIVEN, bucket, task_id, priority, 0, now_us)
    if is_held:
        core.put_delayed(group, bucket, key, HELD_MS, encode_index_row(row))
    else:
        core.put_ready(group, bucket, 9 - priority, key, task_id, row)
    group.ops += ((location.key, None), (MOVED + task_id, moved))
    bucket.dead -= 1
    if record is not None:
        group.ops.append((TASK + task_id, record))
    if not drops_ghost and task.ghost != NO_GHOST:
        shard.put_dedup(group, task.ghost, own_ghost)
        if task.ghost_expires_ms:
            core.file_expiry(shard, group, task.ghost_expires_ms, b"g" + task.ghost)
    if result is not None:
        drop_result(core, shard, group, task_id, result.queue, result.tenant)
    elif has_result:  # damaged: it was counted where its task is
        drop_result(core, shard, group, task_id, bucket.lane.queue, bucket.lane.tenant)
    if row.flags & MEMBER_ROW:
        core.flows.redriven(group, shard, task_id)
    return None


async def redrive(
    core: EngineState,
    lanes: Sequence[TenantQueue],
    ids: Sequence[TaskId] | None,
    renew: Renew | None = None,
) -> int:
    """See ``Queue.redrive``.

    Args:
        core: the engine's state.
        lanes: the queue's.
        ids: None for all.
        renew: as ``redrive_one``.
    """
    if ids is not None:
        return await _redrive_ids(core, lanes, ids, renew)
    return await _all(
        core,
        lanes,
        [DEAD],
        lambda group, location: redrive_one(core, group, location, renew=renew) is None,
    )


async def _redrive_ids(
    core: EngineState,
    lanes: Sequence[TenantQueue],
    ids: Sequence[TaskId],
    renew: Renew | None,
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
            refusal = redrive_one(core, group, location, renew=renew)
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
    if state is not None and (not isinstance(state, str) or state not in PURGE_STATES):
        raise UsageError(f"state {state!r} is not one of {', '.join(PURGE_STATES)}, or None")
    if state is None:
        kinds, delayed = list(dict.fromkeys(PURGE_STATES.values())), ""
    else:
        kinds, delayed = [PURGE_STATES[state]], state

    def act(group: Group, location: TaskLocation) -> bool:
        return _purge_one(core, group, location)

    return await _all(core, lanes, kinds, act, delayed=delayed)


def _purge_one(core: EngineState, group: Group, location: TaskLocation) -> bool:
    end_task(core, group, location, None if location.kind == DEAD else Status.CANCELLED, "purged")
    return True


# -- pause -----------------------------------------------------------------------------

_PAUSES = 256  # of one batch


async def pause(core: EngineState, queue: bytes, tenant: bytes | None) -> None:
    """See ``Queue.pause``."""
    await _write_pauses(core, queue, [tenant], encode_pause(core.clock.wall_us()))


async def resume(core: EngineState, queue: bytes, tenant: bytes | None) -> bool:
    """See ``Queue.resume``."""
    topic = core.topics.get(queue)
    whom = [tenant]
    if topic is not None and tenant is None:
        whom += sorted(topic.paused)
    elif topic is not None and not tenant and topic.is_paused:
        whom.append(None)
    for at in range(0, len(whom), _PAUSES):  # there may be a hundred thousand tenants
        await _write_pauses(core, queue, whom[at : at + _PAUSES], None)
    topic = core.topics.get(queue)
    return topic is None or not topic.is_paused


async def _write_pauses(
    core: EngineState, queue: bytes, whom: Sequence[bytes | None], value: bytes | None
) -> None:
    shard = core.first
    if not shard.co.has_capacity:
        await core.backpressure(shard)
    group = shard.co.begin()
    for tenant in whom:
        core.set_pause(queue, tenant, is_paused=value is not None)
        group.ops.append((pause_key(queue, ALL_TENANTS_MARK if tenant is None else tenant), value))
    await shard.co.wait(group)
