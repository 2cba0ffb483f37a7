"""The history checker: takes the records of one store and checks them against docs/history.md.

``History`` tracks which states each task can be in (``inference``), from the operations that were
invoked, answered, interrupted and found. It raises ``BrokenError`` at the first record that no
history of a store that keeps its promises explains. ``check`` takes a whole list of records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import answers, crashes, reopened
from .inference import Inference
from .rules import BrokenError
from .states import LIVE
from .task_model import Call, QueueModel, TaskModel

__all__ = ["History"]


class History(Inference):
    """The history of one store: feed it record by record with ``take``.

    Args:
        shards: how many the store has.
        durability: of the engine; it decides what a power cut may take.
        order_across_shards: check rule 7 over all shards of a queue, not only within each.
        keeps_results: False where results may go before their time (``Limits.results_max``).
        tracks_power: False saves memory where no power is ever cut.
        history_s: ``Limits.history_s`` of the store; 0: it keeps no history (rule 23 is not asked).
    """

    # -- records ---------------------------------------------------------------------------

    def take(self, record: Sequence[Any]) -> None:
        """Take one record; raise ``BrokenError`` if it cannot be true."""
        self.at += 1
        what = record[0]
        if what == "flow":
            self.flows.take(record)
            self._clock(record[-2:])
        elif what == "i":
            _, op, kind, params, *times = record
            self._clock(times)
            call = Call(op, kind, params, self.at, self.wall_us, self.mono_us)
            self.limits.invoked(call)
            self._invoke(call)
        elif what == "a":
            self._clock(record[3:])
            call = self._end(record, "answered")
            self.acked += 1
            answers.answered(self, call, record[2])
            self._check_limits(call, record[2])
        elif what == "e":
            self._clock(record[4:])
            call = self._end(record, f"raised {record[2]}")
            self.refused += 1
            answers.refused(self, call, record[2], record[3] if len(record) > 3 else None)
        elif what in {"u", "c"}:
            self._open_ended(what, record)
        elif what == "wall":
            self.limits.stepped(self.at)
            self._clock(record[1:])
            self.life_us = -1
        elif what == "sync":
            self.syncing[record[1], record[2]] = self.at
        elif what == "synced":
            self.solid(record[1], self.syncing.pop((record[1], record[2]), 0))
        elif what == "kill":
            self.limits.died()
            self.life_us = -1
            crashes.killed(self)
        elif what == "power":
            self.limits.died()
            self.life_us = -1
            crashes.cut(self)
            self.flows.ledger.power_cut()
        elif what == "found":
            self._clock(record[2:])
            self.found += 1
            reopened.look(self, record[1])
        elif what == "drained":
            self.ended()
        else:
            raise BrokenError(f"the process failed: {record[1:]}")

    def take_all(self, records: Iterable[Sequence[Any]]) -> None:
        """Take every record."""
        for record in records:
            self.take(record)

    def _check_limits(self, call: Call, answer: Any) -> None:
        queues: dict[int, str] = {}
        if call.kind == "claim":
            queues = {number: self.tasks[number].queue_model.name[0] for number, *_ in answer}
        self.limits.answered(call, answer, queues, self.at, self.mono_us)

    def _clock(self, times: Sequence[Any]) -> None:
        if not times or times[0] is None:
            return
        wall_us: int = times[0]
        if wall_us < self.wall_us:  # stepped back: any operation under way may have seen it
            for call in self.calls.values():
                call.wall_us = min(call.wall_us, wall_us)
            for task in self.tasks.values():
                task.since_us = min(task.since_us, wall_us)
            passed_us = times[1] - self.mono_us if len(times) > 1 and self.mono_us else 0
            self.wall_max_us = max(self.wall_max_us, self.wall_us + passed_us)
        self.wall_us = wall_us
        if wall_us > self.wall_max_us:
            self.wall_max_us = wall_us
        if len(times) > 1 and self.life_us < 0:
            self.life_us = times[1]
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
        for queue_model in call.queue_models:
            queue_model.open.pop(call.op, None)
            queue_model.ranges.pop(call.op, None)
        for queue, tenant in call.keys:
            if tenant is None:
                self.every_tenant[queue].pop(call.op, None)

    def _open_ended(self, what: str, record: Sequence[Any]) -> None:
        """Cancelled, or of unknown outcome: it may happen yet, so it stays under way."""
        self._clock(record[2 if what == "c" else 4 :])
        call = self.calls[record[1]]
        is_unknown = what == "u"
        self.unknown += is_unknown
        if is_unknown:
            self.limits.unknown()
        self.cancelled += not is_unknown
        text = f"{call.op} {call.kind} " + ("unknown" if is_unknown else "cancelled")
        for task in call.tasks:
            task.note(self.at, text)
        if call.kind == "claim":
            flags = call.flags(self.mono_us)
            for queue_model in call.queue_models:
                queue_model.loose[flags] += 1
                queue_model.loose_at = self.at
            # The tasks of a cancelled claim go back at once, those of a failed one at the open.
            until = 1 << 62 if is_unknown else self.at
            self.disturbed.append((call.at, until, call.queue_models))
        elif is_unknown and len(record) > 3 and record[3]:
            answers.partly(self, call, record[3])
        self._close(call)

    # -- tasks -----------------------------------------------------------------------------

    def _invoke(self, call: Call) -> None:
        if call.op in self.calls:
            raise BrokenError(f"operation {call.op} was invoked twice")
        self.calls[call.op] = call
        self.invoked += 1
        self.next_op = max(self.next_op, call.op + 1)
        params = call.params
        last: dict[tuple[QueueModel, int], TaskModel] = {}
        for fields in [*params.get("tasks", ()), *params.get("then", ())]:
            queue_model = self.queue_model(fields["queue"], fields.get("tenant", ""))
            task = self.tasks[fields["n"]] = TaskModel(fields, queue_model, call)
            queue_model.tasks.append(task)
            self.next_number = max(self.next_number, task.number + 1)
            if task.key is not None:
                self.by_key[queue_model, task.key].append(task)
                if fields.get("conflict") == "replace":
                    self.replacing[queue_model, task.key][call.op] = task
            elif (before := last.get((queue_model, task.priority))) is not None:
                before.follower = task
            last[queue_model, task.priority] = task
            self.start(call, task, ("enqueue", 0))
            for other in queue_model.ranges.values():
                answers.start_late(self, other, task)
        if "n" in params:
            task = self.tasks[params["n"]]
            task.completes += call.kind == "complete"
            task.leaves_nothing |= not params.get("keep", True)
            task.drops_value |= not params.get("keep", True) or not params.get("value", True)
            self.start(call, task, (call.kind, params.get("epoch", 0)))
        for number, epoch in params.get("pairs", ()):
            self.tasks[number].completes += 1
            self.tasks[number].drops_value |= not params.get("value", True)
            self.start(call, self.tasks[number], ("complete", epoch))
        answers.invoked(self, call)

    # -- the end ---------------------------------------------------------------------------

    def killed(self) -> None:
        """Note that the process died: operations under way have happened or not, and never will."""
        self.take(["kill"])

    def ended(self) -> None:
        """Check, after a full drain, that every task has ended."""
        for task in self.tasks.values():
            if any(s[0] in LIVE for s in task.states):
                raise self.fail(task, 12, "it has not ended after a full drain")
