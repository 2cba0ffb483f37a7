"""Leases for threads. Arguments are documented at ``Lease`` and ``Queue.leases``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ....engine.records.policy import Policy
from ....engine.runtime.task_id import TaskId
from ....errors import ClosedError
from ...model.codec import SLICE_BYTES
from ...tasks.lease import Lease
from ...tasks.streamed_payloads import PayloadReader
from .thread_calls import ThreadTwin, blocking

if TYPE_CHECKING:
    from ..leases import LeaseStream
    from .thread_calls import ThreadCalls

__all__ = ["ThreadLease", "ThreadLeaseStream", "ThreadPayloadReader"]


class ThreadPayloadReader(ThreadTwin[PayloadReader]):
    """A ``PayloadReader`` whose calls block: ``with`` it, iterate over it, or ``read``."""

    __slots__ = ()

    @property
    def size(self) -> int:
        """Bytes of the whole payload."""
        return self._twin.size

    read = blocking(PayloadReader.read)
    """See ``PayloadReader.read``, also for Durability and Cancellation."""

    def close(self) -> None:
        """See ``PayloadReader.aclose``, also for Durability and Cancellation."""
        self._call(self._twin.aclose)

    def __iter__(self) -> Iterator[bytes]:
        while data := self.read(self._twin.slice_bytes):
            yield data
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ThreadLease(ThreadTwin[Lease]):
    """A ``Lease`` whose calls block. ``with lease:`` completes, nacks or releases as it does."""

    __slots__ = ()

    @property
    def twin(self) -> Lease:
        """The lease as the loop's own code holds it."""
        return self._twin

    @property
    def task_id(self) -> TaskId:
        """The task's id."""
        return self._twin.task_id

    @property
    def payload(self) -> Any:
        """The payload given at enqueue."""
        return self._twin.payload

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payload, as it was packed and before compression."""
        return self._twin.payload_bytes

    read_payload = blocking(Lease.read_payload)
    """See ``Lease.read_payload``, also for Durability and Cancellation."""

    def open_payload(self, *, slice_bytes: int = SLICE_BYTES) -> ThreadPayloadReader:
        """See ``Lease.open_payload``, also for Durability and Cancellation."""
        reader = self._call(self._twin.open_payload, slice_bytes=slice_bytes)
        return ThreadPayloadReader(reader, self._call)

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers given at enqueue."""
        return self._twin.headers

    @property
    def function(self) -> str:
        """The function given at enqueue; empty if none."""
        return self._twin.function

    @property
    def preview(self) -> str:
        """The preview of the arguments given at enqueue; empty if none."""
        return self._twin.preview

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels given at enqueue; empty if none."""
        return self._twin.labels

    @property
    def priority(self) -> int:
        """0 to 9."""
        return self._twin.priority

    @property
    def attempt(self) -> int:
        """1 is the first run."""
        return self._twin.attempt

    @property
    def dead_at(self) -> datetime | None:
        """When the task died; None unless the lease is of a dead letter."""
        return self._twin.dead_at

    @property
    def reason(self) -> str:
        """Why the task died; empty unless the lease is of a dead letter."""
        return self._twin.reason

    @property
    def enqueued_at(self) -> datetime:
        """Wall time of the enqueue."""
        return self._twin.enqueued_at

    @property
    def deadline(self) -> datetime:
        """When it may be reaped, as wall time."""
        return self._twin.deadline

    @property
    def epoch(self) -> int:
        """Grows with every lease of the engine."""
        return self._twin.epoch

    @property
    def token(self) -> bytes:
        """128 random bits."""
        return self._twin.token

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self._twin.queue

    @property
    def tenant(self) -> str:
        """The tenant it belongs to."""
        return self._twin.tenant

    @property
    def policy(self) -> Policy:
        """The policy, frozen at enqueue."""
        return self._twin.policy

    @property
    def lease_s(self) -> float:
        """The length it was claimed with, in seconds."""
        return self._twin.lease_s

    @property
    def is_live(self) -> bool:
        """Whether it has neither been ended nor been found lost."""
        return self._twin.is_live

    heartbeat = blocking(Lease.heartbeat)
    """See ``Lease.heartbeat``, also for Durability and Cancellation."""

    progress = blocking(Lease.progress)
    """See ``Lease.progress``, also for Durability and Cancellation."""

    complete = blocking(Lease.complete)
    """See ``Lease.complete``, also for Durability and Cancellation."""

    nack = blocking(Lease.nack)
    """See ``Lease.nack``, also for Durability and Cancellation."""

    release = blocking(Lease.release)
    """See ``Lease.release``, also for Durability and Cancellation."""

    bury = blocking(Lease.bury)
    """See ``Lease.bury``, also for Durability and Cancellation."""

    redrive = blocking(Lease.redrive)
    """See ``Lease.redrive``, also for Durability and Cancellation."""

    cancel = blocking(Lease.cancel)
    """See ``Lease.cancel``, also for Durability and Cancellation."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._twin.is_live:
            return
        try:
            self._call(self._twin.__aexit__, kind, error, traceback)
        except ClosedError:
            if error is None or isinstance(error, Exception):
                raise
            # Leaving by an interrupt: the task goes back when the store is opened again.


class ThreadLeaseStream:
    """Leases one after another: ``for lease in queue.leases(): with lease: ...``.

    Leaving the loop releases what was claimed ahead and not started. In a ``with`` block that
    waits for the end of the block, so that it can be iterated again.
    """

    def __init__(self, stream: LeaseStream, call: ThreadCalls) -> None:
        self._stream = stream
        self._call = call
        self._is_entered = False

    def __enter__(self) -> Self:
        self._call(self._stream.__aenter__)
        self._is_entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_entered = False
        try:
            self._call(self._stream.__aexit__, kind, error, traceback)
        except ClosedError:
            pass  # closing has given all leases back

    def __iter__(self) -> Iterator[ThreadLease]:
        if self._is_entered:
            yield from self._each()
        else:
            with self:
                yield from self._each()

    def _each(self) -> Iterator[ThreadLease]:
        while True:
            yield ThreadLease(self._call(self._stream.__anext__), self._call)
