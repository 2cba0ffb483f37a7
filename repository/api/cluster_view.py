"""The cluster as one of its nodes sees it: who leads which shard, and who is there.

A store without a replicator is a cluster of one node, which leads all its shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from ...coalescer.hosting import StubCoalescer
from ...coalescer.replicated import ReplicatedCoalescer
from ..state.engine_state import EngineState

__all__ = ["ClusterMap", "NamesFront", "NamesMembers", "cluster_map"]


@runtime_checkable
class NamesMembers(Protocol):
    """A ``Replicator``, or a ``Hosting``, that knows who is there."""

    def member_urls(self) -> Sequence[str]:
        """Where clients reach the nodes that are there, this one too; those that say it."""


@runtime_checkable
class NamesFront(NamesMembers, Protocol):
    """A ``Hosting`` whose members are processes below one supervisor.

    Attributes:
        front_url: where clients reach the supervisor.
    """

    front_url: str


class ClusterMap(NamedTuple):
    """A cluster, as one of its nodes knows it.

    Attributes:
        shards: how many there are.
        led: indexes of those that this node leads.
        leaders: by shard, where clients reach its leader; None: not known, or this node.
        members: where clients reach the nodes, as far as this one knows.
        now_us: its wall clock in microseconds.
        seq: the latest sequence number that it has given, or would give now.
        hosted: indexes of those that this node has, led or not.
    """

    shards: int
    led: Sequence[int]
    leaders: Sequence[str | None]
    members: Sequence[str]
    now_us: int
    seq: int
    hosted: Sequence[int]


def cluster_map(state: EngineState, replicator: NamesMembers | None) -> ClusterMap:
    """The cluster as this engine knows it."""
    led: list[int] = []
    leaders: list[str | None] = []
    for shard in state.shards:
        if not shard.coalescer.is_following:
            led.append(shard.index)
            leaders.append(None)
        elif isinstance(shard.coalescer, ReplicatedCoalescer | StubCoalescer):
            leaders.append(shard.coalescer.not_leader().leader)
        else:
            leaders.append(None)
    known = set() if replicator is None else set(replicator.member_urls())
    known |= {leader for leader in leaders if leader is not None}
    now_us = state.clock.wall_us()
    seq = max(state.seq, now_us)
    hosted = [shard.index for shard in state.hosted]
    return ClusterMap(len(state.shards), led, leaders, sorted(known), now_us, seq, hosted)
