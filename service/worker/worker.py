"""A worker at work: a claimer for each queue, a task of the loop for each run, and how it stops."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio

from ...errors import LodeqError
from .claiming import Claimer
from .context import Context, Running
from .running import Handlers, run_lease

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ...repository.lease import Lease
    from ...repository.queue import Queue
    from .cron import Cron
    from .ground import Ground
    from .limits import Gate

__all__ = ["Worker"]

ABANDON_S: Final = 5.0  # what is cancelled has so long to end
log = logging.getLogger("lodeq.worker")


class Worker:
    """What ``async with app.work() as worker:`` gives."""

    def __init__(
        self, ground: Ground, handlers: Handlers, cron: Cron | None, *, name: str, grace_s: float
    ) -> None:  # fmt: skip
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
        try:
            async with anyio.create_task_group() as self._group:
                for claimer in self._claimers:
                    self._group.start_soon(self._guarded, claimer.run)
                if self._cron is not None:
                    self._group.start_soon(self._guarded, self._cron.run)
                await self._stopping.wait()
                await self._wind_up()
                self._group.cancel_scope.cancel()
        finally:
            self._keep.close()
            self.finished.set()

    async def _guarded(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """What cannot be mended by trying again stops the worker, not its host."""
        try:
            await main()
        except LodeqError as error:
            if self.error is None:
                self.error = error
            log.critical("worker %r stops: %r", self.name, error)
            self.stop()

    def _start(self, claimer: Claimer, leases: Sequence[Lease]) -> None:
        now = self._ground.clock.mono()
        self._keep.hold(leases)
        for lease in leases:
            claimer.gate.enter(lease.tenant, now)
            context = Context(lease, lease.queue, self._ground.engine, now)
            self._runs[lease] = context
            self._group.start_soon(self._run, claimer, context)

    async def _run(self, claimer: Claimer, context: Context) -> None:
        try:
            outcome = await run_lease(self._ground, self._handlers, context)
            self.outcomes[outcome.kind] += 1
        except Exception:  # a bug of ours ends this run; its lease will run out
            log.exception("task %s (%r): the worker failed", context.task_id, context.name)
        finally:
            del self._runs[context.lease]
            self._keep.drop(context.lease)
            claimer.left(context.tenant)
            self._ended.set()

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
        while self._runs and clock.mono() < until:
            await self._one_ends(until)
        for lease, context in list(self._runs.items()):
            log.error("task %s (%r) does not end; it is released", context.task_id, context.name)
            self._keep.drop(lease)
            try:
                await lease.release()
            except (LodeqError, OSError) as error:
                log.warning("task %s was not released: %r", context.task_id, error)
        self.has_left_some = bool(self._runs) or self._handlers.busy_threads > 0
        self.finished.set()

    async def _one_ends(self, until_mono: float) -> None:
        self._ended = anyio.Event()
        await self._ground.wait(self._ended, until_mono)
