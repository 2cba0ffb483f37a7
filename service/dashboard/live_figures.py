"""What a moment shows and rates between moments. Taken only while somebody looks.

A look at the engine (``service.shared.queue_looks``) costs O(queues), so looks are at least a
second apart, and at least twenty times as long as the last one took: a dashboard takes a twentieth
of the loop at most, however many browsers watch it. RocksDB's own figures come from a thread, every
few seconds.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ...engine.recovery.health import disk_free_bytes
from ...engine.store.upkeep import Figures, figures_of
from ...errors import ClosedError, StorageError
from ...repository.api.engine import Engine
from ..shared.queue_looks import Flows, Look, QueueFlows, looks_of

__all__ = ["Rates", "Stores", "Watch"]

LOOK_S: Final = 0.9
SHARE: Final = 20  # a look is that many times its own length apart from the next
KEEP_S: Final = 60.0
STEP_S: Final = 5.0  # between looks that are kept
STORES_S: Final = 5.0
SERIES: Final = 120  # points of the chart
STORES_MAX: Final = 64  # shards whose figures are asked for


class _Past(NamedTuple):
    """What is kept of a look for rates."""

    mono: float
    enqueued: int
    completed: int
    flows: Flows
    queues: Mapping[str, QueueFlows]


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
        self._looks = looks_of(engine)
        self._last: Look | None = None
        self._kept: deque[_Past] = deque()  # the last of them is of the last look
        self._next_mono = 0.0
        self._stores = Stores()
        self._stores_mono = float("-inf")
        self._is_asking = False
        self.series: deque[tuple[float, float]] = deque(maxlen=SERIES)  # enqueued, completed per s

    async def look(self) -> Look:
        """The present, as of a moment ago at most.

        Raises:
            ClosedError: the engine is closed.
        """
        self._core.check()
        now = self._core.clock.mono()
        last = self._last
        if last is None or now >= self._next_mono:
            look = await self._looks.look()
            if look is not self._last:  # which another may have noted meanwhile
                self._note(look)
                self._next_mono = look.mono + max(LOOK_S, SHARE * look.took_s)
            return look
        return last

    def _note(self, look: Look) -> None:
        kept, queues = self._kept, {name: one.flows for name, one in look.queues.items()}
        past = _Past(
            look.mono, look.stats.enqueued_total, look.stats.completed_total, look.flows, queues
        )
        self._chart(kept[-1] if kept else None, past)
        while kept and past.mono - kept[0].mono > KEEP_S:
            kept.popleft()
        if len(kept) >= 2 and kept[-1].mono - kept[-2].mono < STEP_S:
            kept.pop()
        kept.append(past)
        self._last = look

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
        """Of all queues, of one, or of one tenant of it.

        Rates are of the last seconds, latencies of the last minute; these are since open where the
        last minute has none, or nobody has looked for so long.
        """
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


def _flows(past: _Past, name: str | None, tenant: str | None) -> Flows:
    if name is None:
        return past.flows
    queue = past.queues.get(name)
    if queue is None:
        return _NO_FLOWS
    return queue.all if tenant is None else queue.tenants.get(tenant, _NO_FLOWS)


_NO_FLOWS: Final = Flows()
