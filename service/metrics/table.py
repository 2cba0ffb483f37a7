"""The table of metrics: name, kind, labels and help text of each.

The collector exports exactly these. docs/metrics.md, the Grafana dashboard and the alert rules name
no other; a test compares them. Names end in their unit, a base unit; a counter ends in ``_total``
and counts since the engine was opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

__all__ = ["METRICS", "Kind", "Metric"]

Kind = Literal["gauge", "counter", "histogram"]


class Metric(NamedTuple):
    """One metric family."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_QUEUE: Final = ("queue",)
_SHARD: Final = ("shard",)
_FUNCTION: Final = ("queue", "function")

_TABLE: Final = (
    Metric("lodeq_up", "gauge", (),
           "1 while the engine answers; when it is 0, no other metric is exported"),
    Metric("lodeq_info", "gauge", ("version", "durability", "shards", "build"),
           "Always 1; version, configuration and build are its labels"),
    Metric("lodeq_healthy", "gauge", (), "1 if Engine.health finds no problem"),
    Metric("lodeq_anomalies", "gauge", (), "Inconsistencies found and repaired since open"),
    # queues
    Metric("lodeq_tasks", "gauge", (*_QUEUE, "state"),
           "Tasks by state: ready, delayed, waiting, leased, dead"),
    Metric("lodeq_results", "gauge", _QUEUE, "Stored results"),
    Metric("lodeq_oldest_ready_age_seconds", "gauge", _QUEUE, "Age of the oldest ready task"),
    Metric("lodeq_queue_paused", "gauge", _QUEUE, "1 while the queue is paused"),
    Metric("lodeq_queues_left_out", "gauge", (),
           "Queues beyond the limit, which have no metrics of their own"),
    # totals
    Metric("lodeq_tasks_enqueued_total", "counter", (), "Tasks enqueued"),
    Metric("lodeq_tasks_claimed_total", "counter", (), "Leases granted"),
    Metric("lodeq_tasks_completed_total", "counter", (), "Tasks completed"),
    Metric("lodeq_tasks_nacked_total", "counter", (), "Nacks"),
    Metric("lodeq_tasks_buried_total", "counter", (), "Tasks that became dead letters"),
    Metric("lodeq_tasks_expired_total", "counter", (), "Tasks that ended by their TTL"),
    Metric(
        "lodeq_dead_letters_dropped_total",
        "counter",
        (),
        "Dead letters deleted because their queue had more than its bound",
    ),
    Metric("lodeq_duplicates_total", "counter", (), "Enqueues whose dedup key another task held"),
    Metric(
        "lodeq_redact_failures_total", "counter", (), "Texts not stored because redact failed"
    ),
    Metric("lodeq_leases_expired_total", "counter", (), "Leases that expired and were reaped"),
    # functions
    Metric("lodeq_function_starts_total", "counter", _FUNCTION,
           "Leases granted on tasks of a function"),
    Metric("lodeq_function_ends_total", "counter", (*_FUNCTION, "outcome"),
           "Runs by how they ended: completed, failed, dead, released, cancelled, expired"),
    Metric("lodeq_function_run_seconds", "histogram", _FUNCTION,
           "Time from the claim to the end of runs that completed or failed"),
    # lateness
    Metric("lodeq_oldest_lease_age_seconds", "gauge", (), "Age of the oldest lease"),
    Metric("lodeq_reaper_lag_seconds", "gauge", (), "Lateness of the reaper"),
    Metric("lodeq_loop_lag_seconds", "gauge", (),
           "Greatest lateness of the event loop in the last minute or two"),
    # commits
    Metric("lodeq_commit_seconds", "histogram", _SHARD, "Time to write a commit group"),
    Metric("lodeq_commit_quantile_seconds", "gauge", (*_SHARD, "quantile"),
           "p50 and p99 of the commit time since open"),
    Metric("lodeq_fsync_seconds", "histogram", _SHARD,
           "Time of an fsync, with its wait for the store's thread"),
    Metric("lodeq_fsync_quantile_seconds", "gauge", (*_SHARD, "quantile"),
           "p50 and p99 of the fsync time since open"),
    Metric("lodeq_merge_size", "histogram", _SHARD, "Writes that share one commit"),
    Metric("lodeq_commit_operations_total", "counter", _SHARD, "Rows written or deleted"),
    Metric("lodeq_commit_bytes_total", "counter", _SHARD, "Bytes written by commits"),
    Metric("lodeq_stalls_total", "counter", _SHARD,
           "Commits that RocksDB refused and that were retried"),
    Metric("lodeq_submissions_waiting", "gauge", _SHARD, "Writes not applied yet"),
    Metric("lodeq_commits_not_durable", "gauge", _SHARD, "Commits that a power cut could lose now"),
    Metric("lodeq_shard_poisoned", "gauge", _SHARD,
           "1 if the shard takes no writes until it is reopened"),
    # RocksDB and the disk
    Metric("lodeq_wal_bytes", "gauge", _SHARD,
           "Size of the write-ahead logs, which an open replays"),
    Metric("lodeq_wal_written_bytes_total", "counter", _SHARD, "Bytes written to write-ahead logs"),
    Metric("lodeq_flush_written_bytes_total", "counter", _SHARD,
           "Bytes of memtables written to tables"),
    Metric("lodeq_compaction_read_bytes_total", "counter", _SHARD, "Bytes that compaction read"),
    Metric("lodeq_compaction_written_bytes_total", "counter", _SHARD,
           "Bytes that compaction wrote"),
    Metric("lodeq_compaction_pending_bytes", "gauge", _SHARD,
           "Compaction backlog: bytes still to be rewritten"),
    Metric("lodeq_table_bytes", "gauge", _SHARD, "Size of the tables on disk"),
    Metric("lodeq_memtable_bytes", "gauge", _SHARD, "Size of the memtables"),
    Metric("lodeq_level0_tables", "gauge", _SHARD,
           "Tables in level 0; a read may have to search each"),
    Metric("lodeq_disk_free_bytes", "gauge", (), "Free space of the store's file system"),
    Metric("lodeq_disk_low", "gauge", (),
           "1 while enqueues are refused because the disk is nearly full"),
    # replicas only
    Metric("lodeq_replica_leads", "gauge", _SHARD, "1 if this node leads the shard"),
    Metric("lodeq_replica_has_leader", "gauge", _SHARD,
           "1 if this node knows who leads the shard"),
    Metric("lodeq_replica_lag_entries", "gauge", _SHARD,
           "Entries of the log that this node has yet to apply"),
    Metric("lodeq_replica_log_first", "gauge", _SHARD, "Index of the first entry in the log"),
    Metric("lodeq_replica_log_last", "gauge", _SHARD, "Index of the last entry in the log"),
    Metric("lodeq_replica_members", "gauge", (), "Live nodes of the cluster, this one included"),
    Metric("lodeq_replica_session_seconds", "gauge", (),
           "Time for which the node's session still holds; 0 without one"),
    Metric("lodeq_replica_clock_skew_seconds", "gauge", (),
           "How far this node's clock is ahead of the members' median"),
    Metric("lodeq_replica_problems", "gauge", (),
           "What is wrong with this replica, counted; lodeq cluster status says it in words"),
    Metric("lodeq_replica_log_used_bytes", "gauge", (), "What the log service holds"),
    Metric("lodeq_replica_log_quota_bytes", "gauge", (),
           "At which the log service refuses every write"),
    Metric("lodeq_replica_checkpoint_age_seconds", "gauge", (),
           "Age of this node's last checkpoint"),
)  # fmt: skip

METRICS: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _TABLE}
