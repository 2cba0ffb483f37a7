"""The one thread of a store: work that blocks, one job after another.

The threads are daemons, so that a program that dies of an exception is not kept alive by a store it
did not close. But Python ends a daemon that comes back from native code while the interpreter goes
down, and it does so by unwinding its stack: through the frames of RocksDB's binding that aborts the
process, and the program's own traceback and exit status are lost. So at exit, before the
interpreter goes down, each thread ends the job it is at and those that were asked for meanwhile.
That waits for a disk no longer than the kernel would: a process in the middle of an fsync cannot
exit. Who still has something to ask after that (to close an engine, at exit) starts another thread.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread, current_thread

__all__ = ["Done", "Job", "start_thread"]

Done = Callable[[BaseException | None], None]
Job = tuple[Callable[[], None], Done]

_log = logging.getLogger(__name__)


_running: dict[Thread, SimpleQueue[Job | None]] = {}


def start_thread(name: str, jobs: SimpleQueue[Job | None]) -> Thread:
    """A thread that works ``jobs`` off until None comes and nothing behind it, or the program ends.

    It refers to the queue, not to the store: a forgotten store is freed.

    Raises:
        RuntimeError: no thread can be started.
    """
    thread = Thread(None, _run, name, (jobs,), daemon=True)
    _running[thread] = jobs  # before it runs: it takes itself out
    try:
        thread.start()
    except RuntimeError:
        del _running[thread]
        raise
    return thread


def _run(jobs: SimpleQueue[Job | None]) -> None:
    try:
        _work_off(jobs)
    finally:
        _running.pop(current_thread(), None)


def _end_threads() -> None:
    """At exit, when all other threads of the program have ended."""
    threads = list(_running.items())
    for _, jobs in threads:
        jobs.put(None)
    for thread, _ in threads:
        thread.join()


atexit.register(_end_threads)
os.register_at_fork(after_in_child=_running.clear)  # they were not forked along


def _work_off(jobs: SimpleQueue[Job | None]) -> None:
    is_over = False
    while not (is_over and jobs.empty()):
        job = jobs.get()
        if job is None:
            is_over = True
            continue
        fn, done = job
        error: BaseException | None = None
        try:
            fn()
        except BaseException as exc:  # noqa: BLE001 - whatever it is, the waiter hears of it
            error = exc
        try:
            done(error)
        except Exception:  # noqa: BLE001 - a closed loop, typically; the next job needs the thread
            _log.exception("the callback of a job failed", extra={"event": "callback_failed"})
        del job, fn, done, error  # while waiting, keep nothing alive
