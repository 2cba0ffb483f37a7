"""When the next record leaves: at once, or once those who have just been answered are back.

Callers in another process do not come back in the turn of the loop that answers them. If the next
record leaves with the first of them, or with those who came meanwhile, two halves of the callers
take turns for good: each waits for the other's record as well as for its own, and the log writes
twice as many. So a record waits a little for most of those whom the last one answered.

That is paid by whoever is in line, so it has bounds. The wait is shorter than an append takes: of
callers who come at a steady rate, and would have come anyway, fewer come meanwhile than an append
answers, and mostly it ends in vain. After such an end the next record does not wait, after further
ones the next 2, 4 … 64; each time it was worth it halves that. A lone caller is never held up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["WAIT_BYTES_MAX", "Linger"]

APPEND_SHARE: Final = 0.75  # how long it waits, of the time that the last append took
BACK_SHARE: Final = 0.9  # so many of those answered are back: it has been worth it
WAIT_S_MAX: Final = 0.005
WAIT_BYTES_MAX: Final = 256 << 10  # more is a record by itself: what comes has one of its own
SKIPPED_MAX: Final = 64


class Linger:
    """How callers of one shard come and go, as its leader sees it.

    Args:
        mono: the engine's monotonic clock, in seconds.
    """

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self.came = 0  # submissions so far
        self.goal = 0.0  # so many are to have come before a record leaves; 0: nobody is waited for
        self._until = 0.0
        self._left_at = 0.0
        self._wait_s = 0.0
        self._has_waited = False
        self._skipped = 0  # so many records are yet to leave without
        self._skip_next = 0

    def left(self) -> None:
        """Something leaves for the log."""
        self._left_at = self._mono()
        self.goal = 0.0
        if self._skipped:
            self._skipped -= 1

    def entered(self) -> None:
        """It is in the log."""
        self._wait_s = min(WAIT_S_MAX, APPEND_SHARE * (self._mono() - self._left_at))

    def answered(self, submissions: int) -> None:
        """So many have their answers, and may be back soon."""
        if self._skipped:
            return
        now = self._mono()
        if not self.goal or now >= self._until:
            self.goal = float(self.came)
            self._has_waited = False
            self._until = now + self._wait_s
        self.goal += BACK_SHARE * submissions

    def wait_s(self) -> float:
        """How many seconds the next record is to wait yet; 0.0: not at all."""
        if not self.goal:
            return 0.0
        if self.came >= self.goal:
            self.goal = 0.0
            if self._has_waited:
                self._skip_next //= 2
            return 0.0
        wait_s = self._until - self._mono()
        if wait_s <= 0:
            self.give_up()
            return 0.0
        self._has_waited = True
        return wait_s

    def give_up(self) -> None:
        """They have not come: do without, for longer each time."""
        self.goal = 0.0
        self._skip_next = min(SKIPPED_MAX, 2 * self._skip_next or 1)
        self._skipped = 1 + self._skip_next  # the one that has waited leaves first
