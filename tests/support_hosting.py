"""Nodes of which each has some of the shards, over the log of ``support_replication``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from support_replication import Cluster, Node

from lodeq.coalescer.replicator import Entry
from lodeq.engine.runtime.ids import SeededRng
from lodeq.repository.api.open import OpenHandle, open_in_memory

__all__ = ["Half", "HostingCluster", "HostingNode"]


class HostingNode(Node):
    """A ``Replicator`` that is a ``Hosting`` as well."""

    def __init__(self, cluster: Cluster, name: str, hosted: Collection[int]) -> None:
        super().__init__(cluster, name)
        self.hosted = set(hosted)

    def hosts(self, shard: int) -> bool:
        return shard in self.hosted

    def member_urls(self) -> Sequence[str]:
        return sorted(self.cluster.nodes)

    def hear(self, entry: Entry) -> None:
        if entry.shard in self.hosted:
            super().hear(entry)

    def catch_up(self) -> None:
        assert self.replica is not None
        for shard in self.hosted:
            for entry in self.cluster.logs[shard][self.replica.applied(shard).index :]:
                self.replica.apply(entry)

    async def host(self, shard: int) -> None:
        """Take part in a shard, and follow it."""
        assert self.replica is not None
        await self.replica.host(shard)
        self.hosted.add(shard)
        self.catch_up()

    async def unhost(self, shard: int) -> None:
        """Let a shard go."""
        assert self.replica is not None
        self.hosted.discard(shard)
        await self.replica.unhost(shard)


class HostingCluster(Cluster):
    """The logs, and nodes that have some of the shards."""

    nodes: dict[str, HostingNode]  # type: ignore[assignment]

    def hosting(self, name: str, hosted: Collection[int]) -> HostingNode:
        """A new node that has these shards when it is opened."""
        node = self.nodes[name] = HostingNode(self, name, hosted)
        return node

    def open_some(self, name: str, hosted: Collection[int], **options: Any) -> OpenHandle:
        """An engine in memory that has these shards."""
        options.setdefault("rng", SeededRng(sum(name.encode())))
        return open_in_memory(replicator=self.hosting(name, hosted), **options)


class Half:
    """A ``Hosting`` without a replicator: this process has these shards, ``other`` the rest."""

    def __init__(self, hosted: Collection[int], other: str = "http://other") -> None:
        self.hosted = set(hosted)
        self.other = other

    def hosts(self, shard: int) -> bool:
        return shard in self.hosted

    def leader(self, shard: int) -> str | None:
        return self.other

    def member_urls(self) -> Sequence[str]:
        return [self.other]
