# Generated from client/lease.py by make twins; do not edit.
"""A lease of a client whose calls block."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from ...engine.records.task import WHOLE_BYTES_MAX
from ...engine.runtime.clock import SystemClock
from ...errors import LeaseLostError
from ...repository.model.arguments import duration_s
from ...repository.model.codec import SLICE_BYTES, check_slice
from ...repository.model.error_text import repr_of
from ...repository.model.values import Codec, Duration, NewTask
from .. import calls
from ..calls import Call, Session
from ..documents.records import Granted, when
from ..lease_facts import LeaseFacts, lost_error
from ..transport.target import Doubt
from .payload import SyncRemotePayloadReader, open_remote_payload
from .waits import give_back

if TYPE_CHECKING:
    from .cluster.fast_calls import SyncClusterFastCalls
    from .fast_calls import SyncFastCalls

__all__ = ["Sender", "SyncRemoteLease"]

_mono = SystemClock.mono


class Sender(Protocol):
    """The engine, as far as a lease needs it."""

    session: Session
    fast: SyncFastCalls | SyncClusterFastCalls | None

    def send(self, call: Call) -> Any:
        """Send one request and return the document of its answer."""


class SyncRemoteLease(LeaseFacts):
    """A lease on a task of a served store whose calls block, with the methods of ``lodeq.Lease``.

    ``lodeq.Lease`` says what each call does, raises and promises. A call whose answer is lost
    raises ``CommitUnknownError``. Two calls are sent again instead: ``heartbeat``, and
    ``complete`` while the result is kept.
    """

    __slots__ = ("_engine",)

    def __init__(self, engine: Sender, granted: Granted, codec: Codec | None) -> None:
        super().__init__(granted, codec)
        self._engine = engine

    def heartbeat(self, seconds: Duration | None = None) -> datetime:
        """See ``Lease.heartbeat``, also for Durability and Cancellation."""
        fast, sent = self._engine.fast, _mono()
        length_s = None if seconds is None else duration_s(seconds, "seconds")
        if fast is not None:
            found = fast.heartbeat_many([self._granted], length_s)
            if found is not None:
                if isinstance(found[0], str):
                    raise lost_error(self, found[0])
                return self.extend(found[0], sent, length_s)
        doc = self._send(calls.heartbeat(self._granted, seconds))
        return self.extend(when(doc["deadline"]), sent, length_s)

    def read_payload(self) -> Any:
        """See ``Lease.read_payload``, also for Durability and Cancellation."""
        if self.payload_bytes <= WHOLE_BYTES_MAX:
            return self.payload
        with self.open_payload() as reader:
            return reader.read()

    def open_payload(self, *, slice_bytes: int = SLICE_BYTES) -> SyncRemotePayloadReader:
        """See ``Lease.open_payload``, also for Durability and Cancellation."""
        check_slice(slice_bytes)
        return open_remote_payload(self._engine, self.task_id, slice_bytes)

    def progress(self, fraction: float | None = None, note: str = "") -> None:
        """See ``Lease.progress``, also for Durability and Cancellation."""
        self._send(calls.progress(self._engine.session, self._granted, fraction, note))

    def complete(
        self,
        result: Any = None,
        *,
        then: Sequence[NewTask] = (),
        keep: bool = True,
        durable: bool | None = None,
    ) -> None:
        """See ``Lease.complete``, also for Durability and Cancellation.

        Args:
            result: kept for the queue's retention, at most ``Limits.result_bytes_max`` encoded.
            then: follow-up tasks, enqueued in the same commit.
            keep: False keeps no result.
            durable: True waits for an fsync, whatever the server's mode.
        """
        session, fast = self._engine.session, self._engine.fast
        with Doubt() as doubt:
            if fast is not None and not then and durable is None and type(keep) is bool:
                try:
                    if fast.complete(self._granted, result, keep, doubt):
                        self._is_live = False
                        return
                except LeaseLostError:
                    self.end()
                    raise
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

    def redrive(self) -> None:
        """See ``Lease.redrive``, also for Durability and Cancellation."""
        self._send(calls.nack("redrive", self._granted, None, ""))
        self.end()

    def cancel(self) -> None:
        """See ``Lease.cancel``, also for Durability and Cancellation."""
        self._send(calls.nack("cancel", self._granted, None, ""))
        self.end()

    def _send(self, call: Call) -> Any:
        try:
            return self._engine.send(call)
        except LeaseLostError:
            self.end()
            raise

    def __enter__(self) -> Self:
        self._pid = os.getpid()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_live or self._pid not in (None, os.getpid()):
            return  # a forked child leaves the block of its parent, which is still in it
        if error is None:
            self.complete()
        elif isinstance(error, Exception):
            self.nack(reason=repr_of(error))
        else:
            give_back([self])
