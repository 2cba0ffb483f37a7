"""Keepalive of a served store: a thread with a connection of its own sends the heartbeats.

Whatever a task function does to the event loop, this thread goes on, because the interpreter hands
over the GIL every few milliseconds. (Only C code that keeps the GIL for a whole lease stops it.) A
frozen process sends nothing: its leases expire at the store, and the first heartbeat after it
wakes reports which ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Final, Protocol

from ....engine.runtime.clock import SystemClock
from ....engine.runtime.event_loop import Spawner
from ....errors import ClosedError, LeaseLostError, LodeqError, StorageError

if TYPE_CHECKING:
    from ....repository.tasks.lease import Lease

__all__ = ["HeartbeatConnection", "ThreadKeepalive"]

RETRY_S: Final = 0.5  # at most, after heartbeats that failed
BATCH: Final = 512  # leases in one call
log = logging.getLogger("lodeq.worker")


class HeartbeatConnection(Protocol):
    """A blocking connection to the store: ``engine.sync`` of a client."""

    def heartbeat_many(self, leases: Sequence[Any]) -> list[LeaseLostError | None]:
        """Extend these leases, as ``Engine.heartbeat_many`` does."""


class ThreadKeepalive:
    """A ``Keepalive`` with a thread, which starts with the first lease and ends at ``close``.

    Args:
        connection: used by the thread alone.
        spawner: of the worker's loop.
        on_lost: called on that loop with each lease that was lost before it was dropped.
    """

    def __init__(
        self,
        connection: HeartbeatConnection,
        spawner: Spawner,
        on_lost: Callable[[Lease], None],
    ) -> None:
        self._connection = connection
        self._spawner = spawner
        self._on_lost = on_lost
        self._held: dict[Lease, float] = {}  # to the length of each in seconds
        self._changed = Condition()
        self._clock = SystemClock()
        self._last_mono = self._clock.mono()
        self._is_closed = False
        self._thread: Thread | None = None
        self._asked_mono: float | None = None  # when the loop was asked whether it runs
        self._is_held_logged = False

    def hold(self, leases: Iterable[Lease]) -> None:
        """Send heartbeats for these leases from now on.

        Raises:
            StorageError: the thread cannot be started; none of them is held.
        """
        with self._changed:
            more = {lease: lease.lease_s for lease in leases}
            if self._thread is None and more:
                thread = Thread(target=self._run, name="lodeq-keepalive", daemon=True)
                try:
                    thread.start()
                except RuntimeError as exc:
                    raise StorageError(f"no thread for heartbeats: {exc}") from exc
                self._thread = thread
            self._held.update(more)
            self._changed.notify()

    def drop(self, lease: Lease) -> None:
        """Send no more heartbeats for this lease. One under way may still extend it."""
        with self._changed:
            self._held.pop(lease, None)

    def close(self) -> None:
        """Send no more heartbeats; the thread ends by itself."""
        with self._changed:
            self._held.clear()
            self._is_closed = True
            self._changed.notify()

    # -- in the thread -----------------------------------------------------------------

    def _run(self) -> None:
        pause_s: float | None = None
        while (held := self._next(pause_s)) is not None:
            self._watch_loop(min(lease.lease_s for lease in held))
            try:
                for start in range(0, len(held), BATCH):
                    self._heartbeat(held[start : start + BATCH])
                pause_s = None
            except ClosedError:
                return  # the worker's own calls raise it
            except (LodeqError, OSError) as error:
                log.warning(
                    "heartbeats failed: %r",
                    error,
                    extra={"event": "heartbeats_failed"},
                )
                pause_s = RETRY_S
            except Exception:  # whatever it was: all leases depend on this thread
                log.exception("heartbeats failed", extra={"event": "heartbeats_failed"})
                pause_s = RETRY_S

    def _watch_loop(self, shortest_s: float) -> None:
        """Log, once, that the worker's loop has not run for longer than a lease."""
        now, asked_mono = self._clock.mono(), self._asked_mono
        if asked_mono is None:
            self._asked_mono, self._is_held_logged = now, False
            try:
                self._spawner.call_soon_threadsafe(self._loop_runs)
            except RuntimeError:
                pass  # it is closed
        elif now - asked_mono >= shortest_s and not self._is_held_logged:
            self._is_held_logged = True
            log.warning(
                "the event loop has been held for %.1f s, longer than a lease of %g s: a function "
                "that computes or blocks belongs in a thread ('def' instead of 'async def')",
                now - asked_mono,
                shortest_s,
                extra={"event": "loop_late", "seconds": now - asked_mono},
            )

    def _loop_runs(self) -> None:
        self._asked_mono = None

    def _next(self, pause_s: float | None) -> list[Lease] | None:
        """Wait until heartbeats are due, and return the leases; None once closed."""
        with self._changed:
            while not self._is_closed:
                if not self._held:
                    self._changed.wait()
                    continue
                period_s = min(self._held.values()) / 3
                if pause_s is not None:
                    period_s = min(period_s, pause_s)
                left_s = self._last_mono + period_s - self._clock.mono()
                if left_s <= 0:
                    self._last_mono = self._clock.mono()
                    return list(self._held)
                self._changed.wait(left_s)  # or until there is a lease, perhaps a shorter one
        return None

    def _heartbeat(self, leases: list[Lease]) -> None:
        for lease, lost in zip(leases, self._connection.heartbeat_many(leases), strict=True):
            if lost is None:
                continue
            with self._changed:
                was_held = self._held.pop(lease, None) is not None
            if was_held:
                self._spawner.call_soon_threadsafe(self._on_lost, lease)
