"""``lodeq.connect``: opens a served engine by its address. Awaiting it imports httpx."""

from __future__ import annotations

import os
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..repository.model.arguments import duration_s
from ..repository.model.redaction import Redact, Redaction, redaction_of
from ..repository.model.values import Duration
from .cluster.address import Processes, absolute_address, is_cluster, processes_of

if TYPE_CHECKING:
    from .cluster.transport import ClusterTransport
    from .engine import RemoteEngine
    from .transport.transport import Transport

__all__ = ["Connecting", "connect"]


class Connecting:
    """An engine to be connected: ``async with`` it, or ``await`` it and close the engine."""

    def __init__(
        self, url: str, token: str | None, timeout_s: float, redaction: Redaction | None
    ) -> None:
        self._redaction = redaction
        self._url = url
        self._token = token
        self._timeout_s = timeout_s
        self._engine: RemoteEngine | None = None

    def __await__(self) -> Generator[Any, Any, RemoteEngine]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> RemoteEngine:
        from .calls import Session, engine_call  # noqa: PLC0415 - only for those who use it
        from .engine import RemoteEngine  # noqa: PLC0415

        transport = _transport(self._url, self._token, self._timeout_s)
        try:
            doc = await transport.send(engine_call("/engine"))
            session = Session(doc, self._redaction)
            transport = await self._led_on(transport, processes_of(doc))
        except BaseException:
            await transport.aclose()
            raise
        self._engine = RemoteEngine(transport, session)
        return self._engine

    async def _led_on(
        self, transport: Transport | ClusterTransport, found: Processes | None
    ) -> Transport | ClusterTransport:
        """The connections to all processes with the store, where several have it."""
        if found is None:
            return transport
        from .cluster.target import ClusterTarget  # noqa: PLC0415 - only for those who use it

        if not is_cluster(self._url):
            await transport.aclose()
            transport = _transport(found.address, self._token, self._timeout_s)
        if isinstance(transport.target, ClusterTarget):
            transport.target.front = found.front
        return transport

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._engine is not None:
            await self._engine.close()


def _transport(url: str, token: str | None, timeout_s: float) -> Transport | ClusterTransport:
    if is_cluster(url):
        from .cluster.target import ClusterTarget  # noqa: PLC0415 - only for those who use it
        from .cluster.transport import ClusterTransport  # noqa: PLC0415

        return ClusterTransport(ClusterTarget(url, token, timeout_s, pid=os.getpid()))
    from .transport.transport import Target, Transport  # noqa: PLC0415 - an extra

    return Transport(Target(url, token, timeout_s))


def connect(
    url: str,
    *,
    token: str | None = None,
    timeout: Duration = 30.0,
    redact: Redact | None = None,
) -> Connecting:
    """Connect to a served store: the objects of ``lodeq.open``, in another process.

    ::

        async with lodeq.connect("unix:///run/lodeq.sock") as engine:
            ...

    Args:
        url: ``unix://FILE`` or ``tcp://HOST:PORT`` (the link of docs/link.md, HTTP where the server
            is older), ``http://HOST:PORT`` or ``https://…``; ``lodeq://HOST:PORT,HOST:PORT`` for
            a cluster, by some of its nodes (docs/cluster-client.md). The address of a store in
            several processes leads to all of them.
        token: the content of the server's ``--token-file``, if it has one.
        timeout: seconds until a server that does not answer is given up; the time a call may wait
            comes on top.
        redact: takes a preview or the value of a label and returns what of it may be sent; where
            it raises, nothing of that is. The payload is not its business: see docs/jobs.md.

    Raises:
        UsageError: the address is malformed, or ``lodeq[http]`` is not installed.
        UnreachableError: nobody answers there. AccessDeniedError: the token is wrong.

    Durability: that of the server's engine. Cancellation: leaves no connection behind.
    """
    timeout_s = duration_s(timeout, "timeout", least=0.001)
    if isinstance(url, str):  # any other is refused once it is awaited
        url = absolute_address(url)
    return Connecting(url, token, timeout_s, redaction_of(redact))
