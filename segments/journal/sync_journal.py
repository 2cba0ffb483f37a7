"""A journal on an event loop in a thread of its own: what ``lodeq.sync.open_journal`` returns."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable

from ...engine.runtime.loop_thread import LoopThread
from ...errors import LodeqError
from .journal import Journal, ThreadJournal
from .open import JournalOpening

__all__ = ["SyncJournal", "open_in_thread"]


class SyncJournal(ThreadJournal):
    """A ``ThreadJournal`` with an event loop of its own, closed together with it."""

    def __init__(
        self, journal: Journal, thread: LoopThread[Journal], stop: Callable[[], object]
    ) -> None:
        twin = journal.threads
        super().__init__(journal, twin._intake, twin._calls, twin._until)
        self._thread = thread
        self._stop = stop
        self._pid = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """Sync, close, end the thread. Idempotent; ``with`` does it, and the exit.

        What was appended before is written, and acknowledged to those who wait for it; any later
        append raises ``ClosedError``. Tailers end, and blocked reads with them.

        Raises:
            StorageError: the last sync failed: what was not fsynced before may be lost.

        **Durability.** Everything acknowledged survives the machine.
        **Cancellation.** Interrupted, closing goes on; call it again to wait for it.
        """
        if os.getpid() != self._pid:
            return  # the thread was not forked along
        try:
            super().close()
        except LodeqError:
            self._end()
            raise
        self._end()

    def _end(self) -> None:
        self._stop()
        self._thread.join()
        atexit.unregister(self.close)


def open_in_thread(opening: JournalOpening) -> SyncJournal:
    """Open it on a loop in a new thread; blocks until it is open.

    Interrupted, the journal is closed again as soon as it is open.
    """
    thread = LoopThread(opening)
    journal, stop = thread.wait()
    return SyncJournal(journal, thread, stop)
