"""The context of a run: its task, its lease, and the way to stop it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context as ContextVars
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import from_thread

from ....engine.runtime.task_id import TaskId
from ....errors import LimitError, UsageError
from ....repository.model.arguments import check_progress, within
from ....repository.model.flows.workflow_handle import Workflow
from ....repository.model.flows.workflows import PARTS_MAX, OnFailure
from ....repository.model.task_options import FOLLOW_UPS_MAX
from ....repository.model.values import NewTask, Part

if TYPE_CHECKING:
    import anyio

    from ....repository.api.engine import Engine
    from ....repository.model.redaction import Redaction
    from ....repository.tasks.lease import Lease
    from .limits import RunSlots
    from .threads import Lasting, ThreadPermit, Threads

__all__ = ["Context", "Running", "current", "run_in", "run_of_caller", "running_in"]

_current: ContextVar[Context] = ContextVar("lodeq_worker_context")


@dataclass(frozen=True, slots=True)
class Running:
    """One entry of ``worker.running``. ``progress`` is from 0 to 1, or None."""

    task_id: TaskId
    name: str
    queue: str
    tenant: str
    attempt: int
    seconds: float
    progress: float | None
    note: str


class Context:
    """One run of one task. Inside the function: ``lodeq.worker.current()``."""

    def __init__(self, lease: Lease, name: str, engine: Engine, started_mono: float) -> None:
        self._lease = lease
        self._engine = engine
        self._headers: Mapping[str, Any] | None = None
        self.name = name  # the function's; until it is found, the queue's
        self.started_mono = started_mono
        self.follow_ups: list[NewTask] = []
        self.fraction: float | None = None
        self.note = ""
        self.timeout_s: float | None = None
        self.on_progress: Callable[[Context], object] | None = None  # stores it
        self.why_cancelled = ""  # timeout, stopping, lost, exited; cancelled with the host
        self.exit_text = ""  # what a callback of it raised: it is "exited"
        self.has_cancelled_worker = False  # called ``cancel()`` on the worker's own loop tasks
        self.owns_signals = False  # the app receives SIGINT: no ``KeyboardInterrupt`` is Ctrl-C
        self._cancel: Callable[[], object] | None = None
        self._is_only_asked = False  # to stop: a thread that may still return by itself
        self._has_seen = False
        self.in_thread = False
        self.permit: ThreadPermit | None = None  # for a plain function
        self.threads: Threads | None = None  # of the worker
        self.batch: Lasting | None = None  # the call that it is part of
        self.slots: RunSlots | None = None  # that the run waits for before it starts
        self.held_slots: list[anyio.Semaphore] = []
        self.is_over = False  # the function has ended, or is not waited for: nothing is added
        self.is_ending = False  # the end of the lease is being written
        self.is_cut_short = False  # do not wait for a store that is out of reach
        self.is_left = False  # the worker has released the lease, and said so: the run does not end
        self.pausing: anyio.Event | None = None  # between two tries to end the lease
        self.redaction: Redaction | None = None  # of reasons

    def __repr__(self) -> str:
        return f"<Context {self.name} {self.task_id} attempt={self.attempt}>"

    @property
    def lease(self) -> Lease:
        """The lease. The worker keeps it alive and ends it; do neither yourself."""
        return self._lease

    @property
    def engine(self) -> Engine:
        """The store: an ``Engine``, or a client with the same methods."""
        return self._engine

    @property
    def task_id(self) -> TaskId:
        """The task's id."""
        return self._lease.task_id

    @property
    def queue(self) -> str:
        """Queue of the task."""
        return self._lease.queue

    @property
    def tenant(self) -> str:
        """Tenant of the task; empty for the default tenant."""
        return self._lease.tenant

    @property
    def attempt(self) -> int:
        """Number of this attempt, 1 for the first run."""
        return self._lease.attempt

    @property
    def headers(self) -> Mapping[str, Any]:
        """Headers given at the enqueue, and ``lodeq.task``."""
        if self._headers is None:
            self._headers = self._lease.headers
        return self._headers

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels given at the enqueue."""
        return self._lease.labels

    @property
    def enqueued_at(self) -> datetime:
        """Wall time of the enqueue."""
        return self._lease.enqueued_at

    @property
    def cancelled(self) -> bool:
        """Whether to stop: out of time, out of grace, or the lease is lost. For threads."""
        self._has_seen |= self._is_only_asked
        return bool(self.why_cancelled)

    def progress(self, fraction: float | None = None, note: str = "") -> None:
        """Report how far the run has come, and a status text. Callable from any thread.

        It returns at once. The worker stores the last report, at most once a second; it is shown
        (``Task.progress``, the command line, the dashboard) until the run ends.

        Args:
            fraction: from 0 to 1, and what is outside counts as 0 or 1: no number ends a run that
                has done its work. None, or NaN, where nobody knows.
            note: a status text; cut to 256 bytes.

        Raises:
            UsageError: the fraction is no number, or the note no text.
        """
        near = within(fraction, 0.0, 1.0)
        self.fraction, _ = check_progress(near if near == near else None, note)
        self.note = note
        if self.on_progress is not None:
            self.on_progress(self)

    def then(self, *tasks: NewTask) -> None:
        """Add follow-ups: enqueued in one atomic batch with the completion, or not at all.

        Args:
            tasks: from ``function.new(…)``, or ``lodeq.NewTask``; without dedup and shard keys.
                Those of a function keep its whole policy.

        Raises:
            UsageError: one is not such a task, or the run is over.
            LimitError: more than 256 follow-ups in this run; none of these was added.

        Durability: that of the completion. Cancellation: nothing is enqueued for a run that does
        not complete.
        """
        if self.is_over:
            raise UsageError(
                f"the run of task {self.task_id} is over, so nothing can be enqueued with its "
                "completion: call enqueue(), or await what calls then()"
            )
        for task in tasks:
            if not isinstance(task, NewTask):
                raise UsageError(f"then() takes lodeq.NewTask, not {type(task).__name__}")
            if task.dedup_key is not None or task.shard_key is not None:
                raise UsageError(
                    "a follow-up lives on its parent's shard: no dedup or shard key, and no "
                    "function with unique=; await its enqueue() instead"
                )
        if len(self.follow_ups) + len(tasks) > FOLLOW_UPS_MAX:
            raise LimitError(f"more than {FOLLOW_UPS_MAX} follow-ups of one run")
        self.follow_ups.extend(tasks)

    def parts(self, *, failed: bool = False) -> AsyncIterator[Part]:
        """Go through all that this task has waited for, by number, with results: ``async for``.

        Of a callback these are all members of its workflow, of a step of a chain the one before.

        Args:
            failed: only those that did not complete.

        Raises:
            TaskNotFoundError: it has waited for nothing.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        return self._engine.parts(self.task_id, failed=failed)

    def parts_sync(self, *, failed: bool = False) -> Iterator[Part]:
        """Go through the same in a plain function, which runs in a thread: ``for``.

        Args:
            failed: only those that did not complete.

        Raises:
            UsageError: the function runs on the loop; use ``parts``.

        Otherwise as ``parts``, including Durability and Cancellation.
        """
        if not self.in_thread:
            raise UsageError("parts_sync() is for plain functions; here: async for … in parts()")
        return self._pages(failed)

    def _pages(self, failed: bool) -> Iterator[Part]:
        read, after = self._engine.parts_page, -1
        while page := from_thread.run(
            partial(read, self.task_id, after=after, limit=PARTS_MAX, failed=failed)
        ):
            yield from page
            after = page[-1].number

    async def workflow(
        self,
        callback: NewTask | None = None,
        *,
        key: str | bytes | None = None,
        name: str = "",
        on_failure: OnFailure = "run",
    ) -> Workflow:
        """Open a workflow that this task fills: as ``Engine.workflow``.

        A run of the same task after this one, by whichever worker, fills the same workflow.

        Args:
            callback: the task that runs when all members have ended, from ``function.new(…)``.
            key: the task's id by default: give one each if one task opens several.
            name: shown to people; the function's by default.
            on_failure: ``run``, ``wait`` or ``cancel``.

        Durability and Cancellation: as ``Engine.workflow``.
        """
        return await self._engine.workflow(
            callback,
            key=bytes(self.task_id) if key is None else key,
            name=name or self.name[:32],
            on_failure=on_failure,
        )

    # -- for the worker ----------------------------------------------------------------

    def set_cancel(self, cancel: Callable[[], object]) -> None:
        """Set the callback that stops the run; call it at once if the run is to stop already."""
        self._cancel = cancel
        if self.why_cancelled:
            cancel()

    @property
    def gave_up(self) -> bool:
        """Whether a function may have stopped half-way: it saw that it was asked to stop."""
        return self._has_seen

    def stop(self, why: str) -> None:
        """Ask the run to stop, because of ``why``; the first cause counts.

        It is cancelled once, and has time to clean up; if its lease is lost meanwhile, no more.

        A thread cannot be stopped. When the worker stops, a thread is only asked, and the value
        it returns counts. When it is out of time or has lost its lease, the run ends without it.
        """
        if self.why_cancelled == why:
            return
        if self.why_cancelled and not self._is_only_asked:
            if why == "lost" and self._cancel is not None:
                self._cancel()
            return
        self.why_cancelled = why
        self._is_only_asked = self.in_thread and why == "stopping"
        if self._cancel is not None and not self._is_only_asked:
            self._cancel()

    def leave_thread(self) -> None:
        """Go on outside the thread, where the run can be cancelled."""
        if self._is_only_asked and self._cancel is not None:
            self._is_only_asked = False
            self._cancel()

    def cut_short(self) -> None:
        """Stop waiting for a store that is out of reach."""
        self.is_cut_short = True
        if self.pausing is not None:
            self.pausing.set()

    def to_running(self, now_mono: float) -> Running:
        """Return the entry for ``worker.running``."""
        return Running(
            self.task_id,
            self.name,
            self.queue,
            self.tenant,
            self.attempt,
            now_mono - self.started_mono,
            self.fraction,
            self.note,
        )


@contextmanager
def running_in(context: Context) -> Iterator[None]:
    """Make this context the one that ``current()`` returns."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Context:
    """Return the context of the run that calls this, on the loop or in its thread.

    Raises:
        UsageError: no run calls it.
    """
    try:
        return _current.get()
    except LookupError:
        raise UsageError("current() works only inside a task function") from None


def run_of_caller() -> Context | None:
    """Return the context of the run that calls this, or which left the callback that does."""
    return _current.get(None)


def run_in(variables: ContextVars) -> Context | None:
    """Return the context of the run whose context variables these are."""
    return variables.get(_current)
