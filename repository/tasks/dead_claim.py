"""Claim dead letters: ``-q(x) +l``, with a lease that says where the task goes back.

The lease record has the dead row in it. Whatever ends the lease without an answer to the task (a
nack, its expiry, a crash) puts that row back under its key: nothing about the dead letter has
changed. While it is leased, no bound, retention, purge or redrive finds it.

The oldest go first. Pauses and limits of the queue hold back runs, and this is none. A dead letter
whose record cannot be read is passed over: only a purge or ``discard`` ends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ...coalescer.group import Group
from ...coalescer.shard_status import STALLED
from ...engine.records.frame import attempt
from ...engine.records.keyspace import DEAD, ID_AT, LEASE, SEQ_AT, prefix_end
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
_PAGES_MAX: Final = 8  # of a shard's rows that are looked at, where some cannot be delivered
_PAGE_ROWS_MIN: Final = 32


class _Found(NamedTuple):
    """A dead letter that may be claimed. In order of death."""

    order: bytes  # when it died, and its id
    key: bytes
    raw: bytes
    row: IndexRow
    shard_queue: ShardQueue


async def claim_dead(state: EngineState, request: ClaimRequest, wait_s: float) -> list[Any]:
    """See ``Queue.claim``: dead letters of one queue and tenant.

    Args:
        state: of the engine.
        request: of one queue and tenant; the leases are of ``state.lease_type``.
        wait_s: seconds for the first of them.
    """
    deadline = state.clock.mono() + wait_s
    while True:
        leases, futures = await _take(state, request)
        if leases:
            return await committed(state, leases, futures)
        left_s = deadline - state.clock.mono()
        if left_s <= 0:
            state.check_empty()
            return []
        state.check_healthy()
        await _woken(state, request, left_s)
        state.check()


async def _woken(state: EngineState, request: ClaimRequest, wait_s: float) -> None:
    """Wait until one has died, or came back, or the time is over."""
    future = state.future()
    key = request.keys[0]
    state.dead_waiters.setdefault(key, []).append(future)

    def time_out() -> None:
        if not future.done():
            future.set_result(False)

    timer = state.clock.call_at(state.spawner, state.clock.mono() + wait_s, time_out)
    try:
        await future
    finally:
        timer.cancel()
        waiting = state.dead_waiters.get(key, [])
        if future in waiting:
            waiting.remove(future)
            if not waiting:
                del state.dead_waiters[key]


async def _take(
    state: EngineState, request: ClaimRequest
) -> tuple[list[LeaseState], list[tuple[Shard, Future]]]:
    queue, tenant = request.keys[0]
    tenant_queue = state.find_tenant_queue(queue, tenant or b"")
    if tenant_queue is None:
        return [], []
    for shard_queue in _claimable(tenant_queue):
        if not shard_queue.shard.coalescer.has_capacity:
            await state.backpressure(shard_queue.shard)
        await find_floor(state, shard_queue, DEAD)
    state.check()
    tenant_queue = state.find_tenant_queue(queue, tenant or b"")
    if tenant_queue is None:
        return [], []
    # atomic section
    leases: list[LeaseState] = []
    groups: dict[Shard, Group] = {}
    most = min(request.limit, DEAD_CLAIM_MAX)
    for found, record in _found(_claimable(tenant_queue), most):
        shard = found.shard_queue.shard
        if shard not in groups:
            groups[shard] = shard.coalescer.begin()
        groups[shard].bytes += 600
        with groups[shard]:
            leases.append(_grant(state, request, groups[shard], found, record))
    state.totals.claimed += len(leases)
    return leases, [(shard, shard.coalescer.wait(group)) for shard, group in groups.items()]


def _claimable(tenant_queue: TenantQueue) -> list[ShardQueue]:
    """Where there are dead letters, and writes are taken."""
    found = [
        shard_queue
        for shard_queue in tenant_queue.shard_queues
        if shard_queue is not None and shard_queue.dead
    ]
    return [
        b for b in found if b.shard.coalescer.status <= STALLED and b.shard.coalescer.takes_writes
    ]


def _found(shard_queues: Sequence[ShardQueue], most: int) -> list[tuple[_Found, bytes]]:
    """Up to ``most`` of them, the oldest of all shards first, with their records.

    No more records are read than one claim may have bytes, over all shards together.
    """
    page = max(_PAGE_ROWS_MIN, most // max(1, len(shard_queues)))
    oldest = merge(*(_rows(one, page) for one in shard_queues), key=attrgetter("order"))
    out: list[tuple[_Found, bytes]] = []
    size, is_full = 0, False
    while len(out) < most and not is_full:
        some: list[_Found] = []
        for one in oldest:
            cost = claim_cost(one.row.record_bytes)
            is_full = bool(out or some) and size + cost > CLAIM_BYTES_MAX
            if is_full:
                break
            size += cost
            some.append(one)
            if len(out) + len(some) == most:
                break
        if not some:
            break
        out += _with_records(some)
    return out


def _rows(shard_queue: ShardQueue, page: int) -> Iterator[_Found]:
    """The dead letters of one shard, the oldest first; read as they are asked for."""
    lower: bytes | None = shard_queue.floor(DEAD)
    upper = prefix_end(shard_queue.prefix + DEAD)
    for _ in range(_PAGES_MAX):
        if lower is None:
            return
        rows, lower = shard_queue.shard.overlay.scan_readable(lower, upper, page)
        for key, raw in rows:
            row = attempt(decode_index_row, raw)
            if row is not None:
                yield _Found(key[SEQ_AT:], key, raw, row, shard_queue)


def _with_records(some: Sequence[_Found]) -> list[tuple[_Found, bytes]]:
    """Those whose records can be read, in their order; each shard is asked once."""
    of_shard: dict[Shard, list[Row]] = {}
    for one in some:
        asked = (one.key, one.key[ID_AT:], 0, 0, 0, one.row.record_bytes, None)
        of_shard.setdefault(one.shard_queue.shard, []).append(asked)
    records = {
        row[0]: record
        for shard, rows in of_shard.items()
        for row, record in zip(rows, checked_records(shard, rows), strict=True)
    }
    return [(one, record) for one in some if (record := records[one.key]) is not None]


def _grant(
    state: EngineState, request: ClaimRequest, group: Group, found: _Found, record: bytes
) -> LeaseState:
    """Queue ``-q(x) +l`` and enter the lease. Its dedup key, if it still has one, is left alone."""
    _, key, raw, row, shard_queue = found
    shard, tenant_queue, task_id = shard_queue.shard, shard_queue.tenant_queue, TaskId(key[ID_AT:])
    times, policy, _, _, n_payload, n_face = lease_fields(record)
    created_us, died_us = TIMES.unpack(times)[0], int.from_bytes(key[SEQ_AT:ID_AT], "big") * 1000
    now_us, now_mono = state.clock.wall_us(), state.clock.mono()
    flags = row.flags << 1 | DEAD_LEASE | (EXPORTED if request.is_exported else 0)
    epoch, token = shard.next_epoch, state.ids.token()
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
            tenant_queue.queue,
            tenant_queue.tenant,
            request.worker,
            dead_row=raw,
        )
    )
    lease = state.lease_type()
    lease.state, lease.shard_queue = state, shard_queue
    lease.codec = state.codecs.get(tenant_queue.queue) if state.codecs else None
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
    group.dirty[shard_queue] = None
    shard.next_epoch = epoch + 1
    shard_queue.dead -= 1
    shard_queue.leased += 1
    tenant_queue.flow.claimed += 1
    state.leases[task_id] = lease
    state.deadlines.watch([lease])
    return lease
