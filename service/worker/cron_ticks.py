"""Ticks of a cron expression, computed by cronsim. No other module imports cronsim."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from ...errors import UsageError

__all__ = ["Ticks"]


_FIELDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def _named(expression: str) -> str:
    fields = _FIELDS.get(expression.lower())
    if fields is None:
        return f"cron expression {expression!r}: write five fields, as in '0 0 * * *' for each day"
    return f"cron expression {expression!r}: write {fields!r} instead"


class Ticks:
    """The ticks of a cron expression in a time zone, as UTC datetimes."""

    def __init__(self, expression: str, zone: str) -> None:
        try:
            self._zone = UTC if zone == "UTC" else ZoneInfo(zone)
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise UsageError(f"tz {zone!r} is not a known time zone") from error
        self._expression = self.expression = expression
        self.tz = zone
        if isinstance(expression, str) and expression.strip().startswith("@"):
            raise UsageError(_named(expression.strip()))
        try:
            self.after(datetime(2030, 1, 1, tzinfo=UTC))
        except (AttributeError, CronSimError, StopIteration) as error:
            raise UsageError(
                f"cron expression {expression!r}: {str(error) or 'it never fires'}"
            ) from error

    def __str__(self) -> str:
        return f"{self._expression} {self._zone}"

    def after(self, moment: datetime) -> datetime:
        """Return the first tick after ``moment``."""
        return next(CronSim(self._expression, moment.astimezone(self._zone))).astimezone(UTC)

    def latest(self, moment: datetime) -> datetime:
        """Return the last tick at or before ``moment``."""
        behind = (moment + timedelta(seconds=1)).replace(microsecond=0).astimezone(self._zone)
        return next(CronSim(self._expression, behind, reverse=True)).astimezone(UTC)
