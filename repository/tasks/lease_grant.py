"""Grant leases on ready rows: ``-q(r) +l``, and the entry in the lease table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ...coalescer.group import Group
from ...coalescer.shard_status import STALLED
from ...engine.records.events import CLAIMED, pack_one
from ...engine.records.frame import checksum
from ...engine.records.keyspace import ID_AT, LEASE, ORDER_AT, SEQ_AT
from ...engine.records.lease import EXPORTED, LEASE_MARK, encode_lease_tail, lease_packer
from ...engine.records.queues.key_waits import NO_KEY
from ...engine.records.rows import MOVED_ROW
from ...engine.records.task import ATTEMPTS_MAX, NO_GHOST, lease_fields, record_face
from ...engine.runtime.task_id import TaskId, as_task_id
from ..state.caches.ready_cache import Row
from ..state.engine_state import EngineState
from ..state.events import emit_leases
from ..state.lease_state import LeaseState
from ..state.long_polls import ClaimRequest
from ..state.queue_state import ShardQueue, TenantQueue
from .claim_order import advance, first_of_set

__all__ = ["grant", "lease_tail", "take_one"]

_as_task_id: Final = as_task_id
_SEQ_LAST: Final = ID_AT - 1  # the last byte of the seq in a ready key


def lease_tail(
    policy: bytes, shard_queue: ShardQueue, worker: bytes
) -> tuple[Callable[..., bytes], bytes]:
    """The constant part of the lease record of a task without a ghost, and what packs it."""
    if len(shard_queue.tails) >= 256:
        shard_queue.tails.clear()
    tenant_queue = shard_queue.tenant_queue
    tail = encode_lease_tail(policy, NO_GHOST, 0, tenant_queue.queue, tenant_queue.tenant, worker)
    parts = shard_queue.tails[policy, worker] = lease_packer(len(tail)), tail
    return parts


def grant(
    state: EngineState,
    request: ClaimRequest,
    group: Group,
    shard_queue: ShardQueue,
    rows: Iterable[tuple[Row, bytes]],
    now_us: int,
    now_mono: float,
    leases: list[LeaseState],
    shard_queues: Sequence[ShardQueue] = (),
) -> None:
    """Queue ``-q(r) +l`` and enter the lease of each row: from here on it is this worker's.

    ``leases`` is added to; what is raised concerns the rows behind those. Nearly every claim
    comes through here, so what a run of rows has in common is looked up once. The caller emits
    the events, also of those before what is raised.

    Args:
        group: of the task's shard; gets the rows.
        shard_queue: of the first row.
        rows: (row, record), popped, in claim order.
        now_us: wall microseconds.
        now_mono: monotonic seconds: the deadline counts from it.
        leases: added to; what is raised concerns the rows behind those.
        shard_queues: of each row, on one shard; none where all rows are of ``shard_queue``.
    """
    make, live, ids, tenant_queue, shard = (
        state.lease_type,
        state.leases,
        state.ids,
        shard_queue.tenant_queue,
        shard_queue.shard,
    )
    ops, fresh, tails, flow = group.ops, group.fresh, shard_queue.tails, tenant_queue.flow
    lease_s, lease_ms, worker = request.lease_s, request.lease_ms, request.worker
    deadline_mono = now_mono + lease_s
    exported = EXPORTED if request.is_exported else 0
    codec = state.codecs.get(tenant_queue.queue) if state.codecs else None
    group.dirty[shard_queue] = None
    at = before = len(leases)
    for (key, raw_id, attempts, flags, expires_ms, size, _), record in rows:
        if shard_queues:
            if shard_queues[at - before] is not shard_queue:
                shard_queue = shard_queues[at - before]
                tenant_queue = shard_queue.tenant_queue
                tails, flow = shard_queue.tails, tenant_queue.flow
                codec = state.codecs.get(tenant_queue.queue) if state.codecs else None
                group.dirty[shard_queue] = None
            at += 1
        times, policy, ghost, ghost_expires_ms, n_payload, n_face = lease_fields(record)
        if flags & MOVED_ROW:  # the seq of its record is not the one it became ready with
            times = times[:8] + key[_SEQ_LAST:ORDER_AT:-1]  # little-endian
        task_id = raw_id if raw_id.__class__ is TaskId else _as_task_id(raw_id)
        attempt = attempts + 1 if attempts < ATTEMPTS_MAX else attempts  # imported, as a rule
        lease_flags, priority = flags << 1 | exported, 9 - key[ORDER_AT]
        epoch, token = shard.next_epoch, ids.tokens.pop() if ids.tokens else ids.token()
        if ghost == NO_GHOST:
            pack, tail = tails.get((policy, worker)) or lease_tail(policy, shard_queue, worker)
        else:
            tail = encode_lease_tail(
                policy, ghost, ghost_expires_ms, tenant_queue.queue, tenant_queue.tenant, worker
            )
            pack = lease_packer(len(tail))
        body = pack(
            LEASE_MARK,
            lease_flags,
            attempt,
            priority,
            epoch,
            token,
            now_us,
            lease_ms,
            size,
            times,
            expires_ms,
            tail,
        )
        op = (LEASE + task_id, body + checksum(body))
        lease = make()
        lease.state, lease.shard_queue, lease.codec = state, shard_queue, codec
        lease.task_id, lease.epoch, lease.token = task_id, epoch, token
        lease.record, lease.record_bytes, lease.times = record, size, times
        lease.packed_policy, lease.ghost, lease.ghost_expires_ms = policy, ghost, ghost_expires_ms
        lease.key, lease.priority, lease.expires_ms = key, priority, expires_ms
        lease.attempt, lease.flags, lease.worker = attempt, lease_flags, worker
        lease.granted_mono, lease.lease_s, lease.deadline_mono = now_mono, lease_s, deadline_mono
        lease.leased_us, lease.is_live = now_us, True
        lease.face, lease.runs = b"", None
        if n_face:
            lease.face = face = record_face(record, n_payload, n_face)
            lease.runs = state.function_counts.started(tenant_queue.queue, face)
        if not fresh or not group.replace_fresh(key, op):
            ops.append((key, None))
            ops.append(op)
        shard.next_epoch = epoch + 1
        shard_queue.leased += 1
        flow.claim(now_us - int.from_bytes(key[SEQ_AT:ID_AT], "big"))
        live[task_id] = lease
        leases.append(lease)
    state.deadlines.watch(leases[before:] if before else leases)


def _first_shard_queue(shard_queues: list[ShardQueue | None]) -> ShardQueue | None:
    """The shard queue with the next row; None if only a look at a store could say which.

    ``claim_order.head`` over all shards, for the case that all their heads are in memory.
    """
    first: ShardQueue | None = None
    key = order = b""  # of the first one's head; the order is cut out where there is another
    for shard_queue in shard_queues:
        if (
            shard_queue is None
            or shard_queue.ready <= 0
            or shard_queue.shard.coalescer.status > STALLED
        ):
            continue
        occupied = shard_queue.occupied
        ready_cache = (
            shard_queue.ready_caches[(occupied & -occupied).bit_length() - 1] if occupied else None
        )
        if ready_cache is None or not ready_cache.rows:
            return None
        if first is None:
            first, key = shard_queue, ready_cache.rows[0][0]
            continue
        other = ready_cache.rows[0][0][ORDER_AT:]  # inverted priority, seq, id
        if not order:
            order = key[ORDER_AT:]
        if other < order:
            first, order = shard_queue, other
    return first


def take_one(
    state: EngineState, request: ClaimRequest, *, is_caller: bool = False
) -> tuple[list[LeaseState], Group] | None:
    """One task of one queue and tenant, with its body in memory.

    Nearly every claim of one, so ``grant`` is folded into it. None, and nothing changed: look for
    it the general way.

    Args:
        is_caller: for a caller who would stand in line if the task's shard has no capacity.
    """
    claim_set = request.claim_set
    nth, slot = -1, None
    tenant_queue: TenantQueue | None
    if claim_set is not None:
        nth = first_of_set(state, claim_set)
        slot = claim_set.slots[nth] if nth >= 0 else None
        if slot is None:
            return None
        tenant_queue = slot[0].tenant_queue
    else:
        tenant_queue = request.tenant_queue
    if tenant_queue is None or tenant_queue.is_dropped:
        queue, tenant = request.keys[0]
        tenant_queue = state.find_tenant_queue(queue, tenant) if tenant is not None else None
        if tenant_queue is None:
            return None
        request.tenant_queue = tenant_queue
    queue_state = tenant_queue.queue_state
    if tenant_queue.is_paused or queue_state.is_held:
        return None
    if slot is not None:  # compared with the row there just now
        shard_queue: ShardQueue | None = slot[0]
    else:
        shard_queues = tenant_queue.shard_queues
        shard_queue = (
            shard_queues[0] if len(shard_queues) == 1 else _first_shard_queue(shard_queues)
        )
    if shard_queue is None or shard_queue.ready <= 0 or not shard_queue.occupied:
        return None
    shard = shard_queue.shard
    if is_caller and (
        shard.coalescer.waiting >= shard.coalescer.submit_queue_max
        or shard.coalescer.submit_line.queued
    ):
        return None
    ready_cache = shard_queue.ready_caches[
        (shard_queue.occupied & -shard_queue.occupied).bit_length() - 1
    ]
    if ready_cache is None or not ready_cache.rows:
        return None
    row = ready_cache.rows[0]
    key, raw_id, attempts, flags, expires_ms, size, record = row
    if record is None or expires_ms or shard.coalescer.status > STALLED or attempts >= ATTEMPTS_MAX:
        return None
    times, policy, ghost, _, n_payload, n_face = lease_fields(record)
    key_limit, limit_key = queue_state.key_limit, None
    if key_limit is not None and n_face:
        key_hash = key_limit.key_of(record_face(record, n_payload, n_face))
        if key_hash != NO_KEY:
            limit_key = tenant_queue.tenant, key_hash
            if key_limit.free(limit_key) <= 0:
                return None  # the general way sets it aside, and looks behind it
    group = shard.coalescer.begin(
        500
    )  # before anything is counted down: it may seal the group before
    now_us, now_mono = state.wall_ns() // 1000, state.mono()
    if flags or ghost != NO_GHOST:
        leases: list[LeaseState] = []
        grant(state, request, group, shard_queue, ((row, record),), now_us, now_mono, leases)
        emit_leases(group, CLAIMED, leases, now_us)
    else:
        worker, lease_s, priority = request.worker, request.lease_s, 9 - key[ORDER_AT]
        lease_flags = EXPORTED if request.is_exported else 0
        epoch, tokens = shard.next_epoch, state.ids.tokens
        token = tokens.pop() if tokens else state.ids.token()
        task_id = raw_id if raw_id.__class__ is TaskId else _as_task_id(raw_id)
        pack, tail = shard_queue.tails.get((policy, worker)) or lease_tail(
            policy, shard_queue, worker
        )
        body = pack(
            LEASE_MARK,
            lease_flags,
            attempts + 1,
            priority,
            epoch,
            token,
            now_us,
            request.lease_ms,
            size,
            times,
            0,
            tail,
        )
        op = (LEASE + task_id, body + checksum(body))
        if group.events is not None:  # first: rows are queued when all is encoded
            one = pack_one(CLAIMED, priority, attempts + 1, 1, len(worker), now_us, task_id)
            group.events.append(one + tenant_queue.tag + worker)
        lease = state.lease_type()
        lease.state, lease.shard_queue = state, shard_queue
        lease.codec = state.codecs.get(tenant_queue.queue) if state.codecs else None
        lease.task_id, lease.epoch, lease.token = task_id, epoch, token
        lease.record, lease.record_bytes, lease.times = record, size, times
        lease.packed_policy, lease.ghost, lease.ghost_expires_ms = policy, ghost, 0
        lease.key, lease.priority, lease.expires_ms = key, priority, 0
        lease.attempt, lease.flags, lease.worker = attempts + 1, lease_flags, worker
        lease.granted_mono, lease.deadline_mono = now_mono, now_mono + lease_s
        lease.lease_s, lease.leased_us, lease.is_live = lease_s, now_us, True
        lease.face, lease.runs = b"", None
        if n_face:
            end = len(record) - 8 - n_payload  # as ``record_face``
            lease.face = face = record[end - n_face : end]
            lease.runs = state.function_counts.started(tenant_queue.queue, face)
        leases = [lease]
        state.deadlines.watch(leases)
        if not group.fresh or not group.replace_fresh(key, op):
            group.ops += ((key, None), op)
        shard.next_epoch = epoch + 1
        shard_queue.leased += 1
        flow = tenant_queue.flow
        flow.claimed += 1
        flow.waited_us += now_us - int.from_bytes(key[SEQ_AT:ID_AT], "big")
        group.dirty[shard_queue] = None
        state.leases[task_id] = lease
    ready_cache.rows.popleft()  # not before: whatever was raised there, the task is still in line
    shard_queue.ready -= 1
    state.held_bytes -= size
    if queue_state.limit is not None:
        state.queue_limits.granted_one(queue_state, now_mono)
    if key_limit is not None and limit_key is not None:
        key_limit.enter(limit_key, raw_id)
        if state.key_limits.woken:
            state.key_limits.woken.pop(raw_id, None)
    if claim_set is not None and slot is not None:
        advance(state, claim_set, nth, slot)
    elif state.claim_sets.sets and not tenant_queue.ready:
        state.claim_sets.emptied(tenant_queue, None)
    return leases, group
