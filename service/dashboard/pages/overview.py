"""The first page: every queue, and the health of the engine."""

from __future__ import annotations

from heapq import nsmallest
from itertools import islice
from typing import Any, Final, NamedTuple

from ....engine.store.upkeep import Figures
from ....engine.values import LatencySummary
from ....repository.model.values import QueueStats, ShardStats
from ...shared.engine_status import EngineStatus
from ..live.figures import SERIES, LiveFigures, Rates, Stores
from ..source import AnyEngine, poisoned_shards
from .charts import bars_of, lines_of

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
    """A row of the table of shards."""

    stats: ShardStats
    tasks: int | None  # all that are not over; None: not known
    share: float  # per cent of the tasks of all shards
    writes_per_commit: float | None
    commit: LatencySummary
    fsync: LatencySummary
    not_durable: int  # commits
    is_poisoned: bool
    figures: Figures | None


def queue_lines(
    figures: LiveFigures, status: EngineStatus, part: str
) -> tuple[list[QueueLine], int]:
    """Queues whose name contains ``part``, by name; and the number of those left out.

    Where there are too many, those with dead letters or a pause come first, then those whose
    oldest ready task waits longest: a stuck queue is shown, whatever its name.
    """
    found = status.queues
    names = [name for name in status.names if part in name] if part else list(status.names)
    n_found = len(names)
    if n_found > QUEUES_MAX:
        chosen = nsmallest(QUEUES_MAX, names, lambda name: found[name].attention)
        names = sorted(chosen)
    lines = []
    for name in names:
        one = found[name]
        lines.append(
            QueueLine(name, len(one.tenants), one.stats, figures.rates(name), one.is_partly_paused)
        )
    return lines, max(0, n_found - QUEUES_MAX)


def _shards(engine: AnyEngine, status: EngineStatus, stores: Stores) -> list[ShardLine]:
    total = sum(status.tasks)
    lines = []
    poisoned = poisoned_shards(engine)
    for shard in islice(status.stats.shards, SHARDS_MAX):
        count = status.tasks[shard.shard] if status.tasks else None
        figures = stores.figures[shard.shard] if shard.shard < len(stores.figures) else None
        lines.append(
            ShardLine(
                shard,
                count,
                count / total * 100 if total and count else 0.0,
                shard.submissions / shard.commits if shard.commits else None,
                shard.commit,
                shard.fsync,
                max(0, shard.applied_commit - shard.durable_commit),
                shard.shard in poisoned,
                figures,
            )
        )
    return lines


def _compaction_backlog(stores: Stores) -> int | None:
    known = [one.compaction_pending_bytes for one in stores.figures if one is not None]
    return sum(known) if known else None


async def overview_of(engine: AnyEngine, figures: LiveFigures, part: str) -> dict[str, Any]:
    """The context of the template; ``part``: of the names of queues that are shown."""
    stores = await figures.stores()
    status = await figures.status()
    lines, left_out = queue_lines(figures, status, part)
    stats = status.stats
    merges = [pair for shard in stats.shards for pair in shard.merge_sizes]
    return {
        "stats": stats,
        "health": status.health,
        "queues": lines,
        "left_out": left_out,
        "part": part,
        "total": figures.rates(),
        "oldest_ready": status.oldest_ready or None,
        "oldest_lease": stats.oldest_lease_age,
        "shards": _shards(engine, status, stores),
        "shards_left_out": len(stats.shards) - SHARDS_MAX,
        "disk_free": stores.disk_free,
        "compaction_backlog": _compaction_backlog(stores),
        "has_figures": any(stores.figures),
        "bars": bars_of(merges),
        "lines": lines_of(list(figures.series), SERIES),
    }
