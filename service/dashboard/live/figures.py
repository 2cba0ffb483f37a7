"""The status of an engine over time, with rates. Collected only while a browser asks.

A status (``service.shared.engine_status``) costs O(queues). So two of them are at least a second
apart, and at least twenty times as long as the last one took: a dashboard takes a twentieth of the
loop at most, however many browsers watch it. RocksDB's own figures come from a thread, every few
seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ....engine.store.upkeep import Figures
from ....repository.api.view import Flows
from ...shared.engine_status import EngineStatus, QueueFlows
from ..remote import RemoteView
from ..source import AnyEngine, source_of, statuses_of

__all__ = ["LiveFigures", "Rates", "Stores"]

INTERVAL_S: Final = 0.9
SHARE: Final = 20  # the next status is so many times as far away as this one took
KEEP_S: Final = 60.0
STEP_S: Final = 5.0  # between the statuses that rates are computed from
STORES_S: Final = 5.0
SERIES: Final = 120  # points of the chart
STORES_MAX: Final = 64  # shards whose figures are asked for


class _Past(NamedTuple):
    """The part of a status that rates need."""

    mono: float
    enqueued: int
    completed: int
    flows: Flows
    queues: Mapping[str, QueueFlows]


class Rates(NamedTuple):
    """Tasks per second, and mean seconds. None: not known yet."""

    enqueued: float | None = None
    claimed: float | None = None
    completed: float | None = None
    failed: float | None = None
    wait_s: float | None = None  # from ready to claimed
    run_s: float | None = None


class Stores(NamedTuple):
    """Figures of RocksDB by shard (None: in memory, or closed), and free bytes of the disk."""

    figures: Sequence[Figures | None] = ()
    disk_free: int | None = None


class LiveFigures:
    """The recent history of one engine's status, on its loop.

    Attributes:
        series: points of the chart, a second apart: tasks enqueued and completed per second.
    """

    def __init__(self, engine: AnyEngine) -> None:
        self._view = source_of(engine)
        self._is_remote = isinstance(self._view, RemoteView)
        self._cache = statuses_of(engine)
        self._last: EngineStatus | None = None
        self._kept: deque[_Past] = deque()  # the last of them belongs to the last status
        self._next_mono = 0.0
        self._stores = Stores()
        self._stores_mono = float("-inf")
        self._is_asking = False
        self.series: deque[tuple[float, float]] = deque(maxlen=SERIES)

    async def status(self) -> EngineStatus:
        """The status now, or a moment ago.

        Raises:
            ClosedError: the engine is closed.
        """
        self._view.check()
        now = self._view.clock.mono()
        last = self._last
        if last is None or now >= self._next_mono:
            status = await self._cache.get()
            if status is not self._last:  # another caller may have noted it meanwhile
                self._note(status)
                self._next_mono = status.mono + max(INTERVAL_S, SHARE * status.took_s)
            return status
        return last

    def _note(self, status: EngineStatus) -> None:
        kept, queues = self._kept, {name: one.flows for name, one in status.queues.items()}
        past = _Past(
            status.mono,
            status.stats.enqueued_total,
            status.stats.completed_total,
            status.flows,
            queues,
        )
        self._chart(kept[-1] if kept else None, past)
        while kept and past.mono - kept[0].mono > KEEP_S:
            kept.popleft()
        if len(kept) >= 2 and kept[-1].mono - kept[-2].mono < STEP_S:
            kept.pop()
        kept.append(past)
        self._last = status

    def _chart(self, before: _Past | None, past: _Past) -> None:
        if before is None or past.mono - before.mono > STEP_S:
            self.series.clear()
        elif past.mono > before.mono:
            span = past.mono - before.mono
            self.series.append(
                (
                    (past.enqueued - before.enqueued) / span,
                    (past.completed - before.completed) / span,
                )
            )

    def rates(self, name: str | None = None, tenant: str | None = None) -> Rates:
        """Rates of all queues, of one, or of one tenant of it.

        Rates are those of the last seconds, latencies those of the last minute; since open where
        the last minute has none, or no status was collected for so long.
        """
        if self._is_remote:  # it has the totals alone
            return Rates() if name is not None else self._rates()._replace(wait_s=None, run_s=None)
        return self._rates(name, tenant)

    def _rates(self, name: str | None = None, tenant: str | None = None) -> Rates:
        last = self._kept[-1]
        before = [one for one in self._kept if one is not last]
        recent = next((one for one in reversed(before) if last.mono - one.mono >= STEP_S), None)
        base = recent or (before[0] if before else None)
        ever = _flows(last, name, tenant)
        minute = ever.since(_flows(before[0], name, tenant)) if before else ever
        claims, ends = (minute if minute.claimed else ever), (minute if minute.completed else ever)
        wait_s = claims.waited_us / claims.claimed / 1e6 if claims.claimed else None
        run_s = ends.ran_us / ends.completed / 1e6 if ends.completed else None
        if base is None or last.mono <= base.mono:
            return Rates(wait_s=wait_s, run_s=run_s)
        flow, span = ever.since(_flows(base, name, tenant)), last.mono - base.mono
        return Rates(
            flow.enqueued / span,
            flow.claimed / span,
            flow.completed / span,
            flow.failed / span,
            wait_s,
            run_s,
        )

    # -- the disk ------------------------------------------------------------------------------

    async def stores(self) -> Stores:
        """Figures that are a few seconds old at most. RocksDB is asked in a thread."""
        now = self._view.clock.mono()
        if now - self._stores_mono >= STORES_S and not self._is_asking:
            self._is_asking = True
            try:
                self._stores = await self._view.spawner.run_in_thread(self._ask)
                self._stores_mono = now
            finally:
                self._is_asking = False
        return self._stores

    def _ask(self) -> Stores:
        view = self._view
        shards = range(min(view.shard_count, STORES_MAX))
        return Stores(tuple(map(view.figures, shards)), view.disk_free_bytes())


def _flows(past: _Past, name: str | None, tenant: str | None) -> Flows:
    if name is None:
        return past.flows
    queue = past.queues.get(name)
    if queue is None:
        return _NO_FLOWS
    return queue.all if tenant is None else queue.tenants.get(tenant, _NO_FLOWS)


_NO_FLOWS: Final = Flows()
