"""A lease on a task of a served store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from anyio import CancelScope, create_task_group, move_on_after

from ..engine.records.policy import Policy
from ..engine.runtime.task_id import TaskId
from ..errors import LeaseLostError, LodeqError, UsageError
from ..repository.model.values import Codec, Duration, NewTask
from . import calls
from .records import Granted, decoded, when

if TYPE_CHECKING:
    from .engine import RemoteEngine

__all__ = ["LeaseFacts", "RemoteLease", "check_lease", "give_back", "lost_of"]

_AT_ONCE = 8
_GIVE_BACK_S = 5.0  # how long a cancelled worker may wait for its release to arrive


class LeaseFacts:
    """What a lease tells, however its calls wait."""

    __slots__ = ("_codec", "_granted", "_is_live", "deadline")

    def __init__(self, granted: Granted, codec: Codec | None) -> None:
        self._granted = granted
        self._codec = codec
        self._is_live = True
        self.deadline: datetime = granted.deadline

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name} {self.task_id} attempt={self.attempt} live={self.is_live}>"

    @property
    def granted(self) -> Granted:
        """The lease as the server told it."""
        return self._granted

    @property
    def is_live(self) -> bool:
        """Whether it has neither been ended here nor been found lost."""
        return self._is_live

    def end(self) -> None:
        """It is over, as far as this process knows."""
        self._is_live = False

    @property
    def task_id(self) -> TaskId:
        """The task's id."""
        return self._granted.task_id

    @property
    def payload(self) -> Any:
        """What was enqueued: bytes as bytes, other values as the codec or msgpack gives them."""
        return decoded(self._granted.payload, self._codec)

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers given at enqueue; empty if none."""
        return decoded(self._granted.headers, None) or {}

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
        """What was frozen at enqueue."""
        return self._granted.policy

    @property
    def enqueued_at(self) -> datetime:
        """Wall time of the enqueue."""
        return self._granted.enqueued_at

    def beaten(self, doc: Mapping[str, Any]) -> datetime:
        """Note the new deadline that a heartbeat brought."""
        deadline = when(doc["deadline"])
        if deadline is not None:
            self.deadline = deadline
        return self.deadline


def check_lease(lease: object) -> None:
    """A lease of a client, of either kind."""
    if not isinstance(lease, LeaseFacts):
        raise UsageError(f"not a lease of a client: {type(lease).__name__}")


def lost_of(lease: LeaseFacts, detail: str) -> LeaseLostError:
    """The outcome of one lease of a batch."""
    lease.end()
    return LeaseLostError(detail, task_id=lease.task_id)


class RemoteLease(LeaseFacts):
    """As ``lodeq.Lease``: ``async with lease:``, or ``complete`` and its like.

    What the calls mean, what they raise and what they promise stands there. A call whose answer
    is lost raises ``CommitUnknownError``, except for ``complete`` (repeated by itself while its
    result is kept) and ``heartbeat``.
    """

    __slots__ = ("_engine",)

    def __init__(self, engine: RemoteEngine, granted: Granted, codec: Codec | None) -> None:
        super().__init__(granted, codec)
        self._engine = engine

    async def heartbeat(self, seconds: Duration | None = None) -> datetime:
        """See ``Lease.heartbeat``, also for Durability and Cancellation."""
        return self.beaten(await self._send(calls.heartbeat(self._granted, seconds)))

    async def complete(
        self,
        result: Any = None,
        *,
        then: Sequence[NewTask] = (),
        keep: bool = True,
        durable: bool | None = None,
    ) -> None:
        """See ``Lease.complete``, also for Durability and Cancellation."""
        session = self._engine.session
        await self._send(calls.complete(session, self._granted, result, then, keep, durable))
        self.end()

    async def nack(self, *, delay: Duration | None = None, reason: str = "") -> None:
        """See ``Lease.nack``, also for Durability and Cancellation."""
        await self._send(calls.nack("nack", self._granted, delay, reason))
        self.end()

    async def release(self, *, delay: Duration | None = None) -> None:
        """See ``Lease.release``, also for Durability and Cancellation."""
        await self._send(calls.nack("release", self._granted, delay, ""))
        self.end()

    async def bury(self, reason: str = "") -> None:
        """See ``Lease.bury``, also for Durability and Cancellation."""
        await self._send(calls.nack("bury", self._granted, None, reason))
        self.end()

    async def cancel(self) -> None:
        """See ``Lease.cancel``, also for Durability and Cancellation."""
        await self._send(calls.nack("cancel", self._granted, None, ""))
        self.end()

    async def _send(self, call: calls.Call) -> Any:
        try:
            return await self._engine.send(call)
        except LeaseLostError:
            self.end()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_live:
            return
        if error is None:
            await self.complete()
        elif isinstance(error, Exception):
            await self.nack(reason=repr(error))
        else:
            await give_back([self])


async def give_back(leases: Sequence[RemoteLease]) -> None:
    """Release on the way out of a cancelled worker. Should it fail, the leases run out."""
    rest = iter(leases)

    async def release_some() -> None:
        for lease in rest:
            if lease.is_live:
                try:
                    await lease.release()
                except LodeqError:
                    lease.end()

    with CancelScope(shield=True), move_on_after(_GIVE_BACK_S):
        async with create_task_group() as group:
            for _ in range(min(_AT_ONCE, len(leases))):
                group.start_soon(release_some)
