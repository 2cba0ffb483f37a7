"""One run of one task: find the function, call it, and end the lease as the outcome says.

A run never raises what its function raised: whatever that was, it ends this task and nothing else.
If the store refuses the end of a lease, that is logged, and the lease expires.

``KeyboardInterrupt`` is a failure as well: the attempt counts, so that a task that raises it ends
as a dead letter, however many workers it meets. In a thread, and where the app itself receives the
signals, it cannot be Ctrl-C. Elsewhere it may be, so it goes on to the host when the lease is over.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from ....errors import PayloadNotLoadedError, UsageError
from .batches import Batches
from .cleanup import RunScope
from .context import Context, running_in
from .control import Bury, Cancel, Control, Retry, Snooze
from .elsewhere import Elsewhere, NoSuchFunctionError
from .forked_child import ChildEnds
from .functions import TIMEOUT_HEADER, TaskFunction, name_in
from .log_fields import fields
from .loop_guard import ChildExitError
from .run_end import CANCELLED_WORKER, LOST, RELEASED, UNREACHED, Outcome, end_lease
from .shown_traceback import shown_traceback
from .threads import NoThreadError, Threads

if TYPE_CHECKING:
    from ....engine.runtime.clock import TimerHandle
    from ....repository.model.redaction import Redaction
    from ....repository.tasks.lease import Lease
    from .backend import WorkerBackend

__all__ = [
    "CallNext",
    "Handlers",
    "Middleware",
    "is_cancelled_from_outside",
    "outcome_of",
    "run_lease",
    "timeout_of",
]

CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[Context, CallNext], Awaitable[Any]]
TIMEOUT_S_MIN: Final = 0.001
UNREAD_S: Final = 0.5  # before a task is offered again whose payload could not be read
NO_THREAD_S: Final = 5.0  # … for which no thread could be started
LOG_S: Final = 60.0  # between two lines about that
log = logging.getLogger("lodeq.worker")


class Handlers:
    """The functions of an app, the middleware around them, and the threads of plain ones.

    Args:
        functions: by queue, then by name.
        middleware: the first is outermost.
        threads: plain functions that run at once.
        format_error: makes the reason of a failure from an exception.
        owns_signals: the app receives SIGINT: no ``KeyboardInterrupt`` is Ctrl-C.
        signatures: hash of each function's parameters, by queue and name.
        cleanup_s: seconds that a cancelled run has to undo what it must.
        redaction: of reasons; None leaves them as they are.
    """

    def __init__(
        self,
        functions: Mapping[str, Mapping[str, TaskFunction[Any, Any]]],
        middleware: Sequence[Middleware],
        threads: int,
        format_error: Callable[[BaseException], str],
        *,
        redaction: Redaction | None = None,
        owns_signals: bool = False,
        cleanup_s: float = 0.0,
        signatures: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        self.redaction = redaction
        self.cleanup_s = cleanup_s
        self._functions = functions
        self._middleware = middleware
        self.threads = Threads(threads)
        self._logged_mono = -math.inf
        self.format_error = format_error
        self.owns_signals = owns_signals
        self.elsewhere = Elsewhere(signatures)

    @property
    def busy_threads(self) -> int:
        """Number of threads that run a plain function, including those of runs that are over."""
        return len(self.threads.busy)

    def without_thread(self, now_mono: float, context: Context, error: NoThreadError) -> Outcome:
        """Return the outcome of a run that got no thread: it says nothing about the task."""
        if now_mono >= self._logged_mono + LOG_S:
            self._logged_mono = now_mono
            log.error(
                "task %s (%r) is given back uncounted, and offered again in %g s: %s",
                context.task_id,
                context.name,
                NO_THREAD_S,
                error,
                extra=fields("no_thread", context),
            )
        return Outcome("released", delay_s=NO_THREAD_S, error=error)

    def find(self, lease: Lease) -> tuple[TaskFunction[Any, Any], bool]:
        """Find the function of a task.

        Returns: the function, and whether a header named it.

        Raises:
            NoSuchFunctionError: it names one that is not here.
            UsageError: it names none, and there is not exactly one.
        """
        here = self._functions.get(lease.queue, {})
        name = name_in(lease.headers)
        if name is None:
            if len(here) != 1:
                raise UsageError(
                    f"queue {lease.queue!r} has {len(here)} functions and no header says which"
                )
            return next(iter(here.values())), False
        if name not in here:
            raise NoSuchFunctionError(
                f"this worker has no function {name!r} in queue {lease.queue!r}"
            )
        return here[name], True

    def batches_of(self, queue: str) -> Batches | None:
        """Return the batches of a queue whose function takes several tasks in a call."""
        found = [one.batches for one in self._functions[queue].values()]
        return found[0] if found else None

    async def call(
        self, context: Context, own: Sequence[Middleware], call: Callable[[], Any]
    ) -> Any:
        """Call the function inside the middleware: its ``own`` is inside the app's."""

        async def innermost() -> Any:
            with ChildEnds():
                return await (call() if context.permit is None else context.permit.call(call))

        chain: CallNext = innermost
        for middleware in reversed((*self._middleware, *own)):
            chain = partial(middleware, context, chain)
        return await chain()


def outcome_of(value: Any) -> Outcome:
    """Return the outcome of a value that a function returned, or of a ``Control`` it raised."""
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
    """Return whether this task is being cancelled; by itself or from outside cannot be seen."""
    return anyio.current_effective_deadline() == -math.inf or _cancellations() > 0


def _cancellations() -> int:
    """Return how often ``asyncio.Task.cancel`` was called on this task."""
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return 0
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def run_lease(
    backend: WorkerBackend,
    handlers: Handlers,
    context: Context,
    is_outside: Callable[[], bool] = is_cancelled_from_outside,
    *,
    is_shielded: bool = False,
) -> Outcome:
    """Run the task, end its lease, and return the outcome.

    Args:
        backend: the store and its clock.
        handlers: the functions to choose from.
        context: of this run.
        is_outside: called when the run is cancelled and has not asked for it: whether the
            cancellation comes from outside, so that the task is released. Otherwise the function
            cancelled itself, and the task fails.
        is_shielded: scopes around the run do not cancel it, ``Context.stop`` does.
    """
    cancelled = None
    context.owns_signals = handlers.owns_signals
    before = _cancellations()
    try:
        outcome = await _attempt(backend, handlers, context, is_outside, is_shielded)
    except anyio.get_cancelled_exc_class() as error:  # the host is stopping
        outcome, cancelled = RELEASED, error
    is_culprit = context.has_cancelled_worker and context.why_cancelled in ("", "cancelled")
    if outcome is RELEASED and is_culprit:
        outcome = CANCELLED_WORKER
    if cancelled is None and _cancellations() > before and not is_outside():
        await _forget_cancellations(before)
    if handlers.redaction is not None:
        context.redaction = handlers.redaction
        outcome = outcome._replace(reason=handlers.redaction(outcome.reason))
    if outcome.error is not None and outcome.kind != "released":
        log.warning(
            "task %s (%r, attempt %d) failed: %s",
            context.task_id,
            context.name,
            context.attempt,
            outcome.reason.partition("\n")[0],
            extra=fields("run_failed", context),
            exc_info=shown_traceback(outcome.error),
        )
    # A cancellation must not leave a lease open. Ending it takes little time, or is cut short.
    with anyio.CancelScope(shield=True):
        outcome = await end_lease(backend, context, outcome)
    if cancelled is not None:
        raise cancelled
    if _may_be_ctrl_c(handlers, context, outcome.error):
        raise KeyboardInterrupt from outcome.error
    return outcome


def _may_be_ctrl_c(handlers: Handlers, context: Context, error: BaseException | None) -> bool:
    if not isinstance(error, KeyboardInterrupt) or handlers.owns_signals:
        return False
    lasting = context.permit or context.batch
    return lasting is None or lasting.raised is not error


async def _forget_cancellations(before: int) -> None:
    """Undo cancellations by the function, so that they stop neither lease end nor worker."""
    task = asyncio.current_task()
    with suppress(asyncio.CancelledError):  # a cancellation that has not arrived yet
        await asyncio.sleep(0)
    while task is not None and task.cancelling() > before:
        task.uncancel()


async def _payload_of(lease: Lease) -> Any:
    """The payload, of any size."""
    try:
        return lease.payload
    except PayloadNotLoadedError:
        return await lease.read_payload()


async def _attempt(
    backend: WorkerBackend,
    handlers: Handlers,
    context: Context,
    is_outside: Callable[[], bool],
    is_shielded: bool,
) -> Outcome:
    function = None
    elsewhere = handlers.elsewhere
    try:
        function, is_named = handlers.find(context.lease)
        payload = await _payload_of(context.lease)
        args, kwargs = function.arguments(payload, is_named)
    except NoSuchFunctionError as error:
        name = name_in(context.lease.headers) or ""
        return elsewhere.give_back(backend.clock, context, name, error, is_unknown=True)
    except anyio.get_cancelled_exc_class():
        raise
    except UNREACHED as error:  # a large payload, and a store out of reach
        return Outcome("released", delay_s=UNREAD_S, error=error)
    except BaseException as error:  # noqa: BLE001 - a codec may raise anything
        if isinstance(error, UsageError) and function is not None:
            queue, name = function.queue, function.name
            other = await elsewhere.other_version(backend, context, queue, name, error)
            if other is not None:
                return elsewhere.give_back(backend.clock, context, name, other)
        return Outcome("failed", reason=_text_of(error), error=error)
    context.name = function.name
    context.threads = handlers.threads
    clock, timer = backend.clock, None

    def later(delay_s: float, call: Callable[[], None]) -> TimerHandle:
        return clock.call_at(backend.spawner, clock.mono() + delay_s, call)

    def cut() -> None:
        log.warning(
            "task %s (%r): its cleanup takes longer than %g s and is cut off",
            context.task_id,
            context.name,
            handlers.cleanup_s,
            extra=fields("cleanup_cut_off", context),
        )

    def stop() -> None:
        if not (scope.is_cancelled or context.is_over):
            log.info(
                "task %s (%r) is cancelled (%s): it has %g s to clean up",
                context.task_id,
                context.name,
                context.why_cancelled,
                handlers.cleanup_s,
                extra=fields("run_cancelled", context),
            )
        scope.cancel()

    with RunScope(
        later,
        backend.spawner.call_soon,
        cleanup_s=handlers.cleanup_s,
        on_cut=cut,
        is_shielded=is_shielded,
    ) as scope:
        context.set_cancel(stop)
        try:
            if context.slots is not None and function.batches is None:
                key, held = (function.queue, function.name), context.held_slots
                if not await context.slots.acquire(*key, held, later):
                    return RELEASED
            if not function.is_async:
                context.permit = await handlers.threads.acquire(context, backend.spawner)
            timeout_s = context.timeout_s = timeout_of(context, function)
            if timeout_s is not None:
                timer = later(timeout_s, lambda: context.stop("timeout"))
            with running_in(context):
                call = partial(function.function, *args, **kwargs)
                value = await handlers.call(context, function.middleware, call)
                if value is None and context.gave_up:
                    return RELEASED
                outcome = outcome_of(value)
                if outcome.kind == "completed":
                    return Outcome("completed", function.typed.encode_result(value))
                return outcome
        except Control as control:
            return outcome_of(control)
        except NoThreadError as error:
            return handlers.without_thread(clock.mono(), context, error)
        except anyio.get_cancelled_exc_class() as error:
            if is_outside():
                raise  # to the scope that was cancelled
            if not context.why_cancelled:
                return Outcome("failed", reason="the function cancelled itself", error=error)
        except BaseException as error:  # this task fails, nothing else
            if not _is_the_functions(error, context):
                raise
            if is_outside() and _is_only_cancelled(error):
                return RELEASED  # the next wait raises it again
            if not context.why_cancelled:  # if set, this is most likely the cancellation, wrapped
                return Outcome("failed", reason=_text(handlers, error), error=error)
        finally:
            context.is_over = True
            if timer is not None:
                timer.cancel()
            if context.permit is not None:
                context.permit.end()
    return _stopped(context, function)


def timeout_of(context: Context, function: TaskFunction[Any, Any]) -> float | None:
    """Seconds that the run may take: those the task carries, else the function's; or None."""
    own = context.headers.get(TIMEOUT_HEADER)
    if isinstance(own, int | float) and not isinstance(own, bool) and own >= TIMEOUT_S_MIN:
        return float(own)
    return function.policy.timeout_s


def _is_only_cancelled(error: BaseException) -> bool:
    if not isinstance(error, BaseExceptionGroup):
        return False
    return error.split(anyio.get_cancelled_exc_class())[1] is None


def _is_the_functions(error: BaseException, context: Context) -> bool:
    """Return whether the function raised it, rather than the end of the loop."""
    if context.permit is not None and error is context.permit.raised:
        return True
    if isinstance(error, GeneratorExit):
        try:
            anyio.get_current_task()
        except Exception:  # noqa: BLE001 - no task runs: the coroutine is being closed
            return False
    return True


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - its ``__str__`` may raise anything
        return type(error).__name__


def _text(handlers: Handlers, error: BaseException) -> str:
    try:
        return str(handlers.format_error(error))
    except BaseException:
        log.exception(
            "format_error failed; the reason is only the type of the exception",
            extra={"event": "format_error_failed"},
        )
        return type(error).__name__


def _stopped(context: Context, function: TaskFunction[Any, Any]) -> Outcome:
    if context.why_cancelled == "timeout":
        reason = f"timed out after {context.timeout_s:g} s"
        return Outcome("failed", reason=reason, error=TimeoutError(reason))
    if context.why_cancelled == "exited":
        reason = context.exit_text
        return Outcome("failed", reason=reason, error=ChildExitError(reason))
    return LOST if context.why_cancelled == "lost" else RELEASED
