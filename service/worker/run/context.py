"""What a run knows of itself."""

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
    """One run, as ``worker.running`` shows it. ``progress`` is from 0 to 1, or None."""

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
        self.name = name  # of the function
        self.started_mono = started_mono
        self.follow_ups: list[NewTask] = []
        self.fraction: float | None = None
        self.note = ""
        self.why_cancelled = ""  # timeout, stopping or lost
        self._cancel: Callable[[], object] | None = None
        self._is_told_only = False  # to stop, in a thread that may still end by itself
        self._has_seen = False
        self.in_thread = False
        self.place: ThreadPermit | None = None  # of a plain function
        self.is_settling = False
        self.is_cut_short = False
        self.pausing: anyio.Event | None = None  # between two tries to end the lease

    def __repr__(self) -> str:
        return f"<Context {self.name} {self.task_id} attempt={self.attempt}>"

    @property
    def lease(self) -> Lease:
        """The lease. It is kept alive and ended by the worker; leave both to it."""
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
        """Where the task was."""
        return self._lease.queue

    @property
    def tenant(self) -> str:
        """Whose task it is; empty for the default tenant."""
        return self._lease.tenant

    @property
    def attempt(self) -> int:
        """1 in the first run."""
        return self._lease.attempt

    @property
    def headers(self) -> Mapping[str, Any]:
        """What was given at enqueue, and ``lodeq.task``."""
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
        self._has_seen |= self._is_told_only
        return bool(self.why_cancelled)

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far it is, from 0 to 1. From any thread; kept in memory only."""
        if isinstance(fraction, bool) or not isinstance(fraction, int | float):
            raise UsageError(f"progress is a number from 0 to 1, not {type(fraction).__name__}")
        if not 0 <= fraction <= 1:
            raise UsageError(f"progress {fraction!r} is not between 0 and 1")
        self.fraction, self.note = float(fraction), note

    def then(self, *tasks: NewTask) -> None:
        """Follow-ups: enqueued together with the completion, in one atomic batch, or not at all.

        Args:
            tasks: from ``function.new(…)``, or ``lodeq.NewTask``; without dedup and shard keys.
                Of their function's policy they keep ``max_attempts``, priority and TTL; backoff
                and retention are the defaults of ``Engine.queue``.

        Raises:
            UsageError: it is no such task.
            LimitError: with those given before they are more than 256; none of these was taken.

        Durability: that of the completion. Cancellation: of a run that does not complete, nothing
        is enqueued.
        """
        for task in tasks:
            if not isinstance(task, NewTask):
                raise UsageError(f"then() takes lodeq.NewTask, not {type(task).__name__}")
            if task.dedup_key is not None or task.shard_key is not None:
                raise UsageError("a follow-up lives on its parent's shard: no dedup or shard key")
        if len(self.follow_ups) + len(tasks) > FOLLOW_UPS_MAX:
            raise LimitError(f"more than {FOLLOW_UPS_MAX} follow-ups of one run")
        self.follow_ups.extend(tasks)

    # -- the worker's ------------------------------------------------------------------

    def arm(self, cancel: Callable[[], object]) -> None:
        """How to stop it. It may have been asked to stop before."""
        self._cancel = cancel
        if self.why_cancelled:
            cancel()

    @property
    def gave_up(self) -> bool:
        """Whether a function without a value may have stopped half-way: it saw that it should."""
        return self._has_seen

    def stop(self, why: str) -> None:
        """Ask it to stop; the first reason counts.

        A thread cannot be stopped: one that should because the worker stops is only told, and what
        it returns counts. Out of time or without its lease it is given up.
        """
        if self.why_cancelled and not self._is_told_only:
            return
        if self.why_cancelled == why:
            return
        self.why_cancelled = why
        self._is_told_only = self.in_thread and why == "stopping"
        if self._cancel is not None and not self._is_told_only:
            self._cancel()

    def harden(self) -> None:
        """It goes on outside its thread, where it can be cancelled."""
        if self._is_told_only and self._cancel is not None:
            self._is_told_only = False
            self._cancel()

    def cut_short(self) -> None:
        """Do not wait for a store that is out of reach."""
        self.is_cut_short = True
        if self.pausing is not None:
            self.pausing.set()

    def shown(self, now_mono: float) -> Running:
        """As ``worker.running`` shows it."""
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
    """Make it the current one."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Context:
    """The context of the run this is called from, in the function itself or in its thread.

    Raises:
        UsageError: it is not called from a run.
    """
    try:
        return _current.get()
    except LookupError:
        raise UsageError("current() is for task functions: nothing runs here") from None
