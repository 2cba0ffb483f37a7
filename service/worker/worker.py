"""A worker at work: a claimer for each queue, a task of the loop for each run, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from ...errors import InvariantError, LodeqError
from .run.claimer import Claimer
from .run.context import Context, Running
from .run.log_fields import fields
from .run.task_run import Handlers, run_lease

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ...repository.api.queue import Queue
    from ...repository.tasks.lease import Lease
    from .cron import Cron
    from .run.backend import WorkerBackend
    from .run.limits import Gate

__all__ = ["Worker"]

ABANDON_S: Final = 5.0  # what is cancelled has so long to end
log = logging.getLogger("lodeq.worker")


class Worker:
    """What ``async with app.work() as worker:`` gives."""

    def __init__(
        self,
        ground: WorkerBackend,
        handlers: Handlers,
        cron: Cron | None,
        *,
        name: str,
        grace_s: float,
    ) -> None:
        self.name = name
        self.error: LodeqError | None = None  # why it stopped by itself
        self.has_left_some = False  # whether something went on running when it had finished
        self.finished = anyio.Event()
        self.outcomes: Counter[str] = Counter()  # how many runs ended how
        self._ground = ground
        self._handlers = handlers
        self._cron = cron
        self._grace_s = grace_s
        self._claimers: list[Claimer] = []
        self._runs: dict[Lease, Context] = {}
        self._keep = ground.keep_alive(self._lost)
        self._stopping = anyio.Event()
        self._hurry = False
        self._is_over = False  # what still runs is not waited for
        self._host: asyncio.Task[Any] | None = None  # on asyncio: the task of ``run``
        self._ended = anyio.Event()  # a run
        self._group: TaskGroup

    def __repr__(self) -> str:
        return f"<Worker {self.name!r} running={len(self._runs)}>"

    @property
    def running(self) -> list[Running]:
        """What runs now."""
        now = self._ground.clock.mono()
        return [context.shown(now) for context in self._runs.values()]

    def stop(self) -> None:
        """Claim nothing any more, and stop as docs/worker.md says.

        It returns at once; ``finished`` is set in the end. Called again, it does not wait for what
        runs.
        """
        if self._stopping.is_set():
            self._hurry = True
            self._ended.set()
        self._stopping.set()
        for claimer in self._claimers:
            claimer.stop()

    # -- for the app -------------------------------------------------------------------

    async def run(self, queues: Mapping[str, tuple[Queue, Gate]]) -> None:
        """Work until ``stop``, on these queues. Cancelled, it releases what runs."""
        if not self._stopping.is_set():  # it may be, before it began
            for queue, gate in queues.values():
                self._claimers.append(Claimer(self._ground, queue, gate, self.name, self._start))
        if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
            self._host = asyncio.current_task()
        try:
            async with anyio.create_task_group() as self._group:
                for claimer in self._claimers:
                    self._group.start_soon(self._guarded, claimer.run)
                if self._cron is not None:
                    self._group.start_soon(self._guarded, self._cron.run)
                try:
                    await self._stopping.wait()
                    await self._wind_up()
                finally:
                    self._is_over = True
                    for context in self._runs.values():
                        context.cut_short()
                self._group.cancel_scope.cancel()
        finally:
            self._keep.close()
            is_cancelled = anyio.current_effective_deadline() == -math.inf
            if not (self._stopping.is_set() or is_cancelled or self._is_host_cancelled()):
                self._ended_by_itself()
            self.finished.set()

    def _is_host_cancelled(self) -> bool:
        return self._host is not None and self._host.cancelling() > 0

    def _ended_by_itself(self) -> None:
        if self.error is None:
            self.error = InvariantError(f"worker {self.name!r} ended, and nobody had stopped it")
        log.critical(
            "worker %r ends, and nobody has stopped it",
            self.name,
            extra={"event": "worker_stops"},
        )

    async def _guarded(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """What cannot be mended by trying again stops the worker, not its host."""
        try:
            await main()
        except LodeqError as error:
            if self.error is None:
                self.error = error
            log.critical("worker %r stops: %r", self.name, error, extra={"event": "worker_stops"})
            self.stop()

    def _start(self, claimer: Claimer, leases: Sequence[Lease]) -> None:
        now = self._ground.clock.mono()
        self._keep.hold(leases)
        for lease in leases:
            claimer.gate.enter(lease.tenant, now)
            context = Context(lease, lease.queue, self._ground.engine, now)
            if self._is_over:
                context.cut_short()
            self._runs[lease] = context
            self._group.start_soon(self._run, claimer, context)

    async def _run(self, claimer: Claimer, context: Context) -> None:
        is_outside = partial(self._is_cancelled_from_outside, context)
        try:
            outcome = await run_lease(self._ground, self._handlers, context, is_outside)
            self.outcomes[outcome.kind] += 1
        except anyio.get_cancelled_exc_class() as error:
            if is_outside():
                raise
            self._failed(context, error)  # something of the function's came late
        except Exception as error:  # noqa: BLE001 - a bug of ours; the lease will run out
            self._failed(context, error)
        finally:
            del self._runs[context.lease]
            self._keep.drop(context.lease)
            left = partial(self._left, claimer, context.tenant)
            if context.place is None:
                left()
            else:
                context.place.when_free(left)
            self._ended.set()

    def _failed(self, context: Context, error: BaseException) -> None:
        log.error(
            "task %s (%r): the worker failed",
            context.task_id,
            context.name,
            exc_info=error,
            extra=fields("worker_failed", context),
        )

    def _left(self, claimer: Claimer, tenant: str) -> None:
        """Neither the run nor a thread of it goes on."""
        claimer.left(tenant)
        self._ended.set()

    def _is_cancelled_from_outside(self, context: Context) -> bool:
        """By whoever runs the worker. A function may cancel its own task, but not these scopes."""
        if self._is_over or self._is_host_cancelled() or self._group.cancel_scope.cancel_called:
            return True
        # The run's own scope hides what is around it, which is cancelled again at the next wait.
        return not context.why_cancelled and anyio.current_effective_deadline() == -math.inf

    def _lost(self, lease: Lease) -> None:
        context = self._runs.get(lease)
        if context is not None:
            context.stop("lost")

    # -- stopping ----------------------------------------------------------------------

    async def _wind_up(self) -> None:
        clock = self._ground.clock
        grace_until = clock.mono() + self._grace_s
        # First: a claim that still waits would take what is released here.
        for claimer in self._claimers:
            await self._ground.wait(claimer.over, clock.mono() + ABANDON_S)
        while self._runs and not self._hurry and clock.mono() < grace_until:
            await self._one_ends(grace_until)
        for context in list(self._runs.values()):
            context.stop("stopping")
        until = clock.mono() + ABANDON_S
        while (self._runs or self._handlers.busy_threads) and clock.mono() < until:
            await self._one_ends(until)
        for lease, context in list(self._runs.items()):
            if not context.is_settling:  # or its end is all that is missing
                await self._abandon(lease, context)
        self.has_left_some = bool(self._runs) or self._handlers.busy_threads > 0
        self.finished.set()

    async def _abandon(self, lease: Lease, context: Context) -> None:
        log.error(
            "task %s (%r) does not end; it is released",
            context.task_id,
            context.name,
            extra=fields("left_behind", context),
        )
        self._keep.drop(lease)
        try:
            await lease.release()
        except (LodeqError, OSError) as error:
            log.warning(
                "task %s was not released: %r",
                context.task_id,
                error,
                extra=fields("not_told", context),
            )

    async def _one_ends(self, until_mono: float) -> None:
        self._ended = anyio.Event()
        await self._ground.wait(self._ended, until_mono)
