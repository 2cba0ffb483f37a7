"""What a worker stands on: a store, time, and a keepalive that its own work cannot starve."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio

from ....client.engine import RemoteEngine
from ....engine.runtime.clock import Clock, SystemClock
from ....engine.runtime.event_loop import Spawner, current_spawner
from ....errors import UsageError
from ....repository.api.engine import Engine
from ....repository.api.view import view_of
from .lease_thread import ThreadKeeper

if TYPE_CHECKING:
    from ....repository.tasks.lease import Lease

__all__ = ["KeepAlive", "WorkerBackend", "ground_of"]

LOOK_S = 1.0  # how soon a run learns that its task was cancelled, embedded


class KeepAlive(Protocol):
    """Keeps leases alive until they are dropped. ``repository.keeping.Keeper`` is one."""

    def hold(self, leases: Iterable[Lease]) -> None:
        """Keep these alive from now on."""

    def drop(self, lease: Lease) -> None:
        """Leave this one alone."""

    def close(self) -> None:
        """Leave all alone, and end what was started."""


class WorkerBackend:
    """An open store, embedded or served, and its time.

    ``is_served``: a claim must not be taken back. Its answer may be on its way, and what it brings
    would belong to nobody until those leases expire.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        spawner: Spawner,
        keep_alive: Callable[[Callable[[Lease], None]], KeepAlive],
        *,
        is_served: bool = False,
    ) -> None:
        self.is_served = is_served
        self.engine = engine
        self.clock = clock
        self.spawner = spawner
        self.keep_alive = keep_alive

    async def wait(self, event: anyio.Event, until_mono: float = float("inf")) -> None:
        """Until the event, or that moment of the store's own clock."""
        clock = self.clock
        if until_mono == float("inf"):
            await event.wait()
        elif until_mono > clock.mono():
            timer = clock.call_at(self.spawner, until_mono, event.set)
            try:
                await event.wait()
            finally:
                timer.cancel()


def ground_of(engine: Any) -> WorkerBackend:
    """The ground of an engine, or of a client of a served one."""
    if isinstance(engine, Engine):
        view = view_of(engine)

        def embedded(on_lost: Callable[[Lease], None]) -> KeepAlive:
            return view.lease_keepalive(on_lost, look_s=LOOK_S)

        return WorkerBackend(engine, view.clock, view.spawner, embedded)
    if not isinstance(engine, RemoteEngine):
        raise UsageError(f"not an open engine or client: {type(engine).__name__}")
    spawner = current_spawner()

    def served(on_lost: Callable[[Lease], None]) -> KeepAlive:
        return ThreadKeeper(engine.sync, spawner, on_lost)

    return WorkerBackend(cast("Engine", engine), SystemClock(), spawner, served, is_served=True)
