"""``replay``: load archived tasks into a queue again, as new tasks with the old id in a header.

Only tasks archived with their payload can be replayed: dead letters. A completed task leaves a
result, and its payload is gone.

The name of a load is a hash of the selection and of the rows found, so it is loaded once, and an
archive that has grown makes another load. Ends that were replayed before are left out of that one:
each has a dedup key.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Final

import xxhash
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import (
    bit_xor,
    coalesce,
    col,
    concat_ws,
    count,
    create_map,
    lit,
    map_concat,
    map_filter,
    when,
    xxhash64,
)

from ...engine.bulk.inbox import store_info, was_published
from ...engine.bulk.manifest import check_job
from ...errors import UsageError
from ..datasource.routing import load_tasks
from .frame.config import StoreConfig, option
from .frame.ended import END_KEY, read_archive
from .frame.ingest_wait import WAIT_S, load_checks, wait_for_ingest
from .frame.progress import Progress
from .frame.report import Check, Report

__all__ = ["HEADER", "KNOWN_S", "Config", "ReplayReport", "run"]

HEADER: Final = "replayed_from"
KNOWN_S: Final = 365 * 86_400  # a queue remembers replayed ends for so long


@dataclass(frozen=True, kw_only=True)
class Config(StoreConfig):
    """Options of ``replay``; see ``StoreConfig``. A row must match all filters."""

    archive: str = option("the archive to read")
    queue: tuple[str, ...] = option("only of this queue (may be repeated)", default=())
    tenant: tuple[str, ...] = option("only of this tenant (may be repeated)", default=())
    outcome: tuple[str, ...] = option("only this outcome (may be repeated)", default=("dead",))
    since: str | None = option("ended on this day (UTC) or later: 2026-11-01", default=None)
    until: str | None = option("ended before this day (UTC)", default=None)
    where: str | None = option(
        "SQL on the archive's columns: \"reason LIKE '%502%'\"", default=None
    )
    to_queue: str | None = option("into this queue instead of the old one", default=None)
    to_tenant: str | None = option("for this tenant instead of the old one", default=None)
    priority: int | None = option("0 to 9, instead of the old one", default=None)
    job: str | None = option(
        "name of the load, for good; it loads all selected tasks. By default the selection is the "
        "name, and tasks replayed into that queue before are left out",
        default=None,
    )
    dry_run: bool = option("count, and write nothing", default=False)
    wait: float = option("seconds for a service that has the store open", default=WAIT_S)

    def __post_init__(self) -> None:
        for day in (self.since, self.until):
            if day is not None:
                date.fromisoformat(day)  # ValueError: a usage error

    @property
    def load(self) -> str:
        """Name of the load, or its beginning: a hash of the rows found is the rest."""
        if self.job is not None:
            return check_job(self.job)
        what = (
            self.archive,
            self.queue,
            self.tenant,
            self.outcome,
            self.since,
            self.until,
            self.where,
            self.to_queue,
            self.to_tenant,
            self.priority,
        )
        return f"replay-{xxhash.xxh3_64_hexdigest(repr(what).encode())}"


@dataclass(frozen=True, kw_only=True)
class ReplayReport(Report):
    """``selected`` = ``staged`` + ``without_payload``; ``staged`` = ``loaded`` + ``skipped``.

    ``skipped`` tasks were replayed before.
    """

    load: str
    selected: int
    without_payload: int
    staged: int
    loaded: int
    skipped: int


def run(spark: SparkSession, config: Config, progress: Progress) -> ReplayReport:
    """Select, stage, publish, and check that the load was ingested."""
    info = store_info(config.store)
    chosen = _chosen(spark, config)
    with progress.step("select"):
        found = when(col("payload").isNotNull(), xxhash64(*END_KEY))
        counts = chosen.agg(
            count(lit(1)).alias("rows"),
            count("payload").alias("with_payload"),
            bit_xor(found).alias("digest"),
        ).collect()[0]
    selected, staged = counts["rows"], counts["with_payload"]
    load = config.load if config.job is not None else _named(config, staged, counts["digest"])
    loaded, skipped, checks = 0, 0, tuple[Check, ...]()
    notes = []
    if selected > staged:
        notes.append("only dead tasks are archived with their payload")
    if config.dry_run:
        notes.append("nothing was written")
    elif staged:
        if was_published(info.path, load):
            progress.skip("load")
            notes.append(f"load {load} was published before; --job NAME makes another")
        else:
            with progress.step("load"):
                load_tasks(_tasks(chosen, config), info.path, job=load, on_conflict="skip")
        with progress.step("ingest"):
            end = wait_for_ingest(info, load, config.wait)
        checks = load_checks(info, load, end, staged)
        loaded, skipped = end.facts.get("tasks", 0), end.facts.get("skipped", 0)
        if skipped:
            notes.append(f"{skipped:,} were replayed before; --job NAME replays them again")
    return ReplayReport(
        job="replay",
        store=info.path,
        seconds=progress.seconds,
        checks=checks,
        notes=tuple(notes),
        load=load,
        selected=selected,
        without_payload=selected - staged,
        staged=staged,
        loaded=loaded,
        skipped=skipped,
    )


def _named(config: Config, staged: int, digest: int | None) -> str:
    found = xxhash.xxh3_64_hexdigest(f"{staged} {digest}".encode())
    return f"{config.load}-{found}"


def _chosen(spark: SparkSession, config: Config) -> DataFrame:
    frame = read_archive(spark, config.archive)
    for name, values in (
        ("queue", config.queue),
        ("tenant", config.tenant),
        ("outcome", config.outcome),
    ):
        if values:
            frame = frame.where(col(name).isin(list(values)))
    if config.since is not None:
        frame = frame.where(col("day") >= lit(config.since).cast("date"))
    if config.until is not None:
        frame = frame.where(col("day") < lit(config.until).cast("date"))
    if config.where is not None:
        try:
            frame = frame.where(config.where)
        except AnalysisException as exc:
            raise UsageError(f"where {config.where!r}: {exc}") from exc
    return frame.dropDuplicates(list(END_KEY))


def _tasks(chosen: DataFrame, config: Config) -> DataFrame:
    """Make new tasks without delay, TTL and dedup key: those ended with the old tasks."""
    origin = create_map(lit(HEADER), col("task_id"))
    none = create_map().cast("map<string,string>")
    # A task that is replayed again names its last id.
    other = map_filter(coalesce(col("headers"), none), lambda name, _: name != HEADER)
    columns = {
        "queue": lit(config.to_queue) if config.to_queue is not None else col("queue"),
        "tenant": lit(config.to_tenant) if config.to_tenant is not None else col("tenant"),
        "priority": lit(config.priority) if config.priority is not None else col("priority"),
        "payload": col("payload"),
        "payload_kind": col("payload_kind"),
        "max_attempts": col("max_attempts"),
        "headers": map_concat(other, origin),
        "function": col("function"),
        "preview": col("preview"),
        "labels": col("labels"),
    }
    if config.job is None:
        columns["dedup_key"] = concat_ws(" ", lit("replay"), col("task_id"), col("ended_ms"))
        columns["dedup_window"] = lit(KNOWN_S)
    ready = chosen.where("payload IS NOT NULL")
    return ready.select(*(value.alias(name) for name, value in columns.items()))
