"""Drain, for tests: run all ready tasks at once, in the order of their claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from ...errors import LimitError
from .run.context import Context
from .run.control import Control
from .run.loop_guard import guarded_loop
from .run.task_run import Handlers, run_lease

if TYPE_CHECKING:
    from ...repository.api.queue import Queue
    from ...repository.tasks.lease import Lease
    from .run.backend import WorkerBackend
    from .run.batches import Batches

__all__ = ["DrainReport", "drain"]


@dataclass(frozen=True, slots=True)
class DrainReport:
    """Numbers of runs by outcome. A task that ran twice counts twice.

    ``dead`` has every run that made a dead letter, be it buried or out of attempts; ``failed``
    those whose task waits for another attempt.
    """

    completed: int = 0
    failed: int = 0
    snoozed: int = 0
    dead: int = 0
    cancelled: int = 0
    released: int = 0
    lost: int = 0

    @property
    def runs(self) -> int:
        """Number of all runs."""
        return (
            self.completed
            + self.failed
            + self.snoozed
            + self.dead
            + self.cancelled
            + self.released
            + self.lost
        )


async def _is_dead(backend: WorkerBackend, context: Context) -> bool:
    """Whether a run that failed was the last attempt, and has made a dead letter."""
    if context.attempt < context.lease.policy.max_attempts:
        return False
    task = await backend.engine.get(context.task_id)
    return task is None or task.state != "expired"  # none: it is kept for no time


async def drain(
    backend: WorkerBackend, handlers: Handlers, queues: Sequence[Queue], *, limit: int, raises: bool
) -> DrainReport:
    """Run tasks one after another until none is ready. See ``App.drain``.

    Args:
        backend: the store and its clock.
        handlers: the functions to run.
        queues: the queues to claim from.
        limit: runs after which ``LimitError`` is raised.
        raises: whether to raise the error of a run, after its lease has ended.
    """
    runs: dict[Lease, Context] = {}

    def lost(lease: Lease) -> None:
        runs[lease].stop("lost")

    keepalive = backend.start_keepalive(lost)
    ended: Counter[str] = Counter()
    errors: list[BaseException] = []
    by_name = {queue.name: queue for queue in queues}

    async def run(lease: Lease) -> None:
        context = runs[lease] = Context(lease, lease.queue, backend.engine, backend.clock.mono())
        context.cut_short()
        keepalive.hold([lease])
        outcome = await run_lease(backend, handlers, context)
        keepalive.drop(lease)
        del runs[lease]
        is_dead = outcome.kind == "failed" and await _is_dead(backend, context)
        ended["dead" if is_dead else outcome.kind] += 1
        if outcome.error is not None and not isinstance(outcome.error, Control):
            errors.append(outcome.error)

    async def run_of_batch(lease: Lease, batches: Batches) -> None:
        await run(lease)
        batches.one_has_ended()

    try:
        while leases := await backend.engine.claim(queues, worker="drain"):
            (lease,) = leases
            if ended.total() >= limit:
                await lease.release()
                raise LimitError(f"a task is still ready after {limit} runs: {lease!r}")
            batches = handlers.batches_of(lease.queue)
            if batches is None:
                with guarded_loop():
                    await run(lease)
            else:
                more = min(batches.size, limit - ended.total()) - 1
                if more:
                    leases += await by_name[lease.queue].claim(limit=more, worker="drain")
                with guarded_loop(), batches.exactly(len(leases)):
                    async with anyio.create_task_group() as group:
                        for one in leases:
                            group.start_soon(run_of_batch, one, batches)
            if raises and errors:
                raise errors[0]
    finally:
        keepalive.close()
    return DrainReport(**ended)
