"""What a moment shows and rates between moments. Taken only while somebody looks.

A look at the engine costs O(queues) on its loop, so looks are at least a second apart, and at
least twenty times as long as the last one took: a dashboard takes a twentieth of the loop at most,
however many browsers watch it. RocksDB's own figures come from a thread, every few seconds.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ...engine.health import Health, disk_free_bytes
from ...engine.upkeep import Figures, figures_of
from ...errors import ClosedError, StorageError
from ...repository.engine import Engine
from ...repository.statistics import flows_of, queues_of, stats_of
from ...repository.values import EngineStats, QueueStats

__all__ = ["Flows", "Look", "Rates", "Stores", "Watch"]

LOOK_S: Final = 0.9
SHARE: Final = 20  # a look is that many times its own length apart from the next
KEEP_S: Final = 60.0
STEP_S: Final = 5.0  # between looks that are kept
STORES_S: Final = 5.0
SERIES: Final = 120  # points of the chart
STORES_MAX: Final = 64  # shards whose figures are asked for
LaneKey = tuple[str, str]


class Flows(NamedTuple):
    """What has gone through a lane (see ``repository.state.Flow``)."""

    enqueued: int = 0
    claimed: int = 0
    completed: int = 0
    failed: int = 0
    waited_us: int = 0
    ran_us: int = 0

    def since(self, before: Flows) -> Flows:
        """The difference; all of it where the lane was dropped and made anew meanwhile."""
        if any(now < then for now, then in zip(self, before, strict=True)):
            return self
        return Flows(*(now - then for now, then in zip(self, before, strict=True)))

    def plus(self, other: Flows) -> Flows:
        """The sum."""
        return Flows(*(mine + yours for mine, yours in zip(self, other, strict=True)))


class Look(NamedTuple):
    """One moment."""

    mono: float
    wall_us: int
    stats: EngineStats
    health: Health
    queues: Mapping[LaneKey, QueueStats]
    flows: Mapping[LaneKey, Flows]


class Rates(NamedTuple):
    """Per second, and mean seconds. None: there is nothing to tell it from yet."""

    enqueued: float | None = None
    claimed: float | None = None
    completed: float | None = None
    failed: float | None = None
    wait_s: float | None = None
    run_s: float | None = None


class Stores(NamedTuple):
    """What RocksDB and the disk say. Figures by shard; None: of one in memory, or closed."""

    figures: Sequence[Figures | None] = ()
    disk_free: int | None = None


class Watch:
    """Looks at one engine, on its loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._core = engine._core
        self._kept: deque[Look] = deque()
        self._next_mono = 0.0
        self._stores = Stores()
        self._stores_mono = float("-inf")
        self._is_asking = False
        self.series: deque[tuple[float, float]] = deque(maxlen=SERIES)  # enqueued, completed per s

    def look(self) -> Look:
        """The present, as of a moment ago at most.

        Raises:
            ClosedError: the engine is closed.
        """
        self._core.check()
        now = self._core.clock.mono()
        if not self._kept or now >= self._next_mono:
            self._take(now)
        return self._kept[-1]

    def _take(self, now: float) -> None:
        core, operator = self._core, self._engine._operator
        flows = {
            key: Flows(f.enqueued, f.claimed, f.completed, f.failed, f.waited_us, f.ran_us)
            for key, f in flows_of(core).items()
        }
        look = Look(
            now, core.clock.wall_us(), stats_of(core, operator.opened.recoveries),
            operator.health(), queues_of(core), flows,
        )  # fmt: skip
        kept = self._kept
        self._chart(kept[-1] if kept else None, look)
        while kept and now - kept[0].mono > KEEP_S:
            kept.popleft()
        if len(kept) >= 2 and kept[-1].mono - kept[-2].mono < STEP_S:
            kept.pop()
        kept.append(look)
        took = core.clock.mono() - now
        self._next_mono = now + max(LOOK_S, SHARE * took)

    def _chart(self, before: Look | None, look: Look) -> None:
        if before is None or look.mono - before.mono > STEP_S:
            self.series.clear()
        elif look.mono > before.mono:
            span = look.mono - before.mono
            self.series.append((
                (look.stats.enqueued_total - before.stats.enqueued_total) / span,
                (look.stats.completed_total - before.stats.completed_total) / span,
            ))  # fmt: skip

    def rates(self, keys: Sequence[LaneKey]) -> Rates:
        """Of some lanes together: rates of the last seconds, latencies of the last minute.

        Latencies are since open where the last minute has none, or nobody has looked for so long.
        """
        last = self._kept[-1]
        before = [one for one in self._kept if one is not last]
        recent = next((one for one in reversed(before) if last.mono - one.mono >= STEP_S), None)
        base = recent or (before[0] if before else None)
        minute, ever = _sum(last, before[0] if before else None, keys), _sum(last, None, keys)
        claims, ends = (minute if minute.claimed else ever), (minute if minute.completed else ever)
        wait_s = claims.waited_us / claims.claimed / 1e6 if claims.claimed else None
        run_s = ends.ran_us / ends.completed / 1e6 if ends.completed else None
        if base is None or last.mono <= base.mono:
            return Rates(wait_s=wait_s, run_s=run_s)
        flow, span = _sum(last, base, keys), last.mono - base.mono
        return Rates(
            flow.enqueued / span, flow.claimed / span, flow.completed / span, flow.failed / span,
            wait_s, run_s,
        )  # fmt: skip

    # -- the disk ------------------------------------------------------------------------------

    async def stores(self) -> Stores:
        """What RocksDB told a few seconds ago at most. It is asked in a thread."""
        now = self._core.clock.mono()
        if now - self._stores_mono >= STORES_S and not self._is_asking:
            self._is_asking = True
            try:
                self._stores = await self._core.spawner.run_in_thread(self._ask)
                self._stores_mono = now
            finally:
                self._is_asking = False
        return self._stores

    def _ask(self) -> Stores:
        found: list[Figures | None] = []
        for shard in self._core.shards[:STORES_MAX]:
            try:
                found.append(figures_of(shard.store))
            except (ClosedError, StorageError, OSError):
                found.append(None)
        path = self._engine.path
        is_there = path is not None and os.path.isdir(path)
        return Stores(tuple(found), disk_free_bytes(path) if path and is_there else None)


def _sum(last: Look, base: Look | None, keys: Sequence[LaneKey]) -> Flows:
    total, nothing = Flows(), Flows()
    for key in keys:
        now = last.flows.get(key)
        if now is not None:
            before = nothing if base is None else base.flows.get(key, nothing)
            total = total.plus(now.since(before))
    return total
