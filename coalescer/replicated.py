"""The commit loop of a shard whose batches go through a replicated log.

Submissions are not merged (the replication layer does that): each group has one, and none is
committed at once. A group is sealed and *proposed* at the end of its tick, stays in the overlay
while the log has it, and is written, with ``m/applied``, when its entry comes back committed.

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
   still commit it, ``CommitUnknownError``. An answer that arrives in the very turn in which
   leadership ended still counts, so a refused burst is not reported as unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ..engine.records.keyspace import APPLIED, OPEN
from ..engine.records.rows import Applied, decode_applied, encode_applied, encode_open
from ..engine.runtime.event_loop import Future, Spawner
from ..engine.store.port import Store
from ..errors import (
    ClosedError,
    CommitUnknownError,
    InvariantError,
    LodeqError,
    NotLeaderError,
    StorageFullError,
    StoreStalledError,
)
from ..replication.port import Entry, Replicator
from .commit_loop import Coalescer, SeqSource, TickWork
from .group import Group
from .position import NUMBER_BITS, Position
from .shard_status import CLOSED, ELECTED, FOLLOWING, SERVING, STALLED
from .sync import Syncer

__all__ = ["ReplicatedCoalescer"]

TICK_PROPOSALS_MAX = 256
CLOSE_PROPOSED_S_MAX = 10.0


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
        submit_queue_max: int,
        tick_work: TickWork | None,
        on_writes_end: Callable[[], None],
        replicator: Replicator,
        on_entry: Callable[[Entry], None],
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
            commit_batch_max=1,
            submit_queue_max=submit_queue_max,
            tick_work=tick_work,
            on_writes_end=on_writes_end,
        )
        self._replicator = replicator
        self._on_entry = on_entry  # an entry of another leader was applied
        self._on_deposed = on_deposed  # nothing is pending any more, and memory is to go
        raw = store.get(APPLIED)
        self.applied = Applied() if raw is None else decode_applied(raw)
        self._taken = Position(shard, self.applied, first_number - 1)  # … and what waits below
        self._held: deque[Entry] = deque()  # committed, and the store has yet to take them
        self._proposed = 0  # so many of the pending groups are in the log
        # Proposed, unanswered when leadership ended. Two of them may have one number: leaders
        # whose first entry was not committed.
        self._orphans: list[Group] = []
        self.election: Group | None = None  # the first group of this leader; None: it follows
        self.enter(FOLLOWING, self.not_leader())

    # -- roles -------------------------------------------------------------------------

    def not_leader(self) -> NotLeaderError:
        """A new error that names the leader, as far as it is known."""
        leader = self._replicator.leader(self.shard)
        where = "its leader is not known: retry" if leader is None else f"ask {leader}, which does"
        return NotLeaderError(
            f"this replica does not lead shard {self.shard}: {where}", leader=leader
        )

    @property
    def taken_number(self) -> int:
        """The number of the last entry that is committed here, whether the store took it or not."""
        return self._taken.number

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
            raise self.refusal()
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
        for group in groups[proposed:]:
            self._answer(group, error)
        self._orphans += groups[kept:proposed]
        if self._orphans:
            self._spawner.call_soon(self._answer_orphans)
        self.submit_line.admit_all()  # their next begin() raises
        self._on_deposed()

    def _answer_orphans(self) -> None:
        orphans, self._orphans = self._orphans, []
        for group in orphans:
            self._answer(group, None)

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
        """As ``Coalescer.begin``; ``NotLeaderError``, with nothing changed, while it follows."""
        if self.is_following:
            raise self.not_leader()
        return super().begin(cost_bytes)

    def commit_now(self, group: Group) -> bool:
        """Return False: the log decides when a group is committed."""
        return False

    def commit_barrier(self, *, is_durable: bool = False) -> Future | None:
        """As ``Coalescer.commit_barrier``; a follower answers from what it has applied."""
        if not self.is_following:
            return super().commit_barrier(is_durable=is_durable)
        if self.is_fsync or is_durable:
            return self._syncer.commit_barrier(self.applied_number)
        return None

    # -- proposing ---------------------------------------------------------------------

    def _drain(self) -> None:
        self._write_held()
        for _ in range(TICK_PROPOSALS_MAX):
            if self.election is None or self._proposed >= len(self._pending):
                return
            if not self._replicator.is_leader(self.shard):
                self.depose()
                return
            group = self._pending[self._proposed]
            if not group.sealed:
                self._seal(group)
                if not group.sealed:
                    return
            self._proposed += 1
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

    def _done_well(self, group: Group, entry: Entry) -> None:
        if self._taken.has(entry):
            return
        try:
            if entry.commit_seq != group.number:
                raise InvariantError(f"shard {self.shard}: done() with the entry of another batch")
            self._taken.advance(entry)
        except InvariantError as error:
            self.fail(error)
            return
        self._hold(entry)
        self._write_held()

    # -- applying ----------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Apply an entry that was not proposed here. See ``Replica.apply``."""
        if self.failure is not None:
            raise self.refusal()
        if self._taken.has(entry):
            return
        if self._held:
            raise self._busy()
        self._taken.advance(entry)
        first = self.election
        if first is not None and (self.takes_writes or entry.commit_seq >= first.number):
            # Someone else's entry where only ours could be: that is how a leader is deposed
            # whose own replication layer has not heard of it.
            self.depose()
        self._hold(entry)
        self._write_held()
        if self.failure is not None:
            raise self.refusal()

    def _busy(self) -> LodeqError:
        text = f"shard {self.shard}: an earlier entry waits for the store: {self.refused_write}"
        if isinstance(self.refused_write, StorageFullError):
            return StorageFullError(text)
        return StoreStalledError(text)

    def _hold(self, entry: Entry) -> None:
        """Queue ``entry``, and its group with ``m/applied``, behind what is committed already.

        Not only when it is written: a new leader may queue groups meanwhile, behind it.
        """
        pending, at = self._pending, len(self._held)
        if at == len(pending) or pending[at].number != entry.commit_seq:
            mine = [group for group in self._orphans if tuple(group.ops) == entry.ops]
            if mine:
                group = mine[0]
                self._orphans.remove(group)
            else:
                group = Group(entry.commit_seq)
                group.ops, group.sealed, group.submissions = list(entry.ops), True, 1
                group.bytes = sum(len(key) + len(value or b"") for key, value in entry.ops)
                self.waiting += 1
            pending.insert(at, group)
            self._proposed += 1
        pending[at].ops.append((APPLIED, encode_applied(Applied(entry.term, entry.index))))
        self._held.append(entry)

    def _write_held(self) -> None:
        """Write what is committed, in order, as far as the store takes it."""
        while self._held and self.failure is None and self._retry is None:
            entry, first = self._held[0], self.election
            if not self._commit(self._pending[0]):
                break  # refused for now, tried again; or failed, and everybody has an answer
            self._held.popleft()
            self._proposed -= 1
            self.applied = Applied(entry.term, entry.index)
            if first is None or entry.commit_seq < first.number:
                self._on_entry(entry)
        if self._unsynced:
            self._syncer.kick()

    # -- failing, closing --------------------------------------------------------------

    def fail(self, error: BaseException, covered: Sequence[Group] = ()) -> None:
        """As ``Coalescer.fail``; the outcome of what the log has is unknown as well."""
        self.election = None
        attempted = [*covered, *self._orphans]
        attempted += [self._pending.popleft() for _ in range(self._proposed)]
        self._orphans.clear()
        self._held.clear()
        self._proposed = 0
        super().fail(error, attempted)

    def _abandon(self) -> None:
        for _ in range(self._proposed):  # committed, or the log may still do it
            self._answer(self._pending.popleft(), None)
        self._held.clear()
        self._proposed = 0
        super()._abandon()

    async def drain(self) -> None:
        """Wait for what is proposed, ``CLOSE_PROPOSED_S_MAX`` at most; then sync and stop."""
        timer = self._spawner.call_later(CLOSE_PROPOSED_S_MAX, self.depose)
        try:
            await super().drain()
        finally:
            timer.cancel()
        if self.failure is None:
            await self._syncer.finish()
        self._answer_orphans()
        for group in self._pending:  # committed, and refused by the store to the last
            self._answer(group, None)
        self._pending.clear()
        self._held.clear()
        self._cancel_retry()
        if self.failure is None:
            self.enter(CLOSED, ClosedError("the engine is closed"))
        self.election = None
