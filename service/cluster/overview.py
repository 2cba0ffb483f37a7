"""A cluster as its log has it: asked from anywhere, without a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from ...errors import ShardCountError, UsageError
from ...replication.etcd.address import EtcdAddress
from ...replication.groups import check_groups
from ...replication.port import Checkpoint, Member, Placement, ShardState
from ...replication.report import short_of_copies
from .node import etcd_log

__all__ = ["Overview", "overview", "shards_of_cluster"]


class Overview(NamedTuple):
    """What the log service has of a cluster.

    Attributes:
        cluster: its name.
        members: live nodes, with the positions they reported last.
        shards: leaders, and how far each log goes.
        checkpoints: each node's last one.
        placements: where the copies of shards are; none where every node has every shard.
        copies: how many a shard is to have; 0: one on every node.
    """

    cluster: str
    members: Sequence[Member]
    shards: Sequence[ShardState]
    checkpoints: Sequence[Checkpoint]
    placements: Sequence[Placement] = ()
    copies: int = 0

    @property
    def problem(self) -> str:
        """Which shards have fewer live copies than they should have; empty: none has."""
        return short_of_copies(self.members, len(self.shards), self.copies)

    def document(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return {
            "cluster": self.cluster,
            "members": [asdict(one) for one in self.members],
            "shards": [asdict(one) for one in self.shards],
            "checkpoints": [asdict(one) for one in self.checkpoints],
            "placements": [asdict(one) for one in self.placements],
            "copies": self.copies,
        }


async def overview(address: EtcdAddress) -> Overview:
    """Ask the log.

    Raises:
        UsageError: there is no such cluster.
        LogUnavailableError: the log does not answer.
    """
    log = etcd_log(address)
    try:
        genesis = await log.look()
        if genesis is None:
            raise UsageError(
                f"there is no cluster {address.cluster!r} in this etcd: its first node makes it"
            )
        check_groups(log, genesis)
        return Overview(
            genesis.cluster,
            await log.members(),
            await log.states(),
            await log.checkpoints(),
            await log.placements(),
            genesis.copies,
        )
    finally:
        await log.close()


async def shards_of_cluster(address: EtcdAddress, given: int | None) -> int:
    """The number of shards of a node's store, before it is created.

    Args:
        address: of the log.
        given: what was asked for; None: what the cluster has, or 1 of a cluster that is new.

    Raises:
        ShardCountError: the cluster has another number than ``given``.
        LogUnavailableError: the log does not answer.
    """
    log = etcd_log(address)
    try:
        genesis = await log.look()
    finally:
        await log.close()
    if genesis is None:
        return 1 if given is None else given
    check_groups(log, genesis)
    if given is not None and given != genesis.shards:
        raise ShardCountError(
            f"the cluster {address.cluster!r} has {genesis.shards} shards, not {given}: leave out "
            "--shards",
            stored=genesis.shards,
            requested=given,
        )
    return genesis.shards
