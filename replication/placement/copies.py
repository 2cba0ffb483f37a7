"""The copies of one node: made, and given up, as placements say.

One task reads placements; another does what they say, one copy at a time. What the node has is
*noted* (``replica.json``): files of any other shard are worth nothing. The order of steps makes
a kill between any two of them harmless:

- *A new copy*: pin the log, fetch the files, let the engine have them, note it, follow, report.
- *One given up*: mark it, resign, stop following, close it, take it out of the note, delete the
  files. From the mark on reports say that there is none; and they say which placements were read.
  So the balancer never counts a copy that is about to go (see ``balancer``).

The home shard is every node's, whatever placements say; they say who leads it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ...errors import ClosedError, LodeqError, LogRolledBackError, OpenError
from ..node import Node
from ..port import LogUnavailableError, Placement, SessionLostError, index_of
from ..shard_replica import Role, ShardReplica
from ..waiting import Signal
from .balancer import HOME
from .shard_files import ShardFiles, fetch_copy

__all__ = ["Copies"]

RETRY_S: Final = 2.0  # after a copy could not be made


class Copies:
    """The copies of one node.

    Args:
        node: whose they are; ``hosted`` and ``pins`` are kept here.
        shards: all of them, by index.
        files: where they lie.
        note: writes ``replica.json``.
        report: says to the others what this node has.
    """

    def __init__(
        self,
        node: Node,
        shards: Sequence[ShardReplica],
        files: ShardFiles,
        note: Callable[[], Awaitable[None]],
        report: Callable[[], Awaitable[None]],
    ) -> None:
        self._node = node
        self._shards = shards
        self._files = files
        self._note = note
        self._report = report
        self._hosted = node.hosted if node.hosted is not None else set[int]()
        self._not_before: dict[int, float] = {}  # after a failure, by shard
        self._has_work = Signal(node.waiting)
        self.wake = Signal(node.waiting)

    async def see(self) -> None:
        """Read placements when they change, until the task is cancelled or the log is given up."""
        node = self._node
        while node.stopped is None:
            await self.wake.wait(node.options.report_s)
            try:
                placements = await node.log.placements()
            except LogRolledBackError as error:
                node.stop(error)
            except ClosedError:
                return
            except LodeqError as error:
                if not isinstance(error, LogUnavailableError):
                    node.problems["placement"] = str(error)
            else:
                node.problems.pop("placement", None)
                node.members.placements = {one.shard: one for one in placements}
                self._has_work.set()

    async def work(self) -> None:
        """Do what placements say, until the task is cancelled or the log is given up."""
        node = self._node
        while node.stopped is None:
            await self._has_work.wait(node.options.report_s)
            try:
                while await self._turn():
                    pass
            except (LogUnavailableError, SessionLostError):
                continue
            except LogRolledBackError as error:
                node.stop(error)
            except ClosedError:
                return

    async def _turn(self) -> bool:
        """Take one step; whether there was one. What is to go is marked before it waits."""
        node, placements = self._node, self._node.members.placements
        if not placements or node.is_closing or not node.has_session():
            return False
        for shard in sorted(self._hosted):
            if self._is_waiting(shard):
                continue
            one = self._shards[shard]
            placement = placements.get(shard)  # none: it was never placed, and begins here
            if shard != HOME and placement and not _names(placement, node.name):
                one.is_going = True
                return await self._step(shard, self._give_up)
            if one.behind_floor:
                one.is_going = True
                return await self._step(shard, self._make_anew)
            if one.is_going:  # it was placed again
                return await self._step(shard, self._resume)
        for shard in sorted({HOME, *placements}):
            if shard in self._hosted or self._is_waiting(shard):
                continue
            if shard == HOME or _names(placements.get(shard), node.name):
                return await self._step(shard, self._make)
        return False

    def _is_waiting(self, shard: int) -> bool:
        return self._node.mono() < self._not_before.get(shard, 0.0)

    async def _step(self, shard: int, step: Callable[[int], Awaitable[None]]) -> bool:
        """Do it; after a failure this shard waits, and the others go on."""
        node, key = self._node, f"copy {shard}"
        try:
            await step(shard)
        except LogUnavailableError:
            if not node.has_session():
                raise
            self._not_before[shard] = node.mono() + RETRY_S  # the group of this shard is away
            return True
        except (SessionLostError, LogRolledBackError, ClosedError):
            raise
        except (LodeqError, OSError) as error:
            node.problems[key] = f"shard {shard}: {error}"
            self._not_before[shard] = node.mono() + RETRY_S
            return True
        finally:
            node.pins.pop(shard, None)
        node.problems.pop(key, None)
        self._not_before.pop(shard, None)
        return True

    # -- a new copy --------------------------------------------------------------------

    async def _make(self, shard: int) -> None:
        node = self._node
        state = await node.log.state(shard)

        async def pin(index: int) -> None:
            node.pins[shard] = index
            await self._report()

        await fetch_copy(node.log, self._files, state, node.waiting.spawner, pin)
        await node.replica.host(shard)
        self._hosted.add(shard)
        await self._note()
        self._shards[shard].begin()
        await self._report()

    async def _resume(self, shard: int) -> None:
        """Follow again in a shard that was being given up."""
        await self._node.replica.host(shard)
        one = self._shards[shard]
        one.is_going = False
        if one.role is Role.ABSENT:
            one.begin()

    # -- one copy less -----------------------------------------------------------------

    async def _give_up(self, shard: int) -> None:
        one = self._shards[shard]
        await one.hand_over()
        one.leave()
        await self._remove(shard)
        await self._report()

    async def _make_anew(self, shard: int) -> None:
        """Replace a copy that the log does not reach any more, once another can be had.

        Raises:
            OpenError: none can; the old one stays, and is what an operator can save.
        """
        log = self._node.log
        state = await log.state(shard)
        reached = [index_of(one.applied, shard) for one in await log.checkpoints()]
        if not any(index + 1 >= state.floor for index in reached):
            raise OpenError(
                f"the log begins at entry {state.floor}, this copy is behind that, and no "
                "checkpoint reaches it: the copy stays as it is. Let a node that has the shard "
                "publish one ('lodeq cluster checkpoint')"
            )
        self._shards[shard].leave()
        await self._report()
        await self._remove(shard)
        await self._make(shard)

    async def _remove(self, shard: int) -> None:
        await self._node.replica.unhost(shard)
        self._hosted.discard(shard)
        await self._note()
        await self._files.remove(shard, self._node.waiting.spawner)


def _names(placement: Placement | None, node: str) -> bool:
    return placement is not None and node in placement.copies
