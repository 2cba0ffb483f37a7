"""What the balancer does next: one step a shard, from what is known now. Nothing here waits.

Each round gets the placements, the nodes, and which copies are up to date; it gives placements that
replace others. A step never undoes the one before it, so rounds come to an end: a shard is first
brought to its number of copies, then rid of those that are to go, then moved from a full node to an
emptier one, or to a zone of its own; each move makes the numbers of two nodes more alike, or zones
more distinct. ``leaders`` decides who leads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from xxhash import xxh3_64_intdigest

from ..port import Placement

__all__ = ["MOVES_MAX", "PlacedNode", "PlacedShard", "plan"]

MOVES_MAX: Final = 4  # shards under way from one node to another, for the sake of evenness


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node as the balancer sees it.

    Attributes:
        name: its own.
        zone: its failure domain.
        is_live: it has a session.
        is_away: it has had none for long: its copies do not count.
        is_leaving: it is to have no copies.
        is_dead: it will not come back.
        is_drained: it is to lead nothing for now.
    """

    name: str
    zone: str = ""
    is_live: bool = True
    is_away: bool = False
    is_leaving: bool = False
    is_dead: bool = False
    is_drained: bool = False

    @property
    def keeps(self) -> bool:
        """Whether copies that it has are to stay there."""
        return not (self.is_away or self.is_leaving or self.is_dead)

    @property
    def takes(self) -> bool:
        """Whether it can be given more."""
        return self.is_live and self.keeps


@dataclass(frozen=True, slots=True)
class PlacedShard:
    """A shard as the balancer sees it.

    Attributes:
        placement: where its copies are; none of version 0: it was never placed.
        ready: nodes that are known to have a copy that is up to date, as of this placement.
        restorable: nodes whose copy others can start from: where the log has been truncated, those
            with a checkpoint that reaches it.
        able: nodes that seem to, which is enough to lead.
        weight: how much leading it costs, in any unit.
        is_everywhere: every node is to have a copy.
        needs_copy: its log does not begin with it: a copy is made of another.
    """

    placement: Placement
    ready: Collection[str]
    restorable: Collection[str] = ()
    able: Collection[str] = ()
    weight: float = 1.0
    is_everywhere: bool = False
    needs_copy: bool = False


def plan(
    nodes: Mapping[str, PlacedNode], shards: Sequence[PlacedShard], copies: int
) -> list[Placement]:
    """The placements to write now, at most one a shard; none: all is as it should be.

    Args:
        nodes: by name; all that have copies, and all that are live.
        shards: all of them.
        copies: how many a shard should have, 1 or more.
    """
    return list(_Round(nodes, shards, copies).steps())


class _Round:
    """One look at everything."""

    def __init__(
        self, nodes: Mapping[str, PlacedNode], shards: Sequence[PlacedShard], copies: int
    ) -> None:
        self._nodes = nodes
        self._shards = shards
        self._copies = copies
        self._takers = [name for name, node in sorted(nodes.items()) if node.takes]
        self._held = Counter(name for one in shards for name in self._stay(one.placement))

    def steps(self) -> Iterator[Placement]:
        """See ``plan``."""
        at_rest: list[PlacedShard] = []
        under_way = 0
        for one in self._shards:
            step = self._repair(one)
            if step is not None:
                yield step
            if step is None and self._is_at_rest(one):
                at_rest.append(one)
            elif not one.is_everywhere:
                under_way += 1
        yield from self._spread(at_rest, MOVES_MAX - under_way)

    # -- facts -------------------------------------------------------------------------

    def _stay(self, placement: Placement) -> list[str]:
        """Nodes whose copies are to stay."""
        return [
            name
            for name in placement.copies
            if name not in placement.leaving and self._nodes[name].keeps
        ]

    def _is_at_rest(self, one: PlacedShard) -> bool:
        """Whether it has its copies, all up to date, and no other."""
        names = one.placement.copies
        return (
            len(names) == self._copies
            and not one.is_everywhere
            and not one.placement.leaving
            and all(name in one.ready and self._nodes[name].keeps for name in names)
        )

    def _zones(self, names: Iterable[str]) -> set[str]:
        return {self._nodes[name].zone for name in names}

    # -- a shard that has too few copies, or too many ------------------------------------

    def _repair(self, one: PlacedShard) -> Placement | None:
        placement = one.placement
        if not placement.version:
            return self._first(one)
        stay = self._stay(placement)
        if len(stay) < self._copies or one.is_everywhere:
            more = self._more(placement, stay)
            if more is not None:
                return more
        return self._fewer(one, stay)

    def _first(self, one: PlacedShard) -> Placement | None:
        placement = one.placement
        chosen: list[str] = []
        if one.needs_copy:  # it begins where it is: a node that is not named gives its copy up
            chosen = [name for name in self._takers if name in one.able]
            if not chosen:
                return None
            for name in chosen:
                self._held[name] += 1
        while len(chosen) < self._copies or one.is_everywhere:
            best = self._best(placement.shard, chosen, chosen)
            if best is None:
                break
            chosen.append(best)
            self._held[best] += 1
        return replace(placement, copies=tuple(chosen)) if chosen else None

    def _more(self, placement: Placement, stay: Sequence[str]) -> Placement | None:
        """One copy more: one that was to leave stays after all, or a new one."""
        for name in placement.leaving:
            if name in placement.copies and self._nodes[name].keeps:
                self._held[name] += 1
                return replace(placement, leaving=_without(placement.leaving, name))
        best = self._best(placement.shard, placement.copies, stay)
        if best is None:
            return None
        self._held[best] += 1
        return replace(placement, copies=(*placement.copies, best))

    def _best(self, shard: int, taken: Collection[str], beside: Collection[str]) -> str | None:
        """The node for another copy beside those; None: there is none."""
        zones = self._zones(beside)
        return min(
            (name for name in self._takers if name not in taken),
            key=lambda name: (
                self._nodes[name].zone in zones,
                self._held[name],
                -xxh3_64_intdigest(name.encode(), shard),
                name,
            ),
            default=None,
        )

    def _fewer(self, one: PlacedShard, stay: Sequence[str]) -> Placement | None:
        """One copy less, if the others suffice."""
        placement = one.placement
        going = [name for name in placement.copies if name not in stay]
        if not going and len(stay) > self._copies and not one.is_everywhere:
            going = [max(stay, key=lambda name: (name not in one.ready, self._held[name], name))]
        # Those that count for nothing first.
        for name in sorted(going, key=lambda name: (not self._nodes[name].is_dead, name)):
            others = [other for other in stay if other != name]
            ready = [other for other in others if other in one.ready]
            if self._nodes[name].is_dead:
                may_go = bool(ready)
            else:
                may_go = len(ready) >= self._copies and any(o in one.restorable for o in ready)
            if may_go:
                if name in stay:
                    self._held[name] -= 1
                return replace(
                    placement,
                    copies=_without(placement.copies, name),
                    leaving=_without(placement.leaving, name),
                )
        return None

    # -- evenness ------------------------------------------------------------------------

    def _spread(self, at_rest: Sequence[PlacedShard], moves: int) -> Iterator[Placement]:
        left = {one.placement.shard: one.placement for one in at_rest}
        while moves > 0:
            move = self._zone_move(left.values()) or self._even_move(left.values())
            if move is None:
                return
            placement, source, target = move
            del left[placement.shard]
            self._held[source] -= 1
            self._held[target] += 1
            moves -= 1
            yield replace(placement, copies=(*placement.copies, target), leaving=(source,))

    def _zone_move(self, placements: Iterable[Placement]) -> tuple[Placement, str, str] | None:
        """A move after which the copies of a shard are in more zones."""
        reachable = min(self._copies, len(self._zones(self._takers)))
        for placement in placements:
            zones = self._zones(placement.copies)
            if len(zones) >= reachable:
                continue
            best = self._best(placement.shard, placement.copies, placement.copies)
            if best is None or self._nodes[best].zone in zones:
                continue
            counts = Counter(self._nodes[name].zone for name in placement.copies)
            twice = [name for name in placement.copies if counts[self._nodes[name].zone] > 1]
            return placement, max(twice, key=lambda name: (self._held[name], name)), best
        return None

    def _even_move(self, placements: Collection[Placement]) -> tuple[Placement, str, str] | None:
        """A move from a node to one that has at least two fewer; zones do not become fewer."""
        by_count = sorted(self._takers, key=lambda name: (self._held[name], name))
        pairs = sorted(
            product(reversed(by_count), by_count),
            key=lambda pair: self._held[pair[1]] - self._held[pair[0]],
        )
        for source, target in pairs:
            if self._held[source] - self._held[target] < 2:
                return None
            for placement in placements:
                names = placement.copies
                if source not in names or target in names:
                    continue
                after = [target, *_without(names, source)]
                if len(self._zones(after)) >= len(self._zones(names)):
                    return placement, source, target
        return None


def _without(names: Sequence[str], gone: str) -> tuple[str, ...]:
    return tuple(name for name in names if name != gone)
