"""Signals: SIGTERM or SIGINT stops a worker, a second one cuts its grace short."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from ..shared.child_signals import leave_children_theirs

if TYPE_CHECKING:
    from .worker import Worker

__all__ = ["Signals", "signals", "until_signalled"]

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


async def until_signalled(worker: Worker, received: Signals) -> None:
    """Wait until the worker has finished, because of a signal or by itself."""

    async def listen() -> None:
        async for number in received:
            log.info(
                "%s: worker %r stops", number.name, worker.name, extra={"event": "worker_signalled"}
            )
            worker.stop()

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        await worker.finished.wait()
        group.cancel_scope.cancel()
