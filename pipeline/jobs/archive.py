"""``archive``: write the ended tasks of a snapshot to Parquet, and a plan for their purge.

Each run has partitions of its own, ``day=…/tenant=…/run=<snapshot>``, which are overwritten as a
whole when the run is repeated. Ends that an earlier run has archived are left out, so the archive
has every end once. The archive is read back and compared with the snapshot before a plan is made.
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
from ...engine.files.disk_errors import disk_error
from ...engine.files.paths import fsync_dir, fsync_file
from ...engine.offline.purge_plan import PurgeFile, PurgePlan, write_plan, write_rows
from .frame.config import option
from .frame.ended import END_KEY, PARTITIONS, day_of, ended, has_archive, read_archive
from .frame.progress import Progress
from .frame.report import Check, Report, equal
from .frame.snapshot_tables import SnapshotConfig, SnapshotTables, open_tables
from .frame.state import FOLDER, Steps, local_folder

__all__ = ["ArchiveReport", "Config", "run"]

_DIGESTED: Final = ("id", "ended_ms", "outcome", "attempts", "value", "payload")
_MARKS: Final = "shard int, kind string, name string, rows bigint, xxh3_128 string"


@dataclass(frozen=True, kw_only=True)
class Config(SnapshotConfig):
    """Options of ``archive``; see ``StoreConfig``."""

    out: str = option("folder of the archive; all runs go into one")
    queue: tuple[str, ...] = option("only this queue (may be repeated)", default=())
    purge: bool = option("write a plan to purge the archived tasks from the store", default=False)


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
    """Write the archive, check it, and plan the purge."""
    tables = open_tables(spark, config.store, config.snapshot)
    name = _run_name(tables, config)
    frame = day_of(ended(tables, config.queue))
    steps = Steps(config.out, "archive", config, name)
    result = steps.done("write")
    if result is None:
        with progress.step("write"):
            result = steps.note("write", _write(frame, config.out, name))
    else:
        progress.skip("write")
    with progress.step("read back"):
        checks = _checks(frame, config.out, name, result)
    plan = None
    if config.purge and all(check.is_ok for check in checks):
        with progress.step("sync"):
            _sync(config.out)
        with progress.step("plan the purge"):
            plan = _plan(frame, tables, config.out, name)
    steps.forget()
    notes: tuple[str, ...] = ()
    if plan is not None:
        notes = (f"purge with `await engine.purge_archived({plan!r})` or `lodeq forget`",)
    return ArchiveReport(
        job="archive",
        store=tables.root,
        snapshot=tables.id,
        seconds=progress.seconds,
        checks=checks,
        notes=notes,
        run=name,
        ended=result["ended"],
        written=result["written"],
        known=result["ended"] - result["written"],
        first_day=result["first"],
        last_day=result["last"],
        purge_plan=plan,
    )


def _run_name(tables: SnapshotTables, config: Config) -> str:
    """Name the run: the same selection of the same snapshot has the same name."""
    if not config.queue:
        return tables.id
    return f"{tables.id}-{xxhash.xxh3_64_hexdigest(' '.join(sorted(set(config.queue))).encode())}"


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
    """Return a digest of all rows that does not depend on their order."""
    return coalesce(bit_xor(xxhash64(*map(col, _DIGESTED))), lit(0))


def _checks(frame: DataFrame, out: str, name: str, result: dict[str, Any]) -> tuple[Check, ...]:
    """Compare the archive on disk with the snapshot."""
    if not has_archive(out):
        return (equal("every end is archived", in_snapshot=result["ended"], in_archive=0),)
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
        equal("rows read back", written=result["written"], read=got["rows"]),
        Check(
            "contents read back",
            got["digest"] == result["digest"],
            f"digest {got['digest'] & (1 << 64) - 1:016x}",
        ),
        equal("every end is archived", in_snapshot=found["rows"], in_archive=there),
        Check("no end is archived twice", twice == 0, f"{twice:,} are"),
    )


def _sync(out: str) -> None:
    """Make the archive durable, which Spark does not: what is purged is in it alone.

    All of it, for a plan names what earlier runs have archived, too.

    Raises:
        StorageError: the disk.
    """
    root = os.path.abspath(local_folder(out))
    try:
        for folder, _, names in os.walk(root):
            for name in names:
                if name.endswith(".parquet"):
                    fsync_file(os.path.join(folder, name))
            fsync_dir(folder)
        fsync_dir(os.path.dirname(root))
    except OSError as exc:
        raise disk_error(exc, root) from exc


def _plan(frame: DataFrame, tables: SnapshotTables, out: str, name: str) -> str:
    """Plan the purge of rows of the snapshot that were read back from the archive."""
    info = store_info(tables.root)
    folder = os.path.join(local_folder(out), FOLDER, f"purge-{name}")
    shutil.rmtree(folder, ignore_errors=True)  # left by an earlier attempt
    os.makedirs(folder)
    archived = read_archive(frame.sparkSession, out).select(*END_KEY).distinct()
    rows = frame.select("shard", *END_KEY).join(archived, list(END_KEY), "left_semi")
    letters = tables.table("dead", ["id", "died_at"]).selectExpr(
        "id", "unix_millis(died_at) AS ended_ms"
    )
    results = tables.table("results", ["id", "finished_at"]).selectExpr(
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
        .repartitionById(tables.shards, col("shard"))
        .sortWithinPartitions("kind", "id")
        .mapInArrow(_writer(folder), _MARKS)
        .collect()
    )
    files = tuple(sorted(PurgeFile(*mark) for mark in marks))
    return write_plan(PurgePlan(folder, info.store_id, info.shards, tables.id, name, files))


def _writer(folder: str) -> Any:
    """Return a function for Spark's workers that writes the sorted rows of a shard to files."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - the worker's

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
    """Rows of one partition, ordered by (shard, kind)."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._rows = (
            row
            for batch in batches
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        self._next = next(self._rows, None)

    @property
    def head(self) -> tuple[int, str] | None:
        """Shard and kind of the next row; None at the end."""
        return None if self._next is None else (self._next[0], self._next[1])

    def of(self, shard: int, kind: str) -> Iterator[tuple[bytes, int]]:
        """Yield the next rows, of that shard and kind."""
        while self._next is not None and (row := self._next)[:2] == (shard, kind):
            yield row[2], row[3]
            self._next = next(self._rows, None)
