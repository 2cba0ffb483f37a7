"""Every metric there is: its name, kind, labels, and what it says.

The collector makes exactly these; the page, the dashboard and the alert rules name no other (a test
compares them). Units last, in base units; a counter ends in ``_total`` and counts since the engine
was opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

__all__ = ["METRICS", "Kind", "Metric"]

Kind = Literal["gauge", "counter", "histogram"]


class Metric(NamedTuple):
    """One family."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_QUEUE: Final = ("queue",)
_SHARD: Final = ("shard",)

_TABLE: Final = (
    Metric("lodeq_up", "gauge", (), "1 while the engine answers; all others are missing at 0"),
    Metric("lodeq_info", "gauge", ("version", "durability", "shards"), "1, with what it is"),
    Metric("lodeq_healthy", "gauge", (), "1 if Engine.health finds nothing"),
    Metric("lodeq_anomalies", "gauge", (), "Inconsistencies met and settled since it was opened"),
    # queues
    Metric("lodeq_tasks", "gauge", (*_QUEUE, "state"), "Tasks: ready, delayed, leased, dead"),
    Metric("lodeq_results", "gauge", _QUEUE, "Results that are kept"),
    Metric("lodeq_oldest_ready_age_seconds", "gauge", _QUEUE, "How long a task waits at most"),
    Metric("lodeq_queue_paused", "gauge", _QUEUE, "1 while claims get nothing"),
    Metric("lodeq_queues_left_out", "gauge", (), "Queues beyond the limit, told only here"),
    # what happened
    Metric("lodeq_tasks_enqueued_total", "counter", (), "Tasks added"),
    Metric("lodeq_tasks_claimed_total", "counter", (), "Leases granted"),
    Metric("lodeq_tasks_completed_total", "counter", (), "Tasks completed"),
    Metric("lodeq_tasks_nacked_total", "counter", (), "Attempts that failed"),
    Metric("lodeq_tasks_buried_total", "counter", (), "Tasks that became dead letters"),
    Metric("lodeq_tasks_expired_total", "counter", (), "Tasks whose TTL ended unclaimed"),
    Metric("lodeq_duplicates_total", "counter", (), "Enqueues whose dedup key was held"),
    Metric("lodeq_leases_expired_total", "counter", (), "Leases that the reaper took back"),
    # what is late
    Metric("lodeq_oldest_lease_age_seconds", "gauge", (), "How long a task is worked on at most"),
    Metric("lodeq_reaper_lag_seconds", "gauge", (), "How late the reaper is"),
    Metric("lodeq_loop_lag_seconds", "gauge", (), "How late the loop was at most, of late"),
    # commits
    Metric("lodeq_commit_seconds", "histogram", _SHARD, "What writing a group takes"),
    Metric("lodeq_commit_quantile_seconds", "gauge", (*_SHARD, "quantile"),
           "p50 and p99 of the same, since it was opened"),
    Metric("lodeq_fsync_seconds", "histogram", _SHARD, "What making a group durable takes"),
    Metric("lodeq_fsync_quantile_seconds", "gauge", (*_SHARD, "quantile"),
           "p50 and p99 of the same, since it was opened"),
    Metric("lodeq_merge_size", "histogram", _SHARD, "Submissions that share a commit"),
    Metric("lodeq_commit_operations_total", "counter", _SHARD, "Rows written or deleted"),
    Metric("lodeq_commit_bytes_total", "counter", _SHARD, "Bytes of commits"),
    Metric("lodeq_stalls_total", "counter", _SHARD, "Commits that RocksDB refused for a moment"),
    Metric("lodeq_submissions_waiting", "gauge", _SHARD, "Submissions not applied yet"),
    Metric("lodeq_commits_not_durable", "gauge", _SHARD, "Commits a power cut might lose now"),
    Metric("lodeq_shard_poisoned", "gauge", _SHARD, "1 if it takes no writes until it is reopened"),
    # RocksDB and the disk
    Metric("lodeq_wal_bytes", "gauge", _SHARD, "Logs that are there, replayed at open"),
    Metric("lodeq_wal_written_bytes_total", "counter", _SHARD, "Bytes written to logs"),
    Metric("lodeq_flush_written_bytes_total", "counter", _SHARD, "Bytes of tables out of memory"),
    Metric("lodeq_compaction_read_bytes_total", "counter", _SHARD, "Bytes compaction read"),
    Metric("lodeq_compaction_written_bytes_total", "counter", _SHARD, "Bytes compaction wrote"),
    Metric("lodeq_compaction_pending_bytes", "gauge", _SHARD, "Bytes that compaction owes"),
    Metric("lodeq_table_bytes", "gauge", _SHARD, "Tables on disk"),
    Metric("lodeq_memtable_bytes", "gauge", _SHARD, "Rows in memory, not yet in tables"),
    Metric("lodeq_level0_tables", "gauge", _SHARD, "Tables a read may have to ask each"),
    Metric("lodeq_disk_free_bytes", "gauge", (), "What the file system of the store has left"),
    Metric("lodeq_disk_low", "gauge", (), "1 while enqueues are refused for lack of space"),
)  # fmt: skip

METRICS: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _TABLE}
