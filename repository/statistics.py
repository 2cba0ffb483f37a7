"""What ``Engine.stats`` and ``Engine.queues`` tell, from memory."""

from __future__ import annotations

from collections.abc import Sequence

from ..coalescer.stats import LatencySummary
from .core import Core
from .listing import queue_stats
from .state import Flow, Shard
from .values import EngineStats, QueueStats, ShardStats

__all__ = ["flows_of", "queues_of", "stats_of"]


def stats_of(core: Core, recoveries: Sequence[str]) -> EngineStats:
    """Counts, totals since open, and the commit loops."""
    buckets = [
        b for t in core.topics.values() for lane in t.lanes.values()
        for b in lane.buckets if b is not None
    ]  # fmt: skip
    totals, clock = core.totals, core.clock
    oldest = min((lease.leased_us for lease in core.leases.values()), default=None)
    old = [shard.bodies.files.v1 for shard in core.shards if shard.bodies is not None]
    return EngineStats(
        ready=sum(b.ready for b in buckets), delayed=sum(b.delayed for b in buckets),
        leased=sum(b.leased for b in buckets), dead=sum(b.dead for b in buckets),
        results=sum(b.results for b in buckets), enqueued_total=totals.enqueued,
        claimed_total=totals.claimed, completed_total=totals.completed,
        nacked_total=totals.nacked, reaped_total=totals.reaped, dead_total=totals.dead,
        expired_total=totals.expired, duplicates_total=totals.duplicates,
        recoveries=tuple(recoveries), anomalies=tuple(core.all_anomalies()),
        reaper_lag=core.deadlines.lag_s(clock.mono(), clock.wall_us() // 1000),
        oldest_lease_age=None if oldest is None else (clock.wall_us() - oldest) / 1e6,
        old_body_files=sum(map(len, old)), old_body_bytes=sum(sum(v1.values()) for v1 in old),
        shards=tuple(_shard_stats(shard) for shard in core.shards),
    )  # fmt: skip


def queues_of(core: Core) -> dict[tuple[str, str], QueueStats]:
    """Counts of every lane that has any, or is paused."""
    found = {}
    for queue, topic in core.topics.items():
        for tenant, lane in topic.lanes.items():
            is_known = any(b is not None and not b.is_idle for b in lane.buckets)
            if is_known or lane.is_paused or (topic.is_paused and not tenant):
                found[queue.decode(), tenant.decode()] = queue_stats(core, queue, [lane])
    return dict(sorted(found.items()))


def flows_of(core: Core) -> dict[tuple[str, str], Flow]:
    """What has gone through each lane since it was made, by (queue, tenant): the live objects."""
    return {
        (queue.decode(), tenant.decode()): lane.flow
        for queue, topic in core.topics.items()
        for tenant, lane in topic.lanes.items()
    }


def _shard_stats(shard: Shard) -> ShardStats:
    co = shard.co
    s = co.stats
    return ShardStats(
        shard=shard.index, commits=s.commits, submissions=s.submissions, operations=s.operations,
        bytes=s.bytes, syncs=s.syncs, stalls=s.stalls, waiting=co.waiting,
        merge_sizes=tuple(s.merge.buckets()), commit=LatencySummary.of(s.commit_us),
        fsync=LatencySummary.of(s.fsync_us), durable_commit=co.durable_number,
        applied_commit=co.applied_number,
    )  # fmt: skip
