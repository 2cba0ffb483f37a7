"""The asyncio adapter: the loop's own futures and callbacks, nothing in between."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - else at the first use, when no file may open
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future as ThreadFuture
from functools import partial
from threading import Lock
from typing import Any

from ...errors import UsageError
from .clock import TimerHandle
from .event_loop import Future, TaskHandle
from .shielded import await_shielded

__all__ = ["AsyncioSpawner"]

# What runs a callback in its context, the callback, and the future it is called with.
_Woken = tuple[Callable[..., object], Callable[..., object], Future]


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
        self._wakes_together = (
            isinstance(loop, asyncio.BaseEventLoop)
            and not loop.get_debug()
            and hasattr(asyncio.Future, "_callbacks")
        )

    def answer(self, waiters: Sequence[tuple[Future, Any]]) -> None:
        """Set the results; on asyncio's own loop, wake all who wait with one callback.

        A future schedules a callback for each of its waiters, which costs as much as two of our
        rows: a handle, its context, a turn in the loop's line. Here their callbacks are taken over
        and run one after another in the same turn in which they would have run.
        """
        is_joined = self._wakes_together and len(waiters) > 1
        woken: list[_Woken] = []
        try:
            for future, value in waiters:
                if future.done():
                    continue
                if is_joined and future.__class__ is asyncio.Future:  # not what stands in for one
                    callbacks = future._callbacks
                    if callbacks and len(callbacks) == 1:
                        callback, context = callbacks[0]
                        future.remove_done_callback(callback)
                        woken.append((context.run, callback, future))
                try:
                    future.set_result(value)
                except Exception as error:  # noqa: BLE001 - the others are answered nevertheless
                    self._report(future, error)
        finally:  # an interrupt: nobody else wakes those whose callbacks were taken over
            if woken:
                self.call_soon(self._wake, iter(woken))

    def _report(self, future: Future, error: Exception) -> None:
        """Log an outcome that failed: what is answered here is committed, and the shard is well."""
        message = f"{type(future).__name__} failed to take its result: {error!r}"
        self._loop.call_exception_handler({"message": message, "exception": error})

    def _wake(self, woken: Iterator[_Woken]) -> None:
        try:
            for run, callback, future in woken:
                run(callback, future)
        except BaseException:  # an interrupt ends the loop; the others are woken when it goes on
            self.call_soon(self._wake, woken)
            raise

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
