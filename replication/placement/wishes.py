"""What operators want of placements: a copy moved, a node added, removed, or forgotten.

Each is one write to the log, which the balancer then acts on; so it may be asked of any node, and
holds whoever is the balancer.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import UsageError
from ..port import Departure, Placement, SharedLog
from .balancer import HOME

__all__ = ["Wishes"]

TRIES_MAX = 20


class Wishes:
    """The wishes of the operators of one cluster.

    Args:
        log: joined.
        copies: of each shard; 0: every node has one.
    """

    def __init__(self, log: SharedLog, copies: int) -> None:
        self._log = log
        self._copies = copies

    def _check_placed(self, instead: str) -> None:
        if not self._copies:
            raise UsageError(
                "in this cluster every node has a copy of every shard (it was begun without "
                f"copies=): {instead}"
            )

    async def move(self, shard: int, target: str, source: str | None) -> Placement:
        """Move a copy of a shard. Returns its placement, in which both are named.

        Args:
            shard: its index; not 0, of which every node has a copy.
            target: a live node, which gets the copy.
            source: the node that loses its own; None: the one of them that has the most shards.

        Raises:
            UsageError: that is not possible; nothing was changed.
        """
        self._check_placed("nothing can be moved but leaders, with 'lodeq cluster drain'")
        if shard == HOME:
            raise UsageError("every node has a copy of shard 0: it does not move")
        for _ in range(TRIES_MAX):
            placements = {one.shard: one for one in await self._log.placements()}
            placement = placements.get(shard)
            if placement is None:
                raise UsageError(f"there is no shard {shard}, or it has not been placed yet")
            stays = target in placement.copies and target not in placement.leaving
            if stays and source in {None, *placement.leaving}:
                return placement  # it is under way, or done
            await self._check_target(target)
            gone = self._source(placements, placement, target, source)
            copies = placement.copies
            wanted = replace(
                placement,
                copies=copies if target in copies else (*copies, target),
                leaving=tuple(sorted({*placement.leaving, gone} - {target})),
            )
            if await self._log.place(wanted, is_wish=True):
                return wanted
        raise UsageError(f"shard {shard} is being placed by others all the time: try again")

    async def _check_target(self, target: str) -> None:
        live = {one.node for one in await self._log.members()}
        leaving = {one.node for one in await self._log.departures()}
        if target not in live - leaving:
            raise UsageError(
                f"node {target!r} cannot take a copy: the nodes that can are "
                f"{', '.join(sorted(live - leaving)) or 'none'}"
            )

    def _source(
        self,
        placements: dict[int, Placement],
        placement: Placement,
        target: str,
        source: str | None,
    ) -> str:
        able = [one for one in placement.copies if one != target]
        if source is None:
            held = [name for one in placements.values() for name in one.copies]
            stay = [one for one in able if one not in placement.leaving] or able
            return max(stay, key=lambda name: (held.count(name), name))
        if source not in able:
            raise UsageError(
                f"node {source!r} has no copy of shard {placement.shard}: those that have are "
                f"{', '.join(placement.copies)}"
            )
        return source

    async def remove(self, node: str) -> None:
        """Let a node have no copies any more; when it has ended it is forgotten.

        Raises:
            UsageError: too few would be left.
        """
        self._check_placed("stop the node and 'lodeq cluster forget' it")
        leaving = {one.node for one in await self._log.departures()}
        left = {one.node for one in await self._log.members()} - leaving - {node}
        if len(left) < self._copies:
            raise UsageError(
                f"{len(left)} nodes would be left for copies={self._copies}: start another node "
                "first"
            )
        await self._log.depart(Departure(node))

    async def add(self, node: str) -> None:
        """Let a node have copies again. One that was never removed gets its share by itself."""
        self._check_placed("start the node, and it gets its copies by itself")
        await self._log.stay(node)

    async def _remembered(self) -> set[str]:
        """Nodes of which there is something in the log beside their members."""
        return {
            *(name for one in await self._log.placements() for name in one.copies),
            *(one.node for one in await self._log.departures()),
            *(one.node for one in await self._log.checkpoints()),
        }

    async def forget(self, node: str) -> None:
        """A node has ended and will not come back: its copies and its checkpoint do not count.

        Raises:
            UsageError: it lives, or it has the only copy of a shard, or nothing in the log is of a
                node with this name.
        """
        live = {one.node for one in await self._log.members()}
        if node in live:
            raise UsageError(
                f"node {node!r} is there, or was a moment ago: stop it first; 'lodeq cluster "
                "remove' lets a live one give its copies away"
            )
        gone = await self._remembered() - live
        if node not in gone:
            raise UsageError(
                f"no node {node!r} is remembered, or it is forgotten already: nodes that have "
                f"ended and can be forgotten are {', '.join(sorted(gone)) or 'none'}; live are "
                f"{', '.join(sorted(live)) or 'none'}"
            )
        if not self._copies:
            await self._log.forget(node)
            return
        only = [one.shard for one in await self._log.placements() if one.copies == (node,)]
        if only:
            raise UsageError(
                f"node {node!r} has the only copy of shards {', '.join(map(str, only))}: bring it "
                "back, or they are lost"
            )
        await self._log.depart(Departure(node, is_dead=True))
