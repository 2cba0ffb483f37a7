"""What a node says of its cluster: for the command line, the dashboard and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from .port import NO_COPY, Member

__all__ = ["ClusterStatus", "ShardStatus"]


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard, as a node sees it.

    Attributes:
        shard: its index.
        role: of this node: following, elected, leading, leaving, stopped, or absent (no copy).
        leader: the node that leads; None: nobody, or not known, as when the log does not answer.
        term: of that leader; 0 without one.
        last: index of the last entry in the log, as last seen.
        applied: of the last entry applied here; -1 without a copy.
        durable: of the last one that survives a power cut here; -1 without a copy.
        floor: first index still in the log.
        behind_floor: the floor this replica is behind: it has to be restored; 0: it is not.
        problem: why it does not follow, or cannot lead; None: nothing is wrong.
        copies: nodes that have a copy, or are to have one, where shards are placed.
        leaving: those of them that are to lose theirs.
    """

    shard: int
    role: str
    leader: str | None
    term: int
    last: int
    applied: int
    durable: int
    floor: int
    behind_floor: int
    problem: str | None
    copies: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()

    @property
    def lag(self) -> int:
        """How many entries this replica has yet to apply; 0 without a copy."""
        return max(0, self.last - self.applied) if self.applied != NO_COPY else 0


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The cluster, as one node sees it.

    Attributes:
        cluster: its name.
        node: who says this.
        session_s: seconds for which this node's session still holds; 0: it has none.
        skew_ms: how far this node's clock is ahead of the members' median.
        members: the live nodes, by name, with the positions they reported last.
        shards: by index.
        problems: what an operator has to know, in words.
        copies: how many a shard is to have; 0: one on every node.
        is_balancer: whether this node changes placements.
    """

    cluster: str
    node: str
    session_s: float
    skew_ms: float
    members: tuple[Member, ...]
    shards: tuple[ShardStatus, ...]
    problems: tuple[str, ...]
    copies: int = 0
    is_balancer: bool = False
