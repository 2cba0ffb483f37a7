"""Who is to lead which shard: the first of its copies that can. Nothing here waits.

What a shard costs its leader is its weight; who leads more than another could take over without
becoming the busier one, gives the shard to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ..port import Placement
from .plan import PlacedNode, PlacedShard

__all__ = ["CHANGES_MAX", "place_leaders", "weights_of"]

CHANGES_MAX: Final = 2  # of one round
_GAIN: Final = 0.25  # of a shard's weight: what a change has to bring at least


def place_leaders(
    nodes: Mapping[str, PlacedNode], shards: Sequence[PlacedShard]
) -> list[Placement]:
    """Placements with another order of copies, to be written now; none: leaders are well spread.

    Args:
        nodes: by name.
        shards: those whose placement is not being changed otherwise.
    """
    led: dict[int, str] = {}
    load = {name: 0.0 for name, node in nodes.items() if _may_lead(node)}
    for at, one in enumerate(shards):
        able = _able(nodes, one)
        if able:
            led[at] = able[0]
            load[able[0]] += one.weight
    changed: list[Placement] = []
    while len(changed) < CHANGES_MAX:
        best: tuple[float, int, str] | None = None
        for at, leader in led.items():
            weight = shards[at].weight
            for other in _able(nodes, shards[at]):
                gain = load[leader] - load[other] - weight
                if other != leader and gain > _GAIN * weight and (best is None or gain > best[0]):
                    best = gain, at, other
        if best is None:
            break
        _, at, name = best
        load[led.pop(at)] -= shards[at].weight
        load[name] += shards[at].weight
        placement = shards[at].placement
        others = (one for one in placement.copies if one != name)
        changed.append(replace(placement, copies=(name, *others)))
    return changed


def _may_lead(node: PlacedNode) -> bool:
    return node.takes and not node.is_drained


def _able(nodes: Mapping[str, PlacedNode], one: PlacedShard) -> list[str]:
    """Nodes that can lead the shard, in its order."""
    placement = one.placement
    return [
        name
        for name in placement.copies
        if name in one.able and name not in placement.leaving and _may_lead(nodes[name])
    ]


def weights_of(rates: Sequence[float]) -> list[float]:
    """The weight of each shard, from how many entries a second it writes.

    Having a shard costs as much as an average one writes, so idle ones are spread by number.
    """
    total = sum(rates)
    if total <= 0:
        return [1.0] * len(rates)
    return [1.0 + rate * len(rates) / total for rate in rates]
