"""The repository's state and the moves every operation is made of.

Everything here is synchronous. An operation is: wait for its turn (backpressure), then one
*atomic section* that reads memory and the overlay, changes memory and queues rows without an
``await``, then one wait for the commit. The event loop is the lock.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from threading import get_ident
from typing import Any, Final, Protocol

from ...coalescer.group import Group
from ...coalescer.replicated import ReplicatedCoalescer
from ...coalescer.shard_status import FAILED, STALLED
from ...engine.records.compression import Compressor
from ...engine.records.keyspace import expiry_key, ghost_hash
from ...engine.records.rows import IndexRow, encode_index_row
from ...engine.runtime.clock import Clock, nanoseconds
from ...engine.runtime.event_loop import Future, Spawner
from ...engine.runtime.ids import IdSource, first_slot_of, shard_of, shard_of_slot
from ...errors import (
    ClosedError,
    CorruptionError,
    LodeqError,
    StorageFullError,
    StoragePoisonedError,
)
from ..model.values import Codec, Limits
from . import engine_log
from .deadlines import Deadlines
from .lease_state import LeasedRun, LeaseHolder, LeaseState
from .long_polls import LongPolls
from .queue_state import NEVER_MS, QueueState, Shard, ShardQueue, TenantQueue
from .ready_cache import RowFacts
from .waits import backpressure, commit_barrier

__all__ = ["EngineState", "HiddenRowSearch", "Totals"]

NO_BODIES: Final = 1 << 62  # no payload is so large
HELD_BYTES_MAX = 32 << 20  # bodies of freshly enqueued tasks kept for their claim
ANOMALIES_MAX: Final = 100
SECOND_MS: Final = 1000
REOPEN: Final = "close the engine and reopen it"


class HiddenRowSearch(Protocol):
    """Finds rows that a damaged block hides: ``HiddenRows``, which works on an ``EngineState``."""

    def __bool__(self) -> bool:
        """Whether there is anything left to search."""

    def look(self, shard: Shard, lower: bytes) -> None:
        """A damaged range that begins at ``lower`` is known from now on."""

    def came_in(self, shard: Shard, first: bytes) -> None:
        """A load has come in; its tasks begin at ``first``."""

    def slices(self) -> Iterator[Shard]:
        """Search what is left, one bounded step at a time; yields the shard of each step."""


class Totals:
    """Totals since open."""

    __slots__ = (
        "claimed",
        "completed",
        "dead",
        "duplicates",
        "enqueued",
        "expired",
        "nacked",
        "reaped",
    )

    def __init__(self) -> None:
        self.enqueued = self.claimed = self.completed = self.nacked = 0
        self.reaped = self.dead = self.expired = self.duplicates = 0


class EngineState:
    """One engine's state. See ``queue_state`` for its parts."""

    def __init__(
        self,
        *,
        spawner: Spawner,
        clock: Clock,
        ids: IdSource,
        limits: Limits,
        seq: int,
        is_fsync: bool,
        compressor: Compressor,
    ) -> None:
        self.spawner = spawner
        self.future = spawner.future
        self.check_loop = spawner.check
        self.loop, self.running_loop = spawner.loop, spawner.running_loop  # looked up once
        self.is_loop_checked = False
        self.thread = get_ident()
        self.clock = clock
        self.wall_ns, self.mono = nanoseconds(clock), clock.mono  # looked up once
        self.ids = ids
        self.limits = limits
        self.is_fsync = is_fsync
        self.compressor = compressor
        self.stores_plain = not compressor.code  # bytes as they are
        # Whether a task without options needs no look at anything but its shard.
        self.takes_plain = limits.pending_max is None and self.stores_plain
        # Payloads of so many bytes lie in body files; ``set_body_bytes_min`` keeps both in step.
        self.body_bytes_min = NO_BODIES
        self.plain_bytes_max = limits.payload_bytes_max
        self.seq = seq
        self.shards: list[Shard] = []
        self.topics: dict[bytes, QueueState] = {}
        self.leases: dict[bytes, LeaseState] = {}
        self.leased_runs: dict[tuple[bytes, bytes | None], LeasedRun] = {}  # of ``task_list``
        self.result_waiters: dict[bytes, list[Future]] = {}
        self.merged_claims = 0  # tasks granted to claims from several queues, with a boost
        self.totals = Totals()
        self.anomalies: list[str] = []  # the first of them
        self.more_anomalies = 0  # how many came after those
        self.last_anomaly = ""
        self.damaged_blocks: set[str] = set()  # that are in the log, by what RocksDB says of them
        self.logged_failures: set[int] = set()  # shards whose failure is in the log
        self.codecs: dict[bytes, Codec | None] = {}
        self.held_bytes = 0
        self.held_bytes_max = HELD_BYTES_MAX
        self.index_values: dict[bytes, RowFacts] = {}  # decoded once; bounded by ``claim_order``
        self.is_closed = False
        self.is_disk_low = False
        self.deadlines = Deadlines(self.leases, self.shards)
        self.waiters = LongPolls(spawner, clock, self.shards)
        # Set by open: both are in layers above.
        self.lease_type: type[LeaseState]
        self.hidden: HiddenRowSearch
        self.keepalives: dict[LeaseHolder, None] = {}  # asked before any lease is reaped
        self.kept_alive: dict[bytes, LeaseHolder] = {}  # by task: to be called when its lease ends

    def set_body_bytes_min(self, least: int) -> None:
        """From so many bytes on, payloads lie in body files."""
        self.body_bytes_min = least
        self.plain_bytes_max = min(self.limits.payload_bytes_max, least - 1)

    # -- guards ------------------------------------------------------------------------

    def check(self) -> None:
        """Before anything else in every public call: open, and on the right loop and thread.

        The loop is compared once a turn (asking for it costs a system call before Python 3.12),
        the thread every time.
        """
        if self.is_closed:
            raise ClosedError("the engine is closed")
        if not self.is_loop_checked or get_ident() != self.thread:
            if self.running_loop() is not self.loop:
                self.check_loop()  # raises
            self.is_loop_checked = True
            # Not left to the next commit: there may be none before another loop runs here.
            self.spawner.call_soon(self._forget_loop)

    def _forget_loop(self) -> None:
        self.is_loop_checked = False

    def check_healthy(self) -> None:
        """Before an empty-handed answer: with every shard poisoned it would be a lie."""
        if all(shard.co.status > STALLED for shard in self.shards):
            raise self.refusal()

    def check_intake(self) -> None:
        """Before an enqueue: the disk must have more free space than what ends tasks needs."""
        if self.is_disk_low:
            raise StorageFullError(
                "the disk is nearly full: enqueues are refused, complete, release and reap go on; "
                "free some space"
            )

    # -- time and order ----------------------------------------------------------------

    def next_seq(self, now_us: int) -> int:
        """A hybrid clock: microseconds, or the last value plus one where time stood still."""
        seq = self.seq = now_us if now_us > self.seq else self.seq + 1
        return seq

    # -- lanes -------------------------------------------------------------------------

    def find_lane(self, queue: bytes, tenant: bytes) -> TenantQueue | None:
        """The lane, if anything is or was there. Looking creates nothing."""
        topic = self.topics.get(queue)
        return topic.lanes.get(tenant) if topic is not None else None

    def lane(self, queue: bytes, tenant: bytes) -> TenantQueue:
        """The lane, made where needed: something is about to be put there."""
        topic = self.topics.get(queue)
        if topic is None:
            topic = self.topics[queue] = QueueState(queue)
        lane = topic.lanes.get(tenant)
        if lane is None:
            lane = topic.lanes[tenant] = TenantQueue(topic, tenant, len(self.shards))
        return lane

    def shard_of(self, task_id: bytes) -> Shard:
        """Where a task lives."""
        shards = self.shards
        return shards[0] if len(shards) == 1 else shards[shard_of(task_id, len(shards))]

    def shard_of_slot(self, slot: int) -> Shard:
        """Where tasks of a slot live."""
        return self.shards[shard_of_slot(slot, len(self.shards))]

    def ghost_of(self, slot: int, routing: bytes) -> bytes:
        """Hash under which a dedup key is stored on the shard of ``slot``."""
        shard = self.shard_of_slot(slot)
        if not shard.secret:  # a replica's, which nobody has led yet
            raise shard.co.refusal() if shard.co.status > STALLED else self.refusal()
        return ghost_hash(shard.secret, routing)

    def healthy_slot(self) -> int:
        """A random slot of a shard that takes writes, for tasks without a key."""
        for _ in range(64):
            slot = self.ids.slot()
            if self.shard_of_slot(slot).co.status <= STALLED:
                return slot
        for shard in self.shards:
            if shard.co.status <= STALLED:
                return first_slot_of(shard.index, len(self.shards))
        raise self.refusal()

    def healthy_id(self, now_ms: int) -> bytes:
        """An id in such a slot."""
        for _ in range(64):
            task_id = self.ids.new_unkeyed(now_ms)
            if self.shard_of(task_id).co.status <= STALLED:
                return task_id
        return self.ids.new(now_ms, self.healthy_slot())

    def refusal(self) -> LodeqError:
        """Why no shard takes writes: all are poisoned, or (replicated) those that are not led."""
        for shard in self.shards:
            if isinstance(shard.co, ReplicatedCoalescer) and shard.co.is_following:
                return shard.co.not_leader()
            if shard.co.is_following:
                return shard.co.refusal()
        return StoragePoisonedError(
            "every shard is poisoned: close the engine, look at the disk, reopen it"
        )

    def set_pause(self, queue: bytes, tenant: bytes | None, *, is_paused: bool) -> None:
        """Pause or resume in memory, the whole queue where ``tenant`` is None; the row is apart."""
        lane = self.lane(queue, tenant if tenant is not None else b"")
        if tenant is None:
            lane.topic.is_paused = is_paused
        else:
            lane.is_paused = is_paused
        if not is_paused and self.waiters.by_lane:  # there may be a hundred thousand tenants
            for other in lane.topic.lanes.values() if tenant is None else (lane,):
                if other.ready:
                    self.waiters.note(other)

    # -- moves -------------------------------------------------------------------------

    def put_ready(
        self,
        group: Group,
        bucket: ShardQueue,
        index: int,
        key: bytes,
        task_id: bytes,
        row: IndexRow,
        record: bytes | None = None,
    ) -> None:
        """A task is ready: row, counter, window, turn, waiters. ``index`` is 9 - priority.

        Args:
            group: the open group of the task's shard; the rows go into it.
            bucket: where it becomes ready.
            index: 9 - priority.
            key: the ready key.
            row: its value.
            record: kept in memory for the claim, up to ``held_bytes_max``.
        """
        group.ops.append((key, encode_index_row(row)))
        self.note_ready(
            group,
            bucket,
            index,
            (key, task_id, row.attempts, row.flags, row.expires_ms, row.record_bytes, record),
        )

    def note_ready(
        self,
        group: Group,
        bucket: ShardQueue,
        index: int,
        window_row: tuple[bytes, bytes, int, int, int, int, bytes | None],
    ) -> None:
        """The memory side of ``put_ready``; the row itself is queued by the caller.

        Args:
            group: the open group of the task's shard; the rows go into it.
            bucket: where it becomes ready.
            index: 9 - priority.
            window_row: as ``ReadyCache`` holds it.
        """
        bucket.ready += 1
        group.dirty[bucket] = None
        record = window_row[6]
        if record is not None and self.held_bytes >= self.held_bytes_max:
            window_row, record = (*window_row[:6], None), None
        window = bucket.windows[index]
        # The tail of a list that is all in memory: nearly every enqueue.
        if (
            window is not None
            and window.is_complete
            and len(window.rows) < window.cap
            and (not window.rows or window_row[0] > window.rows[-1][0])
        ):
            window.rows.append(window_row)
            bucket.occupied |= 1 << index
            if record is not None:
                self.held_bytes += window_row[5]
        else:
            if bucket.put(index, window_row) and record is not None:
                self.held_bytes += window_row[5]
            window = bucket.windows[index]
            if window is not None and window.lost_bytes:
                self.held_bytes -= window.lost_bytes
                window.lost_bytes = 0
        lane = bucket.lane
        topic = lane.topic
        if lane.tenant not in topic.turns:
            topic.turns[lane.tenant] = None
        if self.waiters.by_lane:
            self.waiters.note(lane)

    def drop_ready(self, group: Group, bucket: ShardQueue, key: bytes) -> None:
        """A ready row goes away by other means than a claim."""
        group.ops.append((key, None))
        group.dirty[bucket] = None
        bucket.ready -= 1
        row = bucket.discard(key)
        if row is not None and row[6] is not None:
            self.held_bytes -= row[5]

    def put_delayed(
        self, group: Group, bucket: ShardQueue, key: bytes, due_ms: int, row: bytes
    ) -> None:
        """A task waits until ``due_ms``; ``row`` is the encoded value.

        Args:
            group: the open group of the task's shard; the rows go into it.
            key: the delayed key.
            due_ms: wall milliseconds.
            row: the encoded value.
        """
        group.ops.append((key, row))
        group.dirty[bucket] = None
        bucket.delayed += 1
        if key < bucket.delayed_head:
            bucket.delayed_head = key
        if due_ms < bucket.next_due_ms:
            self.deadlines.note_due(bucket, due_ms)

    def file_expiry(self, shard: Shard, group: Group, at_ms: int, entry: bytes) -> None:
        """Look at ``entry`` once ``at_ms`` has passed: rounded up to a second, one row a group.

        Args:
            shard: of the task.
            group: the open group of the task's shard; the rows go into it.
            at_ms: wall milliseconds, rounded up to a second.
            entry: kind and key, 17 bytes (engine/records/rows.py).
        """
        bucket_ms = -(-at_ms // SECOND_MS) * SECOND_MS
        rows = group.expiry.get(bucket_ms)
        if rows is not None:
            rows.append(entry)
            return
        self.note_expiry(shard, bucket_ms)
        group.expiry[bucket_ms] = [entry]

    def final_rows(self, shard: Shard, group: Group, at_ms: int, bucket: ShardQueue) -> list[bytes]:
        """Where to add completed tasks whose results go, unread (they are final), at ``at_ms``.

        Args:
            shard: of the tasks.
            group: the open group of the task's shard; the rows go into it.
            at_ms: when the results go, wall milliseconds.
            bucket: whose counter has the results.
        """
        bucket_ms = -(-at_ms // SECOND_MS) * SECOND_MS
        rows = group.final.get((bucket_ms, bucket))
        if rows is None:
            self.note_expiry(shard, bucket_ms)
            rows = group.final[bucket_ms, bucket] = []
        return rows

    def refile(self, shard: Shard, group: Group, at_ms: int, entry: bytes) -> None:
        """File ``entry`` again if its turn has come already: the clock has stepped back since.

        Args:
            at_ms: when it is due, wall milliseconds.
            entry: as ``file_expiry`` takes it.
        """
        if at_ms <= shard.swept_ms:
            self.file_expiry(shard, group, at_ms, entry)

    def note_expiry(self, shard: Shard, bucket_ms: int) -> None:
        """There is something to look at in that bucket, maybe behind a sweep."""
        head = expiry_key(bucket_ms, 0)
        if head < shard.expiry_head:  # behind a sweep: it has to come back
            shard.expiry_head = head
        if bucket_ms < shard.next_expiry_ms:
            shard.next_expiry_ms = bucket_ms
            self.deadlines.note_expiry()

    def on_writes_end(self) -> None:
        """A shard takes no more writes. Its leases stay as they are; nothing is served from it.

        Waiting claims go on: the other shards may feed them. With no healthy shard left, they
        fail. Who waits for a result of the shard fails at once, and the reaper has nothing more to
        do for it. All that is about failure: where a shard is only led elsewhere, results arrive
        with the entries, and its memory has been dropped and counted anew.
        """
        for shard in self.shards:
            if shard.co.status >= FAILED:
                self._forget_due(shard)
                if shard.index not in self.logged_failures:
                    self.logged_failures.add(shard.index)
                    engine_log.poisoned(shard.index, str(shard.co.status_error))
        for task_id in list(self.result_waiters):
            failure = self.shard_of(task_id).co.failure
            if failure is None:
                continue
            for future in self.result_waiters.pop(task_id):
                if not future.done():  # each an error of its own: tracebacks grow as it is raised
                    future.set_exception(StoragePoisonedError(f"{failure}: {REOPEN}"))
        if all(shard.co.status > STALLED for shard in self.shards):
            self.waiters.fail_all(self.refusal())

    def _forget_due(self, shard: Shard) -> None:
        """Nothing of ``shard`` will be done: it must not look due, or the reaper never rests."""
        shard.next_expiry_ms = NEVER_MS
        for topic in self.topics.values():
            for lane in topic.lanes.values():
                bucket = lane.buckets[shard.index]
                if bucket is not None:
                    bucket.next_due_ms = NEVER_MS  # its entries in the heap are stale now

    def anomaly(self, text: str) -> None:
        """Something that repair or an operator should look at; ``health()`` reports it.

        The first hundred are kept and logged. Those that follow are counted, and the last one is
        kept; the log has those whose number is a power of two.
        """
        if len(self.anomalies) < ANOMALIES_MAX:
            self.anomalies.append(text)
            engine_log.anomaly(text)
            return
        self.more_anomalies += 1
        self.last_anomaly = text
        if not self.more_anomalies & self.more_anomalies - 1:
            engine_log.anomaly(self.all_anomalies()[-1])

    def all_anomalies(self) -> list[str]:
        """In words: the first hundred, and how many more there were."""
        if not self.more_anomalies:
            return list(self.anomalies)
        more = f"{self.more_anomalies} more anomalies, the last: {self.last_anomaly}"
        return [*self.anomalies, more]

    # -- leases ------------------------------------------------------------------------

    def end_lease(self, lease: LeaseState) -> None:
        """It is over: nothing of ours keeps it, or its payload, from now on."""
        task_id = lease.task_id
        lease.is_live = False
        del self.leases[task_id]
        self.deadlines.forget(lease)
        if self.kept_alive:
            keepalive = self.kept_alive.pop(task_id, None)
            if keepalive is not None:
                keepalive.forget(lease)

    def unreadable_found(
        self, shard: int, lower: bytes, upper: bytes, error: CorruptionError
    ) -> None:
        """A scan has met damage, and goes on behind it: the log says where, once a block.

        Args:
            shard: its number.
            lower: where the damaged range begins.
            upper: where it ends, exclusive.
            error: what RocksDB says of the block.
        """
        if (text := str(error)) not in self.damaged_blocks and len(self.damaged_blocks) < 1024:
            self.damaged_blocks.add(text)
            self.anomaly(f"shard {shard}: rows from {lower!r} to {upper!r} cannot be read: {text}")
        self.hidden.look(self.shards[shard], lower)

    # -- waiting -----------------------------------------------------------------------

    def backpressure(self, shard: Shard) -> Coroutine[Any, Any, None]:
        """Wait for a turn on a shard that has too much queued; see ``waits``."""
        return backpressure(self.check, shard)

    def commit_barrier(
        self, shard: Shard, *, is_durable: bool = False
    ) -> Coroutine[Any, Any, None]:
        """Wait until everything queued on the shard is committed; see ``waits``."""
        return commit_barrier(shard, is_durable=is_durable)

    def notify_result(self, group: Group, task_id: bytes) -> None:
        """Wake those who wait for this task's result, when its end is committed."""
        futures = self.result_waiters.pop(task_id, None)
        if futures:
            group.waiters.extend((future, True) for future in futures)
