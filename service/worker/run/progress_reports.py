"""Progress of runs on its way to the store: the last report of each run, once a second."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import anyio

from ....errors import LeaseLostError, LodeqError
from .log_fields import fields

if TYPE_CHECKING:
    from .backend import WorkerBackend
    from .context import Context

__all__ = ["ProgressReports"]

EVERY_S: Final = 1.0
log = logging.getLogger("lodeq.worker")


class ProgressReports:
    """Writes what functions report with ``current().progress(…)``.

    A report that the store does not take is dropped: the next one says more.

    Args:
        backend: the store and its clock.
        redact: applied to each note before it leaves the process.
    """

    def __init__(self, backend: WorkerBackend, redact: Callable[[str], str] | None = None) -> None:
        self._backend = backend
        self._redact = redact
        self._noted: dict[Context, None] = {}
        self._woken = anyio.Event()

    def note(self, context: Context) -> None:
        """Note that a run has reported. Callable from any thread."""
        self._backend.spawner.call_soon_threadsafe(lambda: self._note(context))

    def _note(self, context: Context) -> None:
        self._noted[context] = None
        self._woken.set()

    async def run(self) -> None:
        """Write until cancelled: at once what is new, and then at most once a second."""
        clock = self._backend.clock
        while True:
            await self._woken.wait()
            self._woken = anyio.Event()
            noted, self._noted = self._noted, {}
            for context in noted:
                if not context.is_ending:
                    await self._write(context)
            await self._backend.wait(anyio.Event(), clock.mono() + EVERY_S)

    async def _write(self, context: Context) -> None:
        note = context.note
        if self._redact is not None and note:
            note = self._redact(note)
        try:
            await context.lease.progress(context.fraction, note)
        except LeaseLostError:
            pass  # its end is on the way
        except (LodeqError, OSError) as error:
            log.debug(
                "progress of task %s was not stored: %r",
                context.task_id,
                error,
                extra=fields("progress_not_stored", context),
            )
