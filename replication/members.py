"""What a node knows of the others: who is alive, who is first in line, whose clock is right.

*In line.* Each shard has an order of nodes of its own. Where every node has every shard that is
rendezvous hashing: a node's place depends on nothing but names, so all nodes agree, leaders spread
evenly, and a node that goes moves nothing but what it led. Where shards are placed it is the order
of the shard's copies, and nobody else is in line.

*Clocks.* Members report their wall clock. What it says is known with the delay of the news, which
only ever makes a clock look late: so of the last few reports the best one counts. It is kept as
the difference to this node's monotonic clock, so a step of this node's own wall clock shows at
once. A node that seems ahead leads nothing; but how late can the news be? A first report may be of
any age. Every other one was made after the look before, which did not have it: that bounds it from
the other side, and only by those bounds is a clock called wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from statistics import median
from typing import Final

from xxhash import xxh3_64_intdigest

from ..engine.runtime.clock import Clock
from .port import Member, Placement

__all__ = ["Members", "in_line"]

_SAMPLES: Final = 8
_CLOCKS_MIN: Final = 3  # of two that differ nobody can say which is wrong


def in_line(shard: int, nodes: Iterable[str]) -> list[str]:
    """The order in which ``nodes`` are to lead ``shard``."""
    return sorted(nodes, key=lambda node: (-xxh3_64_intdigest(node.encode(), shard), node))


class Members:
    """The live nodes, as last seen."""

    def __init__(self, node: str, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._clocks: dict[str, deque[float]] = {}
        self._clocks_at_most: dict[str, deque[float]] = {}
        self._reported: dict[str, int] = {}
        self._looked_ms = 0.0
        self.by_name: dict[str, Member] = {}
        self.placements: Mapping[int, Placement] | None = None  # None: every node has every shard

    def see(self, members: Sequence[Member]) -> None:
        """Take what the log has about all of them."""
        self.by_name = {member.node: member for member in members}
        mono_ms = self._clock.mono() * 1000
        for gone in set(self._clocks) - set(self.by_name):
            del self._clocks[gone], self._clocks_at_most[gone], self._reported[gone]
        for member in members:
            name, clock_ms = member.node, member.clock_ms
            if not clock_ms or clock_ms == self._reported.get(name):
                continue
            if name not in self._reported:
                self._clocks[name] = deque(maxlen=_SAMPLES)
                self._clocks_at_most[name] = deque(maxlen=_SAMPLES)
            else:
                self._clocks_at_most[name].append(clock_ms - self._looked_ms)
            self._clocks[name].append(clock_ms - mono_ms)
            self._reported[name] = clock_ms
        self._looked_ms = mono_ms

    def url(self, node: str) -> str | None:
        """Where clients reach ``node``; None: not known."""
        member = self.by_name.get(node)
        return None if member is None else member.url or None

    def line(self, shard: int, nodes: Collection[str]) -> list[str]:
        """The order in which those of ``nodes`` that may are to lead ``shard``."""
        if self.placements is None:
            return in_line(shard, nodes)
        placement = self.placements.get(shard)
        return [] if placement is None else [one for one in placement.copies if one in nodes]

    def rank(self, shard: int, gone: Collection[str] = ()) -> int | None:
        """How many live nodes, but for those of ``gone``, are before this one for ``shard``.

        None: it is not in line.
        """
        line = self.line(shard, {*self.by_name} - {*gone} | {self._node})
        return line.index(self._node) if self._node in line else None

    def skew_ms(self) -> float:
        """How far this node's clock seems ahead of the members' median; 0 with too few of them.

        News is late, so it may be less.
        """
        return self._ahead_ms(self._clocks)

    def least_skew_ms(self) -> float:
        """How far it is ahead at least, however late the news is."""
        return self._ahead_ms(self._clocks_at_most)

    def _ahead_ms(self, known: Mapping[str, Collection[float]]) -> float:
        own = self._clock.wall_us() / 1000 - self._clock.mono() * 1000
        clocks = [max(all_, default=inf) for node, all_ in known.items() if node != self._node]
        if len(clocks) + 1 < _CLOCKS_MIN:
            return 0.0
        return own - median([own, *clocks])
