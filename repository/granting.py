"""From a ready row to a lease: ``-q(r) +l``, and the entry in the lease table."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from xxhash import xxh3_64_digest

from ..coalescer.group import Group
from ..engine.ids import TaskId, as_task_id
from ..engine.records.lease import EXPORTED, LEASE_HEAD, encode_lease_tail
from ..engine.records.task import NO_GHOST
from .core import Core
from .picking import ClaimRequest
from .state import Bucket
from .window import Row

if TYPE_CHECKING:
    from .lease import Lease

__all__ = ["grant", "lease_tail", "take_one"]

# Of the task record: times, policy and ghost in one go (engine/records/task.py).
_TASK_FIELDS = Struct("<8xqq8x8x32s16sq")
_lease_head = LEASE_HEAD.pack


def lease_tail(policy: bytes, bucket: Bucket, worker: bytes) -> bytes:
    """The constant part of the lease record of a task without a ghost."""
    if len(bucket.tails) >= 256:
        bucket.tails.clear()
    lane = bucket.lane
    tail = encode_lease_tail(policy, NO_GHOST, 0, lane.queue, lane.tenant, worker)
    bucket.tails[policy, worker] = tail
    return tail


def grant(
    core: Core, request: ClaimRequest, group: Group, bucket: Bucket, row: Row, record: bytes,
    now_us: int, now_mono: float,
) -> Lease:  # fmt: skip
    """Queue ``-q(r) +l`` and enter the lease: from here on the task is this worker's."""
    key, raw_id, attempts, flags, expires_ms, size, _ = row
    facts = _TASK_FIELDS.unpack_from(record)
    if flags:  # it has moved: the seq of its record is not the one it became ready with
        facts = (facts[0], int.from_bytes(key[-24:-16], "big"), *facts[2:])
    created_us, seq, policy, ghost, ghost_expires_ms = facts
    lease = core.lease_type()
    lease.core = core
    lease.bucket = bucket
    task_id = raw_id if raw_id.__class__ is TaskId else as_task_id(raw_id)
    lease.task_id = task_id
    lease.key = key
    lease.record = record
    lease.attempt = attempts = attempts + 1
    lease.flags = flags = flags << 1 | (EXPORTED if request.is_exported else 0)
    lease.priority = priority = 9 - key[-25]
    shard = bucket.shard
    lease.epoch = epoch = shard.next_epoch
    shard.next_epoch = epoch + 1
    tokens = core.ids.tokens
    lease.token = token = tokens.pop() if tokens else core.ids.token()
    lease.lease_s = lease_s = request.lease_s
    lease.leased_us = now_us
    lease.granted_mono = now_mono
    lease.deadline_mono = now_mono + lease_s
    lease.facts = facts
    lease.expires_ms = expires_ms
    lease.record_bytes = size
    lease.worker = worker = request.worker
    lease.codec = core.codecs.get(bucket.lane.queue) if core.codecs else None
    lease.is_live = True
    if ghost == NO_GHOST:
        tail = bucket.tails.get((policy, worker)) or lease_tail(policy, bucket, worker)
    else:
        lane = bucket.lane
        tail = encode_lease_tail(policy, ghost, ghost_expires_ms, lane.queue, lane.tenant, worker)
    body = (
        _lease_head(
            0x4C, 1, flags, attempts, priority, 0, epoch, token, now_us, request.lease_ms,
            size, created_us, seq, expires_ms,
        )
        + tail
    )  # fmt: skip
    op = (b"l/" + raw_id, body + xxh3_64_digest(body))
    if not group.fresh or not group.replace_fresh(key, op):
        group.ops.append((key, None))
        group.ops.append(op)
    bucket.leased += 1
    group.dirty[bucket] = None
    core.leases[task_id] = lease
    core.deadlines.watch(lease)
    return lease


def take_one(core: Core, request: ClaimRequest) -> tuple[Lease, Group] | None:
    """One task of one queue and tenant, on one shard, with its body in memory.

    Nearly every claim of one. None, and nothing changed: look for it the general way.
    """
    shards = core.shards
    if len(shards) != 1:
        return None
    lane = request.lane
    if lane is None or lane.is_dropped:
        queue, tenant = request.keys[0]
        lane = core.find_lane(queue, tenant) if tenant is not None else None
        if lane is None:
            return None
        request.lane = lane
    if lane.is_paused or lane.topic.is_paused:
        return None
    bucket = lane.buckets[0]
    if bucket is None or bucket.ready <= 0 or not bucket.occupied:
        return None
    window = bucket.windows[(bucket.occupied & -bucket.occupied).bit_length() - 1]
    if window is None or not window.rows:
        return None
    row = window.rows[0]
    record = row[6]
    co = shards[0].co
    if record is None or row[4] or co.poison is not None:
        return None
    group = co.begin(500)  # before anything is counted down: it may seal the group before
    clock = core.clock
    lease = grant(core, request, group, bucket, row, record, clock.wall_us(), clock.mono())
    window.rows.popleft()  # not before: whatever was raised there, the task is still in line
    bucket.ready -= 1
    core.held_bytes -= row[5]
    core.totals.claimed += 1
    return lease, group
