"""Backend of a worker: the store, its clock, and a keepalive that task functions cannot starve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio

from ....client.engine import RemoteEngine
from ....engine.runtime.clock import Clock, SystemClock
from ....engine.runtime.current_loop import current_spawner
from ....engine.runtime.event_loop import Spawner
from ....errors import (
    ClosedError,
    InvariantError,
    LeaseLostError,
    StoragePoisonedError,
    UsageError,
)
from ....repository.api.engine import Engine
from ....repository.api.view import view_of
from .lease_thread import ThreadKeepalive

if TYPE_CHECKING:
    from ....repository.tasks.lease import Lease

__all__ = ["Keepalive", "SyncHeartbeats", "WorkerBackend", "backend_of"]

FINAL = (ClosedError, InvariantError, UsageError)
LOOK_S = 1.0  # an embedded run learns within this time that its task was cancelled


class Keepalive(Protocol):
    """Sends heartbeats for leases until they are dropped. ``LeaseKeepalive`` is one."""

    def hold(self, leases: Iterable[Lease]) -> None:
        """Send heartbeats for these leases from now on."""

    def drop(self, lease: Lease) -> None:
        """Send none for this lease any more."""

    def close(self) -> None:
        """Stop all heartbeats, and end the timer or thread that sends them."""


class WorkerBackend:
    """An open store, embedded or served, and its clock.

    Args:
        engine: the open engine, or a client with the same methods.
        clock: the store's clock if it is embedded, the machine's if it is served.
        spawner: of the loop that the worker runs on.
        start_keepalive: makes a keepalive that calls its argument with each lost lease.
        has_redaction: the engine has a hook that sees previews before they are stored.
        is_served: a claim must not be cancelled. Its answer may be on its way, and nobody would
            hold the leases in it until they expire.

    ``owns_store`` says whether this process has the store open: then nobody else reopens it.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        spawner: Spawner,
        start_keepalive: Callable[[Callable[[Lease], None]], Keepalive],
        *,
        is_served: bool = False,
        has_redaction: bool = False,
    ) -> None:
        self.is_served = is_served
        self.owns_store: Callable[[], bool] = lambda: not is_served
        self.has_redaction = has_redaction
        self.engine = engine
        self.clock = clock
        self.spawner = spawner
        self.start_keepalive = start_keepalive

    def is_final(self, error: BaseException) -> bool:
        """Whether the same call fails for ever: code must be fixed, or this process reopen a store.

        A poisoned store of another process is reopened there, and goes on.
        """
        if isinstance(error, StoragePoisonedError):
            return self.owns_store()
        return isinstance(error, FINAL)

    async def wait(self, event: anyio.Event, until_mono: float = float("inf")) -> None:
        """Wait until the event is set, or until that moment of the store's clock."""
        clock = self.clock
        if until_mono == float("inf"):
            await event.wait()
        elif until_mono > clock.mono():
            timer = clock.call_at(self.spawner, until_mono, event.set)
            try:
                await event.wait()
            finally:
                timer.cancel()


class SyncHeartbeats:
    """Heartbeats over a client's ``sync``, which a task function may close at any moment.

    Args:
        engine: the client.
    """

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    def heartbeat_many(self, leases: Sequence[Any]) -> list[LeaseLostError | None]:
        """Extend these leases; ``ClosedError`` once the client itself is closed."""
        sync = self._engine.sync
        try:
            return sync.heartbeat_many(leases)
        except ClosedError:
            if self._engine.sync is sync:
                raise
            return self._engine.sync.heartbeat_many(leases)


def backend_of(engine: Any) -> WorkerBackend:
    """Return the backend of an engine, or of a client of a served one."""
    if isinstance(engine, Engine):
        view = view_of(engine)

        def embedded(on_lost: Callable[[Lease], None]) -> Keepalive:
            return view.lease_keepalive(on_lost, look_s=LOOK_S)

        redacts = view.has_redaction
        return WorkerBackend(engine, view.clock, view.spawner, embedded, has_redaction=redacts)
    if not isinstance(engine, RemoteEngine):
        raise UsageError(f"expected an open engine or client, got {type(engine).__name__}")
    spawner = current_spawner()

    def served(on_lost: Callable[[Lease], None]) -> Keepalive:
        return ThreadKeepalive(SyncHeartbeats(engine), spawner, on_lost)

    return WorkerBackend(
        cast("Engine", engine),
        SystemClock(),
        spawner,
        served,
        is_served=True,
        has_redaction=engine.session.redaction is not None,
    )
