"""What a store's one thread does: the work that blocks, one job after another."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["Done", "Job", "work_off"]

Done = Callable[[BaseException | None], None]
Job = tuple[Callable[[], None], Done]

_log = logging.getLogger(__name__)


def work_off(jobs: SimpleQueue[Job | None]) -> None:
    """The thread's body, until None comes. It holds only the queue: a forgotten store is freed."""
    while (job := jobs.get()) is not None:
        fn, done = job
        error: BaseException | None = None
        try:
            fn()
        except BaseException as exc:  # noqa: BLE001 - whatever it is, the waiter hears of it
            error = exc
        try:
            done(error)
        except Exception:  # noqa: BLE001 - a closed loop, typically; the next job needs the thread
            _log.exception("the callback of a sync failed", extra={"event": "callback_failed"})
        del job, fn, done, error  # while waiting, keep nothing alive
