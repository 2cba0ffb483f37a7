"""The asyncio adapter: the loop's own futures and callbacks, nothing in between."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine
from concurrent.futures import Future as ThreadFuture
from functools import partial
from threading import Lock
from typing import Any

from ...errors import UsageError
from .clock import TimerHandle
from .event_loop import Future, TaskHandle
from .shielded import await_shielded

__all__ = ["AsyncioSpawner"]


class _Task:
    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def cancel(self) -> bool:
        return self._task.cancel()

    async def join(self) -> None:
        await asyncio.wait([self._task])


class AsyncioSpawner:
    """Binds the engine to one running loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # The C type itself; ``loop.create_future`` wraps it in a Python frame. uvloop's is the
        # same type.
        self.future: Callable[[], Future] = partial(asyncio.Future, loop=loop)
        self.call_soon = loop.call_soon
        self.loop: object = loop
        self.running_loop: Callable[[], object] = _get_running_loop
        self._tasks: set[asyncio.Task[None]] = set()

    def check(self) -> None:
        """Raise unless this is the engine's loop."""
        if _get_running_loop() is not self._loop:
            raise UsageError(
                "this belongs to another event loop or thread: "
                "use engine.sync from threads, or open the store where you use it"
            )

    def call_soon_threadsafe(self, fn: Callable[..., object], *args: Any) -> object:
        """Through the loop's self-pipe."""
        try:
            return self._loop.call_soon_threadsafe(fn, *args)
        except RuntimeError:  # the loop is closed: nobody is left to wake
            return None

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> TimerHandle:
        """The loop's own timer."""
        return self._loop.call_later(delay_s, fn)

    def spawn(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> TaskHandle:
        """A task of the loop."""
        task = self._loop.create_task(main(), name=name)
        self._tasks.add(task)  # the loop itself only holds a weak reference
        task.add_done_callback(self._over)
        return _Task(task)

    def _over(self, task: asyncio.Task[None]) -> None:
        """Report at once: a task that is joined late, or never, must not fail in silence."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {
                    "message": f"{task.get_name()} failed: {error!r}",
                    "exception": error,
                    "task": task,
                }
            )

    async def checkpoint(self) -> None:
        """One turn of the loop."""
        await asyncio.sleep(0)

    async def run_in_thread(self, fn: Callable[[], Any]) -> Any:
        """The loop's default executor. A thread that has begun is waited for, whoever is cancelled.

        Otherwise it would go on behind the back of whoever takes the folder next.
        """
        turn = Lock()  # taken once: by the thread that begins, or by the caller who gives up
        work: ThreadFuture[Any] = ThreadFuture()

        def begin() -> None:
            if turn.acquire(blocking=False):
                try:
                    work.set_result(fn())
                except BaseException as exc:  # noqa: BLE001 - the caller gets it
                    work.set_exception(exc)

        try:
            self._loop.run_in_executor(None, begin)
        except RuntimeError:  # no thread can be started, as when the interpreter is on its way out
            begin()  # here, unless a thread that was there has taken it
        future = asyncio.wrap_future(work, loop=self._loop)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not turn.acquire(blocking=False):
                await await_shielded(partial(_over, future))
            raise

    def shield(self, delta: int) -> None:
        """They are the loop's own: nobody cancels them."""

    async def aclose(self) -> None:
        """Nothing was started."""


async def _over(future: asyncio.Future[Any]) -> None:
    await asyncio.wait([future])
