"""The first page: every queue, and how the engine is."""

from __future__ import annotations

from heapq import nsmallest
from typing import Any, Final, NamedTuple

from ...engine.store.upkeep import Figures
from ...engine.values import LatencySummary
from ...repository.api.engine import Engine
from ...repository.model.values import QueueStats, ShardStats
from ..shared.queue_looks import Look
from .charts import bars_of, lines_of
from .live_figures import SERIES, Rates, Stores, Watch

__all__ = ["QUEUES_MAX", "QueueLine", "ShardLine", "overview_of", "queue_lines"]

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


def queue_lines(watch: Watch, look: Look, part: str) -> tuple[list[QueueLine], int]:
    """Queues whose name has ``part`` in it, by name; how many more there are.

    Where there are too many, those with dead letters or a pause come first, then those whose
    oldest ready task waits longest: what is stuck is seen, whatever its name.
    """
    found = look.queues
    names = [name for name in look.names if part in name] if part else list(look.names)
    n_found = len(names)
    if n_found > QUEUES_MAX:
        chosen = nsmallest(QUEUES_MAX, names, lambda name: found[name].calm)
        names = sorted(chosen)
    lines = []
    for name in names:
        one = found[name]
        lines.append(
            QueueLine(name, len(one.tenants), one.stats, watch.rates(name), one.is_partly_paused)
        )
    return lines, max(0, n_found - QUEUES_MAX)


def _shards(engine: Engine, look: Look, stores: Stores) -> list[ShardLine]:
    tasks = look.tasks
    total = sum(tasks)
    lines = []
    for shard, count in list(zip(look.stats.shards, tasks, strict=True))[:SHARDS_MAX]:
        failure = engine._core.shards[shard.shard].co.failure
        figures = stores.figures[shard.shard] if shard.shard < len(stores.figures) else None
        lines.append(
            ShardLine(
                shard,
                count,
                count / total * 100 if total else 0.0,
                shard.submissions / shard.commits if shard.commits else None,
                shard.commit,
                shard.fsync,
                max(0, shard.applied_commit - shard.durable_commit),
                failure is not None,
                figures,
            )
        )
    return lines


def _debt(stores: Stores) -> int | None:
    known = [one.compaction_pending_bytes for one in stores.figures if one is not None]
    return sum(known) if known else None


async def overview_of(engine: Engine, watch: Watch, part: str) -> dict[str, Any]:
    """What the template needs."""
    stores = await watch.stores()
    look = await watch.look()
    lines, left_out = queue_lines(watch, look, part)
    stats = look.stats
    merges = [pair for shard in stats.shards for pair in shard.merge_sizes]
    return {
        "stats": stats,
        "health": look.health,
        "queues": lines,
        "left_out": left_out,
        "part": part,
        "total": watch.rates(),
        "oldest_ready": look.oldest_ready or None,
        "oldest_lease": stats.oldest_lease_age,
        "shards": _shards(engine, look, stores),
        "shards_left_out": engine.shards - SHARDS_MAX,
        "disk_free": stores.disk_free,
        "debt": _debt(stores),
        "has_figures": any(stores.figures),
        "bars": bars_of(merges),
        "lines": lines_of(list(watch.series), SERIES),
    }
