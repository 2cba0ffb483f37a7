"""From rows to memory: counters become lanes, lease rows leases, first rows deadlines.

Open does it for every shard, and a replica that gains leadership for the one it gains. O(queues +
live leases); the backlog stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..coalescer.group import Group
from ..engine.keyspace import (
    ALL_TENANTS_MARK,
    COUNTERS,
    COUNTERS_END,
    DELAYED,
    EXPIRY,
    EXPIRY_END,
    LEASE,
    LEASE_END,
    OLD_GHOSTS,
    PAUSE,
    PAUSE_END,
    SECRET,
    decode_counters_key,
    decode_expiry_key,
    decode_pause_key,
    prefix_end,
    ready_key,
)
from ..engine.records.lease import EXPORTED, LeaseRecord, decode_lease
from ..engine.records.rows import decode_counters, decode_old_ghosts, decode_secret
from ..engine.records.task import TIMES
from ..engine.task_id import TaskId
from .admin import set_pause
from .core import Core
from .lease import Lease, restored
from .reaper import reap
from .state import Bucket, Shard

__all__ = ["lease_slices", "load_counters", "load_deadlines", "load_dedup", "load_leases"]

SLICE = 256


def load_dedup(shard: Shard) -> None:
    """What dedup hashes are keyed with, and how many entries are from before that."""
    raw, count = shard.overlay.get(SECRET), shard.overlay.get(OLD_GHOSTS)
    shard.secret = b"" if raw is None else decode_secret(raw)
    shard.old_ghosts = 0 if count is None else decode_old_ghosts(count)


def load_counters(core: Core, shard: Shard) -> None:
    """One lane per counter row: O(queues)."""
    load_dedup(shard)
    lower = COUNTERS
    while True:
        rows = shard.store.scan(lower, COUNTERS_END, SLICE)
        for key, raw in rows:
            queue, tenant = decode_counters_key(key)
            lane = core.lane(queue, tenant)
            counts = decode_counters(raw)
            lane.bucket(shard).load(*counts)
            shard.results += counts.results
            if counts.ready:
                lane.topic.turns[tenant] = None
        if len(rows) < SLICE:
            break
        lower = rows[-1][0] + b"\0"
    for key, _ in shard.store.scan(PAUSE, PAUSE_END, 1 << 20):
        queue, tenant = decode_pause_key(key)
        set_pause(core, queue, None if tenant == ALL_TENANTS_MARK else tenant, is_paused=True)


def lease_slices(core: Core, shard: Shard) -> Iterator[Group]:
    """Leases of a process that died: back at once, or (exported) once more in full.

    Every step is an atomic section that queues one group; wait for it before the next.
    """
    lower = LEASE
    while True:
        rows = shard.store.scan(lower, LEASE_END, SLICE)
        leases = [_restore(core, shard, key[2:], decode_lease(raw)) for key, raw in rows]
        back = [lease for lease in leases if not lease.flags & EXPORTED]
        if back:
            group = shard.co.begin(len(back) * 256)
            for lease in back:
                with group:
                    reap(core, group, lease, b"process died")
            yield group
        if len(rows) < SLICE:
            return
        lower = rows[-1][0] + b"\0"


async def load_leases(core: Core, shard: Shard) -> None:
    """All of ``lease_slices``, at open: nobody else is there yet."""
    for group in lease_slices(core, shard):
        await shard.co.wait(group)


def _restore(core: Core, shard: Shard, raw_id: bytes, r: LeaseRecord) -> Lease:
    bucket: Bucket = core.lane(r.queue, r.tenant).bucket(shard)

    def fill(lease: Lease) -> None:
        lease.task_id = TaskId(raw_id)
        lease.key = ready_key(bucket.prefix, r.priority, r.seq, raw_id)
        lease.attempt, lease.priority, lease.flags = r.attempts, r.priority, r.flags
        lease.epoch, lease.token, lease.worker = r.epoch, r.token, r.worker
        lease.lease_s = r.lease_ms / 1000
        lease.granted_mono = core.clock.mono()
        lease.deadline_mono = lease.granted_mono + lease.lease_s
        lease.leased_us, lease.expires_ms = r.leased_us, r.expires_ms
        lease.times = TIMES.pack(r.created_us, r.seq)
        lease.packed_policy = r.policy
        lease.ghost, lease.ghost_expires_ms = r.ghost, r.ghost_expires_ms
        lease.record_bytes = r.record_bytes

    lease = restored(core, bucket, fill)
    core.leases[lease.task_id] = lease
    core.deadlines.watch([lease])
    return lease


def load_deadlines(core: Core, shard: Shard) -> None:
    """One seek per range: the first delayed row of each bucket, the first expiry row."""
    for topic in core.topics.values():
        for lane in topic.lanes.values():
            bucket = lane.buckets[shard.index]
            if bucket is None or not bucket.delayed:
                continue
            prefix = bucket.prefix + DELAYED
            rows = shard.store.scan(prefix, prefix_end(prefix), 1)
            if rows:
                core.deadlines.note_due(bucket, int.from_bytes(rows[0][0][-32:-24], "big"))
    rows = shard.store.scan(EXPIRY, EXPIRY_END, 1)
    if rows:
        shard.next_expiry_ms = decode_expiry_key(rows[0][0])[0]
        core.deadlines.note_expiry()
