"""Lease streams, made by ``Queue.leases``: claim ahead, hand out leases singly, keep all alive."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ...errors import UsageError
from ..background.lease_keepalive import LeaseKeepalive
from ..state.engine_state import EngineState
from ..state.long_polls import ClaimRequest
from ..tasks.claim import claim
from ..tasks.task_end import give_back

if TYPE_CHECKING:
    from ..tasks.lease import Lease

__all__ = ["LeaseStream"]

INSIDE = "iterate it inside 'async with queue.leases(...) as stream:'"


class LeaseStream:
    """Async context manager and iterator of leases. See ``Queue.leases``."""

    def __init__(
        self, state: EngineState, request: ClaimRequest, *, wait_s: float, is_kept_alive: bool
    ) -> None:
        self._state = state
        self._request = request
        self._wait_s = wait_s
        self._is_kept_alive = is_kept_alive
        self._waiting: deque[Lease] = deque()
        self._keepalive = LeaseKeepalive(state)
        self._is_open = False

    async def __aenter__(self) -> Self:
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False
        self._keepalive.close()
        # Without an await: a cancelled worker takes this way out, too.
        give_back(self._state, list(self._waiting))
        self._waiting.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Lease:
        self._state.check()
        if not self._is_open:
            raise UsageError(INSIDE)
        while True:
            while self._waiting:
                lease = self._waiting.popleft()
                if lease.is_live:  # else it was reaped while it waited
                    return lease
            claimed = await claim(self._state, self._request, self._wait_s)
            self._state.check()
            if not self._is_open:  # left meanwhile, by another task
                give_back(self._state, claimed)
                raise UsageError(INSIDE)
            self._waiting.extend(claimed)
            if self._is_kept_alive and claimed:
                self._keepalive.hold(claimed)
