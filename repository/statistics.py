"""What ``Engine.stats`` and ``Engine.queues`` tell, from memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ..coalescer.stats import LatencySummary
from ..engine import keyspace as ks
from .core import Core
from .listing import queue_stats
from .state import Flow, Shard
from .values import EngineStats, QueueStats, ShardStats

__all__ = ["flows_of", "queues_of", "stats_of", "unreadable_of"]

_FAMILIES: Final = {
    ks.TASK: "task", ks.MOVED: "moved", ks.LEASE: "lease", ks.RESULT: "result", ks.GHOST: "ghost",
    ks.EXPIRY: "expiry", ks.EVENTS: "event", ks.BODY: "body", ks.BODY_AT: "body",
    ks.READY: "ready", ks.DELAYED: "delayed", ks.DEAD: "dead",
}  # fmt: skip


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
        recoveries=tuple(recoveries), anomalies=tuple(core.anomalies),
        reaper_lag=core.deadlines.lag_s(clock.mono(), clock.wall_us() // 1000),
        oldest_lease_age=None if oldest is None else (clock.wall_us() - oldest) / 1e6,
        old_body_files=sum(map(len, old)), old_body_bytes=sum(sum(v1.values()) for v1 in old),
        unreadable=tuple(text for shard in core.shards for text in unreadable_of(shard)),
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


def unreadable_of(shard: Shard) -> list[str]:
    """What a live engine has met of damaged tables, a line a family; empty: nothing."""
    lines: list[str] = []
    unreadable = shard.overlay.unreadable
    if unreadable is not None:
        ranges = Counter(_family(start) for start in unreadable.starts())
        lines += [
            f"shard {shard.index}: {count} range{'s' * (count > 1)} of {family} rows cannot be "
            'read; what lies there stays: close, and open with recovery="salvage"'
            for family, count in sorted(ranges.items())
        ]
        if unreadable.dropped:
            lines.append(
                f"shard {shard.index}: {unreadable.dropped} rows were written where nothing can be "
                "read, and wait there too"
            )
    lines += [
        f"shard {shard.index}: {count} read{'s' * (count > 1)} of {_family(key)} rows failed: "
        "they lie in a damaged block"
        for key, count in sorted(shard.overlay.failed_reads.items())
    ]
    return lines


def _family(key: bytes) -> str:
    """The word for a row's family, by how its key begins."""
    family = key[:2]
    if family == ks.INDEX and key.count(b"\0", 2) >= 2:
        at = key.index(b"\0", key.index(b"\0", 2) + 1) + 1
        family = key[at : at + 1]
    return _FAMILIES.get(family, "index" if family == ks.INDEX else "other")


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
