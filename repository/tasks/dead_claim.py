"""Claim dead letters: ``-q(x) +l``, with a lease that says where the task goes back.

The lease record has the dead row in it. Whatever ends the lease without an answer to the task (a
nack, its expiry, a crash) puts that row back under its key: nothing about the dead letter has
changed. While it is leased, no bound, retention, purge or redrive finds it.

The oldest go first. Pauses and limits of the queue hold back runs, and this is none. A dead letter
whose record cannot be read is passed over: only a purge or ``discard`` ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ...coalescer.group import Group
from ...coalescer.shard_status import STALLED
from ...engine.records.frame import attempt
from ...engine.records.keyspace import DEAD, LEASE, prefix_end
from ...engine.records.lease import DEAD_LEASE, EXPORTED, LeaseRecord, encode_lease
from ...engine.records.rows import IndexRow, decode_index_row
from ...engine.records.task import NO_GHOST, TIMES, lease_fields, record_face
from ...engine.runtime.event_loop import Future
from ...engine.runtime.task_id import TaskId
from ..state.caches.ready_cache import Row
from ..state.engine_state import EngineState
from ..state.lease_state import LeaseState
from ..state.long_polls import ClaimRequest
from ..state.pages import find_floor
from ..state.queue_state import Shard, ShardQueue, TenantQueue
from .claim import committed
from .claim_order import CLAIM_BYTES_MAX, claim_cost
from .record_fetch import checked_records

__all__ = ["DEAD_CLAIM_MAX", "claim_dead"]

DEAD_CLAIM_MAX: Final = 256  # dead letters of one claim: they are taken in one turn of the loop
_PAGES_MAX: Final = 8  # of rows that are looked at, where some cannot be delivered


class _Found(NamedTuple):
    """A dead letter that may be claimed. In order of death."""

    order: bytes  # when it died, and its id
    key: bytes
    raw: bytes
    row: IndexRow
    bucket: ShardQueue


async def claim_dead(core: EngineState, request: ClaimRequest, wait_s: float) -> list[Any]:
    """See ``Queue.claim``: dead letters of one queue and tenant.

    Args:
        core: of the engine.
        request: of one queue and tenant; the leases are of ``core.lease_type``.
        wait_s: seconds for the first of them.
    """
    deadline = core.clock.mono() + wait_s
    while True:
        leases, futures = await _take(core, request)
        if leases:
            return await committed(core, leases, futures)
        left_s = deadline - core.clock.mono()
        if left_s <= 0:
            core.check_empty()
            return []
        core.check_healthy()
        await _woken(core, request, left_s)
        core.check()


async def _woken(core: EngineState, request: ClaimRequest, wait_s: float) -> None:
    """Wait until one has died, or came back, or the time is over."""
    future = core.future()
    key = request.keys[0]
    core.dead_waiters.setdefault(key, []).append(future)

    def time_out() -> None:
        if not future.done():
            future.set_result(False)

    timer = core.clock.call_at(core.spawner, core.clock.mono() + wait_s, time_out)
    try:
        await future
    finally:
        timer.cancel()
        waiting = core.dead_waiters.get(key, [])
        if future in waiting:
            waiting.remove(future)
            if not waiting:
                del core.dead_waiters[key]


async def _take(
    core: EngineState, request: ClaimRequest
) -> tuple[list[LeaseState], list[tuple[Shard, Future]]]:
    queue, tenant = request.keys[0]
    lane = core.find_lane(queue, tenant or b"")
    if lane is None:
        return [], []
    for bucket in _claimable(lane):
        if not bucket.shard.co.has_capacity:
            await core.backpressure(bucket.shard)
        await find_floor(core, bucket, DEAD)
    core.check()
    lane = core.find_lane(queue, tenant or b"")
    if lane is None:
        return [], []
    # atomic section
    leases: list[LeaseState] = []
    groups: dict[Shard, Group] = {}
    most, size = min(request.limit, DEAD_CLAIM_MAX), 0
    for found, record in _found(_claimable(lane), most):
        if leases and size + len(record) > CLAIM_BYTES_MAX:
            break
        shard = found.bucket.shard
        if shard not in groups:
            groups[shard] = shard.co.begin()
        groups[shard].bytes += 600
        with groups[shard]:
            leases.append(_grant(core, request, groups[shard], found, record))
        size += len(record)
        if len(leases) == most:
            break
    core.totals.claimed += len(leases)
    return leases, [(shard, shard.co.wait(group)) for shard, group in groups.items()]


def _claimable(lane: TenantQueue) -> list[ShardQueue]:
    """Where there are dead letters, and writes are taken."""
    found = [bucket for bucket in lane.buckets if bucket is not None and bucket.dead]
    return [b for b in found if b.shard.co.status <= STALLED and b.shard.co.takes_writes]


def _found(buckets: Sequence[ShardQueue], most: int) -> list[tuple[_Found, bytes]]:
    """Up to ``most`` of them, the oldest of all shards first, with their records."""
    out: list[tuple[_Found, bytes]] = []
    for bucket in buckets:
        shard = bucket.shard
        lower: bytes | None = bucket.floor(DEAD)
        upper = prefix_end(bucket.prefix + DEAD)
        taken = pages = size = 0
        while lower is not None and taken < most and pages < _PAGES_MAX:
            rows, lower = shard.overlay.scan_readable(lower, upper, most - taken)
            pages += 1
            some: list[_Found] = []
            for key, raw in rows:
                row = attempt(decode_index_row, raw)
                if row is None:
                    continue
                size += claim_cost(row.record_bytes)
                if size > CLAIM_BYTES_MAX and (taken or some):
                    lower = None
                    break
                some.append(_Found(key[-24:], key, raw, row, bucket))
            asked: list[Row] = [
                (one.key, one.key[-16:], 0, 0, 0, one.row.record_bytes, None) for one in some
            ]
            for one, record in zip(some, checked_records(shard, asked), strict=True):
                if record is not None:
                    out.append((one, record))
                    taken += 1
    out.sort(key=lambda pair: pair[0].order)
    return out


def _grant(
    core: EngineState, request: ClaimRequest, group: Group, found: _Found, record: bytes
) -> LeaseState:
    """Queue ``-q(x) +l`` and enter the lease. Its dedup key, if it still has one, is left alone."""
    _, key, raw, row, bucket = found
    shard, lane, task_id = bucket.shard, bucket.lane, TaskId(key[-16:])
    times, policy, _, _, n_payload, n_face = lease_fields(record)
    created_us, died_us = TIMES.unpack(times)[0], int.from_bytes(key[-24:-16], "big") * 1000
    now_us, now_mono = core.clock.wall_us(), core.clock.mono()
    flags = row.flags << 1 | DEAD_LEASE | (EXPORTED if request.is_exported else 0)
    epoch, token = shard.next_epoch, core.ids.token()
    packed = encode_lease(
        LeaseRecord(
            flags,
            row.attempts,
            row.priority,
            epoch,
            token,
            now_us,
            request.lease_ms,
            row.record_bytes,
            created_us,
            died_us,
            0,
            policy,
            NO_GHOST,
            0,
            lane.queue,
            lane.tenant,
            request.worker,
            dead_row=raw,
        )
    )
    lease = core.lease_type()
    lease.core, lease.bucket = core, bucket
    lease.codec = core.codecs.get(lane.queue) if core.codecs else None
    lease.task_id, lease.epoch, lease.token = task_id, epoch, token
    lease.record, lease.record_bytes = record, row.record_bytes
    lease.times = TIMES.pack(created_us, died_us)
    lease.packed_policy, lease.ghost, lease.ghost_expires_ms = policy, NO_GHOST, 0
    lease.key, lease.priority, lease.expires_ms = key, row.priority, 0
    lease.attempt, lease.flags, lease.worker = row.attempts, flags, request.worker
    lease.granted_mono, lease.deadline_mono = now_mono, now_mono + request.lease_s
    lease.lease_s, lease.leased_us, lease.is_live = request.lease_s, now_us, True
    lease.face = record_face(record, n_payload, n_face) if n_face else b""
    lease.runs, lease.dead_row = None, raw
    group.ops += ((key, None), (LEASE + task_id, packed))
    group.dirty[bucket] = None
    shard.next_epoch = epoch + 1
    bucket.dead -= 1
    bucket.leased += 1
    lane.flow.claimed += 1
    core.leases[task_id] = lease
    core.deadlines.watch([lease])
    return lease
