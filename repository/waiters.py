"""Long polls: claims that found nothing, served by whatever makes a task ready.

A waiter is served, in order of arrival, at the end of the tick in which a task became ready,
just before the group is written: the enqueue that feeds it and its claim share one commit.
Serving allocates the tasks, so no wake is ever lost: a waiter that was cancelled meanwhile gives
its tasks back, which makes them ready again, which serves the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..coalescer.spawner import Future
from ..engine.clock import TimerHandle
from ..errors import LodeqError
from .claim import ClaimRequest, serve_waiter
from .state import Lane

if TYPE_CHECKING:
    from .core import Core
    from .lease import Lease

__all__ = ["Waiter", "Waiters"]

LaneKey = tuple[bytes, bytes | None]  # tenant None: all tenants


class Waiter:
    """One caller in ``claim(wait=…)``."""

    __slots__ = ("future", "leases", "number", "request", "timer")

    def __init__(self, number: int, request: ClaimRequest, future: Future) -> None:
        self.number = number
        self.request = request
        self.future = future
        self.leases: list[Lease] = []
        self.timer: TimerHandle | None = None


class Waiters:
    """Who waits for which queue."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.by_lane: dict[LaneKey, dict[Waiter, None]] = {}
        self._ready: dict[Lane, None] = {}
        self._n = 0

    def add(self, request: ClaimRequest) -> Waiter:
        """A claim found nothing and is willing to wait."""
        self._n += 1
        waiter = Waiter(self._n, request, self._core.spawner.future())
        for key in request.keys:
            self.by_lane.setdefault(key, {})[waiter] = None
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Served, timed out, cancelled. Idempotent."""
        for key in waiter.request.keys:
            line = self.by_lane.get(key)
            if line is not None:
                line.pop(waiter, None)
                if not line:
                    del self.by_lane[key]
        if waiter.timer is not None:
            waiter.timer.cancel()
            waiter.timer = None

    def note(self, lane: Lane) -> None:
        """A task became ready in ``lane`` (or the lane was resumed)."""
        by_lane = self.by_lane
        if (lane.queue, lane.tenant) in by_lane or (lane.queue, None) in by_lane:
            self._ready[lane] = None
            # Its shard's tick is usually scheduled already, by the group being filled.
            self._core.shards[0].co.poke()

    def serve(self) -> None:
        """Before a commit: hand what became ready to those who wait, first come, first served."""
        if not self._ready:
            return
        ready, self._ready = self._ready, {}
        for lane in ready:
            while lane.ready:
                waiter = self._first(lane)
                if waiter is None or not self._serve_one(waiter):
                    break

    def _serve_one(self, waiter: Waiter) -> bool:
        try:
            return serve_waiter(self._core, waiter)
        except LodeqError as error:  # what is ready cannot be read: the caller hears why
            self.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(error)
            return False

    def _first(self, lane: Lane) -> Waiter | None:
        own = self.by_lane.get((lane.queue, lane.tenant))
        every = self.by_lane.get((lane.queue, None))
        a = next(iter(own)) if own else None
        b = next(iter(every)) if every else None
        if a is None or b is None:
            return a or b
        return a if a.number < b.number else b

    def fail_all(self, error: BaseException) -> None:
        """At close: nobody is left waiting."""
        for waiter in {w: None for line in self.by_lane.values() for w in line}:
            self.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(error)
        self._ready.clear()
