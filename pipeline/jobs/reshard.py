"""``reshard``: change the number of shards, copying with many Spark tasks.

Without ``--out``, a closed store is resharded in place, as ``lodeq reshard`` does. With it, a
snapshot becomes a new store there, and the old one can stay in use.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql import SparkSession

from ...engine.bulk.reader import open_shard
from ...engine.offline.reroute import Tally, tally
from ...repository.api.in_place_reshard import recover_and_close, reshard_with
from ...repository.maintenance.reshard import Plan, Staged, Unit, finish, plan_reshard, stage
from .frame.config import option
from .frame.progress import Progress
from .frame.report import Check, Report
from .frame.snapshot_tables import SnapshotConfig, open_tables

__all__ = ["Config", "ReshardReport", "run"]

_SLICES: Final = 8  # for each core


@dataclass(frozen=True, kw_only=True)
class Config(SnapshotConfig):
    """Options of ``reshard``; see ``StoreConfig``."""

    shards: int = option("the new number of shards")
    out: str | None = option(
        "folder of a new store, made from a snapshot; default: in place", default=None
    )


@dataclass(frozen=True, kw_only=True)
class ReshardReport(Report):
    """``path``: the store with the new shards. ``kept``: the old one. ``rows``: by key family."""

    path: str
    kept: str
    old_shards: int
    shards: int
    rows: dict[str, int]


def run(spark: SparkSession, config: Config, progress: Progress) -> ReshardReport:
    """Copy the rows, compare the counts, and swap the stores."""

    def work(plan: Plan) -> tuple[list[Staged], list[dict[str, Tally]]]:
        with progress.step("copy"):
            return _work(spark, plan)

    snapshot = None
    if config.out is None:
        asyncio.run(recover_and_close(config.store))
        done, kept = reshard_with(config.store, config.shards, work)
        store = done.path
    else:
        tables = open_tables(spark, config.store, config.snapshot)
        plan = plan_reshard(tables.snapshot.path, config.out, config.shards, leave_events=True)
        staged, tallies = work(plan)
        with progress.step("build"):
            done = finish(plan, staged, tallies)
        snapshot, kept, store = tables.id, tables.root, tables.root
    checks = tuple(
        Check(f"family {family}", True, f"{one.rows:,} rows, {one.checksum:016x}, as before")
        for family, one in done.tallies.items()
    )
    return ReshardReport(
        job="reshard",
        store=store,
        snapshot=snapshot,
        seconds=progress.seconds,
        checks=checks,
        notes=(f"the old store: {kept}",),
        path=done.path,
        kept=kept,
        old_shards=done.old_shards,
        shards=done.shards,
        rows=done.rows,
    )


def _work(spark: SparkSession, plan: Plan) -> tuple[list[Staged], list[dict[str, Tally]]]:
    """Run all units, and a tally of each source shard, as Spark tasks."""
    units: list[Unit | int] = [*plan.units, *range(plan.old_shards)]

    def do(unit: Unit | int) -> Any:
        if isinstance(unit, Unit):
            context = TaskContext.get()
            return stage(plan, unit, str(context.taskAttemptId() if context is not None else 0))
        with open_shard(plan.source, unit) as reader:
            return tally(reader)

    context = spark.sparkContext
    slices = min(len(units), _SLICES * context.defaultParallelism)  # few tasks for small stores
    done = context.parallelize(units, slices).map(do).collect()
    return [one for one in done if isinstance(one, Staged)], [
        one for one in done if not isinstance(one, Staged)
    ]
