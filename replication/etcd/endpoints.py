"""All members of etcd as one service: who is asked next, for how long, and with which token.

A call goes to one member at a time. Without an answer within ``try_s`` the same request goes to the
next one, until the time of the whole call is over: so every request made here has to be safe to
repeat. A member that does not answer is left until the others have failed as well.

Every answer says which etcd it comes from and how far that is. One from another etcd, or from one
that has gone back, ends the connection for good: from then on nothing it says can be believed.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc

from ...engine.runtime.clock import Clock
from ...errors import AccessDeniedError, ClosedError, LimitError, LogRolledBackError, UsageError
from ..port import LogUnavailableError, Position
from . import rpc_pb2 as pb
from .address import EtcdAddress
from .rpc import Member, Metadata, Refusal, Rpc, classify, read_file, read_tls

__all__ = ["Endpoints", "LeaseGoneError", "RefusedError"]

_ROUND_PAUSE_S: Final = 0.05  # between rounds in which nobody answered


class RefusedError(Exception):
    """A call was refused for a reason that its caller knows how to take."""

    def __init__(self, refusal: Refusal, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal


class LeaseGoneError(Exception):
    """The lease of a session has ended."""


class Endpoints:
    """The members of an address. Used on one event loop of asyncio."""

    def __init__(self, address: EtcdAddress, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self.try_s = address.ttl_s / 4
        self.members: list[Member] = []
        self.at = 0  # index of the member that is asked first
        self.cluster_id = 0
        self.revision = 0
        self._has_answered = False
        self._broken: LogRolledBackError | None = None
        self._metadata: Metadata = ()
        self._authenticating = asyncio.Lock()
        self.is_closed = False

    def open(self) -> None:
        """Make the channels; nothing is sent yet.

        Raises:
            UsageError: a file cannot be read, or no loop of asyncio runs here.
        """
        if self.is_closed:
            raise ClosedError("the connection to etcd is closed")
        if self.members:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError as error:
            raise UsageError("etcd is reached from an event loop of asyncio") from error
        tls = read_tls(self._address)
        self.members = [Member(endpoint, tls) for endpoint in self._address.endpoints]

    async def close(self) -> None:
        """Cancel all calls; harmless when repeated."""
        self.is_closed = True
        members, self.members = self.members, []
        for member in members:
            await member.close()

    # --- what an answer says of the log

    def expect(self, position: Position) -> None:
        """Refuse, from now on, an etcd that is another one or has not come so far.

        Raises:
            LogRolledBackError: what was seen already contradicts it.
        """
        if self._has_answered:
            header = pb.ResponseHeader(cluster_id=self.cluster_id, revision=self.revision)
            self._check_id(header, position.service_id)
            self._check_revision(header, position.revision)
        self.cluster_id = self.cluster_id or position.service_id
        self.revision = max(self.revision, position.revision)

    def check(self, header: pb.ResponseHeader, floor: int) -> None:
        """Note how far the log is; ``floor``: the revision seen when the request was sent.

        Raises:
            LogRolledBackError: this is another etcd, or it has lost what it had.
        """
        self._check_id(header, self.cluster_id)
        self._check_revision(header, floor)
        self.cluster_id = header.cluster_id or self.cluster_id
        self.revision = max(self.revision, header.revision)
        self._has_answered = True

    def check_id(self, header: pb.ResponseHeader) -> None:
        """As ``check``, for answers whose revision may be that of a member that lags."""
        self._check_id(header, self.cluster_id)

    def _check_id(self, header: pb.ResponseHeader, known: int) -> None:
        if known and header.cluster_id not in {0, known}:  # 0: the answer does not say
            self._break(
                f"etcd has the cluster id {header.cluster_id:x}, and this replica followed "
                f"{known:x}: its data was made anew or restored"
            )

    def _check_revision(self, header: pb.ResponseHeader, floor: int) -> None:
        if header.revision < floor:
            self._break(
                f"etcd is at revision {header.revision}, and this replica has seen {floor}: "
                "its data was restored from an older copy"
            )

    def _break(self, text: str) -> None:
        self._broken = LogRolledBackError(
            f"{text}. Begin a cluster of another name from the most advanced copy of each shard"
        )
        raise self._broken

    # --- calls

    async def call(self, rpc: Rpc, request: Any, budget_s: float) -> Any:
        """Ask one member after another until one answers.

        Args:
            rpc: which call; it has to be safe to repeat.
            request: its message.
            budget_s: seconds for all tries together; there is at least one try.

        Raises:
            LogUnavailableError: nobody answered; the request may still take effect.
            RefusedError: it was refused, and its caller has to know what that means.
            AccessDeniedError, LimitError, LogRolledBackError: as they say.
        """
        until = self._clock.mono() + budget_s
        at, failures, is_fresh = self.at, [], False
        while True:
            if self.is_closed or not self.members:
                raise ClosedError("the connection to etcd is closed")
            member = self.members[at]
            left_s = until - self._clock.mono()
            try:
                return await self.ask(member, rpc, request, min(self.try_s, max(left_s, 0.05)))
            except grpc.RpcError as error:
                refusal = classify(error)
                text = f"{member.endpoint}: {_text_of(error)}"
            if self.is_closed:  # meanwhile
                continue
            if refusal is Refusal.TOKEN and self._address.user and not is_fresh:
                is_fresh = True
                await self._authenticate(until)
                continue
            self._raise_refused(refusal, text)
            failures.append(text)
            self._leave(at)
            at = (at + 1) % len(self.members)
            if self._clock.mono() >= until:
                raise LogUnavailableError(_summary(failures[-len(self.members) :]))
            if len(failures) % len(self.members) == 0:
                await asyncio.sleep(_ROUND_PAUSE_S)

    def _leave(self, at: int) -> None:
        """Ask the next one first, unless somebody has moved on from this one already."""
        if self.at == at and self.members:
            self.at = (at + 1) % len(self.members)

    def prefer(self, member: Member) -> None:
        """Ask this one first from now on."""
        self.at = self.members.index(member)

    async def ask_near(self, request: pb.TxnRequest) -> pb.TxnResponse | None:
        """Ask one member for its own view, which no other hears of; None: it lags, or is silent.

        Its view is committed, and of one moment; there may be more. A silent member is left, as by
        ``call``.

        Args:
            request: one that only reads, every read of it with ``is_near``.

        Raises:
            LogRolledBackError: it belongs to another etcd.
        """
        if self._broken is not None:
            raise self._broken
        if self.is_closed or not self.members:
            raise ClosedError("the connection to etcd is closed")
        floor, at = self.revision, self.at
        try:
            answer: pb.TxnResponse = await self._ask(self.members[at], Rpc.TXN, request, self.try_s)
        except grpc.RpcError as error:
            if classify(error) is not Refusal.TOKEN:  # who asks on gets a new one
                self._leave(at)
            return None
        self.check_id(answer.header)
        if answer.header.revision < floor:
            return None
        self.check(answer.header, floor)
        return answer

    async def ask(self, member: Member, rpc: Rpc, request: Any, timeout_s: float) -> Any:
        """Ask one member once, and check where its answer comes from.

        Args:
            member: whom.
            rpc: which call.
            request: its message.
            timeout_s: how long to wait, in seconds.

        Raises:
            grpc.RpcError: it did not answer, or refused.
            LogRolledBackError: as ``check``.
            ClosedError: the connection was closed meanwhile.
        """
        if self._broken is not None:
            raise self._broken
        floor = self.revision
        answer = await self._ask(member, rpc, request, timeout_s)
        if rpc is Rpc.TXN:
            self.check(answer.header, floor)
        else:
            self.check_id(answer.header)
        return answer

    async def _ask(self, member: Member, rpc: Rpc, request: Any, timeout_s: float) -> Any:
        metadata = () if rpc is Rpc.AUTHENTICATE else self.metadata
        try:
            return await member.call(rpc, request, timeout_s, metadata)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if self.is_closed and not (task and task.cancelling()):  # by gRPC
                raise ClosedError("the connection to etcd is closed") from error
            raise

    @property
    def metadata(self) -> Metadata:
        """What goes with every call: the token, if there is one."""
        return self._metadata

    def _raise_refused(self, refusal: Refusal, text: str) -> None:
        if refusal is Refusal.NEXT:
            return
        if refusal is Refusal.NO_SPACE:
            raise LogUnavailableError(
                f"{text}: etcd has used up its quota and takes no writes; truncate, compact, "
                "defragment and disarm it (docs/etcd.md)"
            )
        if refusal is Refusal.TOO_LARGE:
            raise LimitError(f"{text}: leave etcd's --max-request-bytes at 1.5 MiB or more")
        if refusal is Refusal.FOREIGN:
            raise UsageError(f"{text}: what listens there does not speak etcd's version 3")
        if refusal is Refusal.TOKEN and not self._address.user:
            raise AccessDeniedError(f"{text}: etcd asks for a user: ?user=NAME&password-file=FILE")
        if refusal in {Refusal.TOKEN, Refusal.DENIED}:
            raise AccessDeniedError(
                f"{text}: user {self._address.user!r} needs the role readwrite on the prefix "
                f"{self._address.prefix.decode()}"
            )
        raise RefusedError(refusal, text)

    async def authenticate(self, budget_s: float) -> None:
        """Get a token, where the address names a user.

        Raises:
            AccessDeniedError: the password is wrong.
        """
        if self._address.user:
            await self._authenticate(self._clock.mono() + budget_s)

    async def _authenticate(self, until: float) -> None:
        old = self._metadata
        async with self._authenticating:
            if self._metadata is not old:
                return  # somebody else just has
            password = read_file(self._address.password_file, "password-file")
            request = pb.AuthenticateRequest(
                name=self._address.user, password=password.decode().rstrip("\r\n")
            )
            failures: list[str] = []
            for _ in range(2 * len(self.members)):
                if self.is_closed:
                    raise ClosedError("the connection to etcd is closed")
                member = self.members[self.at]
                try:
                    answer = await self._ask(member, Rpc.AUTHENTICATE, request, self.try_s)
                except grpc.RpcError as error:
                    text = f"{member.endpoint}: {_text_of(error)}"
                    self._raise_refused(classify(error), text)
                    failures.append(text)
                    self._leave(self.at)
                    if self._clock.mono() >= until:
                        break
                else:
                    self._metadata = (("token", answer.token),)
                    return
            raise LogUnavailableError(_summary(failures))


def _text_of(error: grpc.RpcError) -> str:
    details = " ".join((error.details() or "").split())
    return f"{error.code().name}: {details[:300]}"


def _summary(failures: list[str]) -> str:
    return f"etcd did not answer in time: {'; '.join(failures)}"
