"""The repository's state and the moves every operation is made of.

Everything here is synchronous. An operation is: wait for its turn (backpressure), then one
*atomic section* that reads memory and the overlay, changes memory and queues rows without an
``await``, then one wait for the commit. The event loop is the lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from math import ceil
from threading import get_ident
from typing import Any, Final, Protocol

from ...coalescer.group import Group
from ...coalescer.replicated import ReplicatedCoalescer
from ...coalescer.shard_status import FAILED, STALLED
from ...engine.records.compression import Compressor
from ...engine.records.keyspace import DELAYED, DUE_AT, ID_AT, SEQ_AT, expiry_key, ghost_hash
from ...engine.records.progress import ProgressRecord
from ...engine.records.rows import IndexRow, encode_index_row
from ...engine.records.workflow import HELD_MS
from ...engine.runtime.clock import Clock, nanoseconds
from ...engine.runtime.event_loop import Future, Spawner
from ...engine.runtime.ids import IdSource, shard_of, shard_of_slot
from ...errors import (
    BusyError,
    ClosedError,
    CorruptionError,
    LodeqError,
    StorageError,
    StorageFullError,
    StoragePoisonedError,
    UsageError,
)
from ..model.redaction import Redaction
from ..model.values import Codec, Limits
from . import engine_log
from .caches.claim_sets import ClaimSets
from .caches.delayed_cache import DelayedCache, DelayedRow, held_bytes_of
from .caches.ready_cache import READY_ROWS, RECORD, SIZE, ReadyCache, RowFacts
from .deadlines import Deadlines
from .function_counts import FunctionCounts
from .home_shard import HomeShard
from .lease_state import LeasedRun, LeaseHolder, LeaseState
from .limits.key_limits import KeyLimits
from .limits.queue_limits import QueueLimits
from .limits.queue_rules import NOT_SET, UNSET, QueueRules
from .limits.share import Share
from .long_polls import LongPolls
from .queue_state import NEVER_MS, HistoryBounds, QueueState, Shard, ShardQueue, TenantQueue
from .thread_reads import ThreadReads
from .waits import backpressure, commit_barrier

__all__ = [
    "DISK_LOW",
    "GOES",
    "LOSES_VALUE",
    "NO_INODES",
    "READ",
    "SECOND_MS",
    "EngineState",
    "HiddenRowSearch",
    "JoinCounts",
    "Totals",
]

NO_BODIES: Final = 1 << 62  # no payload is so large
# Records in ready caches, up to which those of new tasks are kept; a third more with those that
# claims have read ahead.
HELD_BYTES_MAX = 24 << 20
AHEAD_BYTES_MAX: Final = 1 << 20  # of one claim
AHEAD_CACHES_MAX: Final = 4096
KEPT_ROWS: Final = 4  # keep their records when those of a cache are dropped
ANOMALIES_MAX: Final = 100
SECOND_MS: Final = 1000
GOES: Final = b"c"  # kinds of expiry entries of results, behind one that names their shard queue
LOSES_VALUE: Final = b"v"
READ: Final = b"h"
NEAR_MS: Final = 60_000  # tasks delayed by more are kept on disk only, until it is their turn
DISK_LOW: Final = "the disk is nearly full"
NO_INODES: Final = "the disk has no inodes left for new files"
REOPEN: Final = "close the engine and reopen it"


class HiddenRowSearch(Protocol):
    """Finds rows that a damaged block hides: ``HiddenRows``, which works on an ``EngineState``."""

    def __bool__(self) -> bool:
        """Whether there is anything left to search."""

    def look(self, shard: Shard, lower: bytes) -> None:
        """A damaged range that begins at ``lower`` is known from now on."""

    def came_in(self, shard: Shard, first: bytes) -> None:
        """A load has come in; its tasks begin at ``first``."""

    def forget(self, shard: Shard) -> None:
        """The shard is not here any more."""

    def slices(self) -> Iterator[Shard]:
        """Search what is left, one bounded step at a time; yields the shard of each step."""


class JoinCounts(Protocol):
    """Counts ends of members in joins: ``Joins``, which works on an ``EngineState``."""

    has_more: bool  # ends came after ``slices`` had looked, or there were too many for one pass
    # Asked for each waiting task that is to be let go or cancelled, with its shard queue and key:
    # whether it has ended the task instead.
    takers: list[Callable[[Group, ShardQueue, bytes], bool]]

    def ended(self, group: Group, shard: Shard, task_id: bytes, status: int, now_us: int) -> None:
        """A member has ended: count it, and let go what waited for it last.

        Args:
            group: takes the rows.
            shard: of the member.
            task_id: the member's, 16 bytes.
            status: how it ended; 0: a dead one goes.
            now_us: wall clock in microseconds.
        """

    def redriven(self, group: Group, shard: Shard, task_id: bytes) -> None:
        """A dead member runs again: joins that wait for that take its end back.

        Args:
            group: takes the rows.
            shard: of the member.
            task_id: the member's, 16 bytes.
        """

    def pins(self, shard: Shard, task_id: bytes) -> bool:
        """Whether a member's result is kept beyond its time: a join that it is part of waits."""

    def awaits(self, shard: Shard, task_id: bytes) -> bool:
        """Whether a dead member is kept beyond its time: a join waits for its redrive."""

    def forget(self, shard: Shard) -> None:
        """The shard is not here any more."""

    def sweep(self, shard: Shard, group: Group, join: bytes) -> None:
        """A join's time is over: forget it, a slice at a time."""

    def problems(self) -> list[str]:
        """Why not all is well, for health: ends that no leader here has taken for too long."""

    def load(self, shard: Shard) -> None:
        """Look whether the shard has joins, which then ask their members."""

    def slices(self) -> Iterator[dict[Shard, Group]]:
        """Do what is left to do in the background, one atomic section a step."""


class Totals:
    """Totals since open."""

    __slots__ = (
        "claimed",
        "completed",
        "dead",
        "dead_dropped",
        "duplicates",
        "enqueued",
        "expired",
        "nacked",
        "reaped",
    )

    def __init__(self) -> None:
        self.enqueued = self.claimed = self.completed = self.nacked = 0
        self.reaped = self.dead = self.expired = self.duplicates = self.dead_dropped = 0


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
        self.plain_bytes_max = limits.value_bytes_max
        self.seq = seq
        self.shards: list[Shard] = []  # all of the store's, by index
        # Those that are here, which whole-store calls are about: replaced, never changed. Nearly
        # always the list of all; else the others are stubs, see ``coalescer/hosting.py``.
        self.hosted: list[Shard] = self.shards
        self.first_index = 0  # of the shard that has pauses, settings and functions; see ``first``
        self.queue_states: dict[bytes, QueueState] = {}
        self.history = HistoryBounds(limits.history_s, limits.history_rows, limits.history_bytes)
        self.rules: dict[bytes, QueueRules] = {}  # of queues with settings, tasks or not
        self.rules_set = 0  # how often they have changed
        self.leases: dict[bytes, LeaseState] = {}
        self.progress: dict[bytes, ProgressRecord] = {}  # of leased tasks that report any
        self.leased_runs: dict[tuple[bytes, bytes | None], LeasedRun] = {}  # of ``task_list``
        self.result_waiters: dict[bytes, list[Future]] = {}
        # Claims of dead letters that wait, by queue and tenant: each looks again when it is woken.
        self.dead_waiters: dict[tuple[bytes, bytes | None], list[Future]] = {}
        self.laid_back = 0  # dead letters that were leased, and are dead letters again
        self.merged_claims = 0  # tasks granted to claims from several queues, with a boost
        self.totals = Totals()
        self.home = HomeShard(self.shards)
        self.anomalies: list[str] = []  # the first of them
        self.more_anomalies = 0  # how many came after those
        self.last_anomaly = ""
        self.damaged_blocks: set[str] = set()  # that are in the log, by what RocksDB says of them
        self.logged_failures: set[int] = set()  # shards whose failure is in the log
        self.on_failure: Callable[[LodeqError], None] | None = None  # called once a shard
        self.codecs: dict[bytes, Codec | None] = {}
        self.redaction: Redaction | None = None  # set by open
        self.held_bytes = 0
        self.held_bytes_max = HELD_BYTES_MAX
        # Those that claims have read ahead for, the oldest first.
        self.ahead: OrderedDict[ReadyCache, None] = OrderedDict()
        self.index_values: dict[bytes, RowFacts] = {}  # decoded once; bounded by ``claim_order``
        self.is_closed = False
        self.is_disk_low = False  # the disk's, or the replicated log's: enqueues are refused
        self.log_full: str | None = None  # why the log takes no enqueues; None: it does
        self._is_own_disk_low = False
        self.disk_problem = DISK_LOW  # in words, while ``is_disk_low``
        self.not_there: str | None = None  # why the store's files cannot be made; None: they can
        self.deadlines = Deadlines(self.leases, self.shards)
        self.claim_sets = ClaimSets()
        self.waiters = LongPolls(spawner, clock, self.shards, self.claim_sets)
        self.queue_limits = QueueLimits(
            spawner,
            clock,
            self.queue_states,
            self.leases,
            self.claim_sets,
            self.waiters,
            self._share,
        )
        self.key_limits = KeyLimits(spawner, self.deadlines, self.queue_states, self.leases)
        self.has_limits = False  # whether any queue has one, of either kind
        self.function_counts = FunctionCounts()
        self.thread_reads = ThreadReads(spawner)
        # Set by open: both are in layers above.
        self.lease_type: type[LeaseState]
        self.hidden: HiddenRowSearch
        self.flows: JoinCounts
        self.keepalives: dict[LeaseHolder, None] = {}  # asked before any lease is reaped
        self.kept_alive: dict[bytes, LeaseHolder] = {}  # by task: to be called when its lease ends

    def _share(self) -> Share:
        """The shards that are led here: so much of the limits of queues holds here."""
        led = [one.index for one in self.shards if not one.coalescer.is_following]
        return Share(led, len(self.shards))

    def set_body_bytes_min(self, least: int) -> None:
        """From so many bytes on, payloads lie in body files."""
        self.body_bytes_min = least
        self.plain_bytes_max = min(self.limits.value_bytes_max, least - 1)

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
        self.is_loop_checked = self.home.is_chosen = False

    def check_healthy(self) -> None:
        """Before a wait: nobody would be served with every shard poisoned."""
        if all(shard.coalescer.status > STALLED for shard in self.shards):
            raise self.refusal()

    def check_led(self, shards: Collection[int], *, to_write: bool = False) -> None:
        """Check that this replica leads all of these shards.

        Args:
            shards: their indexes.
            to_write: also that each takes writes.

        Raises:
            UsageError: there is no such shard.
            NotLeaderError: another replica leads one of them, or this one is not ready to serve it.
        """
        for index in shards:
            if not 0 <= index < len(self.shards):
                raise UsageError(f"there is no shard {index}: the store has {len(self.shards)}")
            coalescer = self.shards[index].coalescer
            if coalescer.is_following or (to_write and not coalescer.takes_writes):
                raise coalescer.refusal()

    def check_inherited(self, lease: LeaseState) -> None:
        """Before somebody else than its holder ends a lease.

        Raises:
            BusyError: it is of an earlier leader, which may still extend it.
        """
        shard = lease.shard_queue.shard
        left_s = shard.inherits_mono - self.clock.mono() if shard.inherits_mono else 0.0
        if left_s > 0 and lease.epoch < shard.first_epoch:
            raise BusyError(
                f"{lease.task_id} is leased by the leader before, which may not know that its term "
                "is over: retry once its answers can arrive no more",
                retry_after_ms=ceil(left_s * 1000),
            )

    def check_empty(self) -> None:
        """Before an empty-handed answer: a lie if no shard is healthy and surely led from here."""
        for shard in self.shards:
            if shard.coalescer.status <= STALLED and shard.coalescer.has_session:
                return
        raise self.refusal()

    @property
    def submission_bytes_max(self) -> int:
        """Bytes that one submission may have in any shard."""
        return min(shard.coalescer.submission_bytes_max for shard in self.shards)

    @property
    def has_all(self) -> bool:
        """Whether all shards of the store are here."""
        return len(self.hosted) == len(self.shards)

    def is_any_tended(self) -> bool:
        """Whether some shard is surely led from here."""
        return any(shard.coalescer.is_tended for shard in self.shards)

    def note_disk(self, *, is_low: bool, problem: str = DISK_LOW) -> bool:
        """Take what was seen of the disk's free space; returns whether it is another than before.

        Args:
            is_low: enqueues are refused.
            problem: why, in words.
        """
        is_new = is_low != self._is_own_disk_low
        self._is_own_disk_low = is_low
        self.disk_problem = problem
        self.is_disk_low = is_low or self.log_full is not None
        return is_new

    def note_log_room(self, problem: str | None) -> None:
        """Take why the replicated log has no room for enqueues; None: it has."""
        self.log_full = problem
        self.is_disk_low = self._is_own_disk_low or problem is not None

    def check_intake(self) -> None:
        """Before an enqueue: the disk must have more free space than what ends tasks needs."""
        if self.is_disk_low:
            if self.not_there is not None:
                raise StorageError(f"{self.not_there}: enqueues are refused")
            if self.log_full is not None and not self._is_own_disk_low:
                raise StorageFullError(self.log_full)
            raise StorageFullError(
                f"{self.disk_problem}: enqueues are refused, complete, release and reap go on; "
                "free some space"
            )

    # -- time and order ----------------------------------------------------------------

    def next_seq(self, now_us: int) -> int:
        """A hybrid clock: microseconds, or the last value plus one where time stood still."""
        seq = self.seq = now_us if now_us > self.seq else self.seq + 1
        return seq

    # -- tenant queues -------------------------------------------------------------------------

    def find_tenant_queue(self, queue: bytes, tenant: bytes) -> TenantQueue | None:
        """The tenant queue, if anything is or was there. Looking creates nothing."""
        queue_state = self.queue_states.get(queue)
        return queue_state.tenant_queues.get(tenant) if queue_state is not None else None

    def tenant_queue(self, queue: bytes, tenant: bytes) -> TenantQueue:
        """The tenant queue, made where needed: something is about to be put there."""
        queue_state = self.queue_states.get(queue)
        if queue_state is None:
            queue_state = self.queue_states[queue] = QueueState(queue, self.history)
            if self.rules:
                queue_state.rules = self.rules.get(queue, UNSET)
                queue_state.history = self.history_of(queue_state.rules)
                self.queue_limits.adopt(queue_state)
                self.key_limits.adopt(queue_state)
        tenant_queue = queue_state.tenant_queues.get(tenant)
        if tenant_queue is None:
            tenant_queue = queue_state.tenant_queues[tenant] = TenantQueue(
                queue_state, tenant, len(self.shards)
            )
        return tenant_queue

    @property
    def first(self) -> Shard:
        """The shard with the rows of pauses, settings of queues and published functions.

        That is the store's first; of one of several processes with a store the first that it has.
        """
        return self.shards[self.first_index]

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
            raise shard.coalescer.refusal() if shard.coalescer.status > STALLED else self.refusal()
        return ghost_hash(shard.secret, routing)

    def healthy_slot(self, tasks: int = 1) -> int:
        """A slot for ``tasks`` tasks without a key: of a shard that takes writes; see ``home``."""
        if len(self.shards) > 1:
            home = self.home
            if home.current() is None:
                raise self.refusal()
            home.stayed += tasks
            return self.ids.slot_within(home.first_slot, home.slots)
        if self.shards[0].coalescer.status > STALLED:
            raise self.refusal()
        return self.ids.slot()

    def healthy_id(self, now_ms: int) -> bytes:
        """An id in such a slot."""
        if len(self.shards) > 1:
            home = self.home
            if home.current() is None:
                raise self.refusal()
            home.stayed += 1
            return self.ids.new_within(now_ms, home.first_slot, home.slots)
        if self.shards[0].coalescer.status > STALLED:
            raise self.refusal()
        return self.ids.new_unkeyed(now_ms)

    def refusal(self) -> LodeqError:
        """Why no shard serves: all are poisoned, or (replicated) not led, or not known to be."""
        for shard in self.shards:
            if isinstance(shard.coalescer, ReplicatedCoalescer):
                if shard.coalescer.status <= STALLED:  # by somebody else, as far as is known
                    return shard.coalescer.session_over()
                if shard.coalescer.is_given_up:
                    return shard.coalescer.not_leader()
            if shard.coalescer.is_following:
                return shard.coalescer.refusal()
        return StoragePoisonedError(
            "every shard is poisoned: close the engine, look at the disk, reopen it"
        )

    def set_pause(self, queue: bytes, tenant: bytes | None, *, is_paused: bool) -> None:
        """Pause or resume in memory, the whole queue where ``tenant`` is None; the row is apart."""
        tenant_queue = self.tenant_queue(queue, tenant if tenant is not None else b"")
        if tenant is None:
            tenant_queue.queue_state.is_paused = is_paused
            tenant_queue.queue_state.is_held = is_paused or tenant_queue.queue_state.is_limited
        else:
            turns = tenant_queue.queue_state.turns
            if is_paused:
                turns.pop(tenant, None)
            elif tenant_queue.is_paused and tenant_queue.ready:
                # A task that came meanwhile may have put it into the line: it goes to the end.
                turns[tenant] = None
                turns.move_to_end(tenant)
            tenant_queue.is_paused = is_paused
            (
                tenant_queue.queue_state.paused.add
                if is_paused
                else tenant_queue.queue_state.paused.discard
            )(tenant)
        self.claim_sets.reset()
        if not is_paused and self.claim_sets.waiting:
            if tenant is None:
                self.waiters.note_queue(tenant_queue.queue_state)
            elif tenant_queue.ready:
                self.waiters.note(tenant_queue)

    def set_rules(
        self,
        queue: bytes,
        rules: QueueRules,
        *,
        is_past_known: bool = True,
        starts: Sequence[int] | None = None,
    ) -> None:
        """Set the rules of a queue in memory; the row is apart.

        Args:
            queue: its name.
            rules: ``UNSET`` where nothing is.
            is_past_known, starts: after a restart: see ``QueueLimits.set``.
        """
        if rules.stored:
            self.rules[queue] = rules
        else:
            self.rules.pop(queue, None)
        queue_state = self.queue_states.get(queue)
        if queue_state is not None:
            queue_state.rules = rules
            queue_state.history = self.history_of(rules)
        self.rules_set += 1
        self.queue_limits.set(queue, rules, is_past_known=is_past_known, starts=starts)
        self.key_limits.set(queue, rules)
        self.has_limits = bool(self.queue_limits.by_queue or self.key_limits.by_queue)

    def keeps_faces(self, queue: bytes) -> bool:
        """Whether function, preview and labels of the queue's tasks are stored."""
        rules = self.rules.get(queue) if self.rules else None
        return rules is None or rules.has_faces

    def history_of(self, rules: QueueRules) -> HistoryBounds:
        """How long a queue with these settings keeps what is known of ended tasks, and how much."""
        default = self.history
        ms, rows, bytes_max = rules.history_ms, rules.history_rows, rules.history_bytes
        if ms == rows == bytes_max == NOT_SET:
            return default
        return HistoryBounds(
            default.seconds if ms == NOT_SET else -(-ms // SECOND_MS),
            default.rows if rows == NOT_SET else rows,
            default.bytes_max if bytes_max == NOT_SET else bytes_max,
        )

    # -- moves -------------------------------------------------------------------------

    def put_ready(
        self,
        group: Group,
        shard_queue: ShardQueue,
        index: int,
        key: bytes,
        task_id: bytes,
        row: IndexRow,
        record: bytes | None = None,
    ) -> None:
        """A task is ready: row, counter, ready cache, turn, waiters. ``index`` is 9 - priority.

        Args:
            group: of the task's shard; gets the rows.
            shard_queue: where it becomes ready.
            index: 9 - priority.
            key: the ready key.
            row: its value.
            record: kept in memory for the claim, up to ``held_bytes_max``.
        """
        group.ops.append((key, encode_index_row(row)))
        self.note_ready(
            group,
            shard_queue,
            index,
            (key, key[ID_AT:], row.attempts, row.flags, row.expires_ms, row.record_bytes, record),
        )

    def note_ready(
        self,
        group: Group,
        shard_queue: ShardQueue,
        index: int,
        cached_row: tuple[bytes, bytes, int, int, int, int, bytes | None],
    ) -> None:
        """The memory side of ``put_ready``; the row itself is queued by the caller.

        Args:
            group: of the task's shard; gets the rows.
            shard_queue: where it becomes ready.
            index: 9 - priority.
            cached_row: as ``ReadyCache`` holds it.
        """
        shard_queue.ready += 1
        group.dirty[shard_queue] = None
        record = cached_row[RECORD]
        if record is not None and self.held_bytes >= self.held_bytes_max:
            cached_row, record = (*cached_row[:6], None), None
        ready_cache = shard_queue.ready_caches[index]
        if (
            ready_cache is not None
            and record is not None
            and len(ready_cache.rows) >= ready_cache.cap
            and ready_cache.is_complete
            and self.held_bytes < self.held_bytes_max // 4 * 3
        ):
            ready_cache.grow()
        # The tail of a list that is all in memory: nearly every enqueue.
        if (
            ready_cache is not None
            and ready_cache.is_complete
            and len(ready_cache.rows) < (ready_cache.cap if record is not None else READY_ROWS)
            and (not ready_cache.rows or cached_row[0] > ready_cache.rows[-1][0])
        ):
            ready_cache.rows.append(cached_row)
            shard_queue.occupied |= 1 << index
            if record is not None:
                self.held_bytes += cached_row[SIZE]
        else:
            if shard_queue.put(index, cached_row) and record is not None:
                self.held_bytes += cached_row[SIZE]
            ready_cache = shard_queue.ready_caches[index]
            if ready_cache is not None and ready_cache.lost_bytes:
                self.held_bytes -= ready_cache.lost_bytes
                ready_cache.lost_bytes = 0
        tenant_queue = shard_queue.tenant_queue
        queue_state = tenant_queue.queue_state
        if tenant_queue.tenant not in queue_state.turns:
            queue_state.turns[tenant_queue.tenant] = None
        if self.claim_sets.is_noted:
            self.waiters.note(tenant_queue, cached_row[0])

    def ahead_bytes(self, cache: ReadyCache) -> int:
        """How many bytes of records may be read ahead for ``cache``, which a claim works on.

        Where too much is held, caches that nobody has read ahead for of late give up all records
        but the next few: of ten thousand tenant queues that are claimed in turn each keeps some.
        """
        ahead = self.ahead
        ahead[cache] = None
        ahead.move_to_end(cache)
        free = self.held_bytes_max + self.held_bytes_max // 3 - self.held_bytes
        for _ in range(8):
            if (free >= AHEAD_BYTES_MAX and len(ahead) <= AHEAD_CACHES_MAX) or len(ahead) < 2:
                break
            freed = ahead.popitem(last=False)[0].drop_records(KEPT_ROWS)
            self.held_bytes -= freed
            free += freed
        return max(0, min(free, AHEAD_BYTES_MAX))

    def drop_ready(self, group: Group, shard_queue: ShardQueue, key: bytes) -> None:
        """A ready row goes away by other means than a claim."""
        group.ops.append((key, None))
        group.dirty[shard_queue] = None
        shard_queue.ready -= 1
        row = shard_queue.discard(key)
        if row is not None and row[RECORD] is not None:
            self.held_bytes -= row[SIZE]
        if self.key_limits.woken:
            self.key_limits.gone(key[ID_AT:])
        if not shard_queue.ready and self.claim_sets.sets:
            self.claim_sets.emptied(shard_queue.tenant_queue, None)

    def put_delayed(
        self,
        group: Group,
        shard_queue: ShardQueue,
        key: bytes,
        due_ms: int,
        row: bytes,
        held: DelayedRow | None = None,
    ) -> None:
        """A task waits until ``due_ms``; ``row`` is the encoded value.

        Args:
            group: of the task's shard; gets the rows.
            key: the delayed key.
            due_ms: wall milliseconds.
            row: the encoded value.
            held: as ``DelayedCache`` holds it; None: it is read again when it is due.
        """
        group.ops.append((key, row))
        group.dirty[shard_queue] = None
        cache = shard_queue.delayed_rows
        if cache is None:
            cache = shard_queue.delayed_rows = DelayedCache(shard_queue.prefix + DELAYED)
        if not shard_queue.delayed:  # all that is delayed is what comes now
            cache.cut(shard_queue.prefix + DELAYED)
            cache.edge = None
        shard_queue.delayed += 1
        # ``seq`` was drawn just now: it is the time, in microseconds.
        if (
            held is None
            or self.held_bytes >= self.held_bytes_max
            or due_ms - NEAR_MS > self.seq // 1000
        ):
            cache.cut(key)
            if due_ms >= HELD_MS:
                shard_queue.waiting += 1
        elif cache.put(held):
            self.held_bytes += held_bytes_of(held)
        if cache.lost_bytes:
            self.held_bytes -= cache.lost_bytes
            cache.lost_bytes = 0
        if key < shard_queue.delayed_head:
            shard_queue.delayed_head = key
        if due_ms < shard_queue.next_due_ms:
            self.deadlines.note_due(shard_queue, due_ms)

    def drop_delayed(self, group: Group, shard_queue: ShardQueue, key: bytes) -> None:
        """A delayed row goes away by other means than its turn."""
        group.ops.append((key, None))
        group.dirty[shard_queue] = None
        shard_queue.delayed -= 1
        if shard_queue.waiting and int.from_bytes(key[DUE_AT:SEQ_AT], "big") >= HELD_MS:
            shard_queue.waiting -= 1
        if shard_queue.delayed_rows is not None:
            row = shard_queue.delayed_rows.discard(key)
            if row is not None:
                self.held_bytes -= held_bytes_of(row)

    def cut_delayed(self, shard_queue: ShardQueue, key: bytes) -> None:
        """Delayed rows from ``key`` on have come to the disk by another way: hold none of them."""
        cache = shard_queue.delayed_rows
        if cache is not None:
            cache.cut(key)
            self.held_bytes -= cache.lost_bytes
            cache.lost_bytes = 0

    def let_go(self, shard_queue: ShardQueue) -> None:
        """Count out what memory holds of the rows of ``shard_queue``: it is about to be dropped."""
        self.cut_delayed(shard_queue, shard_queue.prefix + DELAYED)
        for ready_cache in shard_queue.ready_caches:
            if ready_cache is not None:
                self.ahead.pop(ready_cache, None)
                self.held_bytes -= sum(
                    [row[SIZE] for row in ready_cache.rows if row[RECORD] is not None]
                )
                self.held_bytes -= ready_cache.lost_bytes
                ready_cache.lost_bytes = 0

    def file_expiry(self, shard: Shard, group: Group, at_ms: int, entry: bytes) -> None:
        """Look at ``entry`` once ``at_ms`` has passed: rounded up to a second, one row a group.

        Args:
            shard: of the task.
            group: of the task's shard; gets the rows.
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

    def final_rows(
        self, shard: Shard, group: Group, at_ms: int, shard_queue: ShardQueue, kind: bytes
    ) -> list[bytes]:
        """Where to add ended tasks whose results are due at ``at_ms``.

        Args:
            shard: of the tasks.
            group: of the task's shard; gets the rows.
            at_ms: when the results are due, wall milliseconds.
            shard_queue: whose counter has the results.
            kind: of the entries: ``GOES`` (unread: the result is final), ``LOSES_VALUE``, ``READ``.
        """
        bucket_ms = -(-at_ms // SECOND_MS) * SECOND_MS
        rows = group.final.get((bucket_ms, shard_queue, kind))
        if rows is None:
            self.note_expiry(shard, bucket_ms)
            rows = group.final[bucket_ms, shard_queue, kind] = []
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
        """There is something to look at in that shard queue, maybe behind a sweep."""
        # Nearly always what was noted last, since when the head has not moved.
        if bucket_ms != shard.noted_ms or shard.expiry_head is not shard.noted_head:
            head = expiry_key(bucket_ms, 0)
            if head < shard.expiry_head:  # behind a sweep: it has to come back
                shard.expiry_head = head
            shard.noted_ms, shard.noted_head = bucket_ms, shard.expiry_head
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
        self.claim_sets.reset()
        if self.has_limits:
            self.queue_limits.recount()
            self.key_limits.recount()
        for shard in self.shards:
            if shard.coalescer.status >= FAILED:
                self._forget_due(shard)
                if shard.index not in self.logged_failures:
                    self.logged_failures.add(shard.index)
                    engine_log.poisoned(shard.index, str(shard.coalescer.status_error))
                    if self.on_failure is not None and shard.coalescer.failure is not None:
                        self.on_failure(shard.coalescer.failure)
        for task_id in list(self.result_waiters):
            failure = self.shard_of(task_id).coalescer.failure
            if failure is None:
                continue
            for future in self.result_waiters.pop(task_id):
                if not future.done():  # each an error of its own: tracebacks grow as it is raised
                    future.set_exception(StoragePoisonedError(f"{failure}: {REOPEN}"))
        if all(shard.coalescer.status > STALLED for shard in self.shards):
            self.waiters.fail_all(self.refusal())
            self.fail_dead_waiters(self.refusal)

    def _forget_due(self, shard: Shard) -> None:
        """Nothing of ``shard`` will be done: it must not look due, or the reaper never rests."""
        shard.next_expiry_ms = NEVER_MS
        for queue_state in self.queue_states.values():
            for tenant_queue in queue_state.tenant_queues.values():
                shard_queue = tenant_queue.shard_queues[shard.index]
                if shard_queue is not None:
                    shard_queue.next_due_ms = NEVER_MS  # its entries in the heap are stale now

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
        if self.has_limits:
            self.queue_limits.ended(lease)
            self.key_limits.ended(lease)
        if self.progress:
            self.progress.pop(task_id, None)
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
        self, shard: Shard, *, is_durable: bool = False, is_local: bool = False
    ) -> Coroutine[Any, Any, None]:
        """Wait until everything queued on the shard is committed; see ``waits``."""
        return commit_barrier(shard, is_durable=is_durable, is_local=is_local)

    def wake_dead(self, tenant_queue: TenantQueue) -> None:
        """A dead letter may be claimed: who waits for one there looks again, in turn."""
        for future in self.dead_waiters.pop(tenant_queue.key, ()):
            if not future.done():
                future.set_result(True)

    def fail_dead_waiters(self, error: Callable[[], BaseException]) -> None:
        """Nobody is left waiting for a dead letter; ``error`` makes one for each."""
        for futures in self.dead_waiters.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error())
        self.dead_waiters.clear()

    def notify_result(self, group: Group, task_id: bytes) -> None:
        """Wake those who wait for this task's result, when its end is committed."""
        futures = self.result_waiters.pop(task_id, None)
        if futures:
            group.waiters.extend((future, True) for future in futures)
