"""A served engine, whose calls block."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from .engine_calls import SyncRemoteCalls

__all__ = ["SyncRemoteEngine"]


class SyncRemoteEngine(SyncRemoteCalls):
    """A ``RemoteEngine`` that blocks, for any number of threads: ``lodeq.sync.connect(url)``."""

    def __repr__(self) -> str:
        url = self._transport.target.url
        return f"<SyncRemoteEngine {url} shards={self.shards} {self.durability}>"

    def close(self) -> None:
        """Close the connections. The server and its engine go on; so do leases, until they end.

        Claims of other threads that still wait for their answer are taken back first, and raise
        ``ClosedError`` there; so does any later call.

        Durability: nothing to do. Cancellation: closes all the same.
        """
        try:
            self._claims.close()
        finally:
            self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
