"""The share of a queue's limits that one process has, where several lead shards of its store.

Each counts what it grants itself. So the limit is divided over the shards, and a process has what
belongs to the shards that it leads: the shares of all leaders add up to the limit. Where that is
less than the shards there are, parts of one would be left: a share that is less than one counts as
one, or tasks on these shards would wait for ever. Such a rate keeps its mean: its one start has a
period that is as much longer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

__all__ = ["WHOLE", "Share"]


class Share(NamedTuple):
    """The shards of a store that one process leads.

    Attributes:
        led: indexes of the shards that are led here.
        shards: how many the store has.
    """

    led: Collection[int]
    shards: int

    def of(self, limit: int) -> int:
        """The share of a limit, one at least: 0 or less is none, and stays as it is."""
        led, shards = len(self.led), self.shards
        if limit <= 0 or led == shards:
            return limit
        if limit < shards:
            return max(1, limit * led // shards)
        return sum(limit * (one + 1) // shards - limit * one // shards for one in self.led) or 1

    def of_rate(self, starts: int, period_us: int) -> tuple[int, int]:
        """The share of a rate: starts, and the microseconds of their period."""
        here = starts * len(self.led)
        if 0 < here < self.shards:
            return 1, -(-period_us * self.shards // here)
        return self.of(starts), period_us


WHOLE = Share((0,), 1)
