"""The session of a node: a lease of etcd, renewed, and until when it surely holds.

``until`` counts from the *sending* of the last renewal that took effect, on whichever has less
left of the monotonic clock and the one that goes on while the machine is suspended.

That a renewal was answered does not say that it took effect: releases of etcd before 3.4.29 and
3.5.12 answer it from the memory of whichever member believes that it leads, and one that was frozen
believes so until it hears of its successor. So behind each renewal the member key is read, in order
with all writes, from the same member of etcd. If both answers carry one raft term, the leader that
renewed was still the leader when it did.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NoReturn

import grpc
import grpc.aio

from ...engine.runtime.clock import Clock
from ...engine.runtime.ids import Rng
from ...errors import LodeqError
from ..port import LogUnavailableError, NameTakenError, SessionLostError
from . import rpc_pb2 as pb
from .endpoints import Endpoints, LeaseGoneError, RefusedError
from .keys import Keys
from .rpc import Member, Refusal, Rpc, classify
from .txn import created_at, get, held_by, only, put, txn

__all__ = ["Session"]

_log: Final = logging.getLogger(__name__)
_BEATS: Final = 6  # renewals in one length of a session: it outlives an election of etcd
_PAUSE_S: Final = 0.05  # between rounds in which no member renewed
_END_S: Final = 0.5  # for giving the lease back; it ends by itself, too
_OWN_MAX: Final = 16


class Session:
    """One node's session; over at first."""

    def __init__(
        self,
        endpoints: Endpoints,
        keys: Keys,
        clock: Clock,
        rng: Rng,
        boot_s: Callable[[], float],
        ttl_s: int,
    ) -> None:
        self._endpoints = endpoints
        self._keys = keys
        self._clock = clock
        self._rng = rng
        self._boot_s = boot_s
        self._asked_s = ttl_s
        self._ttl_s = float(ttl_s)
        self._sent = (0.0, 0.0)  # on both clocks
        self._node = ""
        self._lease = 0
        self._own: list[int] = []  # leases of earlier sessions of this connection
        self._why = "this node has not joined"
        self._task: asyncio.Task[None] | None = None

    @property
    def node(self) -> str:
        """Name of the node that joined."""
        return self._node

    def until(self) -> float:
        """``mono()`` until which the session holds; 0: it is over."""
        if not self._lease:
            return 0.0
        left_s = self._left_s()
        if left_s <= 0:
            self.lose("it was not renewed in time")
            return 0.0
        return self._clock.mono() + left_s

    def _left_s(self) -> float:
        mono, boot = self._now()
        return self._ttl_s - max(mono - self._sent[0], boot - self._sent[1])

    def _now(self) -> tuple[float, float]:
        return self._clock.mono(), self._boot_s()

    def left_s(self) -> float:
        """Seconds that the session still holds; 0: it is over."""
        return max(0.0, self._left_s()) if self.until() else 0.0

    def lease(self) -> int:
        """The lease of the live session.

        Raises:
            SessionLostError: there is none.
        """
        if not self.until():
            raise SessionLostError(f"the session with etcd is over: {self._why}; join again")
        return self._lease

    def lease_or_0(self) -> int:
        """The lease of the live session; 0: there is none."""
        return self._lease if self.until() else 0

    def lose(self, why: str) -> None:
        """End the session here; etcd ends it when its time is over."""
        if self._lease:
            self._lease, self._why = 0, why
            _log.warning(
                "the session with etcd is over: %s",
                why,
                extra={"event": "log_session_lost", "node": self._node, "detail": why},
            )
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._task = None

    async def join(self, node: str, value: bytes) -> None:
        """Begin a session of ``node``, whose member key holds ``value``.

        Raises:
            NameTakenError: a session of another process has this name.
            SessionLostError: etcd has ended it before the node had joined.
        """
        await self.end()
        lease = int.from_bytes(self._rng.bytes(8), "big") >> 1 or 1
        self._own = [*self._own[1 - _OWN_MAX :], lease]
        sent = self._now()
        ttl_s = await self._grant(lease)
        key = self._keys.of_node("member", node)
        request = txn([created_at(key, 0)], [put(key, value, lease)], [get(key)])
        while True:
            try:
                answer = await self._endpoints.call(Rpc.TXN, request, self._asked_s)
            except RefusedError as error:  # whoever stands still behind the grant has no lease
                self.refused(error, lease)
            holder = None if answer.succeeded else only(answer, 0)
            if answer.succeeded or (holder is not None and holder.lease == lease):
                break
            if holder is not None and holder.lease not in self._own:
                await self._revoke(lease)
                raise NameTakenError(
                    f"a node named {node!r} is there: give each node a name of its own. If it has "
                    f"just ended, its session does so within {self._asked_s} s: try again then"
                )
            if holder is not None:
                await self._revoke(holder.lease)
        self._node, self._lease, self._ttl_s, self._sent = node, lease, ttl_s, sent
        self._task = asyncio.create_task(self._keep(lease), name=f"lodeq etcd session {node}")

    async def _grant(self, lease: int) -> float:
        request = pb.LeaseGrantRequest(TTL=self._asked_s, ID=lease)
        try:
            answer = await self._endpoints.call(Rpc.LEASE_GRANT, request, self._asked_s)
        except RefusedError as error:
            if error.refusal is not Refusal.LEASE_EXISTS:
                raise LogUnavailableError(str(error)) from error
            return float(self._asked_s)  # made by an earlier try, whose answer was lost
        if answer.error:
            raise LogUnavailableError(f"etcd grants no lease: {answer.error}")
        return float(answer.TTL)

    async def report(self, value: bytes) -> None:
        """Replace what the member key holds.

        Raises:
            SessionLostError: the session is over.
        """
        lease = self.lease()
        key = self._keys.of_node("member", self._node)
        request = txn([held_by(key, lease)], [put(key, value, lease)])
        try:
            answer = await self._endpoints.call(Rpc.TXN, request, self.left_s())
        except RefusedError as error:
            self.refused(error, lease)
        if not answer.succeeded and lease == self._lease:
            self.lose("etcd has ended it")
        if self.lease() != lease:
            raise SessionLostError("the session with etcd is over, and another has begun")

    def refused(self, error: RefusedError, lease: int) -> NoReturn:
        """Take a refusal of a write that goes with a lease; a later session goes on.

        Args:
            error: the refusal.
            lease: of the session that the write was sent in.

        Raises:
            SessionLostError: the lease is gone.
            LogUnavailableError: anything else.
        """
        if error.refusal is Refusal.LEASE_GONE:
            if lease == self._lease:
                self.lose("etcd has ended it")
            raise SessionLostError("the session with etcd is over: etcd has ended it") from error
        raise LogUnavailableError(str(error)) from error

    async def end(self) -> None:
        """Give the lease back, so that what goes with it goes at once. Harmless when repeated."""
        task, self._task = self._task, None
        lease, self._lease, self._why = self._lease, 0, "this node has left"
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if lease:
            await self._revoke(lease)

    async def _revoke(self, lease: int) -> None:
        try:
            request = pb.LeaseRevokeRequest(ID=lease)
            await self._endpoints.call(Rpc.LEASE_REVOKE, request, _END_S)
        except (LodeqError, RefusedError):
            pass  # it ends by itself

    # --- renewal

    async def _keep(self, lease: int) -> None:
        try:
            while True:
                await asyncio.sleep(self._ttl_s / _BEATS)
                await self._renew(lease)
        except LeaseGoneError:
            if lease == self._lease:
                self.lose("etcd has ended it")
        except LodeqError as error:
            if lease == self._lease:
                self.lose(str(error))

    async def _renew(self, lease: int) -> None:
        """Ask one member after another until one has renewed; returns when the session is over."""
        at, failures = self._endpoints.at, 0
        while lease == self._lease and self.until():
            members = self._endpoints.members
            member = members[at % len(members)]
            try:
                if await self._renew_at(member, lease):
                    return
            except grpc.RpcError as error:
                if classify(error) is Refusal.TOKEN:
                    await self._refresh_token()
            at, failures = at + 1, failures + 1
            if failures % len(members) == 0:
                await asyncio.sleep(_PAUSE_S)

    async def _refresh_token(self) -> None:
        try:
            await self._endpoints.authenticate(self._endpoints.try_s)
        except LogUnavailableError:
            pass  # the next round asks for it again

    async def _renew_at(self, member: Member, lease: int) -> bool:
        timeout_s = self._ttl_s / _BEATS
        sent = self._now()
        stream = member.keepalive(timeout_s, self._endpoints.metadata)
        try:
            await stream.write(pb.LeaseKeepAliveRequest(ID=lease))
            answer = await stream.read()
        except asyncio.InvalidStateError:  # the call ended before it was written
            return False
        finally:
            stream.cancel()
        if answer is grpc.aio.EOF:
            return False
        self._endpoints.check_id(answer.header)
        if answer.TTL <= 0:
            raise LeaseGoneError
        key = self._keys.of_node("member", self._node)
        proof = await self._endpoints.ask(member, Rpc.TXN, txn([], [get(key)]), timeout_s)
        if proof.header.raft_term != answer.header.raft_term:
            return False  # it may have come from a leader that was none any more
        holder = only(proof, 0)
        if holder is None or holder.lease != lease:
            raise LeaseGoneError
        if lease == self._lease and self.until():
            self._sent, self._ttl_s = sent, float(answer.TTL)
        return True
