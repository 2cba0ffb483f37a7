"""An engine on an event loop in a thread of its own: what ``lodeq.sync.open`` returns."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

from ..engine import Engine, ThreadEngine
from ..open import OpenHandle

__all__ = ["LoopThread", "SyncEngine", "open_in_thread"]


class LoopThread:
    """A daemon thread and the event loop in it: it does not hold up a script that dies."""

    def __init__(self, opening: OpenHandle) -> None:
        self._opening = opening
        self.opened: Future[tuple[Engine, Callable[[], object]]] = Future()
        self._thread = Thread(target=self._run, name="lodeq-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if self.opened.done():
                raise
            self.opened.set_exception(error)

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def stop() -> None:
            try:
                loop.call_soon_threadsafe(over.set)
            except RuntimeError:
                pass  # it has stopped

        async with self._opening as engine:
            self.opened.set_result((engine, stop))
            await over.wait()

    def give_up(self) -> None:
        """Nobody waits for the engine any more: close it as soon as it is open."""

        def stop(opened: Future[tuple[Engine, Callable[[], object]]]) -> None:
            if opened.exception() is None:
                opened.result()[1]()

        self.opened.add_done_callback(stop)

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()


class SyncEngine(ThreadEngine):
    """A ``ThreadEngine`` with an event loop of its own, closed together with it.

    Its queues are ``lodeq.repository.api.threads.thread_queue.ThreadQueue``, its leases
    ``lodeq.repository.api.threads.thread_leases.ThreadLease``.
    """

    def __init__(self, engine: Engine, thread: LoopThread, stop: Callable[[], object]) -> None:
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
    try:
        engine, stop = thread.opened.result()
    except BaseException:
        thread.give_up()
        raise
    return SyncEngine(engine, thread, stop)
