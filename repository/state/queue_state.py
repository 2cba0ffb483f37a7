"""The queue state a process keeps in memory, and what each part of it is for.

- ``ShardQueue``: one (queue, tenant) on one shard: exact counters, ten ready caches, the next due
  time. Owner of the counter row.
- ``TenantQueue``: one (queue, tenant) over all shards; what a claim without ALL_TENANTS works on.
- ``QueueState``: one queue over all tenants; holds the turn order for claims in fair turns.
- ``Shard``: one store with its coalescer, its shard queues, its heads of the delayed and expiry
ranges.

All of it is derived: at open it is rebuilt from the counter rows (O(queues)) and the lease rows
(O(live leases)). Nothing is created by looking: polling an unknown queue leaves no trace, and a
tenant queue whose counters are all zero is dropped by the reaper.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING

from ...coalescer.commit_loop import Coalescer
from ...coalescer.group import Group
from ...coalescer.hosting import StubCoalescer
from ...coalescer.overlay import Overlay
from ...coalescer.shard_status import STALLED
from ...engine.records.events import tenant_queue_tag
from ...engine.records.keyspace import (
    DEAD,
    DELAYED,
    EXPIRY,
    GHOST,
    READY,
    counters_key,
    expiry_key,
    ghost_hasher,
    ready_prefix,
    shard_queue_hash,
    shard_queue_prefix,
)
from ...engine.records.result import HAS_HISTORY, history_tail
from ...engine.records.rows import CounterOwner
from ...engine.records.task import (
    BODY_FLAG,
    WHOLE_BYTES_MAX,
    TaskRecord,
    is_streamed,
    is_streamed_task,
    record_id_in,
    whole_record,
)
from ...engine.runtime.ids import IdSource
from ...engine.store.port import Store
from ...errors import CorruptionError, PayloadTooLargeError, RecordCorruptError
from ..model.encoded_tasks import EncodedTask
from .bodies import Bodies
from .caches.dedup_filter import DedupFilter
from .caches.delayed_cache import DelayedCache
from .caches.ready_cache import ReadyCache, Row
from .limits.key_limit import KeyLimit
from .limits.queue_limit import QueueLimit
from .limits.queue_rules import UNSET, QueueRules

if TYPE_CHECKING:
    from ...engine.recovery.watermark import Watermark

__all__ = ["Flow", "HistoryBounds", "QueueState", "Shard", "ShardQueue", "TenantQueue"]

NEVER_MS = 1 << 62


@lru_cache(maxsize=1024)
def _key_packer(prefix_bytes: int) -> Callable[[bytes, int, bytes], bytes]:
    return Struct(f">{prefix_bytes}sQ16s").pack


class ShardQueue(CounterOwner):
    """One (queue, tenant) on one shard. Counters are exact as of the last queued operation."""

    __slots__ = (
        "dead_head",
        "delayed_head",
        "delayed_rows",
        "next_due_ms",
        "occupied",
        "prefix",
        "ready_caches",
        "ready_key",
        "ready_prefixes",
        "shard",
        "tails",
        "tenant_queue",
    )

    def __init__(self, shard: Shard, tenant_queue: TenantQueue) -> None:
        super().__init__(
            counters_key(tenant_queue.queue, tenant_queue.tenant),
            shard_queue_hash(shard.secret, tenant_queue.queue, tenant_queue.tenant),
        )
        self.shard = shard
        self.tenant_queue = tenant_queue
        self.prefix = shard_queue_prefix(tenant_queue.queue, tenant_queue.tenant)
        # By 9 - priority, as in the key: index 0 is claimed first.
        self.ready_prefixes = [ready_prefix(self.prefix, 9 - i) for i in range(10)]
        # ``ready_key(ready_prefixes[i], seq, id)``: all have one length.
        self.ready_key = _key_packer(len(self.ready_prefixes[0]))
        self.ready_caches: list[ReadyCache | None] = [None] * 10
        self.occupied = 0  # bit i: ready_caches[i] has rows, or may have some on disk
        # By (policy, worker): what packs a lease record, and its constant part. Bounded by
        # ``lease_tail``.
        self.tails: dict[tuple[bytes, bytes], tuple[Callable[..., bytes], bytes]] = {}
        self.next_due_ms = NEVER_MS
        self.delayed_rows: DelayedCache | None = None  # None: of what is on disk it knows nothing
        self.delayed_head = self.prefix + DELAYED  # no delayed row is below it
        self.dead_head = self.prefix + DEAD  # no dead row is below it

    def load(
        self, ready: int, delayed: int, leased: int, dead: int, results: int, waiting: int = 0
    ) -> None:
        """Take the counters found at open; where rows are on disk, ready caches start incomplete.

        Args:
            ready: rows; where there are any, the ready caches start incomplete.
            delayed: rows.
            leased: rows.
            dead: rows.
            results: rows.
            waiting: rows of ``delayed`` that wait for other tasks.
        """
        self.ready, self.delayed, self.leased = ready, delayed, leased
        self.dead, self.results, self.waiting = dead, results, waiting
        if self.delayed_rows is not None:
            self.delayed_rows.cut(self.prefix + DELAYED)
        if ready:
            for i, prefix in enumerate(self.ready_prefixes):
                self.ready_caches[i] = ReadyCache(is_complete=False, edge=prefix)
            self.occupied = (1 << 10) - 1

    def floor(self, kind: bytes) -> bytes:
        """A bound: no ready, delayed or dead row of it is below. Deleted ones are, maybe many."""
        if self.shard.coalescer.status > STALLED:  # what memory says was not written, or elsewhere
            return self.prefix + kind
        if kind == DELAYED:
            return self.delayed_head
        if kind == DEAD:
            return self.dead_head
        if kind == READY:
            for ready_cache in self.ready_caches:
                if ready_cache is not None and ready_cache.rows:
                    return ready_cache.rows[0][0]
                if ready_cache is not None and not ready_cache.is_complete:
                    return ready_cache.edge
        return self.prefix + kind

    def raise_floor(self, kind: bytes, key: bytes) -> None:
        """No delayed or dead row is below ``key``, as a scan from the floor has just found."""
        if self.shard.coalescer.status <= STALLED:
            if kind == DELAYED:
                self.delayed_head = max(self.delayed_head, key)
            elif kind == DEAD:
                self.dead_head = max(self.dead_head, key)

    def begin_at(self, key: bytes) -> None:
        """No ready row is below ``key``: what was found before anybody has claimed."""
        first = key[len(self.prefix) + 1]
        for i, ready_cache in enumerate(self.ready_caches):
            if ready_cache is None or ready_cache.rows or ready_cache.is_complete:
                continue
            if i < first:
                ready_cache.is_complete = True
            elif i == first:
                ready_cache.edge = max(ready_cache.edge, key[:-1])

    def put(self, index: int, row: Row) -> bool:
        """A row became ready. Returns whether it is held in memory."""
        ready_cache = self.ready_caches[index]
        if ready_cache is None:
            ready_cache = self.ready_caches[index] = ReadyCache(
                is_complete=True, edge=self.ready_prefixes[index]
            )
        self.occupied |= 1 << index
        return ready_cache.put(row)

    def discard(self, key: bytes) -> Row | None:
        """A ready row goes away by other means than a claim."""
        ready_cache = self.ready_caches[key[len(self.prefix) + 1]]
        return ready_cache.discard(key) if ready_cache is not None else None

    @property
    def is_idle(self) -> bool:
        """Whether dropping it would lose nothing."""
        return not (self.ready or self.delayed or self.leased or self.dead or self.results)


class Flow:
    """Totals of a tenant queue since it was made. They only grow, and go with the tenant queue."""

    __slots__ = ("claimed", "completed", "enqueued", "failed", "ran_us", "waited_us")

    def __init__(self) -> None:
        self.enqueued = self.claimed = self.completed = 0
        self.failed = 0  # runs that count and did not complete: nacked, buried, lease expired
        self.waited_us = 0  # of those claimed, from ready to claimed
        self.ran_us = 0  # of those completed, from claimed to completed

    def claim(self, waited_us: int) -> None:
        """Count one."""
        self.claimed += 1
        self.waited_us += waited_us


class TenantQueue:
    """One (queue, tenant) over all shards."""

    __slots__ = (
        "any_key",
        "claims",
        "flow",
        "is_dropped",
        "is_paused",
        "key",
        "queue",
        "queue_state",
        "shard_queues",
        "tag",
        "tenant",
    )

    def __init__(self, queue_state: QueueState, tenant: bytes, shards: int) -> None:
        self.queue_state = queue_state
        self.queue = queue_state.queue
        self.tenant = tenant
        self.tag = tenant_queue_tag(queue_state.queue, tenant)
        # What claims that wait are filed under: this tenant's, and those of all tenants.
        self.key, self.any_key = (queue_state.queue, tenant), (queue_state.queue, None)
        self.shard_queues: list[ShardQueue | None] = [None] * shards
        self.flow = Flow()
        self.claims = 0  # tasks granted to claims with a boost: every eighth is the oldest
        self.is_paused = False
        self.is_dropped = False

    def shard_queue(self, shard: Shard) -> ShardQueue:
        """The shard queue on ``shard``, made when something is about to be put there."""
        shard_queue = self.shard_queues[shard.index]
        if shard_queue is None:
            shard_queue = self.shard_queues[shard.index] = ShardQueue(shard, self)
            shard.shard_queues_by_hash[shard_queue.hash] = shard_queue
        return shard_queue

    @property
    def ready(self) -> int:
        """How many rows a claim could get."""
        return sum(b.ready for b in self.shard_queues if b is not None)

    @property
    def pending(self) -> int:
        """Ready and delayed: what ``Limits.pending_max`` bounds."""
        return sum(b.ready + b.delayed for b in self.shard_queues if b is not None)


class HistoryBounds:
    """How long, and up to how many rows and bytes, a queue keeps what is known of ended tasks.

    Args:
        seconds: from the end of a task on; 0: its row goes with its retention.
        rows: of the queue, those of results in their retention included.
        bytes_max: of the queue, without values.
    """

    __slots__ = ("bytes_max", "flag", "ms", "rows", "seconds", "tail")

    def __init__(self, seconds: int, rows: int, bytes_max: int) -> None:
        self.seconds = seconds
        self.ms = seconds * 1000
        self.rows = rows
        self.bytes_max = bytes_max
        self.flag = HAS_HISTORY if seconds else 0
        self.tail = history_tail(seconds)  # of every result record


class QueueState:
    """One queue over all tenants. ``turns``: tenants in the order they will be served next."""

    __slots__ = (
        "history",
        "is_held",
        "is_limited",
        "is_paused",
        "key_limit",
        "limit",
        "paused",
        "queue",
        "rules",
        "tenant_queues",
        "turns",
    )

    def __init__(self, queue: bytes, history: HistoryBounds) -> None:
        self.queue = queue
        self.history = history
        self.tenant_queues: dict[bytes, TenantQueue] = {}
        self.turns: OrderedDict[bytes, None] = OrderedDict()
        self.is_paused = False
        self.paused: set[bytes] = set()  # tenants that are paused by themselves
        self.is_limited = False  # by its limit: see ``queue_limits``
        self.is_held = False  # paused or limited: claims pass it over
        self.limit: QueueLimit | None = None
        self.key_limit: KeyLimit | None = None
        self.rules: QueueRules = UNSET


class Shard:
    """One store and what is known about it."""

    __slots__ = (
        "bodies",
        "coalescer",
        "dedup_filter",
        "expiry_head",
        "first_epoch",
        "ghost_hasher",
        "index",
        "inherits_mono",
        "next_epoch",
        "next_expiry_ms",
        "noted_head",
        "noted_ms",
        "old_ghosts",
        "overlay",
        "path",
        "results",
        "scattered",
        "secret",
        "shard_queues_by_hash",
        "store",
        "swept_ms",
        "watermark",
    )

    def __init__(
        self,
        index: int,
        store: Store,
        coalescer: Coalescer,
        watermark: Watermark | None,
        path: str | None,
        incarnation: int,
        shards: int = 1,
    ) -> None:
        self.index = index
        self.store = store
        self.coalescer = coalescer
        self.overlay: Overlay = coalescer.overlay
        self.watermark = watermark
        self.bodies: Bodies | None = None  # none in memory
        self.path = path
        self.next_epoch = (incarnation << 40) + 1  # of the shard's leases; only ever grows
        # A replica: the first of its leadership, and until when it ends no lease of an earlier one.
        self.first_epoch, self.inherits_mono = self.next_epoch, 0.0
        self.next_expiry_ms = NEVER_MS
        self.expiry_head = EXPIRY  # no expiry row is below it
        self.noted_ms, self.noted_head = -1, EXPIRY  # see ``EngineState.note_expiry``
        self.scattered = 0  # claims to come that read record by record: see ``read_records``
        self.swept_ms = 0  # the latest moment up to which (or beyond) expiry rows were looked at
        self.results = 0
        # What hashes in keys are keyed with, and makes them. None: nothing was ever hashed.
        self.secret = b""
        self.ghost_hasher = ghost_hasher(b"")
        self.dedup_filter = DedupFilter(shards)
        self.old_ghosts = 0  # entries under the hash of format 1
        self.shard_queues_by_hash: dict[bytes, ShardQueue] = {}

    @property
    def is_stub(self) -> bool:
        """Whether it only stands in the place of a shard that is not here."""
        return isinstance(self.coalescer, StubCoalescer)

    def raise_expiry_head(self, lower: bytes, following: bytes | None) -> None:
        """A scan of expiry rows from ``lower`` met deleted ones only: the next goes on behind."""
        if following is None or following <= lower:  # it got nowhere: it looks for readable rows
            return
        if self.expiry_head <= lower <= self.expiry_head + b"\0":
            # Unless the group that is open holds an earlier one, which is no row yet.
            self.expiry_head = min(following[:-1], expiry_key(self.coalescer.open_expiry_ms(), 0))

    # -- dedup entries ---------------------------------------------------------------------

    def dedup_row(self, ghost: bytes) -> bytes | None:
        """The dedup entry under this keyed hash, as queued, else as applied; None: there is none.

        Raises:
            CorruptionError: the row lies in a damaged block.
        """
        return self.overlay.get(GHOST + ghost) if self.dedup_filter.may_hold(ghost) else None

    def put_dedup(self, group: Group, ghost: bytes, value: bytes) -> None:
        """``+g``. The filter knows of it first."""
        self.dedup_filter.take(ghost)
        group.ops.append((GHOST + ghost, value))

    # -- payloads in body files ------------------------------------------------------------

    def write_bodies(self, ids: IdSource, encoded_tasks: Iterable[EncodedTask]) -> None:
        """Write the payloads that go to body files, before any row of their tasks is queued.

        Raises:
            StorageFullError, StorageError: nothing was queued. What was written is garbage.
        """
        if self.bodies is not None and not self.bodies.is_replica:
            self.bodies.write_all(ids, encoded_tasks)

    def drop_body(self, group: Group, task_id: bytes) -> None:
        """``-b -o``, at the end of a task with a body."""
        if self.bodies is not None and not self.bodies.is_replica:
            self.bodies.drop(self.overlay, group, task_id)

    def whole_task(self, task_id: bytes, task: TaskRecord) -> TaskRecord:
        """The task with its payload, wherever that lies. Raises RecordCorruptError.

        Of a streamed payload this blocks for longer than a turn of the loop may take.
        """
        if not task.flags & BODY_FLAG:
            return task
        body = self._body(task_id, task.payload)
        return task._replace(flags=task.flags & ~BODY_FLAG, payload=body)

    def entry_task(self, task_id: bytes, task: TaskRecord) -> TaskRecord:
        """The task as its record may be put anew: on a replica with its payload.

        Raises:
            RecordCorruptError: its payload is lost or damaged.
        """
        if self.bodies is None or not self.bodies.is_replica:
            return task
        if is_streamed_task(task):
            raise PayloadTooLargeError(
                f"the payload of task {task_id.hex()} has {task.raw_bytes} bytes: on a replica it "
                "cannot be put anew, for no entry of the log takes it",
                size_bytes=task.raw_bytes,
                limit_bytes=WHOLE_BYTES_MAX,
            )
        return self.whole_task(task_id, task)

    def whole_record(self, task_id: bytes, record: bytes) -> bytes | None:
        """An encoded record with its payload in it; None: its payload is lost or damaged.

        A streamed payload stays where it is, and the record as it is.
        """
        if not record[2] & BODY_FLAG or is_streamed(record):
            return record
        try:
            return whole_record(record, self._body(task_id, record_id_in(record)))
        except CorruptionError:
            return None

    def _body(self, task_id: bytes, record_id: bytes) -> bytes:
        if self.bodies is None:
            raise RecordCorruptError(f"task {task_id.hex()}: its shard has no body files")
        return self.bodies.get(self.overlay, task_id, record_id)
