"""The commit loop of a shard whose batches go through a replicated log.

A group is sealed and *proposed* at the end of its tick, stays in the overlay while the log has it,
and is written, with ``m/applied``, when its entry comes back committed. While one is on the way the
next stays open, however many ticks that takes: a round trip is what submissions are merged over,
as over an fsync elsewhere. The answer has it sealed and proposed, once most of those whom it woke
are in it (see ``linger``). A group that is full is proposed at once, behind what is on the way;
none is committed in the call that filled it.

Three roles (see ``shard_status``):

- *following*: the shard takes no writes, so claims, reaper and unkeyed enqueues pass it over as
  they would one that has failed. Entries are applied as they come, and synced.
- *elected*: the first entry of the new leader, its incarnation, is on its way, then memory is
  being built. Nobody but the builder may submit (``loading``).
- *serving*, or *stalled*: as any other shard.

Invariants, beside those of ``commit_loop``:

1. Entries are taken in the order of their index, each once; term and index in the store are those
   of the last entry whose rows are there. An entry the store refuses for now waits at the head.
2. A group is proposed only while this replica leads, and after every earlier group. When
   leadership ends, everything not yet committed leaves the overlay at once: memory that ran ahead
   of the rows is dropped with it, and no caller waits for the new leader.
3. A caller's answer is true: applied; never proposed (``NotLeaderError``); or, where the log may
   still commit it, ``CommitUnknownError``. An answer that arrives within ``definite_s`` of the
   end of leadership still counts, at least in the very turn: a refused burst is not unknown.

A replica has rows of its own (``local_rows``): committed groups are rewritten, in order, as soon as
they are committed, and local groups stand in line with them. A group with payloads in files waits
for their sync in both modes: nobody repairs on a replica what a power cut took, and the log does
not bring again what its rows say they have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice

from ..engine.records.keyspace import APPLIED, OPEN
from ..engine.records.rows import Applied, decode_applied, encode_applied, encode_open
from ..engine.runtime.clock import TimerHandle
from ..engine.runtime.event_loop import Future, Spawner
from ..engine.store.port import Op, Store, ops_bytes
from ..errors import (
    ClosedError,
    CommitUnknownError,
    InvariantError,
    LimitError,
    LodeqError,
    NotLeaderError,
    StorageFullError,
    StoreStalledError,
)
from .commit_loop import GROUP_BYTES_MAX, Coalescer, SeqSource, TickWork
from .fsync import Syncer
from .group import Group
from .linger import WAIT_BYTES_MAX, Linger
from .local_rows import EntryRewriter, event_rows, without_events
from .position import NUMBER_BITS, Position
from .replicator import Entry, KnowsWhy, Replicator, submission_bytes_max
from .shard_status import CLOSED, ELECTED, FOLLOWING, SERVING, STALLED

__all__ = ["ReplicatedCoalescer"]

TICK_PROPOSALS_MAX = 256
CLOSE_PROPOSED_S_MAX = 10.0
HELD_BYTES_MAX = 16 << 20  # committed, and waiting for a sync of their payloads


class ReplicatedCoalescer(Coalescer):
    """The commit loop of one replica's shard; it starts as a follower."""

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
        commit_batch_max: int,
        submit_queue_max: int,
        tick_work: TickWork | None,
        on_writes_end: Callable[[], None],
        replicator: Replicator,
        mono: Callable[[], float],
        on_rows: Callable[[Sequence[Op]], None],
        on_deposed: Callable[[], None],
    ) -> None:
        super().__init__(
            store,
            spawner,
            shard=shard,
            first_number=first_number,
            seq_source=seq_source,
            syncer=syncer,
            is_fsync=is_fsync,
            commit_batch_max=commit_batch_max,
            submit_queue_max=submit_queue_max,
            tick_work=tick_work,
            on_writes_end=on_writes_end,
        )
        self._replicator = replicator
        self._knows_why = replicator if isinstance(replicator, KnowsWhy) else None
        self.submission_bytes_max = submission_bytes_max(replicator)
        self.group_bytes_max = min(GROUP_BYTES_MAX, self.submission_bytes_max)
        self._on_rows = on_rows  # rows of entries of another leader were applied
        self._on_deposed = on_deposed  # nothing is pending any more, and memory is to go
        raw = store.get(APPLIED)
        self.applied = Applied() if raw is None else decode_applied(raw)
        self._durable = self.applied.index  # an open syncs what it finds
        self._unsynced_entries: deque[tuple[int, int]] = deque()  # (commit, index), applied since
        self._is_sync_due = False  # later in this turn of the loop
        self._taken = Position(shard, self.applied, first_number - 1)  # … and what waits below
        # Committed, and the store has yet to take them: what each of the first pending groups is.
        # An empty one is a local group.
        self._held: deque[Sequence[Entry]] = deque()
        self.rewriter: EntryRewriter | None = None  # once there are body files
        self._rewritten = 0  # so many of them have been rewritten
        self._proposed = 0  # so many of the pending groups are in the log
        self._linger = Linger(mono)
        self._linger_timer: TimerHandle | None = None  # set: what is queued waits for more
        # Proposed, unanswered when leadership ended. Two of them may have one number: leaders
        # whose first entry was not committed.
        self._orphans: list[Group] = []
        self._closer: Future | None = None  # of a close that waits for the last orphan
        self.election: Group | None = None  # the first group of this leader; None: it follows
        self.closed_error: LodeqError = ClosedError("the engine is closed")  # when it is drained
        self.enter(FOLLOWING, self.not_leader())

    # -- roles -------------------------------------------------------------------------

    def not_leader(self) -> NotLeaderError:
        """A new error that names the leader, as far as it is known."""
        leader = self._replicator.leader(self.shard)
        if self._knows_why is not None:
            why = self._knows_why.why_not(self.shard)
            if why is not None:
                return NotLeaderError(f"shard {self.shard} is not led here: {why}", leader=leader)
        where = "its leader is not known: retry" if leader is None else f"ask {leader}, which does"
        return NotLeaderError(
            f"this replica does not lead shard {self.shard}: {where}", leader=leader
        )

    def refusal(self) -> LodeqError:
        """As ``Coalescer.refusal``; who leads, and why this replica does not, is asked anew."""
        return self.not_leader() if self.is_given_up else super().refusal()

    def breakdown(self) -> LodeqError:
        """A new error that says what has failed here, whoever leads."""
        return super().refusal()

    @property
    def is_given_up(self) -> bool:
        """Whether another replica is to lead: it follows, or has failed and leads no more."""
        has_failed = self.failure is not None
        return self.is_following or (has_failed and not self._replicator.is_leader(self.shard))

    def check_absence(self) -> None:
        """As ``Coalescer.check_absence``: a replica that follows may be behind."""
        if self.is_given_up:
            raise self.not_leader()

    @property
    def taken_number(self) -> int:
        """The number of the last entry that is committed here, whether the store took it or not."""
        return self._taken.number

    @property
    def durable(self) -> int:
        """Index of the last entry whose rows a sync has covered."""
        unsynced, number = self._unsynced_entries, self._syncer.durable_number
        while unsynced and unsynced[0][0] <= number:
            self._durable = unsynced.popleft()[1]
        return self._durable

    def elect(self, incarnation: int) -> Future:
        """Begin to lead: propose the first entry. Returns a future for its being applied.

        Raises:
            InvariantError: it leads already, or writes nothing any more.
        """
        self.enter(ELECTED, self.status_error)
        self._next_number = incarnation << NUMBER_BITS | 1
        with self.loading():
            self.election = group = self.begin()
            group.ops.append((OPEN, encode_open(incarnation)))
            return self.wait(group)

    def check_election(self, election: Group | None) -> None:
        """Raise unless ``election`` is still the current one."""
        if self.failure is not None:
            raise self.breakdown()
        if self.election is None or self.election is not election:
            raise self.not_leader()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Let the builder of memory submit, without an ``await`` inside; others stay shut out."""
        before, error = self.status, self.status_error
        self.status, self.status_error = SERVING, None  # no transition: nobody else runs meanwhile
        try:
            yield
        finally:
            if self.takes_writes:
                self.status, self.status_error = before, error

    def serve(self) -> None:
        """Take submissions from everybody: memory is built."""
        self.enter(SERVING if self.refused_write is None else STALLED)

    def depose(self) -> None:
        """Stop leading: drop what is queued, and answer everybody who waits."""
        if self.failure is not None or self.election is None:
            return
        self.election = None
        error = self.not_leader()
        self.enter(FOLLOWING, error)
        groups, kept, proposed = list(self._pending), len(self._held), self._proposed
        self._pending.clear()
        self._pending.extend(groups[:kept])  # committed: only the store has yet to take them
        self._proposed = kept
        self._open = None
        self._end_linger()
        for group in groups[proposed:]:
            self._answer(group, error)
        self._adopt(groups[kept:proposed])
        self.submit_line.admit_all()  # their next begin() raises
        self._on_deposed()

    def _adopt(self, orphans: list[Group]) -> None:
        """Wait for the log's answers to these for ``definite_s`` seconds."""
        if not orphans:
            return
        self._orphans += orphans
        give_up, wait_s = partial(self._answer_orphans, orphans), self._replicator.definite_s
        if wait_s > 0:
            self._spawner.call_later(wait_s, give_up)
        else:
            self._spawner.call_soon(give_up)

    def _answer_orphans(self, orphans: Sequence[Group]) -> None:
        """Nobody knows: the log has had its time."""
        for group in [one for one in orphans if one in self._orphans]:
            self._orphans.remove(group)
            self._answer(group, None)
        self._wake_closer()

    def _wake_closer(self) -> None:
        closer = self._closer
        if closer is not None and not self._orphans and not closer.done():
            closer.set_result(None)

    def _answer(self, group: Group, error: NotLeaderError | None) -> None:
        """Answer a group's callers: with ``error`` it was never written, else nobody knows."""
        self.waiting -= group.submissions
        if self.submit_line.futures:  # of callers who came while leadership ended
            self._admit()
        for future, _ in (*group.waiters, *group.durable_waiters):
            if future.done():
                continue
            if error is not None:
                future.set_exception(NotLeaderError(str(error), leader=error.leader))
            else:
                future.set_exception(
                    CommitUnknownError(
                        f"shard {self.shard}: leadership was lost, or the engine closed, while "
                        "the log had this commit; it may still happen: retry with the same dedup "
                        "key at the leader"
                    )
                )

    # -- submitting --------------------------------------------------------------------

    def begin(self, cost_bytes: int = 512) -> Group:
        """As ``Coalescer.begin``; with nothing changed, ``NotLeaderError`` while it follows.

        Also ``LimitError`` for a submission that the log would not take.
        """
        if cost_bytes > self.submission_bytes_max and not self.is_following:
            raise LimitError(
                f"about {cost_bytes:,} bytes in one atomic batch, and this store's log takes "
                f"{self.submission_bytes_max:,}: split the call, or store large values elsewhere"
            )
        linger = self._linger
        came = linger.came + 1
        group = super().begin(cost_bytes)  # which calls this again where it has filled one
        linger.came = came
        if not self._is_scheduled and (
            self._is_full(group)
            if self._linger_timer is None
            else linger.came >= linger.goal or group.bytes > WAIT_BYTES_MAX
        ):
            self.poke()
        return group

    def _is_full(self, group: Group) -> bool:
        return group.submissions >= self.commit_batch_max or group.bytes > self.group_bytes_max

    def commit_now(self, group: Group) -> bool:
        """Return False: the log decides when a group is committed."""
        return False

    @property
    def has_session(self) -> bool:
        """See ``Replicator.holds_session``."""
        return self._replicator.holds_session(self.shard)

    def check_session(self) -> None:
        """Raise ``NotLeaderError`` if another replica may lead the shard without our knowing."""
        if self.takes_writes and not self._replicator.holds_session(self.shard):
            raise self.session_over()

    def session_over(self) -> NotLeaderError:
        """A new error: this replica leads as far as it knows, and that is not enough."""
        return NotLeaderError(
            f"nobody here knows who leads shard {self.shard}: the session with its log is not "
            "renewed; retry, or ask another replica"
        )

    def commit_barrier(self, *, is_durable: bool = False, is_local: bool = False) -> Future | None:
        """As ``Coalescer.commit_barrier``; a follower answers from what it has applied.

        Raises:
            NotLeaderError: another replica may lead, and nothing is waited for that proves that it
                does not. Only a group that is yet to be proposed does: its entry comes after
                everything the caller has read.
        """
        if not self.is_following:
            if not is_local and len(self._pending) <= self._proposed:
                self.check_session()
            return super().commit_barrier(is_durable=is_durable)
        if self.is_fsync or is_durable:
            return self._syncer.commit_barrier(self.applied_number)
        return None

    # -- proposing ---------------------------------------------------------------------

    def seal_full(self, *, always: bool = False) -> None:
        """As ``Coalescer.seal_full``. The group may be an old one, with no tick ahead of it."""
        super().seal_full(always=always)
        if self._open is None and self._pending:
            self.poke()

    @property
    def _is_awaited(self) -> bool:
        """Whether a proposal is on the way: its answer has the next group proposed."""
        return self._proposed > len(self._held)

    def _finish(self, group: Group) -> None:
        has_callers = group.waiters or group.durable_waiters  # local groups and upkeep have none
        super()._finish(group)
        if has_callers and self.election is not None:
            self._linger.answered(group.submissions)

    def _lingers(self) -> bool:
        """Whether what is queued waits for callers who have just been answered."""
        if self._is_awaited or self._proposed >= len(self._pending) or self.election is None:
            return False
        wait_s = self._linger.wait_s()
        if not wait_s or self._queued_bytes() > WAIT_BYTES_MAX:
            self._end_linger()
            return False
        if self._linger_timer is None:
            self._linger_timer = self._spawner.call_later(wait_s, self._linger_over)
        return True

    def _queued_bytes(self) -> int:
        return sum([group.bytes for group in islice(self._pending, self._proposed, None)])

    def _linger_over(self) -> None:
        self._linger_timer = None
        self._linger.give_up()
        self.poke()

    def _end_linger(self) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None

    def _drain(self) -> None:
        self._write_held()
        if self._lingers():
            return
        has_left = False
        for _ in range(TICK_PROPOSALS_MAX):
            if self.election is None or self._proposed >= len(self._pending):
                return
            if not self._replicator.is_leader(self.shard):
                self.depose()
                return
            group = self._pending[self._proposed]
            if not group.sealed:
                if self._is_awaited and not self._is_full(group):
                    return
                self._seal(group)
                if not group.sealed:
                    return
            if self.rewriter is not None:
                self.rewriter.check_proposal(group.ops)
            self._proposed += 1
            if not has_left:
                has_left = True
                self._linger.left()
            try:
                self._replicator.propose(
                    self.shard, group.number, tuple(group.ops), partial(self._done, group)
                )
            except Exception as error:  # noqa: BLE001 - whatever it was, it is the answer
                self._done(group, error)
        self.poke()

    def _done(self, group: Group, outcome: Entry | BaseException) -> None:
        if self.failure is not None:
            return  # everybody has an answer
        if isinstance(outcome, Entry):
            self._done_well(group, outcome)
        else:
            if group in self._pending:
                self.depose()
            if group in self._orphans:
                self._orphans.remove(group)
                is_refused = isinstance(outcome, NotLeaderError)
                self._answer(group, outcome if is_refused else None)  # type: ignore[arg-type]
                self._wake_closer()

    def _done_well(self, group: Group, entry: Entry) -> None:
        if self._taken.has(entry):
            return
        self._linger.entered()
        try:
            if entry.commit_seq != group.number:
                raise InvariantError(f"shard {self.shard}: done() with the entry of another batch")
            self._taken.advance(entry)
        except InvariantError as error:
            self.fail(error)
            return
        self._hold((entry,))
        self._write_held()
        if self._proposed < len(self._pending):
            self.poke()

    # -- applying ----------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Apply an entry that was not proposed here. See ``Replica.apply``."""
        self.apply_many((entry,))

    def apply_many(self, entries: Sequence[Entry]) -> None:
        """Apply entries that were not proposed here, in one write. See ``Replica.apply_many``."""
        if self.failure is not None:
            raise self.breakdown()
        fresh = [entry for entry in entries if not self._taken.has(entry)]
        if not fresh:
            return
        if self._held and (self._retry is not None or self._held_bytes() > HELD_BYTES_MAX):
            raise self._busy()
        taken = self._taken.copy()
        for entry in fresh:
            taken.advance(entry)
        self._taken = taken
        first = self.election
        if first is not None and (self.takes_writes or fresh[-1].commit_seq >= first.number):
            # Someone else's entry where only ours could be: that is how a leader is deposed
            # whose own replication layer has not heard of it.
            self.depose()
        self._hold(fresh)
        self._write_held()
        if self.failure is not None:
            raise self.breakdown()

    def _held_bytes(self) -> int:
        return sum([group.bytes for group in islice(self._pending, len(self._held))])

    def _busy(self) -> LodeqError:
        why = self.refused_write or "a copy is being made, or payloads are being synced"
        text = f"shard {self.shard}: an earlier entry waits for the store: {why}"
        if isinstance(self.refused_write, StorageFullError):
            return StorageFullError(text)
        return StoreStalledError(text)

    def _hold(self, entries: Sequence[Entry]) -> None:
        """Queue ``entries``, as one group with ``m/applied``, behind what is committed already.

        Not only when they are written: a new leader may queue groups meanwhile, behind them.
        """
        pending, at, last = self._pending, len(self._held), entries[-1]
        if at == len(pending) or pending[at].number != last.commit_seq:
            pending.insert(at, self._group_of(entries))
            self._proposed += 1
        pending[at].ops.append((APPLIED, encode_applied(Applied(last.term, last.index))))
        self._held.append(entries)
        self._rewrite_held()

    def _group_of(self, entries: Sequence[Entry]) -> Group:
        """A sealed group of all rows of ``entries``; whoever waits for one of them waits for it."""
        group = Group(entries[-1].commit_seq)
        group.sealed = True
        for entry in entries:
            mine = next((one for one in self._orphans if tuple(one.ops) == entry.ops), None)
            if mine is not None:
                self._orphans.remove(mine)
                self._wake_closer()
                group.submissions += mine.submissions
                group.waiters += mine.waiters
                group.durable_waiters += mine.durable_waiters
            group.ops += entry.ops if self.events is not None else without_events(entry.ops)
        if len(entries) > 1:  # of what they do to one row, the last counts
            group.ops = list(dict(group.ops).items())
        if not group.submissions:
            group.submissions = 1
            self.waiting += 1
        group.bytes = ops_bytes(group.ops)
        return group

    def _rewrite_held(self) -> bool:
        """Give all that is committed the form in which it is kept here; whether all of it has it.

        At once, not when it is written: what a local group moves must not be about to go.
        """
        if self.rewriter is None:
            return True
        if self._retry is not None and self._rewritten < len(self._held) - 1:
            return False  # an earlier one was refused, and is tried again in time
        for group in islice(self._pending, self._rewritten, len(self._held)):
            try:
                is_changed = self.rewriter.rewrite(group)
            except (StoreStalledError, StorageFullError) as error:
                if self._retry is None:
                    self._stall(error)
                return False
            except Exception as error:  # noqa: BLE001 - the disk has failed, or it is a bug
                self.fail(error)
                return False
            self._rewritten += 1
            if is_changed:
                self.overlay.forget()
        return True

    def _may_write(self, group: Group) -> bool:
        """Whether the payloads of the first group are durable; if not, it goes on once they are."""
        if not group.has_bodies or self.body_barrier is None:
            return True
        return self.body_barrier.admits(list(islice(self._pending, self._rewritten)))

    def _write_held(self) -> None:
        """Write what is committed, in order, as far as the store takes it."""
        while self._held and self.failure is None and self._retry is None:
            entries, first = self._held[0], self.election
            if not self._rewrite_held() or not self._may_write(self._pending[0]):
                break
            group = self._pending[0]
            if not self._commit(group):
                break  # refused for now, tried again; or failed, and everybody has an answer
            self._held.popleft()
            self._proposed -= 1
            if self.rewriter is not None:
                self.rewriter.written()
                self._rewritten -= 1
            if not entries:
                continue
            last = entries[-1]
            self.applied = Applied(last.term, last.index)
            self._unsynced_entries.append((last.commit_seq, last.index))
            if self.events is not None:
                self.events.applied(event_rows(group.ops))
            if first is None or last.commit_seq < first.number:
                self._on_rows(group.ops)
        if self._unsynced and not self._is_sync_due:
            self._is_sync_due = True
            self._spawner.call_soon(self._sync)

    def _sync(self) -> None:
        """One sync for all entries of a turn: who waited for one record comes back together."""
        self._is_sync_due = False
        if self._unsynced:
            self._syncer.kick()

    # -- local rows --------------------------------------------------------------------

    @property
    def takes_local_writes(self) -> bool:
        """Whether a local group may be made: leading or not, but behind what is committed."""
        if self.failure is not None:
            return False
        return self.rewriter is None or self._rewritten == len(self._held)

    def begin_local(self, cost_bytes: int = 512) -> Group:
        """As ``Coalescer.begin_local``: a group of its own, in no entry."""
        if self.failure is not None:
            raise self.refusal()
        return Group(0)

    def commit_local(self, group: Group) -> None:
        """As ``Coalescer.commit_local``: behind what is committed, before what is proposed."""
        at = len(self._held)
        group.number = self._pending[at - 1].number if at else self.applied_number
        group.sealed = True
        group.submissions = 1
        self.waiting += 1
        self._pending.insert(at, group)
        self._held.append(())
        self._proposed += 1
        self.overlay.forget()
        self._rewrite_held()
        self._write_held()

    def local_barrier(self) -> Future | None:
        """As ``Coalescer.local_barrier``: a sync once all that is committed is written."""
        group = self.begin_local()
        future = self.wait(group, is_durable=True)
        self.commit_local(group)
        return future

    def synced(self, groups: list[Group]) -> None:
        """As ``Coalescer.synced``. Entries that are durable are counted off."""
        super().synced(groups)
        _ = self.durable

    # -- failing, closing --------------------------------------------------------------

    def fail(self, error: BaseException, covered: Sequence[Group] = ()) -> None:
        """As ``Coalescer.fail``; the outcome of what the log has is unknown as well."""
        self.election = None
        self._end_linger()
        attempted = [*covered, *self._orphans]
        attempted += [self._pending.popleft() for _ in range(self._proposed)]
        self._orphans.clear()
        self._wake_closer()
        self._held.clear()
        self._proposed = self._rewritten = 0
        super().fail(error, attempted)

    def _abandon(self) -> None:
        for _ in range(self._proposed):  # committed, or the log may still do it
            self._answer(self._pending.popleft(), None)
        self._held.clear()
        self._proposed = self._rewritten = 0
        super()._abandon()

    async def _write_last(self) -> None:
        """Wait for payloads that are being synced, and write what waits for them."""
        if self.failure is not None or not self._held or self._retry is not None:
            return
        last = self.local_barrier()
        try:
            if last is not None:
                await last
        except LodeqError:
            pass  # failed, or abandoned: the log has it all

    async def drain(self) -> None:
        """Wait for what is proposed, ``CLOSE_PROPOSED_S_MAX`` at most; then sync and stop."""
        timer = self._spawner.call_later(CLOSE_PROPOSED_S_MAX, self.depose)
        try:
            await super().drain()
        finally:
            timer.cancel()
        await self._write_last()
        if self._orphans:
            self._closer = self._spawner.future()
            await self._closer
        if self.failure is None:
            await self._syncer.finish()
        for group in self._pending:  # committed, and refused by the store to the last
            self._answer(group, None)
        self._pending.clear()
        self._held.clear()
        self._rewritten = 0
        self._cancel_retry()
        if self.failure is None:
            self.enter(CLOSED, self.closed_error)
        self.election = None
