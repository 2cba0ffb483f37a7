"""``archive``: what has ended, from a snapshot into Parquet; then a plan to purge it by.

Each run has partitions of its own: ``day=…/tenant=…/run=<snapshot>``, overwritten as a whole when
the run is done again. What an earlier run has archived is left out, so the archive holds every end
once. It is read back and compared with the snapshot, and only then is there a plan.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import xxhash
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import bit_xor, coalesce, col, count, lit, xxhash64
from pyspark.sql.functions import max as most
from pyspark.sql.functions import min as least
from pyspark.sql.functions import sum as total

from ...engine.bulk.inbox import store_info
from ...engine.offline.purge_plan import PurgeFile, PurgePlan, write_plan, write_rows
from .frame.config import option
from .frame.ended import END_KEY, PARTITIONS, day_of, ended, has_archive, read_archive
from .frame.progress import Progress
from .frame.report import Check, Report, equal
from .frame.source import SnapshotConfig, Source, open_source
from .frame.state import FOLDER, Steps, local_folder

__all__ = ["ArchiveReport", "Config", "run"]

_DIGESTED: Final = ("id", "ended_ms", "outcome", "attempts", "value", "payload")
_MARKS: Final = "shard int, kind string, name string, rows bigint, xxh3_128 string"


@dataclass(frozen=True, kw_only=True)
class Config(SnapshotConfig):
    """See ``StoreConfig``."""

    out: str = option("folder of the archive; all runs go into one")
    queue: tuple[str, ...] = option("only this queue (may be repeated)", default=())
    purge: bool = option("write a plan for the store to forget what is archived", default=False)


@dataclass(frozen=True, kw_only=True)
class ArchiveReport(Report):
    """``ended``: rows of the snapshot. ``written`` by this run; ``known`` from earlier ones."""

    run: str
    ended: int
    written: int
    known: int
    first_day: str | None
    last_day: str | None
    purge_plan: str | None


def run(spark: SparkSession, config: Config, progress: Progress) -> ArchiveReport:
    """Archive, check, and plan the purge."""
    source = open_source(spark, config.store, config.snapshot)
    name = _run_name(source, config)
    frame = day_of(ended(source, config.queue))
    steps = Steps(config.out, "archive", config, name)
    said = steps.done("write")
    if said is None:
        with progress.step("write"):
            said = steps.note("write", _write(frame, config.out, name))
    else:
        progress.skip("write")
    with progress.step("read back"):
        checks = _checks(frame, config.out, name, said)
    plan = None
    if config.purge and all(check.is_ok for check in checks):
        with progress.step("plan the purge"):
            plan = _plan(frame, source, config.out, name)
    steps.forget()
    notes: tuple[str, ...] = ()
    if plan is not None:
        notes = (f"purge with `await engine.purge_archived({plan!r})` or `lodeq forget`",)
    return ArchiveReport(
        job="archive",
        store=source.root,
        snapshot=source.id,
        seconds=progress.seconds,
        checks=checks,
        notes=notes,
        run=name,
        ended=said["ended"],
        written=said["written"],
        known=said["ended"] - said["written"],
        first_day=said["first"],
        last_day=said["last"],
        purge_plan=plan,
    )


def _run_name(source: Source, config: Config) -> str:
    """Of what is archived: the same selection of the same snapshot is the same run."""
    if not config.queue:
        return source.id
    return f"{source.id}-{xxhash.xxh3_64_hexdigest(' '.join(sorted(set(config.queue))).encode())}"


def _write(frame: DataFrame, out: str, name: str) -> dict[str, Any]:
    spark = frame.sparkSession
    fresh = frame
    if has_archive(out):
        days = frame.agg(least("day").alias("first"), most("day").alias("last")).first()
        past = read_archive(spark, out).where(col("run") != name)
        if days is not None and days["first"] is not None:
            past = past.where(col("day").between(days["first"], days["last"]))
        fresh = frame.join(past.select(*END_KEY), list(END_KEY), "left_anti")
    seen, written = Observation(), Observation()
    counted = frame.observe(seen, count(lit(1)).alias("rows")) if fresh is frame else fresh
    shown = counted.observe(
        written,
        count(lit(1)).alias("rows"),
        _digest().alias("digest"),
        least("day").cast("string").alias("first"),
        most("day").cast("string").alias("last"),
    )
    columns = [column for column in frame.columns if column not in (*PARTITIONS, "ended_ms")]
    (
        shown.withColumn("run", lit(name))
        .repartition("day", "tenant", "shard")
        .select(*columns, *PARTITIONS)
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy(*PARTITIONS)
        .parquet(out)
    )
    got = written.get
    all_rows = seen.get["rows"] if fresh is frame else frame.count()
    return {
        "ended": all_rows,
        "written": got["rows"],
        "digest": got["digest"],
        "first": got["first"],
        "last": got["last"],
    }


def _digest() -> Any:
    """The same for the same rows, in whatever order."""
    return coalesce(bit_xor(xxhash64(*map(col, _DIGESTED))), lit(0))


def _checks(frame: DataFrame, out: str, name: str, said: dict[str, Any]) -> tuple[Check, ...]:
    """Of what is on the disk now."""
    if not has_archive(out):
        return (equal("every end is archived", in_snapshot=said["ended"], in_archive=0),)
    whole = read_archive(frame.sparkSession, out)
    mine = whole.where(col("run") == name)
    got = mine.agg(count(lit(1)).alias("rows"), _digest().alias("digest")).collect()[0]
    times = whole.groupBy(*END_KEY).agg(count(lit(1)).alias("times"))
    joined = frame.select(*END_KEY).join(times, list(END_KEY), "left")
    found = joined.agg(
        count(lit(1)).alias("rows"),
        total((col("times") >= 1).cast("bigint")).alias("there"),
        total((col("times") > 1).cast("bigint")).alias("twice"),
    ).collect()[0]
    there, twice = found["there"] or 0, found["twice"] or 0
    return (
        equal("rows read back", written=said["written"], read=got["rows"]),
        Check(
            "contents read back",
            got["digest"] == said["digest"],
            f"digest {got['digest'] & (1 << 64) - 1:016x}",
        ),
        equal("every end is archived", in_snapshot=found["rows"], in_archive=there),
        Check("none is archived twice", twice == 0, f"{twice:,} are"),
    )


def _plan(frame: DataFrame, source: Source, out: str, name: str) -> str:
    """What may go: rows of the snapshot that the archive has, as it was read back."""
    info = store_info(source.root)
    folder = os.path.join(local_folder(out), FOLDER, f"purge-{name}")
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier attempt
    os.makedirs(folder)
    archived = read_archive(frame.sparkSession, out).select(*END_KEY).distinct()
    rows = frame.select("shard", *END_KEY).join(archived, list(END_KEY), "left_semi")
    letters = source.table("dead", ["id", "died_at"]).selectExpr(
        "id", "unix_millis(died_at) AS ended_ms"
    )
    results = source.table("results", ["id", "finished_at"]).selectExpr(
        "id", "unix_millis(finished_at) AS ended_ms"
    )
    found = None
    for kind, there in (("results", results), ("dead", letters)):
        part = rows.join(there, list(END_KEY), "left_semi").withColumn("kind", lit(kind))
        found = part if found is None else found.unionByName(part)
    if found is None:
        raise TypeError("no kinds")
    marks = (
        found.select("shard", "kind", *END_KEY)
        .repartitionById(source.shards, col("shard"))
        .sortWithinPartitions("kind", "id")
        .mapInArrow(_writer(folder), _MARKS)
        .collect()
    )
    files = tuple(sorted(PurgeFile(*mark) for mark in marks))
    return write_plan(PurgePlan(folder, info.store_id, info.shards, source.id, name, files))


def _writer(folder: str) -> Any:
    """Runs in Spark's workers: rows of one shard, sorted, to its files."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - of the worker

        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        rows = _Rows(batches)
        marks = []
        while (head := rows.head) is not None:
            shard, kind = head
            stem = f"{kind}-{shard}-{attempt}.rows"
            marks.append(write_rows(folder, stem, shard, kind, rows.of(shard, kind)))
        columns = list(zip(*marks, strict=True)) or [()] * 5
        kinds = (pa.int32(), pa.string(), pa.string(), pa.int64(), pa.string())
        arrays = [pa.array(part, kind) for part, kind in zip(columns, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=list(PurgeFile._fields))

    return write


class _Rows:
    """Rows of one partition, a (shard, kind) after the other."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._rows = (
            row
            for batch in batches
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        self._next = next(self._rows, None)

    @property
    def head(self) -> tuple[int, str] | None:
        """Of which shard and kind the next row is."""
        return None if self._next is None else (self._next[0], self._next[1])

    def of(self, shard: int, kind: str) -> Iterator[tuple[bytes, int]]:
        """The rows of that shard and kind, which are next."""
        while self._next is not None and (row := self._next)[:2] == (shard, kind):
            yield row[2], row[3]
            self._next = next(self._rows, None)
