"""A history of one store, record by record, and the promises it is held to (docs/history.md).

``History`` tracks which states each task can be in (``states``), from what was invoked, answered,
interrupted and found. It raises ``BrokenError`` at the first record that no history of a store
that keeps its promises explains. ``check`` judges a whole list of records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import answers, crashes, reopened
from .ledger import Book
from .rules import BrokenError
from .states import (
    ABSENT,
    FORGET,
    LIVE,
    NO_CLAIMS,
    SHORT,
    TTL,
    Op,
    State,
    States,
    leased,
    outcomes,
    pending,
    reachable,
)
from .task_model import Call, Known, Lane

__all__ = ["History"]

_SLACK_US = 1000


class History(Book):
    """What is known of a store, and whether it can be true.

    Args:
        shards: how many the store has.
        durability: of the engine: what a power cut may take.
        order_across_shards: hold rule 7 over all shards of a queue, not only within each.
        keeps_results: False where results may go before their time (``Limits.results_max``).
        tracks_power: False saves memory where no power is ever cut.
    """

    # -- records ---------------------------------------------------------------------------

    def take(self, record: Sequence[Any]) -> None:
        """One record. Raises ``BrokenError`` if it cannot be true."""
        self.at += 1
        what = record[0]
        if what == "i":
            _, op, kind, params, *times = record
            self._clock(times)
            self._invoke(Call(op, kind, params, self.at, self.wall_us, self.mono_us))
        elif what == "a":
            self._clock(record[3:])
            call = self._end(record, "answered")
            self.acked += 1
            answers.answered(self, call, record[2])
        elif what == "e":
            self._clock(record[4:])
            call = self._end(record, f"raised {record[2]}")
            self.refused += 1
            answers.refused(self, call, record[2], record[3] if len(record) > 3 else None)
        elif what in {"u", "c"}:
            self._open_ended(what, record)
        elif what == "wall":
            self._clock(record[1:])
        elif what == "sync":
            self.syncing[record[1], record[2]] = self.at
        elif what == "synced":
            self.solid(record[1], self.syncing.pop((record[1], record[2]), 0))
        elif what == "kill":
            crashes.killed(self)
        elif what == "power":
            crashes.cut(self)
        elif what == "found":
            self._clock(record[2:])
            self.found += 1
            reopened.look(self, record[1])
        elif what == "drained":
            self.ended()
        else:
            raise BrokenError(f"the process failed: {record[1:]}")

    def take_all(self, records: Iterable[Sequence[Any]]) -> None:
        """Every record."""
        for record in records:
            self.take(record)

    def _clock(self, times: Sequence[Any]) -> None:
        if not times or times[0] is None:
            return
        wall_us: int = times[0]
        if wall_us < self.wall_us:  # stepped back: whatever is under way may have seen it
            for call in self.calls.values():
                call.wall_us = min(call.wall_us, wall_us)
            for task in self.tasks.values():
                task.since_us = min(task.since_us, wall_us)
            passed_us = times[1] - self.mono_us if len(times) > 1 and self.mono_us else 0
            self.wall_max_us = max(self.wall_max_us, self.wall_us + passed_us)
        self.wall_us = wall_us
        if wall_us > self.wall_max_us:
            self.wall_max_us = wall_us
        if len(times) > 1:
            self.mono_us = times[1]

    def _end(self, record: Sequence[Any], what: str) -> Call:
        call = self.calls.pop(record[1], None)
        if call is None or call.is_done:
            raise BrokenError(f"operation {record[1]} was not under way: {record}")
        call.is_done = True
        text = f"{call.op} {call.kind} {what}"
        for task in call.tasks:
            task.doing.pop(call.op, None)
            task.log.append((self.at, text))
        self._close(call)
        return call

    def _close(self, call: Call) -> None:
        for lane in call.lanes:
            lane.open.pop(call.op, None)
            lane.ranges.pop(call.op, None)
        for queue, tenant in call.keys:
            if tenant is None:
                self.every_tenant[queue].pop(call.op, None)

    def _open_ended(self, what: str, record: Sequence[Any]) -> None:
        """Cancelled, or an outcome nobody knows: it may happen yet, so it stays under way."""
        self._clock(record[2 if what == "c" else 4 :])
        call = self.calls[record[1]]
        is_unknown = what == "u"
        self.unknown += is_unknown
        self.cancelled += not is_unknown
        text = f"{call.op} {call.kind} " + ("unknown" if is_unknown else "cancelled")
        for task in call.tasks:
            task.note(self.at, text)
        if call.kind == "claim":
            flags = call.flags(self.mono_us)
            for lane in call.lanes:
                lane.loose[flags] += 1
                lane.loose_at = self.at
            # What a cancelled claim took goes back at once; what a failed one took, at open.
            until = 1 << 62 if is_unknown else self.at
            self.disturbed.append((call.at, until, call.lanes))
        elif is_unknown and len(record) > 3 and record[3]:
            answers.partly(self, call, record[3])
        self._close(call)

    # -- what a task can be ----------------------------------------------------------------

    def time(self, task: Known) -> int:
        """What time may have done to a task by itself."""
        now_us = self.wall_max_us + _SLACK_US
        flags = TTL if task.ttl_us is not None and task.expires_us() <= now_us else 0
        kept_us = task.dead_retention_us
        return (
            flags | FORGET if kept_us is not None and task.since_us + kept_us <= now_us else flags
        )

    def possible(self, task: Known, depth: int = 2) -> States:
        """Every state the task can be in now.

        Args:
            task: which.
            depth: 0 what is known of it, 1 with what is under way on it done or not, 2 and with
                claims that have not answered.
        """
        if task.until_us <= self.mono_us:
            self._soften(task)
        ops: tuple[Op, ...] = ()
        claims = NO_CLAIMS
        if depth:
            ops = tuple(sorted(itertools.chain(*task.doing.values()))) if task.doing else ()
            if task.key is not None:
                rivals = self.replacing.get((task.lane, task.key))
                if rivals:
                    ops += (("replace", 0),) * sum(t is not task for t in rivals.values())
            if depth == 2:
                claims = task.lane.claims(self.mono_us)
        time = 0
        if task.ttl_us is not None or task.dead_retention_us is not None:
            time = self.time(task)
        states = task.states
        if not ops and claims == NO_CLAIMS and not time and not any(s[3] & SHORT for s in states):
            return states
        return reachable(states, ops, claims, task.attempts_max, time)

    def _soften(self, task: Known) -> None:
        """The lease in hand may have run out by now."""
        task.until_us = 1 << 62
        task.states = frozenset(
            leased(s[1], s[2], s[3] | SHORT) if s[0] == "leased" and s[2] == task.epoch else s
            for s in task.states
        )

    def narrow(
        self,
        task: Known,
        seen: Callable[[State], Iterable[State]],
        rule: int,
        why: str,
        *,
        is_wide: bool = False,
    ) -> None:
        """An observation: ``seen`` says what a state can be after it, nothing if it rules it out.

        What is not needed to explain it is not assumed: it stays under way. ``is_wide`` where
        what is under way could lead to another state that explains it as well.
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
            # A short lease may have run out, and explains what they would; so may another of
            # several states, with what is under way: either may be true.
            task.assumed.update(task.doing)
            before = self.possible(task, 2 if is_open else max(depth, 1))
            states |= frozenset(new for s in before for new in seen(s))
        if self.is_tracking and before != task.states:
            self.trace(task, before)  # what lies between may be all that survives
        self.settle(task, states)

    def settle(self, task: Known, states: States) -> None:
        """Exactly these are left."""
        task.states = states
        is_over = True
        for s in states:
            if s[0] in LIVE or s[0] == "absent":
                is_over = False
                break
        task.ended_at = (task.ended_at or self.at) if is_over else 0
        if self.is_tracking:
            self.trace(task, states)

    def succeed(self, call: Call, task: Known, op: Op) -> None:
        """An operation on the task has succeeded."""
        most, time = task.attempts_max, self.time(task)
        if call.op in task.assumed:  # what came after it may have answered first
            task.states |= {n for s in self.possible(task, 0) for n in outcomes(s, op, most, time)}
            if self.is_tracking:
                self.trace(task, task.states)
            return
        rule = 5 if op[1] else 3
        why = f"{op} cannot have succeeded"
        # These two end a task wherever it is: what else was under way may have come before them.
        is_wide = op[0] in {"purge", "cancel"} and bool(task.doing)
        self.narrow(task, lambda s: outcomes(s, op, most, time), rule, why, is_wide=is_wide)

    # -- tasks -----------------------------------------------------------------------------

    def _invoke(self, call: Call) -> None:
        if call.op in self.calls:
            raise BrokenError(f"operation {call.op} was invoked twice")
        self.calls[call.op] = call
        self.invoked += 1
        self.next_op = max(self.next_op, call.op + 1)
        params = call.params
        last: dict[tuple[Lane, int], Known] = {}
        for told in [*params.get("tasks", ()), *params.get("then", ())]:
            lane = self.lane(told["queue"], told.get("tenant", ""))
            task = self.tasks[told["n"]] = Known(told, lane, call)
            lane.tasks.append(task)
            self.next_number = max(self.next_number, task.number + 1)
            if task.key is not None:
                self.by_key[lane, task.key].append(task)
                if told.get("conflict") == "replace":
                    self.replacing[lane, task.key][call.op] = task
            elif (before := last.get((lane, task.priority))) is not None:
                before.follower = task
            last[lane, task.priority] = task
            self.start(call, task, ("enqueue", 0))
            for other in lane.ranges.values():
                answers.start_late(self, other, task)
        if "n" in params:
            task = self.tasks[params["n"]]
            task.completes += call.kind == "complete"
            task.leaves_nothing |= not params.get("keep", True)
            self.start(call, task, (call.kind, params.get("epoch", 0)))
        for number, epoch in params.get("pairs", ()):
            self.tasks[number].completes += 1
            self.start(call, self.tasks[number], ("complete", epoch))
        answers.invoked(self, call)

    def enqueued(self, call: Call, task: Known) -> None:
        """Its enqueue has succeeded; whatever may have happened to it since."""
        task.acked_at = self.at
        self.narrow(
            task, lambda s: (pending(0),) if s == ABSENT else (s,), 2, "it cannot be enqueued"
        )
        if call.params.get("durable") and self.is_tracking:
            self.solidify(call, task, [pending(0)])

    def absent(self, task: Known, why: str) -> None:
        """It must not be there."""
        self.narrow(task, lambda s: (s,) if s == ABSENT else (), 3, why)

    def exists(self, task: Known) -> None:
        """The engine has named it, so its enqueue has happened."""
        self.narrow(task, lambda s: () if s == ABSENT else (s,), 1, "a task it named is missing")

    # -- the end ---------------------------------------------------------------------------

    def killed(self) -> None:
        """The process died: what was under way has happened or not; nothing more will."""
        self.take(["kill"])

    def ended(self) -> None:
        """After a full drain: every task that ever was has ended, once."""
        for task in self.tasks.values():
            if any(s[0] in LIVE for s in task.states):
                raise self.fail(task, 12, "it is not over after a full drain")
