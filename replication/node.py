"""What the parts of one node's replication layer share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..coalescer.replicator import Replica
from ..engine.runtime.ids import Rng
from .members import Members
from .options import LogOptions
from .port import LogUnavailableError, ShardState, SharedLog
from .waiting import Waiting

__all__ = ["Node"]


@dataclass(slots=True)
class Node:
    """One node: its engine, its connection to the log, and what stops it.

    Attributes:
        name: unique in the cluster.
        log: its connection.
        replica: its engine.
        waiting: its loop and clock.
        options: how it behaves.
        rng: draws the nonces of records.
        members: the others.
        stop: called when this node must not follow the log any more, with the reason.
        groups: the log services of the cluster, the first one first; see ``groups``.
        joined: groups in which it has a session.
        is_closing: it takes part in no election any more.
        is_drained: an operator wants it to lead nothing for now.
        hosted: shards of which it has a copy; None: of all.
        pins: by shard of which a copy is being made, the entry behind which the log has to stay.
        suspects: nodes whose address refuses this node's connections; see ``probe``.
        is_log_full: the log's store has no room for anything more.
        level: the feature level that its entries are written at.
        began_ms: wall clock when it was made.
        stopped: why it does not follow the log; None: it does.
    """

    name: str
    log: SharedLog
    replica: Replica
    waiting: Waiting
    options: LogOptions
    rng: Rng
    members: Members
    stop: Callable[[BaseException], None]
    groups: Sequence[SharedLog]
    joined: set[int] = field(default_factory=set)
    is_closing: bool = False
    is_drained: bool = False
    is_log_full: bool = False
    hosted: set[int] | None = None
    pins: dict[int, int] = field(default_factory=dict)
    level: int = 1
    began_ms: int = field(init=False)
    suspects: frozenset[str] = frozenset()
    stopped: BaseException | None = None
    problems: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began_ms = self.waiting.clock.wall_us() // 1000

    def hosts(self, shard: int) -> bool:
        """Whether this node has a copy of ``shard``."""
        return self.hosted is None or shard in self.hosted

    def mono(self) -> float:
        """Now, in seconds."""
        return self.waiting.clock.mono()

    @property
    def has_joined(self) -> bool:
        """Whether it is a member: it has a session in the first group."""
        return 0 in self.joined

    def has_session(self, shard: int = 0) -> bool:
        """Whether no other node can have been elected in place of this one for ``shard``."""
        group = shard % len(self.groups)
        return group in self.joined and self.mono() < self.groups[group].session_until()

    def may_campaign(self, shard: int = 0) -> bool:
        """Whether this node takes part in elections of a shard."""
        if self.is_closing or self.is_drained or self.is_log_full or self.stopped is not None:
            return False
        return self.has_session(shard) and self.check_clock()

    async def states(self) -> list[ShardState]:
        """All shards whose group answers."""
        count, found = len(self.groups), list[ShardState]()
        for number, log in enumerate(self.groups):
            try:
                found += (await log.states())[number::count]
            except LogUnavailableError:
                continue  # its shards are as they are
        return found

    def check_clock(self) -> bool:
        """Whether this node's clock may be right; ``problems`` say if it is known to be wrong."""
        skew, allowed = self.members.skew_ms(), self.options.skew_ms
        self.problems.pop("clock", None)
        if abs(skew) <= allowed:
            return True
        if skew < 0 or self.members.least_skew_ms() > allowed:  # late news makes it seem ahead
            self.problems["clock"] = (
                f"the clock of this node differs by {skew:+.0f} ms from the members' median, and "
                f"{allowed} ms are allowed: it leads nothing until that is put right"
            )
        return False
