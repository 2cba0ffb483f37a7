"""``audit``: check every row of a snapshot against every rule.

The job reads every block of every shard, checks every record and the rules between rows
(``engine/offline/audit.py``), and reads the payload files and the journals of the store. It can
write a repair plan for its findings, which ``lodeq repair --plan`` applies.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from ...engine.files.paths import JOURNALS, normal_path
from ...engine.offline.audit import ShardAudit, audit_shard
from ...engine.offline.repair_plan import RepairPlan, write_plan
from ...engine.runtime.task_id import TaskId
from ...engine.values import Finding
from ...errors import UsageError
from ...repository.maintenance.audit import BodyAudit, audit_bodies, plan_repair
from ...segments.detect import detect
from ...service.shared.file_check import verify as verify_segments
from .frame.config import option
from .frame.progress import Progress
from .frame.report import Check, Report
from .frame.snapshot_tables import SnapshotConfig, open_tables

__all__ = ["AuditReport", "Config", "FoundKind", "run"]

_SAMPLES: Final = 3


@dataclass(frozen=True, kw_only=True)
class Config(SnapshotConfig):
    """Options of ``audit``; see ``StoreConfig``."""

    plan: str | None = option("file to write a repair plan to", default=None)


class FoundKind(NamedTuple):
    """Findings of one kind in one shard (-1: in a journal), with a sample."""

    shard: int
    kind: str
    times: int
    sample: str


@dataclass(frozen=True, kw_only=True)
class AuditReport(Report):
    """``rows``: number by kind. ``found``: findings. ``oldest_lease_s``: None without a lease."""

    total_rows: int
    payload_records: int
    rows: dict[str, int]
    found: tuple[FoundKind, ...]
    oldest_lease_s: float | None
    plan: str | None


def run(spark: SparkSession, config: Config, progress: Progress) -> AuditReport:
    """Check everything; write a plan if ``config.plan`` is set and there are findings.

    Raises ``UsageError`` at once if the plan cannot be written there: the checks may take hours.
    """
    if config.plan is not None:
        _check_plan_path(normal_path(config.plan))
    tables = open_tables(spark, config.store, config.snapshot)
    shards = range(tables.shards)
    with progress.step("rows and payloads"):
        found = _each(spark, tables.snapshot.path, shards)
    rows = [one for one in found if isinstance(one, ShardAudit)]
    bodies = [one for one in found if isinstance(one, BodyAudit)]
    with progress.step("journals"):
        segments = _journals(tables.root)
    kinds = [*_kinds(rows, bodies), *segments]
    proposed = plan_repair(rows, bodies)
    plan = None
    if config.plan is not None and (proposed.beyond or not proposed.is_empty):
        write_plan(config.plan, proposed)
        plan = normal_path(config.plan)
    oldest = [one.oldest_lease_us for one in rows if one.oldest_lease_us]
    age_us = tables.snapshot.created_ms * 1000 - min(oldest) if oldest else None
    total: dict[str, int] = {}
    for one in rows:
        for name, count in one.rows.items():
            total[name] = total.get(name, 0) + count
    return AuditReport(
        job="audit",
        store=tables.root,
        snapshot=tables.id,
        seconds=progress.seconds,
        checks=_checks(rows, kinds),
        notes=_notes(proposed, plan, tables.root),
        total_rows=sum(one.total_rows for one in rows),
        payload_records=sum(one.records for one in bodies),
        rows=total,
        found=tuple(kinds),
        oldest_lease_s=None if age_us is None else age_us / 1e6,
        plan=plan,
    )


def _check_plan_path(path: str) -> None:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder) or os.path.isdir(path):
        raise UsageError(f"plan {path!r}: expected a file in an existing folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"plan {path!r}: {folder!r} is not writable")


def _each(spark: SparkSession, root: str, shards: Sequence[int]) -> list[Any]:
    """Run a Spark task for the rows of each shard, and one for its payload files."""
    units = [(shard, kind) for kind in ("rows", "bodies") for shard in shards]

    def look(unit: tuple[int, str]) -> ShardAudit | BodyAudit:
        shard, kind = unit
        return audit_shard(root, shard) if kind == "rows" else audit_bodies(root, shard)

    return spark.sparkContext.parallelize(units, len(units)).map(look).collect()


def _journals(root: str) -> list[FoundKind]:
    """Check the journals of the store as they are now: a snapshot has none."""
    folder = os.path.join(root, JOURNALS)
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        detected = detect(os.path.join(folder, name))
        problems = list(verify_segments(detected, lambda name, at: None))
        if problems:
            first = problems[0]
            sample = f"{name}: {first.file} at {first.damage.offset}: {first.damage.reason}"
            found.append(FoundKind(-1, "journal", len(problems), sample))
    return found


def _kinds(rows: Sequence[ShardAudit], bodies: Sequence[BodyAudit]) -> list[FoundKind]:
    found = []
    for one in rows:
        for kind, count in sorted(one.kinds.items()):
            some = [f for f in one.findings if f.kind == kind]
            found.append(FoundKind(one.shard, kind, count, _sample(some)))
    for two in bodies:
        ordered = sorted(two.findings, key=lambda f: f.kind)
        for kind, some_of in groupby(ordered, key=lambda f: f.kind):
            listed = list(some_of)
            found.append(FoundKind(two.shard, kind, len(listed), _sample(listed)))
    return found


def _sample(findings: Sequence[Finding]) -> str:
    return "; ".join(
        f.detail if f.task_id is None else f"{TaskId(f.task_id)}: {f.detail}"
        for f in findings[:_SAMPLES]
    )


def _checks(rows: Sequence[ShardAudit], kinds: Sequence[FoundKind]) -> tuple[Check, ...]:
    unread = sorted({one.shard for one in kinds if one.kind == "unreadable"})
    wrong = sum(one.times for one in kinds)
    return (
        Check(
            "every block can be read",
            not unread,
            f"not in shards {unread}: the rules between their rows were not checked"
            if unread
            else f"{sum(one.total_rows for one in rows):,} rows",
        ),
        Check("every row fits every rule", not wrong, f"{wrong:,} findings"),
    )


def _notes(plan: RepairPlan, written: str | None, root: str) -> tuple[str, ...]:
    notes = []
    if written is not None:
        notes.append(f"close the store, then: lodeq repair {root} --plan {written}")
    elif not plan.is_empty:
        notes.append("with --plan FILE a repair plan is written")
    if plan.beyond:
        notes.append(
            "a repair cannot undo some findings: restore a checkpoint, or salvage the store"
        )
    return tuple(notes)
