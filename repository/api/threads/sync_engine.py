"""An engine on an event loop in a thread of its own: what ``lodeq.sync.open`` returns."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable

from ....engine.runtime.loop_thread import LoopThread
from ..engine import Engine, ThreadEngine
from ..open import OpenHandle

__all__ = ["SyncEngine", "open_in_thread"]


class SyncEngine(ThreadEngine):
    """A ``ThreadEngine`` with an event loop of its own, closed together with it.

    Its queues are ``lodeq.repository.api.threads.thread_queue.ThreadQueue``, its leases
    ``lodeq.repository.api.threads.thread_leases.ThreadLease``.
    """

    def __init__(
        self, engine: Engine, thread: LoopThread[Engine], stop: Callable[[], object]
    ) -> None:
        super().__init__(engine)
        self._thread = thread
        self._stop = stop
        self._pid = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """Drain, sync, close, end the thread. Idempotent; ``with`` does it, and the exit.

        A thread that is blocked in a call gets ``ClosedError``.

        Durability: everything acknowledged is durable afterwards, in either mode.
        Cancellation: interrupted, closing goes on; call it again to wait for it.
        """
        if os.getpid() != self._pid:
            return  # the thread was not forked along
        super().close()
        self._stop()
        self._thread.join()
        atexit.unregister(self.close)


def open_in_thread(opening: OpenHandle) -> SyncEngine:
    """Open it on a loop in a new thread; blocks until it is open.

    Interrupted, the store is closed again as soon as it is open.
    """
    thread = LoopThread(opening)
    engine, stop = thread.wait()
    return SyncEngine(engine, thread, stop)
