"""The loop's lateness, on a clock moved by hand."""

import heapq
from itertools import count

import pytest

from lodeq.service.metrics.loop_lag import SPAN_S, STEP_S, LoopLag


class Loop:
    """Time, and timers that are called when their turn has come or later."""

    def __init__(self) -> None:
        self.now = 100.0
        self.order = count()
        self.timers: list[tuple[float, int, object]] = []

    def mono(self) -> float:
        return self.now

    def call_at(self, timers, when, fn):
        entry = (when, next(self.order), fn)
        heapq.heappush(self.timers, entry)
        loop = self

        class Handle:
            def cancel(self) -> None:
                loop.timers.remove(entry)

        return Handle()

    def run(self, seconds: float, *, hold: float = 0.0) -> None:
        """``hold``: what comes first holds the loop for so long."""
        end, self.now = self.now + seconds, self.now + hold
        while self.timers and self.timers[0][0] <= end:
            when, _, fn = heapq.heappop(self.timers)
            self.now = max(self.now, when)
            fn()
        self.now = max(self.now, end)


@pytest.fixture
def loop():
    return Loop()


def lag_of(loop, is_over=lambda: False):
    lag = LoopLag(loop, None, is_over)
    lag.start()
    lag.start()
    return lag


def test_a_loop_that_is_held_is_late(loop):
    lag = lag_of(loop)
    loop.run(5)
    assert lag.worst_s == 0
    loop.run(5, hold=3)
    assert 3 - STEP_S <= lag.worst_s <= 3


def test_it_is_forgotten_after_two_spans(loop):
    lag = lag_of(loop)
    loop.run(1, hold=1)
    loop.run(SPAN_S)
    assert lag.worst_s > 0.5
    loop.run(2 * SPAN_S)
    assert lag.worst_s == 0


def test_it_stops(loop):
    lag = lag_of(loop)
    lag.stop()
    lag.stop()
    assert loop.timers == []
    lag_of(loop, lambda: True)
    loop.run(1)
    assert loop.timers == []
