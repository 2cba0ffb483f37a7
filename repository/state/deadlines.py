"""Deadlines: when leases, delayed tasks and expiry rows are due.

The reaper asks for the next moment and sleeps until then; whoever files something earlier
wakes it. Lease deadlines are monotonic seconds, everything stored is wall milliseconds.

Leases of one length fall due in the order they were granted, so they stand in a line per
length: granting appends, ending takes out, nothing is compared. Extending one leaves it where it
is; when it comes to the front it moves to the heap, which also takes the odd ones. The heap names
leases and does not hold them: what has ended in it costs an id, not a payload, and is compacted
once it is most of the heap.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from .lease_state import LeaseState
from .queue_state import NEVER_MS, Shard, ShardQueue

__all__ = ["Deadlines"]

STALE_MAX = 4096
LINES_MAX: Final = 64  # distinct lease lengths with a line of their own


class Deadlines:
    """The three sources of work for the reaper."""

    def __init__(self, leases: Mapping[bytes, LeaseState], shards: Sequence[Shard]) -> None:
        self._leases = leases  # of the engine, by task
        self._shards = shards
        # Called when something was filed that is due before what the reaper sleeps towards.
        self.wake_reaper: Callable[[], None] = lambda: None
        # Ordered, for a dict looks through all it has lost to find its first.
        self._lines: dict[float, OrderedDict[bytes, LeaseState]] = {}
        self._heap: list[tuple[float, int, bytes, int]] = []  # deadline, a number, task, epoch
        self._due: list[tuple[int, int, ShardQueue]] = []
        self._n = 0
        self._heap_max = self._due_max = STALE_MAX
        self.next_mono = float("inf")  # when the reaper means to wake for a lease
        self.next_wall_ms = NEVER_MS  # … and for anything stored

    # -- leases ------------------------------------------------------------------------

    def watch(self, leases: Sequence[LeaseState]) -> None:
        """Leases were granted just now, all at once and for one length."""
        if not leases:
            return
        lease = leases[0]
        line = self._lines.get(lease.lease_s)
        if line is None:
            if len(self._lines) >= LINES_MAX:
                self._lines = {length: one for length, one in self._lines.items() if one}
            if len(self._lines) >= LINES_MAX:
                for one in leases:
                    self.rewatch(one)
                return
            line = self._lines[lease.lease_s] = OrderedDict()
        for one in leases:
            line[one.task_id] = one
        if lease.deadline_mono < self.next_mono:
            self.next_mono = lease.deadline_mono
            self.wake_reaper()

    def rewatch(self, lease: LeaseState) -> None:
        """A deadline that does not follow from grant and length: put into the heap."""
        self._push(lease)
        if lease.deadline_mono < self.next_mono:
            self.next_mono = lease.deadline_mono
            self.wake_reaper()

    def _push(self, lease: LeaseState) -> None:
        if len(self._heap) >= self._heap_max:  # before: a lease just made is in no table yet
            self._compact()
        self._n += 1
        heappush(self._heap, (lease.deadline_mono, self._n, lease.task_id, lease.epoch))

    def forget(self, lease: LeaseState) -> None:
        """It has ended."""
        line = self._lines.get(lease.lease_s)
        if line is not None:
            line.pop(lease.task_id, None)

    def _find(self, task_id: bytes, epoch: int) -> LeaseState | None:
        """The lease of an entry of the heap, unless it has ended."""
        lease = self._leases.get(task_id)
        return lease if lease is not None and lease.epoch == epoch else None

    def _compact(self) -> None:
        """Drop what has ended; what stands in several places keeps one."""
        found: dict[bytes, LeaseState] = {}
        for _, _, task_id, epoch in self._heap:
            lease = self._find(task_id, epoch)
            if lease is not None:
                found[task_id] = lease
        self._heap = [
            (lease.deadline_mono, n, task_id, lease.epoch)
            for n, (task_id, lease) in enumerate(found.items())
        ]
        heapify(self._heap)
        self._heap_max = max(STALE_MAX, 2 * len(self._heap))

    def _front(self, line: OrderedDict[bytes, LeaseState]) -> LeaseState | None:
        """The first lease of a line that still has the deadline it was granted with."""
        while line:
            lease = next(iter(line.values()))
            if lease.deadline_mono <= lease.granted_mono + lease.lease_s:
                return lease
            del line[lease.task_id]
            self._push(lease)
        return None

    def expired(self, now_mono: float, limit: int) -> list[LeaseState]:
        """Up to ``limit`` live leases whose deadline has passed; the caller ends them."""
        # A lease whose deadline was moved about may stand in several places: it is found once.
        found: dict[LeaseState, None] = {}
        for line in self._lines.values():
            while len(found) < limit:
                lease = self._front(line)
                if lease is None or lease.deadline_mono > now_mono:
                    break
                del line[lease.task_id]
                found[lease] = None
        heap = self._heap
        while heap and heap[0][0] <= now_mono and len(found) < limit:
            _, n, task_id, epoch = heappop(heap)
            lease = self._find(task_id, epoch)
            if lease is None:
                continue
            if lease.deadline_mono <= now_mono:
                found[lease] = None
            else:
                heappush(heap, (lease.deadline_mono, n, task_id, epoch))
        return list(found)

    def first_lease(self) -> float:
        """The next lease deadline, or infinity."""
        first = float("inf")
        for line in self._lines.values():
            lease = self._front(line)
            if lease is not None and lease.deadline_mono < first:
                first = lease.deadline_mono
        heap = self._heap
        while heap and self._find(heap[0][2], heap[0][3]) is None:
            heappop(heap)
        return min(first, heap[0][0]) if heap else first

    # -- delayed tasks -----------------------------------------------------------------

    def note_due(self, shard_queue: ShardQueue, due_ms: int) -> None:
        """A delayed row earlier than the shard queue's next was queued."""
        shard_queue.next_due_ms = due_ms
        self._n += 1
        heappush(self._due, (due_ms, self._n, shard_queue))
        if len(self._due) > self._due_max:
            self._compact_due()
        if due_ms < self.next_wall_ms:
            self.next_wall_ms = due_ms
            self.wake_reaper()

    def _compact_due(self) -> None:
        """One entry for each: a promotion files what is next, also where it stands already."""
        found: dict[int, tuple[int, int, ShardQueue]] = {}
        for entry in self._due:
            due_ms, _, shard_queue = entry
            if due_ms != shard_queue.next_due_ms:
                continue
            if shard_queue.delayed:
                found[id(shard_queue)] = entry
            else:  # its last delayed task was cancelled
                shard_queue.next_due_ms = NEVER_MS
        self._due = list(found.values())
        heapify(self._due)
        self._due_max = max(STALE_MAX, 2 * len(self._due))

    def due_shard_queue(self, now_ms: int) -> ShardQueue | None:
        """A shard queue with a delayed row that is due; the caller sets its next due time anew."""
        heap = self._due
        while heap and heap[0][0] <= now_ms:
            due_ms, _, shard_queue = heappop(heap)
            if due_ms == shard_queue.next_due_ms:
                if shard_queue.delayed:
                    return shard_queue
                shard_queue.next_due_ms = NEVER_MS
        return None

    # -- the expiry range --------------------------------------------------------------

    def note_expiry(self) -> None:
        """A shard's next expiry moved closer."""
        earliest = min(shard.next_expiry_ms for shard in self._shards)
        if earliest < self.next_wall_ms:
            self.next_wall_ms = earliest
            self.wake_reaper()

    # -- all together ------------------------------------------------------------------

    def plan(self) -> tuple[float, int]:
        """(next lease deadline, next wall millisecond): what the reaper sleeps towards."""
        heap = self._due
        while heap and (heap[0][0] != heap[0][2].next_due_ms or not heap[0][2].delayed):
            due_ms, _, shard_queue = heappop(heap)
            if due_ms == shard_queue.next_due_ms:  # its last delayed task was cancelled
                shard_queue.next_due_ms = NEVER_MS
        earliest = min((s.next_expiry_ms for s in self._shards), default=NEVER_MS)
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
