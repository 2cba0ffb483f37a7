"""Log groups: one cluster over several log services, each with the logs of some of the shards.

What one log service can carry bounds the writes of a cluster. So a cluster may have several: shard
``s`` has its log in group ``s`` modulo their number. Nothing links two shards, so the protocol of a
shard is the same. The first group has what there is once: members, placements, checkpoints. A node
has a session in each group, and leads a shard by the session of the shard's own: where one group is
away the shards of the others go on.

How many groups there are, and which is which, is in the genesis of each: a node that was given
other addresses, or the same in another order, does not take part.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ..errors import LodeqError, UsageError
from .port import (
    Change,
    Checkpoint,
    Departure,
    Genesis,
    LogSpace,
    LogUnavailableError,
    Member,
    Placement,
    Position,
    ShardState,
    SharedLog,
    Term,
)
from .record import LogRecord

__all__ = ["GROUPS_MAX", "LogGroups", "check_groups", "groups_of"]

GROUPS_MAX = 16
T = TypeVar("T")


def groups_of(log: SharedLog) -> Sequence[SharedLog]:
    """The log services that a connection leads to, the first one first."""
    return log.groups if isinstance(log, LogGroups) else (log,)


def check_groups(log: SharedLog, genesis: Genesis) -> None:
    """Check that a connection leads to all groups of a cluster, the first one first.

    Raises:
        UsageError: it does not.
    """
    count = len(groups_of(log))
    if (genesis.group, genesis.groups) != (0, count):
        raise UsageError(
            f"this log is group {genesis.group} of the {genesis.groups} of the cluster "
            f"{genesis.cluster!r}, and {count} were given: give all of them, in the order in which "
            "the cluster was begun"
        )


class LogGroups:
    """Connections to all groups of a cluster, as one ``SharedLog``.

    Calls about one shard go to its group. ``LogReplicator`` keeps sessions, watches and looks at
    the groups one by one. Room is that of the groups that answer; what else asks all of them fails
    if one does.

    Args:
        groups: 2 to 16 connections; the first is that of the first group.
    """

    def __init__(self, groups: Sequence[SharedLog]) -> None:
        if not 2 <= len(groups) <= GROUPS_MAX:
            raise UsageError(f"{len(groups)} log groups: name 2 to {GROUPS_MAX}, or a single log")
        self.groups = tuple(groups)
        self.session_s = max(one.session_s for one in groups)
        self.record_bytes_max = min(one.record_bytes_max for one in groups)
        self._first = groups[0]

    def _of(self, shard: int) -> SharedLog:
        return self.groups[shard % len(self.groups)]

    # -- the cluster ---------------------------------------------------------------------

    def position(self) -> Position:
        """That of the first group; ``LogReplicator`` notes those of the others."""
        return self._first.position()

    def check_position(self, noted: Position) -> None:
        """See ``SharedLog.check_position``: of the first group."""
        self._first.check_position(noted)

    async def connect(self, genesis: Genesis) -> Genesis:
        """See ``SharedLog.connect``. The genesis of each group is that of the first, numbered.

        Raises:
            UsageError: a group is that of another cluster, or has another number.
        """
        held = await self._first.connect(replace(genesis, groups=len(self.groups)))
        for number, one in enumerate(self.groups[1:], 1):
            wanted = replace(held, group=number)
            found = await one.connect(wanted)
            if found != wanted:
                raise UsageError(
                    f"log group {number} is group {found.group} of {found.groups} of the cluster "
                    f"{found.cluster!r} of nonce {found.nonce.hex()}, not of {held.nonce.hex()}: "
                    "give the groups in the order in which the cluster was begun"
                )
        return held

    async def look(self) -> Genesis | None:
        """See ``SharedLog.look``."""
        for one in self.groups[1:]:
            await one.look()
        return await self._first.look()

    async def join(self, member: Member) -> None:
        """Begin a session in each group."""
        for one in self.groups:
            await one.join(member)

    def session_until(self) -> float:
        """See ``SharedLog.session_until``: of the first group, whose members count."""
        return self._first.session_until()

    async def report(self, member: Member) -> None:
        """See ``SharedLog.report``."""
        await self._first.report(member)

    async def members(self) -> list[Member]:
        """See ``SharedLog.members``."""
        return await self._first.members()

    async def publish(self, checkpoint: Checkpoint) -> None:
        """See ``SharedLog.publish``."""
        await self._first.publish(checkpoint)

    async def checkpoints(self) -> Sequence[Checkpoint]:
        """See ``SharedLog.checkpoints``."""
        return await self._first.checkpoints()

    async def placements(self) -> list[Placement]:
        """See ``SharedLog.placements``."""
        return await self._first.placements()

    async def become_balancer(self) -> bool:
        """See ``SharedLog.become_balancer``."""
        return await self._first.become_balancer()

    async def place(self, placement: Placement, *, is_wish: bool = False) -> bool:
        """See ``SharedLog.place``."""
        return await self._first.place(placement, is_wish=is_wish)

    async def departures(self) -> list[Departure]:
        """See ``SharedLog.departures``."""
        return await self._first.departures()

    async def depart(self, departure: Departure) -> None:
        """See ``SharedLog.depart``."""
        await self._first.depart(departure)

    async def stay(self, node: str) -> None:
        """See ``SharedLog.stay``."""
        await self._first.stay(node)

    async def forget(self, node: str) -> None:
        """See ``SharedLog.forget``."""
        await self._first.forget(node)

    # -- one shard -----------------------------------------------------------------------

    async def campaign(self, shard: int) -> Term | None:
        """See ``SharedLog.campaign``."""
        return await self._of(shard).campaign(shard)

    async def resign(self, shard: int, term: int) -> None:
        """See ``SharedLog.resign``."""
        await self._of(shard).resign(shard, term)

    async def depose(self, shard: int, term: int, *, fenced_s: float) -> bool:
        """See ``SharedLog.depose``."""
        return await self._of(shard).depose(shard, term, fenced_s=fenced_s)

    async def append(self, record: LogRecord) -> None:
        """See ``SharedLog.append``."""
        await self._of(record.shard).append(record)

    async def read(
        self, shard: int, after: int, *, bytes_max: int = 8 << 20, is_near: bool = False
    ) -> list[LogRecord]:
        """See ``SharedLog.read``."""
        return await self._of(shard).read(shard, after, bytes_max=bytes_max, is_near=is_near)

    async def state(self, shard: int) -> ShardState:
        """See ``SharedLog.state``."""
        return await self._of(shard).state(shard)

    async def truncate(self, shard: int, floor: int) -> None:
        """See ``SharedLog.truncate``."""
        await self._of(shard).truncate(shard, floor)

    # -- all of them ---------------------------------------------------------------------

    async def states(self) -> list[ShardState]:
        """See ``SharedLog.states``: each shard's from its group, not of one moment."""
        count, found = len(self.groups), list[ShardState]()
        for number, one in enumerate(self.groups):
            found += [state for state in await one.states() if state.shard % count == number]
        return sorted(found, key=lambda state: state.shard)

    def watch(self) -> AsyncIterator[Change]:
        """See ``SharedLog.watch``: of the first group; each group is watched by itself."""
        return self._first.watch()

    async def space(self) -> LogSpace:
        """That of the fullest group of those that answer."""
        return max(await self._each(lambda one: one.space()), key=lambda space: space.share)

    async def compact(self) -> None:
        """See ``SharedLog.compact``: of those groups that answer."""
        await self._each(lambda one: one.compact())

    async def _each(self, ask: Callable[[SharedLog], Awaitable[T]]) -> list[T]:
        """What those groups say that answer.

        Raises:
            LogUnavailableError: none of them does.
        """
        found, away = list[T](), list[LogUnavailableError]()
        for one in self.groups:
            try:
                found.append(await ask(one))
            except LogUnavailableError as error:
                away.append(error)
        if not found:
            raise away[0]
        return found

    async def close(self) -> None:
        """See ``SharedLog.close``: of all groups, then the first failure is raised."""
        failed: LodeqError | None = None
        for one in self.groups:
            try:
                await one.close()
            except LodeqError as error:
                failed = failed or error
        if failed is not None:
            raise failed
