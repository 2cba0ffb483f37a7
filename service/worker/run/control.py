"""What a task function returns or raises to say how its run ends."""

from __future__ import annotations

from ....errors import UsageError
from ....repository.model.arguments import duration_s
from ....repository.model.values import Duration

__all__ = ["Bury", "Cancel", "Control", "Retry", "Snooze"]


class Control(Exception):  # noqa: N818 - not errors: outcomes
    """The root of all four. Returned or raised, they mean the same."""


class Snooze(Control):
    """Not now: released, and ready again in ``delay`` seconds. The attempt does not count."""

    def __init__(self, delay: Duration) -> None:
        self.delay_s = duration_s(delay, "delay")
        super().__init__(f"again in {self.delay_s:g} s")


class Retry(Control):
    """Failed: nacked. ``delay`` seconds replace the backoff; the attempt counts."""

    def __init__(self, delay: Duration | None = None, reason: str = "retry") -> None:
        self.delay_s = None if delay is None else duration_s(delay, "delay")
        self.reason = _text(reason)
        super().__init__(self.reason)


class Bury(Control):
    """Failed for good: a dead letter at once, whatever attempts are left. It can be redriven."""

    def __init__(self, reason: str = "buried") -> None:
        self.reason = _text(reason)
        super().__init__(self.reason)


class Cancel(Control):
    """Not needed any more: the task ends as cancelled."""


def _text(reason: object) -> str:
    if not isinstance(reason, str):
        raise UsageError(f"reason must be a str, not {type(reason).__name__}")
    return reason
