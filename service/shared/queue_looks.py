"""One look at an engine, shared by all who ask: metrics, the dashboard, the list of queues.

A look costs as much as there are queues and tenants. So it is taken by one at a time, in turns of
the loop, and one at many queues that took more than a turn is good for a second, or for five times
as long as it took. Else it is taken anew: a small store is always shown as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from anyio import Lock

from ...engine.values import Health
from ...repository.api.engine import Engine
from ...repository.api.statistics import Sums, lane_stats, lanes_of, stats_of
from ...repository.model.values import EngineStats, QueueStats
from ...repository.state.turns import TURN_S, Turns

__all__ = ["NO_STATS", "Flows", "LaneKey", "Look", "Looks", "QueueFlows", "QueueLook", "looks_of"]

AGE_S: Final = 1.0
SHARE: Final = 5  # a look that takes long is good for so many times its length
SMALL: Final = 64  # a look at so few lanes is never kept, however slow the machine is just now
_STEP: Final = 16  # lanes between two looks at the clock
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


class QueueFlows(NamedTuple):
    """Those of a queue; of ``all`` tenants they grow while it is there, though a tenant goes."""

    all: Flows
    tenants: Mapping[str, Flows]


class QueueLook(NamedTuple):
    """One queue, all its tenants together, and each of which there is anything."""

    stats: QueueStats
    tenants: Mapping[str, QueueStats]
    flows: QueueFlows
    is_partly_paused: bool
    calm: tuple[bool, float, str]  # the lower, the more it is to be looked at


class Look(NamedTuple):
    """A moment, or the turns that it took."""

    mono: float
    wall_us: int
    stats: EngineStats
    health: Health
    queues: Mapping[str, QueueLook]  # of which there is anything, by name
    names: Sequence[str]  # the same, in order
    flows: Flows
    tasks: Sequence[int]  # by shard, all that are not over
    oldest_ready: float | None
    took_s: float  # without the turns of others

    def lanes(self, after: LaneKey | None, limit: int) -> list[tuple[LaneKey, QueueStats]]:
        """At most ``limit`` in order, behind ``after``."""
        found: list[tuple[LaneKey, QueueStats]] = []
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


class Looks:
    """Of one engine, on its loop."""

    def __init__(self, engine: Engine) -> None:
        self._core = engine._core
        self._runtime = engine._runtime
        self._lock = Lock()
        self._last: Look | None = None
        self._good_until = float("-inf")

    async def look(self) -> Look:
        """The present, or, where that costs much, a moment ago.

        Raises:
            ClosedError: the engine is closed.
        """
        core = self._core
        core.check()
        found = self._recent()
        if found is not None:
            return found
        async with self._lock:  # who waited for another's look has it
            core.check()
            found = self._recent()
            if found is None:
                turns = Turns(core)
                steps = self.steps()
                for _ in steps:
                    await turns.give()
                core.check()
                found = self.taken()
        return found

    def look_now(self) -> Look:
        """As ``look``, in one go: for a caller on the loop that cannot wait."""
        self._core.check()
        found = self._recent()
        if found is None:
            for _ in self.steps():
                pass
            found = self.taken()
        return found

    def recent(self) -> Look | None:
        """The last look, while it is good."""
        self._core.check()
        return self._recent()

    def _recent(self) -> Look | None:
        return self._last if self._core.clock.mono() < self._good_until else None

    def taken(self) -> Look:
        """What the last ``steps`` that went to their end have found."""
        if self._last is None:
            raise LookupError("no look has been taken yet")
        return self._last

    def steps(self) -> Iterator[None]:
        """Take a look, in steps between which others may have their turn."""
        core, before = self._core, self._last
        clock = core.clock
        begun, spent = clock.mono(), 0.0
        queues: dict[str, QueueLook] = {}
        tasks = [0] * len(core.shards)
        counts = [0] * 5
        total = _NO_FLOWS if before is None else before.flows
        oldest: float | None = None
        name: bytes | None = None
        parts: _Parts | None = None
        since, n = begun, 0
        for n, (topic, lane) in enumerate(lanes_of(core)):
            if n and not n % _STEP:
                spent += clock.mono() - since
                yield
                since = clock.mono()
            if lane.queue != name:
                if parts is not None and parts.tenants:
                    queues[parts.name] = parts.whole()
                name = lane.queue
                parts = _Parts(name.decode(), before)
            for index, bucket in enumerate(lane.buckets):
                if bucket is not None:
                    tasks[index] += bucket.ready + bucket.delayed + bucket.leased + bucket.dead
                    counts[0] += bucket.ready
                    counts[1] += bucket.delayed
                    counts[2] += bucket.leased
                    counts[3] += bucket.dead
                    counts[4] += bucket.results
            if parts is not None:
                stats = lane_stats(core, topic, lane)
                flow = lane.flow
                flows = Flows(
                    flow.enqueued,
                    flow.claimed,
                    flow.completed,
                    flow.failed,
                    flow.waited_us,
                    flow.ran_us,
                )
                total = parts.add(lane.tenant.decode(), stats, flows, total)
                if stats is not None and stats.oldest_ready_age is not None:
                    oldest = max(oldest or 0.0, stats.oldest_ready_age)
        if parts is not None and parts.tenants:
            queues[parts.name] = parts.whole()
        stats_now = stats_of(core, self._runtime.opened.recoveries, Sums(*counts))
        self._last = Look(
            begun,
            clock.wall_us(),
            stats_now,
            self._runtime.health(),
            queues,
            tuple(queues),
            total,
            tasks,
            oldest,
            0.0,
        )
        now = clock.mono()
        spent += now - since
        self._last = self._last._replace(took_s=spent)
        is_kept = n >= SMALL and spent > TURN_S
        self._good_until = now + max(AGE_S, SHARE * spent) if is_kept else begun


class _Parts:
    """The tenants of a queue, while they are looked at."""

    def __init__(self, name: str, look: Look | None) -> None:
        self.name = name
        self.tenants: dict[str, QueueStats] = {}
        known = None if look is None else look.queues.get(name)
        self._before = _NOTHING if known is None else known.flows
        self._flows = self._before.all
        self._tenant_flows: dict[str, Flows] = {}
        self._is_still = True
        self._counts = [0] * 5
        self._oldest: float | None = None
        self._paused = 0

    def add(self, tenant: str, stats: QueueStats | None, flows: Flows, total: Flows) -> Flows:
        """One more, and what has gone through all of them since the look before: the new total."""
        then = self._before.tenants.get(tenant)
        if flows == then:
            flows = then  # most do not move: one object for all looks
        else:
            moved = flows.since(then or _NO_FLOWS)
            self._flows = self._flows.plus(moved)
            total = total.plus(moved)
            self._is_still = False
        self._tenant_flows[tenant] = flows
        if stats is not None:
            self.tenants[tenant] = stats
            for n, count in enumerate(
                (stats.ready, stats.delayed, stats.leased, stats.dead, stats.results)
            ):
                self._counts[n] += count
            if stats.oldest_ready_age is not None:
                self._oldest = max(self._oldest or 0.0, stats.oldest_ready_age)
            self._paused += stats.is_paused
        return total

    def whole(self) -> QueueLook:
        """The queue."""
        is_paused = self._paused == len(self.tenants)
        ready, delayed, leased, dead, results = self._counts
        stats = QueueStats(ready, delayed, leased, dead, results, self._oldest, is_paused)
        is_stuck = bool(stats.dead or self._paused)
        calm = not is_stuck, -(self._oldest or 0.0), self.name
        flows = QueueFlows(self._flows, self._tenant_flows)
        if self._is_still and len(self._tenant_flows) == len(self._before.tenants):
            flows = self._before
        return QueueLook(stats, self.tenants, flows, self._paused > 0 and not is_paused, calm)


_LOOKS: Final[WeakKeyDictionary[Engine, Looks]] = WeakKeyDictionary()


def looks_of(engine: Engine) -> Looks:
    """The looks that all who ask about ``engine`` share."""
    found = _LOOKS.get(engine)
    if found is None:
        found = _LOOKS[engine] = Looks(engine)
    return found
