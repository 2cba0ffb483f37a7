"""Tasks that have ended, one row each: from a snapshot, and from the archive.

A task ends with a result; one that died is also a dead letter, for as long as nobody redrives or
purges it. The two are one row here. What tells two ends of one task apart (died, was redriven, was
completed) is the moment, in milliseconds: a dead letter's own is no finer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import coalesce, col, greatest, lit, to_date, unix_micros, unix_millis

from ....errors import UsageError
from .source import Source
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
    "payload binary, payload_kind string, headers map<string,string>"
)
PARTITIONS: Final = ("day", "tenant", "run")
_DDL: Final = f"{ENDED}, day date, tenant string, run string"
END_KEY: Final = ("id", "ended_ms")
_IDS_MAX: Final = 1000  # so many are looked up one by one

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


def ended(source: Source, queues: Sequence[str] = (), *, payloads: bool = True) -> DataFrame:
    """All that has ended, as of the snapshot: columns of ``ENDED``, ``tenant`` and ``END_KEY``.

    Dead letters cost a pass over the tasks, if there are more than a thousand. ``payloads`` False:
    neither payloads and headers nor values are read; they are null.
    """
    without = () if payloads else ("payload", "payload_kind", "headers", "value", "value_kind")
    results = source.table("results", [name for name in _RESULT if name not in without])
    results = _of(results, queues)
    letters = _of(source.table("dead", _LETTER), queues)
    ids = [bytes(row.id) for row in letters.select("id").limit(_IDS_MAX + 1).collect()]
    if not ids:
        return with_times(_filled(results.withColumnRenamed("error", "reason")))
    tasks = (
        source.table("tasks", [name for name in _TASK if name not in without])
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
    """The columns of ``ENDED`` but the times that are differences, and ``tenant``."""
    columns: list[Column] = []
    for part in ENDED.split(", "):
        name, kind = part.split(" ")
        if not name.endswith("_s"):
            known = col(name) if name in frame.columns else lit(None).cast(kind)
            columns.append(known.alias(name))
    return frame.select(*columns, col("tenant"))


def with_times(frame: DataFrame) -> DataFrame:
    """With ``wait_s``, ``run_s``, ``total_s`` and ``ended_ms``.

    A wait is from when the task could be claimed, so neither its delay nor that of a retry is in
    it, until the lease of its last run. All of them are null for a task that was never leased.
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
    """Whether anything was archived there."""
    folder = local_folder(path)
    return os.path.isdir(folder) and any(name.startswith("day=") for name in os.listdir(folder))


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """What ``archive`` has written: columns of ``ENDED``, ``PARTITIONS`` and ``END_KEY``.

    Raises ``UsageError`` if there is no archive.
    """
    if not has_archive(path):
        raise UsageError(f"{path} holds no archive: `lodeq-spark archive STORE --out {path}` first")
    frame = spark.read.schema(_DDL).parquet(path)
    named = frame.withColumn("tenant", coalesce(col("tenant"), lit("")))
    return named.withColumn("ended_ms", unix_millis(col("finished_at")))


def day_of(frame: DataFrame) -> DataFrame:
    """With its partition ``day``, in UTC."""
    return frame.withColumn("day", to_date(col("finished_at")))
