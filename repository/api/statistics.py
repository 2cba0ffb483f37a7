"""Statistics of an engine and its queues, from memory.

There may be a hundred thousand queues and tenants. They are counted in several turns of the event
loop, so the figures are not all of one moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ...engine.records import keyspace as ks
from ..model.values import EngineStats, QueueStats, ShardStats
from ..state.engine_state import EngineState
from ..state.queue_state import QueueState, Shard, TenantQueue
from ..state.shard_scope import shard_queues_meant, shards_meant
from ..state.turns import Turns
from ..tasks.task_list import queue_stats

__all__ = [
    "Sums",
    "queues_of",
    "stats_of",
    "sums_of",
    "tenant_queue_stats",
    "tenant_queues_of",
    "unreadable_of",
]

_TENANT_QUEUES: Final = 32  # counted between two looks at the clock
_FAMILIES: Final = {
    ks.TASK: "task",
    ks.MOVED: "moved",
    ks.LEASE: "lease",
    ks.RESULT: "result",
    ks.ATTEMPTS: "attempts",
    ks.GHOST: "ghost",
    ks.EXPIRY: "expiry",
    ks.EVENTS: "event",
    ks.BODY: "body",
    ks.BODY_AT: "body",
    ks.READY: "ready",
    ks.DELAYED: "delayed",
    ks.DEAD: "dead",
}
_STAYS: Final = "what lies there stays"
_LATE: Final = (
    "what is filed there does not happen in its time (a TTL ends a task when it is claimed; "
    "results, dead letters and lapsed dedup entries are kept beyond their time)"
)


class Sums(NamedTuple):
    """Counts over all queues and tenants."""

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    results: int = 0
    waiting: int = 0


async def sums_of(state: EngineState) -> Sums:
    """Sum the counts of all queues and tenants, in turns."""
    ready = delayed = leased = dead = results = waiting = 0
    turns = Turns(state)
    for n, (_, tenant_queue) in enumerate(tenant_queues_of(state)):
        if not n % _TENANT_QUEUES:
            await turns.give()
        for shard_queue in shard_queues_meant(tenant_queue.shard_queues):
            ready += shard_queue.ready
            delayed += shard_queue.delayed - shard_queue.waiting
            waiting += shard_queue.waiting
            leased += shard_queue.leased
            dead += shard_queue.dead
            results += shard_queue.results
    return Sums(ready, delayed, leased, dead, results, waiting)


def tenant_queues_of(state: EngineState) -> Iterator[tuple[QueueState, TenantQueue]]:
    """All queues with each tenant, sorted; the engine may change between two of them."""
    for queue in sorted(state.queue_states):
        queue_state = state.queue_states.get(queue)
        if queue_state is None:
            continue  # dropped since
        for tenant in (
            sorted(queue_state.tenant_queues)
            if len(queue_state.tenant_queues) > 1
            else list(queue_state.tenant_queues)
        ):
            tenant_queue = queue_state.tenant_queues.get(tenant)
            if tenant_queue is not None:
                yield queue_state, tenant_queue


def stats_of(state: EngineState, recoveries: Sequence[str], sums: Sums) -> EngineStats:
    """Statistics of an engine: counts (``sums``), totals since open, and its commit loops."""
    totals, clock = state.totals, state.clock
    oldest = min((lease.leased_us for lease in state.leases.values()), default=None)
    shards = shards_meant(state.hosted)
    old = [shard.bodies.files.v1 for shard in shards if shard.bodies is not None]
    return EngineStats(
        ready=sums.ready,
        delayed=sums.delayed,
        leased=sums.leased,
        dead=sums.dead,
        results=sums.results,
        waiting=sums.waiting,
        enqueued_total=totals.enqueued,
        claimed_total=totals.claimed,
        completed_total=totals.completed,
        nacked_total=totals.nacked,
        reaped_total=totals.reaped,
        dead_total=totals.dead,
        expired_total=totals.expired,
        dead_dropped_total=totals.dead_dropped,
        duplicates_total=totals.duplicates,
        redact_failures=0 if state.redaction is None else state.redaction.failures,
        recoveries=tuple(recoveries),
        anomalies=tuple(state.all_anomalies()),
        reaper_lag=state.deadlines.lag_s(clock.mono(), clock.wall_us() // 1000),
        oldest_lease_age=None if oldest is None else max(0.0, (clock.wall_us() - oldest) / 1e6),
        old_body_files=sum(map(len, old)),
        old_body_bytes=sum(sum(v1.values()) for v1 in old),
        unreadable=tuple(text for shard in shards for text in unreadable_of(shard)),
        shards=tuple(_shard_stats(shard) for shard in shards),
    )


async def queues_of(state: EngineState) -> dict[tuple[str, str], QueueStats]:
    """Counts by queue and tenant, in turns, without those that are empty and not paused."""
    found = {}
    turns = Turns(state)
    for n, (queue_state, tenant_queue) in enumerate(tenant_queues_of(state)):
        if not n % _TENANT_QUEUES:
            await turns.give()
        stats = tenant_queue_stats(state, queue_state, tenant_queue)
        if stats is not None:
            found[tenant_queue.queue.decode(), tenant_queue.tenant.decode()] = stats
    return found


def tenant_queue_stats(
    state: EngineState, queue_state: QueueState, tenant_queue: TenantQueue
) -> QueueStats | None:
    """Counts of one queue and tenant; None if it is empty and not paused."""
    is_known = any(
        not shard_queue.is_idle for shard_queue in shard_queues_meant(tenant_queue.shard_queues)
    )
    if not (
        is_known or tenant_queue.is_paused or (queue_state.is_paused and not tenant_queue.tenant)
    ):
        return None
    return queue_stats(state, tenant_queue.queue, [tenant_queue])


def unreadable_of(shard: Shard) -> list[str]:
    """Damage that a live engine has met in tables, one line for each family of rows."""
    lines: list[str] = []
    unreadable = shard.overlay.unreadable
    if unreadable is not None:
        ranges = Counter(_family(start) for start in unreadable.starts())
        lines += [
            f"shard {shard.index}: {count} range{'s' * (count > 1)} of {family} rows cannot be "
            f"read; {_LATE if family == 'expiry' else _STAYS}: close, and open with "
            'recovery="salvage"'
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
    """Name of a row's family, from the prefix of its key."""
    family = key[ks.FAMILY]
    if family == ks.INDEX and key.count(b"\0", 2) >= 2:
        at = key.index(b"\0", key.index(b"\0", 2) + 1) + 1
        family = key[at : at + 1]
    return _FAMILIES.get(family, "index" if family == ks.INDEX else "other")


def _shard_stats(shard: Shard) -> ShardStats:
    coalescer = shard.coalescer
    s = coalescer.stats
    return ShardStats(
        shard=shard.index,
        commits=s.commits,
        submissions=s.submissions,
        operations=s.operations,
        bytes=s.bytes,
        syncs=s.syncs,
        stalls=s.stalls,
        waiting=coalescer.waiting,
        merge_sizes=tuple(s.merge.buckets()),
        commit=s.commit_us.summary(),
        fsync=s.fsync_us.summary(),
        durable_commit=coalescer.durable_number,
        applied_commit=coalescer.applied_number,
    )
