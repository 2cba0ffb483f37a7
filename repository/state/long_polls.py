"""Claim requests, and long polls: claims that found nothing and wait for a task to become ready.

A waiter is served, in order of arrival, at the end of the tick in which a task became ready,
just before the group is written: the enqueue that feeds it and its claim share one commit.
Serving allocates the tasks, so no wake is ever lost: a waiter that was cancelled meanwhile gives
its tasks back, which makes them ready again, which serves the next one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from ...engine.runtime.clock import Clock, TimerHandle
from ...engine.runtime.event_loop import Future, Spawner
from ...errors import LodeqError
from .lease_state import LeaseState
from .queue_state import Shard, TenantQueue

__all__ = ["ClaimRequest", "LongPoll", "LongPolls"]

LINES_MAX: Final = 64  # lengths of a wait with a line of their own
STALE_MIN = 64  # fewer stale entries are not worth a rebuild of the heap
SERVED_MAX = 1024  # tasks, or waiters, in one turn; the others are served in the next
SERVED_BYTES_MAX: Final = 4 << 20  # of their records: as much as one claim may read
LaneKey = tuple[bytes, bytes | None]  # tenant None: all tenants
NO_TENANTS: Final[frozenset[bytes]] = frozenset()
NO_BOOSTS: Final[Mapping[LaneKey, float]] = {}


class ClaimRequest:
    """The arguments of one claim."""

    __slots__ = (
        "boosts",
        "bytes_max",
        "is_exported",
        "is_plain",
        "keys",
        "lane",
        "lease_ms",
        "lease_s",
        "limit",
        "skipped",
        "worker",
    )

    def __init__(
        self,
        keys: Sequence[LaneKey],
        *,
        limit: int,
        lease_s: float,
        worker: bytes,
        boosts: Mapping[LaneKey, float] = NO_BOOSTS,
        is_exported: bool = False,
        skipped: frozenset[bytes] = NO_TENANTS,
        bytes_max: int = 0,
    ) -> None:
        self.keys = keys
        self.lane: TenantQueue | None = None  # where ``take_one`` found the last task
        self.limit = limit
        self.lease_s = lease_s
        self.lease_ms = int(lease_s * 1000)
        self.worker = worker
        self.boosts = boosts  # seconds, for those of ``keys`` that have them
        self.is_exported = is_exported
        self.skipped = skipped  # tenants that get nothing by it; of ALL_TENANTS only
        self.bytes_max = bytes_max  # of records; 0: ``CLAIM_BYTES_MAX``
        self.is_plain = limit == 1 and len(keys) == 1 and not boosts


class LongPoll:
    """One caller in ``claim(wait=…)``."""

    __slots__ = ("deadline", "future", "is_waiting", "leases", "number", "request", "wait_s")

    def __init__(self, number: int, request: ClaimRequest, future: Future) -> None:
        self.number = number
        self.request = request
        self.future = future
        self.leases: list[LeaseState] = []
        self.is_waiting = True
        self.wait_s = self.deadline = 0.0


class LongPolls:
    """Who waits for which queue. Joining, being served and leaving cost the same for any number.

    The lines are ordered dicts: the first entry of a plain one is searched for behind all that
    were taken from its front, which makes serving a long line quadratic.
    """

    def __init__(self, spawner: Spawner, clock: Clock, shards: Sequence[Shard]) -> None:
        self._spawner = spawner
        self._clock = clock
        self._shards = shards
        # Gives a waiter what is ready: ``claim.serve_waiter``, set by open, from a layer above.
        self.serve_one: Callable[[LongPoll], bool] = lambda waiter: False
        self.by_lane: dict[LaneKey, OrderedDict[LongPoll, None]] = {}
        # Waiters for all tenants, a second time: by the tenants they skip.
        self._by_skipped: dict[LaneKey, dict[frozenset[bytes], OrderedDict[LongPoll, None]]] = {}
        self.ready: dict[TenantQueue, None] = {}  # to be served before the next write
        self._n = 0
        # Waiters of one length time out in the order they came: a line for each, one timer
        # for all. A timer of the loop's own for every claim would cost more than the claim.
        self._lines: dict[float, OrderedDict[LongPoll, None]] = {}
        # Those of other lengths, by number, and a heap of (deadline, number); who has left it is
        # only in the heap, which holds nothing of theirs.
        self._odd: dict[int, LongPoll] = {}
        self._heap: list[tuple[float, int]] = []
        self._timer: TimerHandle | None = None
        self._timer_at = float("inf")

    def add(self, request: ClaimRequest, wait_s: float) -> LongPoll:
        """A claim found nothing and is willing to wait: its future gets leases, or [] too late."""
        self._n += 1
        waiter = LongPoll(self._n, request, self._spawner.future())
        by_lane = self.by_lane
        for key in request.keys:
            here = by_lane.get(key)
            if here is None:
                here = by_lane[key] = OrderedDict()
            here[waiter] = None
            if key[1] is None:
                groups = self._by_skipped.setdefault(key, {})
                group = groups.get(request.skipped)
                if group is None:
                    group = groups[request.skipped] = OrderedDict()
                group[waiter] = None
        waiter.wait_s = wait_s
        waiter.deadline = deadline = self._clock.mono() + wait_s
        line = self._lines.get(wait_s)
        if line is None and len(self._lines) < LINES_MAX:
            line = self._lines[wait_s] = OrderedDict()
        if line is not None:
            line[waiter] = None
        else:
            self._odd[waiter.number] = waiter
            heappush(self._heap, (deadline, waiter.number))
        if deadline < self._timer_at:
            self._arm(deadline)
        return waiter

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._clock.call_at(self._spawner, at, self._time_out)

    def _time_out(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        now = self._clock.mono()
        first = float("inf")
        for line in list(self._lines.values()):
            while line:
                waiter = next(iter(line))
                if waiter.deadline > now:
                    first = min(first, waiter.deadline)
                    break
                self._give_up(waiter)
        heap = self._heap
        while heap and (heap[0][0] <= now or heap[0][1] not in self._odd):
            late = self._odd.get(heappop(heap)[1])
            if late is not None:
                self._give_up(late)
        if heap:
            first = min(first, heap[0][0])
        if first < float("inf"):
            self._arm(first)

    def _give_up(self, waiter: LongPoll) -> None:
        self.remove(waiter)
        if not waiter.future.done():
            waiter.future.set_result([])

    def remove(self, waiter: LongPoll) -> None:
        """Served, timed out, cancelled. Idempotent. Nothing refers to it afterwards."""
        if not waiter.is_waiting:
            return
        waiter.is_waiting = False
        if self._odd.pop(waiter.number, None) is not None:
            if len(self._heap) > STALE_MIN + 2 * len(self._odd):
                self._heap = [entry for entry in self._heap if entry[1] in self._odd]
                heapify(self._heap)
        else:
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
            if key[1] is None:
                self._remove_skipping(key, waiter)

    def _remove_skipping(self, key: LaneKey, waiter: LongPoll) -> None:
        groups = self._by_skipped.get(key)
        group = groups.get(waiter.request.skipped) if groups is not None else None
        if groups is None or group is None:
            return
        group.pop(waiter, None)
        if not group:
            del groups[waiter.request.skipped]
            if not groups:
                del self._by_skipped[key]

    def note(self, lane: TenantQueue) -> None:
        """A task became ready in ``lane`` (or the lane was resumed)."""
        by_lane = self.by_lane
        if lane not in self.ready and (lane.key in by_lane or lane.any_key in by_lane):
            self.ready[lane] = None
            # Its shard's tick is usually scheduled already, by the group being filled.
            self._shards[0].co.poke()

    def serve(self) -> None:
        """Before a commit: hand what became ready to those who wait, first come, first served."""
        if not self.ready:
            return
        ready, self.ready = self.ready, {}
        left, bytes_left = SERVED_MAX, SERVED_BYTES_MAX
        for lane in ready:
            while lane.ready:
                waiter = self._first(lane)
                if waiter is None:
                    break
                if left <= 0 or bytes_left <= 0:
                    self.note(lane)
                    break
                if not self._serve_one(waiter):
                    break
                leases = waiter.leases
                left -= max(1, len(leases))
                bytes_left -= sum([lease.record_bytes for lease in leases])

    def _serve_one(self, waiter: LongPoll) -> bool:
        try:
            return self.serve_one(waiter)
        except LodeqError as error:  # what is ready cannot be read: the caller hears why
            self.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(error)
            return True  # the next in line has had no wake yet

    def _first(self, lane: TenantQueue) -> LongPoll | None:
        own = self.by_lane.get(lane.key)
        first = next(iter(own)) if own else None
        groups = self._by_skipped.get(lane.any_key)
        if groups is not None:
            tenant = lane.tenant
            for skipped, group in groups.items():
                if tenant not in skipped:
                    waiter = next(iter(group))
                    if first is None or waiter.number < first.number:
                        first = waiter
        return first

    def fail_all(self, error: BaseException) -> None:
        """At close, or when no shard takes writes: nobody is left waiting."""
        for waiter in {w: None for line in self.by_lane.values() for w in line}:
            self.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(error)
        self.ready.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, float("inf")
