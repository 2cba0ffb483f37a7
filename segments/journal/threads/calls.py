"""Calls from threads that the journal's loop has to do: everything but plain appends.

Each call ends: with its value, its error, or ``ClosedError``. An interrupt (``KeyboardInterrupt``)
during the wait cancels the call on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from ....engine.runtime.event_loop import Spawner, TaskHandle
from ....errors import ClosedError
from .intake import ThreadWait

__all__ = ["CallGate", "JournalCall", "JournalCalls"]

T = TypeVar("T")


class CallGate(Protocol):
    """Who may call, and how a thread waits: the intake of a journal, or a tailer's own loop."""

    def check(self, *, is_last: bool = False) -> None:
        """Raise unless threads may call; with ``is_last``, also after the end."""

    def wait(self, wait: ThreadWait) -> None:
        """Wait until it is done; raise its error, or ``ClosedError`` if the loop has ended."""


class JournalCall(Generic[T]):
    """One call. ``start`` and ``end`` run on the loop."""

    def __init__(self, spawner: Spawner, main: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.over = ThreadWait()
        self._spawner = spawner
        self._main = main
        self._task: TaskHandle | None = None
        self._values: list[T] = []
        self._is_begun = False

    def start(self) -> None:
        """Begin, unless it has been ended before."""
        if not self.over.done():
            self._task = self._spawner.spawn(self._run, "lodeq-journal-call")

    async def _run(self) -> None:
        self._is_begun = True
        error: BaseException | None = None
        try:
            self._values.append(await self._main())
        except Exception as exc:  # noqa: BLE001 - it belongs to the calling thread
            error = exc
        except BaseException:
            error = ClosedError("the call was ended")
            raise
        finally:
            if self.over.done():
                pass  # ended before its first step
            elif error is None:
                self.over.set_result(None)
            else:
                self.over.set_exception(error)

    def end(self) -> None:
        """Cancel it, if it still runs: its thread gets ``ClosedError``. From any thread."""
        self._spawner.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self.over.done():
            return
        if self._task is not None:
            self._task.cancel()
        if not self._is_begun:  # it may never run
            self.over.set_exception(ClosedError("the call was ended"))

    @property
    def found(self) -> list[T]:
        """Its value, if it has come to one, whoever still waits for it."""
        return self._values

    def answer(self) -> T:
        """Its value; it is over, and without an error."""
        return self._values[0]


class JournalCalls:
    """Runs coroutines on the journal's loop, for threads that may block."""

    def __init__(self, spawner: Spawner, gate: CallGate) -> None:
        self._spawner = spawner
        self._gate = gate

    def new(self, main: Callable[[], Coroutine[Any, Any, T]]) -> JournalCall[T]:
        """A call of ``main``, not begun."""
        return JournalCall(self._spawner, main)

    def run(self, call: JournalCall[T], *, is_last: bool = False) -> T:
        """Begin it, wait for its end, and return its value or raise its error.

        Args:
            call: not begun yet.
            is_last: it may come to a journal that is closed, or being closed.

        Raises:
            UsageError: on the loop's own thread.
            ClosedError: the journal or its event loop has ended, or the call was ended.

        Durability: that of the call.
        Cancellation: an interrupted wait cancels the call.
        """
        self._gate.check(is_last=is_last)
        try:
            if self._spawner.call_soon_threadsafe(call.start) is None:
                raise ClosedError("the journal's event loop is closed")
            self._gate.wait(call.over)
        except BaseException:
            call.end()
            raise
        return call.answer()

    def __call__(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """``run`` a new call of ``main``."""
        return self.run(self.new(main))

    def plain(self, fn: Callable[[], T]) -> T:
        """Run a function on the loop."""

        async def main() -> T:
            return fn()

        return self(main)
