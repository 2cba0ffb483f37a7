"""A log service in memory: the reference of ``SharedLog``, with faults, for simulation and tests.

``MemoryLog`` is the service, ``MemoryLogClient`` one node's connection to it. All of them run on
one event loop and one clock; requests and answers pass a ``Network``, which may lose, delay and
repeat them. Nothing outlives the process.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeVar

from ...engine.runtime.clock import Clock
from ...engine.runtime.event_loop import Future, Spawner, TaskHandle
from ...errors import ClosedError, LodeqError, LogRolledBackError, RecordCorruptError
from ..fragments import Head, cut_record, join_fragments, read_stored
from ..port import (
    Change,
    Checkpoint,
    Departure,
    FencedError,
    Genesis,
    LogSpace,
    LogUnavailableError,
    Member,
    Placement,
    Position,
    SessionLostError,
    ShardState,
    Term,
    add_change,
)
from ..record import LogRecord
from ..waiting import Signal, Waiting
from .network import Network
from .service import LogService, Stored, Tries

__all__ = ["MemoryLog", "MemoryLogClient"]

T = TypeVar("T")
Work = Callable[[LogService], object]
Reply = Callable[[object, int], None]  # the outcome, and the revision it was seen at
RECORD_BYTES_MAX = 1 << 20
QUOTA_BYTES = 8 << 30


class _UnansweredError(LogUnavailableError):
    """Nobody has answered: the request may have taken effect."""


class MemoryLog:
    """The service.

    Args:
        spawner: the loop of everybody who uses it.
        clock: their clock.
        ttl_s: how long a session lasts without a renewal.
        network: what goes wrong; None: nothing does.
        record_bytes_max: what one append may carry.
        quota_bytes: at which the service refuses every write, until ``disarm``.
    """

    def __init__(
        self,
        spawner: Spawner,
        clock: Clock,
        *,
        ttl_s: float = 3.0,
        network: Network | None = None,
        record_bytes_max: int = RECORD_BYTES_MAX,
        quota_bytes: int = QUOTA_BYTES,
    ) -> None:
        self.waiting = Waiting(spawner, clock)
        self.network = Network() if network is None else network
        self.service = LogService(ttl_s, quota_bytes)
        self.record_bytes_max = record_bytes_max
        self.requests: dict[str, int] = {}  # by kind: how many have arrived
        self._watchers: list[tuple[str, Callable[[Change], None]]] = []
        self._clients = 0
        self._looks_at = math.inf  # when sessions that are over are looked for

    def client(
        self, node: str, *, request_s: float = 0.5, waiting: Waiting | None = None
    ) -> MemoryLogClient:
        """A new connection.

        Args:
            node: whose it is.
            request_s: seconds for which a request waits for its answer.
            waiting: the node's loop and clock, where they are not those of the service.
        """
        self._clients += 1
        return MemoryLogClient(self, node, self._clients, request_s, waiting)

    # -- what a test does to it --------------------------------------------------------

    def expire(self, node: str) -> None:
        """End the sessions of ``node``, as if it had not renewed them."""
        for session in self.service.sessions_of(node):
            self.service.end(session)
        self._send_hints()

    def disarm(self) -> None:
        """Let a service that was full take writes again."""
        self.service.is_full = False

    def snapshot(self) -> LogService:
        """A copy of the whole service."""
        return self.service.copy()

    def roll_back(self, snapshot: LogService) -> None:
        """Put the service back to what it was; sessions of then end when they are due."""
        self.service = snapshot.copy()
        self._looks_at = math.inf
        self._watch_sessions()

    # -- requests ----------------------------------------------------------------------

    def send(
        self, node: str, kind: str, work: Callable[[LogService], object], reply: Reply
    ) -> None:
        """Carry out ``work`` when the request arrives, and ``reply`` when the answer does.

        Args:
            node: who asks.
            kind: of the request, as ``Network`` names it.
            work: what the request does to the service.
            reply: called with the outcome and the revision.
        """
        if self.network.holds(node, partial(self.send, node, kind, work, reply)):
            return
        route = self.network.route(node, kind)
        for delay_s in route.requests:
            self.later(delay_s, partial(self._arrive, node, kind, work, reply, route.answer))

    def _arrive(
        self,
        node: str,
        kind: str,
        work: Work,
        reply: Reply,
        answer_s: float | None,
    ) -> None:
        if not self.network.reaches(node):
            return
        self.requests[kind] = self.requests.get(kind, 0) + 1
        self.service.end_due(self.waiting.clock.mono())
        try:
            outcome = work(self.service)
        except LodeqError as error:
            outcome = error
        if answer_s is not None:
            revision = self.service.revision
            self.later(answer_s, partial(self._answer, node, reply, outcome, revision))
        self._send_hints()
        self._watch_sessions()

    def _answer(self, node: str, reply: Reply, outcome: object, revision: int) -> None:
        if self.network.holds(node, partial(self._answer, node, reply, outcome, revision)):
            return
        if node not in self.network.splits | self.network.muted:
            reply(outcome, revision)

    def later(self, delay_s: float, fn: Callable[[], None]) -> None:
        """Run ``fn`` after so many seconds of the clock; 0: in a later turn of the loop."""
        spawner, clock = self.waiting.spawner, self.waiting.clock
        if delay_s <= 0:
            spawner.call_soon(fn)
        else:
            clock.call_at(spawner, clock.mono() + delay_s, fn)

    def _watch_sessions(self) -> None:
        next_end = self.service.next_end()
        if next_end is not None and next_end < self._looks_at:
            self._looks_at = next_end
            self.waiting.clock.call_at(self.waiting.spawner, next_end, self._end_due)

    def _end_due(self) -> None:
        self._looks_at = math.inf
        self.service.end_due(self.waiting.clock.mono())
        self._send_hints()
        self._watch_sessions()

    # -- hints -------------------------------------------------------------------------

    def watch(self, node: str, hear: Callable[[Change], None]) -> Callable[[], None]:
        """Call ``hear`` about changes; returns what ends that."""
        watcher = (node, hear)
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def _send_hints(self) -> None:
        changed, self.service.changed = self.service.changed, {}
        for node, hear in self._watchers:
            for shard, last in changed.items():
                for delay_s in self.network.hints(node):
                    self.later(delay_s, partial(self._hint, node, hear, Change(shard, last)))

    def _hint(self, node: str, hear: Callable[[Change], None], change: Change) -> None:
        if self.network.holds(node, partial(self._hint, node, hear, change)):
            return
        if self.network.reaches(node):
            hear(change)


class MemoryLogClient:
    """One node's connection: a ``SharedLog``. Made by ``MemoryLog.client``."""

    def __init__(
        self,
        log: MemoryLog,
        node: str,
        serial: int,
        request_s: float,
        waiting: Waiting | None = None,
    ) -> None:
        self.log = log
        self.node = node
        self.session_s = log.service.ttl_s
        self.record_bytes_max = log.record_bytes_max
        self.revision = 0
        self._service_id = 0
        self.read_s = log.service.ttl_s  # how long a read is repeated
        self._serial = serial
        self._request_s = request_s
        self._waiting = log.waiting if waiting is None else waiting
        self._asked: dict[Future, None] = {}  # in order: a seed repeats it
        self._session = 0
        self._until = 0.0
        self._joins = 0
        self._renewer: TaskHandle | None = None
        self._is_closed = False

    # -- asking ------------------------------------------------------------------------

    async def _ask(
        self, kind: str, work: Callable[[LogService], T], timeout_s: float | None = None
    ) -> T:
        """Send one request, once."""
        if self._is_closed:
            raise ClosedError("this connection to the log is closed")
        future, seen, session = self._waiting.spawner.future(), self.revision, self._session

        def reply(outcome: object, revision: int) -> None:
            if not future.done():
                future.set_result((outcome, revision))

        self._asked[future] = None
        try:
            self.log.send(self.node, kind, work, reply)
            answer: tuple[Any, int] | None = await self._waiting.until(
                future, self._request_s if timeout_s is None else timeout_s
            )
        finally:
            self._asked.pop(future, None)
        if answer is None:
            raise _UnansweredError(f"the log has not answered ({kind})")
        outcome, revision = answer
        known, found = self._service_id, self.log.service.id
        if known not in (0, found):
            raise LogRolledBackError(
                f"the log's service has the id {found}, and this replica followed {known}: it was "
                "set up anew"
            )
        self._service_id = found
        if revision < seen:
            raise LogRolledBackError(
                f"the log is at revision {revision}, and has been at {seen}: it was restored from "
                "an older copy"
            )
        self.revision = max(self.revision, revision)
        if isinstance(outcome, SessionLostError) and session == self._session:
            self._until = 0.0
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    async def _read(self, kind: str, work: Callable[[LogService], T]) -> T:
        """Ask what may be asked again, for as long as ``read_s``."""
        mono = self._waiting.clock.mono
        give_up = mono() + self.read_s
        while True:
            try:
                return await self._ask(kind, work)
            except LogUnavailableError:
                if mono() >= give_up or self._is_closed:
                    raise

    # -- session -----------------------------------------------------------------------

    def position(self) -> Position:
        """See ``SharedLog.position``."""
        return Position(self._service_id, self.revision)

    def check_position(self, noted: Position) -> None:
        """See ``SharedLog.check_position``. It is the next answer that finds out."""
        self._service_id = self._service_id or noted.service_id
        self.revision = max(self.revision, noted.revision)

    async def connect(self, genesis: Genesis) -> Genesis:
        """See ``SharedLog.connect``."""
        return await self._ask("connect", lambda service: service.begin(genesis))

    async def look(self) -> Genesis | None:
        """See ``SharedLog.look``."""
        return await self._read("look", lambda service: service.genesis)

    async def join(self, member: Member) -> None:
        """See ``SharedLog.join``."""
        self._joins += 1
        attempt, now = self._joins, self.log.waiting.clock.mono
        self._until = 0.0
        sent = self._waiting.clock.mono()
        self._session = await self._ask(
            "join", lambda service: service.join(member, self._serial, attempt, now())
        )
        self._until = sent + self.log.service.ttl_s
        if self._renewer is not None:
            self._renewer.cancel()
        renew = partial(self._renew, self._session)
        self._renewer = self._waiting.spawner.spawn(renew, f"lodeq-log-session-{self.node}")

    async def _renew(self, session: int) -> None:
        clock, every_s = self._waiting.clock, self.log.service.ttl_s / 4
        now = self.log.waiting.clock.mono
        while session == self._session and not self._is_closed:
            await self._waiting.pause(every_s)
            sent = clock.mono()
            if sent >= self.session_until():
                return
            try:
                await self._ask("renew", lambda service: service.renew(session, now()), every_s)
            except LogUnavailableError:
                continue
            except LodeqError:
                if session == self._session:
                    self._until = 0.0
                return
            if session == self._session and clock.mono() < self.session_until():
                self._until = sent + self.log.service.ttl_s

    def session_until(self) -> float:
        """See ``SharedLog.session_until``."""
        if self._until <= self._waiting.clock.mono():
            self._until = 0.0  # over, and stays so
        return self._until

    def lose_session(self) -> None:
        """End the session on this side alone: the service still has it."""
        self._until = 0.0

    def _check_session(self) -> int:
        if not self.session_until():
            raise SessionLostError("the session of this node has ended: join again")
        return self._session

    async def report(self, member: Member) -> None:
        """See ``SharedLog.report``."""
        session = self._check_session()
        await self._ask("report", lambda service: service.report(session, member))

    async def members(self) -> list[Member]:
        """See ``SharedLog.members``."""
        return await self._read("members", lambda service: service.members())

    # -- leaders -----------------------------------------------------------------------

    async def campaign(self, shard: int) -> Term | None:
        """See ``SharedLog.campaign``."""
        session = self._check_session()
        return await self._ask("campaign", lambda service: service.campaign(session, shard))

    async def resign(self, shard: int, term: int) -> None:
        """See ``SharedLog.resign``."""
        await self._ask("resign", lambda service: service.resign(self.node, shard, term))

    async def depose(self, shard: int, term: int, *, fenced_s: float) -> bool:
        """See ``SharedLog.depose``."""
        until_ms = self._waiting.clock.wall_us() // 1000 + round(fenced_s * 1000)
        return await self._ask("depose", lambda service: service.depose(shard, term, until_ms))

    # -- records -----------------------------------------------------------------------

    async def append(self, record: LogRecord) -> None:
        """See ``SharedLog.append``."""
        if not self.session_until():
            raise FencedError("the session of this node has ended: nothing was sent")
        cut = cut_record(record, self.record_bytes_max)
        tries = Tries(record.shard, record.term, record.first, record.last, record.nonce)
        for number, part in enumerate(cut.fragments):
            await self._insist("fragment", partial(_put_fragment, tries, number, part))
        await self._insist("append", partial(_append, tries, cut.stored, len(cut.fragments)))

    async def _insist(self, kind: str, work: Callable[[LogService], None]) -> None:
        """Ask until there is an answer, or the session has ended."""
        while True:
            try:
                return await self._ask(kind, work)
            except _UnansweredError:  # an answer that says no more is one
                if not self.session_until():
                    raise

    async def read(
        self, shard: int, after: int, *, bytes_max: int = 8 << 20, is_near: bool = False
    ) -> list[LogRecord]:
        """See ``SharedLog.read``."""
        found = await self._read("read", lambda service: service.read(shard, after, bytes_max))
        if is_near and len(found) > 1 and not self.log.network.reads_newest(self.node):
            del found[-1]
        records: list[LogRecord] = []
        for stored in found:
            try:
                records.append(_record_of(stored))
            except RecordCorruptError as error:
                if records:
                    break  # what is good goes first; the next call says it
                raise RecordCorruptError(f"shard {shard}, behind entry {after}: {error}") from error
        return records

    async def state(self, shard: int) -> ShardState:
        """See ``SharedLog.state``."""
        return await self._read("state", lambda service: service.state(shard))

    async def states(self) -> list[ShardState]:
        """See ``SharedLog.states``."""
        return await self._read("states", lambda service: service.states())

    def watch(self) -> AsyncIterator[Change]:
        """See ``SharedLog.watch``."""
        heard: dict[int, int] = {}
        signal = Signal(self._waiting)

        def hear(change: Change) -> None:
            add_change(heard, change)
            signal.set()

        return self._changes(heard, signal, self.log.watch(self.node, hear))

    async def _changes(
        self, heard: dict[int, int], signal: Signal, end: Callable[[], None]
    ) -> AsyncIterator[Change]:
        try:
            while True:
                await signal.wait()
                while heard:
                    shard = next(iter(heard))
                    yield Change(shard, heard.pop(shard))
        finally:
            end()

    async def truncate(self, shard: int, floor: int) -> None:
        """See ``SharedLog.truncate``."""
        await self._ask("truncate", lambda service: service.truncate(shard, floor))

    # -- checkpoints -------------------------------------------------------------------

    async def publish(self, checkpoint: Checkpoint) -> None:
        """See ``SharedLog.publish``."""
        session = self._check_session()
        await self._ask("publish", lambda service: service.publish(session, checkpoint))

    async def checkpoints(self) -> list[Checkpoint]:
        """See ``SharedLog.checkpoints``."""
        return await self._read("checkpoints", lambda service: service.checkpoints())

    # -- placements --------------------------------------------------------------------

    async def placements(self) -> list[Placement]:
        """See ``SharedLog.placements``."""
        return await self._read("placements", lambda service: service.placements())

    async def become_balancer(self) -> bool:
        """See ``SharedLog.become_balancer``."""
        session = self._check_session()
        return await self._ask("balancer", lambda service: service.become_balancer(session))

    async def place(self, placement: Placement, *, is_wish: bool = False) -> bool:
        """See ``SharedLog.place``."""
        if not self.session_until():
            raise FencedError("the session of this node has ended: nothing was sent")
        session = self._session
        return await self._ask(
            "place", lambda service: service.place(session, placement, is_wish=is_wish)
        )

    async def departures(self) -> list[Departure]:
        """See ``SharedLog.departures``."""
        return await self._read("departures", lambda service: service.departures())

    async def depart(self, departure: Departure) -> None:
        """See ``SharedLog.depart``."""
        await self._ask("depart", lambda service: service.depart(departure))

    async def stay(self, node: str) -> None:
        """See ``SharedLog.stay``."""
        await self._ask("stay", lambda service: service.stay(node))

    async def forget(self, node: str) -> None:
        """See ``SharedLog.forget``."""
        await self._ask("forget", lambda service: service.forget(node))

    # -- space -------------------------------------------------------------------------

    async def space(self) -> LogSpace:
        """See ``SharedLog.space``."""
        return await self._read("space", lambda service: service.space())

    async def compact(self) -> None:
        """See ``SharedLog.compact``."""
        await self._ask("compact", lambda service: service.compact())

    async def close(self) -> None:
        """See ``SharedLog.close``."""
        if self._is_closed:
            return
        if self._renewer is not None:
            self._renewer.cancel()
        try:
            if self.session_until():
                session = self._session
                await self._ask("leave", lambda service: service.end(session))
        except LodeqError:
            pass  # it ends by itself
        finally:
            self._is_closed = True
            self._until = 0.0
            for future in self._asked:
                if not future.done():
                    future.set_result(None)


def _put_fragment(tries: Tries, number: int, raw: bytes, service: LogService) -> None:
    service.put_fragment(tries, number, raw)


def _append(tries: Tries, raw: bytes, fragments: int, service: LogService) -> None:
    service.append(tries, raw, fragments)


def _record_of(stored: Stored) -> LogRecord:
    found = read_stored(stored.raw)
    return join_fragments(found, stored.fragments) if isinstance(found, Head) else found
