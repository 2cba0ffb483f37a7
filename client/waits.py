"""The parts of the async client that its blocking twin has to do in another way.

Taking back claims whose answers nobody reads, giving leases back, and work in a thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from anyio import CancelScope, create_task_group, move_on_after
from anyio.to_thread import run_sync

from ..engine.runtime.ids import SystemRng
from ..errors import ClosedError, LodeqError, UnreachableError
from . import calls
from .calls import CLOSED, Call, QueueTemplate, Session

if TYPE_CHECKING:
    from .cluster.fast_calls import ClusterFastCalls
    from .documents.records import Granted
    from .fast_calls import FastCalls

__all__ = ["PendingClaims", "Releasable", "give_back", "in_thread"]

_CANCELS_MAX: Final = 8  # at once: there may be as many claims as the server takes connections
_RELEASES_MAX: Final = 8  # at once
_GIVE_BACK_S: Final = 5.0  # how long a cancelled worker may wait for its releases to arrive
T = TypeVar("T")


class PendingClaims:
    """Claims whose answers are awaited. Each is answered or taken back, never both."""

    def __init__(self, send: Callable[[Call], Awaitable[Any]], session: Session) -> None:
        self._send = send
        self._session = session
        self._rng = SystemRng()
        self._ids: set[bytes] = set()
        self.is_closing = False  # or closed

    def draw_id(self) -> bytes:
        """A new id for one claim."""
        return self._rng.bytes(calls.CLAIM_ID_BYTES)

    async def send(self, call: Call, claim_id: bytes) -> Any:
        """Send a claim and return the document of its answer.

        Raises:
            ClosedError: the client is closing. The server has its leases back, or gets them back
                at the end of their length.

        Cancellation: the claim is taken back, so its leases go back at once.
        """
        if self.is_closing:
            raise ClosedError(CLOSED)
        self._ids.add(claim_id)
        try:
            doc = await self._send(call)
        except LodeqError as error:
            if isinstance(error, UnreachableError):
                await self._cancel([claim_id])
            raise
        except BaseException:
            await self._cancel([claim_id])
            raise
        finally:
            is_taken_back = claim_id not in self._ids
            self._ids.discard(claim_id)
        if is_taken_back:  # while the answer was on its way: the leases are the server's again
            raise ClosedError(CLOSED)
        return doc

    async def send_fast(
        self,
        fast: FastCalls | ClusterFastCalls,
        template: QueueTemplate,
        limit: int,
        lease_s: float,
        wait_s: float,
        worker: str,
    ) -> list[Granted] | None:
        """Send a claim the short way; see ``FastCalls.claim`` and ``send``.

        Args:
            fast: the short way.
            template: the queue.
            limit: 1 to 4,096.
            lease_s: seconds.
            wait_s: seconds that this poll may wait.
            worker: at most 256 bytes, checked.
        """
        if self.is_closing:
            raise ClosedError(CLOSED)
        ids: list[bytes] = []  # in a cluster one for each node that is asked

        def begun(id: bytes) -> None:
            if self.is_closing:  # it would be taken back by nobody
                raise ClosedError(CLOSED)
            ids.append(id)
            self._ids.add(id)

        try:
            found = await fast.claim(template, limit, lease_s, wait_s, worker, begun)
        except LodeqError as error:
            if isinstance(error, UnreachableError):
                await self._cancel(ids)
            raise
        except BaseException:
            await self._cancel(ids)
            raise
        finally:
            is_taken_back = not self._ids.issuperset(ids)
            self._ids.difference_update(ids)
        if is_taken_back:
            raise ClosedError(CLOSED)
        return found

    async def close(self) -> None:
        """Refuse further claims and take back those that are not answered yet."""
        self.is_closing = True
        if self._session.takes_claim_ids:
            claim_ids, self._ids = self._ids, set()
            await self._cancel(claim_ids)

    async def _cancel(self, claim_ids: Collection[bytes]) -> None:
        """Take back several in the time of one: a server that hangs is waited for once."""
        if not self._session.takes_claim_ids or not claim_ids:
            return
        left = iter(claim_ids)

        async def some() -> None:
            for claim_id in left:
                try:
                    await self._send(calls.cancel_claim(claim_id))
                except LodeqError:
                    pass  # its leases end with their length

        with move_on_after(calls.CANCEL_CLAIM_S, shield=True):
            async with create_task_group() as group:
                for _ in range(min(len(claim_ids), _CANCELS_MAX)):
                    group.start_soon(some)


class Releasable(Protocol):
    """A lease, as far as ``give_back`` needs it."""

    @property
    def is_live(self) -> bool:
        """Whether it has neither been ended here nor been found lost."""

    def end(self) -> None:
        """Mark it as over, as far as this process knows."""

    async def release(self) -> None:
        """Put the task back into its queue."""


async def give_back(leases: Sequence[Releasable]) -> None:
    """Release on the way out of a cancelled worker. A lease whose release fails runs out."""
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
            for _ in range(min(_RELEASES_MAX, len(leases))):
                group.start_soon(release_some)


async def in_thread(function: Callable[[], T]) -> T:
    """Run a function that blocks in a thread."""
    return await run_sync(function)
