"""A simulated event loop: virtual time, and a seed that picks the callback that runs next.

asyncio runs ready callbacks in the order they became ready. A program must survive any other order
as well, so this loop makes a seeded choice at every step; ``order="fifo"`` is asyncio's order. Time
moves by a fixed cost of each step and, when nothing is ready, to the next timer. Nothing waits,
reads a clock or runs in a thread, so the same seed gives the same run.

Written against ``asyncio.AbstractEventLoop``, with the two calls of ``asyncio.events`` that are
there for writers of loops; no part of CPython's own loop is reached into. Deterministic simulation
of a whole store goes back to FoundationDB (Zhou et al., SIGMOD 2021, section 4).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from asyncio import events
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any, Literal, TypeVar

from ...engine.runtime.ids import Dice
from ...errors import InvariantError

__all__ = ["DeadlockError", "EndlessError", "SimLoop", "SimTime"]

T = TypeVar("T")
STEP_S = 2e-6  # cost of a step, so that everything takes some time
STEPS_MAX = 2_000_000


class DeadlockError(InvariantError):
    """The main coroutine waits, and nothing is left that could wake it."""


class EndlessError(InvariantError):
    """A run took more than ``STEPS_MAX`` steps."""


class SimTime:
    """The time of a simulation, in seconds, shared by the loops of all its processes."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s


class _Handle:
    """A callback that will run unless it is cancelled."""

    __slots__ = ("_args", "_context", "_fn", "_when")

    def __init__(
        self,
        fn: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        when: float,
    ) -> None:
        self._fn: Callable[..., object] | None = fn
        self._args = args
        self._context = context if context is not None else contextvars.copy_context()
        self._when = when

    def cancel(self) -> None:
        self._fn, self._args = None, ()

    def cancelled(self) -> bool:
        return self._fn is None

    def when(self) -> float:
        return self._when

    def run(self) -> None:
        fn, args = self._fn, self._args
        if fn is not None:
            self._fn, self._args = None, ()
            self._context.run(fn, *args)


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process.

    Args:
        time: the simulation's time.
        random: makes the choices; each loop needs its own.
        order: ``random`` picks any ready callback, ``fifo`` the oldest as asyncio does.
    """

    def __init__(
        self, time: SimTime, random: Dice, *, order: Literal["random", "fifo"] = "random"
    ) -> None:
        self._time = time
        self._random = random
        self._is_fifo = order == "fifo"
        self._ready: list[_Handle] = []
        self._timers: list[tuple[float, int, _Handle]] = []
        self._n = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._is_closed = False
        self.is_dead = False
        self.steps = 0
        self.complaints: list[str] = []  # messages that a real loop would log
        self.on_step: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<SimLoop step {self.steps} at {self._time.now_s:.6f}>"

    # -- running ---------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T]) -> T | None:
        """Run until ``main`` has ended, or until ``die``: then None.

        Raises:
            DeadlockError: ``main`` waits and nothing can wake it.
            EndlessError: it took more than ``STEPS_MAX`` steps.
        """
        task = self.create_task(main)
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            while not task.done() and not self.is_dead:
                self._step()
        finally:
            events._set_running_loop(outer)
            if self.is_dead:
                self._bury()
        return None if self.is_dead else task.result()

    def die(self) -> None:
        """End the process after the current step; nothing else of it runs."""
        self.is_dead = True

    def pause(self, seconds: float) -> None:
        """Stop the process (a GC, SIGSTOP, a slow write) while time goes on."""
        self._time.now_s += seconds

    def _step(self) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise EndlessError(f"no end after {STEPS_MAX} steps")
        time, timers, ready = self._time, self._timers, self._ready
        now_s = time.now_s + STEP_S
        if not ready:
            while timers and timers[0][2].cancelled():
                heappop(timers)
            if not timers:
                raise DeadlockError(f"nothing will ever run again; waiting: {self._waiting()}")
            if timers[0][0] > now_s:
                now_s = timers[0][0]
        time.now_s = now_s
        while timers and timers[0][0] <= now_s:
            ready.append(heappop(timers)[2])
        count = len(ready)
        at = 0 if count == 1 or self._is_fifo else int(self._random.random() * count)
        if self.on_step is not None:
            self.on_step()
            if self.is_dead:
                return
        handle = ready.pop(at)
        try:
            handle.run()
        except Exception as error:  # noqa: BLE001 - a loop outlives its callbacks
            self.call_exception_handler({"message": f"a callback failed: {error!r}"})

    def _waiting(self) -> list[str]:
        return [task.get_name() for task in self._tasks if not task.done()]

    def _bury(self) -> None:
        """Close all tasks. Their ``finally`` blocks run, without effect on the store."""
        self._ready.clear()
        self._timers.clear()
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = task.get_coro()
                with contextlib.suppress(BaseException):
                    coroutine.close()
        self._tasks.clear()
        self._ready.clear()

    # -- scheduling ------------------------------------------------------------------------

    def time(self) -> float:
        """Return virtual seconds."""
        return self._time.now_s

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        """Make a callback ready. The seed chooses which ready callback runs next."""
        handle = _Handle(callback, args, context, self._time.now_s)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        """Make a callback ready at ``when``."""
        handle = _Handle(callback, args, context, when)
        self._line_up(when, handle)
        return handle

    def _line_up(self, when: float, handle: _Handle) -> None:
        self._n += 1
        heappush(self._timers, (when, self._n, handle))

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        """Make a callback ready in ``delay`` seconds."""
        return self.call_at(self._time.now_s + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """Make a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        """Make a task of this loop, named by its number: names must repeat as well."""
        self._n += 1
        name = name if name is not None else f"task-{self._n}"
        task = asyncio.Task(coro, loop=self, name=name, context=context, **options)
        self._tasks.append(task)
        if len(self._tasks) > 256:
            self._tasks = [one for one in self._tasks if not one.done()]
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run the function at a later step, without a thread."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                answer = func(*args)
            except Exception as error:  # noqa: BLE001 - the waiter gets it
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(answer)

        self.call_later(self._random.random() * 0.01, work)
        return future

    # -- asyncio's interface ---------------------------------------------------------------

    def is_running(self) -> bool:
        """Return whether ``run`` is running."""
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        """Return whether ``close`` was called."""
        return self._is_closed

    def close(self) -> None:
        """Drop everything that is left."""
        self._is_closed = True
        self.is_dead = True
        self._bury()

    def get_task_factory(self) -> None:
        """Return None: the loop has no task factory. anyio calls this."""

    def get_debug(self) -> bool:
        """Return False: debug mode reads the real clock."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note the error in ``complaints``, unless the process is dead."""
        if not self.is_dead:
            self.complaints.append(f"{context['message']} {context.get('exception')!r}")
