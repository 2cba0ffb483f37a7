"""The asyncio adapter: the loop's own futures and callbacks, nothing in between."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine
from typing import Any

from ..engine.clock import TimerHandle
from ..errors import UsageError
from .spawner import Future, TaskHandle

__all__ = ["AsyncioSpawner"]


class _Task:
    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def cancel(self) -> bool:
        return self._task.cancel()

    async def join(self) -> None:
        await asyncio.wait([self._task])
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error


class AsyncioSpawner:
    """Binds the engine to one running loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future = loop.create_future
        self.call_soon = loop.call_soon

    def check(self) -> None:
        """Raise unless this is the engine's loop."""
        if _get_running_loop() is not self._loop:
            raise UsageError(
                "this engine belongs to another event loop or thread: "
                "use engine.sync from threads, or open the store where you use it"
            )

    def future(self) -> Future:
        """The loop's own future."""
        return self._future()

    def call_soon_threadsafe(self, fn: Callable[..., object], *args: Any) -> object:
        """Through the loop's self-pipe."""
        try:
            return self._loop.call_soon_threadsafe(fn, *args)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            return None

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> TimerHandle:
        """The loop's own timer."""
        return self._loop.call_later(delay_s, fn)

    def spawn(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> TaskHandle:
        """A task of the loop."""
        return _Task(self._loop.create_task(main(), name=name))

    async def checkpoint(self) -> None:
        """One turn of the loop."""
        await asyncio.sleep(0)

    async def run_in_thread(self, fn: Callable[[], Any]) -> Any:
        """The loop's default executor."""
        return await self._loop.run_in_executor(None, fn)

    async def aclose(self) -> None:
        """Nothing was started."""
