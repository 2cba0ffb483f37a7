"""One look at an engine, as numbers by metric: from memory and RocksDB's own figures, never a scan.

What memory tells is of the engine's loop, of queues by the look that all share
(``service.shared.queue_looks``). RocksDB's figures may be asked for in any thread; they are not
part of that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ... import __version__
from ...coalescer.stats import Histogram
from ...engine.recovery.health import disk_free_bytes
from ...engine.store.upkeep import Figures, figures_of
from ...errors import ClosedError, StorageError
from ...repository.api.engine import Engine
from ...repository.model.values import EngineStats
from ...repository.state.queue_state import Shard
from ..shared.queue_looks import Look

__all__ = ["MERGE_BOUNDS", "Distribution", "Sample", "sample_engine", "sample_stores"]

# A bound is exact where a bucket of ours ends: below 16, and one below the powers of two.
MERGE_BOUNDS: Final = (1, 2, 3, 4, 6, 8, 12, 15, 23, 31, 47, 63, 127, 255, 511, 1023, 4095)
_US_BOUNDS: Final = tuple(1 << power for power in range(4, 25))  # 16 µs to 17 s
_QUANTILES: Final = (0.5, 0.99)
_STATES: Final = ("ready", "delayed", "leased", "dead")


class Distribution(NamedTuple):
    """A histogram: (upper bound, how many are at most that), in order; the last is infinite."""

    buckets: Sequence[tuple[float, int]]
    total: float


class Sample(NamedTuple):
    """One value of a metric. ``labels`` in the order of the table."""

    name: str
    labels: tuple[str, ...]
    value: float | Distribution


def sample_engine(
    engine: Engine, look: Look, *, loop_lag_s: float, queues_max: int
) -> list[Sample]:
    """What memory tells, of queues by a look. On the engine's loop; it does not wait.

    Raises:
        ClosedError: the engine is closed.
    """
    core = engine._core
    core.check()
    stats, health = look.stats, engine._runtime.health()
    found = [
        Sample("lodeq_up", (), 1),
        Sample("lodeq_info", (__version__, engine.durability, str(engine.shards)), 1),
        Sample("lodeq_healthy", (), health.ok),
        Sample("lodeq_anomalies", (), len(stats.anomalies)),
        Sample("lodeq_oldest_lease_age_seconds", (), stats.oldest_lease_age or 0.0),
        Sample("lodeq_reaper_lag_seconds", (), stats.reaper_lag),
        Sample("lodeq_loop_lag_seconds", (), loop_lag_s),
        Sample("lodeq_disk_low", (), core.is_disk_low),
    ]
    found += _totals(stats)
    found += _queues(look, queues_max)
    for shard in core.shards:
        found += _commits(shard)
    return found


def _totals(stats: EngineStats) -> list[Sample]:
    return [
        Sample("lodeq_tasks_enqueued_total", (), stats.enqueued_total),
        Sample("lodeq_tasks_claimed_total", (), stats.claimed_total),
        Sample("lodeq_tasks_completed_total", (), stats.completed_total),
        Sample("lodeq_tasks_nacked_total", (), stats.nacked_total),
        Sample("lodeq_tasks_buried_total", (), stats.dead_total),
        Sample("lodeq_tasks_expired_total", (), stats.expired_total),
        Sample("lodeq_duplicates_total", (), stats.duplicates_total),
        Sample("lodeq_leases_expired_total", (), stats.reaped_total),
    ]


def _queues(look: Look, queues_max: int) -> Iterator[Sample]:
    """Over all tenants: their number has no bound, and each label value is a series for ever."""
    for queue in look.names[:queues_max]:
        stats = look.queues[queue].stats
        for state in _STATES:
            yield Sample("lodeq_tasks", (queue, state), getattr(stats, state))
        yield Sample("lodeq_results", (queue,), stats.results)
        yield Sample("lodeq_oldest_ready_age_seconds", (queue,), stats.oldest_ready_age or 0.0)
        yield Sample("lodeq_queue_paused", (queue,), stats.is_paused)
    yield Sample("lodeq_queues_left_out", (), max(0, len(look.names) - queues_max))


def _commits(shard: Shard) -> Iterator[Sample]:
    co, of = shard.co, (str(shard.index),)
    stats = co.stats
    for name, found in (("commit", stats.commit_us), ("fsync", stats.fsync_us)):
        yield Sample(f"lodeq_{name}_seconds", of, _distribution(found, _US_BOUNDS, 1e6))
        for quantile in _QUANTILES:
            value = found.percentile(quantile * 100) / 1e6
            yield Sample(f"lodeq_{name}_quantile_seconds", (*of, str(quantile)), value)
    yield Sample("lodeq_merge_size", of, _distribution(stats.merge, MERGE_BOUNDS, 1))
    is_poisoned = co.failure is not None
    yield Sample("lodeq_commit_operations_total", of, stats.operations)
    yield Sample("lodeq_commit_bytes_total", of, stats.bytes)
    yield Sample("lodeq_stalls_total", of, stats.stalls)
    yield Sample("lodeq_submissions_waiting", of, co.waiting)
    yield Sample("lodeq_commits_not_durable", of, max(0, co.applied_number - co.durable_number))
    yield Sample("lodeq_shard_poisoned", of, is_poisoned)


def _distribution(found: Histogram, bounds: Sequence[int], unit: float) -> Distribution:
    """Ours has buckets of its own; each goes below the first bound that is not less than it."""
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


def sample_stores(engine: Engine) -> list[Sample]:
    """What RocksDB and the disk tell. In any thread; reads no row. Nothing of what cannot tell."""
    found: list[Sample] = []
    for shard in engine._core.shards:
        try:
            figures = figures_of(shard.store)
        except (ClosedError, StorageError, OSError):
            continue  # closed meanwhile, or its disk has failed: the shard's own metrics say so
        if figures is not None:
            found += _figures(str(shard.index), figures)
    if engine.path is not None and os.path.isdir(engine.path):
        found.append(Sample("lodeq_disk_free_bytes", (), disk_free_bytes(engine.path)))
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
