"""Control objects: a task function returns or raises one to decide how its run ends."""

from __future__ import annotations

from datetime import timedelta

from ....errors import UsageError
from ....repository.model.arguments import duration_s, within
from ....repository.model.task_options import DURATION_S_MAX
from ....repository.model.values import Duration

__all__ = ["Bury", "Cancel", "Control", "Retry", "Snooze"]


class Control(Exception):  # noqa: N818 - not errors: outcomes
    """Base class. Returning and raising mean the same."""


class Snooze(Control):
    """Run later: release the task for ``delay`` seconds. The attempt does not count.

    A delay that is over already, such as a time that has passed meanwhile, is none.
    """

    def __init__(self, delay: Duration) -> None:
        self.delay_s = _delay_s(delay)
        super().__init__(f"again in {self.delay_s:g} s")


class Retry(Control):
    """Fail: nack the task. ``delay`` seconds replace the backoff; the attempt counts."""

    def __init__(self, delay: Duration | None = None, reason: str = "retry") -> None:
        self.delay_s = None if delay is None else _delay_s(delay)
        self.reason = _text(reason)
        super().__init__(self.reason)


class Bury(Control):
    """Fail for good: make a dead letter at once, whatever attempts are left; redrive works."""

    def __init__(self, reason: str = "buried") -> None:
        self.reason = _text(reason)
        super().__init__(self.reason)


class Cancel(Control):
    """Stop: the task is not needed any more and ends as cancelled."""


def _delay_s(delay: Duration) -> float:
    """Seconds; what has passed already is 0, and ten years are the most."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    return duration_s(within(seconds, 0.0, DURATION_S_MAX), "delay")


def _text(reason: object) -> str:
    if not isinstance(reason, str):
        raise UsageError(f"reason must be a str, not {type(reason).__name__}")
    return reason
