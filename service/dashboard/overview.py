"""The first page: every queue, and how the engine is."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from typing import Any, Final, NamedTuple

from ...coalescer.stats import LatencySummary
from ...engine.upkeep import Figures
from ...errors import NotLeaderError
from ...repository.engine import Engine
from ...repository.values import QueueStats, ShardStats
from .charts import bars_of, lines_of
from .watching import SERIES, LaneKey, Look, Rates, Stores, Watch

__all__ = ["QUEUES_MAX", "QueueLine", "ShardLine", "overview_of", "queue_lines", "summed"]

QUEUES_MAX: Final = 200
SHARDS_MAX: Final = 64


class QueueLine(NamedTuple):
    """A queue over its tenants, or one tenant of it."""

    name: str
    tenants: int
    stats: QueueStats
    rates: Rates
    is_partly_paused: bool


class ShardLine(NamedTuple):
    """A shard. ``tasks``: all that are not over; ``share``: of those of all shards, 0 to 100."""

    stats: ShardStats
    tasks: int
    share: float
    merge: float | None
    commit: LatencySummary
    fsync: LatencySummary
    behind: int
    is_poisoned: bool
    figures: Figures | None


def summed(parts: Sequence[QueueStats]) -> QueueStats:
    """The counts of several lanes together; paused, if all are."""
    ages = [part.oldest_ready_age for part in parts if part.oldest_ready_age is not None]
    return QueueStats(
        ready=sum(p.ready for p in parts), delayed=sum(p.delayed for p in parts),
        leased=sum(p.leased for p in parts), dead=sum(p.dead for p in parts),
        results=sum(p.results for p in parts), oldest_ready_age=max(ages, default=None),
        is_paused=bool(parts) and all(p.is_paused for p in parts),
    )  # fmt: skip


def queue_lines(watch: Watch, look: Look, part: str) -> tuple[list[QueueLine], int]:
    """Queues whose name has ``part`` in it, by name; how many more there are.

    Where there are too many, those with dead letters or a pause come first, then those whose
    oldest ready task waits longest: what is stuck is seen, whatever its name.
    """
    by_name: dict[str, list[LaneKey]] = {}
    for key in look.queues:
        if part in key[0]:
            by_name.setdefault(key[0], []).append(key)
    names = list(by_name)
    if len(names) > QUEUES_MAX:
        chosen = nsmallest(QUEUES_MAX, names, lambda name: _calm(look, by_name[name]))
        names = sorted(chosen)
    lines = []
    for name in names:
        keys = by_name[name]
        parts = [look.queues[key] for key in keys]
        total = summed(parts)
        some = any(one.is_paused for one in parts) and not total.is_paused
        lines.append(QueueLine(name, len(keys), total, watch.rates(keys), some))
    return lines, max(0, len(by_name) - QUEUES_MAX)


def _calm(look: Look, keys: Sequence[LaneKey]) -> tuple[bool, float, LaneKey]:
    """Lower is less so."""
    parts = [look.queues[key] for key in keys]
    is_stuck = any(one.dead or one.is_paused for one in parts)
    return not is_stuck, -max(one.oldest_ready_age or 0.0 for one in parts), keys[0]


def _tasks_by_shard(engine: Engine) -> list[int]:
    tasks = [0] * engine.shards
    for topic in engine._core.topics.values():
        for lane in topic.lanes.values():
            for index, bucket in enumerate(lane.buckets):
                if bucket is not None:
                    tasks[index] += bucket.ready + bucket.delayed + bucket.leased + bucket.dead
    return tasks


def _shards(engine: Engine, look: Look, stores: Stores) -> list[ShardLine]:
    tasks = _tasks_by_shard(engine)
    total = sum(tasks)
    lines = []
    for shard, count in list(zip(look.stats.shards, tasks, strict=True))[:SHARDS_MAX]:
        poison = engine._core.shards[shard.shard].co.poison
        figures = stores.figures[shard.shard] if shard.shard < len(stores.figures) else None
        lines.append(ShardLine(
            shard, count, count / total * 100 if total else 0.0,
            shard.submissions / shard.commits if shard.commits else None,
            shard.commit, shard.fsync, max(0, shard.applied_commit - shard.durable_commit),
            poison is not None and not isinstance(poison, NotLeaderError), figures,
        ))  # fmt: skip
    return lines


def _debt(stores: Stores) -> int | None:
    known = [one.compaction_pending_bytes for one in stores.figures if one is not None]
    return sum(known) if known else None


async def overview_of(engine: Engine, watch: Watch, part: str) -> dict[str, Any]:
    """What the template needs."""
    stores = await watch.stores()
    look = watch.look()
    lines, left_out = queue_lines(watch, look, part)
    stats = look.stats
    ages = [one.oldest_ready_age for one in look.queues.values() if one.oldest_ready_age]
    merges = [pair for shard in stats.shards for pair in shard.merge_sizes]
    return {
        "stats": stats, "health": look.health, "queues": lines, "left_out": left_out,
        "part": part, "total": watch.rates(list(look.flows)),
        "oldest_ready": max(ages, default=None), "oldest_lease": stats.oldest_lease_age,
        "shards": _shards(engine, look, stores), "shards_left_out": engine.shards - SHARDS_MAX,
        "disk_free": stores.disk_free, "debt": _debt(stores), "has_figures": any(stores.figures),
        "bars": bars_of(merges), "lines": lines_of(list(watch.series), SERIES),
    }  # fmt: skip
