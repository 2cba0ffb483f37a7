"""A served engine, as its users hold it."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Self

from anyio import CancelScope, CapacityLimiter
from anyio.to_thread import run_sync

from .calls import Session
from .engine_calls import RemoteCalls

if TYPE_CHECKING:
    from .blocking.engine import SyncRemoteEngine
    from .cluster.transport import ClusterTransport
    from .transport.transport import Transport

__all__ = ["RemoteEngine"]


class RemoteEngine(RemoteCalls):
    """A served engine with the methods of ``lodeq.Engine``, over HTTP.

    Get one with ``async with lodeq.connect(url) as engine:``. ``lodeq.Engine`` says what each call
    does, raises and promises. Beyond that any call may raise ``UnreachableError`` (nothing has
    happened, or nothing that matters) and ``AccessDeniedError``, and one that writes
    ``CommitUnknownError``: its answer was lost.
    """

    def __init__(self, transport: Transport | ClusterTransport, session: Session) -> None:
        super().__init__(transport, session)
        self._sync: SyncRemoteEngine | None = None
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<RemoteEngine {self._transport.target.url} shards={self.shards} {self.durability}>"

    @property
    def sync(self) -> SyncRemoteEngine:
        """The same server for other threads, over connections of their own.

        Closed, it is made anew for whoever asks next, until this client is closed.

        It takes this client's leases too: ``engine.sync.heartbeat_many(leases)`` in a thread keeps
        them alive while a handler blocks the loop.
        """
        found = self._sync
        if found is None or (found._claims.is_closing and not self._claims.is_closing):
            from .blocking.connect import transport_to  # noqa: PLC0415 - only for those who use it
            from .blocking.engine import SyncRemoteEngine  # noqa: PLC0415

            found = SyncRemoteEngine(transport_to(self._transport.target), self.session)
            self._sync = found
        return found

    async def close(self) -> None:
        """Close the connections. The server and its engine go on; so do leases, until they end.

        Claims that still wait for their answer are taken back first. In a forked child nothing is
        done: they and the connections are its parent's.

        Durability: nothing to do. Cancellation: closes all the same.
        """
        if self._pid != os.getpid():
            return
        await self._claims.close()
        try:
            if self._sync is not None:  # in a thread of its own: it may wait for the server
                with CancelScope(shield=True):
                    await run_sync(self._sync.close, limiter=CapacityLimiter(1))
        finally:
            await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
