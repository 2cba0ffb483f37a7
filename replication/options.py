"""How the replication layer of a node behaves in time and in space."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LogOptions"]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Knobs of a ``LogReplicator``. Times are seconds of the engine's clock.

    Attributes:
        poll_s: between two looks at all shards and members; hints come earlier.
        report_s: between two reports of this node's positions.
        rank_s: how much longer each next node in line waits before it campaigns for a shard.
        retry_s, retry_s_max: pause after something failed; doubled up to the second.
        skew_ms: by how much this node's clock may differ from the members' median; a node beyond
            it does not campaign. Three clocks are needed to tell which one is wrong.
        balance_s: between two looks for a shard that a better-placed node should lead, which has to
            be up to date for as long; None: leaders stay where they are.
        lag_max: entries behind which a node is not up to date.
        truncate_s: between two truncations of the shards led here; None: by hand only.
        copies_min: live nodes that must have a checkpoint before what it holds is truncated.
        entries_max, behind_bytes_max: entries kept for nodes that are behind, and their bytes; a
            node further behind has to restore.
        merge_bytes_max: proposals that are waiting become one record up to this size.
        squeeze_share: of the log service's quota, from which logs are truncated as far as they can.
        intake_share: from which enqueues are refused.
        writes_share: from which nothing is written any more.
        away_s: how long a node may be away until its copies are made elsewhere, where shards have a
            number of copies.
        name_s: how much longer than two sessions a node waits for its name until it gives up.
        connect_s: how long an open waits for the log to answer.
        answer_s: how long callers wait for a definite answer when leadership has ended.
        close_s: how long a close waits for what is under way.
    """

    poll_s: float = 0.5
    report_s: float = 1.0
    rank_s: float = 0.1
    retry_s: float = 0.1
    retry_s_max: float = 5.0
    skew_ms: int = 500
    balance_s: float | None = 10.0
    lag_max: int = 256
    truncate_s: float | None = 10.0
    copies_min: int = 2
    entries_max: int = 1_000_000
    behind_bytes_max: int = 1 << 30
    merge_bytes_max: int = 256 << 10
    squeeze_share: float = 0.5
    intake_share: float = 0.7
    writes_share: float = 0.85
    away_s: float = 300.0
    name_s: float = 3.0
    connect_s: float = 10.0
    answer_s: float = 1.0
    close_s: float = 0.4
