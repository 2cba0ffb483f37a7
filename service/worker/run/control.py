"""Control objects: a task function returns or raises one to decide how its run ends."""

from __future__ import annotations

from ....errors import UsageError
from ....repository.model.arguments import duration_s
from ....repository.model.values import Duration

__all__ = ["Bury", "Cancel", "Control", "Retry", "Snooze"]


class Control(Exception):  # noqa: N818 - not errors: outcomes
    """Base class. Returning and raising mean the same."""


class Snooze(Control):
    """Run later: release the task for ``delay`` seconds. The attempt does not count."""

    def __init__(self, delay: Duration) -> None:
        self.delay_s = duration_s(delay, "delay")
        super().__init__(f"again in {self.delay_s:g} s")


class Retry(Control):
    """Fail: nack the task. ``delay`` seconds replace the backoff; the attempt counts."""

    def __init__(self, delay: Duration | None = None, reason: str = "retry") -> None:
        self.delay_s = None if delay is None else duration_s(delay, "delay")
        self.reason = _text(reason)
        super().__init__(self.reason)


class Bury(Control):
    """Fail for good: make a dead letter at once, whatever attempts are left; redrive works."""

    def __init__(self, reason: str = "buried") -> None:
        self.reason = _text(reason)
        super().__init__(self.reason)


class Cancel(Control):
    """Stop: the task is not needed any more and ends as cancelled."""


def _text(reason: object) -> str:
    if not isinstance(reason, str):
        raise UsageError(f"reason must be a str, not {type(reason).__name__}")
    return reason
