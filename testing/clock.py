"""A clock that stands still until a test moves it.

``advance(60)`` does not jump: it goes from one due moment to the next, and at each does what a
running engine would have done *then*. A lease of 30 seconds is reaped at 30 and its task's backoff
counts from there; a claim that waits for 10 seconds gives up at 10 and does not see what happens
at 50. All of it happens inside the call; the consequences (a waiting caller returns, a group is
committed) follow at the next ``await``, as always.

So the engine's reaper is not a task here: the clock drives it (``DrivingClock``). If timers only
woke a task, as they do elsewhere, that task would see nothing but the end of the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush

from ..engine.runtime.clock import TimerHandle, Timers
from ..errors import UsageError
from ..repository.model.arguments import duration_s
from ..repository.model.task_options import DURATION_S_MAX
from ..repository.model.values import Duration

__all__ = ["ManualClock"]

START = datetime(2030, 1, 1, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_NEVER_US = 1 << 62
_MONO_START_US = 1_000_000_000  # not 0, so that code that takes 0 for "never" fails


class _Timer:
    """A callback at a time, until it is cancelled or has run."""

    def __init__(self, fn: Callable[[], None]) -> None:
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        self.fn = None


class _Driven:
    """An engine's reaper: its callback, and the time of the next call."""

    def __init__(self, clock: ManualClock, catch_up: Callable[[], float]) -> None:
        self._clock = clock
        self._catch_up = catch_up
        self.at_us = 0

    def run(self) -> None:
        self.at_us = _us_at(self._catch_up())

    def cancel(self) -> None:
        if self in self._clock._driven:
            self._clock._driven.remove(self)


class ManualClock:
    """Both of an engine's clocks, moved by hand.

    ::

        clock = ManualClock()
        async with lodeq.testing.open(clock=clock) as engine:
            mail = engine.queue("mail")
            await mail.enqueue(b"later", delay=60)
            clock.advance(60)
            (lease,) = await mail.claim()

    Pass it to any number of engines, also to ``lodeq.open(path, clock=…)``. Nothing falls due or
    expires between two calls of ``advance``, however long the test takes.

    Args:
        start: the wall time it shows first; an aware datetime. 2030-01-01 UTC by default.
    """

    def __init__(self, start: datetime = START) -> None:
        if not isinstance(start, datetime) or start.utcoffset() is None:
            raise UsageError("start must be an aware datetime")
        self._wall_us = (start - _EPOCH) // _US
        self._mono_us = _MONO_START_US
        self._timers: list[tuple[int, int, _Timer]] = []
        self._n = 0
        self._driven: list[_Driven] = []
        self._is_moving = False

    def __repr__(self) -> str:
        return f"<ManualClock {self.now.isoformat()}>"

    @property
    def now(self) -> datetime:
        """The wall time, for ``run_at=clock.now + timedelta(…)``."""
        return _EPOCH + timedelta(microseconds=self._wall_us)

    # -- moving it ---------------------------------------------------------------------

    def advance(self, seconds: Duration) -> None:
        """Let time pass, and do everything that falls due on the way, in order.

        Due tasks are promoted, expired leases reaped, TTLs, results, dedup entries and dead
        letters ended, heartbeats sent, waits served or timed out. The counts show it at once;
        waiting callers return at the next ``await``.

        Args:
            seconds: float or timedelta, not negative. 0 does what is due now.

        Raises:
            UsageError: not on the event loop of an engine it drives, or from inside itself.
        """
        if self._is_moving:
            raise UsageError("advance() was called from something that advance() runs")
        until_us = self._mono_us + _us_of(duration_s(seconds, "seconds"))
        self._is_moving = True
        try:
            for driven in list(self._driven):  # for deadlines set since the last call
                driven.run()
            while (next_us := self._next_us()) <= until_us:
                self._move(next_us)
                self._run_due()
            self._move(until_us)
        finally:
            self._is_moving = False

    def step_wall(self, seconds: Duration) -> None:
        """Step the wall clock alone, as an administrator or a time server would.

        The engine notices when it next looks, which it does every second: ``advance(1)``.

        Args:
            seconds: float or timedelta; negative steps back.
        """
        self._wall_us += _us_of(duration_s(seconds, "seconds", least=-DURATION_S_MAX))

    def _next_us(self) -> int:
        timers = self._timers
        while timers and timers[0][2].fn is None:
            heappop(timers)
        asked = [driven.at_us for driven in self._driven]
        return min([*asked, timers[0][0]] if timers else asked, default=_NEVER_US)

    def _move(self, to_us: int) -> None:
        step_us = max(0, to_us - self._mono_us)
        self._mono_us += step_us
        self._wall_us += step_us

    def _run_due(self) -> None:
        # The reaper first: a wait that ends at the moment a task falls due gets the task.
        for driven in list(self._driven):
            if driven.at_us <= self._mono_us:
                driven.run()
        timers = self._timers
        while timers and timers[0][0] <= self._mono_us:
            timer = heappop(timers)[2]
            fn, timer.fn = timer.fn, None
            if fn is not None:
                fn()

    # -- the port ----------------------------------------------------------------------

    def wall_us(self) -> int:
        """Return microseconds since 1970-01-01 UTC."""
        return self._wall_us

    def mono(self) -> float:
        """Return seconds that only ``advance`` moves."""
        return self._mono_us / 1e6

    def call_at(self, timers: Timers, when_mono: float, fn: Callable[[], None]) -> TimerHandle:
        """Run ``fn`` inside the ``advance`` that reaches ``when_mono``."""
        if when_mono <= self.mono():  # due already
            return timers.call_later(0.0, fn)
        timer = _Timer(fn)
        self._n += 1
        heappush(self._timers, (_us_at(when_mono), self._n, timer))
        return timer

    def drive(self, catch_up: Callable[[], float]) -> TimerHandle:
        """Call ``catch_up`` at each time it returns; see ``engine/runtime/clock.py``."""
        driven = _Driven(self, catch_up)
        self._driven.append(driven)
        return driven


def _us_of(seconds: float) -> int:
    return round(seconds * 1e6)


def _us_at(mono: float) -> int:
    """Return the first microsecond at which ``mono()`` is not less than ``mono``."""
    if mono > 1e12:
        return _NEVER_US
    us = math.ceil(mono * 1e6 - 1e-2)  # less than a microsecond is rounding of floats
    return us if us / 1e6 >= mono else us + 1
