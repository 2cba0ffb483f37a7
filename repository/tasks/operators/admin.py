"""Operators' calls: cancel, redrive, purge, pause.

Those for a whole queue go through it in slices; ``PacedGroups`` decides how many tasks share a
commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

from ....coalescer.group import Group
from ....engine.records.events import REDRIVEN
from ....engine.records.frame import attempt
from ....engine.records.keyspace import (
    ALL_TENANTS_MARK,
    DEAD,
    DELAYED,
    GHOST,
    ID_AT,
    MOVED,
    READY,
    RESULT,
    SEQ_AT,
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
from ....engine.values import spelled
from ....errors import (
    CorruptionError,
    DuplicateTaskError,
    LodeqError,
    RecordCorruptError,
    TaskNotFoundError,
    UsageError,
)
from ...model.tally import Tally
from ...state.engine_state import EngineState
from ...state.events import emit
from ...state.pages import Pages, find_floor
from ...state.queue_state import Shard, ShardQueue, TenantQueue
from ...state.rows.dedup_entries import is_old_entry
from ...state.rows.task_location import (
    TaskLocation,
    drop_result,
    read_task,
    task_location,
)
from ...state.shard_scope import is_meant, shard_queues_meant
from ...state.turns import PacedGroups, Turns
from ..enqueue import ghost_owner
from ..task_end import end_task, finish

Renew = Callable[[TaskRecord], bytes]  # returns the new policy (32 bytes) of a redriven task

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
# Kind of index row for each state. Waiting tasks share kind ``d`` with delayed ones, and sort
# behind them. A purge of everything keeps this order, so a task that becomes ready meanwhile is
# still met.
PURGE_STATES = {"delayed": DELAYED, "waiting": DELAYED, "ready": READY, "dead": DEAD}


# -- cancel ----------------------------------------------------------------------------


async def cancel(state: EngineState, task_id: TaskId) -> bool:
    """See ``Engine.cancel``."""
    shard = state.shard_of(task_id)
    if not shard.coalescer.has_capacity:
        await state.backpressure(shard)
    if not shard.coalescer.takes_writes:
        # Raises. A shard that takes no writes cannot know that the task does not exist.
        shard.coalescer.begin()
    lease = state.leases.get(task_id)
    if lease is not None:
        state.check_inherited(lease)
        group = shard.coalescer.begin()
        with group:
            finish(state, group, lease, Status.CANCELLED, error=b"cancelled")
        await shard.coalescer.wait(group)
        return True
    location = task_location(state, shard, task_id)
    if location is None or location.kind == DEAD:
        await state.commit_barrier(shard)
        return False
    group = shard.coalescer.begin()
    with group:
        end_task(state, group, location, Status.CANCELLED, "cancelled")
    await shard.coalescer.wait(group)
    return True


async def cancel_all(
    state: EngineState, tenant_queues: Sequence[TenantQueue], is_leased: bool
) -> int:
    """See ``Queue.cancel_all``."""
    with Tally() as tally:
        if is_leased:
            await _cancel_leased(state, set(tenant_queues), tally)
        return await _all(
            state, tenant_queues, (DELAYED, READY), partial(_cancel_one, state), tally=tally
        )


def _cancel_one(state: EngineState, group: Group, location: TaskLocation) -> bool:
    end_task(state, group, location, Status.CANCELLED, "cancelled")
    return True


async def _cancel_leased(state: EngineState, tenant_queues: set[TenantQueue], tally: Tally) -> None:
    turns = Turns(state)
    there = list(state.leases.values())
    for start in range(0, len(there), SLICE):
        part = [
            lease
            for lease in there[start : start + SLICE]
            if lease.shard_queue.tenant_queue in tenant_queues and is_meant(lease.shard_queue.shard)
        ]
        for shard in {lease.shard_queue.shard: None for lease in part}:
            if not shard.coalescer.has_capacity:
                await state.backpressure(shard)
            async with PacedGroups(state, shard, tally) as groups:
                for lease in part:
                    if lease.shard_queue.shard is not shard:
                        continue
                    group = await groups.group()
                    if state.leases.get(lease.task_id) is lease:
                        state.check_inherited(lease)
                        with group:
                            finish(state, group, lease, Status.CANCELLED, error=b"cancelled")
                        groups.changed()
        if turns.is_over:
            await turns.give_now()
            state.check()


# -- in slices --------------------------------------------------------------------------


class _Range(NamedTuple):
    """The index rows of one shard queue at the time of a call; rows added later are left out.

    ``last``: the latest seq (of a dead row: the moment of dying) that is meant, as in the key.
    ``rows``: at most so many are meant, so an end is reached whatever others add meanwhile.
    """

    shard_queue: ShardQueue
    lower: bytes
    upper: bytes
    last: bytes
    rows: int


async def _all(
    state: EngineState,
    tenant_queues: Sequence[TenantQueue],
    kinds: Sequence[bytes],
    act: Callable[[Group, TaskLocation], bool],
    *,
    tally: Tally,
    delayed: str = "",
) -> int:
    """Call ``act`` on every task of these kinds that is there now. Returns how many were changed.

    Args:
        state: of the engine.
        tenant_queues: whose tasks.
        kinds: of their rows.
        act: whether it did something.
        tally: of the call; what it has already is returned, too.
        delayed: of the delayed rows only those in this state, ``delayed`` or ``waiting``.
    """
    turns = Turns(state)
    now_ms = state.clock.wall_us() // 1000
    takes = DELAYED in kinds and delayed != "delayed"
    taker = _Taker(state, tenant_queues if takes else (), act)
    state.flows.takers.append(taker)
    try:
        with state.key_limits.held() if READY in kinds and not takes else nullcontext():
            for found in _ranges(state, tenant_queues, kinds, state.seq, now_ms, delayed):
                await _each(state, found, act, tally)
                if turns.is_over:
                    await turns.give_now()
                    state.check()
    finally:
        state.flows.takers.remove(taker)
    count = tally.count + taker.count
    if not count:  # nothing was written: check that this process still leads before it answers 0
        for shard in state.shards:
            shard.coalescer.check_session()
    return count


class _Taker:
    """Calls ``act`` on a waiting task at the moment when it would be released or cancelled.

    Otherwise it would become ready behind the rows already visited, and be missed.
    """

    def __init__(
        self,
        state: EngineState,
        tenant_queues: Sequence[TenantQueue],
        act: Callable[[Group, TaskLocation], bool],
    ) -> None:
        self._state, self._act = state, act
        self._meant, self._last = set(tenant_queues), state.seq.to_bytes(8, "big")
        self.count = 0

    def __call__(self, group: Group, shard_queue: ShardQueue, key: bytes) -> bool:
        if shard_queue.tenant_queue not in self._meant or key[SEQ_AT:ID_AT] > self._last:
            return False
        location = task_location(self._state, shard_queue.shard, key[ID_AT:])
        if location is None or not is_meant(shard_queue.shard) or not self._act(group, location):
            return False
        self.count += 1
        return True


def _ranges(
    state: EngineState,
    tenant_queues: Sequence[TenantQueue],
    kinds: Sequence[bytes],
    last_seq: int,
    now_ms: int,
    delayed: str = "",
) -> Iterator[_Range]:
    """Ranges of the rows that existed at the call; the size of each is read when it is reached."""
    seq = last_seq.to_bytes(8, "big")
    for tenant_queue in tenant_queues:
        for shard_queue in shard_queues_meant(tenant_queue.shard_queues):
            for kind in kinds:
                lower = shard_queue.prefix + kind
                upper = prefix_end(lower)
                if kind == READY:
                    for start in shard_queue.ready_prefixes:
                        end = start + seq + b"\xff" * 17
                        yield _Range(shard_queue, start, end, seq, shard_queue.ready)
                elif kind == DELAYED:
                    held, rows = lower + HELD_MS.to_bytes(8, "big"), shard_queue.delayed
                    if delayed == "waiting":
                        lower, rows = held, shard_queue.waiting
                    elif delayed:
                        upper, rows = held, rows - shard_queue.waiting
                    yield _Range(shard_queue, lower, upper, seq, rows)
                else:
                    last = now_ms.to_bytes(8, "big")
                    try:
                        key = (
                            shard_queue.shard.overlay.last_key(lower, upper)
                            if shard_queue.dead
                            else None
                        )
                    except CorruptionError:  # bound by the time alone
                        key = None
                    if key is not None:  # dated after now if the clock was set back
                        last = max(last, key[SEQ_AT:ID_AT])
                    yield _Range(shard_queue, lower, upper, last, shard_queue.dead)


def _location_of_row(
    state: EngineState, shard_queue: ShardQueue, key: bytes, raw: bytes
) -> TaskLocation | None:
    """Location of a scanned row, from the row alone where nothing else can be read."""
    task_id = key[ID_AT:]
    if task_id in state.leases:
        return None
    try:
        location = task_location(state, shard_queue.shard, task_id)
    except CorruptionError:
        location = None
    if location is not None:
        return location if location.key == key else None
    if not shard_queue.shard.overlay.has(key):  # an earlier end in this slice ended this task too
        return None
    row = attempt(decode_index_row, raw) or IndexRow(MOVED_ROW, 0, 0, 0, 0, b"")
    at, tenant_queue = len(shard_queue.prefix), shard_queue.tenant_queue
    # Leadership may have changed since the range was noted, so look the shard queue up again.
    shard_queue = state.tenant_queue(tenant_queue.queue, tenant_queue.tenant).shard_queue(
        shard_queue.shard
    )
    return TaskLocation(task_id, shard_queue, key[at : at + 1], key, row, True)


async def _each(
    state: EngineState, found: _Range, act: Callable[[Group, TaskLocation], bool], tally: Tally
) -> None:
    """Call ``act`` on every task of the range, slice by slice; ``tally`` gets what it changed."""
    left, shard = found.rows, found.shard_queue.shard
    at = len(found.shard_queue.prefix)
    lower, kind = found.lower, found.lower[at : at + 1]
    if left > 0 and kind in (DELAYED, DEAD):
        lower = max(lower, await find_floor(state, found.shard_queue, kind))
    elif left > 0:
        # Start at the first ready row that the caches know of.
        lower = max(lower, min(found.upper, found.shard_queue.floor(READY)))
    pages = Pages(state, shard, lower, found.upper, SLICE, for_writing=True)
    groups = PacedGroups(state, shard, tally)
    while left > 0 and (rows := await pages.following()):
        meant = [row for row in rows if row[0][SEQ_AT:ID_AT] <= found.last][:left]
        left -= len(meant)
        if meant:
            await _act_on(state, groups, found.shard_queue, meant, act)
    if left < found.rows:  # no pause for an empty range: nine of ten priorities may be empty
        await state.spawner.checkpoint()
        state.check()


async def _act_on(
    state: EngineState,
    groups: PacedGroups,
    shard_queue: ShardQueue,
    rows: Sequence[tuple[bytes, bytes]],
    act: Callable[[Group, TaskLocation], bool],
) -> None:
    """Call ``act`` on the tasks of these rows."""
    async with groups:
        for key, raw in rows:
            group = await groups.group()
            location = _location_of_row(state, shard_queue, key, raw)
            with group:
                if location is not None and act(group, location):
                    groups.changed()


# -- redrive ---------------------------------------------------------------------------


def _holder(
    state: EngineState, shard: Shard, task_id: bytes, ghost: bytes, now_ms: int
) -> bytes | None:
    """Id of another task that holds the task's dedup key, or None."""
    raw = shard.overlay.get(GHOST + ghost) if ghost != NO_GHOST else None
    if raw is None:
        return None
    held = decode_ghost(raw)
    if held.task_id == task_id:
        return None
    return ghost_owner(state, shard, held, now_ms)


def redrive_one(
    state: EngineState,
    group: Group,
    location: TaskLocation,
    *,
    is_held: bool = False,
    renew: Renew | None = None,
) -> LodeqError | None:
    """Put a dead task back to the tail with a fresh set of attempts; or say why that cannot be.

    Args:
        group: of the task's shard; gets the rows.
        location: of a dead task.
        is_held: make it waiting instead of ready; its join releases it.
        renew: returns the policy it is to have from now on; None keeps that of its record.
    """
    shard, task_id = location.shard_queue.shard, location.task_id
    now_us = state.clock.wall_us()
    # Every read that can fail comes before the first operation that is queued.
    try:
        task = read_task(shard, task_id)
        ghost = task.ghost if task is not None else NO_GHOST
        rival = _holder(state, shard, task_id, ghost, now_us // 1000)
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
    shard_queue, priority = location.shard_queue, location.row.priority
    seq = state.next_seq(now_us)
    if is_held:
        key = delayed_key(shard_queue.prefix, HELD_MS, seq, task_id)
    else:
        key = shard_queue.ready_key(shard_queue.ready_prefixes[9 - priority], seq, task_id)
    moved = encode_moved(Moved(0, key))
    own_ghost = encode_ghost(Ghost(task_id, task.ghost_expires_ms, task.ghost_form))
    stored = task
    drops_ghost = task.ghost_form == OLD_FORM and not is_old_entry(shard, task.ghost)
    if drops_ghost:
        # Another task has taken its key under the new hash, or the key has expired. Which of the
        # two cannot be told, so drop it.
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
    emit(group, REDRIVEN, shard_queue, task_id, priority, 0, now_us)
    if is_held:
        state.put_delayed(group, shard_queue, key, HELD_MS, encode_index_row(row))
    else:
        state.put_ready(group, shard_queue, 9 - priority, key, task_id, row)
    group.ops += ((location.key, None), (MOVED + task_id, moved))
    shard_queue.dead -= 1
    if record is not None:
        group.ops.append((TASK + task_id, record))
    if not drops_ghost and task.ghost != NO_GHOST:
        shard.put_dedup(group, task.ghost, own_ghost)
        if task.ghost_expires_ms:
            state.file_expiry(shard, group, task.ghost_expires_ms, b"g" + task.ghost)
    if result is not None:
        drop_result(state, shard, group, task_id, result.queue, result.tenant)
    elif has_result:  # damaged; its counter is that of the task's own queue
        drop_result(
            state,
            shard,
            group,
            task_id,
            shard_queue.tenant_queue.queue,
            shard_queue.tenant_queue.tenant,
        )
    if row.flags & MEMBER_ROW:
        state.flows.redriven(group, shard, task_id)
    return None


async def redrive(
    state: EngineState,
    tenant_queues: Sequence[TenantQueue],
    ids: Sequence[TaskId] | None,
    renew: Renew | None = None,
) -> int:
    """See ``Queue.redrive``.

    Args:
        state: the engine's state.
        tenant_queues: the queue's.
        ids: None for all.
        renew: as ``redrive_one``.
    """
    if ids is not None:
        return await _redrive_ids(state, tenant_queues, ids, renew)
    with Tally() as tally:
        return await _all(
            state,
            tenant_queues,
            [DEAD],
            lambda group, location: redrive_one(state, group, location, renew=renew) is None,
            tally=tally,
        )


async def _redrive_ids(
    state: EngineState,
    tenant_queues: Sequence[TenantQueue],
    ids: Sequence[TaskId],
    renew: Renew | None,
) -> int:
    """Redrive every named task that can be redriven, then raise the first error."""
    problem: LodeqError | None = None
    with Tally() as tally:
        for task_id in ids:
            shard = state.shard_of(task_id)
            if not shard.coalescer.has_capacity:
                await state.backpressure(shard)
            try:
                location = task_location(state, shard, task_id)
            except CorruptionError as error:
                problem = problem or error
                continue
            if (
                location is None
                or location.kind != DEAD
                or location.shard_queue.tenant_queue not in tenant_queues
            ):
                problem = problem or TaskNotFoundError(
                    f"{task_id} is not a dead letter of this queue", task_id=task_id
                )
                continue
            group = shard.coalescer.begin()
            with group:
                queued = len(group.ops)
                refusal = redrive_one(state, group, location, renew=renew)
                group.count_from(queued)  # a record with another policy is written anew, whole
            await shard.coalescer.wait(group)
            state.check()
            problem = problem or refusal
            tally.count += refusal is None
        if problem is not None:
            raise problem
    return tally.count


# -- purge -----------------------------------------------------------------------------


async def purge(
    state: EngineState, tenant_queues: Sequence[TenantQueue], task_state: str | None
) -> int:
    """See ``Queue.purge``."""
    if task_state is not None and (
        not isinstance(task_state, str) or task_state not in PURGE_STATES
    ):
        raise UsageError(
            f"state {spelled(task_state)} is not one of {', '.join(PURGE_STATES)}, or None"
        )
    if task_state is None:
        kinds, delayed = list(dict.fromkeys(PURGE_STATES.values())), ""
    else:
        kinds, delayed = [PURGE_STATES[task_state]], task_state

    def act(group: Group, location: TaskLocation) -> bool:
        return _purge_one(state, group, location)

    with Tally() as tally:
        return await _all(state, tenant_queues, kinds, act, tally=tally, delayed=delayed)


def _purge_one(state: EngineState, group: Group, location: TaskLocation) -> bool:
    end_task(state, group, location, None if location.kind == DEAD else Status.CANCELLED, "purged")
    return True


# -- pause -----------------------------------------------------------------------------

_PAUSES = 256  # tenants whose pause is written in one batch


async def pause(state: EngineState, queue: bytes, tenant: bytes | None) -> None:
    """See ``Queue.pause``."""
    await _write_pauses(state, queue, [tenant], encode_pause(state.clock.wall_us()))


async def resume(state: EngineState, queue: bytes, tenant: bytes | None) -> bool:
    """See ``Queue.resume``."""
    queue_state = state.queue_states.get(queue)
    whom = [tenant]
    if queue_state is not None and tenant is None:
        whom += sorted(queue_state.paused)
    elif queue_state is not None and not tenant and queue_state.is_paused:
        whom.append(None)
    for at in range(0, len(whom), _PAUSES):  # there may be a hundred thousand tenants
        await _write_pauses(state, queue, whom[at : at + _PAUSES], None)
    queue_state = state.queue_states.get(queue)
    return queue_state is None or not queue_state.is_paused


async def _write_pauses(
    state: EngineState, queue: bytes, whom: Sequence[bytes | None], value: bytes | None
) -> None:
    shard = state.first
    if not shard.coalescer.has_capacity:
        await state.backpressure(shard)
    group = shard.coalescer.begin()
    for tenant in whom:
        state.set_pause(queue, tenant, is_paused=value is not None)
        group.ops.append((pause_key(queue, ALL_TENANTS_MARK if tenant is None else tenant), value))
    await shard.coalescer.wait(group)
