"""Signals: SIGTERM or SIGINT stops a worker, a second one cuts its grace short."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio

from ..shared.child_signals import leave_children_theirs

if TYPE_CHECKING:
    from .worker import Worker

__all__ = ["Hearing", "Signals", "signals", "while_heard"]

PATIENCE: Final = 3  # signals; one may come from a terminal, and one from a supervisor there
Signals = AsyncIterator[signal.Signals]
log = logging.getLogger("lodeq.worker")


@contextmanager
def signals() -> Iterator[Signals]:
    """Receive both signals from now on, in the main thread, so that an early one is not lost.

    Those that are sent to a forked child of this process alone are the child's.
    """
    numbers = signal.SIGTERM, signal.SIGINT
    with leave_children_theirs(*numbers), anyio.open_signal_receiver(*numbers) as received:
        yield received


class Hearing:
    """Stops the worker at a signal, once there is one."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.count = 0  # signals so far

    def stop(self) -> bool:
        """Stop the worker; False: there is none, or what surrounds it does not end."""
        worker = self.worker
        if worker is None or (self.count >= PATIENCE and worker.finished.is_set()):
            return False
        worker.stop()
        return True


async def while_heard(
    work: Callable[[Hearing], Awaitable[None]], received: Signals
) -> Worker | None:
    """Do the work; signals stop its worker, or cancel what does not come to having one.

    The third one cancels also what still goes on when the worker has finished.

    Args:
        work: sets the worker of the ``Hearing`` that it gets.
        received: the signals.

    Returns: the worker; None: it was given up before there was one.
    """
    hearing, raised = Hearing(), None

    async def listen() -> None:
        async for number in received:
            hearing.count += 1
            if hearing.worker is None:
                text = "the worker is given up before it works"
            else:
                text = f"worker {hearing.worker.name!r} stops"
            log.info("%s: %s", number.name, text, extra={"event": "worker_signalled"})
            if not hearing.stop():
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        try:
            await work(hearing)
        except Exception as error:  # noqa: BLE001 - raised below, outside the exception group
            raised = error
        group.cancel_scope.cancel()
    if raised is not None:
        raise raised
    return hearing.worker
