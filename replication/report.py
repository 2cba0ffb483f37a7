"""Reports of one node about itself and its cluster: to the others, and to operators.

Nothing here waits, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from .node import Node
from .port import NO_COPY, Member
from .shard_replica import Role, ShardReplica
from .status import ClusterStatus, ShardStatus

__all__ = [
    "failures_of",
    "member_of",
    "no_session",
    "problems_of",
    "session_key",
    "short_of_copies",
    "status_of",
]

_SHOWN_MAX: Final = 20  # shards in one message


def member_of(node: Node, shards: Sequence[ShardReplica], *, url: str, zone: str) -> Member:
    """The member that a node reports.

    Args:
        node: whose report it is.
        shards: all of them, by index.
        url: where clients reach it; empty: nowhere.
        zone: its failure domain.
    """
    applied, durable = list[int](), list[int]()
    for one in shards:
        is_here = not one.is_going
        # The log is kept for a copy that has stopped, and nobody counts on it.
        is_current = is_here and one.role is not Role.STOPPED
        applied.append(node.replica.applied(one.shard).index if is_current else NO_COPY)
        pin = node.pins.get(one.shard, NO_COPY)
        durable.append(node.replica.durable(one.shard) if is_here else pin)
    return Member(
        node.name,
        url,
        _version(),
        zone,
        node.waiting.clock.wall_us() // 1000,
        tuple(applied),
        tuple(durable),
        node.is_drained,
        tuple(sorted(node.suspects)),
        max((one.version for one in (node.members.placements or {}).values()), default=0),
        _may_lead(node, shards),
        node.began_ms,
    )


def _may_lead(node: Node, shards: Sequence[ShardReplica]) -> bool:
    if node.stopped is not None or not node.check_clock():
        return False
    # A member has a session in the first group.
    if not all(node.has_session(group) for group in range(1, len(node.groups))):
        return False
    return all(one.may_lead for one in shards if one.role is not Role.ABSENT)


def problems_of(node: Node, shards: Sequence[ShardReplica], copies: int) -> tuple[str, ...]:
    """List the node's problems, in words for an operator; empty: there are none.

    Args:
        node: who says it.
        shards: all of them, by index.
        copies: that each shard is to have; 0: one on every node.
    """
    found = dict.fromkeys(node.problems.values())
    found |= dict.fromkeys(failures_of(node, shards))
    if short := short_of_copies(list(node.members.by_name.values()), len(shards), copies):
        found[short] = None
    return tuple(found)


def failures_of(node: Node, shards: Sequence[ShardReplica]) -> tuple[str, ...]:
    """List those problems that keep this node from its own work; empty: it does it.

    Args:
        node: who says it.
        shards: all of them, by index.
    """
    if node.stopped is not None:
        return (str(node.stopped),)
    found: dict[str, None] = {}
    for group in range(0 if node.is_closing else len(node.groups)):
        if not node.has_session(group):
            found[node.problems.get(session_key(group)) or no_session(node, group)] = None
    if not node.check_clock() and (problem := node.problems.get("clock")):
        found[problem] = None
    for shard in shards:
        if shard.problem is not None:
            found[shard.problem] = None
        if shard.behind_floor:
            found[
                f"shard {shard.shard}: behind the floor: the log begins at entry "
                f"{shard.behind_floor}, and this replica has {shard.delivered}: close the "
                "store and open it again, which restores a checkpoint"
            ] = None
    return tuple(found)


def session_key(group: int) -> str:
    """Where a node notes why it has no session in a group of the log."""
    return f"name-{group}"


def no_session(node: Node, group: int) -> str:
    """Say that a node has no session in a group of the log."""
    which = f"group {group} of the log" if len(node.groups) > 1 else "the log"
    return f"no session with {which}, so it leads nothing there"


def short_of_copies(members: Sequence[Member], shards: int, copies: int) -> str:
    """Say which shards have fewer live copies than they should have; empty: none has.

    Args:
        members: the live nodes.
        shards: how many there are.
        copies: that each is to have; 0: one on every node.
    """
    live = [one for one in members if len(one.applied) == shards]
    short = [
        shard
        for shard in (range(shards) if copies else ())
        if sum(one.applied[shard] != NO_COPY for one in live) < copies
    ]
    if not short:
        return ""
    return (
        f"shards {', '.join(map(str, short[:_SHOWN_MAX]))}: fewer live copies than they "
        "should have: copies are being made, or too few nodes are there"
    )


def status_of(
    node: Node, shards: Sequence[ShardReplica], cluster: str, copies: int, *, is_balancer: bool
) -> ClusterStatus:
    """The cluster as a node sees it.

    Args:
        node: who says it.
        shards: all of them, by index.
        cluster: its name.
        copies: that each shard is to have; 0: one on every node.
        is_balancer: whether the node changes placements.
    """
    left_s = max(0.0, node.log.session_until() - node.mono()) if node.has_joined else 0.0
    return ClusterStatus(
        cluster,
        node.name,
        left_s,
        node.members.skew_ms(),
        tuple(node.members.by_name[name] for name in sorted(node.members.by_name)),
        tuple(_shard_status(node, shard) for shard in shards),
        problems_of(node, shards, copies),
        copies,
        is_balancer,
    )


def _shard_status(node: Node, one: ShardReplica) -> ShardStatus:
    replica, seen, leads = node.replica, one.seen, one.holds_term
    is_here = one.role is not Role.ABSENT
    placed = (node.members.placements or {}).get(one.shard)
    return ShardStatus(
        one.shard,
        one.role.value,
        one.leader,
        one.proposals.term if leads else 0 if one.leader is None else seen.term,
        max(seen.last, one.proposals.last if leads else one.delivered),
        replica.applied(one.shard).index if is_here else NO_COPY,
        replica.durable(one.shard) if is_here else NO_COPY,
        seen.floor,
        one.behind_floor,
        one.problem,
        () if placed is None else placed.copies,
        () if placed is None else placed.leaving,
    )


@cache
def _version() -> str:
    try:
        return version("lodeq")
    except PackageNotFoundError:  # run from a folder
        return ""
