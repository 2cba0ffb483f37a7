"""Work that is seen through, whoever is cancelled meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from anyio import CancelScope, get_cancelled_exc_class

from .event_loop import Spawner, TaskHandle

__all__ = ["ShieldedTask", "await_shielded", "obtain", "prepare_shields"]

T = TypeVar("T")


def prepare_shields() -> None:
    """Import what a shield needs. Once no file can be opened it could not be, nor work be ended."""
    get_cancelled_exc_class()


async def await_shielded(fn: Callable[[], Awaitable[None]]) -> BaseException | None:
    """Await ``fn`` to its end. A cancellation that came meanwhile is returned: raise it.

    It is held off by the shield (trio, and anyio's scopes on asyncio) or caught
    (``Task.cancel()`` on asyncio, which knows no shield); then ``fn`` is called once more.
    """
    cancelled = None
    with CancelScope(shield=True):
        while True:
            try:
                await fn()
                break
            except get_cancelled_exc_class() as error:
                cancelled = error
    return cancelled


async def obtain(spawner: Spawner, make: Callable[[], T], let_go: Callable[[T], object]) -> T:
    """Open something with ``make``, in a thread. If the caller is cancelled meanwhile, let it go.

    A thread that has begun comes to its end: nobody else would have what it has opened.
    """
    made: list[T] = []
    try:
        await spawner.run_in_thread(lambda: made.append(make()))
    except BaseException:
        for one in made:
            let_go(one)
        raise
    return made[0]


class _Run:
    __slots__ = ("failure", "task")

    def __init__(self) -> None:
        self.task: TaskHandle | None = None
        self.failure: Exception | None = None


class ShieldedTask:
    """Runs ``main`` to its end in a task of its own: callers may be cancelled, it goes on.

    The task may be cancelled as well, by somebody who cancels all there is. Then ``main`` is called
    again, so it must be able to begin anew at each of its steps. Cancelled before its first step, a
    task never runs; whoever waits starts another.
    """

    def __init__(
        self, spawner: Spawner, main: Callable[[], Coroutine[Any, Any, None]], name: str
    ) -> None:
        self.is_over = False  # it has come to its end without an error
        self._spawner = spawner
        self._main = main
        self._name = name
        self._run: _Run | None = None

    async def wait(self) -> None:
        """Start it unless it runs, and wait for its end; what it raises, everybody who waits gets.

        Durability: that of ``main``. Cancellation: it goes on; call again to wait for it.
        """
        while not self.is_over:
            run = self._run
            if run is None:
                run = self._run = _Run()
                self._spawner.shield(1)
                run.task = self._spawner.spawn(partial(self._see_through, run), self._name)
            if run.task is not None:
                await run.task.join()
            if self._run is run:  # it was cancelled before its first step
                self._ended(run)
            if run.failure is not None:
                raise run.failure

    async def _see_through(self, run: _Run) -> None:
        try:
            await await_shielded(self._main)
            self.is_over = True
        except Exception as error:  # noqa: BLE001 - whatever it was, those who wait get it
            run.failure = error
        finally:
            self._ended(run)

    def _ended(self, run: _Run) -> None:
        if self._run is run:
            self._run = None
            self._spawner.shield(-1)
