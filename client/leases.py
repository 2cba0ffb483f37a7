"""``queue.leases()`` over a served store: claims ahead, hands out one by one, keeps them alive."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from anyio import create_task_group, sleep

from ..errors import LeaseLostError, LodeqError, UsageError
from .lease import RemoteLease
from .lease_facts import end_unanswered, may_be_live
from .requests import RemoteRequests
from .waits import give_back

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

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
        self._group: TaskGroup | None = None
        self._is_keepalive_running = False

    async def __aenter__(self) -> Self:
        self._group = create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        group.cancel_scope.cancel()
        try:
            # The block's own error is not the group's: it would come back wrapped.
            await group.__aexit__(None, None, None)
        finally:
            await give_back(list(self._waiting))
            self._waiting.clear()
            self._held.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RemoteLease:
        while True:
            if self._group is None:
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
            if self._group is None:  # left meanwhile, by another task
                await give_back(claimed)
                raise UsageError(INSIDE)
            self._waiting.extend(claimed)
            if self._is_kept_alive and claimed:
                self._held = [x for x in self._held if x.is_live] + claimed
                if not self._is_keepalive_running:
                    self._is_keepalive_running = True
                    self._group.start_soon(self._keep_alive)

    async def _keep_alive(self) -> None:
        """Extend all leases every third of the shortest length."""
        while self._held:
            await sleep(min(lease.lease_s for lease in self._held) / 3)
            self._held = [lease for lease in self._held if lease.is_live]
            try:
                await self._engine.heartbeat_many(self._held)
            except LodeqError:
                pass  # the server may be back for the next one
        self._is_keepalive_running = False
