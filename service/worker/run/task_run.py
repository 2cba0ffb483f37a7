"""One run of one task: find the function, call it, and end the lease as the outcome says.

A run raises nothing of a function's: whatever that does to itself, of whatever kind, ends its own
task and nothing else. (Only Ctrl-C in the loop's own thread is the host's.) What the store says
when the lease is ended is logged; the lease takes care of the rest.
"""

from __future__ import annotations

import asyncio
import logging
import math
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

import anyio

from ....errors import UsageError
from .context import Context, running_in
from .control import Bury, Cancel, Control, Retry, Snooze
from .functions import TaskFunction, name_in
from .log_fields import fields
from .run_end import LOST, RELEASED, Outcome, settle
from .threads import Threads

if TYPE_CHECKING:
    from ....repository.tasks.lease import Lease
    from .backend import WorkerBackend

__all__ = [
    "CallNext",
    "Handlers",
    "Middleware",
    "format_error",
    "is_cancelled_from_outside",
    "outcome_of",
    "run_lease",
]

CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[Context, CallNext], Awaitable[Any]]
FRAMES: Final = 3  # of a traceback in a reason
_OURS: Final = {__file__, str(Path(__file__).with_name("threads.py"))}  # of no interest in it
log = logging.getLogger("lodeq.worker")


def format_error(error: BaseException) -> str:
    """An exception as the reason of a failure: what it is, and the innermost frames."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in _OURS]
    where = [
        f"  {PurePath(frame.filename).name}:{frame.lineno} in {frame.name}"
        for frame in reversed(frames[-FRAMES:])
    ]
    return "\n".join([text, *where])


class Handlers:
    """The functions of an app, and what is called around them."""

    def __init__(
        self,
        functions: Mapping[str, Mapping[str, TaskFunction[Any, Any]]],
        middleware: Sequence[Middleware],
        threads: int,
        format_error: Callable[[BaseException], str],
    ) -> None:
        self._functions = functions
        self._middleware = middleware
        self.threads = Threads(threads)
        self.format_error = format_error

    @property
    def busy_threads(self) -> int:
        """Plain functions that run, those that nobody waits for any more included."""
        return len(self.threads.busy)

    def find(self, lease: Lease) -> tuple[TaskFunction[Any, Any], bool]:
        """The function of a task, and whether a header named it; raises if there is none."""
        here = self._functions.get(lease.queue, {})
        name = name_in(lease.headers)
        if name is None:
            if len(here) != 1:
                raise UsageError(
                    f"queue {lease.queue!r} has {len(here)} functions and no header says which"
                )
            return next(iter(here.values())), False
        if name not in here:
            raise UsageError(f"this worker has no function {name!r} in queue {lease.queue!r}")
        return here[name], True

    async def call(self, context: Context, call: Callable[[], Any]) -> Any:
        """The function, inside the middleware."""

        async def innermost() -> Any:
            return await (call() if context.place is None else context.place.call(call))

        chain: CallNext = innermost
        for middleware in reversed(self._middleware):
            chain = partial(middleware, context, chain)
        return await chain()


def outcome_of(value: Any) -> Outcome:
    """What a function returned, or raised as a ``Control``."""
    if isinstance(value, Snooze):
        return Outcome("snoozed", delay_s=value.delay_s)
    if isinstance(value, Retry):
        return Outcome("failed", delay_s=value.delay_s, reason=value.reason, error=value)
    if isinstance(value, Bury):
        return Outcome("dead", reason=value.reason, error=value)
    if isinstance(value, Cancel):
        return Outcome("cancelled")
    return Outcome("completed", value)


def is_cancelled_from_outside() -> bool:
    """Whether this task is being cancelled. That it did so itself cannot be told apart."""
    return anyio.current_effective_deadline() == -math.inf or _cancellations() > 0


def _cancellations() -> int:
    """How often this task was cancelled by asyncio's own means."""
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return 0
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def run_lease(
    ground: WorkerBackend,
    handlers: Handlers,
    context: Context,
    is_outside: Callable[[], bool] = is_cancelled_from_outside,
) -> Outcome:
    """Run the task and end its lease; how it went.

    Args:
        is_outside: tells, of a cancellation that is none of the run's own, whether it comes from
            outside: then the task is released. Otherwise the function cancelled itself.
    """
    cancelled = None
    before = _cancellations()
    try:
        outcome = await _attempt(ground, handlers, context, is_outside)
    except anyio.get_cancelled_exc_class() as error:  # the host is on its way out
        outcome, cancelled = RELEASED, error
    if cancelled is None and _cancellations() > before and not is_outside():
        await _forget_cancellations(before)
    if outcome.error is not None:
        log.warning(
            "task %s (%r, attempt %d) failed: %s",
            context.task_id,
            context.name,
            context.attempt,
            outcome.reason.partition("\n")[0],
            extra=fields("run_failed", context),
            exc_info=None if isinstance(outcome.error, Control) else outcome.error,
        )
    # A cancellation must not leave a lease behind: what ends it is short, or cut short.
    with anyio.CancelScope(shield=True):
        outcome = await settle(ground, context, outcome)
    if cancelled is not None:
        raise cancelled
    return outcome


async def _forget_cancellations(before: int) -> None:
    """A function that cancelled its own task must not stop what ends the lease, or the worker."""
    task = asyncio.current_task()
    with suppress(asyncio.CancelledError):  # one that has not arrived yet
        await asyncio.sleep(0)
    while task is not None and task.cancelling() > before:
        task.uncancel()


async def _attempt(
    ground: WorkerBackend, handlers: Handlers, context: Context, is_outside: Callable[[], bool]
) -> Outcome:
    try:
        function, is_named = handlers.find(context.lease)
        args, kwargs = function.arguments(context.lease, is_named)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a codec may raise anything
        return Outcome("failed", reason=str(error), error=error)
    context.name = function.name
    timer = None
    with anyio.CancelScope() as scope:
        context.arm(scope.cancel)
        try:
            if not function.is_async:
                context.place = await handlers.threads.place(context, ground.spawner)
            if function.policy.timeout_s is not None:
                until = ground.clock.mono() + function.policy.timeout_s
                timer = ground.clock.call_at(ground.spawner, until, lambda: context.stop("timeout"))
            with running_in(context):
                call = partial(function.function, *args, **kwargs)
                value = await handlers.call(context, call)
                return RELEASED if value is None and context.gave_up else outcome_of(value)
        except Control as control:
            return outcome_of(control)
        except anyio.get_cancelled_exc_class() as error:
            if is_outside():
                raise  # to the scope whose cancellation it is
            if not context.why_cancelled:
                return Outcome("failed", reason="the function cancelled itself", error=error)
        except BaseException as error:  # its own task fails, no more
            if not _is_the_functions(error, context):
                raise
            if is_outside() and _is_only_cancelled(error):
                return RELEASED  # the next wait raises it again
            if not context.why_cancelled:  # or most likely it is the cancellation, wrapped
                return Outcome("failed", reason=_text(handlers, error), error=error)
        finally:
            if timer is not None:
                timer.cancel()
            if context.place is not None:
                context.place.end()
    return _stopped(context, function)


def _is_only_cancelled(error: BaseException) -> bool:
    if not isinstance(error, BaseExceptionGroup):
        return False
    return error.split(anyio.get_cancelled_exc_class())[1] is None


def _is_the_functions(error: BaseException, context: Context) -> bool:
    """Whether a function raised it; not: the user at the keyboard, or the end of the loop."""
    if context.place is not None and error is context.place.raised:
        return True
    if isinstance(error, GeneratorExit):
        try:
            anyio.get_current_task()
        except Exception:  # noqa: BLE001 - nothing runs here: the coroutine is being closed
            return False
    return not isinstance(error, KeyboardInterrupt)


def _text(handlers: Handlers, error: BaseException) -> str:
    try:
        return str(handlers.format_error(error))
    except KeyboardInterrupt:
        raise
    except BaseException:
        log.exception(
            "format_error failed; the reason is the type alone",
            extra={"event": "format_error_failed"},
        )
        return type(error).__name__


def _stopped(context: Context, function: TaskFunction[Any, Any]) -> Outcome:
    if context.why_cancelled == "timeout":
        reason = f"timed out after {function.policy.timeout_s:g} s"
        return Outcome("failed", reason=reason, error=TimeoutError(reason))
    return LOST if context.why_cancelled == "lost" else RELEASED
