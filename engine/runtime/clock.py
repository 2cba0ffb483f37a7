"""Time. The only module of lodeq that reads a clock.

Two clocks, kept apart: the *wall* clock (µs since the epoch; stored in records; used for due
times, TTLs and retention) may step in either direction; the *monotonic* clock (seconds; never
stored) carries lease deadlines and timeouts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

__all__ = [
    "Clock",
    "DrivingClock",
    "SystemClock",
    "TimerHandle",
    "Timers",
    "boot_s",
    "nanoseconds",
    "perf_s",
]


_time_ns = time.time_ns


class TimerHandle(Protocol):
    """Something scheduled that can be taken back."""

    def cancel(self) -> None:
        """Forget the callback; harmless once it ran."""


class Timers(Protocol):
    """The part of the event loop that a clock needs to run a callback later."""

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> TimerHandle:
        """Run ``fn`` on the loop after ``delay_s`` seconds of the loop's own time."""


class Clock(Protocol):
    """The clock port. ``SystemClock`` in production, ``testing.ManualClock`` in tests."""

    def wall_us(self) -> int:
        """Microseconds since 1970-01-01 UTC. May step."""

    def mono(self) -> float:
        """Seconds, never stepping back, without meaning outside this process."""

    def call_at(self, timers: Timers, when_mono: float, fn: Callable[[], None]) -> TimerHandle:
        """Run ``fn`` on the loop once ``mono() >= when_mono``."""


@runtime_checkable
class DrivingClock(Protocol):
    """A clock moved by hand: whatever is due is done while it moves, not by a task later on."""

    def drive(self, catch_up: Callable[[], float]) -> TimerHandle:
        """Call ``catch_up`` whenever time has come to what it returned: the next ``mono()``."""


class SystemClock:
    """The machine's clocks, timers on the event loop."""

    def wall_us(self) -> int:
        """Wall time in microseconds."""
        return _time_ns() // 1000

    # The builtin itself: a Python frame would cost as much as the reading.
    mono = staticmethod(time.monotonic)

    def call_at(self, timers: Timers, when_mono: float, fn: Callable[[], None]) -> TimerHandle:
        """Schedule on the loop."""
        return timers.call_later(max(0.0, when_mono - time.monotonic()), fn)


def nanoseconds(clock: Clock) -> Callable[[], int]:
    """The wall clock in nanoseconds: for the machine's the builtin itself, as ``mono`` is."""
    if type(clock) is SystemClock:
        return _time_ns
    return lambda: clock.wall_us() * 1000


def boot_s() -> float:
    """Seconds on a clock that, unlike ``mono``, goes on while the machine is suspended.

    For what somebody else counts meanwhile: the session of a replicated log. Without meaning
    outside this process. Where the system has no such clock, it is the monotonic one.
    """
    return time.clock_gettime(_BOOT)


_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

# For latency statistics, and for where a slice of work ends: never a decision about rows.
perf_s = time.perf_counter
