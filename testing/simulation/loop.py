"""An event loop without a machine under it: virtual time, and a seed that picks what runs next.

asyncio runs ready callbacks in the order they became ready. That order is one of many a program
must survive, so here a seeded choice is made at every step; ``order="fifo"`` is asyncio's own. Time
moves when nothing is ready, to the next timer, and by what a step is said to cost. Nothing waits,
nothing reads a clock, nothing runs in a thread: the same seed is the same run.

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
STEP_S = 2e-6  # so that nothing takes no time at all
STEPS_MAX = 2_000_000


class DeadlockError(InvariantError):
    """Somebody waits, and nothing is left that could ever wake them."""


class EndlessError(InvariantError):
    """A run that took more steps than any should."""


class SimTime:
    """Seconds of a world that outlives its processes; every loop of it shares one."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s


class _Handle:
    """A callback that will run, unless it is taken back."""

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
    """One simulated process's event loop.

    Args:
        time: the world's time.
        random: makes the choices; give every loop its own.
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
        self.complaints: list[str] = []  # what a program would find in its log
        self.on_step: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<SimLoop step {self.steps} at {self._time.now_s:.6f}>"

    # -- running ---------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T]) -> T | None:
        """Run until ``main`` has ended, or until ``die``: then None.

        Raises:
            DeadlockError: ``main`` waits and nothing can wake it.
            EndlessError: it went on and on.
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
        """The process is gone after the step that runs now; nothing else of it runs."""
        self.is_dead = True

    def pause(self, seconds: float) -> None:
        """The process stands still (a GC, SIGSTOP, a slow write) while the world goes on."""
        self._time.now_s += seconds

    def _step(self) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise EndlessError(f"no end after {STEPS_MAX} steps")
        time, timers, ready = self._time, self._timers, self._ready
        time.now_s += STEP_S
        if not ready:
            while timers and timers[0][2].cancelled():
                heappop(timers)
            if not timers:
                raise DeadlockError(f"nothing will ever run again; waiting: {self._waiting()}")
            time.now_s = max(time.now_s, timers[0][0])
        while timers and timers[0][0] <= time.now_s:
            ready.append(heappop(timers)[2])
        count = len(ready)
        at = 0 if count == 1 or self._is_fifo else int(self._random.random() * count)
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
        """Take apart what was running. Its ``finally`` blocks run, and reach nothing any more."""
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
        """Virtual seconds."""
        return self._time.now_s

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        """Make it ready. What runs next is the seed's choice."""
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
        """Make it ready at ``when``."""
        handle = _Handle(callback, args, context, when)
        self._n += 1
        heappush(self._timers, (when, self._n, handle))
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        """Make it ready in ``delay`` seconds."""
        return self.call_at(self._time.now_s + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        """A task of this loop, named by its number: names must repeat as well."""
        self._n += 1
        told = name if name is not None else f"task-{self._n}"
        task = asyncio.Task(coro, loop=self, name=told, context=context, **options)
        self._tasks.append(task)
        if len(self._tasks) > 256:
            self._tasks = [one for one in self._tasks if not one.done()]
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """No thread: run at a later step."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                answer = func(*args)
            except Exception as error:  # noqa: BLE001 - whoever waits hears of it
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(answer)

        self.call_later(self._random.random() * 0.01, work)
        return future

    # -- what asyncio asks of a loop -------------------------------------------------------

    def is_running(self) -> bool:
        """Whether ``run`` is."""
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    def close(self) -> None:
        """Forget everything that is left."""
        self._is_closed = True
        self.is_dead = True
        self._bury()

    def get_task_factory(self) -> None:
        """None of its own; anyio asks."""

    def get_debug(self) -> bool:
        """Never: debug mode reads the real clock."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note it. A dead process complains no more."""
        if not self.is_dead:
            self.complaints.append(f"{context['message']} {context.get('exception')!r}")
