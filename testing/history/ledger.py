"""The ledger of a history: tasks, operations under way, and what a power cut could bring back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from ...engine.runtime.ids import shard_of
from .flow_records import FlowRecords
from .limits import LimitRule
from .rules import BrokenError, broken
from .states import Op, State, States
from .task_model import Call, QueueModel, TaskModel

__all__ = ["Ledger"]

_TRAIL_MAX = 16


class Ledger:
    """Tasks, calls and queues of a history, and how records are noted. It checks no rule itself.

    Args:
        shards: how many the store has, 1 to 4,096.
        durability: of the engine.
        order_across_shards: check rule 7 over all shards of a queue, not only within each.
        keeps_results: False where results may go before their time (``Limits.results_max``).
        tracks_power: False saves memory where no power is ever cut.
        history_s: ``Limits.history_s`` of the store; 0: it keeps no history.
    """

    def __init__(
        self,
        shards: int = 1,
        *,
        durability: Literal["nosync", "fsync"] = "nosync",
        order_across_shards: bool = False,
        keeps_results: bool = True,
        tracks_power: bool = True,
        history_s: float = 0,
    ) -> None:
        self.shards = shards
        self.is_fsync = durability == "fsync"
        self.order_across_shards = order_across_shards
        self.keeps_results = keeps_results
        self.is_tracking = tracks_power and not self.is_fsync
        self.tasks: dict[int, TaskModel] = {}
        self.by_id: dict[str, TaskModel] = {}
        self.by_key: dict[tuple[QueueModel, str], list[TaskModel]] = defaultdict(list)
        self.queue_models: dict[tuple[str, str], QueueModel] = {}
        self.calls: dict[int, Call] = {}
        self.limits = LimitRule()
        self.flows = FlowRecords(is_durable=self.is_fsync)
        self.every_tenant: dict[str, dict[int, Call]] = defaultdict(dict)  # claims by queue
        self.replacing: dict[tuple[QueueModel, str], dict[int, TaskModel]] = defaultdict(dict)
        self.interrupted: list[Call] = []  # under way at a kill, since the last look
        self.recent: list[Call] = []  # answered, of several tasks, perhaps not durable yet
        self.disturbed: list[tuple[int, int, list[QueueModel]]] = []  # when claims went wrong
        self.owed: set[str] = set()  # ids the engine has named, of tasks not known by id yet
        self.rumoured: set[str] = set()  # such ids from before a power cut
        self.unplaced: dict[str, list[tuple[int, Op]]] = defaultdict(list)  # done to unknown ids
        self.replaced: set[str] = set()  # ids that gave way to another task of their key
        self.strangers: set[str] = (
            set()
        )  # results of tasks that ended before any record had their id
        self.grown: dict[int, int] = {}  # attempts of tasks that only a claim could raise
        self.claimable = 0  # how many of them interrupted claims can have taken
        self.is_cut = False  # a power cut came since the last look
        self.cut_at = 0
        self.durable = [0] * shards  # what was answered up to here survives a power cut
        self.syncing: dict[tuple[int, int], int] = {}
        self.at = 0
        self.life_at = 0  # when this life of the store began
        self.history_us = round(history_s * 1e6)
        self.life_us = -1  # since when this process lives with this wall clock; -1: not known yet
        self.wall_us = self.wall_max_us = self.mono_us = 0
        self.next_number = self.next_op = 1
        self.invoked = self.acked = self.refused = self.unknown = self.cancelled = 0
        self.delivered = self.kills = self.cuts = self.found = 0

    # -- tasks ------------------------------------------------------------------------------

    def named(self, task: TaskModel, task_id: str) -> None:
        """Note the id of a task; number and id belong together for good."""
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

    def queue_model(self, queue: str, tenant: str) -> QueueModel:
        """Return the model of that queue and tenant."""
        queue_model = self.queue_models.get((queue, tenant))
        if queue_model is None:
            queue_model = self.queue_models[queue, tenant] = QueueModel(queue, tenant)
            for call in self.every_tenant[queue].values():
                queue_model.open[call.op] = call
                call.queue_models.append(queue_model)
        return queue_model

    def start(self, call: Call, task: TaskModel, op: Op) -> None:
        """Note that the call is under way on the task."""
        call.tasks.append(task)
        task.doing[call.op] = (*task.doing.get(call.op, ()), op)
        if op[0] in {"redrive", "redrive_lease"}:
            task.is_redriven = True
            task.redriven_at = call.at
        task.log.append((call.at, f"{call.op} {call.kind} {op[1] or ''} invoked"))

    def start_id(self, call: Call, task_id: str, op: Op) -> None:
        """Do the same for an id, which may be that of a task known by its number alone."""
        task = self.by_id.get(task_id)
        if task is not None:
            self.start(call, task, op)
            return
        call.ids.append(task_id)
        self.unplaced[task_id].append((call.op, op))

    def fail(
        self, task: TaskModel, rule: int, why: str, states: States | None = None
    ) -> BrokenError:
        """Make the error that explains what is wrong with a task.

        Args:
            task: which one.
            rule: number of the broken rule.
            why: what cannot be.
            states: the states the task could have been in; its known ones by default.
        """
        shown = sorted(task.states if states is None else states)
        return broken(
            rule,
            f"task {task.number} ({task.id}, key {task.key}): {why}; it could have been {shown}\n"
            + task.story(),
        )

    # -- what survives a power cut ---------------------------------------------------------

    def trace(self, task: TaskModel, states: States) -> None:
        """Note that the task may have been in these states: a power cut may leave it there."""
        trail = task.trail
        if trail[-1][1] == states:
            return
        trail.append((self.at, states))
        if len(trail) > _TRAIL_MAX and len(trail) % _TRAIL_MAX == 0:
            self.forget(task)

    def forget(self, task: TaskModel) -> None:
        """Drop what no power cut can bring back."""
        upto = max(self.durable[task.shard] if task.shard >= 0 else 0, task.solid_at)
        trail = task.trail
        first = 0
        while first + 1 < len(trail) and trail[first + 1][0] <= upto:
            first += 1
        del trail[:first]

    def solid(self, shard: int, at: int) -> None:
        """Note that everything this shard answered up to ``at`` is durable."""
        self.durable[shard] = max(self.durable[shard], at)

    def solidify(self, call: Call, task: TaskModel, states: Iterable[State]) -> None:
        """Note that ``call`` is durable: after it the task was in one of ``states``."""
        self.solid(task.shard, call.at)
        task.solid_at = max(task.solid_at, call.at)
        later = [entry for entry in task.trail if entry[0] > call.at]
        task.trail = [(call.at, frozenset(states)), *later]
