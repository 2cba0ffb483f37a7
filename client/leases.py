"""``queue.leases()`` over a served store: claims ahead, hands out one by one, keeps them alive."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from anyio import CancelScope, sleep

from ..engine.runtime.current_loop import current_spawner
from ..errors import ClosedError, LeaseLostError, LodeqError, UsageError
from .lease import RemoteLease
from .lease_facts import end_unanswered, may_be_live
from .requests import RemoteRequests
from .waits import give_back

if TYPE_CHECKING:
    from ..engine.runtime.event_loop import Spawner, TaskHandle

__all__ = ["RemoteLeaseStream"]

INSIDE = "iterate it inside 'async with queue.leases(...) as stream:'"


class RemoteLeaseStream:
    """An async context manager and iterator of leases. See ``Queue.leases``.

    Its heartbeats share the event loop with the handlers: a handler that blocks the loop for longer
    than the lease loses it. Handlers that compute should claim in a thread, with
    ``lodeq.sync.connect``.
    """

    def __init__(
        self,
        engine: RemoteRequests,
        claim: Callable[[], Awaitable[list[RemoteLease]]],
        *,
        is_kept_alive: bool,
    ) -> None:
        self._engine = engine
        self._claim = claim
        self._is_kept_alive = is_kept_alive
        self._waiting: deque[RemoteLease] = deque()
        self._held: list[RemoteLease] = []
        self._spawner: Spawner | None = None  # None outside the block
        self._keepalive: TaskHandle | None = None

    async def __aenter__(self) -> Self:
        self._spawner = current_spawner()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # No task group: a block inside a generator may be left by another task than entered it, and
        # a group would then cancel whatever the first one is at.
        self._spawner = None
        keepalive, self._keepalive = self._keepalive, None
        if keepalive is not None:
            keepalive.cancel()
        try:
            await give_back(list(self._waiting))
        finally:
            self._waiting.clear()
            self._held.clear()
            if keepalive is not None:
                with CancelScope(shield=True):
                    await keepalive.join()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RemoteLease:
        while True:
            if self._spawner is None:
                raise UsageError(INSIDE)
            while self._waiting:
                lease = self._waiting.popleft()
                if lease.is_live and not may_be_live(lease):  # it has waited for too long
                    try:
                        await lease.heartbeat()
                    except LeaseLostError:
                        lease.end()
                    except LodeqError:  # one look is enough: the claim below says what is wrong
                        end_unanswered((lease, *self._waiting))
                    except BaseException:  # cancelled, or an interrupt: it goes back at the end
                        self._waiting.appendleft(lease)
                        raise
                if lease.is_live:  # else it is lost, or nobody says that it is not
                    return lease
            claimed = await self._claim()
            spawner = self._spawner
            if spawner is None:  # left meanwhile, by another task
                await give_back(claimed)
                raise UsageError(INSIDE)
            self._waiting.extend(claimed)
            if self._is_kept_alive and claimed:
                self._held = [x for x in self._held if x.is_live] + claimed
                if self._keepalive is None:
                    self._keepalive = spawner.spawn(self._keep_alive, "lodeq-lease-stream")

    async def _keep_alive(self) -> None:
        """Extend all leases every third of the shortest length."""
        try:
            while self._held:
                await sleep(min(lease.lease_s for lease in self._held) / 3)
                self._held = [lease for lease in self._held if lease.is_live]
                try:
                    await self._engine.heartbeat_many(self._held)
                except ClosedError:
                    return  # the client's own
                except LodeqError:
                    pass  # the server may be back for the next one
        finally:
            self._keepalive = None
