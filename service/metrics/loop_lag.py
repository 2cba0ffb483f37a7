"""Lateness of the event loop, measured by a timer.

Whatever blocks the loop (a handler that computes, a commit that is too large) makes the timer late;
claims, deadlines and the reaper wait as long. The worst value of the last two spans is reported, so
that a scrape every minute misses none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...engine.runtime.clock import Clock, TimerHandle
from ...engine.runtime.event_loop import Spawner

__all__ = ["LoopLag"]

STEP_S: Final = 0.25  # between two calls of the timer
SPAN_S: Final = 60.0


class LoopLag:
    """Measures from ``start`` to ``stop``, or until ``is_over``, on the engine's loop."""

    def __init__(self, clock: Clock, spawner: Spawner, is_over: Callable[[], bool]) -> None:
        self._clock = clock
        self._is_over = is_over
        self._spawner = spawner
        self._timer: TimerHandle | None = None
        self._due = self._turn = 0.0
        self._worst = self._before = 0.0

    @property
    def worst_s(self) -> float:
        """The greatest lateness of the last minute or two, in seconds."""
        return max(self._worst, self._before)

    def start(self) -> None:
        """Start measuring. Idempotent."""
        if self._timer is None:
            now = self._clock.mono()
            self._turn = now + SPAN_S
            self._arm(now)

    def stop(self) -> None:
        """Stop measuring. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, now: float) -> None:
        self._due = now + STEP_S
        self._timer = self._clock.call_at(self._spawner, self._due, self._measure)

    def _measure(self) -> None:
        now = self._clock.mono()
        self._worst = max(self._worst, now - self._due)
        if now >= self._turn:
            self._before, self._worst = self._worst, 0.0
            self._turn = now + SPAN_S
        if self._is_over():
            self._timer = None
        else:
            self._arm(now)
