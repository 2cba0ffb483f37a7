"""One shard on one node: it follows the log, campaigns when nobody leads, and leads.

One task looks at the log when there is a hint, when the poll has seen something, and after a
failure; so at any time it either tails or leads, and never both. What ends leadership from outside
(the session, a refused append, a poll that sees another term) calls ``lose``, which never waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from ..coalescer.replicator import Done, Entry
from ..engine.store.port import Op, ops_bytes
from ..errors import (
    AccessDeniedError,
    BusyError,
    ClosedError,
    CommitUnknownError,
    CorruptionError,
    InvariantError,
    LodeqError,
    LogRolledBackError,
    NotLeaderError,
    RecordCorruptError,
    StorageError,
    StorageFullError,
    UsageError,
)
from .node import Node
from .port import CompactedError, LogUnavailableError, SessionLostError, ShardState, Term
from .proposals import Proposals
from .record import entries_of
from .truncation import LogBytes
from .waiting import Signal

__all__ = ["Role", "ShardReplica"]

STORE_RETRY_S = 0.1  # between two looks at whether a store that refused writes takes them again
STORE_TRY_S = 1.0  # at most, until the log is read for it once more
FOLLOW_S = 0.02  # between two reads of a follower: each brings all records that came meanwhile
STUCK_LOOKS = 3  # at a store that takes nothing, until its node does not lead
SEEN_SESSIONS = 2  # for so many lengths of one a leader that was seen may lead still
READ_BYTES_MAX = 8 << 20
APPLY_BYTES_MAX = 2 << 20  # in one write, for which the event loop stands still


class Role(Enum):
    """What this node is for the shard."""

    FOLLOWING = "following"
    ELECTED = "elected"  # its term has begun, and the engine builds memory
    LEADING = "leading"
    LEAVING = "leaving"  # it answers what is under way, and resigns
    STOPPED = "stopped"  # it neither follows nor leads: see ``problem``
    ABSENT = "absent"  # it has no copy, or is giving it up; it knows who leads


class ShardReplica:
    """One shard of one node."""

    def __init__(self, node: Node, shard: int) -> None:
        self.node = node
        self.shard = shard
        is_here = node.hosts(shard)
        self.role = Role.FOLLOWING if is_here else Role.ABSENT
        self.changes = 0  # of role: what was asked before the last one is old news
        self.delivered = node.replica.applied(shard).index if is_here else 0
        self._seen = ShardState(shard, None, 0, 0)
        self._seen_mono = 0.0
        self.behind_floor = 0  # the floor that this replica is behind; 0: it is not
        self.problem: str | None = None
        self.heard = 0  # the last entry that a hint has told of
        self._looks_soon = False  # at the log, without being woken
        self.wake = Signal(node.waiting)
        self.proposals = Proposals(node, shard, self._entered, self._append_failed)
        self.can_lead = True
        self.is_going = not is_here  # there is no copy to be counted on
        self.inherits_mono = 0.0  # before which it ends no lease that it inherits
        self.not_before = 0.0  # mono() before which it does not campaign
        self.log_bytes = LogBytes(node.options.behind_bytes_max)
        self._vacant_since: float | None = None
        self._held_term = 0  # a term to resign; 0: none
        self._failures = 0
        self._is_checked = False  # the log's history is this store's
        self._stuck_looks = 0
        self._applied_before = self.delivered
        self._denied: str | None = None  # the problem, while the log refuses this node
        self._refused: tuple[int, float] | None = None  # what was applied then, and mono()

    # -- what is asked from outside ----------------------------------------------------

    @property
    def seen(self) -> ShardState:
        """The log, as last seen."""
        return self._seen

    @seen.setter
    def seen(self, state: ShardState) -> None:
        self._seen, self._seen_mono = state, self.node.mono()

    @property
    def leader(self) -> str | None:
        """Who leads; None: nobody, or the log has said nothing for longer than a term lasts."""
        if self.holds_term:
            return self.node.name
        until = self._seen_mono + SEEN_SESSIONS * self.node.log.session_s
        return self._seen.leader if self.node.mono() < until else None

    @property
    def takes_proposals(self) -> bool:
        """Whether this node leads."""
        return self.role in (Role.ELECTED, Role.LEADING)

    @property
    def may_lead(self) -> bool:
        """Whether its store lets it."""
        if self.role is Role.STOPPED:
            return False
        return self.can_lead and self._stuck_looks < STUCK_LOOKS

    @property
    def holds_term(self) -> bool:
        """Whether a term of this node has not ended yet, as far as it knows."""
        return self.role in (Role.ELECTED, Role.LEADING, Role.LEAVING)

    def propose(self, commit_seq: int, ops: tuple[Op, ...], done: Done) -> None:
        """See ``Replicator.propose``."""
        if not self.takes_proposals:
            raise NotLeaderError(f"this node does not lead shard {self.shard}: retry")
        self.proposals.add(commit_seq, ops, done)

    def hear(self, last: int) -> None:
        """Take a hint: entries up to ``last`` were added; 0: look at everything."""
        if 0 < last <= self.delivered:
            return
        self.heard = max(self.heard, last)
        if not last or not self._looks_soon:
            self.wake.set()

    def see(self, state: ShardState, changes: int, delivered: int) -> None:
        """Take a state that was asked for when there were so many changes and entries delivered."""
        if self.role is Role.ABSENT:
            self.seen = state
        else:
            self._take(state, changes, delivered)
        if self.role in (Role.ABSENT, Role.STOPPED):
            if state.leader == self.node.name:  # won, and the answer was lost
                self.wake.set()
            return
        if not self.holds_term and (
            state.last > self.delivered or state.leader in (None, self.node.name)
        ):
            self.wake.set()

    def _take(self, state: ShardState, changes: int, delivered: int) -> None:
        self.seen = state
        if state.last < delivered:
            self.node.stop(
                LogRolledBackError(
                    f"shard {self.shard}: the log ends at entry {state.last}, and this replica has "
                    f"entry {delivered}: the log was restored from an older copy"
                )
            )
        elif self.holds_term and changes == self.changes and state.term != self.proposals.term:
            self.lose()

    def lose(self) -> None:
        """Lead no more, at once: the engine answers its callers, the term is to be resigned."""
        if not self.holds_term:
            return
        self._held_term = self.proposals.term
        self._enter(Role.FOLLOWING)
        try:
            self.node.replica.follow(self.shard)
        except ClosedError:
            pass
        self.proposals.end()
        self.wake.set()

    def session_lost(self) -> None:
        """The session is over, and all terms with it."""
        self.lose()
        self._held_term = 0
        self._vacant_since = None

    def begin(self) -> None:
        """Follow: the engine has a copy now."""
        self.delivered = self.node.replica.applied(self.shard).index
        self.behind_floor, self.problem, self.can_lead = 0, None, True
        self._stuck_looks, self._applied_before = 0, self.delivered
        self._refused = None
        self._is_checked = self.is_going = False
        self._enter(Role.FOLLOWING)
        self.wake.set()

    def leave(self) -> None:
        """Neither follow nor lead: the copy is to go."""
        self.lose()
        self.problem, self.is_going, self.behind_floor = None, True, 0
        self.can_lead, self._stuck_looks = True, 0  # what was wrong with it goes with it
        if self.role is not Role.ABSENT:
            self._enter(Role.ABSENT)

    def stop(self, problem: str) -> None:
        """Neither follow nor lead any more."""
        self.lose()
        if self.role is Role.STOPPED:
            return  # the first reason is the one to tell
        self.problem = problem
        if self.role is not Role.ABSENT:
            self._enter(Role.STOPPED)
            self.wake.set()

    def _enter(self, role: Role) -> None:
        self.role = role
        self.changes += 1
        self._vacant_since = None

    # -- the task ----------------------------------------------------------------------

    async def run(self) -> None:
        """Follow, campaign, lead, until the task is cancelled."""
        pause_s: float | None = 0.0
        while True:
            await self._wait(pause_s)
            try:
                pause_s = await self._turn()
                self._failures = 0
                self._let_in()
            except (LogUnavailableError, SessionLostError):
                pause_s = self._backoff()
            except (BusyError, StorageFullError):  # the store refuses writes for now
                pause_s = STORE_RETRY_S
            except CompactedError as error:
                self.behind_floor = 0 if self.role is Role.ABSENT else error.floor
                pause_s = self.node.options.poll_s
            except LogRolledBackError as error:
                self.node.stop(error)
                pause_s = None
            except ClosedError:
                return
            except (AccessDeniedError, UsageError) as error:  # until an operator puts it right
                denied = f"shard {self.shard}: the log refuses this node: {error}"
                if self.role is not Role.STOPPED:
                    self.problem = self._denied = denied
                pause_s = self._backoff()
            except RecordCorruptError as error:
                self.stop(
                    f"shard {self.shard}: a record of the log is damaged ({error}): this replica "
                    f"stays at entry {self.delivered}; restore a checkpoint that goes beyond it"
                )
                pause_s = None
            except LodeqError as error:  # the disk, or a history that is not this store's
                self.stop(f"shard {self.shard}: this replica takes no more entries: {error}")
                pause_s = None
            except Exception as error:
                self.stop(f"shard {self.shard}: a bug: {error!r}; please report it")
                raise

    def _let_in(self) -> None:
        if self._denied is not None and self.problem == self._denied:
            self.problem = None
        self._denied = None

    async def _wait(self, pause_s: float | None) -> None:
        """Wait for something to look at. Hints of entries do not cut a pause between reads short.

        Args:
            pause_s: what ``_turn`` returned.
        """
        is_behind = self.role is Role.FOLLOWING and self.heard > self.delivered
        if pause_s is None and is_behind:  # heard during the turn
            pause_s = FOLLOW_S
        self._looks_soon = pause_s == FOLLOW_S
        was_woken = await self.wake.wait(self._look_s() if self._looks_soon else pause_s)
        if self._looks_soon and not was_woken and self.heard <= self.delivered:
            self._looks_soon = False
            await self.wake.wait()
        self._looks_soon = True  # until the turn is over

    def _look_s(self) -> float:
        """Seconds to the next look of a follower: all shards of a node look at the same times.

        So that what they read can travel together. It is ``FOLLOW_S``, or half of it more or less.
        """
        now = self.node.mono()
        left_s = FOLLOW_S - now % FOLLOW_S
        return left_s if left_s >= FOLLOW_S / 2 else left_s + FOLLOW_S

    def _backoff(self) -> float:
        self._failures += 1
        options = self.node.options
        return min(options.retry_s_max, options.retry_s * 2.0 ** min(self._failures - 1, 10))

    async def _turn(self) -> float | None:
        """Look at the log once. Returns after how many seconds to look again; None: when woken."""
        node = self.node
        if self._held_term and node.has_session(self.shard):
            await node.log.resign(self.shard, self._held_term)
        self._held_term = 0
        if self.role in (Role.ABSENT, Role.STOPPED):
            changes, state = self.changes, await node.log.state(self.shard)
            if changes == self.changes:
                self.seen = state
                if state.leader == node.name and node.has_session(self.shard):
                    # Won, and the answer was lost.
                    await node.log.resign(self.shard, state.term)
            return None
        if self.role is not Role.FOLLOWING or self.proposals.is_sending:
            return None
        if not self._is_checked:
            await self._check_history()
            if self.role is not Role.FOLLOWING:
                return 0.0
        if self._is_refused():
            return STORE_RETRY_S
        if await self._read_on():
            return 0.0 if self.seen.leader is None else FOLLOW_S
        changes, delivered = self.changes, self.delivered
        state = await node.log.state(self.shard)
        self._take(state, changes, delivered)
        return await self._after(state)

    def _is_refused(self) -> bool:
        """Whether the store most likely refuses what is read: that would be read again."""
        if self._refused is None:
            return False
        applied, at = self._refused
        node = self.node
        if applied == node.replica.applied(self.shard).index and node.mono() < at + STORE_TRY_S:
            return True
        self._refused = None
        return False

    async def _after(self, state: ShardState) -> float | None:
        """Do what a state asks of a follower."""
        node = self.node
        if self.role is not Role.FOLLOWING:
            return None
        if state.leader == node.name and node.has_session(self.shard):
            # Won, and the answer was lost; or it was to be resigned, and that was lost.
            await node.log.resign(self.shard, state.term)
            return node.options.retry_s
        if state.leader is not None:
            self._vacant_since = None
            return None
        if state.last > self.delivered:
            return 0.0
        if not self.can_lead or not node.may_campaign(self.shard):
            self._vacant_since = None
            return node.options.poll_s
        if node.replica.applied(self.shard).index < self.delivered:  # its store refuses writes
            return node.options.poll_s
        now = node.mono()
        if self._vacant_since is None:
            self._vacant_since = now
        rank = node.members.rank(self.shard, node.suspects)
        if rank is None:  # it is not one of those whose copy counts
            return node.options.poll_s
        wait_s = self._vacant_since + node.options.rank_s * rank - now
        wait_s = max(wait_s, self.not_before - now)
        if wait_s > 0:
            return wait_s
        return await self._campaign()

    # -- following ---------------------------------------------------------------------

    async def _check_history(self) -> None:
        """Compare the last entry that was applied here with the log's."""
        applied, changes = self.node.replica.applied(self.shard), self.changes
        if applied.index:
            try:
                records = await self.node.log.read(self.shard, applied.index - 1, bytes_max=1)
            except CompactedError:
                records = []
                state = await self.node.log.state(self.shard)
                if state.floor == applied.index + 1:  # what is there begins behind it
                    self._is_checked = self.changes == changes
                    return
                raise
            if not records or records[0].term != applied.term:
                raise LogRolledBackError(
                    f"shard {self.shard}: entry {applied.index} of this replica, of term "
                    f"{applied.term}, is not in the log: the log is another one, or was restored "
                    "from an older copy"
                )
        self._is_checked = self.changes == changes

    async def _read_on(self) -> bool:
        """Deliver what the log has beyond what was delivered; whether there was anything."""
        is_any, changes = False, self.changes
        while True:
            heard = self.heard
            records = await self.node.log.read(
                self.shard, self.delivered, bytes_max=READ_BYTES_MAX, is_near=True
            )
            if self.changes != changes:
                return is_any
            self.behind_floor = 0
            if not records:
                if self.heard == heard:
                    self.heard = 0  # whatever that was, it is not there
                return is_any
            is_any = True
            entries = [
                entry
                for record in records
                for entry in entries_of(record)
                if entry.index > self.delivered
            ]
            total = 0
            for piece, size in _pieces(entries):
                self._deliver(piece)
                self.delivered = piece[-1].index
                self.log_bytes.add(self.delivered, size)
                total += size
                await self.node.waiting.spawner.checkpoint()
                if self.changes != changes:
                    return is_any
            if total < READ_BYTES_MAX // 2:
                return is_any  # a hint or the poll tells of more

    def _deliver(self, entries: Sequence[Entry]) -> None:
        replica = self.node.replica
        try:
            replica.apply_many(entries)
        except (BusyError, StorageFullError):
            self._refused = replica.applied(self.shard).index, self.node.mono()
            raise

    # -- leading -----------------------------------------------------------------------

    async def _campaign(self) -> float | None:
        node, changes = self.node, self.changes
        won = await node.log.campaign(self.shard)
        if won is None:
            return None
        self._held_term = won.term  # until it is known to serve: whatever happens, resign
        if node.is_closing or not node.has_session(self.shard) or self.changes != changes:
            return 0.0
        while self.delivered < won.last:
            is_any = await self._read_on()
            if self.changes != changes:
                return 0.0
            if not is_any:
                raise LogRolledBackError(
                    f"shard {self.shard}: the log has no entries behind {self.delivered}, although "
                    f"{won.last} was its last one"
                )
        await self._see_fence()
        if node.is_closing or not node.has_session(self.shard) or self._held_term != won.term:
            return 0.0
        return 0.0 if self.changes != changes else await self._lead(won)

    async def _see_fence(self) -> None:
        """Note until when what a deposed leader answered from memory can still arrive.

        The one who deposed it wrote a time of its own wall clock, which may differ.
        """
        node = self.node
        state = await node.log.state(self.shard)
        left_ms = state.fenced_until + node.options.skew_ms - node.waiting.clock.wall_us() // 1000
        is_fenced = state.fenced_until > 0 and left_ms > 0
        self.inherits_mono = node.mono() + left_ms / 1000 if is_fenced else 0.0

    async def _lead(self, won: Term) -> float | None:
        """Let the engine serve the shard."""
        self._held_term = 0
        self.proposals.begin(won.term, won.last)
        self._enter(Role.ELECTED)
        changes = self.changes
        try:
            await self.node.replica.lead(self.shard)
        except (NotLeaderError, CommitUnknownError):
            self.lose()
            return self._later()
        except RecordCorruptError:
            raise
        except CorruptionError as error:
            self.can_lead = False
            self.problem = f"shard {self.shard}: it cannot be led from here: {error}"
            self.lose()
            return 0.0
        except ClosedError:
            self.lose()
            raise
        except (StorageError, BusyError) as error:
            self.problem = f"shard {self.shard}: it could not be led: {error}"
            self.lose()
            return self._later()
        if self.changes == changes:
            self._enter(Role.LEADING)
            self.problem = None
        return 0.0 if self._held_term else None

    def _later(self) -> float:
        """Let others campaign first."""
        self.not_before = self.node.mono() + self._backoff() + self.node.options.rank_s
        return 0.0

    async def check_lead(self) -> None:
        """Give the shard up if the engine cannot serve it any more: its disk has failed."""
        changes = self.changes
        try:
            await self.node.replica.lead(self.shard)
        except (StorageError, CorruptionError, InvariantError) as error:
            self.can_lead = False
            self.problem = f"shard {self.shard}: it cannot be led from here: {error}"
            self.lose()
        except (NotLeaderError, CommitUnknownError):
            if self.changes == changes:  # else another term has begun meanwhile
                self.lose()

    def check_store(self) -> None:
        """Give the shard up while its store takes nothing of what the log has: its disk is full."""
        if self.role is Role.ABSENT:
            return
        applied = self.node.replica.applied(self.shard).index
        is_stuck = applied < self.delivered and applied == self._applied_before
        self._stuck_looks = self._stuck_looks + 1 if is_stuck else 0
        self._applied_before = applied
        stuck = (
            f"shard {self.shard}: the store takes no entries, so it cannot be led from here; "
            "is the disk full?"
        )
        if self._stuck_looks >= STUCK_LOOKS:
            self.lose()
            self.problem = self.problem or stuck
        elif not self._stuck_looks and self.problem == stuck:
            self.problem = None

    async def hand_over(self) -> None:
        """Stop leading so that another node can: answer what is under way, then resign."""
        if self.role is not Role.LEADING:
            return
        self._enter(Role.LEAVING)
        self.not_before = self.node.mono() + 1.0
        give_up = self.node.mono() + self.node.options.answer_s
        try:
            while not self.proposals.is_idle and self.node.mono() < give_up:
                await self.node.waiting.pause(0.01)
        finally:  # also of a caller who is cancelled: nobody else ends what has begun
            self.lose()

    def _entered(self, last: int, size: int) -> None:
        self.delivered = max(self.delivered, last)
        self.log_bytes.add(last, size)
        if not self.holds_term:  # it looked at nothing while this was under way
            self.wake.set()

    def _append_failed(self, failure: LodeqError) -> None:
        self.lose()
        self.wake.set()


def _pieces(entries: Sequence[Entry]) -> Iterator[tuple[list[Entry], int]]:
    """Consecutive entries in pieces that the event loop can stand still for, with their bytes."""
    piece: list[Entry] = []
    size = 0
    for entry in entries:
        piece.append(entry)
        size += ops_bytes(entry.ops)
        if size >= APPLY_BYTES_MAX:
            yield piece, size
            piece, size = [], 0
    if piece:
        yield piece, size
