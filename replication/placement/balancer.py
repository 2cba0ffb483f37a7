"""The balancer: the one node that changes placements, a step at a time.

Every node tries to be it once a second; the log lets one, for as long as its session lasts. It
counts a copy only if the member that reports it had read the placement that names it. A node that
is about to give a copy up has read one that does not; what it said before that is older than a
placement that names it again, however late it arrives.

What it knows beside that is only how long nodes have been away and how much shards write; a new
balancer learns both anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...errors import ClosedError, LodeqError, LogRolledBackError
from ..node import Node
from ..port import (
    Checkpoint,
    Departure,
    FencedError,
    LogUnavailableError,
    Member,
    Placement,
    SessionLostError,
    ShardState,
    index_of,
)
from .leaders import place_leaders, weights_of
from .plan import PlacedNode, PlacedShard, plan

__all__ = ["Balancer"]

HOME: Final = 0  # the shard that every node has: it holds what concerns all queues
_SMOOTHING: Final = 0.2  # of the rate of entries, by look
_LOOKS: Final = 3  # a report is compared with what was the last entry two looks before it is read


@dataclass(slots=True)
class _Known:
    """What a balancer has seen since it is one."""

    away_since: dict[str, float] = field(default_factory=dict)
    last: dict[int, deque[int]] = field(default_factory=dict)  # of the last looks
    rates: dict[int, float] = field(default_factory=dict)
    led_at: float = 0.0  # when leaders were looked at


class Balancer:
    """The balancer's part of one node.

    Args:
        node: whose it is.
        shards: how many there are.
        copies: of each.
    """

    def __init__(self, node: Node, shards: int, copies: int) -> None:
        self._node = node
        self._shards = shards
        self._copies = copies
        self._known: _Known | None = None  # None: it is not the balancer

    @property
    def is_balancer(self) -> bool:
        """Whether it was at the last look."""
        return self._known is not None

    async def run(self) -> None:
        """Look once a second, until the task is cancelled or the log is given up."""
        node = self._node
        while node.stopped is None:
            await node.waiting.pause(node.options.report_s)
            try:
                await self._look()
                node.problems.pop("balancer", None)
            except (FencedError, SessionLostError):
                self._known = None
            except LogUnavailableError:
                continue
            except LogRolledBackError as error:
                node.stop(error)
            except ClosedError:
                return
            except LodeqError as error:
                node.problems["balancer"] = str(error)

    async def _look(self) -> None:
        node, log = self._node, self._node.log
        if node.is_closing or not node.has_session() or not await log.become_balancer():
            self._known = None
            return
        if self._known is None:
            self._known = _Known(led_at=node.mono())
        known = self._known
        placements = {one.shard: one for one in await log.placements()}
        states = await log.states()
        departures = {one.node: one for one in await log.departures()}
        # Read after: a member that was said to be dead has come back since.
        members = {one.node: one for one in await log.members()}
        nodes = self._nodes(known, placements.values(), members, departures)
        checkpoints = await log.checkpoints()
        shards = self._facts(known, placements, states, members, checkpoints)
        steps = plan(nodes, shards, self._copies)
        if node.mono() >= known.led_at + self._look_s:
            known.led_at = node.mono()
            changing = {step.shard for step in steps}
            steps += place_leaders(
                nodes, [one for one in shards if one.placement.shard not in changing]
            )
        for step in steps:
            await log.place(step)  # one that others have changed meanwhile waits for the next look
        await self._forget(placements.values(), members, departures)

    @property
    def _look_s(self) -> float:
        """Between two looks at who leads."""
        return self._node.options.balance_s or float("inf")

    async def _forget(
        self,
        placements: Collection[Placement],
        members: dict[str, Member],
        departures: dict[str, Departure],
    ) -> None:
        """Forget nodes that are gone and have nothing any more; and that one would not be back."""
        log = self._node.log
        placed = {name for one in placements for name in one.copies}
        for name, departure in departures.items():
            if name in members:
                if departure.is_dead:
                    await log.stay(name)
            elif name not in placed:
                await log.forget(name)

    # -- facts -------------------------------------------------------------------------

    def _nodes(
        self,
        known: _Known,
        placements: Collection[Placement],
        members: dict[str, Member],
        departures: dict[str, Departure],
    ) -> dict[str, PlacedNode]:
        names = {name for one in placements for name in one.copies} | set(members)
        now, found = self._node.mono(), {}
        for gone in set(known.away_since) - (names - set(members)):
            del known.away_since[gone]
        for name in names:
            member, departure = members.get(name), departures.get(name)
            if member is not None:
                found[name] = PlacedNode(
                    name,
                    member.zone,
                    is_leaving=departure is not None,
                    is_drained=member.is_drained or not member.may_lead,
                )
                continue
            since = known.away_since.setdefault(name, now)
            found[name] = PlacedNode(
                name,
                is_live=False,
                is_away=now - since >= self._node.options.away_s,
                is_leaving=departure is not None,
                is_dead=departure is not None and departure.is_dead,
            )
        return found

    def _facts(
        self,
        known: _Known,
        placements: dict[int, Placement],
        states: Sequence[ShardState],
        members: dict[str, Member],
        checkpoints: Sequence[Checkpoint],
    ) -> list[PlacedShard]:
        for state in states:
            seen = known.last.setdefault(state.shard, deque(maxlen=_LOOKS))
            rate = state.last - (seen[-1] if seen else state.last)
            before = known.rates.get(state.shard, 0.0)
            known.rates[state.shard] = before + _SMOOTHING * (rate - before)
            seen.append(state.last)
        weights = weights_of([known.rates[state.shard] for state in states])
        return [
            self._fact(
                known,
                placements.get(state.shard, Placement(state.shard, ())),
                state,
                members,
                checkpoints,
                weight,
            )
            for state, weight in zip(states, weights, strict=True)
        ]

    def _fact(
        self,
        known: _Known,
        placement: Placement,
        state: ShardState,
        members: dict[str, Member],
        checkpoints: Sequence[Checkpoint],
        weight: float,
    ) -> PlacedShard:
        shard = state.shard
        least = max(0, state.floor - 1, known.last[shard][0] - self._node.options.lag_max)
        able = {name for name, one in members.items() if index_of(one.applied, shard) >= least}
        return PlacedShard(
            placement,
            {name for name in able if members[name].placed >= placement.version},
            _restorable(state, members, checkpoints),
            able,
            weight,
            is_everywhere=shard == HOME,
            needs_copy=state.floor > 1,
        )


def _restorable(
    state: ShardState, members: dict[str, Member], checkpoints: Sequence[Checkpoint]
) -> set[str]:
    """Nodes from whose copy another can begin: with the log, or with a checkpoint and the log."""
    if state.floor <= 1:
        return set(members)
    return {
        one.node for one in checkpoints if index_of(one.applied, state.shard) + 1 >= state.floor
    }
