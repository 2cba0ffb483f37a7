"""The value of every metric at one moment, from memory and RocksDB's own figures; never a scan.

Values from memory are read on the engine's loop, those of queues out of the status that all share
(``service.shared.engine_status``). RocksDB's figures are read in any thread, apart from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ... import __version__
from ...coalescer.stats import Histogram
from ...engine.store.upkeep import Figures
from ...repository.api.engine import Engine
from ...repository.api.view import EngineView, ShardView, view_of
from ...repository.model.values import EngineStats
from ...repository.state.function_counts import OUTCOMES, RUN_BOUNDS_US, FunctionRuns
from ..shared.build import BUILD
from ..shared.engine_status import EngineStatus
from ..shared.replica import LogFacts, replica_status

__all__ = ["MERGE_BOUNDS", "Distribution", "Sample", "sample_engine", "sample_stores"]

# A bound is exact where a bucket of ours ends: below 16, and one below the powers of two.
MERGE_BOUNDS: Final = (1, 2, 3, 4, 6, 8, 12, 15, 23, 31, 47, 63, 127, 255, 511, 1023, 4095)
_US_BOUNDS: Final = tuple(1 << power for power in range(4, 25))  # 16 µs to 17 s
_QUANTILES: Final = (0.5, 0.99)
_STATES: Final = ("ready", "delayed", "waiting", "leased", "dead")


class Distribution(NamedTuple):
    """A histogram: (upper bound, values up to it), in order; the last bound is infinite."""

    buckets: Sequence[tuple[float, int]]
    total: float


class Sample(NamedTuple):
    """One value of a metric. ``labels`` are in the order of the table."""

    name: str
    labels: tuple[str, ...]
    value: float | Distribution


def sample_engine(
    engine: Engine,
    status: EngineStatus,
    *,
    loop_lag_s: float,
    queues_max: int,
    log: LogFacts | None = None,
) -> list[Sample]:
    """Samples that memory gives. On the engine's loop; it does not wait.

    Args:
        engine: an open one.
        status: its counts, of now or a moment ago.
        loop_lag_s: the value of ``lodeq_loop_lag_seconds``.
        queues_max: queues that get samples of their own; of the others only the number.
        log: what the log of a replica said last; None: nothing.

    Raises:
        ClosedError: the engine is closed.
    """
    view = view_of(engine)
    view.check()
    stats, health = status.stats, view.health()
    found = [
        Sample("lodeq_up", (), 1),
        Sample("lodeq_info", (__version__, engine.durability, str(engine.shards), BUILD), 1),
        Sample("lodeq_healthy", (), health.ok),
        Sample("lodeq_anomalies", (), len(stats.anomalies)),
        Sample("lodeq_oldest_lease_age_seconds", (), stats.oldest_lease_age or 0.0),
        Sample("lodeq_reaper_lag_seconds", (), stats.reaper_lag),
        Sample("lodeq_loop_lag_seconds", (), loop_lag_s),
        Sample("lodeq_disk_low", (), view.is_disk_low),
    ]
    found += _totals(stats)
    found += _queues(status, queues_max)
    for runs in view.function_runs():
        found += _function(runs)
    for shard in view.shards():
        found += _commits(shard)
    found += _replica(view, log)
    return found


def _replica(view: EngineView, log: LogFacts | None) -> Iterator[Sample]:
    status = replica_status(view)
    if status is None:
        return
    for shard in status.shards:
        of = (str(shard.shard),)
        yield Sample("lodeq_replica_leads", of, shard.role == "leading")
        yield Sample("lodeq_replica_has_leader", of, shard.leader is not None)
        yield Sample("lodeq_replica_lag_entries", of, shard.lag)
        yield Sample("lodeq_replica_log_first", of, shard.floor)
        yield Sample("lodeq_replica_log_last", of, shard.last)
    yield Sample("lodeq_replica_members", (), len(status.members))
    yield Sample("lodeq_replica_session_seconds", (), status.session_s)
    yield Sample("lodeq_replica_clock_skew_seconds", (), status.skew_ms / 1000)
    yield Sample("lodeq_replica_problems", (), len(status.problems))
    if log is None:
        return
    if log.space is not None:
        yield Sample("lodeq_replica_log_used_bytes", (), log.space.used_bytes)
        yield Sample("lodeq_replica_log_quota_bytes", (), log.space.quota_bytes)
    for checkpoint in log.checkpoints:
        if checkpoint.node == status.node:
            age_s = view.clock.wall_us() / 1e6 - checkpoint.created_ms / 1000
            yield Sample("lodeq_replica_checkpoint_age_seconds", (), max(0.0, age_s))


def _totals(stats: EngineStats) -> list[Sample]:
    return [
        Sample("lodeq_tasks_enqueued_total", (), stats.enqueued_total),
        Sample("lodeq_tasks_claimed_total", (), stats.claimed_total),
        Sample("lodeq_tasks_completed_total", (), stats.completed_total),
        Sample("lodeq_tasks_nacked_total", (), stats.nacked_total),
        Sample("lodeq_tasks_buried_total", (), stats.dead_total),
        Sample("lodeq_tasks_expired_total", (), stats.expired_total),
        Sample("lodeq_dead_letters_dropped_total", (), stats.dead_dropped_total),
        Sample("lodeq_duplicates_total", (), stats.duplicates_total),
        Sample("lodeq_redact_failures_total", (), stats.redact_failures),
        Sample("lodeq_leases_expired_total", (), stats.reaped_total),
    ]


def _queues(status: EngineStatus, queues_max: int) -> Iterator[Sample]:
    """Samples of each queue, all tenants together: every label value is a series for ever."""
    for queue in status.names[:queues_max]:
        stats = status.queues[queue].stats
        for state in _STATES:
            yield Sample("lodeq_tasks", (queue, state), getattr(stats, state))
        yield Sample("lodeq_results", (queue,), stats.results)
        yield Sample("lodeq_oldest_ready_age_seconds", (queue,), stats.oldest_ready_age or 0.0)
        yield Sample("lodeq_queue_paused", (queue,), stats.is_paused)
    yield Sample("lodeq_queues_left_out", (), max(0, len(status.names) - queues_max))


def _function(runs: FunctionRuns) -> Iterator[Sample]:
    of = runs.queue, runs.function
    yield Sample("lodeq_function_starts_total", of, runs.started)
    for outcome, count in zip(OUTCOMES, runs.ends, strict=True):
        if outcome:
            yield Sample("lodeq_function_ends_total", (*of, outcome), count)
    buckets, seen = [], 0
    for bound, count in zip((*RUN_BOUNDS_US, float("inf")), runs.times, strict=True):
        seen += count
        buckets.append((bound / 1e6, seen))
    yield Sample("lodeq_function_run_seconds", of, Distribution(buckets, runs.total_us / 1e6))


def _commits(shard: ShardView) -> Iterator[Sample]:
    of, stats = (str(shard.shard),), shard.stats
    for name, found in (("commit", stats.commit_us), ("fsync", stats.fsync_us)):
        yield Sample(f"lodeq_{name}_seconds", of, _distribution(found, _US_BOUNDS, 1e6))
        for quantile in _QUANTILES:
            value = found.percentile(quantile * 100) / 1e6
            yield Sample(f"lodeq_{name}_quantile_seconds", (*of, str(quantile)), value)
    yield Sample("lodeq_merge_size", of, _distribution(stats.merge, MERGE_BOUNDS, 1))
    yield Sample("lodeq_commit_operations_total", of, stats.operations)
    yield Sample("lodeq_commit_bytes_total", of, stats.bytes)
    yield Sample("lodeq_stalls_total", of, stats.stalls)
    yield Sample("lodeq_submissions_waiting", of, shard.waiting)
    yield Sample("lodeq_commits_not_durable", of, shard.not_durable)
    yield Sample("lodeq_shard_poisoned", of, shard.is_poisoned)


def _distribution(found: Histogram, bounds: Sequence[int], unit: float) -> Distribution:
    """A histogram with our bounds: each bucket of the source goes to the first that holds it."""
    counts = [0] * (len(bounds) + 1)
    at = 0
    for upper, count in found.buckets():
        while at < len(bounds) and upper > bounds[at]:
            at += 1
        counts[at] += count
    buckets, seen = [], 0
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        seen += count
        buckets.append((bound / unit, seen))
    return Distribution(buckets, found.total / unit)


def sample_stores(view: EngineView) -> list[Sample]:
    """Samples that RocksDB and the disk give. In any thread; reads no row.

    A shard that is closed, or whose disk fails, gives none: its other metrics say so.
    """
    found: list[Sample] = []
    for index in range(view.shard_count):
        figures = view.figures(index)
        if figures is not None:
            found += _figures(str(index), figures)
    free_bytes = view.disk_free_bytes()
    if free_bytes is not None:
        found.append(Sample("lodeq_disk_free_bytes", (), free_bytes))
    return found


def _figures(shard: str, found: Figures) -> list[Sample]:
    return [
        Sample("lodeq_wal_bytes", (shard,), found.wal_bytes),
        Sample("lodeq_wal_written_bytes_total", (shard,), found.wal_bytes_total),
        Sample("lodeq_flush_written_bytes_total", (shard,), found.flush_bytes_total),
        Sample("lodeq_compaction_read_bytes_total", (shard,), found.compaction_read_bytes_total),
        Sample(
            "lodeq_compaction_written_bytes_total", (shard,), found.compaction_write_bytes_total
        ),
        Sample("lodeq_compaction_pending_bytes", (shard,), found.compaction_pending_bytes),
        Sample("lodeq_table_bytes", (shard,), found.table_bytes),
        Sample("lodeq_memtable_bytes", (shard,), found.memtable_bytes),
        Sample("lodeq_level0_tables", (shard,), found.tables_level0),
    ]
