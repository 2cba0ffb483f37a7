"""The figures of ``analytics``: small tables made from ends (one row each), tasks or events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import (
    avg,
    coalesce,
    col,
    count,
    create_map,
    date_trunc,
    element_at,
    lag,
    lit,
    percentile_approx,
    substring,
    timestamp_millis,
    unix_micros,
    when,
)
from pyspark.sql.functions import max as most
from pyspark.sql.functions import min as least
from pyspark.sql.functions import sum as total

__all__ = [
    "QueueFigures",
    "backlog",
    "failures",
    "lanes",
    "queue_figures",
    "retries",
    "runs",
    "sla",
    "throughput",
]

OUTCOMES: Final = ("completed", "dead", "expired", "cancelled")
_LANE: Final = ("queue", "tenant")
_SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_ACCURACY: Final = 10_000  # percentiles are within a ten-thousandth of the rank
_REASON: Final = 120  # characters by which reasons are grouped


class QueueFigures(NamedTuple):
    """Figures of a queue and tenant in the report; times in seconds."""

    queue: str
    tenant: str
    ended: int
    completed: int
    dead: int
    wait_s_p50: float | None
    wait_s_p95: float | None
    run_s_p50: float | None
    run_s_p95: float | None


def queue_figures(row: Mapping[str, Any]) -> QueueFigures:
    """Make the report's figures from a row of ``lanes``."""
    return QueueFigures(**{name: row[name] for name in QueueFigures._fields})


def _percentiles(column: str) -> list[Column]:
    found = [
        percentile_approx(column, share, _ACCURACY).alias(f"{column}_{name}")
        for name, share in _SHARES.items()
    ]
    return [*found, most(column).alias(f"{column}_max")]


def _number(is_it: Column) -> Column:
    return coalesce(total(is_it.cast("bigint")), lit(0))


def lanes(ends: DataFrame) -> DataFrame:
    """Count ends by queue and tenant: outcomes, attempts, percentiles of wait, run and total."""
    return (
        ends.groupBy(*_LANE)
        .agg(
            count(lit(1)).alias("ended"),
            *(_number(col("outcome") == one).alias(one) for one in OUTCOMES),
            avg("attempts").alias("attempts_mean"),
            most("attempts").alias("attempts_max"),
            *_percentiles("wait_s"),
            *_percentiles("run_s"),
            *_percentiles("total_s"),
        )
        .orderBy(*_LANE)
    )


def throughput(ends: DataFrame) -> DataFrame:
    """Count ends by hour (UTC), queue and tenant."""
    hour = date_trunc("hour", col("finished_at")).alias("hour")
    return (
        ends.groupBy(hour, *_LANE)
        .agg(
            count(lit(1)).alias("ended"),
            _number(col("outcome") == "completed").alias("completed"),
            _number(col("outcome") != "completed").alias("failed"),
            percentile_approx("wait_s", 0.95, _ACCURACY).alias("wait_s_p95"),
            percentile_approx("run_s", 0.95, _ACCURACY).alias("run_s_p95"),
        )
        .orderBy("hour", *_LANE)
    )


def failures(ends: DataFrame) -> DataFrame:
    """Count the reasons of failures, most frequent first, by their first characters."""
    reason = substring("reason", 1, _REASON).alias("reason")
    return (
        ends.where("outcome <> 'completed'")
        .groupBy("queue", "outcome", reason)
        .agg(
            count(lit(1)).alias("ended"),
            least("finished_at").alias("first_at"),
            most("finished_at").alias("last_at"),
        )
        .orderBy(col("ended").desc(), "queue", "outcome", "reason")
    )


def sla(ends: DataFrame, limits: Mapping[str, float]) -> DataFrame:
    """Count tasks by queue that ended late, from when they might run, or never completed.

    Cancelled tasks are left out. The limit of ``""`` is that of every other queue.
    """
    named = {queue: seconds for queue, seconds in limits.items() if queue}
    limit: Column = lit(limits.get("")).cast("double")
    if named:
        pairs = [lit(part) for pair in named.items() for part in pair]
        limit = coalesce(element_at(create_map(*pairs), col("queue")).cast("double"), limit)
    late = coalesce(col("total_s") > col("limit_s"), lit(False)) | (col("outcome") != "completed")
    return (
        ends.withColumn("limit_s", limit)
        .where("limit_s IS NOT NULL AND outcome <> 'cancelled'")
        .groupBy("queue", "limit_s")
        .agg(
            count(lit(1)).alias("ended"),
            _number(late).alias("breached"),
            (_number(late) / count(lit(1))).alias("share"),
            most("total_s").alias("worst_s"),
        )
        .orderBy(col("share").desc(), "queue")
    )


def retries(ends: DataFrame) -> DataFrame:
    """Count ends by queue and attempts, with an estimate of the time of earlier runs.

    ``again_s`` assumes that each earlier run took as long as the last; ``runs`` has exact times.
    """
    again = (col("attempts") - 1) * coalesce(col("run_s"), lit(0.0))
    return (
        ends.groupBy("queue", "attempts")
        .agg(
            count(lit(1)).alias("ended"),
            _number(col("outcome") == "completed").alias("completed"),
            coalesce(total(when(col("attempts") > 1, again)), lit(0.0)).alias("again_s"),
        )
        .orderBy("queue", "attempts")
    )


def backlog(tasks: DataFrame, now_ms: int) -> DataFrame:
    """Count unended tasks by queue, tenant and state, with the age of the oldest."""
    now = unix_micros(timestamp_millis(lit(now_ms)))
    return (
        tasks.groupBy(*_LANE, "state")
        .agg(
            count(lit(1)).alias("tasks"),
            ((now - unix_micros(least("created_at"))) / 1e6).alias("oldest_s"),
        )
        .orderBy(*_LANE, "state")
    )


def runs(events: DataFrame) -> DataFrame:
    """Measure every run in the journal, by queue and tenant: waits, runs, and lost time.

    A wait ends with a claim and begins with the event before it. It includes delays, which the
    journal does not record. ``vain_s`` is the time of runs that were nacked or that died.
    """
    events = events.dropDuplicates(["shard", "number", "task_id", "kind"])
    order = Window.partitionBy("task_id").orderBy("sequence", "at")
    seconds = (unix_micros("at") - unix_micros(lag("at").over(order))) / 1e6
    steps = events.where("task_id IS NOT NULL").select(
        *_LANE, "kind", lag("kind").over(order).alias("before"), seconds.alias("seconds")
    )
    is_wait = (col("kind") == "claimed") & col("before").isNotNull()
    is_run = (col("before") == "claimed") & col("kind").isin("completed", "nacked", "died")
    return (
        steps.withColumn("waited_s", when(is_wait, col("seconds")))
        .withColumn("ran_s", when(is_run, col("seconds")))
        .groupBy(*_LANE)
        .agg(
            _number(col("kind") == "claimed").alias("runs"),
            _number((col("before") == "claimed") & (col("kind") == "nacked")).alias("nacked"),
            _number((col("before") == "claimed") & (col("kind") == "died")).alias("died"),
            *_percentiles("waited_s"),
            *_percentiles("ran_s"),
            coalesce(total(when(col("kind").isin("nacked", "died"), col("ran_s"))), lit(0.0)).alias(
                "vain_s"
            ),
        )
        .orderBy(*_LANE)
    )
