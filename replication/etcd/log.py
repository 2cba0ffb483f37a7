"""``EtcdLog``: a shared log in etcd v3.

Who leads, what the tail is and which records there are is decided by etcd alone, in transactions;
nothing here decides by what it remembers. A replica remembers two things of etcd, its cluster id
and the highest revision of an answer (``position``), to recognise one that was restored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Final

from ...engine.runtime.clock import Clock, boot_s
from ...engine.runtime.ids import SLOTS, Rng
from ...errors import UsageError
from ..port import (
    Change,
    Checkpoint,
    CompactedError,
    Departure,
    Genesis,
    LogSpace,
    Member,
    Placement,
    Position,
    ShardState,
    Term,
    check_node,
)
from ..record import LogRecord
from .address import EtcdAddress
from .keys import (
    Keys,
    decode_checkpoint,
    decode_genesis,
    decode_member,
    decode_number,
    encode,
)

try:
    import grpc  # noqa: F401 - both parts of the extra are looked for

    from . import rpc_pb2 as pb
except ImportError as exc:
    raise UsageError('etcd needs an extra: pip install "lodeq[etcd]"') from exc
from .appends import RECORD_BYTES_MAX, Appender
from .changes import watch_changes
from .endpoints import Endpoints, RefusedError
from .placements import Placements
from .reader import LogReader
from .rpc import Rpc
from .session import Session
from .space import Space
from .txn import created_at, delete, get, held_by, kvs, modified_at, only, put, scan, txn

__all__ = ["EtcdLog"]

_STATE: Final = ("leader", "tail", "floor", "fence")
_DELETE_INDICES: Final = 1 << 10  # of one request, at first
_DELETED_MIN: Final = 256
_DELETE_INDICES_MAX: Final = 1 << 20


class EtcdLog:
    """One node's connection to a cluster's log in etcd. See ``port.SharedLog`` for its methods.

    It runs on asyncio: gRPC does. Calls but ``append`` end within twice the session's length.
    """

    def __init__(
        self,
        address: EtcdAddress,
        *,
        clock: Clock,
        rng: Rng,
        boot: Callable[[], float] = boot_s,
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        """Prepare a connection; nothing is sent before ``connect``.

        Args:
            address: from ``parse_address``.
            clock: whose ``mono`` the session's end is given in.
            rng: names leases.
            boot: seconds on a clock that goes on while the machine is suspended.
            record_bytes_max: what one request carries of a record; a longer one is cut. At most
                1 MiB.
        """
        if not 1 <= record_bytes_max <= RECORD_BYTES_MAX:
            raise UsageError(f"record_bytes_max={record_bytes_max}: 1 to {RECORD_BYTES_MAX}")
        self.record_bytes_max = record_bytes_max
        self._clock = clock
        self._ttl_s = address.ttl_s
        self.session_s = float(address.ttl_s)
        self._keys = Keys(address.prefix)
        self._endpoints = Endpoints(address, clock)
        self._session = Session(self._endpoints, self._keys, clock, rng, boot, address.ttl_s)
        self._appender = Appender(
            self._endpoints, self._keys, self._session, clock, record_bytes_max
        )
        self._reader = LogReader(self._endpoints, self._keys, address.ttl_s)
        self._space = Space(self._endpoints, address)
        self._placements = Placements(self._endpoints, self._keys, self._session, self._call)
        self._shards = 0
        self._base = 0

    # --- connection

    @property
    def revision(self) -> int:
        """The highest revision seen. Set before ``connect``, an etcd below it is refused."""
        return self._endpoints.revision

    @revision.setter
    def revision(self, revision: int) -> None:
        self.check_position(Position(self._endpoints.cluster_id, revision))

    def position(self) -> Position:
        """Which etcd this is and how far it was seen: for the replica's durable note."""
        return Position(self._endpoints.cluster_id, self._endpoints.revision)

    def check_position(self, noted: Position) -> None:
        """Refuse an etcd that is not the one noted, or has not come so far.

        Called before ``connect``, it is that which finds out.

        Raises:
            LogRolledBackError: what was seen so far contradicts the note.
        """
        self._endpoints.expect(noted)

    async def connect(self, genesis: Genesis) -> Genesis:
        """Reach etcd, look at its release, and write ``genesis`` unless there is one."""
        if not 1 <= genesis.shards <= SLOTS:
            raise UsageError(f"{genesis.shards} shards: a cluster has 1 to {SLOTS}")
        self._endpoints.open()
        await self._endpoints.authenticate(2 * self._ttl_s)
        await self._space.check_versions()
        key, value = self._keys.genesis, encode(genesis)
        answer = await self._call(txn([created_at(key, 0)], [put(key, value)], [get(key)]))
        found = genesis if answer.succeeded else decode_genesis(kvs(answer, 0)[0].value)
        self._begin(found)
        return found

    async def look(self) -> Genesis | None:
        """Reach etcd and read the genesis, if there is one."""
        self._endpoints.open()
        await self._endpoints.authenticate(2 * self._ttl_s)
        found = kvs(await self._call(txn([], [get(self._keys.genesis)])), 0)
        if not found:
            return None
        genesis = decode_genesis(found[0].value)
        self._begin(genesis)
        return genesis

    def _begin(self, genesis: Genesis) -> None:
        self._shards, self._base = genesis.shards, genesis.base
        self._appender.base = self._reader.base = genesis.base

    def _unwritten(self, shard: int) -> ShardState:
        """A shard of which there is no key yet."""
        return ShardState(shard, None, 0, self._base, self._base + 1)

    async def _call(self, request: pb.TxnRequest) -> pb.TxnResponse:
        """A transaction that does not go with the session."""
        answer: pb.TxnResponse = await self._endpoints.call(Rpc.TXN, request, self._ttl_s)
        return answer

    async def close(self) -> None:
        """End the session, if there is one, and all calls."""
        try:
            await self._appender.close()
            await self._session.end()
        finally:  # also where nobody waits for as long as etcd is silent
            await self._endpoints.close()

    # --- members

    async def join(self, member: Member) -> None:
        """Begin a session and be a member with it."""
        self._appender.clear()
        await self._session.join(check_node(member.node), encode(member))

    def session_until(self) -> float:
        """``mono()`` until which the session holds; 0: none."""
        return self._session.until()

    async def report(self, member: Member) -> None:
        """Replace what etcd has of this node."""
        self._session.lease()
        if member.node != self._session.node:
            raise UsageError(f"this node is {self._session.node!r}, not {member.node!r}")
        await self._session.report(encode(member))

    async def members(self) -> list[Member]:
        """All live nodes, by name."""
        answer = await self._call(txn([], [scan(*self._keys.family("member"))]))
        return sorted((decode_member(kv.value) for kv in kvs(answer, 0)), key=lambda m: m.node)

    # --- leadership

    async def campaign(self, shard: int) -> Term | None:
        """Become the leader of ``shard`` if nobody leads it."""
        lease = self._session.lease()
        leader, tail = (self._keys.of_shard(family, shard) for family in ("leader", "tail"))
        value = self._session.node.encode()
        request = txn(
            [created_at(leader, 0)],
            [put(leader, value, lease), get(tail)],
            [get(leader), get(tail)],
        )
        try:
            answer = await self._endpoints.call(Rpc.TXN, request, self._session.left_s())
        except RefusedError as error:
            self._session.refused(error, lease)
        holder = None if answer.succeeded else only(answer, 0)
        if holder is not None and holder.lease != lease:
            return None
        term = answer.header.revision if holder is None else holder.create_revision
        tenure = self._appender.tenure(shard, term)
        if tenure is None:
            tenure = await self._appender.begin(shard, term, only(answer, 1))
        self._session.lease()
        return None if tenure is None else Term(term, tenure.last)

    async def resign(self, shard: int, term: int) -> None:
        """Stop leading, if ``term`` is still this node's."""
        self._appender.drop(shard, term)
        leader = self._keys.of_shard("leader", shard)
        lease = self._session.lease_or_0()
        if lease:
            await self._call(
                txn([created_at(leader, term), held_by(leader, lease)], [delete(leader)])
            )

    async def depose(self, shard: int, term: int, *, fenced_s: float) -> bool:
        """End the term of another node that is thought dead."""
        leader, fence = (self._keys.of_shard(family, shard) for family in ("leader", "fence"))
        until_ms = self._clock.wall_us() // 1000 + int(fenced_s * 1000)
        is_sent = False
        while True:
            answer = await self._call(txn([], [get(leader), get(fence)]))
            holder, kept = only(answer, 0), only(answer, 1)
            earlier_ms = _number(kept, f"the fence of shard {shard}", 0)
            if holder is None or holder.create_revision != term:
                return is_sent and earlier_ms == until_ms  # by a try whose answer was lost
            until_ms = max(until_ms, earlier_ms)
            seen = 0 if kept is None else kept.mod_revision
            compare = [created_at(leader, term), modified_at(fence, seen)]
            change = [put(fence, b"%d" % until_ms), delete(leader)]
            answer = await self._call(txn(compare, change))
            if answer.succeeded:
                return True
            is_sent = True

    # --- the log

    async def append(self, record: LogRecord) -> None:
        """Add ``record`` as the next of its shard."""
        await self._appender.append(record)

    async def read(
        self, shard: int, after: int, *, bytes_max: int = 8 << 20, is_near: bool = False
    ) -> list[LogRecord]:
        """Records with entries above ``after``, in order."""
        return await self._reader.read(shard, after, bytes_max, is_near=is_near)

    async def state(self, shard: int) -> ShardState:
        """Leader, last index and floor of one shard."""
        answer = await self._call(txn([], [get(self._keys.of_shard(f, shard)) for f in _STATE]))
        found = self._unwritten(shard)
        for number, family in enumerate(_STATE):
            for kv in kvs(answer, number):
                found = _with(found, family, kv)
        return found

    async def states(self) -> list[ShardState]:
        """The same of all shards, by index, as of one moment."""
        answer = await self._call(txn([], [scan(*self._keys.family(f)) for f in _STATE]))
        found = [self._unwritten(shard) for shard in range(self._shards)]
        for number, family in enumerate(_STATE):
            for kv in kvs(answer, number):
                shard = self._keys.shard_in(kv.key)
                if 0 <= shard < len(found):
                    found[shard] = _with(found[shard], family, kv)
        return found

    def watch(self) -> AsyncIterator[Change]:
        """Hints that something has changed, from now on."""
        since = self._endpoints.revision
        return watch_changes(self._endpoints, self._keys, lambda: self._shards, since)

    async def truncate(self, shard: int, floor: int) -> None:
        """Remove the records all of whose entries are below ``floor``, and compact now and then."""
        key = self._keys.of_shard("floor", shard)
        while True:
            tail = self._keys.of_shard("tail", shard)
            answer = await self._call(txn([], [get(key), get(tail)]))
            noted, last = only(answer, 0), only(answer, 1)
            now = _number(noted, f"the floor of shard {shard}", self._base + 1)
            end = _number(last, f"the tail of shard {shard}", self._base) + 1
            low = min(floor, end)
            if low <= now:
                low = now
                break
            seen = 0 if noted is None else noted.mod_revision
            moved = await self._call(txn([modified_at(key, seen)], [put(key, b"%d" % low)]))
            if moved.succeeded:
                break
        try:
            first = low if low == end else await self._reader.begin(shard, low)
        except CompactedError:  # another node has moved it further, and deletes these
            return
        await self._delete_below(shard, first)
        await self._space.compact_sometimes()

    async def _delete_below(self, shard: int, low: int) -> None:
        """Delete the records below ``low``, in requests that etcd is not busy with for long."""
        start, end = self._keys.record(shard, 0), self._keys.record(shard, low)
        step = _DELETE_INDICES
        while True:
            answer = await self._call(txn([], [scan(start, end, limit=1, is_keys_only=True)]))
            found = only(answer, 0)
            if found is None:
                return
            below = min(low, self._keys.parse_log(found.key, shard).first + step)
            answer = await self._call(txn([], [delete(start, self._keys.record(shard, below))]))
            if answer.responses[0].response_delete_range.deleted < _DELETED_MIN:
                step = min(2 * step, _DELETE_INDICES_MAX)

    # --- placements

    async def placements(self) -> list[Placement]:
        """Where the copies of shards are, by shard."""
        return await self._placements.read()

    async def become_balancer(self) -> bool:
        """Be the one that changes placements, unless another session is."""
        return await self._placements.become_balancer()

    async def place(self, placement: Placement, *, is_wish: bool = False) -> bool:
        """Replace a placement if it has the version that is given."""
        return await self._placements.place(placement, is_wish=is_wish)

    async def departures(self) -> list[Departure]:
        """Nodes that are to have no copies any more, by name."""
        return await self._placements.departures()

    async def depart(self, departure: Departure) -> None:
        """Say that a node is to have no copies any more."""
        await self._placements.depart(departure)

    async def stay(self, node: str) -> None:
        """Take back what was said of the departure of a node."""
        await self._placements.stay(node)

    async def forget(self, node: str) -> None:
        """Remove what there is of a node beside its member."""
        await self._placements.forget(node)

    # --- checkpoints and space

    async def publish(self, checkpoint: Checkpoint) -> None:
        """Tell that this node has ``checkpoint``, in place of its last one."""
        self._session.lease()
        key = self._keys.of_node("checkpoint", check_node(checkpoint.node))
        await self._call(txn([], [put(key, encode(checkpoint))]))

    async def checkpoints(self) -> Sequence[Checkpoint]:
        """Every node's last checkpoint, the newest first."""
        answer = await self._call(txn([], [scan(*self._keys.family("checkpoint"))]))
        found = [decode_checkpoint(kv.value) for kv in kvs(answer, 0)]
        return sorted(found, key=lambda one: (-one.created_ms, one.node))

    async def space(self) -> LogSpace:
        """How much of etcd's quota is used."""
        return await self._space.look()

    async def compact(self) -> None:
        """Let etcd reuse the space of everything that was truncated."""
        await self._call(txn([], [get(self._keys.genesis)]))  # the revision it has come to
        await self._space.compact()

    async def defragment(self) -> list[str]:
        """Make etcd's files smaller, member by member, and disarm its alarm.

        Returns the endpoints where that did not succeed.
        """
        failed = await self._space.defragment()
        await self._space.disarm()
        return failed


def _number(kv: pb.KeyValue | None, what: str, absent: int) -> int:
    """The number that a key holds; ``absent`` if it is not there."""
    return absent if kv is None else decode_number(kv.value, what)


def _with(state: ShardState, family: str, kv: pb.KeyValue) -> ShardState:
    """A state with what one key says."""
    if family == "leader":
        return replace(state, leader=kv.value.decode(), term=kv.create_revision)
    number = decode_number(kv.value, f"the {family} of shard {state.shard}")
    if family == "tail":
        return replace(state, last=number)
    if family == "floor":
        return replace(state, floor=number)
    return replace(state, fenced_until=number)
