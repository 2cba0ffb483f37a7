"""The end of a process that has run code of its user: what that left may not keep it for ever.

A thread that nobody stops, a loop task that swallows its cancellation, a generator whose
``finally`` waits: once all else is closed, the interpreter waits for each of them without a limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread
from threading import enumerate as threads_of_process
from types import TracebackType
from typing import Final, Self

from ...engine.runtime.clock import SystemClock

__all__ = ["LINGER_S", "BoundedEnd"]

LINGER_S: Final = 5.0  # that it has to end, beginning when all else is closed
log = logging.getLogger("lodeq.worker")


class BoundedEnd:
    """``with BoundedEnd(leave) as end:`` runs an event loop, and ``end.begin()`` is its last call.

    Args:
        leave: ends the process, whatever runs in it.
    """

    def __init__(self, leave: Callable[[], object]) -> None:
        self._leave = leave
        self._clock = SystemClock()
        self._before = set(threads_of_process())
        self._until: float | None = None
        self._is_over = Event()

    def __enter__(self) -> Self:
        return self

    def begin(self) -> None:
        """All is closed: from now on the rest has its time."""
        self._until = self._clock.mono() + LINGER_S
        Thread(target=self._watch, name="lodeq-end", daemon=True).start()

    def _watch(self) -> None:
        if not self._is_over.wait(LINGER_S):
            self._end(
                "the event loop does not end: a loop task, a generator or a thread of its own"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        if self._until is None:
            return
        for thread in threads_of_process():
            if thread in self._before or thread.daemon:
                continue
            thread.join(max(0.0, self._until - self._clock.mono()))
            if thread.is_alive():
                if error is not None:
                    log.critical("the worker ends: %s", error, extra={"event": "worker_stops"})
                self._end(f"thread {thread.name!r} does not end")

    def _end(self, what: str) -> None:
        log.error(
            "a task function has left something that goes on: %s; the process ends without it",
            what,
            extra={"event": "left_behind"},
        )
        self._leave()
