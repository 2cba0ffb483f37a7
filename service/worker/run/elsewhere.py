"""Tasks for a function that this worker does not have: of a newer release, or an older one.

Whoever knows it may start any moment, as in a rolling deploy. So such a task is given back, its
attempt is not counted, and it waits twice as long each time: as long as it has been there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ....errors import UsageError
from .log_fields import fields
from .run_end import Outcome

if TYPE_CHECKING:
    from ....engine.runtime.clock import Clock
    from .context import Context

__all__ = ["Elsewhere", "NoSuchFunctionError"]

DELAY_S: Final = 1.0  # the shortest …
DELAY_S_MAX: Final = 60.0  # … and the longest wait before it is offered again
LOG_S: Final = 60.0  # between two lines about one function
NAMES_MAX: Final = 1024
log = logging.getLogger("lodeq.worker")


class NoSuchFunctionError(UsageError):
    """A task names a function that is not registered here."""


class Elsewhere:
    """Gives back tasks for functions of other workers; logs each function once a minute."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], float] = {}  # by queue and name, as monotonic seconds

    def give_back(self, clock: Clock, context: Context, error: NoSuchFunctionError) -> Outcome:
        """Return the outcome of a run that found no function."""
        age_s = clock.wall_us() / 1e6 - context.enqueued_at.timestamp()
        delay_s = min(max(age_s, DELAY_S), DELAY_S_MAX)
        self._log(clock.mono(), context, delay_s, error)
        return Outcome("released", delay_s=delay_s, error=error)

    def _log(
        self, now_mono: float, context: Context, delay_s: float, error: NoSuchFunctionError
    ) -> None:
        key = (context.queue, str(error))
        if now_mono < self._logged.get(key, float("-inf")) + LOG_S:
            return
        if len(self._logged) >= NAMES_MAX:
            self._logged.clear()
        self._logged[key] = now_mono
        log.warning(
            "task %s is given back uncounted, and offered again in %.0f s: %s",
            context.task_id,
            delay_s,
            error,
            extra=fields("function_unknown", context),
        )
