"""For tests: run what is ready, here and now, in the order it would be claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import LimitError
from .run.context import Context
from .run.control import Control
from .run.task_run import Handlers, run_lease

if TYPE_CHECKING:
    from ...repository.api.queue import Queue
    from ...repository.tasks.lease import Lease
    from .run.backend import WorkerBackend

__all__ = ["DrainReport", "drain"]


@dataclass(frozen=True, slots=True)
class DrainReport:
    """How many runs ended how. A task that ran twice counts twice."""

    completed: int = 0
    failed: int = 0
    snoozed: int = 0
    dead: int = 0
    cancelled: int = 0
    released: int = 0
    lost: int = 0

    @property
    def runs(self) -> int:
        """All of them."""
        return (
            self.completed
            + self.failed
            + self.snoozed
            + self.dead
            + self.cancelled
            + self.released
            + self.lost
        )


async def drain(
    ground: WorkerBackend, handlers: Handlers, queues: Sequence[Queue], *, limit: int, raises: bool
) -> DrainReport:
    """See ``App.drain``."""
    runs: dict[Lease, Context] = {}

    def lost(lease: Lease) -> None:
        runs[lease].stop("lost")

    keep = ground.keep_alive(lost)
    ended: Counter[str] = Counter()
    try:
        while leases := await ground.engine.claim(queues, worker="drain"):
            (lease,) = leases
            if ended.total() >= limit:
                await lease.release()
                raise LimitError(f"{limit} runs, and still something is ready: {lease!r}")
            context = runs[lease] = Context(lease, lease.queue, ground.engine, ground.clock.mono())
            context.cut_short()
            keep.hold(leases)
            outcome = await run_lease(ground, handlers, context)
            keep.drop(lease)
            del runs[lease]
            ended[outcome.kind] += 1
            error = outcome.error
            if raises and error is not None and not isinstance(error, Control):
                raise error
    finally:
        keep.close()
    return DrainReport(**ended)
