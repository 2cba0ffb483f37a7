"""The context of a run: its task, its lease, and the way to stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ....engine.runtime.task_id import TaskId
from ....errors import LimitError, UsageError
from ....repository.model.task_options import FOLLOW_UPS_MAX
from ....repository.model.values import NewTask

if TYPE_CHECKING:
    import anyio

    from ....repository.api.engine import Engine
    from ....repository.tasks.lease import Lease
    from .threads import ThreadPermit

__all__ = ["Context", "Running", "current", "running_in"]

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
        self.why_cancelled = ""  # timeout, stopping or lost
        self._cancel: Callable[[], object] | None = None
        self._is_only_asked = False  # to stop: a thread that may still return by itself
        self._has_seen = False
        self.in_thread = False
        self.permit: ThreadPermit | None = None  # for a plain function
        self.is_ending = False  # the end of the lease is being written
        self.is_cut_short = False  # do not wait for a store that is out of reach
        self.pausing: anyio.Event | None = None  # between two tries to end the lease

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
    def enqueued_at(self) -> datetime:
        """Wall time of the enqueue."""
        return self._lease.enqueued_at

    @property
    def cancelled(self) -> bool:
        """Whether to stop: out of time, out of grace, or the lease is lost. For threads."""
        self._has_seen |= self._is_only_asked
        return bool(self.why_cancelled)

    def progress(self, fraction: float, note: str = "") -> None:
        """Report progress from 0 to 1. Callable from any thread; kept in memory only."""
        if isinstance(fraction, bool) or not isinstance(fraction, int | float):
            raise UsageError(
                f"progress must be a number from 0 to 1, not {type(fraction).__name__}"
            )
        if not 0 <= fraction <= 1:
            raise UsageError(f"progress {fraction!r} is not between 0 and 1")
        self.fraction, self.note = float(fraction), note

    def then(self, *tasks: NewTask) -> None:
        """Add follow-ups: enqueued in one atomic batch with the completion, or not at all.

        Args:
            tasks: from ``function.new(…)``, or ``lodeq.NewTask``; without dedup and shard keys.
                They keep ``max_attempts``, priority and TTL of their function's policy; backoff
                and retention are the defaults of ``Engine.queue``.

        Raises:
            UsageError: one is not such a task.
            LimitError: more than 256 follow-ups in this run; none of these was added.

        Durability: that of the completion. Cancellation: nothing is enqueued for a run that does
        not complete.
        """
        for task in tasks:
            if not isinstance(task, NewTask):
                raise UsageError(f"then() takes lodeq.NewTask, not {type(task).__name__}")
            if task.dedup_key is not None or task.shard_key is not None:
                raise UsageError("a follow-up lives on its parent's shard: no dedup or shard key")
        if len(self.follow_ups) + len(tasks) > FOLLOW_UPS_MAX:
            raise LimitError(f"more than {FOLLOW_UPS_MAX} follow-ups of one run")
        self.follow_ups.extend(tasks)

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
        """Ask the run to stop, because of ``timeout``, ``stopping`` or ``lost``; the first counts.

        A thread cannot be stopped. When the worker stops, a thread is only asked, and the value
        it returns counts. When it is out of time or has lost its lease, the run ends without it.
        """
        if self.why_cancelled and not self._is_only_asked:
            return
        if self.why_cancelled == why:
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
