"""One run of one task: find the function, call it, and end the lease as the outcome says.

A run never raises: whatever a function does to itself ends its own task and nothing else. What
the store says when the lease is ended is logged; the lease takes care of the rest.
"""

from __future__ import annotations

import asyncio
import logging
import math
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
from anyio.to_thread import run_sync

from ...errors import BusyError, CommitUnknownError, LeaseLostError, LodeqError, UsageError
from .context import Context, running_in
from .control import Bury, Cancel, Control, Retry, Snooze
from .functions import TaskFunction, name_in

if TYPE_CHECKING:
    from ...repository.lease import Lease
    from .ground import Ground

__all__ = [
    "CallNext", "Handlers", "Middleware", "Outcome", "describe", "outcome_of", "run_lease",
]  # fmt: skip

CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[Context, CallNext], Awaitable[Any]]
TRIES: Final = 6  # to end a lease while the store is busy or out of reach
FRAMES: Final = 3  # of a traceback in a reason
log = logging.getLogger("lodeq.worker")


class Outcome(NamedTuple):
    """How a run ended: ``completed``, ``snoozed``, ``failed``, ``dead``, ``cancelled``,
    ``released``, ``lost``.
    """  # noqa: D205

    kind: str
    value: Any = None
    delay_s: float | None = None
    reason: str = ""
    error: BaseException | None = None


RELEASED: Final = Outcome("released")
LOST: Final = Outcome("lost")


def describe(error: BaseException) -> str:
    """An exception as the reason of a failure: what it is, and the innermost frames."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    where = [
        f"  {PurePath(frame.filename).name}:{frame.lineno} in {frame.name}"
        for frame in reversed(frames[-FRAMES:])
    ]
    return "\n".join([text, *where])


class Handlers:
    """The functions of an app, and what is called around them."""

    def __init__(
        self, functions: Mapping[str, Mapping[str, TaskFunction[Any, Any]]],
        middleware: Sequence[Middleware], threads: int, describe: Callable[[BaseException], str],
    ) -> None:  # fmt: skip
        self._functions = functions
        self._middleware = middleware
        self._threads = threads
        self._limiter: anyio.CapacityLimiter | None = None
        self._busy: set[int] = set()  # threads
        self.describe = describe

    @property
    def busy_threads(self) -> int:
        """Plain functions that run, those that nobody waits for any more included."""
        return len(self._busy)

    def _counted(self, call: Callable[[], Any]) -> Any:
        self._busy.add(get_ident())
        try:
            return call()
        finally:
            self._busy.discard(get_ident())

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

    async def call(self, context: Context, call: Callable[[], Any], is_async: bool) -> Any:
        """The function, inside the middleware."""

        async def innermost() -> Any:
            if is_async:
                return await call()
            if self._limiter is None:
                self._limiter = anyio.CapacityLimiter(self._threads)
            return await run_sync(
                self._counted, call, abandon_on_cancel=True, limiter=self._limiter
            )

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


async def run_lease(ground: Ground, handlers: Handlers, context: Context) -> Outcome:
    """Run the task and end its lease; how it went."""
    cancelled = None
    try:
        outcome = await _attempt(ground, handlers, context)
    except anyio.get_cancelled_exc_class() as error:  # the host is on its way out
        outcome, cancelled = RELEASED, error
    if outcome.error is not None:
        log.warning(
            "task %s (%r, attempt %d) failed: %s", context.task_id, context.name, context.attempt,
            outcome.reason.partition("\n")[0],
            exc_info=None if isinstance(outcome.error, Control) else outcome.error,
        )  # fmt: skip
    # A cancellation must not leave a lease behind: what ends it is short and bounded.
    with anyio.CancelScope(shield=True):
        outcome = await _settle(ground, context, outcome)
    if cancelled is not None:
        raise cancelled
    return outcome


def _is_cancelled_from_outside() -> bool:
    if anyio.current_effective_deadline() == -math.inf:
        return True
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _attempt(ground: Ground, handlers: Handlers, context: Context) -> Outcome:
    try:
        function, is_named = handlers.find(context.lease)
        args, kwargs = function.arguments(context.lease, is_named)
    except Exception as error:  # noqa: BLE001 - a codec may raise anything
        return Outcome("failed", reason=str(error), error=error)
    context.name = function.name
    timer = None
    with anyio.CancelScope() as scope:
        context.arm(scope.cancel)
        if function.policy.timeout_s is not None:
            until = ground.clock.mono() + function.policy.timeout_s
            timer = ground.clock.call_at(ground.spawner, until, lambda: context.stop("timeout"))
        try:
            with running_in(context):
                call = partial(function.function, *args, **kwargs)
                return outcome_of(await handlers.call(context, call, function.is_async))
        except Control as control:
            return outcome_of(control)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - its own task fails, no more
            if context.why_cancelled:  # most likely it is the cancellation, wrapped
                return _stopped(context, function)
            return Outcome("failed", reason=_text(handlers, error), error=error)
        except anyio.get_cancelled_exc_class() as error:
            if context.why_cancelled or _is_cancelled_from_outside():
                raise  # to the scope whose cancellation it is
            return Outcome("failed", reason="the function cancelled itself", error=error)
        finally:
            if timer is not None:
                timer.cancel()
    return _stopped(context, function)


def _text(handlers: Handlers, error: BaseException) -> str:
    try:
        return str(handlers.describe(error))
    except Exception:
        log.exception("describe failed; the reason is the type alone")
        return type(error).__name__


def _stopped(context: Context, function: TaskFunction[Any, Any]) -> Outcome:
    if context.why_cancelled == "timeout":
        reason = f"timed out after {function.policy.timeout_s:g} s"
        return Outcome("failed", reason=reason, error=TimeoutError(reason))
    return LOST if context.why_cancelled == "lost" else RELEASED


# -- the end of the lease --------------------------------------------------------------


async def _settle(ground: Ground, context: Context, outcome: Outcome) -> Outcome:
    if outcome.kind == "lost":
        log.info("task %s (%r): the lease was lost", context.task_id, context.name)
        return outcome
    try:
        await _patiently(ground, lambda: _end(context, outcome))
    except LeaseLostError:
        log.warning(
            "task %s (%r): the lease was lost before it could be ended as %s", context.task_id,
            context.name, outcome.kind,
        )  # fmt: skip
        return LOST
    except UsageError as error:
        return await _bury(ground, context, error)
    except (LodeqError, OSError):
        log.exception(
            "task %s (%r) ended as %s, but the store could not be told; its lease will run out",
            context.task_id, context.name, outcome.kind,
        )  # fmt: skip
        return LOST
    except Exception as error:  # noqa: BLE001 - of a codec
        return await _bury(ground, context, error)
    return outcome


async def _bury(ground: Ground, context: Context, error: Exception) -> Outcome:
    """Its result or its follow-ups cannot be stored: another run would give the same."""
    lease, reason = context.lease, f"it ran, but its result could not be stored: {error!r}"
    log.error("task %s (%r): %s", context.task_id, context.name, reason)
    try:
        await _patiently(ground, lambda: lease.bury(reason))
    except (LodeqError, OSError):
        log.exception("task %s (%r) could not be buried", context.task_id, context.name)
        return LOST
    return Outcome("dead", reason=reason, error=error)


async def _end(context: Context, outcome: Outcome) -> None:
    lease, kind = context.lease, outcome.kind
    if kind == "completed":
        await lease.complete(outcome.value, then=context.follow_ups)
    elif kind == "snoozed":
        await lease.release(delay=outcome.delay_s)
    elif kind == "failed":
        await lease.nack(delay=outcome.delay_s, reason=outcome.reason)
    elif kind == "dead":
        await lease.bury(outcome.reason)
    elif kind == "cancelled":
        await context.engine.cancel(lease.task_id)
    else:
        await lease.release()


async def _patiently(ground: Ground, end: Callable[[], Awaitable[None]]) -> None:
    """Again, a few times, while the store is busy or does not answer.

    Repeated, a complete succeeds again. Any other end that was done already says *lease lost*,
    which is as true.
    """
    for n in range(TRIES):
        try:
            await end()
        except (BusyError, CommitUnknownError, OSError):
            if n == TRIES - 1:
                raise
            await ground.wait(anyio.Event(), ground.clock.mono() + 0.1 * 2**n)
        else:
            return
