"""``analytics``: waits, runs, failures, lateness, throughput and skew, as tables and as a page.

The figures are of a snapshot and, with ``--archive``, of the archive; every end counts once. Each
figure is a small table, written as Parquet, CSV or JSON, and all of them make one HTML page.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from ...engine.runtime.clock import SystemClock
from ...errors import UsageError
from . import figures, skew
from .frame.config import option
from .frame.ended import END_KEY, ended, read_archive
from .frame.progress import Progress
from .frame.report import Check, Report, equal
from .frame.snapshot_tables import SnapshotConfig, SnapshotTables, open_tables
from .frame.state import local_folder
from .page import Page, write_page

__all__ = ["AnalyticsReport", "Config", "run"]

_FORMATS: Final = ("parquet", "csv", "json")
_SHOWN: Final = 500  # rows of a table that the page shows
# CSV as in RFC 4180: a reason may have several lines and quotes; an empty tenant is not null.
_TIMES: Final[dict[str, str | bool]] = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
_READ: Final[dict[str, dict[str, str | bool]]] = {
    "csv": {"header": True, "escape": '"', "multiLine": True, "nullValue": "\0"}
}
_WRITTEN: Final[dict[str, dict[str, str | bool]]] = {
    "json": _TIMES,
    "csv": _TIMES
    | {
        "header": True,
        "escape": '"',
        "ignoreLeadingWhiteSpace": False,
        "ignoreTrailingWhiteSpace": False,
    },
}


@dataclass(frozen=True, kw_only=True)
class Config(SnapshotConfig):
    """Options of ``analytics``; see ``StoreConfig``. ``sla``: seconds for all, or by queue."""

    out: str = option("folder for the tables and the page")
    archive: str | None = option("an archive whose ends are counted as well", default=None)
    journal: str | None = option(
        "a lifecycle journal of the store: exact waits of every run, cost of retries", default=None
    )
    format: str = option("of the tables", default="parquet", choices=_FORMATS)
    sla: tuple[str, ...] = option(
        "seconds within which tasks must end after they may run: 30, or mail=2.5 for a queue",
        default=(),
    )
    shards: tuple[str, ...] = option(
        "another shard count to project to (may be repeated)", default=("1", "2", "4", "8", "16")
    )

    def __post_init__(self) -> None:
        self.limits()
        self.counts()
        if self.format not in _FORMATS:
            raise UsageError(f"format {self.format!r} is not one of {', '.join(_FORMATS)}")

    def limits(self) -> dict[str, float]:
        """Return the SLA's seconds by queue; ``""`` is for every other queue."""
        found = {}
        for text in self.sla:
            queue, _, seconds = text.rpartition("=")
            try:
                found[queue] = float(seconds)
            except ValueError:
                raise UsageError(f"sla: expected SECONDS or QUEUE=SECONDS, got {text!r}") from None
        return found

    def counts(self) -> list[int]:
        """Return the shard counts to project to."""
        try:
            return sorted({int(text) for text in self.shards})
        except ValueError:
            raise UsageError(f"shards: expected whole numbers, got {self.shards!r}") from None


@dataclass(frozen=True, kw_only=True)
class AnalyticsReport(Report):
    """``ended``: number of ends. ``tables``: rows of each written table."""

    ended: int
    page: str
    tables: Mapping[str, int]
    lanes: tuple[figures.QueueFigures, ...]


def run(spark: SparkSession, config: Config, progress: Progress) -> AnalyticsReport:
    """Compute the figures, write the tables and the page."""
    tables = open_tables(spark, config.store, config.snapshot)
    ends = _ends(spark, tables, config).persist()
    try:
        frames = _frames(spark, tables, ends, config)
        written: dict[str, list[dict[str, Any]]] = {}
        unlike: list[str] = []
        for name, frame in frames.items():
            with progress.step(name.replace("_", " ")):
                written[name] = _write(frame, config, name, unlike)
        with progress.step("projection"):
            slots = [skew.SlotRows(**row) for row in written["slots"]]
            now = spark.createDataFrame(skew.shards(slots, tables.shards), skew.SHARDS)
            written["shards"] = _write(now, config, "shards", unlike)
            projected = skew.project(slots, tables.shards, config.counts())
            frame = spark.createDataFrame(projected, skew.PROJECTED)
            written["projection"] = _write(frame, config, "projection", unlike)
        total = ends.count()
    finally:
        ends.unpersist()
    page = os.path.join(local_folder(config.out), "report.html")
    with progress.step("page"):
        made = Page(tables.root, tables.id, SystemClock().wall_us(), total, config.limits())
        shown = {name: rows[:_SHOWN] for name, rows in written.items()}
        write_page(page, made, shown)
    return AnalyticsReport(
        job="analytics",
        store=tables.root,
        snapshot=tables.id,
        seconds=progress.seconds,
        checks=_checks(written, total, unlike),
        ended=total,
        page=page,
        tables={name: len(rows) for name, rows in written.items()},
        lanes=tuple(figures.queue_figures(row) for row in written["lanes"]),
    )


def _ends(spark: SparkSession, tables: SnapshotTables, config: Config) -> DataFrame:
    columns = (
        *END_KEY,
        "queue",
        "tenant",
        "shard",
        "outcome",
        "attempts",
        "reason",
        "created_at",
        "finished_at",
        "wait_s",
        "run_s",
        "total_s",
    )
    ends = ended(tables, payloads=False).select(*columns)
    if config.archive is not None:
        past = read_archive(spark, config.archive).select(*columns)
        ends = past.unionByName(ends.join(past.select(*END_KEY), list(END_KEY), "left_anti"))
    return ends


def _frames(
    spark: SparkSession, tables: SnapshotTables, ends: DataFrame, config: Config
) -> dict[str, DataFrame]:
    backlog = tables.table("tasks", ["id", "shard", "queue", "tenant", "state", "created_at"])
    frames = {
        "lanes": figures.lanes(ends),
        "throughput": figures.throughput(ends),
        "failures": figures.failures(ends),
        "retries": figures.retries(ends),
        "backlog": figures.backlog(backlog, tables.snapshot.created_ms),
        "slots": skew.slots(backlog, ends),
    }
    if limits := config.limits():
        frames["sla"] = figures.sla(ends, limits)
    if config.journal is not None:
        read = spark.read.format("lodeq").option("table", "journal")
        read = read.option("columns", "task_id,queue,tenant,at,kind,attempts,sequence,number,shard")
        events = read.option("journal", config.journal).load(tables.root)
        frames["runs"] = figures.runs(events)
    return frames


def _write(frame: DataFrame, config: Config, name: str, unlike: list[str]) -> list[dict[str, Any]]:
    """Write a table as one file, and return its rows for the page.

    The rows are collected once and then written, so page, table and report show the same numbers.

    Args:
        frame: the figure.
        config: of the job.
        name: of the table.
        unlike: gets the name if the table does not read back equal.
    """
    path = os.path.join(config.out, name)
    spark, rows = frame.sparkSession, frame.collect()
    made = spark.createDataFrame(rows, frame.schema).coalesce(1)
    options = _WRITTEN.get(config.format, {})
    made.write.mode("overwrite").format(config.format).options(**options).save(path)
    read = spark.read.schema(frame.schema).format(config.format)
    back = read.options(**_READ.get(config.format, {})).load(path).collect()
    if Counter(map(tuple, back)) != Counter(map(tuple, rows)):
        unlike.append(name)
    return [row.asDict() for row in rows]


def _checks(
    written: Mapping[str, list[dict[str, Any]]], total: int, unlike: list[str]
) -> tuple[Check, ...]:
    """Check that each figure has every end, every failure a reason, and tables read back equal."""
    sums = {
        name: sum(row["ended"] for row in written[name])
        for name in ("lanes", "throughput", "retries", "slots", "shards")
    }
    return (
        equal("every end is in each figure", ends=total, **sums),
        equal(
            "every failure has a reason",
            failed=sum(row["failed"] for row in written["throughput"]),
            by_reason=sum(row["ended"] for row in written["failures"]),
        ),
        Check("tables read back as written", not unlike, ", ".join(unlike) or f"{len(written)}"),
    )
