"""Keepalive of leases inside the process that owns the store.

A ``LeaseKeepalive`` extends the leases it holds every third of their length. That alone has a gap:
a handler that blocks the event loop blocks the extensions too, and afterwards the reaper may run
first. So the reaper lets every keepalive extend its leases before it takes any: a held lease is
never reaped while this process lives. (If the process dies, its leases go back at the next open,
whatever their deadlines say.)

A handler that hangs needs a timeout of its own; the worker has one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...engine.runtime.clock import TimerHandle
    from ..state.engine_state import EngineState
    from ..tasks.lease import Lease

__all__ = ["LeaseKeepalive"]

_log = logging.getLogger(__name__)


class LeaseKeepalive:
    """Holds leases of one engine until they end, are dropped, or it is closed.

    Args:
        state: the engine's state.
        on_lost: called with each held lease that ended without being dropped: the task was
            cancelled, or another part of this process ended it.
        look_s: check for such leases at least this often, in seconds.
    """

    def __init__(
        self,
        state: EngineState,
        *,
        on_lost: Callable[[Lease], None] | None = None,
        look_s: float = float("inf"),
    ) -> None:
        self._state = state
        self._on_lost = on_lost
        self._look_s = look_s
        self._held: dict[Lease, None] = {}
        self._timer: TimerHandle | None = None
        self._timer_at = float("inf")
        self._beaten_mono = 0.0  # when the loop was last seen to run

    def hold(self, leases: Iterable[Lease]) -> None:
        """Keep leases alive from now on."""
        shortest = float("inf")
        for lease in leases:
            if not lease.is_live and self._on_lost is None:
                continue
            self._held[lease] = None
            if self._on_lost is None:  # else the next check reports it
                self._state.kept_alive[lease.task_id] = self
            shortest = min(shortest, lease.lease_s)
        if self._held:
            self._beaten_mono = self._state.clock.mono()
            self._state.keepalives[self] = None
            self._look_at(min(shortest / 3, self._look_s))

    def drop(self, lease: Lease) -> None:
        """Stop extending a lease: its holder ends it, or has ended it."""
        self.forget(lease)
        self._leave(lease)
        if not self._held:
            self.close()

    def forget(self, lease: Lease) -> None:
        """Drop a lease that has ended; the rest is done at the next check."""
        self._held.pop(lease, None)

    def _leave(self, lease: Lease) -> None:
        """Stop being called when the lease ends."""
        if self._state.kept_alive.get(lease.task_id) is self:
            del self._state.kept_alive[lease.task_id]

    def close(self) -> None:
        """Drop all leases. It can be used again."""
        for lease in self._held:
            self._leave(lease)
        self._held.clear()
        self._state.keepalives.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, float("inf")

    def beat(self) -> None:
        """Extend all held leases that are live; drop the others. Does not wait."""
        now = self._state.clock.mono()
        held_s, self._beaten_mono = now - self._beaten_mono, now
        shortest = float("inf")
        over = []
        for lease in self._held:
            shortest = min(shortest, lease.lease_s)
            if lease.is_live and not lease.shard_queue.shard.coalescer.has_session:
                continue  # another replica may have ended it: the next beat tells
            if lease.is_live:
                # Never shortened: the reaper sees the new deadline when the old one comes up.
                lease.deadline_mono = max(lease.deadline_mono, now + lease.lease_s)
            else:
                over.append(lease)
        if held_s >= shortest:
            _log.warning(
                "the event loop was held for %.1f s, longer than a lease of %g s: a function that "
                "computes or blocks belongs in a thread ('def' instead of 'async def')",
                held_s,
                shortest,
                extra={"event": "loop_late", "seconds": held_s},
            )
        for lease in over:
            self.forget(lease)
            if self._on_lost is not None:
                self._on_lost(lease)

    def _look_at(self, in_s: float) -> None:
        state = self._state
        at = state.clock.mono() + in_s
        if at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = state.clock.call_at(state.spawner, at, self._look)

    def _look(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self.beat()
        if self._held:
            self._look_at(min(min(lease.lease_s for lease in self._held) / 3, self._look_s))
        else:
            self._state.keepalives.pop(self, None)
