"""Waiting on the loop's port: a signal with a timeout, a pause, and an end to what takes too long.

Time is the engine's clock, so a test that moves it by hand moves all waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ..engine.runtime.clock import Clock
from ..engine.runtime.event_loop import Future, Spawner

__all__ = ["Signal", "Waiting"]


def _wake(future: Future, value: object) -> None:
    if not future.done():
        future.set_result(value)


class Signal:
    """Something to look at: set by anybody, waited for by one task, which takes it back."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._future: Future | None = None
        self.is_set = False

    def set(self) -> None:
        """Wake the waiter, or the next one at once."""
        self.is_set = True
        if self._future is not None:
            _wake(self._future, None)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set, and clear it; False: ``timeout_s`` seconds have passed."""
        if not self.is_set:
            future = self._future = self._waiting.spawner.future()
            try:
                await self._waiting.until(future, timeout_s)
            finally:
                self._future = None
        was_set, self.is_set = self.is_set, False
        return was_set


class Waiting:
    """One loop and one clock."""

    def __init__(self, spawner: Spawner, clock: Clock) -> None:
        self.spawner = spawner
        self.clock = clock

    async def until(self, future: Future, timeout_s: float | None = None) -> Any:
        """Wait for ``future``, or give it None after ``timeout_s`` seconds. Returns its result."""
        if timeout_s is None or future.done():
            return await future
        when = self.clock.mono() + max(0.0, timeout_s)
        timer = self.clock.call_at(self.spawner, when, lambda: _wake(future, None))
        try:
            return await future
        finally:
            timer.cancel()

    async def pause(self, seconds: float) -> None:
        """Wait so long; not at all, but for a turn of the loop, if that is not positive."""
        if seconds <= 0:
            await self.spawner.checkpoint()
        else:
            await self.until(self.spawner.future(), seconds)

    async def at_most(self, seconds: float, work: Callable[[], Awaitable[None]], name: str) -> bool:
        """Do ``work`` in a task of its own, and stop it after so long; whether it came to its end.

        What it raises is dropped with the rest of it.
        """
        over = self.spawner.future()

        async def run() -> None:
            try:
                await work()
            except Exception:  # noqa: BLE001 - nobody is left whom it concerns
                _wake(over, False)
            else:
                _wake(over, True)

        task = self.spawner.spawn(run, name)
        is_done = await self.until(over, seconds)
        if is_done is None:
            task.cancel()
            await task.join()
        return bool(is_done)
