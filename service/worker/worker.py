"""A running worker: a claimer for each queue, a loop task for each run, and the stop."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from ...errors import InvariantError, LodeqError
from .run.claimer import Claimer
from .run.context import Context, Running
from .run.log_fields import fields
from .run.loop_guard import guarded_loop, watched
from .run.progress_reports import ProgressReports
from .run.run_end import CANCELLED_WORKER, RELEASED, end_lease, give_back
from .run.task_run import Handlers, run_lease

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ...repository.api.queue import Queue
    from ...repository.tasks.lease import Lease
    from .cron import Cron
    from .report import Beats
    from .run.backend import WorkerBackend
    from .run.limits import Gate, RunSlots

__all__ = ["Worker"]

LAST_BEAT_S: Final = 1.0
CLAIM_S: Final = 5.0  # a claim that waits at the store has come back by then
ABANDON_S: Final = 2.0  # a run that has not ended so long after its cleanup was cut is left behind
log = logging.getLogger("lodeq.worker")


class Worker:
    """A running worker: ``async with app.work() as worker:``.

    Args:
        backend: the store and its clock.
        handlers: the functions to run.
        cron: enqueues ticks while the worker runs; None for an app without cron functions.
        name: kept with leases and results.
        grace_s: seconds that runs have to end when the worker stops.
        slots: runs at once in this process.
    """

    def __init__(
        self,
        backend: WorkerBackend,
        handlers: Handlers,
        cron: Cron | None,
        *,
        name: str,
        grace_s: float,
        slots: RunSlots,
    ) -> None:
        self.name = name
        self.error: LodeqError | None = None  # set if it stopped by itself
        self.has_left_some = False  # whether a run or thread still went on when it finished
        self.finished = anyio.Event()
        self.outcomes: Counter[str] = Counter()  # number of runs by outcome
        self._backend = backend
        self._handlers = handlers
        self._cron = cron
        self._grace_s = grace_s
        self._slots = slots
        self._claimers: list[Claimer] = []
        self._runs: dict[Lease, Context] = {}
        self._keepalive = backend.start_keepalive(self._lost)
        self._progress = ProgressReports(backend, handlers.redaction)
        self._stopping = anyio.Event()
        self._hurry = False
        self._is_over = False  # runs are not waited for any more
        self._host: asyncio.Task[Any] | None = None  # on asyncio: the loop task of ``run``
        self._ended = anyio.Event()  # set when a run ends
        self.beats: Beats | None = None  # reports it to the store; set by the app
        self.leave: Callable[[], Awaitable[object]] | None = None  # end the process; also the app's
        self._group: TaskGroup

    def __repr__(self) -> str:
        return f"<Worker {self.name!r} running={len(self._runs)}>"

    @property
    def running(self) -> list[Running]:
        """The runs of this moment."""
        now = self._backend.clock.mono()
        return [context.to_running(now) for context in self._runs.values()]

    def stop(self) -> None:
        """Claim nothing more, and stop as docs/worker.md describes.

        It returns at once; ``finished`` is set at the end. A second call cuts the grace short.
        """
        if self._stopping.is_set():
            self._hurry = True
            self._ended.set()
        self._stopping.set()
        for claimer in self._claimers:
            claimer.stop()

    # -- for the app -------------------------------------------------------------------

    async def run(self, queues: Mapping[str, tuple[Queue, Gate]]) -> None:
        """Work on these queues until ``stop``. Cancelled, it releases the tasks that run."""
        with guarded_loop():
            await self._work(queues)

    async def _work(self, queues: Mapping[str, tuple[Queue, Gate]]) -> None:
        if not self._stopping.is_set():  # ``stop`` may have been called before
            for queue, gate in queues.values():
                claimer = Claimer(
                    self._backend, queue, gate, self.name, self._start, self._handlers.elsewhere
                )
                self._claimers.append(claimer)
        if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
            self._host = asyncio.current_task()
        try:
            async with anyio.create_task_group() as self._group:
                for claimer in self._claimers:
                    self._group.start_soon(self._guarded, claimer.run)
                self._group.start_soon(self._progress.run)
                if self._cron is not None:
                    self._group.start_soon(self._guarded, self._cron.run)
                if self.beats is not None:
                    self._group.start_soon(self.beats.run)
                try:
                    await self._stopping.wait()
                    await self._wind_up()
                    if self.beats is not None:
                        await self._last_beat(self.beats)
                finally:
                    self._is_over = True
                    for context in self._runs.values():
                        context.cut_short()
                        context.stop("cancelled")
                self._group.cancel_scope.cancel()
        finally:
            await self._end_leases()
            self._keepalive.close()
            is_cancelled = anyio.current_effective_deadline() == -math.inf
            if not (self._stopping.is_set() or is_cancelled or self._is_host_cancelled()):
                self._ended_by_itself()
            self.finished.set()

    def _is_host_cancelled(self) -> bool:
        return self._host is not None and self._host.cancelling() > 0

    def _ended_by_itself(self) -> None:
        if self.error is None:
            self.error = InvariantError(f"worker {self.name!r} ended without being stopped")
        log.critical(
            "worker %r ends without being stopped",
            self.name,
            extra={"event": "worker_stops"},
        )

    async def _guarded(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stop the worker, not its host, on an error that a retry does not help."""
        try:
            with watched(self._cancelled_by):
                await main()
        except LodeqError as error:
            if self.error is None:
                self.error = error
            log.critical("worker %r stops: %r", self.name, error, extra={"event": "worker_stops"})
            self.stop()

    def _cancelled_by(self, context: Context) -> None:
        """Note that a run cancels the worker itself: its task fails, the others are released."""
        if self._stopping.is_set() or context.has_cancelled_worker:
            return
        context.has_cancelled_worker = True
        log.critical(
            "task %s (%r): it cancels the tasks of its worker, which ends",
            context.task_id,
            context.name,
            extra=fields("run_ends_loop", context),
        )
        if self.leave is not None:
            self._backend.spawner.spawn(self._leave_if_held, "lodeq-worker-end")

    async def _leave_if_held(self) -> None:
        """Leave, if that run waits for tasks that wait for it: nothing else would end either."""
        await self._backend.wait(anyio.Event(), self._backend.clock.mono() + ABANDON_S)
        if self.finished.is_set() or self.leave is None:
            return
        for context in self._runs.values():
            context.is_left = True
        await self._end_leases()
        await self.leave()

    def _start(self, claimer: Claimer, leases: Sequence[Lease]) -> None:
        now = self._backend.clock.mono()
        self._keepalive.hold(leases)
        for lease in leases:
            claimer.gate.enter(lease.tenant)
            context = Context(lease, lease.queue, self._backend.engine, now)
            context.slots = self._slots
            context.on_progress = self._progress.note
            if self._is_over:
                context.cut_short()
                context.stop("cancelled")
            self._runs[lease] = context
            self._group.start_soon(self._run, claimer, context)

    async def _run(self, claimer: Claimer, context: Context) -> None:
        is_outside = partial(self._is_cancelled_from_outside, context)
        try:
            outcome = await run_lease(
                self._backend, self._handlers, context, is_outside, is_shielded=True
            )
            self.outcomes[outcome.kind] += 1
            if log.isEnabledFor(logging.DEBUG):
                self._log_end(context, outcome.kind)
        except anyio.get_cancelled_exc_class() as error:
            if is_outside():
                raise
            self._failed(context, error)  # a late cancellation by the function itself
        except Exception as error:  # noqa: BLE001 - a bug of ours; the lease will run out
            self._failed(context, error)
        finally:
            del self._runs[context.lease]
            self._keepalive.drop(context.lease)
            note_end = partial(self._run_ended, claimer, context)
            lasting = context.permit or context.batch
            if lasting is None:
                note_end()
            else:
                lasting.when_free(note_end)
            self._ended.set()

    def _log_end(self, context: Context, kind: str) -> None:
        log.debug(
            "task %s (%r, attempt %d): %s in %.3f s",
            context.task_id,
            context.name,
            context.attempt,
            kind,
            self._backend.clock.mono() - context.started_mono,
            extra=fields("run_ended", context),
        )

    def _failed(self, context: Context, error: BaseException) -> None:
        log.error(
            "task %s (%r): the worker failed",
            context.task_id,
            context.name,
            exc_info=error,
            extra=fields("worker_failed", context),
        )

    def _run_ended(self, claimer: Claimer, context: Context) -> None:
        """Count the end of a run whose thread, if it had one, has returned."""
        for slot in context.held_slots:
            slot.release()
        context.held_slots.clear()
        if claimer.run_ended(context.tenant):
            for other in self._claimers:
                other.slot_freed()
        self._ended.set()

    def _is_cancelled_from_outside(self, context: Context) -> bool:
        """Return whether whoever runs the worker cancelled it.

        A function may cancel its own task, but it cannot reach these scopes.
        """
        if self._is_over or self._is_host_cancelled() or self._group.cancel_scope.cancel_called:
            return True
        # The run's own scope hides the outer ones, which are cancelled again at the next wait.
        return not context.why_cancelled and anyio.current_effective_deadline() == -math.inf

    def _lost(self, lease: Lease) -> None:
        context = self._runs.get(lease)
        if context is not None:
            context.stop("lost")

    # -- stopping ----------------------------------------------------------------------

    async def _wind_up(self) -> None:
        clock = self._backend.clock
        grace_until = clock.mono() + self._grace_s
        # First the claimers: a claim that still waits would take what is released here.
        claims_until = clock.mono() + CLAIM_S
        for claimer in self._claimers:
            await self._backend.wait(claimer.over, claims_until)
        while self._runs and not self._hurry and clock.mono() < grace_until:
            await self._one_ends(grace_until)
        for context in list(self._runs.values()):
            context.stop("stopping")
        until = clock.mono() + self._handlers.cleanup_s + ABANDON_S
        while (self._runs or self._handlers.busy_threads) and clock.mono() < until:
            await self._one_ends(until)
        await self._abandon([one for one in self._runs.values() if not one.is_ending])
        self.has_left_some = bool(self._runs) or self._handlers.busy_threads > 0
        self.finished.set()

    async def _last_beat(self, beats: Beats) -> None:
        """Say that the worker is over; a store that does not answer is not waited for."""
        with anyio.move_on_after(LAST_BEAT_S):
            await beats.end()

    async def _abandon(self, runs: Sequence[Context]) -> None:
        """Release what does not end; where only the end of a lease is missing, that goes on."""
        for context in runs:
            log.error(
                "task %s (%r) does not end; its lease is released",
                context.task_id,
                context.name,
                extra=fields("left_behind", context),
            )
            self._keepalive.drop(context.lease)
            context.is_left = True
        await give_back([context.lease for context in runs])

    def log_unstored(self) -> None:
        """Name what is done and not stored, just before the process ends: nothing else would."""
        for context in self._runs.values():
            if context.is_ending and not context.is_left:
                log.error(
                    "task %s (%r) has ended, but the store did not answer; its lease will expire",
                    context.task_id,
                    context.name,
                    extra=fields("outcome_not_stored", context),
                )

    async def _end_leases(self) -> None:
        """End the leases that runs have not ended: some were cancelled before their first step.

        All at once: one that a silent node has must not keep the others.
        """
        if not self._runs:
            return
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for context in list(self._runs.values()):
                    context.cut_short()
                    end = CANCELLED_WORKER if context.has_cancelled_worker else RELEASED
                    group.start_soon(end_lease, self._backend, context, end)

    async def _one_ends(self, until_mono: float) -> None:
        self._ended = anyio.Event()
        await self._backend.wait(self._ended, until_mono)
