"""``backfill``: tasks from files into a store, once, and the bad ones set aside with reasons.

Read → judge every row → set aside what cannot be a task, or has a dedup key that another row or a
task of the store holds → stage, publish → wait until the store has taken it in → count.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql.functions import array, col, count, get, lit, row_number, size, when
from pyspark.storagelevel import StorageLevel

from ...engine.bulk.inbox import Outcome, StoreInfo, is_published, store_info
from ...engine.bulk.manifest import check_conflict, check_job
from ...engine.bulk.snapshots import LATEST, find_snapshot
from ...engine.recovery.dedup_secret import read_secrets
from ...errors import SnapshotNotFoundError
from ..datasource.encoder import TASK_COLUMNS, Policy
from ..datasource.routing import load_tasks
from .frame import files, intake
from .frame.config import StoreConfig, option
from .frame.progress import Progress
from .frame.report import Check, Report, equal
from .frame.source import open_source
from .frame.state import Steps
from .frame.taken import load_checks, taken_in

__all__ = ["BackfillReport", "Config", "Reason", "backfill_frame", "run"]

NONE: Final = "none"
_TWIN: Final = "another row of the load has its dedup key"
_HELD: Final = "a task of the store holds its dedup key"
_REASONS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Config(StoreConfig):
    """See ``StoreConfig``."""

    input: tuple[str, ...] = option("a file or folder to read (may be repeated)")
    format: str = option("of the input", default="parquet", choices=files.FORMATS)
    job: str = option("names this load for good: it comes in once")
    out: str = option("folder for the rows that are set aside")
    column: tuple[str, ...] = option("THEIRS=OURS, where a column has another name", default=())
    ignore_others: bool = option("columns that no task has are left out", default=False)
    queue: str | None = option("for rows that name none", default=None)
    tenant: str = option("for rows that name none", default="")
    max_attempts: int = option("for rows that do not say", default=5)
    retention: float = option("seconds for which results are kept", default=3600.0)
    dead_retention: float = option("seconds for which dead letters are kept", default=604_800.0)
    on_conflict: str = option(
        "dedup keys that are held: refuse the load, leave the row out, or replace the holder",
        default="error",
        choices=("error", "skip", "replace"),
    )
    snapshot: str = option(
        "in which held keys are looked for first: an id, 'latest' if there is one, 'new', 'none'",
        default=LATEST,
    )
    wait: float = option("seconds for a service that has the store open to take it in", default=600)


class Reason(NamedTuple):
    """Why rows were set aside, and how many."""

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
    """Read the files, and go on as ``backfill_frame``."""
    frame = files.read_rows(spark, config.input, config.format, config.column)
    return backfill_frame(frame, config, progress)


def backfill_frame(frame: DataFrame, config: Config, progress: Progress) -> BackfillReport:
    """Load any frame. Columns are those of docs/pipeline.md; ``config.input`` is not looked at.

    Raises:
        UsageError: of the config, of columns; or a service has not taken it in, in time.
        StorePathError: no store is there.
    """
    spark = frame.sparkSession
    check_job(config.job)
    check_conflict(config.on_conflict)
    info = store_info(config.store)
    policy = Policy(
        config.queue, config.tenant, config.max_attempts, config.retention, config.dead_retention
    )
    steps = Steps(config.out, f"backfill-{config.job}", info.store_id.hex())
    said, notes = None, tuple[str, ...]()
    is_past = is_published(info.path, config.job)
    if is_past:  # whatever it is told now: it was judged when it was staged
        progress.skip("judge and stage")
        said = steps.done("judge")
        if said is not None and not said["staged"]:
            said = None  # of a run that loaded nothing
    else:
        judged = intake.judged(
            intake.typed(frame, ignore_others=config.ignore_others),
            policy,
            partial(read_secrets, info.path, info.store_id),
        )
        snapshot, rows = _without_held(spark, _without_twins(judged), config, info)
        rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            said = steps.note("judge", _judge(rows, config, snapshot, progress))
            if said["staged"]:
                _stage(rows, info, config, progress)
        finally:
            rows.unpersist()
    end = Outcome("done", {})
    if said is None or said["staged"]:
        with progress.step("take in"):
            end = taken_in(info, config.job, config.wait)
    if said is None:
        said = _said_of(end)
        notes = (f"what was set aside is not in {config.out}: the numbers are those of the load",)
    return BackfillReport(
        job="backfill",
        store=info.path,
        snapshot=said["snapshot"],
        seconds=progress.seconds,
        checks=_checks(info, config.job, end, said),
        notes=notes,
        load=config.job,
        read=said["read"],
        quarantined=said["bad"],
        staged=said["staged"],
        loaded=end.facts.get("tasks", 0),
        skipped=end.facts.get("skipped", 0),
        replaced=end.facts.get("replaced", 0),
        reasons=tuple(Reason(*one) for one in said["reasons"]),
        quarantine=said["quarantine"],
    )


def _said_of(end: Outcome) -> dict[str, Any]:
    """What the store knows of a load that was judged elsewhere."""
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


def _judge(
    rows: DataFrame, config: Config, snapshot: str | None, progress: Progress
) -> dict[str, Any]:
    """How many rows there are of what; the bad ones are set aside."""
    first = get(col(intake.ERRORS), 0)
    with progress.step("judge"):
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
    """Of rows with one dedup key the first stays: of the order in which they were read."""
    if "dedup_key" not in rows.columns:
        return rows
    keyed = rows.where(col(intake.GHOST).isNotNull())
    window = Window.partitionBy(intake.GHOST).orderBy(intake.ROW)
    again = keyed.withColumn("_nth", row_number().over(window))
    words = array(lit(_TWIN))
    told = again.withColumn(
        intake.ERRORS, when(col("_nth") > 1, words).otherwise(col(intake.ERRORS))
    )
    return rows.where(col(intake.GHOST).isNull()).unionByName(told.drop("_nth"))


def _without_held(
    spark: SparkSession, rows: DataFrame, config: Config, info: StoreInfo
) -> tuple[str | None, DataFrame]:
    """Keys that tasks of the store hold. Whoever takes the load in looks again."""
    if config.snapshot == NONE or "dedup_key" not in rows.columns:
        return None, rows
    if config.on_conflict == "replace":
        return None, rows
    if config.snapshot == LATEST:
        try:
            find_snapshot(info.path, LATEST)
        except SnapshotNotFoundError:
            return None, rows
    source = open_source(spark, config.store, config.snapshot)
    now = lit(source.snapshot.created_ms)
    ghosts = source.table("ghosts", ["dedup_hash", "expires_at"])
    held = ghosts.where(
        col("expires_at").isNull() | (col("expires_at").cast("double") * 1000 > now)
    ).select(col("dedup_hash").alias(intake.GHOST), lit(True).alias("_held"))
    joined = rows.join(held, intake.GHOST, "left")
    words = array(lit(_HELD))
    told = when(col("_held") & ~_is_bad(), words).otherwise(col(intake.ERRORS))
    return source.id, joined.withColumn(intake.ERRORS, told).drop("_held")


def _reasons(rows: DataFrame) -> list[Reason]:
    """The most frequent ones."""
    first = get(col(intake.ERRORS), 0)
    found = rows.where(_is_bad()).groupBy(first.alias("reason")).agg(count(lit(1)).alias("n"))
    top = found.orderBy(col("n").desc(), "reason").limit(_REASONS).collect()
    return [Reason(row["reason"], row["n"]) for row in top]


def _set_aside(rows: DataFrame, config: Config) -> str:
    target = os.path.join(config.out, config.job)
    bad = rows.where(_is_bad()).select(files.FILE, files.RAW, intake.ERRORS)
    bad.write.mode("overwrite").json(target)
    return target


def _checks(info: StoreInfo, job: str, end: Outcome, said: dict[str, Any]) -> tuple[Check, ...]:
    if said["taken"]:
        words = f"{said['taken']:,} rows; --on-conflict skip leaves them out. Nothing was loaded"
        return (Check("no dedup key is taken", False, words),)
    read, bad, staged = said["read"], said["bad"], said["staged"]
    if not staged and end.state == "done":
        return (equal("every row is accounted for", read=read, set_aside=bad),)
    return (
        equal("every row is accounted for", read=read, staged_and_set_aside=staged + bad),
        *load_checks(info, job, end, staged),
    )
