"""A lease on a task of a served store, whose calls block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ...errors import LeaseLostError, LodeqError
from ...repository.model.values import Codec, Duration, NewTask
from .. import calls
from ..lease import LeaseFacts
from ..records import Granted

if TYPE_CHECKING:
    from .engine import SyncRemoteEngine

__all__ = ["SyncRemoteLease", "give_back"]


class SyncRemoteLease(LeaseFacts):
    """As ``RemoteLease``, blocking: ``with lease:``, or ``complete`` and its like."""

    __slots__ = ("_engine",)

    def __init__(self, engine: SyncRemoteEngine, granted: Granted, codec: Codec | None) -> None:
        super().__init__(granted, codec)
        self._engine = engine

    def heartbeat(self, seconds: Duration | None = None) -> datetime:
        """See ``Lease.heartbeat``, also for Durability and Cancellation."""
        return self.beaten(self._send(calls.heartbeat(self._granted, seconds)))

    def complete(
        self,
        result: Any = None,
        *,
        then: Sequence[NewTask] = (),
        keep: bool = True,
        durable: bool | None = None,
    ) -> None:
        """See ``Lease.complete``, also for Durability and Cancellation."""
        session = self._engine.session
        self._send(calls.complete(session, self._granted, result, then, keep, durable))
        self.end()

    def nack(self, *, delay: Duration | None = None, reason: str = "") -> None:
        """See ``Lease.nack``, also for Durability and Cancellation."""
        self._send(calls.nack("nack", self._granted, delay, reason))
        self.end()

    def release(self, *, delay: Duration | None = None) -> None:
        """See ``Lease.release``, also for Durability and Cancellation."""
        self._send(calls.nack("release", self._granted, delay, ""))
        self.end()

    def bury(self, reason: str = "") -> None:
        """See ``Lease.bury``, also for Durability and Cancellation."""
        self._send(calls.nack("bury", self._granted, None, reason))
        self.end()

    def cancel(self) -> None:
        """See ``Lease.cancel``, also for Durability and Cancellation."""
        self._send(calls.nack("cancel", self._granted, None, ""))
        self.end()

    def _send(self, call: calls.Call) -> Any:
        try:
            return self._engine.send(call)
        except LeaseLostError:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_live:
            return
        if error is None:
            self.complete()
        elif isinstance(error, Exception):
            self.nack(reason=repr(error))
        else:  # on the way out, as an interrupt
            give_back([self])


def give_back(leases: Iterable[SyncRemoteLease]) -> None:
    """Release what nobody will work on. Should it fail, the leases run out."""
    for lease in leases:
        if lease.is_live:
            try:
                lease.release()
            except LodeqError:
                lease.end()
