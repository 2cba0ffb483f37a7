"""Scans that read stores on a worker thread, beside the loop, in slices of a few milliseconds.

Reading and decoding a row takes microseconds of Python, which holds the interpreter's lock wherever
it runs. A thread that went on and on would take it from the loop for five milliseconds at each of
the loop's turns. So it works for ``SLICE_S``, ends, and is asked again when the loop has had its
turn. The threads are the loop's own for blocking work, never a shard's: fsyncs run there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Final, TypeVar

from ...engine.runtime.clock import perf_s
from ...engine.runtime.event_loop import Future, Spawner

__all__ = ["SLICE_S", "ThreadReads"]

T = TypeVar("T")

SLICE_S: Final = 0.002


class ThreadReads:
    """The scans of one engine that are under way. Its close waits for the slices they are in."""

    __slots__ = ("_running", "_spawner", "_waiters")

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self._running: set[object] = set()  # one for each slice that a thread is in
        self._waiters: list[Future] = []

    async def run(self, work: Generator[None, None, T], check: Callable[[], None]) -> T:
        """Run ``work`` to its end, and return what it returns.

        It yields every few dozen rows, holds no iterator of a store then, and reads nothing that
        the loop changes. What it has read is what was applied at some moment since this call.
        ``check`` is called before each slice, on the loop, and raises if the engine is closed.

        Cancellation: at the end of the slice; ``work`` is closed.
        """
        results: list[T] = []
        try:
            while not results:
                check()
                slice_ = object()
                self._running.add(slice_)
                try:
                    await self._spawner.run_in_thread(partial(_advance, work, results))
                finally:
                    self._running.remove(slice_)
                    self._wake()
        finally:
            work.close()
        return results[0]

    async def finish(self) -> None:
        """Wait for the slices that are under way now.

        What begins later does not read what this call is about: the engine is closed, or a shard
        is not here any more.
        """
        running = set(self._running)
        while running & self._running:
            waiter = self._spawner.future()
            self._waiters.append(waiter)
            await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _advance(work: Generator[None, None, T], results: list[T]) -> None:
    """In the thread: steps of ``work`` for as long as a slice takes."""
    ends = perf_s() + SLICE_S
    while True:
        try:
            next(work)
        except StopIteration as end:
            results.append(end.value)
            return
        if perf_s() >= ends:
            return
