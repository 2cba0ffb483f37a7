"""``backfill``: load tasks from files into a store once; wrong rows are set aside with reasons.

Read → check every row → set aside rows that cannot be tasks, or whose dedup key another row or a
task of the store holds → stage, publish → wait until the store has ingested the load → count.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql.functions import array, col, count, get, lit, row_number, size, when
from pyspark.storagelevel import StorageLevel

from ...engine.bulk.inbox import Outcome, StoreInfo, store_info, was_published
from ...engine.bulk.manifest import check_conflict, check_job
from ...engine.bulk.snapshots import LATEST, find_snapshot
from ...engine.recovery.dedup_secret import read_secrets
from ...errors import SnapshotNotFoundError
from ..datasource.encoder import TASK_COLUMNS, Policy
from ..datasource.routing import load_tasks
from .frame import files, intake
from .frame.config import StoreConfig, option
from .frame.ingest_wait import load_checks, wait_for_ingest
from .frame.progress import Progress
from .frame.report import Check, Report, equal
from .frame.snapshot_tables import open_tables
from .frame.state import Steps

__all__ = ["BackfillReport", "Config", "Reason", "backfill_frame", "run"]

NONE: Final = "none"
_TWIN: Final = "another row of the load has its dedup key"
_HELD: Final = "a task of the store holds its dedup key"
_REASONS: Final = 20  # in the report, the most frequent ones
_CHECKED: Final = "judge"  # name of the step in the state file


@dataclass(frozen=True, kw_only=True)
class Config(StoreConfig):
    """Options of ``backfill``; see ``StoreConfig``."""

    input: tuple[str, ...] = option("a file or folder to read (may be repeated)")
    format: str = option("of the input", default="parquet", choices=files.FORMATS)
    job: str = option("name of the load, for good: it is loaded once")
    out: str = option("folder for the rows that are set aside")
    column: tuple[str, ...] = option("THEIRS=OURS, where a column has another name", default=())
    ignore_others: bool = option("leave out columns that tasks do not have", default=False)
    queue: str | None = option("for rows that name none", default=None)
    tenant: str = option("for rows that name none", default="")
    max_attempts: int = option("for rows without the column", default=5)
    retention: float = option("seconds for which results are kept", default=3600.0)
    dead_retention: float = option("seconds for which dead letters are kept", default=604_800.0)
    on_conflict: str = option(
        "when a dedup key is taken: refuse the load, leave the row out, or replace the other task",
        default="error",
        choices=("error", "skip", "replace"),
    )
    snapshot: str = option(
        "where taken keys are looked up first: an id, 'latest' if there is one, 'new', 'none'",
        default=LATEST,
    )
    wait: float = option("seconds for a service that has the store open to ingest it", default=600)


class Reason(NamedTuple):
    """A reason why rows were set aside, and the number of rows."""

    reason: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class BackfillReport(Report):
    """``read`` = ``quarantined`` + ``staged``; ``staged`` = ``loaded`` + ``skipped``."""

    load: str
    read: int
    quarantined: int
    staged: int
    loaded: int
    skipped: int
    replaced: int
    reasons: tuple[Reason, ...]
    quarantine: str | None


def run(spark: SparkSession, config: Config, progress: Progress) -> BackfillReport:
    """Read the files, then do the same as ``backfill_frame``."""
    frame = files.read_rows(spark, config.input, config.format, config.column)
    return backfill_frame(frame, config, progress)


def backfill_frame(frame: DataFrame, config: Config, progress: Progress) -> BackfillReport:
    """Load any frame. Columns are those of docs/pipeline.md; ``config.input`` is not used.

    Raises:
        UsageError: an option or a column is wrong; or a service did not ingest it in time.
        StorePathError: there is no store.
    """
    spark = frame.sparkSession
    check_job(config.job)
    check_conflict(config.on_conflict)
    info = store_info(config.store)
    policy = Policy(
        config.queue, config.tenant, config.max_attempts, config.retention, config.dead_retention
    )
    steps = Steps(config.out, f"backfill-{config.job}", info.store_id.hex())
    result, notes = None, tuple[str, ...]()
    is_past = was_published(info.path, config.job)
    if is_past:  # options no longer matter: its rows were checked when it was staged
        progress.skip("check and stage")
        result = steps.done(_CHECKED)
        if result is not None and not result["staged"]:
            result = None  # from a run that loaded nothing
    else:
        checked = intake.checked_rows(
            intake.typed(frame, ignore_others=config.ignore_others),
            policy,
            partial(read_secrets, info.path, info.store_id),
        )
        snapshot, rows = _without_held(spark, _without_twins(checked), config, info)
        rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            result = steps.note(_CHECKED, _check_rows(rows, config, snapshot, progress))
            if result["staged"]:
                _stage(rows, info, config, progress)
        finally:
            rows.unpersist()
    end = Outcome("done", {})
    if result is None or result["staged"]:
        with progress.step("ingest"):
            end = wait_for_ingest(info, config.job, config.wait)
    if result is None:
        result = _result_of(end)
        notes = (f"rows set aside are not in {config.out}: the numbers are those of the load",)
    return BackfillReport(
        job="backfill",
        store=info.path,
        snapshot=result["snapshot"],
        seconds=progress.seconds,
        checks=_checks(info, config.job, end, result),
        notes=notes,
        load=config.job,
        read=result["read"],
        quarantined=result["bad"],
        staged=result["staged"],
        loaded=end.facts.get("tasks", 0),
        skipped=end.facts.get("skipped", 0),
        replaced=end.facts.get("replaced", 0),
        reasons=tuple(Reason(*one) for one in result["reasons"]),
        quarantine=result["quarantine"],
    )


def _result_of(end: Outcome) -> dict[str, Any]:
    """Make the result of a load whose rows were checked elsewhere, from its outcome."""
    staged = end.facts.get("tasks", 0) + end.facts.get("skipped", 0)
    return {
        "read": staged,
        "bad": 0,
        "taken": 0,
        "reasons": [],
        "quarantine": None,
        "snapshot": None,
        "staged": staged,
    }


def _check_rows(
    rows: DataFrame, config: Config, snapshot: str | None, progress: Progress
) -> dict[str, Any]:
    """Count the rows by kind, and set the wrong ones aside.

    Args:
        rows: checked.
        config: of the job.
        snapshot: id of the snapshot where taken keys were looked up, or None.
        progress: of the job.
    """
    first = get(col(intake.ERRORS), 0)
    with progress.step("check"):
        read, bad, taken = rows.agg(
            count(lit(1)),
            count(when(_is_bad(), lit(1))),
            count(when(first.isin(_TWIN, _HELD), lit(1))),
        ).collect()[0]
        reasons = _reasons(rows) if bad else []
    quarantine = None
    if bad:
        with progress.step("set aside"):
            quarantine = _set_aside(rows, config)
    is_refused = taken and config.on_conflict == "error"
    return {
        "read": read,
        "bad": bad,
        "taken": taken if is_refused else 0,
        "reasons": reasons,
        "quarantine": quarantine,
        "snapshot": snapshot,
        "staged": 0 if is_refused else read - bad,
    }


def _stage(rows: DataFrame, info: StoreInfo, config: Config, progress: Progress) -> None:
    names = [name for name in TASK_COLUMNS if name in rows.columns]
    with progress.step("stage"):
        load_tasks(
            rows.where(~_is_bad()).select(*names),
            info.path,
            job=config.job,
            on_conflict=config.on_conflict,
            options=_options(config),
        )


def _options(config: Config) -> dict[str, str | int]:
    options: dict[str, str | int] = {
        "tenant": config.tenant,
        "maxAttempts": config.max_attempts,
        "retention": str(config.retention),
        "deadRetention": str(config.dead_retention),
    }
    if config.queue is not None:
        options["queue"] = config.queue
    return options


def _is_bad() -> Column:
    return size(col(intake.ERRORS)) > 0


def _without_twins(rows: DataFrame) -> DataFrame:
    """Mark rows whose dedup key an earlier row has, in the order in which they were read."""
    if "dedup_key" not in rows.columns:
        return rows
    keyed = rows.where(col(intake.GHOST).isNotNull())
    window = Window.partitionBy(intake.GHOST).orderBy(intake.ROW)
    again = keyed.withColumn("_nth", row_number().over(window))
    words = array(lit(_TWIN))
    marked = again.withColumn(
        intake.ERRORS, when(col("_nth") > 1, words).otherwise(col(intake.ERRORS))
    )
    return rows.where(col(intake.GHOST).isNull()).unionByName(marked.drop("_nth"))


def _without_held(
    spark: SparkSession, rows: DataFrame, config: Config, info: StoreInfo
) -> tuple[str | None, DataFrame]:
    """Mark rows whose dedup key a task of the store holds. The ingest checks them again."""
    if config.snapshot == NONE or "dedup_key" not in rows.columns:
        return None, rows
    if config.on_conflict == "replace":
        return None, rows
    if config.snapshot == LATEST:
        try:
            find_snapshot(info.path, LATEST)
        except SnapshotNotFoundError:
            return None, rows
    tables = open_tables(spark, config.store, config.snapshot)
    now = lit(tables.snapshot.created_ms)
    ghosts = tables.table("ghosts", ["dedup_hash", "expires_at"])
    held = ghosts.where(
        col("expires_at").isNull() | (col("expires_at").cast("double") * 1000 > now)
    ).select(col("dedup_hash").alias(intake.GHOST), lit(True).alias("_held"))
    joined = rows.join(held, intake.GHOST, "left")
    words = array(lit(_HELD))
    errors = when(col("_held") & ~_is_bad(), words).otherwise(col(intake.ERRORS))
    return tables.id, joined.withColumn(intake.ERRORS, errors).drop("_held")


def _reasons(rows: DataFrame) -> list[Reason]:
    """Return the most frequent reasons."""
    first = get(col(intake.ERRORS), 0)
    found = rows.where(_is_bad()).groupBy(first.alias("reason")).agg(count(lit(1)).alias("n"))
    top = found.orderBy(col("n").desc(), "reason").limit(_REASONS).collect()
    return [Reason(row["reason"], row["n"]) for row in top]


def _set_aside(rows: DataFrame, config: Config) -> str:
    target = os.path.join(config.out, config.job)
    bad = rows.where(_is_bad()).select(files.FILE, files.RAW, intake.ERRORS)
    bad.write.mode("overwrite").json(target)
    return target


def _checks(info: StoreInfo, job: str, end: Outcome, result: dict[str, Any]) -> tuple[Check, ...]:
    if result["taken"]:
        words = f"{result['taken']:,} rows; --on-conflict skip leaves them out. Nothing was loaded"
        return (Check("no dedup key is taken", False, words),)
    read, bad, staged = result["read"], result["bad"], result["staged"]
    if not staged and end.state == "done":
        return (equal("every row is accounted for", read=read, set_aside=bad),)
    return (
        equal("every row is accounted for", read=read, staged_and_set_aside=staged + bad),
        *load_checks(info, job, end, staged),
    )
