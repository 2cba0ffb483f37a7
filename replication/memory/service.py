"""The state of a log service in memory, and what each request does to it, at one moment.

Every change that others may ask about raises the revision, as in etcd: a term is the revision at
which its leader came, so terms grow and never come back.
"""

from __future__ import annotations

from bisect import bisect_right
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..port import (
    PLACEMENTS,
    Change,
    Checkpoint,
    CompactedError,
    Departure,
    FencedError,
    Genesis,
    LogSpace,
    LogUnavailableError,
    Member,
    NameTakenError,
    Placement,
    SessionLostError,
    ShardState,
    Term,
    add_change,
)

__all__ = ["LogService", "Stored", "Tries"]

MEMBERS = -1  # what a hint about members has for its shard


class Stored(NamedTuple):
    """A record as it lies there: its bytes, or a head and the fragments."""

    last: int
    raw: bytes
    fragments: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self.raw) + sum(map(len, self.fragments))


class Tries(NamedTuple):
    """One try of an append, or of one fragment of it."""

    shard: int
    term: int
    first: int
    last: int
    nonce: bytes


class _Leader(NamedTuple):
    session: int
    node: str
    term: int


@dataclass(slots=True)
class _Session:
    node: str
    owner: int  # the connection that has it
    until: float


@dataclass(slots=True)
class _Shard:
    leader: _Leader | None = None
    tail: int = 0
    floor: int = 1
    fenced_until: int = 0
    records: dict[int, Stored] = field(default_factory=dict)
    firsts: list[int] = field(default_factory=list)
    fragments: dict[tuple[int, int, bytes, int], bytes] = field(default_factory=dict)


@dataclass(slots=True)
class LogService:
    """Everything the service keeps. Copies of it are its snapshots.

    Attributes:
        id: tells one service from another.
        ttl_s: how long a session lasts without a renewal.
        quota_bytes: how much of records it takes; what was truncated counts until ``compact``.
        is_full: the quota was reached: no write is taken.
        revision: grows with every change.
        changed: shards that have changed since the hints were sent, ``MEMBERS`` for members; with
            the index of the last entry where entries were added and nothing else happened, or 0.
    """

    ttl_s: float
    quota_bytes: int
    id: int = 1
    is_full: bool = False
    revision: int = 1
    genesis: Genesis | None = None
    changed: dict[int, int] = field(default_factory=dict)
    _shards: list[_Shard] = field(default_factory=list)
    _sessions: dict[int, _Session] = field(default_factory=dict)
    _members: dict[str, tuple[int, Member]] = field(default_factory=dict)
    _checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    _placements: dict[int, Placement] = field(default_factory=dict)
    _departures: dict[str, Departure] = field(default_factory=dict)
    _balancer: int = 0  # its session; 0: nobody
    _used_bytes: int = 0  # of records and fragments
    _truncated_bytes: int = 0  # … of records that are gone, and not compacted
    _joined: dict[int, int] = field(default_factory=dict)  # by connection: its latest join

    def copy(self) -> LogService:
        """A snapshot."""
        return deepcopy(self)

    def _note(self, shard: int, last: int = 0) -> None:
        self.revision += 1
        add_change(self.changed, Change(shard, last))

    # -- genesis, members --------------------------------------------------------------

    def begin(self, genesis: Genesis) -> Genesis:
        """Write the genesis, unless there is one; returns the one that holds."""
        if self.genesis is None:
            self.genesis = genesis
            base = genesis.base
            self._shards = [_Shard(tail=base, floor=base + 1) for _ in range(genesis.shards)]
            self.revision += 1
        return self.genesis

    def join(self, member: Member, owner: int, attempt: int, now: float) -> int:
        """Begin a session of the connection ``owner``, in place of the one it had.

        Args:
            member: the node.
            owner: its connection.
            attempt: number of the request; a late copy of an earlier one is refused.
            now: seconds of the service's clock.
        """
        self._check_room()
        held = self._members.get(member.node)
        if held is not None and self._sessions[held[0]].owner != owner:
            raise NameTakenError(
                f"another live node is named {member.node!r}: give each node a name of its own; "
                "after a crash the name is free when its session has ended"
            )
        if attempt < self._joined.get(owner, 0):  # a late copy of an earlier request
            raise SessionLostError("the node has joined again since")
        self._joined[owner] = attempt
        for old in [id_ for id_, one in self._sessions.items() if one.owner == owner]:
            self.end(old)
        self._note(MEMBERS)
        session = self.revision
        self._sessions[session] = _Session(member.node, owner, now + self.ttl_s)
        self._members[member.node] = (session, member)
        return session

    def renew(self, session: int, now: float) -> None:
        """Put the end of a session off."""
        self._live(session).until = now + self.ttl_s

    def report(self, session: int, member: Member) -> None:
        """Replace what there is about a node."""
        self._check_room()
        self._live(session)
        self._members[member.node] = (session, member)
        self._note(MEMBERS)

    def end(self, session: int) -> None:
        """End a session, and with it the member and what it leads."""
        ended = self._sessions.pop(session, None)
        if ended is None:
            return
        del self._members[ended.node]
        self._note(MEMBERS)
        if self._balancer == session:
            self._balancer = 0
        for at, shard in enumerate(self._shards):
            if shard.leader is not None and shard.leader.session == session:
                shard.leader = None
                self._note(at)

    def end_due(self, now: float) -> None:
        """End the sessions that nobody has renewed."""
        for id_ in [id_ for id_, one in self._sessions.items() if one.until <= now]:
            self.end(id_)

    def next_end(self) -> float | None:
        """When the next session ends, unless it is renewed."""
        return min((one.until for one in self._sessions.values()), default=None)

    def sessions_of(self, node: str) -> list[int]:
        """Sessions of a node."""
        return [id_ for id_, one in self._sessions.items() if one.node == node]

    def members(self) -> list[Member]:
        """Live nodes, by name."""
        return [self._members[node][1] for node in sorted(self._members)]

    def _live(self, session: int) -> _Session:
        if session not in self._sessions:
            raise SessionLostError("the session of this node has ended: join again")
        return self._sessions[session]

    # -- leaders -----------------------------------------------------------------------

    def campaign(self, session: int, shard: int) -> Term | None:
        """Lead ``shard``, unless another session does."""
        self._check_room()
        node, one = self._live(session).node, self._shards[shard]
        if one.leader is None:
            self._note(shard)
            one.leader = _Leader(session, node, self.revision)
            for key in [key for key in one.fragments if key[0] > one.tail]:
                self._used_bytes -= len(one.fragments.pop(key))
        elif one.leader.session != session:
            return None
        return Term(one.leader.term, one.tail)

    def resign(self, node: str, shard: int, term: int) -> None:
        """Stop leading, if it is still the same term of ``node``."""
        one = self._shards[shard]
        if one.leader is not None and (one.leader.node, one.leader.term) == (node, term):
            one.leader = None
            self._note(shard)

    def depose(self, shard: int, term: int, fenced_until: int) -> bool:
        """End a term of somebody else."""
        self._check_room()
        one = self._shards[shard]
        if one.leader is None or one.leader.term != term:
            return False
        one.leader, one.fenced_until = None, max(one.fenced_until, fenced_until)
        self._note(shard)
        return True

    def state(self, shard: int) -> ShardState:
        """A shard as it is now."""
        one = self._shards[shard]
        leader = one.leader
        return ShardState(
            shard,
            None if leader is None else leader.node,
            0 if leader is None else leader.term,
            one.tail,
            one.floor,
            one.fenced_until,
        )

    def states(self) -> list[ShardState]:
        """All shards as they are now."""
        return [self.state(shard) for shard in range(len(self._shards))]

    # -- records -----------------------------------------------------------------------

    def put_fragment(self, tries: Tries, number: int, raw: bytes) -> None:
        """Store one fragment, if a record of its leader may be stored there."""
        if not self._may_append(tries):
            self._refuse(tries, None)
            return
        self._check_room(len(raw))
        key = (tries.first, tries.term, tries.nonce, number)
        fragments = self._shards[tries.shard].fragments
        self._used_bytes += len(raw) - len(fragments.get(key, b""))
        fragments[key] = raw

    def append(self, tries: Tries, raw: bytes, fragments: int) -> None:
        """Store a record, or the head of ``fragments`` stored before, and move the tail."""
        shard = self._shards[tries.shard]
        if not self._may_append(tries):
            self._refuse(tries, raw)
            return
        self._check_room(len(raw))
        keys = [(tries.first, tries.term, tries.nonce, n) for n in range(fragments)]
        parts = tuple(shard.fragments.pop(key) for key in keys)
        shard.records[tries.first] = Stored(tries.last, raw, parts)
        self._used_bytes += len(raw)
        shard.firsts.append(tries.first)
        shard.tail = tries.last
        self._note(tries.shard, tries.last)

    def _may_append(self, tries: Tries) -> bool:
        shard = self._shards[tries.shard]
        leader = shard.leader
        return leader is not None and (leader.term, shard.tail) == (tries.term, tries.first - 1)

    def _refuse(self, tries: Tries, raw: bytes | None) -> None:
        """Raise, unless an earlier try has stored the same record."""
        shard = self._shards[tries.shard]
        if tries.first < shard.floor:
            raise LogUnavailableError(
                f"shard {tries.shard}: whether an append at {tries.first} took effect cannot be "
                "told any more: it has been truncated"
            )
        stored = shard.records.get(tries.first)
        if stored is None or stored.last != tries.last or (raw is not None and stored.raw != raw):
            raise FencedError(
                f"shard {tries.shard}: an append of term {tries.term} at {tries.first} did not "
                f"take effect: the log is at {shard.tail}, led by {shard.leader}"
            )

    def read(self, shard: int, after: int, bytes_max: int) -> list[Stored]:
        """Records with entries above ``after``: at least one, if there is one."""
        one = self._shards[shard]
        if after + 1 < one.floor:
            raise CompactedError(
                f"shard {shard}: entry {after + 1} is gone, the log begins at {one.floor}",
                floor=one.floor,
            )
        found: list[Stored] = []
        size = 0
        for first in one.firsts[max(0, bisect_right(one.firsts, after + 1) - 1) :]:
            stored = one.records[first]
            if stored.last <= after:
                continue
            size += stored.size
            if found and size > bytes_max:
                break
            found.append(stored)
        return found

    def truncate(self, shard: int, floor: int) -> None:
        """Remove records whose entries are all below ``floor``."""
        one = self._shards[shard]
        if floor <= one.floor:
            return
        self._check_room()
        one.floor = min(floor, one.tail + 1)
        kept = [first for first in one.firsts if one.records[first].last >= one.floor]
        gone = one.records.keys() - set(kept)
        size = sum(one.records[first].size for first in gone)
        one.records = {first: one.records[first] for first in kept}
        one.firsts = kept
        self._used_bytes -= size
        self._truncated_bytes += size
        self._note(shard)

    def damage(self, shard: int, index: int) -> None:
        """Change a byte of the record that holds the entry ``index``."""
        one = self._shards[shard]
        first = one.firsts[bisect_right(one.firsts, index) - 1]
        stored = one.records[first]
        raw = bytearray(stored.raw)
        raw[-1] ^= 1
        one.records[first] = stored._replace(raw=bytes(raw))

    def fragments(self, shard: int) -> int:
        """How many fragments there are that belong to no record."""
        return len(self._shards[shard].fragments)

    # -- space -------------------------------------------------------------------------

    def space(self) -> LogSpace:
        """How much of the quota is used."""
        used = self._used_bytes + self._truncated_bytes
        return LogSpace(used, used, self.quota_bytes, self.is_full)

    def compact(self) -> None:
        """Reuse what was truncated."""
        self._truncated_bytes = 0

    def _check_room(self, more: int = 0) -> None:
        """Refuse a write of ``more`` bytes of records past the quota, and every one after it."""
        if more and not self.is_full:
            self.is_full = self.space().used_bytes + more > self.quota_bytes
        if self.is_full:
            raise LogUnavailableError("the log has used up its quota, and takes no writes")

    # -- checkpoints -------------------------------------------------------------------

    def publish(self, session: int, checkpoint: Checkpoint) -> None:
        """Keep the last checkpoint of a node."""
        self._check_room()
        self._live(session)
        self._checkpoints[checkpoint.node] = checkpoint
        self._note(MEMBERS)

    def checkpoints(self) -> list[Checkpoint]:
        """The newest first."""
        return sorted(self._checkpoints.values(), key=lambda one: -one.created_ms)

    # -- placements --------------------------------------------------------------------

    def placements(self) -> list[Placement]:
        """Those that are there, by shard."""
        return [self._placements[shard] for shard in sorted(self._placements)]

    def become_balancer(self, session: int) -> bool:
        """Be the balancer, unless another session is."""
        self._live(session)
        if not self._balancer:
            self._check_room()
            self._balancer = session
            self._note(MEMBERS)
        return self._balancer == session

    def place(self, session: int, placement: Placement, *, is_wish: bool) -> bool:
        """Replace a placement of the version that is given."""
        self._check_room()
        if session not in self._sessions or not (is_wish or self._balancer == session):
            raise FencedError("this session may not change placements: another one is the balancer")
        old = self._placements.get(placement.shard)
        if placement.version != (0 if old is None else old.version):
            return old is not None and replace(old, version=placement.version) == placement
        self._note(PLACEMENTS)
        self._placements[placement.shard] = replace(placement, version=self.revision)
        return True

    def departures(self) -> list[Departure]:
        """By name of the node."""
        return [self._departures[node] for node in sorted(self._departures)]

    def depart(self, departure: Departure) -> None:
        """Say that a node is to have no copies."""
        self._check_room()
        self._departures[departure.node] = departure
        self._note(PLACEMENTS)

    def stay(self, node: str) -> None:
        """Take that back."""
        if self._departures.pop(node, None) is not None:
            self._note(PLACEMENTS)

    def forget(self, node: str) -> None:
        """Remove what there is of a node."""
        self.stay(node)
        if self._checkpoints.pop(node, None) is not None:
            self._note(MEMBERS)
