"""The end of a run: its outcome, and the end of its lease, retried until the store has answered."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from ....errors import (
    BusyError,
    CommitUnknownError,
    LeaseLostError,
    LodeqError,
    NotLeaderError,
    StoragePoisonedError,
    UsageError,
)
from ....repository.model.error_text import repr_of
from .log_fields import fields

if TYPE_CHECKING:
    from ....repository.tasks.lease import Lease
    from .backend import WorkerBackend
    from .context import Context

__all__ = ["CANCELLED_WORKER", "LOST", "RELEASED", "UNREACHED", "Outcome", "end_lease", "give_back"]

TRIES: Final = 6  # at least so many while the store does not answer; more until it is cut short
PAUSE_S: Final = 0.1  # after the first try; doubles …
PAUSE_S_MAX: Final = 2.0  # … up to this
GIVE_BACK_S: Final = 5.0  # for a store that does not answer, while the worker stops
# The store is busy, out of reach, or without a leader: the same call may succeed later.
UNREACHED: Final = (BusyError, CommitUnknownError, NotLeaderError)
log = logging.getLogger("lodeq.worker")


class Outcome(NamedTuple):
    """The end of a run; ``kind`` names it.

    It is one of ``completed``, ``snoozed``, ``failed``, ``dead``, ``cancelled``, ``released`` and
    ``lost``. A run that fails with its last attempt is ``failed``, too.
    """

    kind: str
    value: Any = None
    delay_s: float | None = None
    reason: str = ""
    error: BaseException | None = None


RELEASED: Final = Outcome("released")
LOST: Final = Outcome("lost")
CANCELLED_WORKER: Final = Outcome("failed", reason="it cancelled the tasks of its worker")


async def end_lease(backend: WorkerBackend, context: Context, outcome: Outcome) -> Outcome:
    """End the lease as the outcome says, and return the final outcome.

    Errors of the store are logged, not raised.
    """
    if outcome.kind == "lost":
        log.info(
            "task %s (%r): the lease was lost",
            context.task_id,
            context.name,
            extra=fields("lease_lost", context),
        )
        return outcome
    try:
        await _retry(backend, context, lambda: _end(context, outcome))
    except LeaseLostError:
        if context.is_left:
            return LOST
        log.warning(
            "task %s (%r): the lease was lost before it could be ended as %s",
            context.task_id,
            context.name,
            outcome.kind,
            extra=fields("lease_lost", context),
        )
        return LOST
    except UsageError as error:
        return await _bury(backend, context, error)
    except (LodeqError, OSError):
        log.exception(
            "task %s (%r) ended as %s, but the store did not answer; its lease will expire",
            context.task_id,
            context.name,
            outcome.kind,
            extra=fields("outcome_not_stored", context),
        )
        return LOST
    except anyio.get_cancelled_exc_class():
        raise
    except BaseException as error:  # noqa: BLE001 - a codec may raise anything
        return await _bury(backend, context, error)
    return outcome


async def give_back(leases: Sequence[Lease]) -> None:
    """Release leases that no run ends, also while the worker's host is cancelled.

    All at once: one that a silent node has must not keep the others. Errors are logged.
    """
    with anyio.move_on_after(GIVE_BACK_S, shield=True):
        async with anyio.create_task_group() as group:
            for lease in leases:
                group.start_soon(_give_one_back, lease)


async def _give_one_back(lease: Lease) -> None:
    def note(why: object) -> None:
        log.warning(
            "task %s was not released: %s",
            lease.task_id,
            why,
            extra=fields("outcome_not_stored", lease),
        )

    try:
        await lease.release()
    except (LodeqError, OSError) as error:
        note(repr(error))
    except anyio.get_cancelled_exc_class():
        note(f"no answer within {GIVE_BACK_S:g} s")
        raise


async def _bury(backend: WorkerBackend, context: Context, error: BaseException) -> Outcome:
    """Bury a task whose result or follow-ups cannot be stored: another run would give the same."""
    lease, why = context.lease, repr_of(error)
    if context.redaction is not None:
        why = context.redaction(why)
    reason = f"it ran, but its result could not be stored: {why}"
    log.error(
        "task %s (%r): %s",
        context.task_id,
        context.name,
        reason,
        extra=fields("result_refused", context),
    )
    try:
        await _retry(backend, context, lambda: lease.bury(reason))
    except (LodeqError, OSError):
        log.exception(
            "task %s (%r) could not be buried",
            context.task_id,
            context.name,
            extra=fields("outcome_not_stored", context),
        )
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
        await lease.cancel()
    else:
        await lease.release(delay=outcome.delay_s)


async def _retry(
    backend: WorkerBackend, context: Context, end: Callable[[], Awaitable[object]]
) -> None:
    """Retry while the store is busy or does not answer, until the run is cut short.

    A shard that this store does not lead may be led again after an election, and then has the
    lease; so has one that is poisoned, once its process has reopened it. Neither is waited for
    longer than the lease: by then it is lost, or another's.

    Heartbeats go on meanwhile, and the store itself reports a lost lease. A complete that is
    repeated succeeds again. Any other end, if the first try did reach the store, reports *lease
    lost* when it is repeated, which is true as well.
    """
    context.is_ending = True
    tries, unled_until = 0, float("inf")
    while True:
        try:
            await end()
        except (*UNREACHED, StoragePoisonedError, OSError) as error:
            if backend.is_final(error):
                raise
            tries += 1
            if tries == TRIES:
                _log_delay(context, error)
            now = backend.clock.mono()
            if isinstance(error, NotLeaderError | StoragePoisonedError):
                unled_until = min(unled_until, now + context.lease.lease_s)
            if now >= unled_until or (context.is_cut_short and tries >= TRIES):
                raise
            pause_s = min(PAUSE_S * 2 ** min(tries - 1, 8), PAUSE_S_MAX)
            context.pausing = anyio.Event()
            await backend.wait(context.pausing, now + pause_s)
        else:
            return


def _log_delay(context: Context, error: BaseException) -> None:
    """Say once that a run's end is still not stored: the fault may be its codec's, and last."""
    why = repr_of(error)
    if context.redaction is not None:
        why = context.redaction(why)
    log.warning(
        "task %s (%r) has ended, and after %d tries that is not stored: %s; it is tried again",
        context.task_id,
        context.name,
        TRIES,
        why,
        extra=fields("outcome_delayed", context),
    )
