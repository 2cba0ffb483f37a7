"""The event loop, as little of it as the engine needs.

Two adapters, ``AsyncioSpawner`` and ``TrioSpawner``, pass one conformance suite; a simulation
brings a third. Futures are the loop's own on asyncio (0.25 µs each); that is the fast path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from .clock import TimerHandle

__all__ = ["Future", "Spawner", "TaskHandle"]


class Future(Awaitable[Any], Protocol):
    """The answer one caller waits for. Never touched again once it is done."""

    def done(self) -> bool:
        """Whether it has a result, an exception, or was cancelled by its waiter."""

    def set_result(self, value: Any, /) -> None:
        """Wake the waiter with a value."""

    def set_exception(self, error: BaseException, /) -> None:
        """Wake the waiter with an error."""


class TaskHandle(Protocol):
    """A background task."""

    def cancel(self) -> object:
        """Ask it to stop."""

    async def join(self) -> None:
        """Wait until it has stopped. Raises none of its errors: they have been reported."""


class Spawner(Protocol):
    """The event loop port."""

    loop: object  # what ``running_loop`` returns where calls are allowed
    running_loop: Callable[[], object]  # the loop that runs in this thread, None for none

    def check(self) -> None:
        """Raise ``UsageError`` unless called from the loop (and thread) it belongs to."""

    def future(self) -> Future:
        """A new future."""

    def call_soon(self, fn: Callable[..., object], *args: Any) -> object:
        """Run ``fn`` behind everything that is runnable now."""

    def answer(self, waiters: Sequence[tuple[Future, Any]]) -> None:
        """Give each future its value, unless it is done; who waits goes on in the next turn."""

    def call_soon_threadsafe(self, fn: Callable[..., object], *args: Any) -> object:
        """The same, from any thread. Ignored once the loop is closed, and then returns None."""

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> TimerHandle:
        """Run ``fn`` after ``delay_s`` seconds of the loop's time."""

    def spawn(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> TaskHandle:
        """Start a background task; an error in it reaches the loop's exception handler."""

    async def checkpoint(self) -> None:
        """Let everything else that is runnable run once."""

    async def run_in_thread(self, fn: Callable[[], Any]) -> Any:
        """Run blocking work on a worker thread."""

    def shield(self, delta: int) -> None:
        """+1: callbacks and timers run although the loop is being cancelled, until as many -1."""

    async def aclose(self) -> None:
        """Stop what the adapter itself started."""
