"""Long polls: claims that found nothing, served by whatever makes a task ready.

A waiter is served, in order of arrival, at the end of the tick in which a task became ready,
just before the group is written: the enqueue that feeds it and its claim share one commit.
Serving allocates the tasks, so no wake is ever lost: a waiter that was cancelled meanwhile gives
its tasks back, which makes them ready again, which serves the next one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from ..engine.clock import TimerHandle
from ..engine.spawner import Future
from ..errors import LodeqError
from .claim import serve_waiter
from .picking import ClaimRequest
from .state import Lane

if TYPE_CHECKING:
    from .core import Core
    from .lease import Lease

__all__ = ["Waiter", "Waiters"]

LaneKey = tuple[bytes, bytes | None]  # tenant None: all tenants


class Waiter:
    """One caller in ``claim(wait=…)``."""

    __slots__ = ("deadline", "future", "is_waiting", "leases", "number", "request", "wait_s")

    def __init__(self, number: int, request: ClaimRequest, future: Future) -> None:
        self.number = number
        self.request = request
        self.future = future
        self.leases: list[Lease] = []
        self.is_waiting = True
        self.wait_s = self.deadline = 0.0


class Waiters:
    """Who waits for which queue."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.by_lane: dict[LaneKey, dict[Waiter, None]] = {}
        self._ready: dict[Lane, None] = {}
        self._n = 0
        # Waiters of one patience time out in the order they came: a line for each, one timer
        # for all. A timer of the loop's own for every claim would cost more than the claim.
        # Who is served leaves at once, and with him his leases. Ordered, for a dict looks through
        # all it has lost to find its first.
        self._lines: dict[float, OrderedDict[Waiter, None]] = {}
        self._timer: TimerHandle | None = None
        self._timer_at = float("inf")

    def add(self, request: ClaimRequest, wait_s: float) -> Waiter:
        """A claim found nothing and is willing to wait: its future gets leases, or [] too late."""
        self._n += 1
        waiter = Waiter(self._n, request, self._core.spawner.future())
        for key in request.keys:
            self.by_lane.setdefault(key, {})[waiter] = None
        waiter.wait_s = wait_s
        waiter.deadline = deadline = self._core.clock.mono() + wait_s
        line = self._lines.get(wait_s)
        if line is None:
            line = self._lines[wait_s] = OrderedDict()
        line[waiter] = None
        if deadline < self._timer_at:
            self._arm(deadline)
        return waiter

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        core = self._core
        self._timer_at = at
        self._timer = core.clock.call_at(core.spawner, at, self._time_out)

    def _time_out(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        now = self._core.clock.mono()
        first = float("inf")
        for line in list(self._lines.values()):
            while line:
                waiter = next(iter(line))
                if waiter.deadline > now:
                    first = min(first, waiter.deadline)
                    break
                self.remove(waiter)
                if not waiter.future.done():
                    waiter.future.set_result([])
        if first < float("inf"):
            self._arm(first)

    def remove(self, waiter: Waiter) -> None:
        """Served, timed out, cancelled. Idempotent."""
        waiter.is_waiting = False
        line = self._lines.get(waiter.wait_s)
        if line is not None:
            line.pop(waiter, None)
            if not line:
                del self._lines[waiter.wait_s]
        for key in waiter.request.keys:
            here = self.by_lane.get(key)
            if here is not None:
                here.pop(waiter, None)
                if not here:
                    del self.by_lane[key]

    def note(self, lane: Lane) -> None:
        """A task became ready in ``lane`` (or the lane was resumed)."""
        by_lane = self.by_lane
        if lane not in self._ready and (lane.key in by_lane or lane.any_key in by_lane):
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
            return True  # the next in line has had no wake yet

    def _first(self, lane: Lane) -> Waiter | None:
        own = self.by_lane.get(lane.key)
        every = self.by_lane.get(lane.any_key)
        a = next(iter(own)) if own else None
        b = None
        if every:
            tenant = lane.tenant
            b = next((waiter for waiter in every if tenant not in waiter.request.skipped), None)
        if a is None or b is None:
            return a or b
        return a if a.number < b.number else b

    def fail_all(self, error: BaseException) -> None:
        """At close, or when no shard takes writes: nobody is left waiting."""
        for waiter in {w: None for line in self.by_lane.values() for w in line}:
            self.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(error)
        self._ready.clear()
        self._lines.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, float("inf")
