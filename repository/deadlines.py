"""What will be due, and when: lease deadlines, delayed tasks, the expiry range.

The reaper asks for the next moment and sleeps until then; whoever files something earlier
wakes it. Lease deadlines are monotonic seconds, everything stored is wall milliseconds.

The lease heap is lazy: ending or extending a lease leaves its entry where it is. Entries are
looked at when they come up, and the heap is rebuilt once most of it is stale, so a queue that
completes 50,000 leases a second does not carry 30 seconds of dead entries.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from .state import NEVER_MS, Bucket

if TYPE_CHECKING:
    from .core import Core
    from .lease import Lease

__all__ = ["Deadlines"]

STALE_MAX = 4096


class Deadlines:
    """The three sources of work for the reaper."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._leases: list[tuple[float, int, Lease]] = []
        self._due: list[tuple[int, int, Bucket]] = []
        self._n = 0
        self.next_mono = float("inf")  # when the reaper means to wake for a lease
        self.next_wall_ms = NEVER_MS  # … and for anything stored

    # -- leases ------------------------------------------------------------------------

    def watch(self, lease: Lease) -> None:
        """A lease was granted (or its deadline moved closer)."""
        heap = self._leases
        self._n += 1
        heappush(heap, (lease.deadline_mono, self._n, lease))
        if len(heap) > STALE_MAX and len(heap) > 2 * len(self._core.leases):
            live = {id(entry[2]): entry[2] for entry in heap if entry[2].is_live}
            heap[:] = [(x.deadline_mono, n, x) for n, x in enumerate(live.values())]
            heapify(heap)
        if lease.deadline_mono < self.next_mono:
            self.next_mono = lease.deadline_mono
            self._core.wake_reaper()

    def expired(self, now_mono: float, limit: int) -> list[Lease]:
        """Up to ``limit`` live leases whose deadline has passed; they stay watched if not ended."""
        heap = self._leases
        found: list[Lease] = []
        while heap and heap[0][0] <= now_mono and len(found) < limit:
            _, n, lease = heappop(heap)
            if not lease.is_live:
                continue
            if lease.deadline_mono <= now_mono:
                found.append(lease)
            else:
                heappush(heap, (lease.deadline_mono, n, lease))
        return found

    def first_lease(self) -> float:
        """The next lease deadline, or infinity."""
        heap = self._leases
        while heap and not heap[0][2].is_live:
            heappop(heap)
        return heap[0][0] if heap else float("inf")

    # -- delayed tasks -----------------------------------------------------------------

    def note_due(self, bucket: Bucket, due_ms: int) -> None:
        """A delayed row earlier than the bucket's next was queued."""
        bucket.next_due_ms = due_ms
        self._n += 1
        heappush(self._due, (due_ms, self._n, bucket))
        if due_ms < self.next_wall_ms:
            self.next_wall_ms = due_ms
            self._core.wake_reaper()

    def due_bucket(self, now_ms: int) -> Bucket | None:
        """A bucket with a delayed row that is due; the caller sets its next due time anew."""
        heap = self._due
        while heap and heap[0][0] <= now_ms:
            due_ms, _, bucket = heappop(heap)
            if due_ms == bucket.next_due_ms and bucket.delayed:
                return bucket
        return None

    # -- the expiry range --------------------------------------------------------------

    def note_expiry(self) -> None:
        """A shard's next expiry moved closer."""
        earliest = min(shard.next_expiry_ms for shard in self._core.shards)
        if earliest < self.next_wall_ms:
            self.next_wall_ms = earliest
            self._core.wake_reaper()

    # -- all together ------------------------------------------------------------------

    def plan(self) -> tuple[float, int]:
        """(next lease deadline, next wall millisecond): what the reaper sleeps towards."""
        heap = self._due
        while heap and (heap[0][0] != heap[0][2].next_due_ms or not heap[0][2].delayed):
            heappop(heap)
        earliest = min((s.next_expiry_ms for s in self._core.shards), default=NEVER_MS)
        self.next_mono = self.first_lease()
        self.next_wall_ms = min(heap[0][0] if heap else NEVER_MS, earliest)
        return self.next_mono, self.next_wall_ms

    def lag_s(self, now_mono: float, now_ms: int) -> float:
        """How late the oldest thing is that should have been done."""
        mono, wall = self.first_lease(), self.next_wall_ms
        late = [0.0]
        if mono <= now_mono:
            late.append(now_mono - mono)
        if wall <= now_ms:
            late.append((now_ms - wall) / 1000)
        return max(late)
