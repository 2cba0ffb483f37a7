"""The schedule of a cron function, as its live workers report it, and times in its own zone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from ...repository.model.calls.functions import PublishedFunction
from ...repository.model.workers import UPCOMING_MAX, WorkerReport

__all__ = ["Schedule", "schedule_of", "zone_text"]


class Schedule(NamedTuple):
    """The next ticks of a function, soonest first, and the last one with its task.

    ``upcoming`` is empty where no worker that ticks is live.
    """

    upcoming: Sequence[datetime]
    last_at: datetime | None
    task_id: str


def schedule_of(one: PublishedFunction, reports: Iterable[WorkerReport]) -> Schedule:
    """The schedule of a function, of what all live workers report of it."""
    ticks = [
        tick
        for report in reports
        for tick in report.ticks
        if (tick.queue, tick.function) == (one.queue, one.name)
    ]
    ahead = {at for tick in ticks for at in tick.upcoming}
    ahead |= {tick.next_at for tick in ticks if tick.next_at is not None}
    behind = [(tick.last_at, tick.task_id) for tick in ticks if tick.last_at is not None]
    last_at, task_id = max(behind, default=(None, ""))
    return Schedule(sorted(ahead)[:UPCOMING_MAX], last_at, task_id)


def zone_text(at: datetime, zone: str) -> str:
    """A time as clocks of a zone show it, with the zone's offset; "" for a zone not known here."""
    try:
        there = at.astimezone(ZoneInfo(zone))
    except (KeyError, OSError, OverflowError, ValueError):
        return ""
    return f"{there:%Y-%m-%d %H:%M:%S%z}"
