"""Inference: which states each task can be in, from the operations under way and what was observed.

An operation that is invoked adds possible states, an observation removes those that contradict it
(``narrow``). Where none is left, no history of a store that keeps its promises explains the
record, and ``BrokenError`` names the rule.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from .ledger import Ledger
from .states import (
    ABSENT,
    FORGET,
    HOLDS,
    LIVE,
    NO_CLAIMS,
    SHORT,
    TTL,
    Op,
    State,
    States,
    outcomes,
    pending,
    reachable,
)
from .task_model import Call, TaskModel

__all__ = ["Inference"]

_SLACK_US = 1000  # due times are whole milliseconds


class Inference(Ledger):
    """A ledger that infers the possible states of its tasks."""

    # -- what a task can be ----------------------------------------------------------------

    def time(self, task: TaskModel) -> int:
        """Return the flags of what time alone may have done to a task."""
        now_us = self.wall_max_us + _SLACK_US
        flags = TTL if task.ttl_us is not None and task.expires_us() <= now_us else 0
        kept_us = task.dead_retention_us
        return (
            flags | FORGET if kept_us is not None and task.since_us + kept_us <= now_us else flags
        )

    def possible(self, task: TaskModel, depth: int = 2) -> States:
        """Return every state the task can be in now.

        Args:
            task: which one.
            depth: 0 takes the known states alone, 1 adds every operation under way on the task,
                done or not, and 2 also claims that have not answered.
        """
        if task.until_us <= self.mono_us:
            self._soften(task)
        ops: tuple[Op, ...] = ()
        claims = NO_CLAIMS
        if depth:
            ops = tuple(sorted(itertools.chain(*task.doing.values()))) if task.doing else ()
            if task.key is not None:
                rivals = self.replacing.get((task.queue_model, task.key))
                if rivals:
                    ops += (("replace", 0),) * sum(t is not task for t in rivals.values())
            if depth == 2:
                claims = task.queue_model.claims(self.mono_us)
        time = 0
        if task.ttl_us is not None or task.dead_retention_us is not None:
            time = self.time(task)
        states = task.states
        if not ops and claims == NO_CLAIMS and not time and not any(s[3] & SHORT for s in states):
            return states
        return reachable(states, ops, claims, task.attempts_max, time)

    def _soften(self, task: TaskModel) -> None:
        """Mark the lease as one that may have expired by now."""
        task.until_us = 1 << 62
        task.states = frozenset(
            (s[0], s[1], s[2], s[3] | SHORT) if s[0] in HOLDS and s[2] == task.epoch else s
            for s in task.states
        )

    def narrow(
        self,
        task: TaskModel,
        seen: Callable[[State], Iterable[State]],
        rule: int,
        why: str,
        *,
        is_wide: bool = False,
    ) -> None:
        """Narrow the states of a task by an observation; raise if none is left.

        Operations that are not needed to explain the observation are not assumed to have
        happened: they stay under way.

        Args:
            task: which one.
            seen: returns the states that a state can be after the observation, none if the
                observation rules it out.
            rule: the rule that is broken if no state is left.
            why: the message for that case.
            is_wide: operations under way could lead to another state that explains it as well.
        """
        for depth in range(3):
            before = self.possible(task, depth)
            states = frozenset(new for s in before for new in seen(s))
            if states:
                break
        else:
            raise self.fail(task, rule, why, before)
        is_open = is_wide or len(task.states) > 1 or (not depth and before != task.states)
        if depth or is_open or any(s[3] & SHORT for s in task.states):
            # A lease that may have expired explains the same as an operation under way does; so
            # may another of several states. Keep every explanation.
            task.assumed.update(task.doing)
            before = self.possible(task, 2 if is_open else max(depth, 1))
            states |= frozenset(new for s in before for new in seen(s))
        if self.is_tracking and before != task.states:
            self.trace(task, before)  # a state in between may be all that survives
        self.settle(task, states)

    def settle(self, task: TaskModel, states: States) -> None:
        """Set the states that are left."""
        task.states = states
        is_over = True
        for s in states:
            if s[0] in LIVE or s[0] == "absent":
                is_over = False
                break
        task.ended_at = (task.ended_at or self.at) if is_over else 0
        if self.is_tracking:
            self.trace(task, states)

    def succeed(self, call: Call, task: TaskModel, op: Op) -> None:
        """Narrow the states of a task by an operation that succeeded."""
        most, time = task.attempts_max, self.time(task)
        if call.op in task.assumed:  # a later one may have answered first
            task.states |= {n for s in self.possible(task, 0) for n in outcomes(s, op, most, time)}
            if self.is_tracking:
                self.trace(task, task.states)
            return
        rule = 5 if op[1] else 3
        why = f"{op} cannot have succeeded"
        # These two end a task in any state: another operation under way may have come before them.
        is_wide = op[0] in {"purge", "cancel"} and bool(task.doing)
        self.narrow(task, lambda s: outcomes(s, op, most, time), rule, why, is_wide=is_wide)

    def enqueued(self, call: Call, task: TaskModel) -> None:
        """Note that its enqueue succeeded. Much may have happened to the task since."""
        task.acked_at = self.at
        self.narrow(
            task, lambda s: (pending(0),) if s == ABSENT else (s,), 2, "it cannot be enqueued"
        )
        if call.params.get("durable") and self.is_tracking:
            self.solidify(call, task, [pending(0)])

    def absent(self, task: TaskModel, why: str) -> None:
        """Check that the task can be absent, and note that it is."""
        self.narrow(task, lambda s: (s,) if s == ABSENT else (), 3, why)

    def exists(self, task: TaskModel) -> None:
        """Note that the engine has named the task, so that its enqueue has happened."""
        self.narrow(task, lambda s: () if s == ABSENT else (s,), 1, "a task it named is missing")
