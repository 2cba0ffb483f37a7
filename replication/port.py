"""The shared log: what a log service gives to the replicas of one store.

``SharedLog`` is one node's connection to it. Below are adapters (``memory``, ``etcd``), which pass
one conformance suite; above is ``replicator.LogReplicator``, which knows no particular service.

What the log service keeps for one *cluster* (all replicas of one store):

- the genesis, written once: how many shards there are, and a nonce that tells one cluster from
  another of the same name;
- a member for each live node, which goes when the node's session ends;
- for each shard its leader (which goes with the session of the node that leads), the index of its
  last entry, its records, and its floor: the first index that is still there;
- what checkpoints there are;
- where a node need not have every shard: which nodes have which (`placements`), who may change
  that, and which nodes are to be rid of theirs.

Promises of an adapter:

1. *Linearizable.* ``read`` and ``state`` see every append that was answered before they were
   called, but for a read that is content with less (``is_near``).
2. *Fenced.* An append takes effect only while its term leads its shard and no other record has
   come since; a term is taken by one campaign and never comes back.
3. *Once.* ``append`` is repeated by the adapter until it has an answer; the record's nonce tells
   whether an earlier try took effect. It returns (committed, once), or raises ``FencedError``
   (not committed, and never will be) or ``LogUnavailableError`` (unknown).
4. *Sessions.* Until ``session_until()`` no other node can have been elected in place of this
   one. It is counted from the sending of the last renewal that was answered, on a clock that goes
   on while the machine sleeps.
5. *Watching is a hint.* Changes may be repeated, merged or missed; who needs to know reads.

An adapter retries nothing but ``append`` and reads, and nobody above retries an append.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from ..errors import LodeqError, UsageError
from .record import LogRecord

__all__ = [
    "FORMAT",
    "NO_COPY",
    "PLACEMENTS",
    "Change",
    "Checkpoint",
    "CompactedError",
    "Departure",
    "FencedError",
    "Genesis",
    "LogSpace",
    "LogUnavailableError",
    "Member",
    "NameTakenError",
    "Placement",
    "Position",
    "SessionLostError",
    "ShardState",
    "SharedLog",
    "Term",
    "add_change",
    "check_node",
    "index_of",
]


NO_COPY = -1  # in place of an index: the node has no copy of that shard
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FORMAT: Final = 2  # of keys in the log; 1: the genesis has no base
PLACEMENTS = -2  # what a hint about placements has for its shard


def check_node(node: str) -> str:
    """A node's name; ``UsageError`` if it cannot be one."""
    if not isinstance(node, str) or _NODE.fullmatch(node) is None:
        raise UsageError(
            f"node name {node!r:.80} is not valid: use 1 to 64 of letters, digits, '.', '_', '-', "
            "starting with a letter or digit"
        )
    return node


def index_of(indexes: Sequence[int], shard: int) -> int:
    """The position of a shard among those of a member or a checkpoint; ``NO_COPY``: it has none."""
    return indexes[shard] if shard < len(indexes) else NO_COPY


class FencedError(LodeqError):
    """The append never took effect and never will: another term leads, or the session is over."""


class LogUnavailableError(LodeqError):
    """The log did not answer in time. What was under way may still take effect."""


class SessionLostError(LodeqError):
    """The node's session has ended: nothing may be answered from memory before it joins again."""


class NameTakenError(UsageError):
    """Another live node has this name, or it is this node's own session of before."""


class CompactedError(LodeqError):
    """What was asked for has been truncated: restore a checkpoint.

    Attributes:
        floor: the first index that is still there.
    """

    def __init__(self, message: str, *, floor: int) -> None:
        super().__init__(message)
        self.floor = floor


@dataclass(frozen=True, slots=True)
class Genesis:
    """What a cluster is: written once, by the first node.

    Attributes:
        cluster: its name.
        shards: 1 to 4,096; fixed.
        nonce: 16 bytes, drawn by the first node. A store remembers it.
        format: version of records and keys in the log, up to ``FORMAT``.
        level: the feature level that entries are written at.
        copies: nodes that have a copy of a shard; 0: every node has one of every shard.
        group, groups: which of the log groups this is, and how many there are; see ``groups``.
        base: index of the last entry that no shard's log ever had: what the store held from which
            the cluster was begun. 0: it began empty.
    """

    cluster: str
    shards: int
    nonce: bytes
    format: int = 1
    level: int = 1
    copies: int = 0
    group: int = 0
    groups: int = 1
    base: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A node that is there.

    Attributes:
        node: its name, unique in the cluster.
        url: where clients reach it; empty: nowhere.
        version: of its lodeq.
        zone: failure domain; replicas of a shard go to different ones.
        clock_ms: its wall clock when it said so.
        applied, durable: by shard, its positions when it said so; ``NO_COPY`` where it has none.
            While a copy is being made, ``durable`` is what the log has to be kept behind.
        is_drained: it is to lead nothing for now.
        suspects: nodes whose address refuses its connections.
        placed: the highest version of a placement that it had read. What it says of a copy is to be
            believed for placements up to that one.
        may_lead: its clock and its disk let it.
        began_ms: its wall clock when its process began: another one is another process.
    """

    node: str
    url: str = ""
    version: str = ""
    zone: str = ""
    clock_ms: int = 0
    applied: tuple[int, ...] = ()
    durable: tuple[int, ...] = ()
    is_drained: bool = False
    suspects: tuple[str, ...] = ()
    placed: int = 0
    may_lead: bool = True
    began_ms: int = 0


class Position(NamedTuple):
    """How far a log service was seen: for the durable note of a replica.

    Attributes:
        service_id: which service, of its own making (etcd's cluster id); 0: none seen yet.
        revision: the highest revision of an answer.
    """

    service_id: int
    revision: int


class Term(NamedTuple):
    """A campaign that was won: the term, and the index of the last entry before it."""

    term: int
    last: int


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard as the log has it.

    Attributes:
        shard: its index.
        leader: name of the node that leads it; None: nobody.
        term: of that leader; 0 without one.
        last: index of the last entry; the genesis's ``base`` before the first.
        floor: the first index still there; ``base`` + 1 before any truncation.
        fenced_until: wall clock in ms before which a new leader ends no inherited lease; 0: none.
    """

    shard: int
    leader: str | None
    term: int
    last: int
    floor: int = 1
    fenced_until: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A copy of a node's store from which another can start.

    Attributes:
        node: who has it.
        url: where it is read from.
        digest: of its manifest.
        applied: by shard, the index up to which it goes; ``NO_COPY``: it does not have that shard.
        created_ms: wall clock.
    """

    node: str
    url: str
    digest: str
    applied: tuple[int, ...]
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Which nodes have a copy of a shard.

    Attributes:
        shard: its index.
        copies: nodes that have one, or are to have one; the first that can is to lead.
        leaving: those of them that are to lose theirs, once there are enough others.
        version: the change that made it, by the log; 0: it is not there yet.
    """

    shard: int
    copies: tuple[str, ...]
    leaving: tuple[str, ...] = ()
    version: int = 0


@dataclass(frozen=True, slots=True)
class Departure:
    """A node that is to have no copies any more.

    Attributes:
        node: its name.
        is_dead: it will not come back: its copies count for nothing.
    """

    node: str
    is_dead: bool = False


@dataclass(frozen=True, slots=True)
class LogSpace:
    """How full the log service is.

    Attributes:
        used_bytes: what it holds.
        file_bytes: what its file takes: it does not shrink by itself.
        quota_bytes: at which it refuses every write.
        is_full: it does so already.
    """

    used_bytes: int
    file_bytes: int
    quota_bytes: int
    is_full: bool = False

    @property
    def share(self) -> float:
        """The part of the quota that is used: 0 to 1."""
        return 1.0 if self.is_full else min(1.0, self.used_bytes / max(1, self.quota_bytes))


class Change(NamedTuple):
    """A hint from ``watch``: something about ``shard`` is different.

    Attributes:
        shard: which; -1: members; ``PLACEMENTS``: placements or departures.
        last: nothing but entries up to this index were added; 0: it may be anything.
    """

    shard: int
    last: int = 0


def add_change(changes: dict[int, int], change: Change) -> None:
    """Merge a hint into those that nobody has heard yet, which have their ``last`` by shard."""
    shard, last = change
    known = changes.get(shard, last)
    changes[shard] = max(known, last) if known and last else 0


class SharedLog(Protocol):
    """One node's connection to the log service. All calls are made on one event loop.

    Everything that waits may raise ``LogUnavailableError``.
    """

    session_s: float  # how long a session lasts without a renewal
    record_bytes_max: int  # what one append may carry; larger entries are split into fragments

    def position(self) -> Position:
        """Which service this is, and how far it was seen."""

    def check_position(self, noted: Position) -> None:
        """Refuse a service that is not the one noted, or has not come so far.

        Called before ``connect``, it is that which finds out.

        Raises:
            LogRolledBackError: what was seen so far contradicts the note.
        """

    async def connect(self, genesis: Genesis) -> Genesis:
        """Reach the service; write ``genesis`` unless there is one. Returns the one that holds.

        Raises:
            LogRolledBackError: the service is another one than this connection has seen or was
                told of, or its revision is below that.
        """

    async def look(self) -> Genesis | None:
        """Reach the service without taking part; the genesis that holds, None before there is one.

        Instead of ``connect``, by those who only read.
        """

    async def join(self, member: Member) -> None:
        """Begin a session and be a member with it.

        Raises:
            NameTakenError: another live node has this name.
            SessionLostError: the session was over before the node had joined.
        """

    def session_until(self) -> float:
        """``mono()`` of the clock given at construction until which the session holds; 0: none.

        A session that is over stays over until ``join``.
        """

    async def report(self, member: Member) -> None:
        """Replace what the service has of this node.

        Raises:
            SessionLostError: the session is over.
        """

    async def members(self) -> list[Member]:
        """All live nodes, by name."""

    async def campaign(self, shard: int) -> Term | None:
        """Become the leader of ``shard`` if nobody leads it. None: somebody does.

        Campaigning for a shard that this very session leads returns its term again. Who wins
        deletes the fragments that other terms have left behind the last entry.

        Raises:
            SessionLostError: the session is over.
        """

    async def resign(self, shard: int, term: int) -> None:
        """Stop leading, if ``term`` is still this node's. Harmless otherwise."""

    async def depose(self, shard: int, term: int, *, fenced_s: float) -> bool:
        """End the term of another node that is thought dead; False if it was over already.

        Until ``fenced_s`` seconds from now its answers from memory may still arrive: the next
        leader is told by ``ShardState.fenced_until``.
        """

    async def append(self, record: LogRecord) -> None:
        """Add ``record`` as the next of its shard.

        Raises:
            FencedError: it never took effect and never will.
            LogUnavailableError: unknown; the session is over, or its place in the log has been
                truncated meanwhile.
        """

    async def read(
        self, shard: int, after: int, *, bytes_max: int = 8 << 20, is_near: bool = False
    ) -> list[LogRecord]:
        """Records with entries above ``after``, in order; about ``bytes_max`` bytes, at least one.

        Args:
            shard: which.
            after: index of the last entry that the caller has.
            bytes_max: behind so many bytes nothing more is read.
            is_near: the newest records may be left out, if there are others: whoever is asked first
                need not ask the rest of the service. That there are none is true all the same.

        Raises:
            CompactedError: entry ``after + 1`` is gone.
            RecordCorruptError: a record is damaged; nothing behind it is read.
        """

    async def state(self, shard: int) -> ShardState:
        """Leader, last index and floor of one shard."""

    async def states(self) -> list[ShardState]:
        """The same of all shards, by index, as of one moment."""

    def watch(self) -> AsyncIterator[Change]:
        """Hints that something has changed, from now on, until the iterator is closed."""

    async def truncate(self, shard: int, floor: int) -> None:
        """Remove the records all of whose entries are below ``floor``. Only ever moves it up."""

    async def publish(self, checkpoint: Checkpoint) -> None:
        """Tell that this node has ``checkpoint``, in place of its last one."""

    async def checkpoints(self) -> Sequence[Checkpoint]:
        """Every node's last checkpoint, the newest first."""

    async def placements(self) -> list[Placement]:
        """Where the copies of shards are, by shard; those that were never placed are not there."""

    async def become_balancer(self) -> bool:
        """Be the one that changes placements, unless another session is; whether this one is.

        Raises:
            SessionLostError: the session is over.
        """

    async def place(self, placement: Placement, *, is_wish: bool = False) -> bool:
        """Replace a placement if it has the version that is given; whether that was so.

        False as well if an earlier try, whose answer was lost, did it and others went on.

        Args:
            placement: the new one, with the version of the one it replaces.
            is_wish: an operator's, which any session may write.

        Raises:
            FencedError: another session is the balancer, or this one is over.
        """

    async def departures(self) -> list[Departure]:
        """Nodes that are to have no copies any more, by name."""

    async def depart(self, departure: Departure) -> None:
        """Say that a node is to have no copies any more, in place of what was said of it."""

    async def stay(self, node: str) -> None:
        """Take back what was said of the departure of a node. Harmless without any."""

    async def forget(self, node: str) -> None:
        """Remove what there is of a node beside its member: its departure and its checkpoint."""

    async def space(self) -> LogSpace:
        """How full the service is."""

    async def compact(self) -> None:
        """Let the service reuse the space of everything that was truncated."""

    async def close(self) -> None:
        """End the session, if there is one, and all calls. Harmless when repeated."""
