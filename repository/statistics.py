"""What ``Engine.stats`` and ``Engine.queues`` tell, from memory.

There may be a hundred thousand lanes: whoever asks on the loop takes them in turns, and then they
are not those of one moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..coalescer.stats import LatencySummary
from .core import Core
from .listing import queue_stats
from .state import Flow, Lane, Shard, Topic
from .turns import Turns
from .values import EngineStats, QueueStats, ShardStats

__all__ = ["Sums", "flows_of", "lane_stats", "lanes_of", "queues_of", "stats_of", "sums_of"]

_LANES = 32  # between two looks at the clock


class Sums(NamedTuple):
    """Counts over all lanes."""

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    results: int = 0


async def sums_of(core: Core) -> Sums:
    """Of all lanes, in turns."""
    ready = delayed = leased = dead = results = 0
    turns = Turns(core)
    for n, (_, lane) in enumerate(lanes_of(core)):
        if not n % _LANES:
            await turns.give()
        for bucket in lane.buckets:
            if bucket is not None:
                ready += bucket.ready
                delayed += bucket.delayed
                leased += bucket.leased
                dead += bucket.dead
                results += bucket.results
    return Sums(ready, delayed, leased, dead, results)


def lanes_of(core: Core) -> Iterator[tuple[Topic, Lane]]:
    """Every lane by queue and tenant, in order; the engine may change between two of them."""
    for queue in sorted(core.topics):
        topic = core.topics.get(queue)
        if topic is None:
            continue  # dropped since
        for tenant in sorted(topic.lanes) if len(topic.lanes) > 1 else list(topic.lanes):
            lane = topic.lanes.get(tenant)
            if lane is not None:
                yield topic, lane


def stats_of(core: Core, recoveries: Sequence[str], sums: Sums) -> EngineStats:
    """Counts (``sums``), totals since open, and the commit loops."""
    totals, clock = core.totals, core.clock
    oldest = min((lease.leased_us for lease in core.leases.values()), default=None)
    old = [shard.bodies.files.v1 for shard in core.shards if shard.bodies is not None]
    return EngineStats(
        ready=sums.ready, delayed=sums.delayed, leased=sums.leased, dead=sums.dead,
        results=sums.results, enqueued_total=totals.enqueued,
        claimed_total=totals.claimed, completed_total=totals.completed,
        nacked_total=totals.nacked, reaped_total=totals.reaped, dead_total=totals.dead,
        expired_total=totals.expired, duplicates_total=totals.duplicates,
        recoveries=tuple(recoveries), anomalies=tuple(core.all_anomalies()),
        reaper_lag=core.deadlines.lag_s(clock.mono(), clock.wall_us() // 1000),
        oldest_lease_age=None if oldest is None else (clock.wall_us() - oldest) / 1e6,
        old_body_files=sum(map(len, old)), old_body_bytes=sum(sum(v1.values()) for v1 in old),
        shards=tuple(_shard_stats(shard) for shard in core.shards),
    )  # fmt: skip


async def queues_of(core: Core) -> dict[tuple[str, str], QueueStats]:
    """Counts of every lane that has any, or is paused, by queue and tenant, in turns."""
    found = {}
    turns = Turns(core)
    for n, (topic, lane) in enumerate(lanes_of(core)):
        if not n % _LANES:
            await turns.give()
        stats = lane_stats(core, topic, lane)
        if stats is not None:
            found[lane.queue.decode(), lane.tenant.decode()] = stats
    return found


def lane_stats(core: Core, topic: Topic, lane: Lane) -> QueueStats | None:
    """A lane's counts, if it has any, or is paused."""
    is_known = any(b is not None and not b.is_idle for b in lane.buckets)
    if not (is_known or lane.is_paused or (topic.is_paused and not lane.tenant)):
        return None
    return queue_stats(core, lane.queue, [lane])


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
