"""Nodes of a cluster in one process whose stores are folders."""

import asyncio
import time

from support_log_cluster import LogNode

import lodeq
from lodeq.engine.runtime.ids import SeededRng
from lodeq.replication.bootstrap import manifest_digest
from lodeq.replication.port import Checkpoint
from lodeq.replication.replica_note import read_note, write_note

__all__ = ["DiskNode", "patiently"]


class DiskNode:
    """A node whose store is a folder; threads take real time, and no other may pass meanwhile."""

    def __init__(self, cluster, root, name) -> None:
        self.cluster, self.root, self.name = cluster, str(root / name), name
        self.options = cluster.options
        cluster.has_disks = True

    async def open(self):
        self.replicator = self.cluster.replicator(self.name, options=self.options)
        self.engine = await lodeq.open(
            self.root,
            shards=self.cluster.shards,
            clock=self.cluster.clock,
            rng=SeededRng(sum(self.name.encode())),
            replicator=self.replicator,
            inbox=False,
        )
        self.cluster.nodes[self.name] = LogNode(self.name, self.engine, self.replicator)

    async def close(self):
        del self.cluster.nodes[self.name]
        await self.engine.close()

    async def publish(self, folder) -> None:
        """Take a checkpoint, and tell of it."""
        positions = tuple(one.applied for one in self.replicator.status().shards)
        await self.engine.checkpoint(folder)
        note = read_note(self.root)
        assert note is not None
        write_note(folder, note)  # as ``Checkpoints`` does
        now = self.cluster.clock.wall_us() // 1000
        mark = Checkpoint(self.name, f"file://{folder}", manifest_digest(folder), positions, now)
        await self.cluster.outcome(self.replicator.publish(mark))


async def patiently(cluster, holds, within_s=60.0):
    """Let time pass, and threads end, until it holds."""
    give_up = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up, {
            name: node.replicator.status() for name, node in cluster.nodes.items()
        }
        await cluster.step(turns=20)
        await asyncio.to_thread(int)  # a turn of other threads
