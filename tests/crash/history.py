"""The parent's history of one store, and the promises it is held to.

Fed with every record of every child (``load.py``) and told of every kill, it tracks which states
each task can be in (``states.py``). It raises ``BrokenError`` on: an acknowledged task lost; a task
nobody enqueued; a delivery after a complete, with the wrong attempt, or of a task somebody holds;
an answer no history explains; a batch of which a part is there; two live tasks of one dedup key;
counters that differ from a recount; anything ``verify()`` finds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from crash.reopened import look
from crash.states import (
    ABSENT,
    LIVE,
    BrokenError,
    Op,
    State,
    States,
    after,
    leased,
    pending,
    reachable,
    restarted,
)


class Known:
    """One task, as far as the parent can tell."""

    __slots__ = ("assumed", "attempts_max", "doing", "ended_at", "epoch", "id", "is_windowed",
                 "key", "log", "number", "queue", "states")  # fmt: skip

    def __init__(self, told: list) -> None:
        self.number, self.queue, self.key, self.attempts_max, self.is_windowed = told
        self.states: States = frozenset([ABSENT])
        self.doing: dict[int, Op] = {}  # operations under way
        self.assumed: set[int] = set()  # of these, what an observation needed to be explained
        self.id = ""
        self.epoch = 0
        self.ended_at = 0
        self.log: list[str] = []


class Call:
    """An operation that was invoked and has not answered."""

    __slots__ = ("at", "kind", "op", "params", "sure", "tasks")

    def __init__(self, op: int, kind: str, params: dict, at: int) -> None:
        self.op, self.kind, self.params, self.at = op, kind, params, at
        self.tasks: list[Known] = []
        self.sure: list[Known] = []  # of a complete_many: leases that nothing could have ended


class History:
    """See the module's docstring."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.tasks: dict[int, Known] = {}
        self.by_id: dict[str, Known] = {}
        self.by_key: dict[tuple, list[Known]] = defaultdict(list)
        self.calls: dict[int, Call] = {}
        self.interrupted: list[Call] = []  # under way at a kill, since the last look
        self.owed: set[str] = set()  # ids the engine has named and we cannot place yet
        self.replaced: set[str] = set()  # ids that gave way to another task of their key
        self.strangers: set[str] = set()  # results of tasks that ended before we heard their id
        self.grown: dict[int, int] = {}  # attempts of tasks that only a claim could raise
        self.claimable = 0  # how many of them interrupted claims can have taken
        self.at = 0
        self.acked = 0
        self.found = 0
        self.next_number = 0

    # -- records ---------------------------------------------------------------------------

    def take(self, record: list) -> None:
        """One record of a child."""
        self.at += 1
        what = record[0]
        if what == "i":
            self._invoked(Call(record[1], record[2], record[3], self.at))
        elif what in {"a", "e"}:
            call = self.calls.pop(record[1])
            for task in call.tasks:
                task.doing.pop(call.op, None)
                task.log.append(f"{self.at}: {call.op} {call.kind} -> {str(record[2:])[:100]}")
            if what == "a":
                self.acked += 1
                getattr(self, f"_{call.kind}_done")(call, record[2])
            else:
                self._refused(call, record[2], record[3])
        elif what == "found":
            self.found += 1
            look(self, record[1])
        elif what != "c":  # cancelled: it may happen yet, so it stays under way
            raise BrokenError(f"the child failed: {record[1]}")

    def fail(self, task: Known, why: str, states: States | None = None) -> None:
        shown = sorted(task.states if states is None else states)
        raise BrokenError("\n".join([
            f"task {task.number} ({task.id}, key {task.key}): {why}; it could have been {shown}",
            *task.log[-20:],
        ]))  # fmt: skip

    def possible(self, task: Known, depth: int = 2) -> States:
        """Every state the task can be in now: by itself (0), with what is under way on it done
        or not (1), and with claims that have not answered (2)."""
        longs = shorts = 0
        ops = list(task.doing.values()) if depth else []
        for call in self.calls.values():
            if call.kind == "claim" and depth == 2 and task.queue in call.params["queues"]:
                longs, shorts = longs + (not call.params["short"]), shorts + call.params["short"]
            elif depth and call.kind == "enqueue" and call.params["conflict"] == "replace":
                told = call.params["tasks"][0]
                if (told[1], told[2]) == (task.queue, task.key) and told[0] != task.number:
                    ops.append(("replace", 0))
        # Nothing of ours follows a lease whose epoch nobody knows, so one long claim is as many.
        return reachable(
            task.states, tuple(sorted(ops)), min(longs, 1), min(shorts, 4), task.attempts_max
        )

    def narrow(self, task: Known, seen: Callable[[State], State | None], why: str) -> None:
        """An observation: ``seen`` says what a state is after it, None if it rules it out.

        What is not needed to explain it is not assumed: it stays under way.
        """
        for depth in range(3):
            states = frozenset(new for s in self.possible(task, depth) if (new := seen(s)))
            if states:
                break
        else:
            self.fail(task, why, self.possible(task))
        if depth or any(s[3] for s in task.states):
            # A short lease may have run out, and explains what they would: either may be true.
            task.assumed.update(task.doing)
            also = self.possible(task, max(depth, 1))
            states |= frozenset(new for s in also if (new := seen(s)))
        self.settle(task, states)

    def settle(self, task: Known, states: States) -> None:
        """Exactly these are left."""
        task.states = states
        is_over = not any(s[0] in LIVE or s[0] == "absent" for s in states)
        task.ended_at = (task.ended_at or self.at) if is_over else 0

    def succeed(self, call: Call, task: Known, op: Op) -> None:
        """An operation on the task has succeeded."""
        if call.op in task.assumed:  # what came after it may have answered first
            states = (after(s, op, task.attempts_max) for s in self.possible(task, 0))
            task.states |= {s for s in states if s}
            return
        self.narrow(task, lambda s: after(s, op, task.attempts_max), f"{op} cannot have succeeded")

    def enqueued(self, task: Known) -> None:
        """Its enqueue has succeeded; whatever may have happened to it since."""
        self.narrow(task, lambda s: pending(0) if s == ABSENT else s, "cannot be enqueued")

    def absent(self, task: Known, why: str) -> None:
        self.narrow(task, lambda s: s if s == ABSENT else None, why)

    def exists(self, task: Known) -> None:
        self.narrow(task, lambda s: None if s == ABSENT else s, "an acknowledged task is missing")

    def named(self, task: Known, task_id: str) -> None:
        """Number and id belong together, for good."""
        known = self.by_id.setdefault(task_id, task)
        if known is not task or task.id not in {"", task_id}:
            self.fail(task, f"id {task_id} is also that of {known.number}")
        task.id = task_id
        self.owed.discard(task_id)

    # -- invoked ---------------------------------------------------------------------------

    def _invoked(self, call: Call) -> None:
        self.calls[call.op] = call
        params = call.params
        for told in [*params.get("tasks", ()), *params.get("then", ())]:
            task = self.tasks[told[0]] = Known(told)
            self.next_number = max(self.next_number, told[0])
            if task.key:
                self.by_key[task.queue, task.key].append(task)
            self._start(call, task, ("enqueue", 0))
        if "n" in params:
            self._start(call, self.tasks[params["n"]], (call.kind, params.get("epoch", 0)))
        for number, epoch in params.get("pairs", ()):
            self._start(call, self.tasks[number], ("complete", epoch))

    def _start(self, call: Call, task: Known, op: Op) -> None:
        call.tasks.append(task)
        task.doing[call.op] = op
        task.log.append(f"{call.at}: {call.op} {call.kind} {op}")

    # -- acknowledged ----------------------------------------------------------------------

    def _enqueue_done(self, call: Call, receipts: list) -> None:
        for task, (task_id, is_duplicate, replaced) in zip(call.tasks, receipts, strict=True):
            if is_duplicate:
                self._held(call, task, task_id)
                continue
            self.named(task, task_id)
            self.enqueued(task)
            if task_id in self.replaced:  # told before its own enqueue was
                self._gave_way(task)
            if replaced:
                self.replaced.add(replaced)
                if replaced in self.by_id:
                    self._gave_way(self.by_id[replaced])
                else:
                    self.owed.add(replaced)
            if task.key and all(s[0] in LIVE for s in self.possible(task)):
                self._check_rivals(task)

    def _gave_way(self, task: Known) -> None:
        self.narrow(
            task,
            lambda s: s if s[0] in {"cancelled", "gone"} else after(s, ("replace", 0), 1),
            "it was replaced",
        )

    def _check_rivals(self, task: Known) -> None:
        for other in self.by_key[task.queue, task.key]:
            if other is not task and all(s[0] in LIVE for s in self.possible(other)):
                self.fail(task, f"the dedup key is held by {other.number}, which is live")

    def _held(self, call: Call, task: Known, holder_id: str) -> None:
        """Not enqueued: the key is held. The holder is then acknowledged as well."""
        self.absent(task, "a duplicate was enqueued")
        holder = self.by_id.get(holder_id)
        if holder is None:
            self.owed.add(holder_id)
            return
        if holder.key != task.key or holder.queue != task.queue:
            self.fail(task, f"{holder.number} has another key")
        self.exists(holder)
        is_live = any(s[0] in LIVE for s in self.possible(holder, 1))  # redriven, perhaps
        if 0 < holder.ended_at < call.at and not holder.is_windowed and not is_live:
            self.fail(holder, f"it had ended and still held the key of {task.number}")

    def _claim_done(self, call: Call, delivered: list) -> None:
        for number, task_id, attempt, epoch in delivered:
            task = self.tasks.get(number)
            if task is None:
                raise BrokenError(f"task {number} was delivered and never enqueued")
            self.named(task, task_id)
            task.log.append(f"{self.at}: {call.op} claim -> attempt {attempt} epoch {epoch}")
            if task.queue not in call.params["queues"]:
                self.fail(task, "delivered from a queue it is not in")
            states = self.possible(task)
            overtaken = call.at < task.ended_at or epoch < task.epoch
            if pending(attempt - 1) not in states and overtaken:
                continue  # its lease was revoked before this answer could be given
            if epoch <= task.epoch:
                self.fail(task, f"epoch {epoch} after {task.epoch}")
            task.epoch = epoch
            new = leased(attempt, epoch, is_short=call.params["short"])
            before = pending(attempt - 1)
            self.narrow(
                task, lambda s, before=before, new=new: new if s == before else None,
                f"it cannot have been delivered as attempt {attempt}",
            )  # fmt: skip

    def _complete_done(self, call: Call, _: None) -> None:
        *then, task = call.tasks
        self.succeed(call, task, (call.kind, call.params["epoch"]))
        for other in then:
            self.enqueued(other)

    _nack_done = _release_done = _bury_done = _heartbeat_done = _complete_done

    def _complete_many_done(self, call: Call, outcome: list) -> None:
        pairs = zip(call.tasks, call.params["pairs"], outcome, strict=True)
        for task, (_, epoch), is_completed in pairs:
            if is_completed:
                self.succeed(call, task, ("complete", epoch))
            else:
                self._lost(task, epoch)

    def _cancel_done(self, call: Call, was_there: bool) -> None:
        (task,) = call.tasks
        if was_there:
            self.succeed(call, task, ("cancel", 0))
        else:
            self.narrow(task, lambda s: None if s[0] in LIVE else s, "cancel did not find it")

    def _redrive_done(self, call: Call, _: None) -> None:
        self.succeed(call, call.tasks[0], ("redrive", 0))

    def _refused(self, call: Call, error: str, holder: str | None) -> None:
        if error == "LeaseLostError":
            *then, task = call.tasks
            self._lost(task, call.params["epoch"])
            for other in then:
                self.absent(other, "it follows a task that was not completed")
        elif call.kind == "enqueue" and error == "DuplicateTaskError":
            self._held(call, call.tasks[0], holder or "")
        elif call.kind != "redrive":
            raise BrokenError(f"{call.kind} {call.params} raised {error}")

    def _lost(self, task: Known, epoch: int) -> None:
        """Something must have ended the lease. It may be queued only: a kill can still undo it."""
        states = self.possible(task)
        if all(s[0] == "leased" and s[2] == epoch for s in states):
            self.fail(task, f"the lease of epoch {epoch} was lost without a reason", states)

    # -- kills -----------------------------------------------------------------------------

    def killed(self) -> None:
        """Whatever was under way has happened or not; nothing more will."""
        for call in self.calls.values():
            if call.kind == "claim":
                self.claimable += call.params["limit"]
            leased_tasks = list(zip(call.tasks, call.params.get("pairs", ()), strict=False))
            if call.kind == "complete":
                leased_tasks = [(call.tasks[-1], (0, call.params["epoch"]))]
            for task, (_, epoch) in leased_tasks:
                (state, *others) = task.states
                if not others and state[2] == epoch and not state[3] and len(task.doing) == 1:
                    call.sure.append(task)
        for task in self.tasks.values():
            if any(s[0] in LIVE or s[0] == "dead" for s in task.states) or task.doing:
                (state, *others) = task.states
                if not others and state[0] == "pending":
                    self.grown.setdefault(task.number, state[1])
                task.states = restarted(self.possible(task), task.attempts_max)
                task.log.append(f"{self.at}: killed")
        for task in self.tasks.values():
            task.doing.clear()
            task.assumed.clear()
        self.interrupted += self.calls.values()
        self.calls.clear()

    def ended(self) -> None:
        """After a full drain: every task that ever was has ended, once."""
        for task in self.tasks.values():
            if any(s[0] in LIVE for s in task.states) or (len(task.states) > 1 and task.id):
                self.fail(task, "it is not over after a full drain")
