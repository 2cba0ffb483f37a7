"""Workers that have beaten lately, in the memory of the store's owner.

They are lost with it, and the next beats bring them back.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from ...engine.runtime.clock import Clock
from ..model.workers import WorkerReport, check_report

__all__ = ["BEAT_S", "WorkerRegister"]

BEAT_S: Final = 5.0  # between two beats of a worker
KEPT_S: Final = 600.0  # a worker that beats no more is shown for so long
WORKERS_MAX: Final = 1000
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class WorkerRegister:
    """The last report of each worker, by name and process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reports: OrderedDict[tuple[str, int], tuple[float, WorkerReport]] = OrderedDict()

    def beat(self, given: WorkerReport) -> None:
        """Note a report; one that says that its worker is over removes it."""
        report = check_report(given)
        key = report.name, report.pid
        if report.is_over:
            self._reports.pop(key, None)
            return
        self._reports[key] = self._clock.mono(), report
        self._reports.move_to_end(key)
        while len(self._reports) > WORKERS_MAX:
            self._reports.popitem(last=False)

    def workers(self) -> list[WorkerReport]:
        """The workers by name; those that have not beaten for ten minutes are forgotten."""
        now = self._clock.mono()
        while self._reports:
            key, (beaten, _) = next(iter(self._reports.items()))
            if now - beaten <= KEPT_S:
                break
            del self._reports[key]
        newest: dict[str, tuple[datetime, str]] = {}  # version of the last start, by queue
        for _, one in self._reports.values():
            for queue in one.queues:
                started = one.started_at or _EPOCH
                newest[queue] = max(newest.get(queue, (_EPOCH, "")), (started, one.version))
        return sorted(
            (
                replace(
                    one,
                    beat_age=max(0.0, now - beaten),
                    is_newest=all(newest[queue][1] == one.version for queue in one.queues),
                )
                for beaten, one in self._reports.values()
            ),
            key=lambda one: (one.name, one.pid),
        )
