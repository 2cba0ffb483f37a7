"""Keep a worker's loop running, whatever a task function does to it.

asyncio ends its loop when any task or callback raises ``SystemExit``, and when somebody calls
``loop.stop()``. A run may cause both beside its own task, where nothing of ours catches it: the
worker would end, and the task go back uncounted, to end the next worker as well. So while a worker
runs on a loop, child tasks of a run fail instead, ``loop.stop()`` is refused to runs, and a run
that cancels the worker's own tasks is remembered. trio hands all of this to the function itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

import anyio

from ....errors import UsageError
from .context import Context, run_in, run_of_caller
from .forked_child import end_child
from .log_fields import fields

__all__ = ["ChildExitError", "guarded_loop", "lasting_loop", "watched"]

Loop = asyncio.AbstractEventLoop
# Starts a task before whoever asked for it knows it, which a factory around it would hide.
_EAGER: Final = getattr(getattr(asyncio, "eager_task_factory", None), "__code__", None)
log = logging.getLogger("lodeq.worker")


class ChildExitError(RuntimeError):
    """A child task of a run raised ``SystemExit``, which is its cause: the run may catch this.

    ``KeyboardInterrupt`` counts as well where the app itself receives the signals.
    """

    __module__ = "lodeq.worker"  # as reasons name it


@contextmanager
def guarded_loop() -> Iterator[None]:
    """Guard the running loop against the runs on it, until the block ends; nothing on trio."""
    if not _is_on_asyncio():
        yield
        return
    loop = asyncio.get_running_loop()
    guard = _guards.get(loop)
    if guard is None:
        guard = _guards[loop] = _LoopGuard(loop)
    guard.workers += 1
    try:
        yield
    finally:
        guard.workers -= 1
        if not guard.workers:
            del _guards[loop]
            guard.remove()


class _LoopGuard:
    """Stands for the loop's task factory and its ``stop`` while workers run on it."""

    def __init__(self, loop: Loop) -> None:
        self.workers = 0
        self._loop = loop
        self._outer = run_of_caller()  # a run that is itself the host of these workers
        self._stop = loop.stop
        self._factory: Any = None
        loop.stop = self._refuse_stop  # type: ignore[method-assign]
        with suppress(NotImplementedError):  # a loop that has no factories
            self._factory = loop.get_task_factory()
            if _EAGER is None or getattr(self._factory, "__code__", None) is not _EAGER:
                loop.set_task_factory(self._make_task)

    def remove(self) -> None:
        """Put back what was there, but not under what somebody else has put there since."""
        loop = self._loop
        if vars(loop).get("stop") == self._refuse_stop:
            del loop.stop
        with suppress(NotImplementedError):
            if loop.get_task_factory() == self._make_task:
                loop.set_task_factory(self._factory)

    def _make_task(self, loop: Loop, coro: Any, **options: Any) -> Any:
        run = run_of_caller()
        if run is not None and asyncio.iscoroutine(coro):
            coro = _Child(coro, run)
        if self._factory is not None:
            return self._factory(loop, coro, **options)
        return asyncio.Task(coro, loop=loop, **options)

    def _refuse_stop(self) -> None:
        run = run_of_caller()
        if run is None or run is self._outer:
            self._stop()
            return
        log.error(
            "task %s (%r): it calls loop.stop(), which is refused",
            run.task_id,
            run.name,
            extra=fields("run_ends_loop", run),
        )
        raise UsageError(
            "a task function cannot stop its worker's loop: "
            "call worker.stop(), or send the process SIGTERM"
        )


_guards: WeakKeyDictionary[Loop, _LoopGuard] = WeakKeyDictionary()


def _in_child() -> None:
    """In a child that a run has forked: end it when it comes back to the loop of its parent."""
    run = run_of_caller()
    if run is not None:
        for loop in list(_guards):
            with suppress(RuntimeError):  # that loop is of another thread, which is not here
                loop.call_soon(_come_back, run)


def _come_back(run: Context) -> None:
    log.error(
        "task %s (%r): a child that it has forked came back to the event loop of the worker, and "
        "is ended",
        run.task_id,
        run.name,
        extra=fields("child_ended", run),
    )
    end_child(SystemExit(1))


os.register_at_fork(after_in_child=_in_child)


class _Child(Coroutine[Any, Any, Any]):
    """A coroutine that fails where it would end the loop; in all else the one it stands for."""

    __slots__ = ("_coro", "_run")

    def __init__(self, coro: Coroutine[Any, Any, Any], run: Context) -> None:
        self._coro = coro
        self._run = run

    def __getattr__(self, name: str) -> Any:  # names, frames and states, for whoever shows tasks
        return getattr(self._coro, name)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coro.__await__()

    def send(self, value: Any) -> Any:
        try:
            return self._coro.send(value)
        except (SystemExit, KeyboardInterrupt) as error:
            raise self._failure(error) from error

    def throw(self, *error: Any) -> Any:
        try:
            return self._coro.throw(*error)
        except (SystemExit, KeyboardInterrupt) as raised:
            raise self._failure(raised) from raised

    def close(self) -> None:
        self._coro.close()

    def _failure(self, error: BaseException) -> BaseException:
        run = self._run
        if isinstance(error, KeyboardInterrupt) and not run.owns_signals:
            raise error  # it may be Ctrl-C
        text = _text(error)
        log.error(
            "task %s (%r): a child task of it raised %s",
            run.task_id,
            run.name,
            text,
            extra=fields("run_ends_loop", run),
        )
        return ChildExitError(f"a child task of {run.name!r} raised {text}")


@contextmanager
def watched(cancelled_by: Callable[[Context], object]) -> Iterator[None]:
    """Learn which run cancels the loop task that calls this, until the block ends; not on trio.

    Args:
        cancelled_by: called with the run, before the task is cancelled.
    """
    task = asyncio.current_task() if _is_on_asyncio() else None
    if task is None:
        yield
        return
    cancel, outer = task.cancel, run_of_caller()

    def noted(*args: Any, **kwargs: Any) -> bool:
        run = run_of_caller()
        if run is not None and run is not outer and not run.is_over:
            cancelled_by(run)
        return cancel(*args, **kwargs)

    task.cancel = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        del task.cancel


def lasting_loop() -> Loop:
    """Make a loop that goes on when a callback of a run raises ``SystemExit``; the run fails.

    For ``lodeq worker``, which owns its loop. Anybody else's ``SystemExit`` ends it as ever.
    """
    loop = asyncio.new_event_loop()
    run_forever = loop.run_forever

    def go_on() -> None:
        while True:
            try:
                return run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                run = _run_behind(error)
                if run is None or not run.owns_signals:
                    raise
                loop.call_soon(_end_run, run, error)

    loop.run_forever = go_on  # type: ignore[method-assign]
    return loop


def _end_run(run: Context, error: BaseException) -> None:
    text = _text(error)
    log.critical(
        "task %s (%r): a callback of it raised %s",
        run.task_id,
        run.name,
        text,
        exc_info=error,
        extra=fields("run_ends_loop", run),
    )
    if not run.is_over:
        run.exit_text = f"a callback of it raised {text}"
        run.stop("exited")


def _run_behind(error: BaseException) -> Context | None:
    """Return the run in whose context a callback of the loop raised this, if it was in one."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        handle = frame.f_locals.get("self")
        if isinstance(handle, asyncio.Handle):
            found = getattr(handle, "_context", None)
            return None if found is None else run_in(found)
    return None


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _is_on_asyncio() -> bool:
    return anyio.get_cancelled_exc_class() is asyncio.CancelledError
