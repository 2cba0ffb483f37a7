"""``migrate``: load the files of other queues into a store, many sources at once.

Importers and dedup keys are those of ``lodeq import``: each leaves out tasks that the other has
loaded. Every source is one Spark task, and all of them become one load. A load has only tasks that
have never run. So earlier attempts go to a header, and other entries (dead letters, dedup keys of
ended tasks, unreadable entries) are set aside as Parquet, with the reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, lit
from pyspark.storagelevel import StorageLevel

from ...engine.bulk.inbox import store_info, was_published
from ...engine.bulk.manifest import check_job
from ...engine.recovery.dedup_secret import Secrets
from ...engine.runtime.clock import SystemClock
from ...errors import LodeqError, UsageError
from ...repository.model.arguments import TIME_MS_MAX
from ...repository.model.values import Limits
from ...service.transfer.entries import Entry, Foreign, Unreadable
from ...service.transfer.import_run import Targets, is_expired, task_of
from ...service.transfer.source_kinds import KINDS, open_source
from ..datasource.encoder import Policy, TaskEncoder
from ..datasource.routing import routed
from .frame.config import StoreConfig, option
from .frame.ingest_wait import WAIT_S, load_checks, wait_for_ingest
from .frame.progress import Progress
from .frame.report import Report, equal
from .frame.state import local_folder

__all__ = ["ATTEMPTS", "Config", "MigrateReport", "SetAside", "run"]

ATTEMPTS: Final = "migrated_attempts"
_ROWS: Final = 2048  # in a batch
_TASK: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("tenant", pa.string()),
        ("payload", pa.binary()),
        ("payload_kind", pa.string()),
        ("priority", pa.int32()),
        ("run_at", pa.timestamp("us", "UTC")),
        ("expires_at", pa.timestamp("us", "UTC")),
        ("dedup_key", pa.string()),
        ("dedup_window", pa.float64()),
        ("headers", pa.map_(pa.string(), pa.string())),
    ]
)
_READ: Final = pa.schema(
    [
        *_TASK,
        ("_why", pa.string()),
        ("_source", pa.string()),
        ("_file", pa.string()),
        ("_offset", pa.int64()),
        ("_number", pa.int64()),
    ]
)
_DDL: Final = (
    "queue string, tenant string, payload binary, payload_kind string, priority int, "
    "run_at timestamp, expires_at timestamp, dedup_key string, dedup_window double, "
    "headers map<string,string>, _why string, _source string, _file string, _offset bigint, "
    "_number bigint"
)
_PAYLOAD_KINDS: Final = ("raw", "msgpack", "codec")


@dataclass(frozen=True, kw_only=True)
class Config(StoreConfig):
    """Options of ``migrate``; see ``StoreConfig``."""

    kind: str = option("kind of the sources", choices=KINDS)
    source: tuple[str, ...] = option("a queue's folder or database (may be repeated)")
    job: str = option("name of the load, for good: it is loaded once")
    out: str = option("folder for entries that are set aside")
    queue: str | None = option("one queue for all; else the sources' own names", default=None)
    tenant: str = option("tenant of these queues", default="")
    wait: float = option("seconds for a service that has the store open", default=WAIT_S)


class SetAside(NamedTuple):
    """A reason why entries were set aside, and the number of entries."""

    why: str
    entries: int


@dataclass(frozen=True, kw_only=True)
class MigrateReport(Report):
    """``read`` = ``staged`` + ``set_aside``; ``staged`` = ``loaded`` + ``skipped``."""

    load: str
    sources: int
    read: int
    staged: int
    loaded: int
    skipped: int
    reasons: tuple[SetAside, ...]
    aside: str | None


def run(spark: SparkSession, config: Config, progress: Progress) -> MigrateReport:
    """Read all sources, set aside entries that cannot be tasks, load the others."""
    info = store_info(config.store)
    job = check_job(config.job)
    sources = [os.path.realpath(path) for path in config.source]
    if len(set(sources)) < len(sources):
        raise UsageError("a source is given twice")
    for path in sources:
        Targets(open_source(config.kind, path), config.queue, config.tenant)  # or raises
    rows = _read(spark, sources, config).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with progress.step("read"):
            found = rows.groupBy("_why").agg(count(lit(1)).alias("entries")).collect()
        counts = {row["_why"]: row["entries"] for row in found}
        staged = counts.pop(None, 0)
        aside = None
        if counts:
            with progress.step("set aside"):
                aside = os.path.join(local_folder(config.out), job)
                rows.where("_why IS NOT NULL").write.mode("overwrite").parquet(aside)
        if staged and not was_published(info.path, job):
            with progress.step("load"):
                _load(rows, info.path, info.shards, job)
        elif staged:
            progress.skip("load")
    finally:
        rows.unpersist()
    facts: dict[str, Any] = {}
    checks = [
        equal(
            "every entry is accounted for",
            read=staged + sum(counts.values()),
            staged_and_set_aside=staged + _aside_rows(spark, aside),
        )
    ]
    if staged:
        with progress.step("ingest"):
            end = wait_for_ingest(info, job, config.wait)
        checks += load_checks(info, job, end, staged)
        facts = dict(end.facts)
    return MigrateReport(
        job="migrate",
        store=info.path,
        seconds=progress.seconds,
        checks=tuple(checks),
        load=job,
        sources=len(sources),
        read=staged + sum(counts.values()),
        staged=staged,
        loaded=facts.get("tasks", 0),
        skipped=facts.get("skipped", 0),
        aside=aside,
        reasons=tuple(SetAside(why, counts[why]) for why in sorted(counts, key=counts.__getitem__)),
    )


def _aside_rows(spark: SparkSession, aside: str | None) -> int:
    return spark.read.parquet(aside).count() if aside is not None else 0


def _read(spark: SparkSession, sources: list[str], config: Config) -> DataFrame:
    """Read each source in one Spark task; every machine must see its path."""
    paths = spark.createDataFrame([(path,) for path in sources], "path string")
    spread = paths.repartition(len(sources), "path") if len(sources) > 1 else paths
    read = partial(
        _entries,
        kind=config.kind,
        queue=config.queue,
        tenant=config.tenant,
        now_ms=SystemClock().wall_us() // 1000,
    )
    return spread.mapInArrow(read, _DDL)


def _load(rows: DataFrame, path: str, shards: int, job: str) -> None:
    """Load the tasks in the order of each source, whatever shards they go to."""
    good = rows.where("_why IS NULL").withColumnRenamed("_number", "position")
    ordered = routed(good, shards).sortWithinPartitions("position", "_source")
    ready = ordered.select(*_TASK.names, "slot", "position")
    write = ready.write.format("lodeq").mode("append").option("commitId", job)
    write.option("onConflict", "skip").save(path)


# -- in Spark's workers -------------------------------------------------------------------


def _entries(
    batches: Iterator[pa.RecordBatch], *, kind: str, queue: str | None, tenant: str, now_ms: int
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for path in batch.column(0).to_pylist():
            source = open_source(kind, path)
            targets = Targets(source, queue, tenant)
            rows: list[dict[str, Any]] = []
            for number, row in enumerate(_rows(source, targets, now_ms)):
                rows.append({**row, "_source": path, "_number": number})
                if len(rows) == _ROWS:
                    yield pa.RecordBatch.from_pylist(rows, _READ)
                    rows = []
            if rows:
                yield pa.RecordBatch.from_pylist(rows, _READ)


def _rows(source: Foreign, targets: Targets, now_ms: int) -> Iterator[dict[str, Any]]:
    limits = Limits()
    encoder = TaskEncoder("check", 0, now_ms * 1000, 1, Policy(), Secrets((bytes(32),)))
    for entry in source.entries():
        if isinstance(entry, Unreadable):
            yield {
                "_why": f"unreadable: {entry.damage.reason}",
                "_file": entry.file,
                "_offset": entry.damage.offset,
            }
            continue
        why, row = _why(entry, now_ms, limits), _row(source, entry, targets, now_ms)
        if why is None:
            try:
                encoder.task(row)
            except LodeqError as exc:
                why = str(exc).partition(": ")[2] or str(exc)
                row = row | {"headers": {}}  # of which a name may be no text
        yield row | {"_why": why, "_file": entry.file, "_offset": entry.offset}


def _why(entry: Entry, now_ms: int, limits: Limits) -> str | None:
    if is_expired(entry, now_ms):
        return "expired already"
    if entry.is_over:
        return "only its dedup key is left"
    if entry.died_ms is not None:
        return "a dead letter: `lodeq import` takes it over as one"
    if len(entry.payload) > limits.value_bytes_max:
        return f"its payload is above {limits.value_bytes_max:,} bytes: `lodeq import` may take it"
    if max(entry.due_ms, entry.expires_ms) > TIME_MS_MAX:
        return "a time of it is later than any that a task can have"
    return None


def _row(source: Foreign, entry: Entry, targets: Targets, now_ms: int) -> dict[str, Any]:
    task, into = task_of(source, entry, now_ms), targets.of(entry.queue)
    headers = {name: _text(value) for name, value in (task.headers or {}).items()}
    if task.attempts:
        headers[ATTEMPTS] = str(task.attempts)
    return {
        "queue": into.queue.decode(),
        "tenant": into.tenant.decode(),
        "payload": task.payload,
        "payload_kind": _PAYLOAD_KINDS[task.kind],
        "priority": task.priority,
        "run_at": _time(task.due_ms) if task.due_ms > now_ms else None,
        "expires_at": _time(task.expires_ms),
        "dedup_key": task.dedup_key,
        "dedup_window": max(0, task.dedup_until_ms - now_ms) / 1000,
        "headers": headers,
    }


def _time(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if 0 < ms <= TIME_MS_MAX else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
