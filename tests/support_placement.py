"""A cluster in memory whose shards have copies on some of its nodes."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from support_behaviour import sound
from support_log_cluster import LogCluster, LogNode
from support_replication import OWN

from lodeq.errors import NotLeaderError
from lodeq.replication.options import LogOptions
from lodeq.replication.port import Placement

__all__ = ["HOME", "PlacedCluster"]

HOME = 0  # the shard that every node has


class PlacedCluster(LogCluster):
    """The log, and the nodes that are open."""

    def __init__(self, *given: Any, shards: int = 6, copies: int = 2, **more: Any) -> None:
        super().__init__(*given, **more)
        self.shards = shards
        self.copies = copies
        self.options = LogOptions(away_s=5.0, balance_s=2.0)

    async def open(self, name: str, **given: Any) -> LogNode:
        given.setdefault("options", self.options)
        return await super().open(name, **given)

    def replicator(self, name: str, **given: Any) -> Any:
        return super().replicator(name, copies=self.copies, **given)

    async def stop(self, name: str) -> None:
        """Close a node for good: what it had is gone with it."""
        node = self.nodes.pop(name)
        closing = asyncio.ensure_future(node.engine.close())
        await self.until(closing.done)
        closing.result()

    def crash(self, name: str) -> None:
        """A node dies at once, and its disk with it; the log hears of that by its session's end."""
        log = self.nodes.pop(name).replicator.log
        self.network._frozen.pop(name, None)  # what it has sent is gone with it
        log._is_closed, log._until = True, 0.0
        for future in log._asked:
            if not future.done():
                future.set_result(None)

    # -- looking -----------------------------------------------------------------------

    def placements(self) -> dict[int, Placement]:
        return {one.shard: one for one in self.log.service.placements()}

    def placed(self, name: str) -> list[int]:
        """Shards of which the node is to have a copy."""
        return [shard for shard, one in self.placements().items() if name in one.copies]

    def hosted(self, name: str) -> list[int]:
        """Shards of which its engine has a copy."""
        return [shard.index for shard in self.nodes[name].engine._state.hosted]

    def copies_of(self, shard: int) -> list[str]:
        """Nodes whose engine has a copy."""
        return [name for name in self.nodes if shard in self.hosted(name)]

    def held(self) -> Counter:
        """How many shards but that of all each node is to have."""
        placements = self.placements().values()
        return Counter(n for one in placements if one.shard != HOME for n in one.copies)

    def is_read(self, names: Iterable[str] | None = None) -> bool:
        """Whether every copy, or every one of these nodes, has what the log has."""
        tails, names = self.tails(), set(self.nodes if names is None else names)
        return all(
            self.nodes[name].replicator.status().shards[shard].applied == tails[shard]
            for shard in range(self.shards)
            for name in names.intersection(self.copies_of(shard))
        )

    def is_at_rest(self) -> bool:
        """Whether every shard has its copies, where they are to be, and all is up to date."""
        placements = self.placements()
        if len(placements) < self.shards or any(one.leaving for one in placements.values()):
            return False
        wanted = min(self.copies, len(self.nodes))
        for shard, one in placements.items():
            if shard != HOME and len(one.copies) != wanted:
                return False
            if sorted(self.copies_of(shard)) != sorted({*one.copies} if shard else self.nodes):
                return False
        held = [self.held()[name] for name in self.nodes]
        is_even = max(held) - min(held) <= 1
        return is_even and self.is_read() and all(map(self.leader, range(self.shards)))

    async def until_at_rest(self, within_s: float = 120.0) -> float:
        try:
            return await self.until(self.is_at_rest, within_s)
        except AssertionError as error:
            where = {name: self.hosted(name) for name in self.nodes}
            raise AssertionError(f"{self.placements()}; {where}; {error}") from error

    async def check_rows(self) -> None:
        """All copies of a shard have the same rows, as soon as followers have read to the end."""
        await self.until(self.is_read)
        for node in self.nodes.values():
            await sound(node.engine)
        for shard in range(self.shards):
            found = {
                name: _rows(self.nodes[name].engine._state.shards[shard].store)
                for name in self.copies_of(shard)
            }
            first, *others = found.values()
            assert all(one == first for one in others), (shard, [*found])

    # -- calls, as a client makes them ---------------------------------------------------

    async def call(self, do: Any, within_s: float = 30.0) -> Any:
        """Try ``do(engine)`` at node after node, while time passes; what the first gives."""
        give_up = self.clock.mono() + within_s
        while True:
            for node in list(self.nodes.values()):
                found = await self.outcome(do(node.engine))
                if not isinstance(found, NotLeaderError):
                    return found
            assert self.clock.mono() < give_up, found
            await self.pass_time(0.1)


def _rows(store: Any) -> dict[bytes, bytes]:
    pairs = dict(store.scan(b"", b"\xff", 1 << 30))
    return {key: raw for key, raw in pairs.items() if key not in OWN}
