"""The start of a worker whose store is out of reach: it waits for the store's server.

A running worker outlives a server that is down for a while, and so does one that starts meanwhile:
after a reboot, or where both are deployed together. A refusal (a wrong token, another version)
still ends it at once: waiting does not help.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import anyio

from ...errors import BusyError, CommitUnknownError, IncompleteError, LodeqError, NotLeaderError

if TYPE_CHECKING:
    from .signals import Signals

__all__ = ["until_reached"]

PAUSE_S: Final = 0.25  # after the first try; doubles …
PAUSE_S_MAX: Final = 15.0  # … up to this
_PASSING: Final = (BusyError, CommitUnknownError, IncompleteError, NotLeaderError)
_REFUSALS: Final = (PermissionError, ssl.SSLCertVerificationError)  # of a connection
log = logging.getLogger("lodeq.worker")
Step = Callable[[], Awaitable[Any]]


async def until_reached(step: Step, received: Signals, *, is_cut: bool = True) -> bool:
    """Take a step that needs the store, again and again while its server is out of reach.

    Args:
        step: what to do; it may be done again after it has failed.
        received: signals, one of which ends the wait.
        is_cut: a signal also cancels a step that is under way.

    Returns:
        Whether the step was taken; False: a signal has come.

    Raises:
        LodeqError: the store refuses it.
    """
    pause_s = PAUSE_S
    while True:
        try:
            if is_cut:
                return await _unless_signalled(step, received)
            await step()
            return True
        except LodeqError as error:
            if not isinstance(error, _PASSING) or _is_refusal(error):
                raise
            log.warning(
                "the store is out of reach, next try in %g s: %s",
                pause_s,
                error,
                extra={"event": "store_awaited", "seconds": pause_s},
            )

        async def pause(seconds: float = pause_s) -> None:
            await anyio.sleep(seconds)

        if not await _unless_signalled(pause, received):
            return False
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def _is_refusal(error: BaseException | None) -> bool:
    """Whether the connection was refused for a reason that does not pass by itself."""
    while error is not None:
        if isinstance(error, _REFUSALS):
            return True
        error = error.__cause__ or error.__context__
    return False


async def _unless_signalled(step: Step, received: Signals) -> bool:
    """Take the step; a signal cancels it, and makes the answer False."""
    signalled, raised = False, None

    async def listen() -> None:
        nonlocal signalled
        async for number in received:
            log.info("%s: the worker stops", number.name, extra={"event": "worker_signalled"})
            signalled = True
            group.cancel_scope.cancel()
            return

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        try:
            await step()
        except Exception as error:  # noqa: BLE001 - raised below, outside the exception group
            raised = error
        group.cancel_scope.cancel()
    if raised is not None and not signalled:
        raise raised
    return not signalled
