"""The trio adapter: the few things of an event loop the engine needs, on trio's low-level parts.

Trio has no futures, no callbacks and no tasks outside a nursery, on purpose. The engine needs
all three: one commit wakes hundreds of callers, and its background work outlives the calls that
cause it. They are made of what trio's own primitives are made of:

- a *future* parks its waiters with ``wait_task_rescheduled``, so that trio's cancellation works
  on it as on any of trio's own calls;
- *callbacks* run in one system task, the pump. It is woken by the first ``call_soon`` of a
  scheduling round and runs in the next, behind everything that was runnable: one checkpoint,
  which is what makes a tick here. Trio shuffles a round, so "behind everything" needs a round
  of its own; a callback that asks for another gets the one after;
- *timers* are a heap and one system task that sleeps until the first of them. A system task a
  timer would cost each long poll a spawn.

Errors follow trio's convention: what a callback or a background task raises ends the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import trio
from trio.lowlevel import (
    Abort,
    RaiseCancelT,
    Task,
    cancel_shielded_checkpoint,
    current_task,
    current_trio_token,
    reschedule,
    spawn_system_task,
    wait_task_rescheduled,
)

from ...errors import InvariantError, UsageError
from .clock import TimerHandle
from .event_loop import Future, TaskHandle

__all__ = ["TrioSpawner"]

THREADS_MAX = 4  # own ones: trio's forty may all be held by callers who wait for the engine
CANCELLED_MIN = 64  # fewer cancelled timers are not worth a rebuild of the heap


class _Future:
    """Any number of tasks may wait. Cancelled when the last waiter is, and then done."""

    __slots__ = ("_error", "_is_cancelled", "_is_done", "_value", "_waiting")

    def __init__(self) -> None:
        self._is_done = False
        self._is_cancelled = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiting: list[Task] = []

    def done(self) -> bool:
        return self._is_done

    def set_result(self, value: Any, /) -> None:
        self._finish()
        self._value = value  # the waiters run later

    def set_exception(self, error: BaseException, /) -> None:
        self._finish()
        self._error = error

    def _finish(self) -> None:
        if self._is_done:
            raise InvariantError("a future was set twice")
        self._is_done = True
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            reschedule(task)

    def __await__(self) -> Generator[Any, Any, Any]:
        if not self._is_done:
            task = current_task()
            self._waiting.append(task)

            def abort(_: RaiseCancelT) -> Abort:
                self._waiting.remove(task)
                if not self._waiting:
                    self._is_done = self._is_cancelled = True
                return Abort.SUCCEEDED

            # As ``await`` in the generator that ``__await__`` is.
            yield from wait_task_rescheduled(abort).__await__()  # noqa: ASYNC105
        elif self._is_cancelled:
            raise InvariantError("awaited again after its waiter was cancelled")
        if self._error is not None:
            raise self._error
        return self._value


class _Task:
    """A system task with a scope to cancel it by."""

    def __init__(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._main = main
        self._scope = trio.CancelScope()
        self._over = trio.Event()
        spawn_system_task(self._run, name=name)

    async def _run(self) -> None:
        try:
            with self._scope:
                await self._main()
        finally:
            self._over.set()

    def cancel(self) -> None:
        self._scope.cancel()

    def shield(self, is_on: bool) -> None:
        """Whether it goes on although the run's main task is over."""
        self._scope.shield = is_on

    async def join(self) -> None:
        await self._over.wait()


class _Pump:
    """Runs callbacks, a scheduling round after they were asked for."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._parked: Task | None = None
        self.task: _Task | None = None
        self.is_shielded = False

    def add(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._calls.append((fn, args))
        parked = self._parked
        if parked is not None:
            self._parked = None
            reschedule(parked)
        elif self.task is None:
            self.task = _Task(self._run, "lodeq-pump")
            self.task.shield(self.is_shielded)

    def _abort(self, _: RaiseCancelT) -> Abort:
        self._parked = None
        return Abort.SUCCEEDED

    async def _run(self) -> None:
        calls = self._calls
        while True:
            for _ in range(len(calls)):  # what these ask for is for the next round
                fn, args = calls.popleft()
                fn(*args)
            if calls:
                await cancel_shielded_checkpoint()
            else:
                self._parked = current_task()
                await wait_task_rescheduled(self._abort)


class _Timer:
    __slots__ = ("_timers", "fn")

    def __init__(self, timers: _Timers, fn: Callable[[], None]) -> None:
        self._timers = timers
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        if self.fn is not None:
            self.fn = None
            self._timers.one_cancelled()


class _Timers:
    """Runs callbacks at their time: one task, asleep until the first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Timer]] = []
        self._n = 0
        self._cancelled = 0
        self._sleep: trio.CancelScope | None = None
        self.task: _Task | None = None
        self.is_shielded = False

    def add(self, delay_s: float, fn: Callable[[], None]) -> _Timer:
        timer = _Timer(self, fn)
        self._n += 1
        when = trio.current_time() + delay_s
        heappush(self._heap, (when, self._n, timer))
        if self.task is None:
            self.task = _Task(self._run, "lodeq-timers")
            self.task.shield(self.is_shielded)
        elif self._sleep is not None and when < self._sleep.deadline:
            self._sleep.deadline = when
        return timer

    def one_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > CANCELLED_MIN and 2 * self._cancelled > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].fn is not None]
            heapify(self._heap)
            self._cancelled = 0

    async def _run(self) -> None:
        while True:
            now = trio.current_time()
            while self._heap and self._heap[0][0] <= now:
                timer = heappop(self._heap)[2]
                fn, timer.fn = timer.fn, None
                if fn is None:
                    self._cancelled = max(0, self._cancelled - 1)
                else:
                    fn()
            until = self._heap[0][0] if self._heap else float("inf")
            with trio.CancelScope(deadline=until) as self._sleep:
                await trio.sleep_forever()
            self._sleep = None


def _running_token() -> object:
    """The run that this thread is in, or None."""
    try:
        return current_trio_token()
    except RuntimeError:
        return None


class TrioSpawner:
    """Binds the engine to the trio run it was made in."""

    def __init__(self) -> None:
        self._token = current_trio_token()
        self.loop: object = self._token
        self.running_loop: Callable[[], object] = _running_token
        self._limiter = trio.CapacityLimiter(THREADS_MAX)
        self._pump = _Pump()
        self._timers = _Timers()
        self._is_closed = False
        self._shields = 0

    def check(self) -> None:
        """Raise unless this is the engine's run."""
        if _running_token() is self._token:
            return
        raise UsageError(
            "this belongs to another event loop or thread: "
            "use engine.sync from threads, or open the store where you use it"
        )

    def future(self) -> Future:
        """A new future; await it inside this run only."""
        return _Future()

    def answer(self, waiters: Sequence[tuple[Future, Any]]) -> None:
        """Set the results."""
        for future, value in waiters:
            if not future.done():
                future.set_result(value)

    def call_soon(self, fn: Callable[..., object], *args: Any) -> None:
        """After one checkpoint. Ignored once closed: nothing of the engine's is left to do."""
        if not self._is_closed:
            self._pump.add(fn, args)

    def call_soon_threadsafe(self, fn: Callable[..., object], *args: Any) -> object:
        """Through trio's own entry queue, in order."""
        try:
            self._token.run_sync_soon(fn, *args)
        except trio.RunFinishedError:  # nobody is left to wake
            return None
        return True

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> TimerHandle:
        """On trio's clock, a mocked one included."""
        return self._timers.add(delay_s, fn)

    def spawn(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> TaskHandle:
        """A system task: cancelled when the run ends; what it raises ends the run."""
        return _Task(main, name)

    async def checkpoint(self) -> None:
        """One round of the scheduler."""
        await trio.lowlevel.checkpoint()

    async def run_in_thread(self, fn: Callable[[], Any]) -> Any:
        """One of trio's worker threads, under a limit of the engine's own.

        Where none can be started, the work is done here, as on asyncio.
        """
        begun: list[bool] = []

        def begin() -> Any:
            begun.append(True)
            return fn()

        try:
            return await trio.to_thread.run_sync(begin, limiter=self._limiter)
        except RuntimeError:
            self.check()
            if begun:  # it is the work's own
                raise
        return fn()

    def shield(self, delta: int) -> None:
        """Trio cancels system tasks when the main task is over; what closes still needs these."""
        self._shields += delta
        for part in (self._pump, self._timers):
            part.is_shielded = self._shields > 0
            if part.task is not None:
                part.task.shield(part.is_shielded)

    async def aclose(self) -> None:
        """Stop the pump and the timers."""
        self._is_closed = True
        for task in (self._pump.task, self._timers.task):
            if task is not None:
                task.cancel()
