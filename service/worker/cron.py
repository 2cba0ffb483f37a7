"""Cron: each tick is enqueued as one task, whatever the number of workers.

The timer's callback only notes which ticks are due; a loop task for each function enqueues them.
So a clock that a test moves by an hour meets every tick on its way, while a process that was frozen
for an hour gets one callback and enqueues only the latest tick. A function whose queue is full, or
whose shard has no leader, holds up no other.

Workers do not talk to each other: the dedup key of a tick is function and moment, and the store
accepts each key once. It is held for as long as any worker may still come with that tick: late,
because it was frozen (then by less than a period), caught up, or was refused until then. Whoever is
later than that gives the tick up: it would run twice.

The wall clock may step. Forward, it is as if the process had been frozen; back, the next ticks are
those of the new time, and the dedup keys of those that have been keep them from running again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from ...errors import LodeqError, UsageError
from ...repository.model.task_options import DURATION_S_MAX
from ...repository.model.workers import UPCOMING_MAX
from .run.claimer import PAUSE_S, PAUSE_S_MAX
from .run.functions import TICK_HEADER, TaskFunction

if TYPE_CHECKING:
    from ...engine.runtime.clock import TimerHandle
    from .cron_ticks import Ticks
    from .run.backend import WorkerBackend

__all__ = ["Cron", "CronEntry"]

LOOK_S: Final = 1.0  # steps of the wall clock are seen within this time
REMEMBERED_S: Final = 3600.0  # the clocks of two workers may differ by this much
LATE_S_MIN, LATE_S_MAX = 3600.0, 400 * 86_400.0
log = logging.getLogger("lodeq.worker")


@dataclass(slots=True)
class CronEntry:
    """One ``@app.cron`` function: its ticks, and the next one."""

    function: TaskFunction[..., Any]
    ticks: Ticks
    catch_up_s: float
    next: datetime = field(default=datetime.max.replace(tzinfo=UTC))
    last: datetime | None = None  # the tick enqueued last, by this worker or another
    last_id: str = ""
    due: deque[datetime] = field(default_factory=deque)  # to be enqueued, the oldest first
    was_refused: bool = False  # the first of these; since then they wait
    noted: anyio.Event | None = None  # set when there is one more
    _ahead: tuple[datetime, ...] = ()

    def upcoming(self) -> tuple[datetime, ...]:
        """The next ticks: ``next`` and those after it. Searched anew only once ``next`` moved."""
        if self._ahead[:1] != (self.next,):
            found = [self.next]
            try:
                while len(found) < UPCOMING_MAX:
                    found.append(self.ticks.after(found[-1]))
            except UsageError:  # no further one within 50 years
                pass
            self._ahead = tuple(found)
        return self._ahead

    def note(self, tick: datetime) -> None:
        """A tick is due."""
        self.due.append(tick)
        if self.noted is not None:
            self.noted.set()

    def late_s(self, tick: datetime) -> float:
        """How much later than its moment a tick may be enqueued: two periods, an hour at least."""
        try:
            period_s = (self.ticks.after(tick) - tick).total_seconds()
        except UsageError:  # it was the last one
            period_s = LATE_S_MAX
        return self.catch_up_s + min(max(LATE_S_MIN, 2 * period_s), LATE_S_MAX)


class Cron:
    """The cron schedule of one worker; ``close`` ends it."""

    def __init__(self, backend: WorkerBackend, entries: Sequence[CronEntry]) -> None:
        self._backend = backend
        self.entries = [CronEntry(e.function, e.ticks, e.catch_up_s) for e in entries]
        self._timer: TimerHandle | None = None
        self._seen = now = self._now()  # each ``next`` is the first tick after this
        self._seen_mono = backend.clock.mono()
        for entry in self.entries:
            latest = entry.ticks.latest(now)
            if now - latest < timedelta(seconds=entry.catch_up_s):
                entry.note(latest)
            entry.next = entry.ticks.after(now)
        self._arm()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._backend.clock.wall_us() / 1e6, UTC)

    def _arm(self) -> None:
        if not self.entries:
            return
        clock = self._backend.clock
        wait_s = (min(entry.next for entry in self.entries) - self._now()).total_seconds()
        at = clock.mono() + min(max(wait_s, 0.0), LOOK_S)
        self._timer = clock.call_at(self._backend.spawner, at, self._look)

    def _look(self) -> None:
        now, seen = self._now(), self._seen
        mono, seen_mono = self._backend.clock.mono(), self._seen_mono
        self._seen, self._seen_mono = now, mono
        if now < seen:
            self._stepped_back((seen - now).total_seconds() + mono - seen_mono)
        for entry in self.entries:
            if now < seen:
                entry.next = entry.ticks.after(now)
            elif entry.next <= now:
                entry.note(entry.ticks.latest(now))
                entry.next = entry.ticks.after(now)
        self._arm()

    def _stepped_back(self, by_s: float) -> None:
        if by_s >= 2 * LOOK_S:  # less is what time servers do all the time
            log.warning(
                "the wall clock was set back by %.0f s; the next cron ticks are those of its new "
                "time",
                by_s,
                extra={"event": "clock_set_back"},
            )

    async def flush(self) -> None:
        """Enqueue the ticks that are due. A tick that raises stays due; those of others do not."""
        failure: Exception | None = None
        for entry in list(self.entries):
            try:
                await self._flush(entry)
            except Exception as error:  # noqa: BLE001 - raised once the others are enqueued
                failure = failure or error
        if failure is not None:
            raise failure

    async def _flush(self, entry: CronEntry) -> None:
        while entry.due:
            tick = entry.due[0]
            moment, late_s = tick.isoformat(), entry.late_s(tick)
            if entry.was_refused and (self._now() - tick).total_seconds() > late_s:
                entry.due.popleft()
                log.warning(
                    "the tick of %s of function %r could not be enqueued for %.0f s, and is given "
                    "up",
                    moment,
                    entry.function.name,
                    late_s,
                    extra={"event": "tick_given_up"},
                )
                continue
            sending = entry.function.options(
                dedup_key=f"cron:{entry.function.name}:{moment}",
                dedup_window=min(late_s + REMEMBERED_S, DURATION_S_MAX),
                headers={TICK_HEADER: moment},
            )
            receipt = await sending.enqueue()
            entry.last, entry.last_id = tick, str(receipt.id)
            if tick in entry.due:  # else a drain beside the worker has enqueued it, too
                entry.due.remove(tick)
        entry.was_refused = False

    async def run(self) -> None:
        """Enqueue ticks as they fall due, until cancelled.

        Raises:
            LodeqError: a retry does not help.
        """
        failures: list[LodeqError] = []
        async with anyio.create_task_group() as group:

            async def tend(entry: CronEntry) -> None:
                try:
                    await self._tend(entry)
                except LodeqError as error:  # a retry does not help
                    failures.append(error)
                    group.cancel_scope.cancel()

            for entry in self.entries:
                group.start_soon(partial(tend, entry))
        if failures:
            raise failures[0]

    async def _tend(self, entry: CronEntry) -> None:
        """Enqueue the ticks of one function as they fall due."""
        backend, pause_s = self._backend, PAUSE_S
        while True:
            entry.noted = noted = anyio.Event()
            try:
                await self._flush(entry)
            except (LodeqError, OSError) as error:
                if backend.is_final(error):
                    raise
                entry.was_refused = True
                log.warning(
                    "a cron tick of function %r could not be enqueued; it is retried: %r",
                    entry.function.name,
                    error,
                    extra={"event": "tick_failed"},
                )
                await backend.wait(anyio.Event(), backend.clock.mono() + pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            else:
                pause_s = PAUSE_S
                await noted.wait()

    def close(self) -> None:
        """Stop the ticks."""
        self.entries.clear()
        if self._timer is not None:
            self._timer.cancel()
