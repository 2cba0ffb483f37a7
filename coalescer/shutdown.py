"""The end of a commit loop: what is queued is written and synced, within bounds.

Not in ``commit_loop``, which is compiled: no coroutine is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..engine.runtime.event_loop import Future
from ..errors import ClosedError, LodeqError
from .backpressure import SubmitLine
from .fsync import Syncer
from .group import Group
from .shard_status import CLOSED, ShardStatus

__all__ = ["Drainable", "drain"]


class Drainable(Protocol):
    """A commit loop as far as ``drain`` needs it."""

    submit_line: SubmitLine

    @property
    def takes_writes(self) -> bool:
        """Whether it has neither failed nor been closed, and leads its shard."""

    def enter(self, status: ShardStatus, error: LodeqError | None = None) -> None:
        """Change the status."""

    def commit_barrier(self, *, is_local: bool) -> Future | None:
        """A future for everything queued so far; None if nothing is left to wait for."""

    def pending(self) -> Sequence[Group]:
        """Groups not yet applied."""


async def drain(loop: Drainable, syncer: Syncer) -> None:
    """Commit and sync what is queued. The engine has stopped its intake by now."""
    loop.submit_line.admit_all()  # callers in line check again, and find the engine closed
    while loop.takes_writes:
        try:
            while (settled := loop.commit_barrier(is_local=True)) is not None:
                await settled
        except LodeqError:
            pass  # failed or abandoned: those who waited have their errors
        await syncer.finish()
        if not loop.pending():
            break
    if loop.takes_writes:
        loop.enter(CLOSED, ClosedError("the engine is closed"))
