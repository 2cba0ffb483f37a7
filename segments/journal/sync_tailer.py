"""A tailer on an event loop in a thread of its own: what ``lodeq.sync.open_tailer`` returns."""

from __future__ import annotations

import atexit
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

from ...engine.runtime.clock import Clock
from ...engine.runtime.current_loop import current_spawner
from ...engine.runtime.event_loop import Spawner
from ...engine.runtime.loop_thread import LoopThread
from ...errors import ClosedError
from .open import open_tailer
from .tailer import Tailer
from .threads.calls import JournalCalls
from .threads.intake import LOOK_S, ThreadWait
from .threads.tailer import ThreadTailer

__all__ = ["SyncTailer", "open_in_thread"]

Opened = tuple[Tailer, Spawner]


class _OwnLoop:
    """Lets threads wait for the tailer's own loop, on whose thread no code of a user runs."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self._pid = os.getpid()

    def check(self, *, is_last: bool = False) -> None:
        """Raise ``ClosedError`` in a forked child, whatever the call."""
        if os.getpid() != self._pid:
            raise ClosedError("the tailer belongs to the process this one was forked from")

    def wait(self, wait: ThreadWait) -> None:
        """Wait until it is done; raise its error, or ``ClosedError`` if the loop has ended."""
        while not wait.wait(LOOK_S):
            if self._spawner.call_soon_threadsafe(_nothing) is None and not wait.done():
                raise ClosedError("the tailer is closed")
        if wait.error is not None:
            raise wait.error


class SyncTailer(ThreadTailer):
    """A ``ThreadTailer`` with an event loop of its own, closed together with it.

    It reads beside whoever writes the journal, in this process or another, and looks for more five
    times a second.
    """

    def __init__(
        self,
        opened: Opened,
        thread: LoopThread[Opened],
        stop: Callable[[], object],
        wait: float | None,
    ) -> None:
        tailer, spawner = opened
        super().__init__(tailer, JournalCalls(spawner, _OwnLoop(spawner)), wait)
        self._thread = thread
        self._stop = stop
        self._pid = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """Let go of its files, end the thread. Nothing is stored. Idempotent; any thread.

        A blocked read of another thread ends with ``ClosedError``, a ``for`` loop that has begun
        just ends.
        ``with`` does it, and the exit.

        **Cancellation.** Interrupted, closing goes on; call it again to wait for it.
        """
        if os.getpid() != self._pid:
            return  # the thread was not forked along
        try:
            super().close()
        finally:
            self._stop()
        self._thread.join()
        atexit.unregister(self.close)


def open_in_thread(
    path: str | os.PathLike[str],
    name: str | None,
    *,
    start: Literal["start", "end"] | int,
    wait: float | None,
    clock: Clock | None,
) -> SyncTailer:
    """Open it on a loop in a new thread; blocks until it is open.

    Interrupted, it is closed again as soon as it is open.
    """

    @asynccontextmanager
    async def opening() -> AsyncIterator[Opened]:
        tailer = open_tailer(path, name, start=start, clock=clock)
        try:
            yield tailer, current_spawner()
        finally:
            tailer.close()

    thread: LoopThread[Opened] = LoopThread(opening())
    opened, stop = thread.wait()
    return SyncTailer(opened, thread, stop, wait)


def _nothing() -> None:
    """Be posted, to see whether the loop still runs."""
