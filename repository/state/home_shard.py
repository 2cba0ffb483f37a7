"""The shard where unkeyed tasks go: one for all that are enqueued in one turn of the loop.

A group and an fsync cost the same for one task as for a hundred. If every task went to a shard of
its own, a turn would cost as many groups, and fsyncs that compete for one disk, as there are
shards. So a turn has one shard, its *home*, and what is claimed and completed there later shares
its groups as well.

The next turn has another home: of the shards that serve and have capacity the one that has taken
the fewest unkeyed tasks since open, the last home apart. Turns are of unequal size; counted like
that, no shard gets far ahead. Where tasks are claimed as well, a turn's work is more than its
enqueues, and all of it should share a group: then the home stays until it has taken a *quota* of
tasks, and it follows the claims to where they are, if that shard is less than a quota away from it
and from the fewest.

A shard that is stalled, full, failed or led elsewhere is passed over. When it is back it is behind
the others. It gets every second quota at most until it has caught up, and what it is behind by
more than ``BEHIND_MAX`` is forgiven: it never gets all the work, nor half of it for long.

Nothing here reads time or randomness: the order of calls alone decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...coalescer.shard_status import SERVING, STALLED
from ...engine.runtime.ids import first_slot_of
from .queue_state import Shard

__all__ = ["HomeShard"]

QUOTA_MAX: Final = 1024  # tasks; less of more than eight shards
QUOTA_MIN: Final = 64
BEHIND_MAX: Final = 1 << 16  # tasks


class HomeShard:
    """See the module's essay. Of a store with one shard nobody asks."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards  # filled by open, after this
        self.shard: Shard | None = None  # the home
        self.is_chosen = False  # in this turn; cleared when that is over
        self.first_slot = self.slots = 0  # of the home
        self.stayed = 0  # tasks since it became the home: counted by those who queue them
        self._added = 0  # of these, how many are in ``_taken``
        self._has_claims = False  # since it became the home
        self._is_last_resort = False  # no shard serves and has capacity: callers stand in line
        self._quota = 0
        self._taken: list[int] = []  # unkeyed tasks by shard, as far as they are not forgiven
        self._epochs: list[int] = []  # by shard, of the next lease, when a home was last chosen

    def current(self) -> Shard | None:
        """This turn's home. None: no shard takes writes."""
        home = self.shard
        if self.is_chosen and home is not None:
            coalescer = home.coalescer
            if coalescer.status == SERVING and coalescer.has_capacity:
                return home
            if self._is_last_resort and coalescer.status <= STALLED and self.stayed < self._quota:
                return home  # none is better: not looked for by every caller of the turn
        return self._choose()

    def _choose(self) -> Shard | None:
        if not self._taken:
            count = len(self._shards)
            self._quota = max(QUOTA_MIN, min(QUOTA_MAX, 8 * QUOTA_MAX // count))
            self._taken = [0] * count
            self._epochs = [shard.next_epoch for shard in self._shards]
        home, taken, epochs = self.shard, self._taken, self._epochs
        if home is not None:
            taken[home.index] += self.stayed - self._added
            self._added = self.stayed
        least: Shard | None = None  # of those that serve and have capacity, the home apart
        claimed: Shard | None = None  # where most was claimed since the last choice
        is_fit = False  # the home
        most = fewest = 0
        for shard in self._shards:
            index, coalescer = shard.index, shard.coalescer
            claims, epochs[index] = shard.next_epoch - epochs[index], shard.next_epoch
            if coalescer.status != SERVING or not coalescer.has_capacity:
                continue
            if claims > most:
                most, claimed = claims, shard
            if shard is home:
                is_fit = True
            elif least is None or taken[index] < fewest:
                least, fewest = shard, taken[index]
        if most:
            self._has_claims = True
        self.is_chosen = True
        self._is_last_resort = False
        if home is not None and is_fit:
            is_busy = self._has_claims or home.coalescer.waiting > 0
            if claimed is not None and claimed is not home:
                there, quota = taken[claimed.index], self._quota
                if taken[home.index] - quota < there < min(fewest, taken[home.index]) + quota:
                    self._move(claimed)
                    return claimed
            if least is None or (is_busy and self.stayed < self._quota):
                return home
        if least is None:
            least = self._last_resort()
        if least is not None:
            self._move(least)
        return least

    def _last_resort(self) -> Shard | None:
        """Among those that take writes, one that serves before one that is stalled.

        All have a line of callers, or are stalled. The one with the fewest tasks; None: there is
        none.
        """
        self._is_last_resort = True
        taken = self._taken
        lines = [
            (s.coalescer.status, taken[s.index], s.index)
            for s in self._shards
            if s.coalescer.takes_writes
        ]
        return self._shards[min(lines)[2]] if lines else None

    def _move(self, shard: Shard) -> None:
        count, index, taken = len(self._shards), shard.index, self._taken
        self.shard = shard
        self.stayed = self._added = 0
        self._has_claims = False
        self.first_slot = first_slot_of(index, count)
        self.slots = first_slot_of(index + 1, count) - self.first_slot
        taken[index] = max(taken[index], max(taken) - BEHIND_MAX)
