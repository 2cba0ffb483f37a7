"""Rebuilds the state in memory from rows: counters, leases, and the deadlines of first rows.

Open does it for every shard, a replica for each shard that it comes to lead. It costs O(queues +
live leases); the backlog stays on disk.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from operator import itemgetter

from ...coalescer.group import Group
from ...engine.records.frame import attempt
from ...engine.records.keyspace import (
    DELAYED,
    DUE_AT,
    EXPIRY,
    EXPIRY_END,
    LEASE,
    LEASE_END,
    PROGRESS,
    PROGRESS_END,
    READY,
    ROW_ID,
    SEQ_AT,
    TASK,
    dead_key,
    decode_expiry_key,
    expiry_key,
    prefix_end,
    ready_key,
)
from ...engine.records.lease import (
    DEAD_LEASE,
    EXPORTED,
    RESTARTED,
    LeaseRecord,
    decode_lease,
    encode_lease,
    ending_at,
    ends_us,
)
from ...engine.records.progress import ProgressRecord, decode_progress
from ...engine.records.task import TIMES, decode_task
from ...engine.runtime.task_id import TaskId
from ..state import pages
from ..state.engine_state import EngineState
from ..state.pages import row_parts
from ..state.queue_state import Shard, ShardQueue
from ..state.turns import in_slices
from ..tasks.lease import Lease, restored
from .reaper import reap

__all__ = [
    "Noted",
    "deadline_slices",
    "lease_slices",
    "load_deadlines",
    "load_leases",
    "note_leases",
]

Noted = tuple[int, bytes, Shard]  # (seq, task id, shard) of a lease that goes back


def note_leases(
    state: EngineState, shard: Shard, noted: list[Noted], was_left: bool | None = None
) -> Generator[None, None, None]:
    """Read the leases of the previous process: exported ones go on, others are noted.

    An exported one goes on until its end, and is noted if that has passed. If the previous process
    may have extended it, and has not said so, it starts again in full.

    Of each only what orders them is kept: there may be many. Yields after each page.

    Args:
        state: the engine's state.
        shard: whose leases; it takes writes, or ``was_left`` is None.
        noted: takes those that go back.
        was_left: whether the previous process has not closed the store. None: another replica led
            the shard, and may have extended its leases until now.
    """
    for rows in row_parts(shard, LEASE, LEASE_END):
        for key, raw in rows:
            record = decode_lease(raw)
            if not record.flags & EXPORTED:
                noted.append((record.seq, key[ROW_ID], shard))
            elif was_left is None:
                _restore(state, shard, key[ROW_ID], record)
            elif was_left and not record.flags & RESTARTED:
                record = record._replace(flags=record.flags | RESTARTED)
                until_us = state.clock.wall_us() + record.lease_ms * 1000
                again = encode_lease(ending_at(record, until_us))
                shard.coalescer.begin(len(again) + 64).ops.append((key, again))
                _restore(state, shard, key[ROW_ID], record)
            elif (left_s := _left_s(state, record)) > 0:
                _restore(state, shard, key[ROW_ID], record, left_s)
            else:
                noted.append((record.seq, key[ROW_ID], shard))
        yield
    yield from _note_progress(state, shard)


def _left_s(state: EngineState, record: LeaseRecord) -> float:
    """How long an exported lease still lasts: never longer than it was given.

    So it ends in that time at the latest, wherever the wall clock was set meanwhile.
    """
    left_us = ends_us(record) - state.clock.wall_us()
    return min(left_us / 1e6, record.lease_ms / 1000)


def _note_progress(state: EngineState, shard: Shard) -> Generator[None, None, None]:
    """Read the progress rows; those of leases that go back go with them."""
    for rows in row_parts(shard, PROGRESS, PROGRESS_END):
        for key, raw in rows:
            record = attempt(decode_progress, raw)
            # A damaged one is dropped in its turn.
            state.progress[key[ROW_ID]] = record or ProgressRecord(0, None, b"")
        if rows:
            yield


def lease_slices(state: EngineState, noted: list[Noted]) -> Iterator[dict[Shard, Group]]:
    """Give noted leases back, in the order in which their tasks became ready.

    Every step is an atomic section that queues one group per shard; await them before the next.
    """
    noted.sort(key=itemgetter(0, 1))
    for start in range(0, len(noted), pages.SLICE):
        groups: dict[Shard, Group] = {}
        for _, raw_id, shard in noted[start : start + pages.SLICE]:
            raw = shard.store.get(LEASE + raw_id)
            if raw is None:
                continue
            if shard not in groups:
                groups[shard] = shard.coalescer.begin(pages.SLICE * 256)
            record = decode_lease(raw)
            lease = _restore(state, shard, raw_id, record)
            if shard.inherits_mono > lease.granted_mono:
                continue  # the leader before may still extend it
            with groups[shard]:
                is_over = record.flags & EXPORTED
                reap(state, groups[shard], lease, b"lease expired" if is_over else b"process died")
        yield groups


async def load_leases(state: EngineState, noted: list[Noted]) -> None:
    """Run all of ``lease_slices`` at open, when nobody else uses the engine yet."""
    for groups in lease_slices(state, noted):
        for future in [shard.coalescer.wait(group) for shard, group in groups.items()]:
            await future


def _restore(
    state: EngineState, shard: Shard, raw_id: bytes, r: LeaseRecord, left_s: float | None = None
) -> Lease:
    """Make a lease of its row; ``left_s``: how long it lasts, None: in full."""
    shard_queue: ShardQueue = state.tenant_queue(r.queue, r.tenant).shard_queue(shard)
    task = attempt(decode_task, shard.overlay.get_sound(TASK + raw_id))

    def fill(lease: Lease) -> None:
        lease.task_id = TaskId(raw_id)
        lease.key = ready_key(shard_queue.prefix, r.priority, r.seq, raw_id)
        if r.flags & DEAD_LEASE:
            lease.key = dead_key(shard_queue.prefix, r.seq // 1000, raw_id)
            lease.dead_row = r.dead_row
        lease.attempt, lease.priority, lease.flags = r.attempts, r.priority, r.flags
        lease.epoch, lease.token, lease.worker = r.epoch, r.token, r.worker
        lease.lease_s = r.lease_ms / 1000
        lease.granted_mono = state.clock.mono()
        deadline = lease.granted_mono + (lease.lease_s if left_s is None else left_s)
        until = shard.inherits_mono
        if until > lease.granted_mono:
            deadline = max(deadline, until) if r.flags & EXPORTED else until
        lease.deadline_mono = deadline
        lease.leased_us, lease.expires_ms = r.leased_us, r.expires_ms
        lease.times = TIMES.pack(r.created_us, r.seq)
        lease.packed_policy = r.policy
        lease.ghost, lease.ghost_expires_ms = r.ghost, r.ghost_expires_ms
        lease.record_bytes = r.record_bytes
        lease.face = task.face if task is not None else b""
        is_run = not r.flags & DEAD_LEASE
        lease.runs = state.function_counts.of(r.queue, lease.face) if is_run else None

    lease = restored(state, shard_queue, fill)
    state.leases[lease.task_id] = lease
    if state.has_limits:
        state.queue_limits.restored(lease)
        state.key_limits.restored(lease)
    if left_s is None:
        state.deadlines.watch([lease])
    else:
        state.deadlines.rewatch(lease)
    return lease


def deadline_slices(state: EngineState, shard: Shard) -> Generator[None, None, None]:
    """Find the first row of each shard queue's ranges, and the first expiry row.

    This passes over deleted rows in front of them, once, so that no claim has to. Yields after each
    tenant, too: each costs a seek or two, and there may be 100,000.
    """
    has_waiting = False
    for queue_state in list(state.queue_states.values()):
        for tenant_queue in list(queue_state.tenant_queues.values()):
            yield
            shard_queue = tenant_queue.shard_queues[shard.index]
            if shard_queue is None:
                continue
            has_waiting = has_waiting or shard_queue.waiting > 0
            if shard_queue.delayed:
                prefix = shard_queue.prefix + DELAYED
                row = yield from _first(shard, prefix, prefix_end(prefix))
                if row is not None:
                    shard_queue.delayed_head = row[0]
                    state.deadlines.note_due(
                        shard_queue, int.from_bytes(row[0][DUE_AT:SEQ_AT], "big")
                    )
            if shard_queue.ready:
                prefix = shard_queue.prefix + READY
                row = yield from _first(shard, prefix, prefix_end(prefix))
                if row is not None:
                    shard_queue.begin_at(row[0])
    state.flows.load(shard)
    row = yield from _first(shard, EXPIRY, EXPIRY_END)
    if row is not None:
        # The open group may hold an earlier one, which is not a row yet.
        shard.expiry_head = min(row[0], expiry_key(shard.coalescer.open_expiry_ms(), 0))
        shard.next_expiry_ms = min(shard.next_expiry_ms, decode_expiry_key(row[0])[0])
        state.deadlines.note_expiry()
    if has_waiting:  # last: a pass of the reaper in between would find no shard that takes writes
        state.key_limits.sweep_shard(shard)


async def load_deadlines(state: EngineState, shard: Shard) -> None:
    """Run all of ``deadline_slices`` at open, when nobody else uses the engine yet."""
    await in_slices(state, deadline_slices(state, shard))


def _first(
    shard: Shard, lower: bytes, upper: bytes
) -> Generator[None, None, tuple[bytes, bytes] | None]:
    """The first row of a range, queued or on disk; yields while it passes deleted ones."""
    at: bytes | None = lower
    while at is not None:
        rows, at = shard.overlay.scan_readable(at, upper, 1)
        if rows:
            return rows[0]
        yield
    return None
