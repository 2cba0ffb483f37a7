"""Calls from threads: over to the engine's event loop, and back.

A blocked thread can rely on this:

- Each call ends: with its value, its error, or ``ClosedError``. Closing the engine ends its waits;
  an event loop that dies without closing is noticed within a second.
- An interrupt (``KeyboardInterrupt``) during the wait cancels the call on the loop. If that comes
  too late for a claim, the leases it took go back.
- On the loop's own thread the call would wait for itself: it raises ``UsageError`` instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from functools import wraps
from threading import Event, get_ident
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from ....errors import ClosedError, UsageError
from ...tasks.lease import Lease
from ...tasks.task_end import give_back

if TYPE_CHECKING:
    from ....engine.runtime.event_loop import TaskHandle
    from ...state.engine_state import EngineState
    from ..runtime import EngineRuntime

__all__ = ["ThreadCalls", "ThreadTwin", "blocking"]

LOOK_S = 1.0  # a blocked thread notices within this time that the loop has ended
P = ParamSpec("P")
T = TypeVar("T")
O = TypeVar("O")  # noqa: E741 - the object on the event loop


class _Call(Generic[T]):
    """One call. All but ``over.wait`` and ``answer`` runs on the event loop."""

    def __init__(self, state: EngineState, main: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._state = state
        self._main = main
        self._task: TaskHandle | None = None
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._is_abandoned = False
        self.over = Event()

    def start(self) -> None:
        self._task = self._state.spawner.spawn(self._run, "lodeq-call")

    async def _run(self) -> None:
        try:
            self._value.append(await self._main())
        except Exception as error:  # noqa: BLE001 - it belongs to the calling thread
            self._error = error
        except BaseException:
            self._error = ClosedError("the engine's event loop stopped while this call waited")
            raise
        finally:
            self.over.set()
            if self._is_abandoned:
                self._undo()

    def abandon(self) -> None:
        """Cancel the call: the thread no longer waits. Leases it has already taken go back."""
        self._is_abandoned = True
        if self.over.is_set():
            self._undo()
        elif self._task is not None:
            self._task.cancel()

    def _undo(self) -> None:
        for value in self._value:
            found = value if isinstance(value, list) else [value]
            give_back(self._state, [lease for lease in found if isinstance(lease, Lease)])

    def answer(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value[0]


class ThreadCalls:
    """Runs an engine's coroutines on its loop, for threads that may block."""

    def __init__(self, state: EngineState, runtime: EngineRuntime) -> None:
        self._state = state
        self._runtime = runtime
        self._pid = os.getpid()

    @property
    def is_over(self) -> bool:
        """Whether calls are impossible: the engine is closed, or belongs to another process."""
        return self._runtime.is_torn_down or os.getpid() != self._pid

    def __call__(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run ``fn(*args, **kwargs)`` on the loop; return its value or raise its error.

        Raises:
            UsageError: on the loop's own thread.
            ClosedError: the engine or its event loop has ended.

        Durability: that of ``fn``.
        Cancellation: an interrupted wait cancels ``fn``.
        """
        state = self._state
        if get_ident() == state.thread:
            raise UsageError(
                "this is the thread of the engine's event loop, which the call would block: "
                "await the engine's own methods here"
            )
        if self.is_over:
            raise ClosedError("the engine is closed")
        call = _Call(state, lambda: fn(*args, **kwargs))
        post = state.spawner.call_soon_threadsafe
        try:
            if post(call.start) is None:
                raise ClosedError("the engine's event loop is closed")
            while not call.over.wait(LOOK_S):
                if self.is_over or post(_nothing) is None:
                    raise ClosedError("the engine's event loop is gone")
        except BaseException:
            post(call.abandon)
            raise
        return call.answer()


def _nothing() -> None:
    """Do nothing: posting it shows whether the loop still takes calls."""


class ThreadTwin(Generic[O]):
    """An object for threads, which stands for one on the event loop."""

    __slots__ = ("_call", "_twin")

    def __init__(self, twin: O, call: ThreadCalls) -> None:
        self._twin = twin
        self._call = call

    def __repr__(self) -> str:
        return f"<Thread{repr(self._twin)[1:]}"


def blocking(
    method: Callable[Concatenate[O, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[ThreadTwin[O], P], T]:
    """The same method for a ``ThreadTwin``: it blocks until the event loop has run ``method``.

    It keeps the method's parameters, for type checkers too, and its documentation.
    """
    name = method.__name__

    @wraps(method)
    def call(self: ThreadTwin[O], /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound: Callable[P, Coroutine[Any, Any, T]] = getattr(self._twin, name)
        return self._call(bound, *args, **kwargs)

    return call
