"""The books a history keeps: who there is, what is under way, what a power cut could bring back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from ...engine.runtime.ids import shard_of
from .rules import BrokenError, broken
from .states import Op, State, States
from .task_model import Call, Known, Lane

__all__ = ["Book"]

_TRAIL_MAX = 16


class Book:
    """What ``History`` knows, and how it is written down; it judges nothing by itself."""

    def __init__(
        self,
        shards: int = 1,
        *,
        durability: Literal["nosync", "fsync"] = "nosync",
        order_across_shards: bool = False,
        keeps_results: bool = True,
        tracks_power: bool = True,
    ) -> None:
        self.shards = shards
        self.is_fsync = durability == "fsync"
        self.order_across_shards = order_across_shards
        self.keeps_results = keeps_results
        self.is_tracking = tracks_power and not self.is_fsync
        self.tasks: dict[int, Known] = {}
        self.by_id: dict[str, Known] = {}
        self.by_key: dict[tuple[Lane, str], list[Known]] = defaultdict(list)
        self.lanes: dict[tuple[str, str], Lane] = {}
        self.calls: dict[int, Call] = {}
        self.every_tenant: dict[str, dict[int, Call]] = defaultdict(dict)  # claims by queue
        self.replacing: dict[tuple[Lane, str], dict[int, Known]] = defaultdict(dict)
        self.interrupted: list[Call] = []  # under way at a kill, since the last look
        self.recent: list[Call] = []  # answered, of several tasks, perhaps not durable yet
        self.disturbed: list[tuple[int, int, list[Lane]]] = []  # when claims went wrong
        self.owed: set[str] = set()  # ids the engine has named and we cannot place yet
        self.rumoured: set[str] = set()  # such ids from before a power cut
        self.unplaced: dict[str, list[tuple[int, Op]]] = defaultdict(list)  # done to unknown ids
        self.replaced: set[str] = set()  # ids that gave way to another task of their key
        self.strangers: set[str] = set()  # results of tasks that ended before we heard their id
        self.grown: dict[int, int] = {}  # attempts of tasks that only a claim could raise
        self.claimable = 0  # how many of them interrupted claims can have taken
        self.is_cut = False  # a power cut came since the last look
        self.cut_at = 0
        self.durable = [0] * shards  # what was answered up to here survives a power cut
        self.syncing: dict[tuple[int, int], int] = {}
        self.at = 0
        self.life_at = 0  # when this life of the store began
        self.wall_us = self.wall_max_us = self.mono_us = 0
        self.next_number = self.next_op = 1
        self.invoked = self.acked = self.refused = self.unknown = self.cancelled = 0
        self.delivered = self.kills = self.cuts = self.found = 0

    # -- tasks ------------------------------------------------------------------------------

    def named(self, task: Known, task_id: str) -> None:
        """Number and id belong together, for good."""
        if task.id == task_id:
            return
        known = self.by_id.setdefault(task_id, task)
        if known is not task or task.id:
            raise self.fail(task, 2, f"id {task_id} is also that of {known.number}")
        task.id = task_id
        task.shard = shard_of(bytes.fromhex(task_id), self.shards)
        self.owed.discard(task_id)
        for op, what in self.unplaced.pop(task_id, ()):
            task.doing[op] = (*task.doing.get(op, ()), what)
            if op in self.calls:
                self.calls[op].tasks.append(task)

    def lane(self, queue: str, tenant: str) -> Lane:
        """The lane of that name."""
        lane = self.lanes.get((queue, tenant))
        if lane is None:
            lane = self.lanes[queue, tenant] = Lane(queue, tenant)
            for call in self.every_tenant[queue].values():
                lane.open[call.op] = call
                call.lanes.append(lane)
        return lane

    def start(self, call: Call, task: Known, op: Op) -> None:
        """The call is under way on the task."""
        call.tasks.append(task)
        task.doing[call.op] = (*task.doing.get(call.op, ()), op)
        if op[0] == "redrive":
            task.is_redriven = True
        task.log.append((call.at, f"{call.op} {call.kind} {op[1] or ''} invoked"))

    def start_id(self, call: Call, task_id: str, op: Op) -> None:
        """The same for an id, which may be that of a task we have only numbered so far."""
        task = self.by_id.get(task_id)
        if task is not None:
            self.start(call, task, op)
            return
        call.ids.append(task_id)
        self.unplaced[task_id].append((call.op, op))

    def fail(self, task: Known, rule: int, why: str, states: States | None = None) -> BrokenError:
        """The error that says what is wrong with a task."""
        shown = sorted(task.states if states is None else states)
        return broken(
            rule,
            f"task {task.number} ({task.id}, key {task.key}): {why}; it could have been {shown}\n"
            + task.story(),
        )

    # -- what survives a power cut ---------------------------------------------------------

    def trace(self, task: Known, states: States) -> None:
        """The task may have been any of these: a power cut may leave it there."""
        trail = task.trail
        if trail[-1][1] == states:
            return
        trail.append((self.at, states))
        if len(trail) > _TRAIL_MAX and len(trail) % _TRAIL_MAX == 0:
            self.forget(task)

    def forget(self, task: Known) -> None:
        """Drop what no power cut can bring back."""
        upto = max(self.durable[task.shard] if task.shard >= 0 else 0, task.solid_at)
        trail = task.trail
        first = 0
        while first + 1 < len(trail) and trail[first + 1][0] <= upto:
            first += 1
        del trail[:first]

    def solid(self, shard: int, at: int) -> None:
        """Everything this shard answered up to ``at`` is durable."""
        self.durable[shard] = max(self.durable[shard], at)

    def solidify(self, call: Call, task: Known, states: Iterable[State]) -> None:
        """``call`` is durable: after it the task was in one of ``states``, and stays so."""
        self.solid(task.shard, call.at)
        task.solid_at = max(task.solid_at, call.at)
        later = [entry for entry in task.trail if entry[0] > call.at]
        task.trail = [(call.at, frozenset(states)), *later]
