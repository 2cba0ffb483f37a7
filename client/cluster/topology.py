"""What a client knows of its cluster: who is there, and who leads which shard.

Nodes are told apart by ``address.identity_of``. Only those are *known* that the user gave, or that
the member list of a known node has. A refusal names a leader, too, but it is followed only if it is
known: else whoever can forge or provoke a refusal would be sent the token.

A node that is silent is *doubted* for a while: whatever another can do is not asked of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...engine.runtime.ids import shard_of, shard_of_slot, slot_of
from ...errors import UsageError
from .address import NODES_MAX, identity_of, node_url

__all__ = ["Topology"]


class Topology:
    """The nodes and leaders of one cluster, as far as they are known.

    Attributes:
        shards: how many there are; 0 before the first map.
        urls: addresses of the known nodes, by identity.
        is_stale: whether something has shown that the map is old.
        read_at: ``mono`` of the last map.
    """

    def __init__(self, given: Iterable[str]) -> None:
        self.urls: dict[str, str] = {identity_of(url): url for url in given}
        self._given = frozenset(self.urls)
        self.shards = 0
        self.is_stale = True
        self.read_at = float("-inf")
        self._leaders: list[str | None] = []
        self._leading: list[str] | None = None  # who leads something, sorted; None: not known yet
        self._doubts: dict[str, float] = {}  # nodes that are silent, and until when that counts

    def take(self, doc: Mapping[str, Any], teller: str) -> None:
        """Learn from the map of a known node.

        Args:
            doc: the answer of ``GET /cluster``.
            teller: identity of the node that gave it.

        Raises:
            UsageError: it is of a store with another number of shards.
        """
        shards = doc["shards"]
        if self.shards not in (0, shards):
            raise UsageError(
                f"{self.urls[teller]} has {shards} shards, the others have {self.shards}: these "
                "are nodes of different stores"
            )
        if not self.shards:
            self.shards = shards
            self._leaders = [None] * shards
        self._doubts.pop(teller, None)
        for member in doc["members"]:
            if len(self.urls) < NODES_MAX:
                self.urls.setdefault(identity_of(member), node_url(member))
        for shard, leader in enumerate(self._told(doc, teller)):
            if leader is not None or self._leaders[shard] == teller:
                self._leaders[shard] = leader
        self._leading = None

    def _told(self, doc: Mapping[str, Any], teller: str) -> list[str | None]:
        """The leaders by shard that a map names; None: none, or a stranger."""
        led = set(doc["led"])
        return [
            teller if shard in led else self.known(leader)
            for shard, leader in enumerate(doc["leaders"])
        ]

    def known(self, url: str | None) -> str | None:
        """The identity of a node that is known; None: it is a stranger."""
        if url is None:
            return None
        found = identity_of(url)
        return found if found in self.urls else None

    def tellers(self) -> list[str]:
        """Nodes to ask for the map: leaders first, then those given, the others, the silent."""
        nodes = dict.fromkeys([*self.by_leader(), *self._given, *self.urls])
        return sorted(nodes, key=self._doubts.__contains__)

    def is_whole(self) -> bool:
        """Whether every shard's leader is known."""
        return bool(self._leaders) and None not in self._leaders

    # -- leaders -----------------------------------------------------------------------

    def shard_of(self, task_id: bytes) -> int:
        """The shard of a task or workflow."""
        return shard_of(task_id, self.shards)

    def shard_of_key(self, routing: bytes) -> int:
        """The shard of what has a key; ``routing``: the key, of a dedup key with its queue."""
        return shard_of_slot(slot_of(routing), self.shards)

    def leader(self, shard: int) -> str | None:
        """The identity of a shard's leader, as far as it is known."""
        return self._leaders[shard]

    def leading(self) -> list[str]:
        """The nodes that lead something, in one order; those in doubt only if there is no other."""
        found = self._leading
        if found is None:
            found = sorted({one for one in self._leaders if one is not None})
            sure = [one for one in found if one not in self._doubts]
            found = self._leading = sure or found
        return found

    def by_leader(self, shards: Iterable[int] | None = None) -> dict[str, list[int]]:
        """Shards by leader, those without one left out; None: all."""
        found: dict[str, list[int]] = {}
        for shard in range(self.shards) if shards is None else shards:
            leader = self._leaders[shard]
            if leader is not None:
                found.setdefault(leader, []).append(shard)
        return found

    def refused(self, node: str, shards: Sequence[int], leader: str | None) -> None:
        """A node has said that it does not lead one of these shards, and who does.

        Args:
            node: its identity.
            shards: that it was asked about; the leader is that of all only if it is one.
            leader: as the refusal names it.
        """
        self.is_stale = True
        if len(shards) == 1 and self._leaders[shards[0]] == node:
            self._leaders[shards[0]] = self.known(leader)
            self._leading = None

    def lost(self, node: str) -> None:
        """A node does not answer: whoever takes over is to be asked for."""
        self.is_stale = True
        self._leaders = [None if leader == node else leader for leader in self._leaders]
        self._leading = None

    # -- silence -----------------------------------------------------------------------

    def doubt(self, node: str, until: float) -> None:
        """A node is silent: pass it over until then (``mono``), where another will do."""
        self._doubts[node] = until
        self._leading = None

    def is_doubted(self, node: str) -> bool:
        """Whether a node was silent of late."""
        return node in self._doubts

    def end_doubts(self, now: float) -> None:
        """Forget the doubts whose time is over at ``now`` (``mono``)."""
        for node, until in list(self._doubts.items()):
            if until <= now:
                self._doubts.pop(node, None)
                self._leading = None

    def is_superseded(self, node: str, doc: Mapping[str, Any], teller: str) -> bool:
        """Whether a map says that a node leads nothing, and others lead what it led, if it led any.

        Args:
            node: its identity.
            doc: the map, of another node.
            teller: identity of that node.
        """
        told = self._told(doc, teller)
        was_led = [one for one, leader in zip(told, self._leaders, strict=False) if leader == node]
        return node not in told and (not was_led or was_led.count(None) < len(was_led))
