"""The limits of all queues: counted in the section that grants, waking who waits.

A queue at its limit is *held*: claims pass it over as if it were paused, by the same comparison
(``QueueState.is_held``), so a queue without limits pays nothing. What changes that is here: a row
that is picked, a lease that ends, a window that opens (one timer for each queue that its rate
holds). Kept claim sets are noticed at each change, long polls are served when it opens.

Leases of a shard that has failed do not count: nobody knows their end before the store is reopened,
and the queue goes on with the other shards. Leases of dead letters do not count either: no run of
the queue begins with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ....coalescer.shard_status import FAILED
from ....engine.records.lease import DEAD_LEASE
from ....engine.runtime.clock import Clock
from ....engine.runtime.event_loop import Spawner
from ..caches.claim_sets import ClaimSets
from ..lease_state import LeaseState
from ..long_polls import LongPolls
from ..queue_state import QueueState
from .queue_limit import ALL_SHARDS, QueueLimit, Window
from .queue_rules import QueueRules
from .share import Share

__all__ = ["QueueLimits"]

STARTS_KEPT: Final = 1024  # entries that a close leaves of a window


class QueueLimits:
    """The limits of an engine's queues.

    Args:
        spawner: runs the timers.
        clock: windows follow its ``mono``, and its wall time where leases say when they began.
        queue_states: the engine's queues.
        leases: its live leases.
        claim_sets: noticed when a queue is held, and when it is no more.
        waiters: served when it is no more.
        share: what is led here of the shards: so much of each limit holds here.
    """

    def __init__(
        self,
        spawner: Spawner,
        clock: Clock,
        queue_states: Mapping[bytes, QueueState],
        leases: Mapping[bytes, LeaseState],
        claim_sets: ClaimSets,
        waiters: LongPolls,
        share: Callable[[], Share],
    ) -> None:
        self._spawner = spawner
        self._clock = clock
        self._queue_states = queue_states
        self._leases = leases
        self._claim_sets = claim_sets
        self._waiters = waiters
        self._share = share
        self.by_queue: dict[bytes, QueueLimit] = {}
        self._is_closed = False

    def _now_us(self) -> int:
        return round(self._clock.mono() * 1e6)

    # -- settings ------------------------------------------------------------------------

    def set(
        self,
        queue: bytes,
        rules: QueueRules,
        *,
        is_past_known: bool,
        starts: Sequence[int] | None = None,
    ) -> None:
        """Take the limits of a queue.

        Args:
            queue: its name.
            rules: what is set for it.
            is_past_known: False after a restart: the window of a rate counts as full, unless it is
                kept here already.
            starts: what the process before has left of it, if it was closed: see ``starts_of``.
        """
        limit = self.by_queue.get(queue)
        queue_state = self._queue_states.get(queue)
        if rules.concurrency <= 0 and rules.rate_n <= 0:
            if limit is not None:
                self._cancel(limit)
                del self.by_queue[queue]
                if queue_state is not None:
                    queue_state.limit = None
                    self._open(queue_state)
                    self._waiters.forget_limit(queue_state)
            return
        if limit is None:
            limit = self.by_queue[queue] = QueueLimit()
            limit.live = self._count(queue)
        is_past_known |= limit.window is not None
        limit.set(rules, self._share())
        if starts is not None and limit.window is not None:
            limit.window.recall(self._recalled(starts))
        elif not is_past_known and limit.window is not None:
            self._fill(limit.window, limit, ALL_SHARDS, limit.window.n)
        if queue_state is not None:
            queue_state.limit = limit
        self._update(queue, limit)

    def adopt(self, queue_state: QueueState) -> None:
        """A queue has come into memory: its limit, if it has one, is there already."""
        limit = queue_state.limit = self.by_queue.get(queue_state.queue)
        if limit is not None:
            self._update(queue_state.queue, limit)

    def _recalled(self, starts: Sequence[int]) -> list[tuple[int, int]]:
        wall_us, now_us = self._clock.wall_us(), self._now_us()
        pairs = zip(starts[::2], starts[1::2], strict=True)
        return sorted((now_us - max(0, wall_us - at_us), count) for at_us, count in pairs)

    def starts_of(self, limit: QueueLimit) -> list[int] | None:
        """The starts that the next process has to know of: wall microseconds, and how many."""
        if limit.window is None:
            return None
        wall_us, now_us = self._clock.wall_us(), self._now_us()
        known = limit.window.known(now_us, STARTS_KEPT)
        return [number for at_us, n in known for number in (wall_us - now_us + at_us, n)]

    def share_out(self) -> None:
        """This process leads other shards than before: it has another share of each limit."""
        if self.by_queue:
            share = self._share()
            for queue, limit in self.by_queue.items():
                limit.set(limit.rules, share)
                self._update(queue, limit)

    def gain(self, shard: int) -> None:
        """A shard will be led here: another process has granted leases of late.

        Its share of a rate counts as used as of now; what is known of the others' is kept.
        Its leases are not counted yet, so that its share of leases comes with ``share_out``.
        """
        if not self.by_queue:
            return
        had = self._share()
        share = Share({*had.led, shard}, had.shards)
        for queue, limit in self.by_queue.items():
            before = limit.concurrency
            limit.set(limit.rules, share)
            limit.concurrency = min(before, limit.concurrency)
            if limit.window is not None:
                starts = limit.window.n
                if had.led:
                    rate = limit.rules.rate_n, limit.rules.rate_period_ms * 1000
                    starts = max(1, starts - had.of_rate(*rate)[0])
                self._fill(limit.window, limit, shard, starts)
            self._update(queue, limit)

    def _fill(self, window: Window, limit: QueueLimit, shard: int, starts: int) -> None:
        now_us = limit.filled[shard] = self._now_us()
        window.fill(now_us, starts)

    def recount(self) -> None:
        """A shard has failed: its leases do not count any more."""
        for queue, limit in self.by_queue.items():
            limit.live = self._count(queue)
            self._update(queue, limit)

    def _count(self, queue: bytes) -> int:
        count = 0
        for lease in self._leases.values():
            shard_queue = lease.shard_queue
            is_dead = lease.flags & DEAD_LEASE
            if (
                shard_queue.tenant_queue.queue == queue
                and shard_queue.shard.coalescer.status < FAILED
                and not is_dead
            ):
                count += 1
        return count

    # -- counts --------------------------------------------------------------------------

    def free(self, limit: QueueLimit) -> int:
        """How many rows of the queue may be picked now."""
        return max(0, limit.free(self._now_us()))

    def picked(self, queue_state: QueueState, count: int) -> None:
        """Rows of the queue were picked; each is granted, or put back, before the section ends."""
        limit = queue_state.limit
        if limit is not None and count:
            limit.live += count
            limit.picked += count
            self._note(queue_state, limit)

    def unpicked(self, queue_state: QueueState) -> None:
        """A row that was picked is not granted."""
        limit = queue_state.limit
        if limit is not None:
            limit.live -= 1
            limit.picked -= 1
            if queue_state.is_limited:
                self._update(queue_state.queue, limit)

    def granted(self, leases: Sequence[LeaseState], now_mono: float) -> None:
        """Rows that were picked are leased."""
        now_us = round(now_mono * 1e6)
        changed: dict[bytes, QueueState] = {}
        for lease in leases:
            queue_state = lease.shard_queue.tenant_queue.queue_state
            limit = queue_state.limit
            if limit is not None:
                limit.picked -= 1
                if limit.window is not None:
                    limit.window.start(now_us, 1)
                changed[queue_state.queue] = queue_state
        for queue_state in changed.values():  # now it is known when the window opens
            if queue_state.limit is not None:
                self._note(queue_state, queue_state.limit)

    def granted_one(self, queue_state: QueueState, now_mono: float) -> None:
        """A row is leased that no ``picked`` has counted."""
        limit = queue_state.limit
        if limit is not None:
            limit.live += 1
            if limit.window is not None:
                limit.window.start(round(now_mono * 1e6), 1)
            self._note(queue_state, limit)

    def restored(self, lease: LeaseState) -> None:
        """A lease of the process before is back: it counts, and says when it began."""
        queue_state = lease.shard_queue.tenant_queue.queue_state
        limit = queue_state.limit
        if limit is None or lease.flags & DEAD_LEASE:
            return
        limit.live += 1
        shard = lease.shard_queue.shard.index
        filled_us = limit.filled.get(shard) or limit.filled.get(ALL_SHARDS)
        if limit.window is not None and filled_us:
            ago_us = max(0, self._clock.wall_us() - lease.leased_us)
            limit.window.know(filled_us - ago_us, filled_us)
        self._update(queue_state.queue, limit)

    def ended(self, lease: LeaseState) -> None:
        """A lease of a queue with a limit is over."""
        queue_state = lease.shard_queue.tenant_queue.queue_state
        limit = queue_state.limit
        if lease.flags & DEAD_LEASE:
            return
        if limit is not None and lease.shard_queue.shard.coalescer.status < FAILED:
            limit.live -= 1
            if queue_state.is_limited:
                self._update(queue_state.queue, limit)

    # -- held or not ---------------------------------------------------------------------

    def _note(self, queue_state: QueueState, limit: QueueLimit) -> None:
        """More is counted: hold the queue if it is at its limit."""
        if queue_state.is_limited or not limit.is_surely_free:
            self._update(queue_state.queue, limit)

    def _update(self, queue: bytes, limit: QueueLimit) -> None:
        queue_state = self._queue_states.get(queue)
        now_us = self._now_us()
        if limit.free(now_us) > 0:
            if queue_state is not None and queue_state.is_limited:
                self._open(queue_state)
            return
        opens_us = limit.opens_us(now_us)
        if opens_us:
            self._arm(queue, limit, opens_us)
        if queue_state is not None and not queue_state.is_limited:
            queue_state.is_limited = queue_state.is_held = True
            self._waiters.hold(queue_state)
            self._claim_sets.notice_queue(queue)

    def _open(self, queue_state: QueueState) -> None:
        if queue_state.is_limited:
            queue_state.is_limited = False
            queue_state.is_held = queue_state.is_paused
            self._claim_sets.notice_queue(queue_state.queue)
            self._waiters.open(queue_state)

    def _arm(self, queue: bytes, limit: QueueLimit, at_us: int) -> None:
        if self._is_closed or (limit.timer is not None and limit.timer_us == at_us):
            return
        self._cancel(limit)

        def look() -> None:
            limit.timer = None
            if self.by_queue.get(queue) is limit:
                self._update(queue, limit)
                self._waiters.serve()  # before a clock moved by hand goes on

        limit.timer_us = at_us
        limit.timer = self._clock.call_at(self._spawner, at_us / 1e6, look)

    def _cancel(self, limit: QueueLimit) -> None:
        timer, limit.timer = limit.timer, None
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Leave no timer behind: one may be set for tomorrow."""
        self._is_closed = True
        for limit in self.by_queue.values():
            self._cancel(limit)
