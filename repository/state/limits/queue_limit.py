"""The limit of one queue: how many of its tasks may be leased at once, and may start in a window.

``concurrency`` counts leases: each is counted when its row is picked, and out when it ends. A rate
of n starts in a period is exact: of any n + 1 starts that follow one another the last is at least
a period behind the first. (A token bucket lets twice as many through around the moment when it is
full.) Times are whole microseconds, so that a sum of two is what a clock shows.

Nothing here waits: ``queue_limits`` says who is woken, and when.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import Final

from ....engine.runtime.clock import TimerHandle
from .queue_rules import UNSET, QueueRules
from .share import WHOLE, Share

__all__ = ["ALL_SHARDS", "NO_LIMIT", "QueueLimit", "Window"]

NO_LIMIT: Final = 1 << 62
ALL_SHARDS: Final = -1


class Window:
    """The starts of the last period: at most ``n`` in any."""

    __slots__ = ("_assumed", "_count", "_starts", "n", "period_us")

    def __init__(self, n: int, period_us: int) -> None:
        self.n = n
        self.period_us = period_us
        self._starts: deque[tuple[int, int]] = deque()  # (moment, how many), oldest first
        self._count = 0
        # Of those that ``fill`` has counted at a moment: the ones nothing is known of.
        self._assumed: dict[int, int] = {}

    def free(self, now_us: int) -> int:
        """How many may start now."""
        starts = self._starts
        while starts and starts[0][0] + self.period_us <= now_us:
            moment, count = starts.popleft()
            self._count -= count
            self._assumed.pop(moment, None)
        return self.n - self._count

    @property
    def counted(self) -> int:
        """Starts that are counted still: those of the last period, and perhaps some before it."""
        return self._count

    def start(self, now_us: int, count: int) -> None:
        """Count starts."""
        starts = self._starts
        if starts and starts[-1][0] >= now_us:  # of one claim, or the clock stands still
            starts[-1] = (starts[-1][0], starts[-1][1] + count)
        else:
            starts.append((now_us, count))
        self._count += count

    def opens_us(self) -> int:
        """When the next may start; call it only if none may start now."""
        over, at = self._count - self.n, 0
        for moment, count in self._starts:
            over -= count
            at = moment
            if over < 0:
                break
        return at + self.period_us

    def change(self, n: int, period_us: int) -> None:
        """Another rate: what is known of the past counts."""
        self.n, self.period_us = n, period_us

    def fill(self, now_us: int, count: int) -> None:
        """Nothing is known of a part of the past: count as many as it can have had, as of now."""
        self._starts.append((now_us, count))
        self._count += count
        self._assumed[now_us] = self._assumed.get(now_us, 0) + count

    def recall(self, starts: Sequence[tuple[int, int]]) -> None:
        """Take in what has started before, known after all: (moment, how many), oldest first."""
        self._starts = deque(starts)
        self._count = sum(count for _, count in starts)
        self._assumed.clear()

    def known(self, now_us: int, most: int) -> list[tuple[int, int]]:
        """Starts of the last period, in ``most`` entries: none is earlier than it was."""
        self.free(now_us)
        starts = list(self._starts)
        step = -(-len(starts) // most) or 1
        return [
            (run[-1][0], sum(count for _, count in run))
            for run in (starts[at : at + step] for at in range(0, len(starts), step))
        ]

    def know(self, at_us: int, filled_us: int) -> None:
        """One start of those that ``fill`` has counted was at ``at_us``.

        Args:
            at_us: not later than ``filled_us``.
            filled_us: what ``fill`` was called with.
        """
        if at_us + self.period_us <= filled_us:
            return
        starts, assumed = self._starts, self._assumed
        if assumed.get(filled_us):
            assumed[filled_us] -= 1
            nth = bisect_left(starts, (filled_us, 0))
            left = starts[nth][1] - 1
            if left:
                starts[nth] = (filled_us, left)
            else:
                del starts[nth]
        else:  # more than a rate that is lower now, or what was filled is over already
            self._count += 1
        insort(starts, (at_us, 1))


class QueueLimit:
    """The limits of a queue as they stand now. ``live``: its leases, and rows that are picked."""

    __slots__ = (
        "concurrency",
        "filled",
        "live",
        "picked",
        "rules",
        "timer",
        "timer_us",
        "window",
    )

    def __init__(self) -> None:
        self.rules = UNSET
        self.concurrency = NO_LIMIT
        self.window: Window | None = None
        self.live = 0
        self.picked = 0  # rows that are to be leased in the section that runs now
        self.filled: dict[int, int] = {}  # by shard, or ALL_SHARDS: when its past was assumed
        self.timer: TimerHandle | None = None  # runs when the window opens
        self.timer_us = 0

    def set(self, rules: QueueRules, share: Share = WHOLE) -> None:
        """Take other limits, or another share of them; what is counted stays."""
        self.rules = rules
        self.concurrency = share.of(rules.concurrency) if rules.concurrency > 0 else NO_LIMIT
        if rules.rate_n <= 0:
            self.window = None
            return
        starts, period_us = share.of_rate(rules.rate_n, rules.rate_period_ms * 1000)
        if self.window is None:
            self.window = Window(starts, period_us)
        else:
            self.window.change(starts, period_us)

    def free(self, now_us: int) -> int:
        """How many more may be leased now; 0 or less: none."""
        free = self.concurrency - self.live
        if self.window is not None:
            free = min(free, self.window.free(now_us) - self.picked)
        return free

    @property
    def is_surely_free(self) -> bool:
        """Whether one more may be leased, without a look at the clock; False: perhaps."""
        window = self.window
        return self.live < self.concurrency and (
            window is None or window.counted + self.picked < window.n
        )

    def opens_us(self, now_us: int) -> int:
        """When time alone lets another start; 0: it is not the rate that holds the queue."""
        if self.window is None or self.window.free(now_us) > 0:
            return 0
        return self.window.opens_us()
