"""The status of an engine, shared by all who ask: metrics, the dashboard, the list of queues.

Collecting it costs as much as there are queues and tenants. So one caller collects at a time, in
turns of the loop, and the others get the result. A status of many queues that took longer than one
turn is kept for a second, or for five times as long as it took. A small store's is always fresh.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from anyio import Lock

from ...engine.values import Health
from ...errors import LodeqError
from ...repository.api.engine import Engine
from ...repository.api.statistics import Sums
from ...repository.api.view import EngineView, Flows, view_of
from ...repository.model.values import EngineStats, QueueStats
from ...repository.state.turns import TURN_S

__all__ = [
    "NO_STATS",
    "EngineStatus",
    "QueueFlows",
    "QueueKey",
    "QueueStatus",
    "StatusCache",
    "status_cache",
]

AGE_S: Final = 1.0
SHARE: Final = 5  # a status that takes long is kept for so many times as long
STALE_S: Final = 120.0  # older than that it is shown to nobody
SMALL: Final = 64  # a status of fewer tenant queues is never kept, however slow the machine is
_STEP: Final = 16  # tenant queues between two checks of the clock
QueueKey = tuple[str, str]  # queue, tenant


class QueueFlows(NamedTuple):
    """Flows of a queue; those of ``all`` tenants never shrink, even when a tenant goes."""

    all: Flows
    tenants: Mapping[str, Flows]


class QueueStatus(NamedTuple):
    """One queue: all its tenants together, and each tenant that has anything."""

    stats: QueueStats
    tenants: Mapping[str, QueueStats]
    flows: QueueFlows
    is_partly_paused: bool
    attention: tuple[bool, float, str]  # a sort key: what needs attention comes first


class EngineStatus(NamedTuple):
    """An engine at one moment, or during the turns that collecting took."""

    mono: float
    wall_us: int
    stats: EngineStats
    health: Health
    queues: Mapping[str, QueueStatus]  # those that have anything, by name
    names: Sequence[str]  # the same, sorted
    flows: Flows
    tasks: Sequence[int]  # by shard, all that are not over
    oldest_ready: float | None  # seconds
    took_s: float  # without the turns of others

    def page(self, after: QueueKey | None, limit: int) -> list[tuple[QueueKey, QueueStats]]:
        """Up to ``limit`` tenant queues in order, those behind ``after``."""
        found: list[tuple[QueueKey, QueueStats]] = []
        start = 0
        if after is not None:
            start = bisect_right(self.names, after[0])
            if start and self.names[start - 1] == after[0]:
                start -= 1
        for name in self.names[start : start + limit + 1]:
            tenants = self.queues[name].tenants
            for tenant, stats in tenants.items():
                if after is None or (name, tenant) > after:
                    found.append(((name, tenant), stats))
                    if len(found) >= limit:
                        return found
        return found


NO_STATS: Final = QueueStats(0, 0, 0, 0, 0, None, False)
_NO_FLOWS: Final = Flows()
_NOTHING: Final = QueueFlows(_NO_FLOWS, {})


class StatusCache:
    """Collects the status of one engine, on its loop."""

    def __init__(self, engine: Engine) -> None:
        self._view: EngineView = view_of(engine)
        self._lock = Lock()
        self._last: EngineStatus | None = None
        self._fresh_until = float("-inf")
        self._is_large = False  # the last one took more than a turn

    async def get(self) -> EngineStatus:
        """The status now, or a moment ago where collecting costs much.

        Raises:
            ClosedError: the engine is closed.
        """
        view = self._view
        view.check()
        found = self._recent()
        if found is not None:
            return found
        async with self._lock:  # whoever waited while another collected shares the result
            view.check()
            found = self._recent()
            if found is None:
                turns = view.turns()
                steps = self.collect()
                for _ in steps:
                    await turns.give()
                view.check()
                found = self.latest()
        return found

    def get_now(self) -> EngineStatus:
        """As ``get``, for a caller on the loop that cannot wait.

        Of many queues the one before is returned, and the next one collected in turns meanwhile.
        Only where there is none of the last two minutes it is collected in one go.
        """
        self._view.check()
        found, last = self._recent(), self._last
        if found is not None:
            return found
        if last is not None and self._is_large and self._view.clock.mono() - last.mono < STALE_S:
            if not self._lock.locked():
                self._view.spawner.spawn(self._renew, "lodeq-status")
            return last
        for _ in self.collect():
            pass
        return self.latest()

    async def _renew(self) -> None:
        try:
            await self.get()
        except LodeqError:
            pass  # closed meanwhile

    def recent(self) -> EngineStatus | None:
        """The last status, while it is fresh."""
        self._view.check()
        return self._recent()

    def _recent(self) -> EngineStatus | None:
        return self._last if self._view.clock.mono() < self._fresh_until else None

    def latest(self) -> EngineStatus:
        """The result of the last ``collect`` that went to its end."""
        if self._last is None:
            raise LookupError("no status has been collected yet")
        return self._last

    def collect(self) -> Iterator[None]:
        """Collect the status, in steps between which others may have their turn."""
        view, before = self._view, self._last
        clock = view.clock
        begun, spent = clock.mono(), 0.0
        queues: dict[str, QueueStatus] = {}
        tasks = [0] * view.shard_count
        counts = [0] * len(Sums._fields)
        total = _NO_FLOWS if before is None else before.flows
        oldest: float | None = None
        name: bytes | None = None
        queue: _QueueSum | None = None
        since, n = begun, 0
        for n, one in enumerate(view.tenant_queues()):
            if n and not n % _STEP:
                spent += clock.mono() - since
                yield
                since = clock.mono()
            if queue is None or one.queue != name:
                if queue is not None and queue.tenants:
                    queues[queue.name] = queue.status()
                name = one.queue
                queue = _QueueSum(name.decode(), before)
            for shard, count in one.tasks:
                tasks[shard] += count
            stats = one.stats
            if stats is not None:
                for i, count in enumerate(_counts(stats)):
                    counts[i] += count
                if stats.oldest_ready_age is not None:
                    oldest = max(oldest or 0.0, stats.oldest_ready_age)
            total = queue.add(one.tenant.decode(), stats, one.flows, total)
        if queue is not None and queue.tenants:
            queues[queue.name] = queue.status()
        status = EngineStatus(
            mono=begun,
            wall_us=clock.wall_us(),
            stats=view.stats(Sums(*counts)),
            health=view.health(),
            queues=queues,
            names=tuple(queues),
            flows=total,
            tasks=tasks,
            oldest_ready=oldest,
            took_s=0.0,
        )
        now = clock.mono()
        spent += now - since
        self._last = status._replace(took_s=spent)
        self._is_large = n >= SMALL and spent > TURN_S
        self._fresh_until = now + max(AGE_S, SHARE * spent) if self._is_large else begun


def _counts(stats: QueueStats) -> Sums:
    """Counts of a queue."""
    return Sums(stats.ready, stats.delayed, stats.leased, stats.dead, stats.results, stats.waiting)


class _QueueSum:
    """The tenants of one queue, while they are collected."""

    def __init__(self, name: str, before: EngineStatus | None) -> None:
        self.name = name
        self.tenants: dict[str, QueueStats] = {}
        known = None if before is None else before.queues.get(name)
        self._before = _NOTHING if known is None else known.flows
        self._flows = self._before.all
        self._tenant_flows: dict[str, Flows] = {}
        self._is_still = True
        self._counts = [0] * len(Sums._fields)
        self._oldest: float | None = None
        self._paused = 0

    def add(self, tenant: str, stats: QueueStats | None, flows: Flows, total: Flows) -> Flows:
        """Add a tenant.

        Args:
            tenant: its name; empty for the default tenant.
            stats: its counts; None: it is empty and not paused.
            flows: of the tenant since open.
            total: flows of the whole engine so far.

        Returns: ``total`` plus what has passed through the tenant since the last status.
        """
        then = self._before.tenants.get(tenant)
        if flows == then:
            flows = then  # most do not move: one object serves every status
        else:
            moved = flows.since(then or _NO_FLOWS)
            self._flows = self._flows.plus(moved)
            total = total.plus(moved)
            self._is_still = False
        self._tenant_flows[tenant] = flows
        if stats is not None:
            self.tenants[tenant] = stats
            for n, count in enumerate(_counts(stats)):
                self._counts[n] += count
            if stats.oldest_ready_age is not None:
                self._oldest = max(self._oldest or 0.0, stats.oldest_ready_age)
            self._paused += stats.is_paused
        return total

    def status(self) -> QueueStatus:
        """The queue, all tenants together."""
        is_paused = self._paused == len(self.tenants)
        sums = Sums(*self._counts)
        stats = QueueStats(*sums[:5], self._oldest, is_paused, sums.waiting)
        is_stuck = bool(stats.dead or self._paused)
        attention = not is_stuck, -(self._oldest or 0.0), self.name
        flows = QueueFlows(self._flows, self._tenant_flows)
        if self._is_still and len(self._tenant_flows) == len(self._before.tenants):
            flows = self._before
        return QueueStatus(
            stats, self.tenants, flows, self._paused > 0 and not is_paused, attention
        )


_CACHES: Final[WeakKeyDictionary[Engine, StatusCache]] = WeakKeyDictionary()


def status_cache(engine: Engine) -> StatusCache:
    """The one cache of an engine's status, for all who ask."""
    found = _CACHES.get(engine)
    if found is None:
        found = _CACHES[engine] = StatusCache(engine)
    return found
