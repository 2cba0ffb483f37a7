"""Ticks of a cron expression, searched by cronsim. No other module imports cronsim.

cronsim only sees times without a zone. What a zone makes of them is decided here, because its own
search does not end, or goes backwards, where an hour comes twice.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
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
_SECOND: Final = timedelta(seconds=1)
# Longer than any change of an offset, and shorter than the time between two changes.
_SPAN: Final = timedelta(days=2)


def _named(expression: str) -> str:
    fields = _FIELDS.get(expression.lower())
    if fields is None:
        return f"cron expression {expression!r}: write five fields, as in '0 0 * * *' for each day"
    return f"cron expression {expression!r}: write {fields!r} instead"


def _has_fixed_times(expression: str) -> bool:
    """Return whether Debian's cron holds to the times of the day it names.

    One that a change of the clocks leaves out comes at the change, one that comes twice the first
    time. With a ``*`` for minute or hour, or with seconds, ticks follow what clocks show.
    """
    fields = expression.split()
    return len(fields) == 5 and not fields[0].startswith("*") and not fields[1].startswith("*")


class Ticks:
    """The ticks of a cron expression in a time zone, as UTC datetimes.

    Both searches take steps whose number does not depend on the moment, and ``after(m) > m``,
    ``latest(m) <= m``, ``latest(after(m)) == after(m)`` hold for every moment: a worker that
    starts at any time goes on where one that has been running is.
    """

    def __init__(self, expression: str, zone: str) -> None:
        try:
            self._zone: tzinfo = UTC if zone == "UTC" else ZoneInfo(zone)
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise UsageError(f"tz {zone!r} is not a known time zone") from error
        self._expression = self.expression = expression
        self.tz = zone
        if isinstance(expression, str) and expression.strip().startswith("@"):
            raise UsageError(_named(expression.strip()))
        try:
            self._is_fixed = _has_fixed_times(expression)
            CronSim(expression, datetime(2030, 1, 1))  # noqa: DTZ001 - the wall's
        except (AttributeError, CronSimError) as error:
            raise UsageError(f"cron expression {expression!r}: {error}") from error
        self.after(datetime(2030, 1, 1, tzinfo=UTC))

    def __str__(self) -> str:
        return f"{self._expression} {self._zone}"

    def after(self, moment: datetime) -> datetime:
        """Return the first tick after ``moment``.

        Raises:
            UsageError: there is none within 50 years.
        """
        moment = moment.astimezone(UTC).replace(microsecond=0)
        if self._is_fixed:
            return self._moment_of(self._next(self._wall_until(moment)))
        while True:
            first = moment + _SECOND
            offset = self._offset(first)
            tick = self._next(moment.replace(tzinfo=None) + offset).replace(tzinfo=UTC) - offset
            end = min(tick, first + _SPAN)
            if self._offset(end) != offset:
                moment = self._change(first, end) - _SECOND
            elif end == tick:
                return tick
            else:  # whatever the offset becomes, nothing until the span before it
                moment = max(end, tick - _SPAN)

    def latest(self, moment: datetime) -> datetime:
        """Return the last tick at or before ``moment``.

        Raises:
            UsageError: there is none within 50 years.
        """
        moment = moment.astimezone(UTC).replace(microsecond=0)
        if self._is_fixed:
            return self._moment_of(self._last(self._wall_until(moment)))
        while True:
            offset = self._offset(moment)
            tick = self._last(moment.replace(tzinfo=None) + offset).replace(tzinfo=UTC) - offset
            end = max(tick, moment - _SPAN)
            if self._offset(end) != offset:
                moment = self._change(end, moment) - _SECOND
            elif end == tick:
                return tick
            else:
                moment = min(end, tick + _SPAN)

    # -- times without a zone ----------------------------------------------------------

    def _next(self, wall: datetime) -> datetime:
        """Return the first time after ``wall`` that the expression names."""
        return self._found(CronSim(self._expression, wall))

    def _last(self, wall: datetime) -> datetime:
        """Return the last time at or before ``wall`` that the expression names."""
        return self._found(CronSim(self._expression, wall + _SECOND, reverse=True))

    def _found(self, search: CronSim) -> datetime:
        found = next(search, None)
        if found is None:
            raise UsageError(f"cron expression {self._expression!r}: it never fires")
        return found

    # -- the zone ----------------------------------------------------------------------

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self._zone).utcoffset() or timedelta()

    def _change(self, before: datetime, after: datetime) -> datetime:
        """Return the first second of the offset that holds at ``after``, not yet at ``before``."""
        offset = self._offset(after)
        return _first(before, after, lambda moment: self._offset(moment) == offset)

    def _wall_until(self, moment: datetime) -> datetime:
        """Return the last time without a zone whose own moment is not after this one."""
        local = moment.astimezone(self._zone)
        wall = local.replace(tzinfo=None, fold=0)
        if not local.fold:
            return wall
        # The second time that clocks show this: all that comes twice has been.
        return wall + (self._twice_until(local) - moment) - _SECOND

    def _twice_until(self, local: datetime) -> datetime:
        """Return the moment at which a time that comes twice, the second time, does so no more."""
        moment, by = local.astimezone(UTC), self._gain(local)
        return self._change(moment - by, moment) + by

    def _gain(self, local: datetime) -> timedelta:
        first, second = local.replace(fold=0).utcoffset(), local.replace(fold=1).utcoffset()
        return (first or timedelta()) - (second or timedelta())

    def _moment_of(self, wall: datetime) -> datetime:
        """Return the first moment with this time, or the change of clocks that leaves it out."""
        local = wall.replace(tzinfo=self._zone)
        moment, left_out = local.astimezone(UTC), -self._gain(local)
        if left_out > timedelta():
            return self._change(moment - left_out, moment)
        return moment


def _first(low: datetime, high: datetime, holds: Callable[[datetime], bool]) -> datetime:
    """Return the first second at which it holds, which it does at ``high`` and not at ``low``."""
    while high - low > _SECOND:
        middle = low + timedelta(seconds=(high - low) // _SECOND // 2)
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
