"""What a node does for its cluster beside following: room in the log, and leaders in their places.

*Truncation.* A leader removes from its shard's log what nobody needs (see ``truncation``).

*Space.* The service refuses every write when its quota is used up, those of sessions included, so
that is never to be reached. Each node looks once a second:

- from ``LogOptions.squeeze_share`` of the quota on the logs are truncated as far as checkpoints
  allow, whoever is behind, and the service is compacted;
- from ``intake_share`` on the engine refuses enqueues (``StorageFullError``); what ends tasks, and
  so makes room, goes on;
- from ``writes_share`` on nobody leads: everything is refused, and says why. Leaders are elected
  again when there is a twentieth of the quota less.

*Balance.* A shard is handed to the node that is first in its line, once that one is up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..errors import ClosedError, LodeqError, LogRolledBackError
from .node import Node
from .port import NO_COPY, Checkpoint, LogSpace, LogUnavailableError, Member, SessionLostError
from .shard_replica import Role, ShardReplica
from .truncation import floor_of

__all__ = ["Upkeep"]

RESUME_SHARE = 0.05  # so much below ``writes_share`` shards are led again
ADVICE = "publish checkpoints ('lodeq cluster checkpoint') and truncate, or raise the quota"


class Upkeep:
    """The upkeep of one node.

    Args:
        node: whose it is.
        shards: all of them, by index.
        stop: called when the log is not to be followed any more.
        copies: of each shard; 0: every node has one.
    """

    def __init__(
        self,
        node: Node,
        shards: Sequence[ShardReplica],
        stop: Callable[[BaseException], None],
        copies: int = 0,
    ) -> None:
        self._node = node
        self._copies = copies
        self._shards = shards
        self._stop = stop
        self._placed: dict[int, tuple[str, int]] = {}
        self._lasts: list[dict[int, int]] = []  # ends of the logs led here, at the last looks
        self.space: LogSpace | None = None  # as last seen

    async def run(self) -> None:
        """Look once a second, until the task is cancelled or the log is given up."""
        node, options = self._node, self._node.options
        truncated_at = balanced_at = node.mono()
        while node.stopped is None:
            await node.waiting.pause(options.report_s)
            now = node.mono()
            self._lasts = [*self._lasts[-2:], {s.shard: s.proposals.last for s in self._shards}]
            try:
                await self._look_at_space()
                if options.truncate_s is not None and now >= truncated_at + options.truncate_s:
                    truncated_at = now
                    await self.truncate()
                if options.balance_s is not None and now >= balanced_at + options.balance_s:
                    balanced_at = now
                    await self._balance()
                node.problems.pop("upkeep", None)
            except (LogUnavailableError, SessionLostError):
                continue
            except LogRolledBackError as error:
                self._stop(error)
            except ClosedError:
                return
            except LodeqError as error:
                node.problems["upkeep"] = str(error)

    # -- space -------------------------------------------------------------------------

    async def _look_at_space(self) -> None:
        node, options = self._node, self._node.options
        space = self.space = await node.log.space()
        self._limit(space)
        if space.share >= options.squeeze_share and node.has_session():
            await self.truncate(is_hard=True)
            await node.log.compact()
            self.space = await node.log.space()
            self._limit(self.space)

    def _limit(self, space: LogSpace) -> None:
        """Take or refuse what there is room for."""
        node, options, share = self._node, self._node.options, space.share
        used = f"the store of the cluster's log has used {share:.0%} of its quota"
        node.problems.pop("space", None)
        if share >= options.squeeze_share:
            node.problems["space"] = f"{used}, and is truncated harder: {ADVICE}"
        intake = None
        if share >= options.intake_share:
            intake = f"{used}: enqueues are refused, complete, release and reap go on; {ADVICE}"
            node.problems["space"] = intake
        node.replica.limit_intake(intake)
        resumes = options.writes_share - (RESUME_SHARE if node.is_log_full else 0.0)
        node.is_log_full = share >= resumes
        if node.is_log_full:
            node.problems["space"] = f"{used}: nothing is written any more; {ADVICE}"
            for shard in self._shards:
                shard.lose()

    # -- truncation --------------------------------------------------------------------

    async def truncate(self, *, is_hard: bool = False) -> None:
        """Remove from the logs of the shards led here what nobody needs any more.

        Args:
            is_hard: leave nodes that are behind to a restore; and look at the shards that nobody
                leads as well. Those whose log does not answer are passed over.

        Raises:
            LogUnavailableError: the logs of some shards do not answer, and stay as they are.
        """
        node = self._node
        if node.is_closing:
            return
        mine = [shard.shard for shard in self._shards if self._tends(shard, is_hard=is_hard)]
        if not mine:
            return
        members, checkpoints = await node.log.members(), await node.log.checkpoints()
        away: LogUnavailableError | None = None
        for shard in mine:
            try:
                await self._truncate(shard, members, checkpoints, is_hard=is_hard)
            except LogUnavailableError as error:
                away = error
        if away is not None and not is_hard:
            raise away

    async def _truncate(
        self,
        shard: int,
        members: Sequence[Member],
        checkpoints: Sequence[Checkpoint],
        *,
        is_hard: bool,
    ) -> None:
        node, options = self._node, self._node.options
        # Where a checkpoint is restored as a whole it has to reach the logs of all groups.
        states = [await node.log.state(shard)] if self._copies else await node.log.states()
        state = next(one for one in states if one.shard == shard)
        floor = floor_of(
            state,
            members,
            checkpoints,
            copies_min=min(options.copies_min, self._copies or options.copies_min),
            entries_max=0 if is_hard else options.entries_max,
            first_kept=self._shards[shard].log_bytes.first_kept,
            floors=() if self._copies else [one.floor for one in states],
        )
        if floor > state.floor:
            await node.log.truncate(shard, floor)
        one = self._shards[shard]
        one.seen = replace(one.seen, floor=max(one.seen.floor, floor))  # who asked is told of it

    def _tends(self, shard: ShardReplica, *, is_hard: bool) -> bool:
        if shard.role is Role.LEADING:
            return True
        is_vacant = shard.seen.leader is None
        return is_hard and is_vacant and self._node.members.rank(shard.shard) == 0

    # -- balance -----------------------------------------------------------------------

    async def _balance(self) -> None:
        """Hand one shard to the node that is first in line, if it was up to date twice running."""
        node, before = self._node, self._placed
        self._placed = {}
        if node.is_closing or any(shard.seen.leader is None for shard in self._shards):
            return  # one change at a time
        live = node.members.by_name
        for shard in self._shards:
            if shard.role is not Role.LEADING:
                continue
            willing = {name for name, one in live.items() if one.may_lead and not one.is_drained}
            line = node.members.line(shard.shard, willing | {node.name})
            best = line[0] if line else node.name
            if best == node.name or shard.shard >= len(live[best].applied):
                continue
            reached = live[best].applied[shard.shard]
            last = shard.proposals.last
            if node.members.placements is not None:  # reports are older than that by a second
                last = min(last, self._lasts[0][shard.shard])
            lag = last - reached
            if lag <= node.options.lag_max and reached != NO_COPY:
                self._placed[shard.shard] = (best, shard.changes)
        ready = [shard for shard, at in self._placed.items() if before.get(shard) == at]
        if ready:
            await self._shards[ready[0]].hand_over()
