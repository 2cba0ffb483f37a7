"""Sets of queues that are claimed from together, and which of them have the next tasks.

A claim over several queues takes the best head among them. Finding it by a look at each queue
costs each claim as many looks as there are queues, so a set that is claimed from again is *kept*:
with the order of every queue's next row, and a heap of them. An order here is never later than
the queue's real next row; it is compared with that row when it comes to the top, so tasks that go
by other ways need no notice. What makes a queue's next row earlier does: the queue is *stale* in
the sets that know a later one, and they look at it before they are claimed from again.

- Rows become ready: ``LongPolls.note``: one comparison where no set knows a later row.
- All tenants: whose turn it is moves on (``turned``), or a tenant has nothing left (``emptied``).
- Rows come back, or nothing is known: ``touch``; a pause of a queue, leadership: ``reset``.

A notice is given once: it costs nothing until the set has looked again, however many sets have
been forgotten by their callers. A set is kept from its second claim on (a caller may pass other
queues each time). The kept sets are bounded; which has not been claimed from for longest goes.
They hold no rows, and nothing of a tenant queue that has been dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final, TypeAlias

from ....engine.records.keyspace import ORDER_AT

if TYPE_CHECKING:
    from ..queue_state import ShardQueue, TenantQueue

__all__ = ["NO_ROW", "ClaimSet", "ClaimSets", "KeyWatch", "Slot", "TenantQueueKey"]

TenantQueueKey: TypeAlias = tuple[bytes, bytes | None]  # tenant None: all tenants
# Where a queue's next row is: its shard queue, 9 - priority, the tenant.
Slot: TypeAlias = "tuple[ShardQueue, int, bytes]"

NO_ROW: Final = b"\xff" * 26  # the order of a queue without rows: later than any
SETS_MAX = 256
KEYS_MAX = 1 << 16  # of all kept sets
STALE_MIN: Final = 64  # fewer stale entries are not worth a rebuild of the heap


class KeyWatch:
    """The kept sets that have one key."""

    __slots__ = ("bound", "fresh", "members")

    def __init__(self) -> None:
        self.members: dict[ClaimSet, int] = {}  # and which of its keys this is
        self.fresh: dict[ClaimSet, int] = {}  # those to be noticed
        self.bound = b""  # the latest order that one of them knows

    def notice(self, taker: ClaimSet | None) -> None:
        """Make them look again, but for ``taker``: an order they know may be too late."""
        fresh, self.fresh, self.bound = self.fresh, {}, b""
        for claim_set, nth in fresh.items():
            if claim_set is not taker:
                claim_set.stale[nth] = None
        if taker is not None and taker in fresh:
            self.fresh[taker] = nth = fresh[taker]
            self.bound = taker.orders[nth]


class ClaimSet:
    """Several queues, and their next rows as far as they are known."""

    __slots__ = (
        "doubtful",
        "epoch",
        "has_any",
        "heap",
        "is_kept",
        "keys",
        "orders",
        "slots",
        "stale",
        "used",
        "waiters",
        "watches",
        "where",
    )

    def __init__(self, keys: Sequence[TenantQueueKey]) -> None:
        self.keys = keys
        self.where: dict[TenantQueueKey, int] = {key: nth for nth, key in enumerate(keys)}
        self.has_any = False
        for key in keys:
            if key[1] is None:
                self.has_any = True
        self.is_kept = False
        self.epoch = -1
        self.used = 0
        self.orders: list[bytes] = []
        self.slots: list[Slot | None] = []
        self.heap: list[tuple[bytes, int]] = []  # (order, key); stale unless ``orders`` has it
        self.stale: dict[int, None] = {}  # keys to be looked at
        self.doubtful: dict[int, None] = {}  # … and to be looked at by the next claim once more
        self.watches: list[KeyWatch] = []  # of each key, while it is kept
        self.waiters: OrderedDict[int, None] = OrderedDict()  # numbers of long polls
        self.forget()

    def forget(self) -> None:
        """Know nothing: every key is to be looked at."""
        n = len(self.keys)
        self.orders = [NO_ROW] * n
        self.slots = [None] * n
        self.heap = []
        self.doubtful = {}
        self.stale = dict.fromkeys(range(n))

    def enter(self, nth: int, order: bytes, slot: Slot | None) -> None:
        """The next row of a key, as it was found just now; ``NO_ROW``: there is none."""
        self.orders[nth] = order
        self.slots[nth] = slot
        if slot is not None:
            heap = self.heap
            heappush(heap, (order, nth))
            if len(heap) > STALE_MIN + 2 * len(self.keys):
                orders = self.orders
                kept = [(orders[i], i) for i, one in enumerate(self.slots) if one is not None]
                heapify(kept)
                heap[:] = kept
        if self.is_kept:
            watch = self.watches[nth]
            watch.fresh[self] = nth
            if order > watch.bound:
                watch.bound = order

    def second_order(self) -> bytes:
        """Up to this order the key with the first row has the best ones."""
        heap = self.heap
        if len(heap) > 2:
            return min(heap[1][0], heap[2][0])
        return heap[1][0] if len(heap) > 1 else NO_ROW

    def replace_first(self, nth: int, order: bytes) -> None:
        """The first row of all was taken, of this key; behind it in the same place is another."""
        self.orders[nth] = order
        heapreplace(self.heap, (order, nth))
        if self.is_kept:
            watch = self.watches[nth]
            if order > watch.bound:
                watch.bound = order

    def remove_first(self, nth: int) -> bool:
        """The first row of all was taken, of this key, and was the last one of it.

        Returns whether no other set has to know.
        """
        heappop(self.heap)
        self.orders[nth] = NO_ROW
        self.slots[nth] = None
        if not self.is_kept:
            return False
        watch = self.watches[nth]
        watch.fresh[self] = nth
        watch.bound = NO_ROW
        return len(watch.fresh) == 1


class ClaimSets:
    """The kept sets of an engine; see the module's essay."""

    def __init__(self) -> None:
        self.sets: dict[tuple[TenantQueueKey, ...], ClaimSet] = {}
        self.watch: dict[TenantQueueKey, KeyWatch] = {}
        self.of_queue: dict[bytes, dict[TenantQueueKey, KeyWatch]] = {}  # the same, by queue
        self.any_keys = 0  # keys of all tenants among those of the kept sets
        self.waiting = 0  # long polls, of sets or of one queue
        # Whether a task that becomes ready concerns anybody: a long poll, or a kept set.
        self.is_noted = False
        self._keys = 0
        self.uses = 0
        self.epoch = 0

    # -- which sets are kept -------------------------------------------------------------

    def admit(self, keys: Sequence[TenantQueueKey]) -> ClaimSet | None:
        """The kept set with these keys, in this order; None: there is no space for it."""
        wanted = tuple(keys)
        found = self.sets.get(wanted)
        if found is None and self._make_space(len(wanted)):
            found = self._keep(wanted)
        return found

    def _make_space(self, keys: int) -> bool:
        if keys > KEYS_MAX:
            return False
        while len(self.sets) >= SETS_MAX or self._keys + keys > KEYS_MAX:
            oldest: ClaimSet | None = None
            for one in self.sets.values():
                if not one.waiters and (oldest is None or one.used < oldest.used):
                    oldest = one
            if oldest is None:
                return False
            self._drop(oldest)
        return True

    def _keep(self, keys: tuple[TenantQueueKey, ...]) -> ClaimSet:
        claim_set = ClaimSet(keys)
        watch = self.watch
        for nth, key in enumerate(keys):
            one = watch.get(key)
            if one is None:
                one = watch[key] = KeyWatch()
                self.of_queue.setdefault(key[0], {})[key] = one
            one.members[claim_set] = nth
            claim_set.watches.append(one)
            if key[1] is None:
                self.any_keys += 1
        claim_set.is_kept = True
        claim_set.epoch = self.epoch
        self._keys += len(keys)
        self.sets[keys] = claim_set
        self.use(claim_set)
        self.is_noted = True
        return claim_set

    def _drop(self, claim_set: ClaimSet) -> None:
        """Keep it no longer. Who still has it may claim from it: all its queues are looked at."""
        for key in claim_set.keys:
            one = self.watch[key]
            del one.members[claim_set]
            one.fresh.pop(claim_set, None)
            if not one.members:
                del self.watch[key]
                del self.of_queue[key[0]][key]
                if not self.of_queue[key[0]]:
                    del self.of_queue[key[0]]
            if key[1] is None:
                self.any_keys -= 1
        claim_set.is_kept = False
        claim_set.watches = []
        claim_set.forget()
        self._keys -= len(claim_set.keys)
        del self.sets[tuple(claim_set.keys)]
        self.note_waiting(0)

    def use(self, claim_set: ClaimSet) -> None:
        """It is about to be claimed from: what is not known any more is forgotten."""
        self.uses += 1
        claim_set.used = self.uses
        if not claim_set.is_kept or claim_set.epoch != self.epoch:
            claim_set.epoch = self.epoch
            claim_set.forget()
        elif claim_set.doubtful:
            claim_set.stale.update(claim_set.doubtful)
            claim_set.doubtful = {}

    def note_waiting(self, change: int) -> None:
        """A long poll has come (1) or gone (-1)."""
        self.waiting += change
        self.is_noted = self.waiting > 0 or bool(self.sets)

    # -- notices -------------------------------------------------------------------------

    def ready_of_any(self, tenant_queue: TenantQueue, key: bytes) -> None:
        """Rows became ready there, the first with this key: notice who has all tenants."""
        watch = self.watch.get(tenant_queue.any_key)
        if watch is not None and key[ORDER_AT:] < watch.bound:
            watch.notice(None)

    def touch(self, tenant_queue: TenantQueue) -> None:
        """Rows of ``tenant_queue`` came back, or its next row is not known: all look again."""
        if self.sets:
            self.emptied(tenant_queue, None)

    def emptied(self, tenant_queue: TenantQueue, taker: ClaimSet | None) -> None:
        """Nothing is ready in ``tenant_queue`` any more: with all tenants another one has its turn.

        ``taker``: the set that took the last row, if any; it knows already.
        """
        watch = self.watch.get(tenant_queue.key)
        if watch is not None:
            watch.notice(taker)
        if self.any_keys:
            watch = self.watch.get(tenant_queue.any_key)
            if watch is not None:
                watch.notice(None)

    def turned(self, tenant_queue: TenantQueue) -> None:
        """With all tenants it is the turn of another one than ``tenant_queue``."""
        watch = self.watch.get(tenant_queue.any_key)
        if watch is not None:
            watch.notice(None)

    def notice_queue(self, queue: bytes) -> None:
        """A queue is at its limit, or no more: all its keys are looked at again."""
        watches = self.of_queue.get(queue)
        if watches is not None:
            for watch in watches.values():
                watch.notice(None)

    def reset(self) -> None:
        """Nothing is known any more: a pause, or a shard that is led anew or no longer."""
        self.epoch += 1

    def forget_all(self) -> None:
        """``reset``, and at once: what the sets refer to has gone."""
        self.epoch += 1
        for claim_set in self.sets.values():
            claim_set.forget()
        for watch in self.watch.values():
            watch.fresh = {}
            watch.bound = b""

    def forget_tenant_queue(self, tenant_queue: TenantQueue) -> None:
        """A tenant queue is dropped: nothing of it is held here."""
        for key in (tenant_queue.key, tenant_queue.any_key):
            watch = self.watch.get(key)
            if watch is not None:
                for claim_set, nth in watch.members.items():
                    slot = claim_set.slots[nth]
                    if slot is not None and slot[0].tenant_queue is tenant_queue:
                        claim_set.orders[nth] = NO_ROW
                        claim_set.slots[nth] = None
                        claim_set.stale[nth] = None

    def is_awaited(self, tenant_queue: TenantQueue) -> bool:
        """Whether somebody waits for a set that ``tenant_queue`` is in."""
        watch = self.watch.get(tenant_queue.key)
        if watch is not None:
            for claim_set in watch.members:
                if claim_set.waiters:
                    return True
        return self.any_keys > 0 and self.first_waiter(tenant_queue) > 0

    def first_waiter(self, tenant_queue: TenantQueue) -> int:
        """The number of who waits longest for it among those that wait for a set; or 0."""
        first = 0
        for key in (tenant_queue.key, tenant_queue.any_key):
            watch = self.watch.get(key)
            if watch is not None:
                for claim_set in watch.members:
                    if claim_set.waiters:
                        number = next(iter(claim_set.waiters))
                        if not first or number < first:
                            first = number
        return first
