"""Tasks that this worker cannot run and another one may: of a newer release, or an older one.

Whoever knows the function may start any moment, as in a rolling deploy. So such a task is given
back, its attempt is not counted, and it waits for a tenth of a second, later for a quarter of the
time that it has been there. One that this worker has met for ten minutes is *stranded*: it is still
given back, and the worker's beats say so.

The same holds for a task whose arguments do not fit the function here while the store has another
version of it published, or if they have others' names and the task carries the function's face:
whoever gave it that checked them, against a version of which no worker may have started yet. After
an hour such a task fails as any other: nobody has taken it.

Tasks for a function that has been met are not claimed for the next minute, where the store can
leave them to others (``Queue.claim``, ``skip_functions``): they stay in line for whoever knows it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from ....errors import LodeqError, UsageError
from ....repository.model.arguments import SKIPPED_FUNCTIONS_MAX
from ....repository.model.workers import UNKNOWN_MAX, UnknownFunction
from .log_fields import fields
from .run_end import Outcome

if TYPE_CHECKING:
    from ....engine.runtime.clock import Clock
    from .backend import WorkerBackend
    from .context import Context

__all__ = ["Elsewhere", "MisfitError", "NoSuchFunctionError"]

DELAY_S: Final = 0.1  # the shortest …
AGE_SHARE: Final = 4  # then this part of its age, so that few draws that miss cost no minutes
DELAY_S_MAX: Final = 60.0  # … and the longest wait before it is offered again
STRANDED_S: Final = 600.0  # since this worker has met it first
GONE_S: Final = 3 * DELAY_S_MAX  # not met for so long: another worker has it
VERSION_S: Final = 3600.0  # age up to which arguments may be meant for another version
LOOK_S: Final = 5.0  # between two looks at what is published
SKIP_S: Final = 60.0  # that tasks for a function are not claimed, once one has been met
LOG_S: Final = 60.0  # between two lines about one function
NAMES_MAX: Final = 1024
TASKS_MAX: Final = 4096  # remembered, the latest met
log = logging.getLogger("lodeq.worker")


class NoSuchFunctionError(UsageError):
    """A task names a function that is not registered here, or another version of one."""


class MisfitError(UsageError):
    """The names of a task's arguments are not those of the function's parameters."""


class _Met(NamedTuple):
    queue: str
    function: str
    enqueued_at: datetime
    first_mono: float
    last_mono: float


class Elsewhere:
    """Gives back tasks for functions of other workers; logs each function once a minute.

    Args:
        signatures: hash of each function's parameters here, by queue and name.
    """

    def __init__(self, signatures: Mapping[tuple[str, str], str] | None = None) -> None:
        self._signatures = signatures or {}
        self._published: dict[tuple[str, str], tuple[float, str]] = {}
        self._logged: dict[tuple[str, str], float] = {}  # by queue and name, as monotonic seconds
        self._met: OrderedDict[bytes, _Met] = OrderedDict()
        self._unknown: dict[str, dict[str, float]] = {}  # by queue and name: when it was met last

    def give_back(
        self,
        clock: Clock,
        context: Context,
        function: str,
        error: NoSuchFunctionError,
        *,
        is_unknown: bool = False,
    ) -> Outcome:
        """Return the outcome of a run that found no function.

        Args:
            clock: says how old the task is.
            context: of the run.
            function: the name that the task gives.
            error: why it cannot run here.
            is_unknown: no task of that name can.
        """
        if is_unknown and context.lease.function == function:  # as a claim sees it
            here = self._unknown.setdefault(context.queue, {})
            here.pop(function, None)
            here[function] = clock.mono()
            if len(here) > SKIPPED_FUNCTIONS_MAX:
                del here[next(iter(here))]
        delay_s = min(max(_age_s(clock, context) / AGE_SHARE, DELAY_S), DELAY_S_MAX)
        is_stranded = self._note(clock.mono(), context, function)
        self._log(clock.mono(), context, delay_s, error, is_stranded=is_stranded)
        return Outcome("released", delay_s=delay_s, error=error)

    def to_skip(self, clock: Clock, queue: str) -> frozenset[str]:
        """Return the functions whose tasks are not to be claimed from a queue now."""
        here = self._unknown.get(queue)
        if not here:
            return frozenset()
        now = clock.mono()
        for function, met in list(here.items()):
            if met + SKIP_S > now:
                break
            del here[function]
        return frozenset(here)

    async def other_version(
        self,
        backend: WorkerBackend,
        context: Context,
        queue: str,
        function: str,
        error: UsageError,
    ) -> NoSuchFunctionError | None:
        """Return the error of a task that is meant for another version of a function, if it is.

        Args:
            backend: the store and its clock.
            context: of the task whose arguments do not fit.
            queue: of the function.
            function: its name.
            error: why they do not fit.
        """
        own = self._signatures.get((queue, function))
        if own is None or _age_s(backend.clock, context) > VERSION_S:
            return None
        if await self._is_published(backend, queue, function, own):
            return NoSuchFunctionError(f"another version of it is published: {error}")
        if isinstance(error, MisfitError) and await _has_face(backend, context, function):
            return NoSuchFunctionError(f"they fitted another version of it: {error}")
        return None

    async def _is_published(
        self, backend: WorkerBackend, queue: str, function: str, own: str
    ) -> bool:
        """Return whether the store has other parameters published for it than it has here."""
        key, now = (queue, function), backend.clock.mono()
        looked, published = self._published.get(key, (float("-inf"), ""))
        if now >= looked + LOOK_S:
            try:
                found = await backend.engine.functions(queue)
            except (LodeqError, OSError, AttributeError):
                return False  # it says nothing now, or is an older server
            published = next((one.signature for one in found if one.name == function), "")
            if len(self._published) >= NAMES_MAX:
                self._published.clear()
            self._published[key] = now, published
        return published not in ("", own)

    def unknown(self, clock: Clock) -> list[UnknownFunction]:
        """Return the functions of tasks that were given back lately, the most tasks first."""
        now = clock.mono()
        for task_id, one in list(self._met.items()):
            if one.last_mono + GONE_S < now:
                del self._met[task_id]
        by_name: dict[tuple[str, str], list[_Met]] = {}
        for one in self._met.values():
            by_name.setdefault((one.queue, one.function), []).append(one)
        found = [
            UnknownFunction(
                queue,
                function,
                len(several),
                sum(one.first_mono + STRANDED_S <= now for one in several),
                min(one.enqueued_at for one in several).astimezone(UTC),
            )
            for (queue, function), several in by_name.items()
        ]
        return sorted(found, key=lambda one: -one.tasks)[:UNKNOWN_MAX]

    def _note(self, now_mono: float, context: Context, function: str) -> bool:
        """Remember a task; return whether it is stranded."""
        task_id = bytes(context.task_id)
        before = self._met.pop(task_id, None)
        first = now_mono if before is None else before.first_mono
        self._met[task_id] = _Met(context.queue, function, context.enqueued_at, first, now_mono)
        if len(self._met) > TASKS_MAX:
            self._met.popitem(last=False)
        return first + STRANDED_S <= now_mono

    def _log(
        self,
        now_mono: float,
        context: Context,
        delay_s: float,
        error: NoSuchFunctionError,
        *,
        is_stranded: bool,
    ) -> None:
        key = (context.queue, str(error))
        if now_mono < self._logged.get(key, float("-inf")) + LOG_S:
            return
        if len(self._logged) >= NAMES_MAX:
            self._logged.clear()
        self._logged[key] = now_mono
        log.warning(
            "task %s is %sgiven back uncounted, and offered again in %.1f s: %s",
            context.task_id,
            "stranded: it is " if is_stranded else "",
            delay_s,
            error,
            extra=fields("task_stranded" if is_stranded else "function_unknown", context),
        )


async def _has_face(backend: WorkerBackend, context: Context, function: str) -> bool:
    """Return whether a task was enqueued as a call of the function, so with checked arguments."""
    try:
        task = await backend.engine.get(context.task_id)
    except (LodeqError, OSError):
        return False  # it says nothing now
    return task is not None and task.function == function


def _age_s(clock: Clock, context: Context) -> float:
    return clock.wall_us() / 1e6 - context.enqueued_at.timestamp()
