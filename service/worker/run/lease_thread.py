"""Keeping the leases of a served store alive, from a thread with a connection of its own.

Whatever a task function does to the event loop, this thread goes on: the interpreter hands the GIL
over every few milliseconds. (C code that keeps the GIL for a whole lease does stop it; nothing in
this process could help.) A process that is frozen sends nothing; its leases run out at the store,
and the first beat after it wakes says which.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Final, Protocol

from ....engine.runtime.clock import SystemClock
from ....engine.runtime.event_loop import Spawner
from ....errors import ClosedError, LeaseLostError, LodeqError

if TYPE_CHECKING:
    from ....repository.tasks.lease import Lease

__all__ = ["Beats", "ThreadKeeper"]

AGAIN_S: Final = 0.5  # after a beat that did not get through, at the latest
BATCH: Final = 512
log = logging.getLogger("lodeq.worker")


class Beats(Protocol):
    """A blocking connection to the store: ``engine.sync`` of a client."""

    def heartbeat_many(self, leases: Sequence[Any]) -> list[LeaseLostError | None]:
        """As ``Engine.heartbeat_many``."""


class ThreadKeeper:
    """A ``KeepAlive`` with a thread, which starts with the first lease and ends at ``close``.

    Args:
        beats: the connection.
        spawner: of the worker's loop, which hears of lost leases.
        on_lost: called on that loop with each lease that was lost before it was dropped.
    """

    def __init__(self, beats: Beats, spawner: Spawner, on_lost: Callable[[Lease], None]) -> None:
        self._beats = beats
        self._spawner = spawner
        self._on_lost = on_lost
        self._held: dict[Lease, float] = {}  # its length in seconds
        self._changed = Condition()
        self._clock = SystemClock()
        self._beaten_mono = self._clock.mono()
        self._is_closed = False
        self._thread: Thread | None = None

    def hold(self, leases: Iterable[Lease]) -> None:
        """Keep these alive from now on."""
        with self._changed:
            for lease in leases:
                self._held[lease] = lease.lease_s
            self._changed.notify()
            if self._thread is None and self._held:
                self._thread = Thread(target=self._run, name="lodeq-keepalive", daemon=True)
                self._thread.start()

    def drop(self, lease: Lease) -> None:
        """Leave this one alone. A beat that is on its way may still extend it."""
        with self._changed:
            self._held.pop(lease, None)

    def close(self) -> None:
        """Leave all alone; the thread ends by itself."""
        with self._changed:
            self._held.clear()
            self._is_closed = True
            self._changed.notify()

    # -- in the thread -----------------------------------------------------------------

    def _run(self) -> None:
        pause_s: float | None = None
        while (held := self._next(pause_s)) is not None:
            try:
                for start in range(0, len(held), BATCH):
                    self._beat(held[start : start + BATCH])
                pause_s = None
            except ClosedError:
                return  # the worker hears of it by its own calls
            except (LodeqError, OSError) as error:
                log.warning(
                    "heartbeats did not get through: %r",
                    error,
                    extra={"event": "heartbeats_failed"},
                )
                pause_s = AGAIN_S
            except Exception:  # whatever it is, leases depend on this thread
                log.exception("heartbeats failed", extra={"event": "heartbeats_failed"})
                pause_s = AGAIN_S

    def _next(self, pause_s: float | None) -> list[Lease] | None:
        """What to extend, when it is time to; None once closed."""
        with self._changed:
            while not self._is_closed:
                if not self._held:
                    self._changed.wait()
                    continue
                period_s = min(self._held.values()) / 3
                if pause_s is not None:
                    period_s = min(period_s, pause_s)
                left_s = self._beaten_mono + period_s - self._clock.mono()
                if left_s <= 0:
                    self._beaten_mono = self._clock.mono()
                    return list(self._held)
                self._changed.wait(left_s)  # or until there is a lease, perhaps a shorter one
        return None

    def _beat(self, leases: list[Lease]) -> None:
        for lease, lost in zip(leases, self._beats.heartbeat_many(leases), strict=True):
            if lost is None:
                continue
            with self._changed:
                was_held = self._held.pop(lease, None) is not None
            if was_held:
                self._spawner.call_soon_threadsafe(self._on_lost, lease)
