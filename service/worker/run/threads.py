"""Plain functions, each in a thread that nobody can stop from outside.

A run that is over does not free its place while its thread goes on: the token that bounds the
threads, and whatever else waits for it (``when_free``), go back when the thread has returned.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
from anyio.to_thread import run_sync

if TYPE_CHECKING:
    from ....engine.runtime.event_loop import Spawner
    from .context import Context

__all__ = ["ThreadPermit", "Threads"]


class _Raised(NamedTuple):
    error: BaseException


class Threads:
    """So many plain functions run at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tokens: anyio.CapacityLimiter | None = None
        self.busy: set[int] = set()  # threads, those that nobody waits for any more included

    async def place(self, context: Context, spawner: Spawner) -> ThreadPermit:
        """Wait for a thread to be free, and keep it for this run."""
        if self._tokens is None:
            self._tokens = anyio.CapacityLimiter(self._most)
        place = ThreadPermit(self, self._tokens, context, spawner)
        await self._tokens.acquire_on_behalf_of(place)
        return place


class ThreadPermit:
    """A run's right to a thread: until the run is over, and no thread of it goes on."""

    def __init__(
        self, threads: Threads, tokens: anyio.CapacityLimiter, context: Context, spawner: Spawner
    ) -> None:
        self._threads = threads
        self._tokens: Final = tokens
        self._context = context
        self._spawner = spawner
        self._holders = 1  # the run, and its threads
        self._is_over = False
        self._free: Callable[[], object] | None = None
        self.raised: BaseException | None = None  # by the function, in its thread

    def leave(self) -> None:
        """The run is over, or a thread has returned. On the loop."""
        self._holders -= 1
        if self._holders:
            return
        self._tokens.release_on_behalf_of(self)
        if self._free is not None:
            self._free()

    def end(self) -> None:
        """The run is over."""
        self._is_over = True
        self.leave()

    def when_free(self, call: Callable[[], object]) -> None:
        """Call this on the loop when nothing goes on any more: perhaps now."""
        if self._holders:
            self._free = call
        else:
            call()

    async def call(self, function: Callable[[], Any]) -> Any:
        """The function, in a thread; what it returned is awaited if it has to be."""
        began = Lock()  # whoever takes it first: the thread, or a cancellation before it began
        context = self._context
        self._holders += 1
        context.in_thread = True
        try:
            value = await run_sync(
                self._in_thread,
                began,
                function,
                abandon_on_cancel=True,
                limiter=anyio.CapacityLimiter(1),
            )
        except BaseException:
            if began.acquire(blocking=False):
                self.leave()
            raise
        finally:
            context.in_thread = False
        if isinstance(value, _Raised):
            self.raised = value.error
            raise value.error
        if inspect.isawaitable(value):  # a plain wrapper around an async function
            context.harden()
            return await value
        return value

    def _in_thread(self, began: Lock, function: Callable[[], Any]) -> Any:
        if not began.acquire(blocking=False):
            return None
        busy, me = self._threads.busy, get_ident()
        busy.add(me)
        try:
            value = function()
            if self._is_over and inspect.iscoroutine(value):
                value.close()  # nobody will await it
        except BaseException as error:  # noqa: BLE001 - raised again, on the loop
            return _Raised(error)
        else:
            return value
        finally:
            busy.discard(me)
            self._spawner.call_soon_threadsafe(self.leave)
