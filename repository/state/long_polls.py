"""Claim requests, and long polls: claims that found nothing and wait for a task to become ready.

A waiter is served, in order of arrival, at the end of the tick in which a task became ready,
just before the group is written: the enqueue that feeds it and its claim share one commit.
Serving allocates the tasks, so no wake is ever lost: a waiter that was cancelled meanwhile gives
its tasks back, which makes them ready again, which serves the next one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, Protocol, TypeAlias

from ...engine.records.keyspace import ORDER_AT
from ...engine.runtime.clock import Clock, TimerHandle
from ...engine.runtime.event_loop import Future, Spawner
from ...errors import LodeqError
from .caches.claim_sets import ClaimSet, ClaimSets, TenantQueueKey
from .lease_state import LeaseState
from .queue_state import QueueState, Shard, TenantQueue

__all__ = ["ClaimBound", "ClaimRequest", "LongPoll", "LongPolls"]

LINES_MAX: Final = 64  # lengths of a wait with a line of their own
STALE_MIN = 64  # fewer stale entries are not worth a rebuild of the heap
SERVED_MAX = 1024  # tasks, or waiters, in one turn; the others are served in the next
NOTED_MAX: Final = 2048  # tenants that are noted in one turn
SERVED_BYTES_MAX: Final = 4 << 20  # of their records: as much as one claim may read
NO_TENANTS: Final[frozenset[bytes]] = frozenset()
NO_FUNCTIONS: Final[frozenset[bytes]] = frozenset()
NO_BOOSTS: Final[Mapping[TenantQueueKey, float]] = {}


Skips: TypeAlias = tuple[frozenset[bytes], frozenset[bytes]]  # tenants, functions


class ClaimBound(Protocol):
    """One claim's part of the bytes that many claims may take together."""

    def left_bytes(self) -> int:
        """Bytes of records that the claim may take now, beside its first task."""

    def took(self, n_bytes: int) -> None:
        """It has taken so many."""


class ClaimRequest:
    """The arguments of one claim."""

    __slots__ = (
        "boosts",
        "bound",
        "bytes_max",
        "claim_set",
        "is_cut",
        "is_exported",
        "is_look",
        "is_plain",
        "keys",
        "lease_ms",
        "lease_s",
        "limit",
        "skipped",
        "skipped_functions",
        "tenant_queue",
        "worker",
    )

    def __init__(
        self,
        keys: Sequence[TenantQueueKey],
        *,
        limit: int,
        lease_s: float,
        worker: bytes,
        boosts: Mapping[TenantQueueKey, float] = NO_BOOSTS,
        is_exported: bool = False,
        skipped: frozenset[bytes] = NO_TENANTS,
        skipped_functions: frozenset[bytes] = NO_FUNCTIONS,
        bytes_max: int = 0,
        claim_set: ClaimSet | None = None,
        is_look: bool = False,
        bound: ClaimBound | None = None,
    ) -> None:
        self.keys = keys
        self.bound = bound  # asked when it takes, which may be much later; None: ``bytes_max``
        self.is_cut = False  # by time: there may be more than the last look at it took
        self.is_look = is_look  # it takes nothing: who asks is told that there is something
        self.claim_set = claim_set  # of ``keys``, where they are several and it is kept
        self.tenant_queue: TenantQueue | None = None  # where ``take_one`` found the last task
        self.limit = limit
        self.lease_s = lease_s
        self.lease_ms = int(lease_s * 1000)
        self.worker = worker
        self.boosts = boosts  # seconds, for those of ``keys`` that have them
        self.is_exported = is_exported
        self.skipped = skipped  # tenants that get nothing by it; of ALL_TENANTS only
        # Whose tasks it would rather not have (``tasks/passed_over.py``); of ALL_TENANTS only.
        self.skipped_functions = skipped_functions
        self.bytes_max = bytes_max  # of records; 0: ``CLAIM_BYTES_MAX``
        is_one = limit == 1 and not boosts and not is_look and not skipped_functions
        self.is_plain = is_one and (len(keys) == 1 or claim_set is not None)

    @property
    def skips(self) -> Skips:
        """The tenants and functions that it passes over."""
        return self.skipped, self.skipped_functions

    @property
    def is_set_kept(self) -> bool:
        """Whether the next tasks of its queues are known from one claim to the next."""
        return self.claim_set is not None and self.claim_set.is_kept


NOT_VAIN: Final[Container[tuple[TenantQueueKey, Skips]]] = ()


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

    def __init__(
        self, spawner: Spawner, clock: Clock, shards: Sequence[Shard], sets: ClaimSets
    ) -> None:
        self._spawner = spawner
        self._sets = sets
        self._clock = clock
        self._shards = shards
        # Whether a claim's entry has a chance; what is ready meanwhile is kept.
        self.may_serve: Callable[[], bool] = lambda: True
        # Gives a waiter what is ready: ``claim.serve_waiter``, set by open, from a layer above.
        self.serve_one: Callable[[LongPoll], bool] = lambda waiter: False
        # Raises where an empty answer might be a lie: ``EngineState.check_empty``.
        self.check_empty: Callable[[], None] = lambda: None
        # Who waits for one queue, or for several whose set is not kept.
        self.by_tenant_queue: dict[TenantQueueKey, OrderedDict[LongPoll, None]] = {}
        self.by_number: dict[int, LongPoll] = {}  # who waits for a kept set; it has the numbers
        # Waiters for all tenants, a second time: by what they skip.
        self._by_skipped: dict[TenantQueueKey, dict[Skips, OrderedDict[LongPoll, None]]] = {}
        self.ready: dict[TenantQueue, None] = {}  # to be served before the next write
        # Queues at their limit; and of every queue with one, tenant queues whose tasks somebody
        # waits for.
        self._held: dict[bytes, QueueState] = {}
        self._held_tenant_queues: dict[QueueState, OrderedDict[TenantQueue, None]] = {}
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

    def add(self, request: ClaimRequest, wait_s: float, future: Future | None = None) -> LongPoll:
        """A claim found nothing and is willing to wait: its future gets leases, or [] too late."""
        self._n += 1
        waiter = LongPoll(self._n, request, self._spawner.future() if future is None else future)
        self._sets.note_waiting(1)
        claim_set = request.claim_set
        if claim_set is not None and claim_set.is_kept:  # and is, for as long as anybody waits
            claim_set.waiters[self._n] = None
            self.by_number[self._n] = waiter
        else:
            self._add_by_key(waiter)
        if self._held:
            self._note_held(request)
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

    def _add_by_key(self, waiter: LongPoll) -> None:
        by_tenant_queue, request = self.by_tenant_queue, waiter.request
        for key in request.keys:
            here = by_tenant_queue.get(key)
            if here is None:
                here = by_tenant_queue[key] = OrderedDict()
            here[waiter] = None
            if key[1] is None:
                groups = self._by_skipped.setdefault(key, {})
                group = groups.get(request.skips)
                if group is None:
                    group = groups[request.skips] = OrderedDict()
                group[waiter] = None

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
        if waiter.future.done():
            return
        try:
            self.check_empty()
        except LodeqError as error:
            waiter.future.set_exception(error)
        else:
            waiter.future.set_result([])

    def remove(self, waiter: LongPoll) -> None:
        """Served, timed out, cancelled. Idempotent. Nothing refers to it afterwards."""
        if not waiter.is_waiting:
            return
        waiter.is_waiting = False
        self._sets.note_waiting(-1)
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
        if self.by_number.pop(waiter.number, None) is not None:
            claim_set = waiter.request.claim_set
            if claim_set is not None:
                claim_set.waiters.pop(waiter.number, None)
        else:
            self._remove_by_key(waiter)

    def _remove_by_key(self, waiter: LongPoll) -> None:
        for key in waiter.request.keys:
            here = self.by_tenant_queue.get(key)
            if here is not None:
                here.pop(waiter, None)
                if not here:
                    del self.by_tenant_queue[key]
            if key[1] is None:
                self._remove_skipping(key, waiter)

    def _remove_skipping(self, key: TenantQueueKey, waiter: LongPoll) -> None:
        groups = self._by_skipped.get(key)
        group = groups.get(waiter.request.skips) if groups is not None else None
        if groups is None or group is None:
            return
        group.pop(waiter, None)
        if not group:
            del groups[waiter.request.skips]
            if not groups:
                del self._by_skipped[key]

    def note(self, tenant_queue: TenantQueue, key: bytes = b"") -> None:
        """Tasks became ready in ``tenant_queue``, or it was resumed; ``key``: of the first of them.

        Nobody needs to call it while ``ClaimSets.is_noted`` is False.
        """
        sets, own = self._sets, tenant_queue.key
        watch = sets.watch.get(own)
        if watch is not None and key[ORDER_AT:] < watch.bound:
            watch.notice(None)
        if sets.any_keys:
            sets.ready_of_any(tenant_queue, key)
        if not sets.waiting or tenant_queue in self.ready:
            return
        by_tenant_queue = self.by_tenant_queue
        if (
            own in by_tenant_queue
            or tenant_queue.any_key in by_tenant_queue
            or (self.by_number and sets.is_awaited(tenant_queue))
        ):
            self.ready[tenant_queue] = None
            # A tick is usually scheduled already, by the group being filled: any shard's serves.
            for shard in self._shards:
                if shard.coalescer.is_tick_scheduled:
                    return
            self._shards[0].coalescer.poke()

    def serve(self) -> None:
        """Before a commit: hand what became ready to those who wait, first come, first served."""
        if not self.ready or not self.may_serve():
            return
        ready, self.ready = self.ready, {}
        left, bytes_left = SERVED_MAX, SERVED_BYTES_MAX
        tenant_queues = list(ready)
        # Who skips functions and has found nothing: its claim has looked at all tenants.
        vain: set[tuple[TenantQueueKey, Skips]] = set()
        for tenant_queue in tenant_queues:
            queue_state = tenant_queue.queue_state
            has_served = False
            while tenant_queue.ready and not queue_state.is_limited:
                waiter = self._first(tenant_queue, vain)
                if waiter is None:
                    break
                if left <= 0 or bytes_left <= 0:
                    self.note(tenant_queue)
                    break
                if not self._serve_one(waiter):
                    if not waiter.request.skipped_functions:
                        break
                    vain.add((tenant_queue.any_key, waiter.request.skips))
                    continue
                has_served = True
                leases = waiter.leases
                left -= max(1, len(leases))
                bytes_left -= sum([lease.record_bytes for lease in leases])
            if queue_state.limit is not None and tenant_queue not in self.ready:
                following = self._after_limited(tenant_queue, has_served=has_served)
                if following is not None:
                    tenant_queues.append(following)

    # -- queues with a limit ---------------------------------------------------------------

    def hold(self, queue_state: QueueState) -> None:
        """A queue has come to its limit: nothing of it is served until ``open``."""
        self._held[queue_state.queue] = queue_state

    def open(self, queue_state: QueueState) -> None:
        """A queue is no more at its limit: serve who waits for it, at the end of the tick."""
        self._held.pop(queue_state.queue, None)
        tenant_queue = self._next_held(queue_state, may_search=True) if self._sets.waiting else None
        if tenant_queue is not None:
            self.note(tenant_queue)

    def forget_limit(self, queue_state: QueueState) -> None:
        """A queue has no limit any more."""
        for tenant_queue in self._held_tenant_queues.pop(queue_state, {}):
            if tenant_queue.ready:
                self.note(tenant_queue)
        self._held.pop(queue_state.queue, None)
        self.note_queue(queue_state)

    def note_queue(self, queue_state: QueueState) -> None:
        """A queue is open again: serve who waits for any of its tenants that are not paused."""
        if self._sets.waiting:
            self._note_tenants(queue_state, list(queue_state.turns))

    def _note_tenants(self, queue_state: QueueState, tenants: list[bytes]) -> None:
        """Note all tenants that have something ready; many of them in several turns of the loop."""
        for tenant in tenants[:NOTED_MAX]:
            waiting = queue_state.tenant_queues.get(tenant)
            if waiting is not None and waiting.ready and not waiting.is_paused:
                self.note(waiting)
        if len(tenants) > NOTED_MAX and self._sets.waiting:
            self._spawner.call_soon(self._note_tenants, queue_state, tenants[NOTED_MAX:])

    def _note_held(self, request: ClaimRequest) -> None:
        """Who waits now found nothing maybe because of a limit: it is served when that opens.

        Who waits for all tenants is found by their turns.
        """
        for queue, tenant in request.keys:
            queue_state = self._held.get(queue)
            tenant_queue = (
                None
                if queue_state is None or tenant is None
                else queue_state.tenant_queues.get(tenant)
            )
            if queue_state is not None and tenant_queue is not None and tenant_queue.ready:
                self._hold_tenant_queue(tenant_queue)

    def _hold_tenant_queue(self, tenant_queue: TenantQueue) -> None:
        tenant_queues = self._held_tenant_queues.get(tenant_queue.queue_state)
        if tenant_queues is None:
            tenant_queues = self._held_tenant_queues[tenant_queue.queue_state] = OrderedDict()
        tenant_queues[tenant_queue] = None

    def _after_limited(self, tenant_queue: TenantQueue, *, has_served: bool) -> TenantQueue | None:
        """The tenant queue served after one of a queue with a limit: another one of it, or none."""
        queue_state = tenant_queue.queue_state
        if not queue_state.is_limited:
            return self._next_held(queue_state, may_search=has_served)
        if tenant_queue.ready and self._first(tenant_queue) is not None:
            self._hold_tenant_queue(tenant_queue)
        return None

    def _next_held(self, queue_state: QueueState, *, may_search: bool) -> TenantQueue | None:
        """The next tenant queue of a queue that somebody waits for and that has tasks."""
        tenant_queues = self._held_tenant_queues.get(queue_state)
        while tenant_queues:
            tenant_queue = tenant_queues.popitem(last=False)[0]
            if (
                tenant_queue.ready
                and not tenant_queue.is_dropped
                and self._first(tenant_queue) is not None
            ):
                return tenant_queue
        if may_search and ((queue_state.queue, None) in self.by_tenant_queue or self.by_number):
            for tenant in queue_state.turns:
                found = queue_state.tenant_queues.get(tenant)
                if found is None or found.is_paused or not found.ready:
                    continue
                if self._first(found) is not None:
                    return found
        return None

    def _serve_one(self, waiter: LongPoll) -> bool:
        try:
            return self.serve_one(waiter)
        except LodeqError as error:  # what is ready cannot be read: the caller hears why
            self.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(error)
            return True  # the next in line has had no wake yet

    def _first(
        self,
        tenant_queue: TenantQueue,
        vain: Container[tuple[TenantQueueKey, Skips]] = NOT_VAIN,
    ) -> LongPoll | None:
        own = self.by_tenant_queue.get(tenant_queue.key)
        first = next(iter(own)) if own else None
        groups = self._by_skipped.get(tenant_queue.any_key)
        if groups is not None:
            tenant = tenant_queue.tenant
            for skips, group in groups.items():
                if tenant not in skips[0] and (
                    not skips[1] or (tenant_queue.any_key, skips) not in vain
                ):
                    waiter = next(iter(group))
                    if first is None or waiter.number < first.number:
                        first = waiter
        if self.by_number:
            number = self._sets.first_waiter(tenant_queue)
            if number and (first is None or number < first.number):
                first = self.by_number[number]
        return first

    def fail_all(self, error: BaseException) -> None:
        """At close, or when no shard takes writes: nobody is left waiting."""
        everybody = {w: None for line in self.by_tenant_queue.values() for w in line}
        for waiter in [*everybody, *self.by_number.values()]:
            self.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(error)
        self.ready.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, float("inf")
