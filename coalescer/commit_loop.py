"""Group commit: many callers, one RocksDB write, one fsync.

Submitters add operations to the *open* group and wait on a future. The first submission of a
loop iteration schedules a *tick*; everything that was runnable in that iteration gets its
operations in before the tick runs, seals the group and writes it. Nothing lingers on a timer.

Why on the loop and not in a thread: ``db.write`` holds the GIL whoever calls it, and costs
microseconds; handing it to a thread costs more than the write and blocks the loop just the
same. Only the fsync releases the GIL, so only the fsync goes to a thread (one per shard, one
call in flight, the groups it covers fixed before it starts).

Invariants:

1. Groups are written in the order they were opened; none is dropped, none overtaken. A refused
   write (stall, disk full) is retried with the same operations, at the head of the line.
2. A future gets its value only when its group is applied; in fsync mode, or if the caller asked
   for it, only when a sync that *started after* the group was applied has returned.
3. After any other failure the shard is ``FAILED``: callers of the failed groups get an error that
   says that the outcome is unknown, later ones an error that says that nothing was written, and no
   write follows until the store is reopened.
4. No future is touched once it is done: a cancelled caller's operation still happens.
5. A tick writes for a few milliseconds at most, then lets the loop breathe.

A caller that is alone gains nothing from waiting for company. Once several ticks in a row had
one submission each, ``commit_now`` writes a group in the call that queued it, up to
``INLINE_MAX`` times before the loop has its turn again; the first tick that finds two
submissions ends that (ADR a-lone-caller-commits-at-once).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol

from ..engine.runtime.clock import TimerHandle, perf_s
from ..engine.runtime.event_loop import Future, Spawner
from ..engine.runtime.mypyc_compat import mypyc_attr
from ..engine.store.port import Store
from ..errors import (
    ClosedError,
    CommitUnknownError,
    LodeqError,
    StorageFullError,
    StoragePoisonedError,
    StoreStalledError,
)
from .backpressure import SubmitLine
from .body_sync_barrier import BodySyncBarrier
from .event_buffer import EventBuffer
from .fsync import Syncer
from .group import Group
from .overlay import Overlay
from .shard_status import (
    FAILED,
    READ_ONLY,
    SERVING,
    STALLED,
    ShardStatus,
    check_transition,
    fail_waiters,
    refusal,
)
from .shutdown import drain
from .stats import SAMPLES_MAX, CommitStats

__all__ = [
    "GROUP_BYTES_MAX",
    "SUBMISSION_BYTES_MAX",
    "Coalescer",
    "SeqSource",
    "TickWork",
    "WritePause",
]

GROUP_BYTES_MAX = 2 << 20  # an 8 MiB write blocks the loop 14 to 18 ms
SUBMISSION_BYTES_MAX = 4 << 20
TICK_OPS_MAX = 8192  # 5 ms of them; counted, not timed: a simulation repeats it
RETRY_STALLED_S, RETRY_FULL_S = 0.01, 0.25
CLOSE_STALLED_S_MAX = 10.0
ALONE_TICKS_MIN = 8
INLINE_MAX = 16
UNKNOWN = "outcome unknown until the store is reopened"
NOTHING = "nothing was written; reopen the store"


class SeqSource(Protocol):
    """The owner of the engine's hybrid clock."""

    seq: int


class TickWork(Protocol):
    """Operations queued at the end of a tick, to share its write: answers to long polls."""

    @property
    def ready(self) -> Collection[object]:
        """Empty: there is nothing to do."""

    def serve(self) -> None:
        """Do what there is."""


class WritePause:
    """Stands where the timer of a retry does, so everything that looks for one waits."""

    def cancel(self) -> None:
        """Do nothing: when the shard fails or closes meanwhile, there is nothing to try again."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Coalescer:
    """The commit loop of one shard."""

    def __init__(
        self,
        store: Store,
        spawner: Spawner,
        *,
        shard: int,
        first_number: int,
        seq_source: SeqSource,
        syncer: Syncer,
        is_fsync: bool,
        commit_batch_max: int = 64,
        submit_queue_max: int = 1024,
        tick_work: TickWork | None = None,
        on_writes_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self.shard = shard
        self.is_fsync = is_fsync
        self.commit_batch_max = commit_batch_max
        self.submit_queue_max = submit_queue_max
        self.group_bytes_max = GROUP_BYTES_MAX
        self.stats = CommitStats()
        self.overlay = Overlay(store, self.pending)
        self.status: ShardStatus = SERVING
        self.submission_bytes_max = 1 << 62  # of one submission: what fits no log is refused
        self.status_error: LodeqError | None = None  # why it takes no writes; None: it does
        self.refused_write: LodeqError | None = None  # what the store says to the first in line
        self.waiting = 0
        self.whose = 0  # number that the ring rows of this shard bear; 0: the log is others', too
        self.applied_number = first_number - 1
        self._next_number = first_number
        self._spawner = spawner
        self._seq_source = seq_source
        self._syncer = syncer
        self._tick_work = tick_work
        self._on_writes_end = on_writes_end
        self.events: EventBuffer | None = None  # with a lifecycle journal
        self.watch: Callable[[Group], None] | None = None  # called with each sealed group
        self._pending: deque[Group] = deque()
        self._open: Group | None = None
        self._is_scheduled = False
        self._alone_ticks = 0
        self.inline_left = 0
        self._retry_left_s = float("inf")  # until a store that refuses writes is given up
        self.is_abandoned = False  # it was: what was queued has not been written
        self._retry: TimerHandle | None = None
        self.submit_line = SubmitLine(spawner, self._admit, self._capacity)
        self._unsynced: list[Group] = []
        self.body_barrier: BodySyncBarrier | None = None  # in fsync mode, once there are files
        syncer.attach(self)

    # -- status ----------------------------------------------------------------------------

    def enter(self, status: ShardStatus, error: LodeqError | None = None) -> None:
        """Change the status; ``InvariantError``, with nothing changed, if that is not allowed.

        ``error`` stands for the new status: None exactly where the shard takes writes.
        """
        check_transition(self.shard, self.status, status)
        self.status = status
        self.status_error = error

    @property
    def takes_writes(self) -> bool:
        """Whether ``begin`` accepts a submission. The hot path compares the status itself."""
        return self.status <= STALLED

    @property
    def is_tended(self) -> bool:
        """Whether work that nobody asked for may be done: what falls due, trims, workflows.

        A replica that does not surely lead does none: its log would not take it.
        """
        return self.status <= STALLED and self.has_session

    @property
    def is_following(self) -> bool:
        """Whether writes are refused because of the shard's role, not of a failure or the end."""
        return STALLED < self.status < FAILED

    @property
    def failure(self) -> LodeqError | None:
        """Why nothing is written any more: the shard has failed or is closed. Else None."""
        return self.status_error if self.status >= FAILED else None

    def refusal(self) -> LodeqError:
        """A new error of the kind that ``begin`` raises; only while it takes no writes."""
        return refusal(self.shard, self.status_error or ClosedError("the engine is closed"))

    # -- submitting ------------------------------------------------------------------------

    def begin(self, cost_bytes: int = 512) -> Group:
        """The group for one more submission. Queue all of it before the next ``await``.

        Never blocks, however many submissions wait: callers that are subject to backpressure
        await ``wait_in_line()`` first, or leave their call in ``submit_line``; the reaper,
        promotions and give-backs do not.

        Args:
            cost_bytes: about how many bytes the submission's operations have.

        Raises:
            StoragePoisonedError, NotLeaderError, ClosedError: the shard takes no writes.
        """
        if self.status > STALLED:
            raise self.refusal()
        group = self._open
        if group is None:
            group = self._open_group()
        elif (
            group.submissions >= self.commit_batch_max
            or group.bytes + cost_bytes > self.group_bytes_max
        ):
            self._seal(group)
            return self.begin(cost_bytes)  # from the top: the shard fails if it cannot be sealed
        group.submissions += 1
        group.bytes += cost_bytes
        self.waiting += 1
        return group

    # What concerns this store alone, and is in no entry of a replica's log: see ``local_rows``.

    @property
    def takes_local_writes(self) -> bool:
        """Whether a local group may be made now."""
        return self.status <= STALLED

    def begin_local(self, cost_bytes: int = 512) -> Group:
        """A group for rows that are this store's own; as ``begin``. ``commit_local`` follows.

        Args:
            cost_bytes: as for ``begin``.

        Raises:
            StoragePoisonedError, ClosedError: nothing is written any more.
        """
        return self.begin(cost_bytes)

    def commit_local(self, group: Group) -> None:
        """Put a group of ``begin_local`` in line, complete; ``wait`` for it before this call."""

    def local_barrier(self) -> Future | None:
        """A future for everything that this store is to have so far to be durable."""
        return self.commit_barrier(is_durable=True)

    def seal_full(self, *, always: bool = False) -> None:
        """Seal the open group if the next submission would, or ``always``: then it can be scanned.

        For those who change counters before they know which shards they need a group of.
        """
        group = self._open
        if group is not None and (
            always
            or group.submissions >= self.commit_batch_max
            or group.bytes > self.group_bytes_max
        ):
            self._seal(group)

    def _seal(self, group: Group) -> None:
        """Close ``group``. One that cannot be closed is never written, and the shard fails."""
        try:
            if self.events is not None:
                self.events.take(group)
            group.whose = self.whose
            group.seal(self._seq_source.seq)
            if self.watch is not None:
                self.watch(group)
        except Exception as error:  # noqa: BLE001 - left half-sealed it would block the line
            self.fail(error)
        self._open = None

    def _open_group(self) -> Group:
        group = Group(self._next_number)
        if self.events is not None:
            group.events = []
        self._next_number += 1
        self._open = group
        self._pending.append(group)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._spawner.call_soon(self._tick)
        return group

    @property
    def is_tick_scheduled(self) -> bool:
        """Whether a tick runs before long, and with it its work."""
        return self._is_scheduled

    def poke(self) -> None:
        """Have a tick run, and with it its work, although nothing is queued."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._spawner.call_soon(self._tick)

    def commit_now(self, group: Group) -> bool:
        """Write ``group`` at once if its caller is alone. False: wait for the tick as usual."""
        if (
            self.inline_left <= 0
            or len(self._pending) != 1
            or group.submissions != 1
            or self.is_fsync
            or self._retry is not None
        ):
            return False
        self.inline_left -= 1
        work = self._tick_work
        if work is not None and work.ready:
            work.serve()
        self._drain()
        if self.status > STALLED:
            if not group.sealed:
                raise StoragePoisonedError(f"{self.status_error}: {NOTHING}")
            raise CommitUnknownError(f"{self.status_error}: {UNKNOWN}")
        return self.applied_number >= group.number

    def wait(self, group: Group, value: Any = None, *, is_durable: bool = False) -> Future:
        """A future that gets ``value`` when ``group`` is applied (or durable)."""
        future = self._spawner.future()
        if is_durable and not self.is_fsync:
            group.durable_waiters.append((future, value))
        else:
            group.waiters.append((future, value))
        return future

    @property
    def has_session(self) -> bool:
        """Whether an answer may rest on memory alone: no other replica can lead the shard."""
        return True

    def check_session(self) -> None:
        """Before an answer that rests on memory alone. ``NotLeaderError`` where it may not."""

    def check_absence(self) -> None:
        """Before something is said not to be there. ``NotLeaderError``: it may be only not here."""

    def commit_barrier(self, *, is_durable: bool = False, is_local: bool = False) -> Future | None:
        """A future for everything queued so far to be applied (or durable); None if it is.

        A reply that depends on other callers' work awaits it.

        Args:
            is_durable: durable in nosync mode as well.
            is_local: only the store is asked for, not what the newest leader would say.
        """
        if self.status > STALLED:
            return None
        if self._pending:
            return self.wait(self._pending[-1], is_durable=is_durable)
        if self.is_fsync or is_durable:
            return self._syncer.commit_barrier(self.applied_number)
        return None

    @property
    def durable_number(self) -> int:
        """The last commit known to be durable."""
        return self._syncer.durable_number

    @property
    def queued_number(self) -> int:
        """The number of the last group that reads see."""
        return self._pending[-1].number if self._pending else self.applied_number

    @property
    def answered_number(self) -> int:
        """The last group whose callers have their answer: applied, and in fsync mode durable."""
        return self.durable_number if self.is_fsync else self.applied_number

    def open_expiry_ms(self) -> int:
        """The earliest expiry bucket filed in the group that is still open (not yet a row)."""
        group = self._open
        if group is None:
            return 1 << 62
        return min((*group.expiry, *(at for at, _, _ in group.final)), default=1 << 62)

    @property
    def has_capacity(self) -> bool:
        """Whether a caller may submit without standing in line."""
        return self.waiting < self.submit_queue_max and not self.submit_line.queued

    def wait_in_line(self) -> Coroutine[Any, Any, None]:
        """Stand in line until a submission fits. Submit before the next ``await``."""
        return self.submit_line.wait()

    def _admit(self) -> None:
        self.submit_line.admit(self.submit_queue_max - self.waiting)

    def _capacity(self) -> int:
        return self.submit_queue_max - self.waiting

    # -- committing ------------------------------------------------------------------------

    def pending(self) -> Sequence[Group]:
        """Groups not yet applied, oldest first."""
        return self._pending

    def _tick(self) -> None:
        self._is_scheduled = False
        work = self._tick_work
        try:
            if work is not None and work.ready:
                work.serve()
        finally:  # whatever failed there, what is queued gets written
            self._note_company()
            self.go_on()

    def _note_company(self) -> None:
        """Count ticks with a single submission; after enough, allow immediate commits."""
        if self.waiting > 1:
            self._alone_ticks = self.inline_left = 0
        elif self.waiting == 1:
            self._alone_ticks += 1
        if self._alone_ticks >= ALONE_TICKS_MIN:
            self.inline_left = INLINE_MAX

    def go_on(self) -> None:
        """Write what is queued, unless a refused write is to be tried again first."""
        if self._retry is None:
            self._drain_or_fail()

    def pause_writes(self) -> TimerHandle | None:
        """Write nothing until ``resume_writes`` gets what this returns.

        None: writes wait already, for a retry or another pause, and there is no pause of this call.
        """
        if self._retry is not None:
            return None
        pause = self._retry = WritePause()
        return pause

    def resume_writes(self, pause: TimerHandle) -> None:
        """End the pause, if the shard has not failed or been abandoned meanwhile."""
        if self._retry is pause:
            self._retry = None
            self.go_on()

    def _drain_or_fail(self) -> None:
        """Drain, and fail the shard on an error: nobody else sees one that a callback raises."""
        try:
            self._drain()
        except Exception as error:  # noqa: BLE001 - a replica calls its replication layer in it
            self.fail(error)

    def _drain(self) -> None:
        pending = self._pending
        operations = written_bytes = 0
        while pending and self.status <= STALLED:
            group = pending[0]
            if not group.sealed:
                self._seal(group)
            if not group.sealed:
                break
            barrier = self.body_barrier
            if group.has_bodies and barrier is not None and not barrier.admits(pending):
                break
            if not self._commit(group):
                break
            operations += len(group.ops)
            written_bytes += group.bytes
            if pending and (operations > TICK_OPS_MAX or written_bytes > GROUP_BYTES_MAX):
                self.poke()
                break
        if self._unsynced:
            self._syncer.kick()

    def _commit(self, group: Group) -> bool:
        before = perf_s()
        try:
            self.store.write(group.ops)
        except (StoreStalledError, StorageFullError) as error:
            self._stall(error)
            return False
        except Exception as error:  # noqa: BLE001 - whatever it was, the outcome is unknown
            self.fail(error)
            return False
        if self.refused_write is not None:
            self._note_accepted()
        self._pending.popleft()
        if self.overlay.in_map and not self._pending:
            self.overlay.forget()
        self.applied_number = group.number
        if self.overlay.unreadable is not None:
            self.overlay.unreadable.applied(group.ops)
        stats = self.stats
        stats.commits += 1
        stats.submissions += group.submissions
        stats.operations += len(group.ops)
        stats.bytes += group.bytes
        stats.samples.append((group.submissions, int((perf_s() - before) * 1e6)))
        if len(stats.samples) >= SAMPLES_MAX:
            stats.count_samples()
        if group.number >= self._syncer.due_number:
            self._syncer.applied(group.number)
        if self.is_fsync or group.durable_waiters:
            self._unsynced.append(group)
        if not self.is_fsync:
            self._finish(group)
        return True

    def _finish(self, group: Group) -> None:
        self.waiting -= group.submissions
        if self.submit_line.futures:
            self._admit()
        self._spawner.answer(group.waiters)

    def _note_accepted(self) -> None:
        """Forget the refusal: the store takes writes again, or is not asked again."""
        self.refused_write = None
        if self.status == STALLED:
            self.enter(SERVING)

    def _stall(self, error: LodeqError) -> None:
        self.refused_write = error
        if self.status == SERVING:  # a replica that follows goes on following
            self.enter(STALLED)
        self.stats.stalls += 1
        delay = RETRY_FULL_S if isinstance(error, StorageFullError) else RETRY_STALLED_S
        self._retry_left_s -= delay
        self._retry = self._spawner.call_later(delay, self._retry_now)

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _retry_now(self) -> None:
        self._retry = None
        self._drain_or_fail()
        if self.refused_write is not None and self._retry_left_s <= 0:
            self._abandon()

    # -- syncing (the Syncer calls these) --------------------------------------------------

    def take_unsynced(self) -> list[Group]:
        """The groups the sync that starts now will cover."""
        groups, self._unsynced = self._unsynced, []
        return groups

    def put_back_unsynced(self, groups: list[Group]) -> None:
        """The sync that should have covered these was refused: the next one covers them."""
        self._unsynced[:0] = groups

    @property
    def wants_sync(self) -> bool:
        """Whether somebody is waiting for a sync that has not started."""
        return bool(self._unsynced)

    def synced(self, groups: list[Group]) -> None:
        """Answer the callers who waited for durability."""
        for group in groups:
            if self.is_fsync:
                self._finish(group)
            if group.durable_waiters:
                self._spawner.answer(group.durable_waiters)

    def fail(self, error: BaseException, covered: Sequence[Group] = ()) -> None:
        """Enter ``FAILED``: nothing more is written, and everybody who waits gets an error.

        Args:
            error: the reason; becomes the cause of the callers' errors.
            covered: groups of the sync that has failed. Their outcome is unknown.
        """
        failure = self.status_error
        if failure is None or self.status < READ_ONLY:
            failure = CommitUnknownError(f"shard {self.shard}: {error}")
            failure.__cause__ = error
            self.enter(FAILED, failure)
        self._cancel_retry()
        attempted = [*covered, *self.take_unsynced()]
        if self._pending and self._pending[0].sealed:
            attempted.append(self._pending.popleft())
        text = f"{failure}: {UNKNOWN}; retry with the same dedup key"
        fail_waiters(attempted, CommitUnknownError, text, failure)
        fail_waiters(self._pending, StoragePoisonedError, f"{failure}: {NOTHING}", failure)
        self._pending.clear()
        self._open = None
        self.waiting = 0
        self.submit_line.admit_all()  # their next begin() raises
        self._syncer.fail_waiters(failure)
        self._on_writes_end()

    # -- closing ---------------------------------------------------------------------------

    def limit_refusals(self) -> None:
        """Give a store that refuses writes up after ``CLOSE_STALLED_S_MAX`` from now on.

        Called for all shards before the first is drained: their waits are one, not one a shard.
        """
        self._retry_left_s = min(self._retry_left_s, CLOSE_STALLED_S_MAX)

    def drain(self) -> Coroutine[Any, Any, None]:
        """Commit and sync what is queued, within bounds, then close; see ``shutdown``."""
        self.limit_refusals()
        return drain(self, self._syncer)

    def _abandon(self) -> None:
        """Fail those who wait for a store that refuses writes to the last. Nothing was applied."""
        self._cancel_retry()
        self.is_abandoned = True
        text = f"closed while the store refused writes: {self.refused_write}"
        fail_waiters(self._pending, ClosedError, text)
        self._pending.clear()
        self._open = None
        self._note_accepted()  # a last sync is tried, whatever becomes of it
        self.waiting = 0
