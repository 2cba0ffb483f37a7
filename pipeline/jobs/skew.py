"""Skew: rows by slot, by shard, and projected to other numbers of shards.

A task never changes its slot, so the shards of another store would have the rows that their slots
have now. There are at most 4,096 slots: once Spark has counted them, the rest is computed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.functions import coalesce, col, count, lit

from ...engine.runtime.ids import SLOTS, shard_of_slot
from ...errors import UsageError
from ..datasource.sql import slot_of_id

__all__ = [
    "PROJECTED",
    "SHARDS",
    "Projected",
    "ShardRows",
    "SlotRows",
    "project",
    "shards",
    "slots",
]

SHARDS: Final = "shard int, tasks bigint, ended bigint, share double"
PROJECTED: Final = "shards int, is_now boolean, rows_max bigint, rows_mean double, fullest double"


class SlotRows(NamedTuple):
    """Rows of a slot: ``tasks`` that have not ended, and ``ended`` ones."""

    slot: int
    tasks: int
    ended: int


class ShardRows(NamedTuple):
    """Rows of a shard; ``share`` is of both kinds, and 1 / shards if all are equal."""

    shard: int
    tasks: int
    ended: int
    share: float


class Projected(NamedTuple):
    """The fullest of so many shards; ``fullest`` is its rows divided by the mean."""

    shards: int
    is_now: bool
    rows_max: int
    rows_mean: float
    fullest: float


def slots(tasks: DataFrame, ends: DataFrame) -> DataFrame:
    """Count rows by slot, fullest first: the columns of ``SlotRows``."""
    slot = slot_of_id(col("id")).alias("slot")
    there = tasks.groupBy(slot).agg(count(lit(1)).alias("tasks"))
    over = ends.groupBy(slot).agg(count(lit(1)).alias("ended"))
    return (
        there.join(over, "slot", "full_outer")
        .select(
            "slot",
            coalesce("tasks", lit(0)).alias("tasks"),
            coalesce("ended", lit(0)).alias("ended"),
        )
        .orderBy((col("tasks") + col("ended")).desc(), "slot")
    )


def shards(by_slot: Iterable[SlotRows], there: int) -> list[ShardRows]:
    """Sum the rows of slots by shard, for ``there`` shards.

    Raises ``UsageError`` for an impossible number of shards.
    """
    if not 1 <= there <= SLOTS:
        raise UsageError(f"{there} shards: there are 1 to {SLOTS}")
    tasks, ended = [0] * there, [0] * there
    for one in by_slot:
        shard = shard_of_slot(one.slot, there)
        tasks[shard] += one.tasks
        ended[shard] += one.ended
    whole = sum(tasks) + sum(ended) or 1
    return [
        ShardRows(shard, tasks[shard], ended[shard], (tasks[shard] + ended[shard]) / whole)
        for shard in range(there)
    ]


def project(by_slot: Sequence[SlotRows], there: int, others: Iterable[int]) -> list[Projected]:
    """Project the present and other numbers of shards. Raises as ``shards``."""
    found = []
    for number in sorted({there, *others}):
        rows = [one.tasks + one.ended for one in shards(by_slot, number)]
        mean = sum(rows) / number
        found.append(
            Projected(number, number == there, max(rows), mean, max(rows) / mean if mean else 1.0)
        )
    return found
