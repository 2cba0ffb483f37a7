"""The fields of a lease on a task of a served store, however its calls wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ..engine.records.policy import Policy
from ..engine.records.task import WHOLE_BYTES_MAX
from ..engine.runtime.clock import SystemClock
from ..engine.runtime.task_id import TaskId
from ..errors import LeaseLostError, UsageError
from ..repository.model.codec import not_loaded
from ..repository.model.values import Codec
from .documents.records import Granted, decoded

__all__ = ["LeaseFacts", "check_lease", "end_unanswered", "lost_error", "may_be_live"]

_mono = SystemClock.mono


class LeaseFacts:
    """The fields of a lease, and whether it is live: shared by both clients."""

    __slots__ = ("_codec", "_granted", "_is_live", "_pid", "_until_mono", "deadline")

    def __init__(self, granted: Granted, codec: Codec | None) -> None:
        self._granted = granted
        self._codec = codec
        self._is_live = True
        self._pid: int | None = None  # of the process that is in its block
        self.deadline: datetime = granted.deadline
        self._until_mono = _mono() + granted.lease_s

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name} {self.task_id} attempt={self.attempt} live={self.is_live}>"

    @property
    def granted(self) -> Granted:
        """The lease as the server granted it."""
        return self._granted

    @property
    def is_live(self) -> bool:
        """Whether it has neither been ended here nor been found lost."""
        return self._is_live

    def end(self) -> None:
        """Mark it as over, as far as this process knows."""
        self._is_live = False

    @property
    def task_id(self) -> TaskId:
        """The task's id."""
        return self._granted.task_id

    @property
    def payload(self) -> Any:
        """The enqueued payload: bytes as bytes, other values decoded by the codec or msgpack.

        Raises:
            PayloadNotLoadedError: it has more than 3 MiB: ``read_payload``, ``open_payload``.
        """
        if self._granted.payload_bytes > WHOLE_BYTES_MAX:
            raise not_loaded(self.task_id, self._granted.payload_bytes)
        return decoded(self._granted.payload, self._codec)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payload, as it was packed and before compression."""
        return self._granted.payload_bytes or len(self._granted.payload.data)

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers given at enqueue; empty if none."""
        return decoded(self._granted.headers, None) or {}

    @property
    def function(self) -> str:
        """The function given at enqueue; empty if none."""
        return self._granted.function

    @property
    def preview(self) -> str:
        """The preview of the arguments given at enqueue; empty if none."""
        return self._granted.preview

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels given at enqueue; empty if none."""
        return self._granted.labels

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self._granted.queue

    @property
    def tenant(self) -> str:
        """The tenant it belongs to."""
        return self._granted.tenant

    @property
    def priority(self) -> int:
        """0 to 9."""
        return self._granted.priority

    @property
    def attempt(self) -> int:
        """1 is the first run."""
        return self._granted.attempt

    @property
    def dead_at(self) -> datetime | None:
        """When the task died; None unless the lease is of a dead letter."""
        return self._granted.dead_at

    @property
    def reason(self) -> str:
        """Why the task died; empty unless the lease is of a dead letter."""
        return self._granted.reason

    @property
    def epoch(self) -> int:
        """Grows with every lease of the engine."""
        return self._granted.epoch

    @property
    def token(self) -> bytes:
        """128 random bits."""
        return self._granted.token

    @property
    def lease_s(self) -> float:
        """The length it was claimed with, in seconds."""
        return self._granted.lease_s

    @property
    def policy(self) -> Policy:
        """The retry policy, fixed at enqueue."""
        return self._granted.policy

    @property
    def enqueued_at(self) -> datetime:
        """Wall time of the enqueue."""
        return self._granted.enqueued_at

    def extend(
        self, deadline: datetime | None, sent_mono: float, length_s: float | None
    ) -> datetime:
        """Take over the deadline that a heartbeat returned.

        Args:
            deadline: of the server; None: it said none.
            sent_mono: when the heartbeat was sent: the lease lasts its length from then at least.
            length_s: seconds that were asked for; None: as it was claimed for.
        """
        self._until_mono = sent_mono + (self.lease_s if length_s is None else length_s)
        if deadline is not None:
            self.deadline = deadline
        return self.deadline


def check_lease(lease: object) -> None:
    """Refuse anything but a lease of a client, of either kind."""
    if not isinstance(lease, LeaseFacts):
        raise UsageError(f"not a lease of a client: {type(lease).__name__}")


def lost_error(lease: LeaseFacts, detail: str) -> LeaseLostError:
    """Mark the lease as over; the error that a batch returns for it."""
    lease.end()
    return LeaseLostError(detail, task_id=lease.task_id)


def may_be_live(lease: LeaseFacts) -> bool:
    """Whether its length, from when the last good heartbeat was sent, is not over yet."""
    return _mono() < lease._until_mono


def end_unanswered(leases: Iterable[LeaseFacts]) -> None:
    """End those that have run out by this side's count: nobody says that they are still held."""
    for lease in leases:
        if not may_be_live(lease):
            lease.end()
