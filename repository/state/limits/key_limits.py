"""The limits of keys: how many tasks with the same value of a label may be leased at once.

Counted where leases are granted and where they end, in memory: a lease that is gone counts no more,
so a crash leaks nothing. A claim that meets a task whose key is full sets it aside, on disk, among
those that wait for the key; the end of a lease of the key lets the first of them go. Both moves are
in ``tasks/key_waits.py``, which is told here what to look at.

Each lets one go, so nothing may be lost in between: a task that was let go, and whose row goes away
before any claim has met it, makes room for the next one as the end of a lease does (``gone``). At
an open, and when the setting changes, all keys are looked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager

from ....coalescer.group import Group
from ....coalescer.shard_status import FAILED
from ....engine.records.lease import DEAD_LEASE
from ....engine.records.queues.key_waits import NO_KEY
from ....engine.runtime.event_loop import Spawner
from ..deadlines import Deadlines
from ..lease_state import LeaseState
from ..queue_state import QueueState, Shard, TenantQueue
from .key_limit import KeyLimit
from .queue_rules import QueueRules

__all__ = ["KeyLimits"]


class KeyLimits:
    """The limits of keys of an engine's queues.

    Args:
        spawner: calls ``serve`` at the end of the turn.
        deadlines: know the reaper.
        queue_states: the engine's queues.
        leases: its live leases.
    """

    def __init__(
        self,
        spawner: Spawner,
        deadlines: Deadlines,
        queue_states: Mapping[bytes, QueueState],
        leases: Mapping[bytes, LeaseState],
    ) -> None:
        self._spawner = spawner
        self._deadlines = deadlines
        self._queue_states = queue_states
        self._leases = leases
        self.by_queue: dict[bytes, KeyLimit] = {}
        self.freed: dict[tuple[TenantQueue, int], int] = {}  # how often a key has got room
        # Tasks that were let go, and that no claim has met since.
        self.woken: dict[bytes, tuple[TenantQueue, int]] = {}
        # What the reaper is to go through, whatever is known: queues, and shards as a whole.
        self.unswept_queues: dict[bytes, object] = {}
        self.unswept_shards: dict[Shard, None] = {}
        self._is_noted = False
        self._holds = 0  # who goes through what is ready, and means nothing that comes meanwhile
        # Set by open: a layer above. At the end of a turn, and in a pass of the reaper.
        self.serve: Callable[[], None] = _nothing
        self.slices: Callable[[], Iterator[dict[Shard, Group]]] = _no_slices

    # -- settings ------------------------------------------------------------------------

    def set(self, queue: bytes, rules: QueueRules) -> None:
        """Take the limit of a queue's keys."""
        queue_state = self._queue_states.get(queue)
        had = self.by_queue.get(queue)
        if rules.key_n <= 0:
            self.by_queue.pop(queue, None)
            limit = None
        else:
            limit = self.by_queue[queue] = KeyLimit(rules.key_n, rules.key_label)
            for lease in self._leases.values():
                if lease.shard_queue.tenant_queue.queue == queue:
                    self._count(limit, lease)
        if queue_state is not None:
            queue_state.key_limit = limit
        if had is not None:
            for task_id, (tenant_queue, _) in list(self.woken.items()):
                if tenant_queue.queue == queue:  # no claim under another limit asks for it
                    del self.woken[task_id]
            self._sweep(queue)

    def adopt(self, queue_state: QueueState) -> None:
        """A queue has come into memory: its limit, if it has one, is there already."""
        queue_state.key_limit = self.by_queue.get(queue_state.queue)

    def _sweep(self, queue: bytes) -> None:
        self.unswept_queues[queue] = None
        self._deadlines.wake_reaper()

    def sweep_shard(self, shard: Shard) -> None:
        """The rows of a shard have come into memory: nobody knows for which keys there is room."""
        self.unswept_shards[shard] = None
        self._deadlines.wake_reaper()

    @property
    def has_unswept(self) -> bool:
        """Whether there is something to go through."""
        return not self._holds and bool(self.unswept_queues or self.unswept_shards)

    # -- counts --------------------------------------------------------------------------

    def restored(self, lease: LeaseState) -> None:
        """A lease of the process before is back."""
        limit = lease.shard_queue.tenant_queue.queue_state.key_limit
        if limit is not None:
            self._count(limit, lease)

    def _count(self, limit: KeyLimit, lease: LeaseState) -> None:
        is_known = lease.shard_queue.shard.coalescer.status < FAILED
        key = limit.key_of(lease.face) if is_known and not lease.flags & DEAD_LEASE else NO_KEY
        if key:
            limit.enter((lease.shard_queue.tenant_queue.tenant, key), lease.task_id)

    def ended(self, lease: LeaseState) -> None:
        """A lease is over."""
        tenant_queue = lease.shard_queue.tenant_queue
        limit = tenant_queue.queue_state.key_limit
        key = limit.leave(lease.task_id) if limit is not None else NO_KEY
        if key:
            self._free(tenant_queue, key)

    def recount(self) -> None:
        """A shard has failed: nobody knows how its leases end, and the others go on."""
        for queue, limit in self.by_queue.items():
            for task_id in list(limit.by_task):
                lease = self._leases.get(task_id)
                if lease is None or lease.shard_queue.shard.coalescer.status >= FAILED:
                    limit.leave(task_id)
            self._sweep(queue)

    # -- who is let go -------------------------------------------------------------------

    def gone(self, task_id: bytes) -> None:
        """The ready row of a task goes away, and no lease comes of it."""
        woken = self.woken.pop(task_id, None)
        if woken is not None:
            self._free(*woken)

    def forget(self, shard: Shard) -> None:
        """Drop all that is known of the shard's rows: other rows come, or none."""
        self.unswept_shards.pop(shard, None)
        for task_id, (tenant_queue, _) in list(self.woken.items()):
            del self.woken[task_id]
            self.unswept_queues[tenant_queue.queue] = None

    @contextmanager
    def held(self) -> Generator[None]:
        """Let nothing go meanwhile: it would come to where it was, among what is ready."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self._call_serve()
            self._deadlines.wake_reaper()

    @property
    def is_held(self) -> bool:
        """Whether nothing is let go now."""
        return self._holds > 0

    def _free(self, tenant_queue: TenantQueue, key: int) -> None:
        for shard_queue in tenant_queue.shard_queues:
            if shard_queue is not None and shard_queue.waiting:
                break
        else:
            return
        one = tenant_queue, key
        self.freed[one] = self.freed.get(one, 0) + 1
        self._call_serve()

    def _call_serve(self) -> None:
        if self.freed and not self._is_noted and not self._holds:
            self._is_noted = True
            self._spawner.call_soon(self._serve)

    def _serve(self) -> None:
        self._is_noted = False
        if not self._holds:
            self.serve()
            self._call_serve()  # more than one turn may do


def _nothing() -> None:
    """Before the open."""


def _no_slices() -> Iterator[dict[Shard, Group]]:
    """Before the open."""
    return iter(())
