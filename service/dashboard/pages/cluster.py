"""The page of a replica's cluster: nodes, shards, leaders, checkpoints, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ....errors import TaskNotFoundError
from ....replication.port import NO_COPY, Checkpoint, Member
from ....replication.status import ClusterStatus, ShardStatus
from ...shared.replica import LogLook, is_replica, replica_status
from ..remote import RemoteView
from ..source import Source

__all__ = ["ClusterPage", "NodeLine"]

SHARDS_MAX: Final = 256


class NodeLine(NamedTuple):
    """A row of the table of nodes.

    Attributes:
        name, url, zone, version: as the node says; empty of one that is not live.
        is_live: whether it has a session.
        is_drained: an operator wants it to lead nothing for now.
        leads: number of shards.
        lag: entries behind, over all shards; None: not known.
        checkpoint_age_s: of its last checkpoint; None: it has none, or that is not known.
    """

    name: str
    url: str
    zone: str
    version: str
    is_live: bool
    is_drained: bool
    leads: int
    lag: int | None
    checkpoint_age_s: float | None


class ClusterPage:
    """What the page shows of one engine; ``is_there``: whether there is such a page."""

    def __init__(self, view: Source) -> None:
        # A client knows nothing of this: it sees a whole cluster, and no node of it.
        self._view = None if isinstance(view, RemoteView) or not is_replica(view) else view
        self._log = None if self._view is None else LogLook(self._view)

    @property
    def is_there(self) -> bool:
        """Whether the store is a replica of this process."""
        return self._view is not None

    async def page(self) -> dict[str, Any]:
        """The context of the template.

        Raises:
            TaskNotFoundError: the store is no replica.
        """
        view, log = self._view, self._log
        status = None if view is None else replica_status(view)
        if view is None or log is None or status is None:
            raise TaskNotFoundError("this store is no node of a cluster, or seen through a client")
        facts = await log.recent()
        checkpoints = () if facts is None else facts.checkpoints
        return {
            "status": status,
            "led": sum(one.role == "leading" for one in status.shards),
            "leaderless": sum(one.leader is None for one in status.shards),
            "space": None if facts is None else facts.space,
            "is_asked": facts is not None,
            "nodes": _nodes(status, checkpoints, view.clock.wall_us() / 1e6),
            "shards": _shards(status),
            "shards_left_out": len(status.shards) - SHARDS_MAX,
        }


def _nodes(
    status: ClusterStatus, checkpoints: Sequence[Checkpoint], now_s: float
) -> list[NodeLine]:
    """Live nodes, and those that are gone but have a checkpoint, by name."""
    live = {one.node: one for one in status.members}
    leads = Counter(one.leader for one in status.shards)
    ages = {one.node: max(0.0, now_s - one.created_ms / 1000) for one in checkpoints}
    return [
        NodeLine(
            name,
            *_told(live.get(name)),
            leads[name],
            _lag(status, live.get(name)),
            ages.get(name),
        )
        for name in sorted(live.keys() | ages.keys())
    ]


def _told(member: Member | None) -> tuple[str, str, str, bool, bool]:
    if member is None:
        return "", "", "", False, False
    return member.url, member.zone, member.version, True, member.is_drained


def _lag(status: ClusterStatus, member: Member | None) -> int | None:
    if member is None:
        return None
    if member.node == status.node:
        return sum(one.lag for one in status.shards)  # fresher than what it has reported
    pairs = zip(status.shards, member.applied, strict=False)
    return sum(max(0, one.last - applied) for one, applied in pairs if applied != NO_COPY)


def _shards(status: ClusterStatus) -> list[ShardStatus]:
    """As many as fit; where there are more, those without a leader or behind come first."""
    if len(status.shards) <= SHARDS_MAX:
        return list(status.shards)
    worst = sorted(status.shards, key=lambda one: (one.leader is not None, -one.lag, one.shard))
    return sorted(worst[:SHARDS_MAX], key=lambda one: one.shard)
