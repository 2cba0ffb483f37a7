"""Ended tasks, one row for each end: from a snapshot, and from the archive.

A task ends with a result; one that died is also a dead letter until it is redriven or purged. Both
are one row here. Two ends of one task (died, was redriven, was completed) differ in their time, in
milliseconds: a dead letter has no finer one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import coalesce, col, greatest, lit, to_date, unix_micros, unix_millis

from ....errors import UsageError
from .snapshot_tables import SnapshotTables
from .state import local_folder

__all__ = [
    "ENDED",
    "END_KEY",
    "PARTITIONS",
    "day_of",
    "ended",
    "has_archive",
    "read_archive",
    "with_times",
]

ENDED: Final = (
    "id binary, task_id string, shard int, queue string, priority int, outcome string, "
    "attempts int, max_attempts int, reason string, worker string, created_at timestamp, "
    "run_at timestamp, ready_at timestamp, leased_at timestamp, finished_at timestamp, "
    "wait_s double, run_s double, total_s double, value binary, value_kind string, "
    "payload binary, payload_kind string, headers map<string,string>, "
    "function string, preview string, labels map<string,string>"
)
PARTITIONS: Final = ("day", "tenant", "run")
_DDL: Final = f"{ENDED}, day date, tenant string, run string"
END_KEY: Final = ("id", "ended_ms")
_IDS_MAX: Final = 1000  # ids that a filter looks up one by one

_RESULT: Final = (
    "id",
    "task_id",
    "shard",
    "queue",
    "tenant",
    "priority",
    "outcome",
    "attempts",
    "error",
    "worker",
    "created_at",
    "ready_at",
    "leased_at",
    "finished_at",
    "value",
    "value_kind",
    "function",
    "preview",
    "labels",
)
_LETTER: Final = (
    "id",
    "task_id",
    "shard",
    "queue",
    "tenant",
    "priority",
    "attempts",
    "reason",
    "died_at",
)
_TASK: Final = (
    "id",
    "state",
    "max_attempts",
    "created_at",
    "run_at",
    "payload",
    "payload_kind",
    "headers",
)


def ended(
    tables: SnapshotTables, queues: Sequence[str] = (), *, payloads: bool = True
) -> DataFrame:
    """Return all ends in the snapshot: columns of ``ENDED``, ``tenant`` and ``END_KEY``.

    More than a thousand dead letters cost a pass over all tasks. Without ``payloads``, payloads,
    headers and values are not read, and are null.
    """
    without = () if payloads else ("payload", "payload_kind", "headers", "value", "value_kind")
    results = tables.table("results", [name for name in _RESULT if name not in without])
    results = _of(results, queues)
    letters = _of(tables.table("dead", _LETTER), queues)
    ids = [bytes(row.id) for row in letters.select("id").limit(_IDS_MAX + 1).collect()]
    if not ids:
        return with_times(_filled(results.withColumnRenamed("error", "reason")))
    tasks = (
        tables.table("tasks", [name for name in _TASK if name not in without])
        .where("state = 'dead'")
        .drop("state")
    )
    if len(ids) <= _IDS_MAX:
        tasks = tasks.where(col("id").isin(ids))
    tasks = tasks.withColumnRenamed("created_at", "task_created_at")
    letters = letters.select(
        col("id"),
        *(col(name).alias(f"letter_{name}") for name in _LETTER if name != "id"),
    ).join(tasks, "id", "left")
    died = results.where("outcome = 'dead'").join(letters, "id", "full_outer")
    for name in ("task_id", "shard", "queue", "tenant", "priority", "attempts"):
        died = died.withColumn(name, coalesce(col(name), col(f"letter_{name}")))
    died = (
        died.withColumn("outcome", lit("dead"))
        .withColumn("reason", coalesce(col("letter_reason"), col("error")))
        .withColumn("created_at", coalesce(col("created_at"), col("task_created_at")))
        .withColumn("finished_at", coalesce(col("finished_at"), col("letter_died_at")))
    )
    others = results.where("outcome <> 'dead'").withColumnRenamed("error", "reason")
    return with_times(_filled(others).unionByName(_filled(died)))


def _of(frame: DataFrame, queues: Sequence[str]) -> DataFrame:
    return frame.where(col("queue").isin(list(queues))) if queues else frame


def _filled(frame: DataFrame) -> DataFrame:
    """Select ``tenant`` and the columns of ``ENDED``, except durations; missing ones are null."""
    columns: list[Column] = []
    for part in ENDED.split(", "):
        name, kind = part.split(" ")
        if not name.endswith("_s"):
            known = col(name) if name in frame.columns else lit(None).cast(kind)
            columns.append(known.alias(name))
    return frame.select(*columns, col("tenant"))


def with_times(frame: DataFrame) -> DataFrame:
    """Add ``wait_s``, ``run_s``, ``total_s`` and ``ended_ms``.

    A wait begins when the task could be claimed, so it has neither the delay nor the backoff in
    it, and ends with the lease of the last run. All are null for a task that was never leased.
    """

    def between(start: Column, end: Column) -> Column:
        return (greatest(unix_micros(end) - unix_micros(start), lit(0)) / 1e6).cast("double")

    ready = coalesce(greatest(col("ready_at"), col("run_at")), col("created_at"))
    eligible = greatest(col("created_at"), col("run_at"))
    names = [part.split(" ")[0] for part in ENDED.split(", ")]
    made = {
        "wait_s": between(ready, col("leased_at")),
        "run_s": between(col("leased_at"), col("finished_at")),
        "total_s": between(eligible, col("finished_at")),
    }
    columns = [made[name].alias(name) if name in made else col(name) for name in names]
    ended_ms = unix_millis(col("finished_at")).alias("ended_ms")
    return frame.select(*columns, col("tenant"), ended_ms)


def has_archive(path: str) -> bool:
    """Return whether there is an archive at ``path``."""
    folder = local_folder(path)
    return os.path.isdir(folder) and any(name.startswith("day=") for name in os.listdir(folder))


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """Read what ``archive`` has written: columns of ``ENDED``, ``PARTITIONS`` and ``END_KEY``.

    Raises ``UsageError`` if there is no archive.
    """
    if not has_archive(path):
        raise UsageError(
            f"no archive in {path}: run `lodeq-spark archive STORE --out {path}` first"
        )
    frame = spark.read.schema(_DDL).parquet(path)
    named = frame.withColumn("tenant", coalesce(col("tenant"), lit("")))
    return named.withColumn("ended_ms", unix_millis(col("finished_at")))


def day_of(frame: DataFrame) -> DataFrame:
    """Add the partition column ``day``, in UTC."""
    return frame.withColumn("day", to_date(col("finished_at")))
