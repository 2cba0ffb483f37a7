"""Threads for plain (not async) functions. Nothing can stop such a thread from outside.

When a run is over but its thread is not, the run keeps its permit: the token that bounds the
number of threads, and the callbacks of ``when_free``, wait until the thread has returned.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import anyio
from anyio.to_thread import run_sync

from .forked_child import ChildEnds

if TYPE_CHECKING:
    from ....engine.runtime.event_loop import Spawner

__all__ = ["Lasting", "NoThreadError", "ThreadPermit", "ThreadRun", "Threads"]


class NoThreadError(RuntimeError):
    """The process could start no thread: the function has not been called."""


class _Raised(NamedTuple):
    error: BaseException


class ThreadRun(Protocol):
    """The run of a plain function, as far as its thread concerns it: a ``Context``."""

    in_thread: bool

    def leave_thread(self) -> None:
        """The rest of the run is awaited on the loop, where it can be cancelled."""


class Lasting(Protocol):
    """A run that may outlast its end: in its own thread, or in that of the batch it was part of."""

    @property
    def raised(self) -> BaseException | None:
        """The exception that the function raised in its thread."""

    def when_free(self, call: Callable[[], object]) -> None:
        """Call this on the loop once nothing of it goes on; at once if nothing does."""


class Threads:
    """The threads of one worker: at most ``most`` plain functions run at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tokens: anyio.CapacityLimiter | None = None
        self.busy: set[int] = set()  # thread ids, including threads of runs that are over

    async def acquire(self, run: ThreadRun, spawner: Spawner) -> ThreadPermit:
        """Wait until a thread is free, and keep it for this run."""
        if self._tokens is None:
            self._tokens = anyio.CapacityLimiter(self._most)
        permit = ThreadPermit(self, self._tokens, run, spawner)
        await self._tokens.acquire_on_behalf_of(permit)
        return permit


class ThreadPermit:
    """A run's right to a thread, held until the run is over and its thread has returned."""

    def __init__(
        self, threads: Threads, tokens: anyio.CapacityLimiter, run: ThreadRun, spawner: Spawner
    ) -> None:
        self._threads = threads
        self._tokens: Final = tokens
        self._run = run
        self._spawner = spawner
        self._holders = 1  # the run itself, and each thread that runs for it
        self._is_over = False
        self._when_free: list[Callable[[], object]] = []
        self.raised: BaseException | None = None  # the exception the function raised in its thread

    def leave(self) -> None:
        """Note, on the loop, that the run is over or that a thread has returned."""
        self._holders -= 1
        if self._holders:
            return
        self._tokens.release_on_behalf_of(self)
        for call in self._when_free:
            call()

    def end(self) -> None:
        """Note that the run is over."""
        self._is_over = True
        self.leave()

    def when_free(self, call: Callable[[], object]) -> None:
        """Call this on the loop once run and thread are over; at once if they are."""
        if self._holders:
            self._when_free.append(call)
        else:
            call()

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call the function in a thread; await its result if that is awaitable."""
        began = Lock()  # taken by the thread, or by a cancellation before the thread has begun
        run = self._run
        self._holders += 1
        run.in_thread = True
        try:
            value = await run_sync(
                self._in_thread,
                began,
                function,
                abandon_on_cancel=True,
                limiter=anyio.CapacityLimiter(1),
            )
        except BaseException as error:
            if began.acquire(blocking=False):
                self.leave()
                if isinstance(error, RuntimeError):
                    raise NoThreadError(f"no thread for a plain function: {error}") from error
            raise
        finally:
            run.in_thread = False
        if isinstance(value, _Raised):
            self.raised = value.error
            raise value.error
        if inspect.isawaitable(value):  # a plain wrapper around an async function
            run.leave_thread()
            return await value
        return value

    def _in_thread(self, began: Lock, function: Callable[[], Any]) -> Any:
        if not began.acquire(blocking=False):
            return None
        busy, me = self._threads.busy, get_ident()
        busy.add(me)
        try:
            with ChildEnds():
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
