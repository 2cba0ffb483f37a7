"""What a user of the engine knows at a point of a trace, and what may therefore be found there.

Fed with the marks of ``work.py``. A task's states form a chain, for its operations follow one
another; each entry is the set of states it may be in from there on. What is durable cuts the chain:
in fsync mode every acknowledgement does, in nosync mode an ``fsync()``, a close, a ``durable=True``
and an open (what it showed is in synced tables). What was acknowledged after that may be there or
not, each batch for itself; what was not acknowledged may always be either.

Of a process that died (``is_power=False``) everything acknowledged must be there, in both modes.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

State = tuple[str, int]  # kind, attempts
ABSENT: State = ("absent", 0)
PENDING: State = ("pending", 0)
RESULTS = {"completed": "completed", "cancelled": "cancelled"}
PLACES = {
    "ready": "pending",
    "delayed": "pending",
    "dead": "dead",
    "leased": "exported",
    "held": "held on",
}
HELD = {False: "held", True: "held on"}  # a dead letter under a lease; exported, after an open, too


class LostError(AssertionError):
    """A promise of the engine was not kept."""


def given_back(attempts: int, attempts_max: int) -> State:
    """After a failure that counts."""
    return ("pending" if attempts < attempts_max else "dead", attempts)


class Task:
    """One task. ``chain``: (mark from which it may be so, operation, states), the first durable."""

    __slots__ = ("attempts_max", "born", "chain", "doing", "id", "last", "number", "queue")

    def __init__(self, told: list, op: int) -> None:
        self.number, self.queue, self.attempts_max = told
        self.id = ""
        self.born = self.last = op
        self.chain: list[tuple[int, int, frozenset[State]]] = [(0, 0, frozenset([ABSENT]))]
        self.doing: dict[int, str] = {}

    def after(self, kind: str) -> frozenset[State]:
        """What an operation makes of it."""
        states = self.chain[-1][2]
        if kind in {"enqueue", "redrive", "redrive_lease"}:
            return frozenset([PENDING])
        if kind in {"complete", "cancel", "bury", "replaced", "nack", "release"}:
            return frozenset(_ended(kind, state, self.attempts_max) for state in states)
        return states

    def possible(self, claims: list[dict]) -> set[State]:
        """Every state it may be found in now, by an engine that has just been opened."""
        states = {state for *_, entry in self.chain for state in entry}
        for kind in self.doing.values():
            states |= self.after(kind)
        for params in claims:
            if self.queue in params.get("queues", ()):
                kind = "exported" if params["exported"] else "leased"
                states |= {(kind, n + 1) for k, n in states if k == "pending"}
            if params.get("queue") == self.queue:  # of dead letters
                states |= {(HELD[params["exported"]], n) for k, n in states if k == "dead"}
        back = {"leased": lambda n: given_back(n, self.attempts_max), "held": lambda n: ("dead", n)}
        return {back[kind](n) if kind in back else (kind, n) for kind, n in states}


def _ended(kind: str, state: State, attempts_max: int) -> State:
    attempts = state[1]
    if kind == "nack" and state[0] in HELD.values():
        return ("dead", attempts)
    if kind == "nack":
        return given_back(attempts, attempts_max)
    if kind == "release":
        return ("pending", attempts - 1)
    return ({"complete": "completed", "bury": "dead"}.get(kind, "cancelled"), attempts)


class Knowledge:
    """See the module's docstring."""

    def __init__(self, *, is_fsync: bool, is_power: bool = True) -> None:
        self.is_certain = is_fsync or not is_power
        self.tasks: dict[int, Task] = {}
        self.by_id: dict[str, Task] = {}
        self.calls: dict[int, tuple[int, str, dict]] = {}  # not answered: mark, kind, params
        self.batches: dict[int, tuple[str, list[Task]]] = {}  # of several tasks, not yet durable
        self.unsettled: set[Task] = set()  # whose chain has more than its durable entry
        self.epochs: dict[str, int] = {}  # by task id: those of different shards tell nothing
        self.at = 0
        self.acked = 0
        self.lives = 0
        self.copies: list[str] = []  # checkpoints that are whole
        self.payloads_lost: set[int] = set()  # and told to be

    # -- marks -------------------------------------------------------------------------------

    def feed(self, record: list) -> None:
        """One mark."""
        self.at += 1
        what = record[0]
        if what == "i":
            self._invoked(record[1], record[2], record[3])
        elif what == "a":
            _, kind, params = self.calls[record[1]]
            self._answered(record[1], kind, params, record[2])
            del self.calls[record[1]]
            self.acked += 1
        elif what == "found":
            self.check(record[1])
            self._settle(record[1])
        elif what == "died":
            self.died()
        else:
            raise LostError(f"the workload failed: {record}")

    def _invoked(self, op: int, kind: str, params: dict) -> None:
        self.calls[op] = self.at, kind, params
        made = [Task(told, op) for told in params.get("tasks", ())]
        for task in made:
            self.tasks[task.number] = task
            task.doing[op] = "enqueue"
        old = [self.tasks[number] for number in params.get("numbers", ())]
        for task in old:
            task.doing[op] = kind
            task.last = op
        if len(made) + len(old) > 1 and not params.get("parts"):
            self.batches[op] = kind, [*old, *made]

    def _answered(self, op: int, kind: str, params: dict, answer: Any) -> None:
        numbers = [told[0] for told in params.get("tasks", ())]
        for number, task_id in zip(numbers, answer or () if numbers else (), strict=False):
            self._named(self.tasks[number], task_id)
        touched = [self.tasks[n] for n in [*params.get("numbers", ()), *numbers]]
        for task in touched:
            if doing := task.doing.pop(op, None):  # None: a delivery has told before it did
                self._grow(task, op, task.after(doing))
        if kind in {"claim", "claim_dead"}:
            touched = [self._delivered(op, kind, params, *one) for one in answer]
        if self.is_certain or params.get("durable"):
            for task in touched:
                self._cut(task, [i for i, entry in enumerate(task.chain) if entry[1] == op])
            self.batches.pop(op, None)
        if kind == "checkpoint":
            self.copies.append(params["path"])
        if kind in {"fsync", "close"}:
            self._all_durable(self.calls[op][0])

    def _grow(self, task: Task, op: int, states: frozenset[State]) -> None:
        task.chain.append((self.at, op, states))
        self.unsettled.add(task)

    def _delivered(
        self, op: int, how: str, params: dict, number: int, task_id: str, attempt: int, epoch: int
    ) -> Task:
        task = self.tasks.get(number)
        if task is None:
            raise LostError(f"task {number} was delivered and never enqueued")
        self._named(task, task_id)
        before = ("pending", attempt - 1) if how == "claim" else ("dead", attempt)
        if before not in task.chain[-1][2]:
            doing = [op for op, kind in task.doing.items() if before in task.after(kind)]
            if not doing:
                raise LostError(f"task {number}, {task.chain}, was delivered as attempt {attempt}")
            self._grow(task, doing[0], task.after(task.doing.pop(doing[0])))
        self.epochs[task_id] = max(self.epochs.get(task_id, 0), epoch)
        task.last = op
        kind = "exported" if params["exported"] else "leased"
        kind = kind if how == "claim" else HELD[params["exported"]]
        self._grow(task, op, frozenset([(kind, attempt)]))
        return task

    def _named(self, task: Task, task_id: str) -> None:
        if self.by_id.setdefault(task_id, task) is not task or task.id not in {"", task_id}:
            raise LostError(f"task {task.number} ({task.id}) is also {task_id}")
        task.id = task_id

    def _cut(self, task: Task, durable: list[int]) -> None:
        """These entries of its chain are durable."""
        del task.chain[: max(durable, default=0)]
        if len(task.chain) == 1:
            self.unsettled.discard(task)

    def _all_durable(self, mark: int) -> None:
        """What was acknowledged before this mark is."""
        for task in list(self.unsettled):
            self._cut(task, [i for i, entry in enumerate(task.chain) if entry[0] <= mark])
        for op, (_, tasks) in list(self.batches.items()):
            if op not in self.calls and not any(task in self.unsettled for task in tasks):
                del self.batches[op]

    def died(self) -> None:
        """The process is gone; whatever was under way has happened or not."""
        claims = self._claims()
        for task in self.tasks.values():
            states = frozenset(task.possible(claims))
            if len(states) > 1 or states != task.chain[-1][2]:
                task.chain = [(self.at, 0, states)]
            task.doing.clear()
        self.unsettled.clear()
        self.calls.clear()

    def _claims(self) -> list[dict]:
        return [
            params for _, kind, params in self.calls.values() if kind in {"claim", "claim_dead"}
        ]

    # -- what is found -----------------------------------------------------------------------

    def check(self, found: dict) -> None:
        """Hold what a reopened store holds against what is known."""
        if found["findings"] or found["anomalies"]:
            raise LostError(f"verify: {found['findings'][:9]}; anomalies: {found['anomalies'][:5]}")
        if found["rows"] != found["counted"]:
            raise LostError(f"counters {found['counted']}, rows {found['rows']}")
        seen = self._seen(found)
        claims = self._claims()
        wrong = [self._without_payload(number, claims) for number in found["lost"]]
        wrong = [text for text in wrong if text]
        for task in self.tasks.values():
            state = seen.get(task.number, ABSENT)
            if state in (states := task.possible(claims)):
                continue
            if state[0] == "cancelled" and any(kind == "cancelled" for kind, _ in states):
                continue  # after whatever attempts
            if state[0] == "dead" and task.number in self.payloads_lost:
                continue  # a claim has met it
            wrong.append(
                f"task {task.number} ({task.id}) is {state}, not one of {sorted(states)}: "
                f"chain {task.chain}, under way {task.doing}"
            )
        if wrong:
            raise LostError("\n".join([f"{len(wrong)} tasks are wrong", *wrong[:5]]))
        self._check_batches(seen)

    def _without_payload(self, number: int | None, claims: list[dict]) -> str:
        """What is wrong with a task that is there without its payload; '' if that may be.

        In nosync mode its rows may outlive a power cut that takes its payload, as long as all of it
        might have been taken.
        """
        task = self.tasks.get(number)
        if task is None:
            return f"a task of number {number} has no payload"
        if number in self.payloads_lost:
            return ""
        if self.is_certain or ABSENT not in task.possible(claims):
            return f"task {number} ({task.id}) has lost its payload: chain {task.chain}"
        return ""

    def _seen(self, found: dict) -> dict[int, State]:
        """The state of every task there is, by number."""
        seen: dict[int, State] = {}
        for task_id, number, places in found["tasks"]:
            task = self.tasks.get(number)
            if task is None or len(places) != 1 or number in seen:
                raise LostError(f"task {task_id} of number {number} is at {places}")
            self._named(task, task_id)
            kind, attempts, _ = places[0]
            seen[number] = PLACES[kind], attempts
        for task_id, status, attempts in found["results"]:
            known = self.by_id.get(task_id)
            if status == "dead":
                continue
            if known is None and status == "cancelled":
                continue  # given way before its id was told
            if known is None or known.number in seen:
                raise LostError(f"a result of {known and known.number} ({task_id}): {status}")
            seen[known.number] = RESULTS[status], attempts
        return seen

    def _check_batches(self, seen: dict[int, State]) -> None:
        """A batch is there as a whole or not at all, as far as nothing has followed it."""
        for op, (kind, tasks) in self.batches.items():
            is_there = defaultdict(set)
            for task in tasks:
                if task.last == op and task.born == op:
                    is_there[task.number in seen].add(task.number)
                elif task.last == op:
                    state = seen.get(task.number, ABSENT)[0]
                    is_there[state in {"completed", "cancelled"}].add(task.number)
            if len(is_there) > 1:
                raise LostError(f"torn: of batch {op} ({kind}) there is {dict(is_there)}")

    def _settle(self, found: dict) -> None:
        """An open has shown it: from here on it is so, and durable."""
        if self.calls:
            self.died()
        seen = self._seen(found)
        self.payloads_lost.update(found["lost"])
        for task in self.tasks.values():
            task.chain = [(self.at, 0, frozenset([seen.get(task.number, ABSENT)]))]
            task.doing.clear()
        self.unsettled.clear()
        self.batches.clear()
        self.calls.clear()
        self.lives += 1
