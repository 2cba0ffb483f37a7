"""Holds one faulty life against what was promised.

For every task the set of states it may be in is kept: an acknowledged call moves all of them, one
that raised *nothing was written* none, one that raised *unknown* leaves both. A state is
(place, attempts). Whatever the reopened store shows must be among them, each task in one place,
each batch whole.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any

from fault.injector import Event

State = tuple[str, int]
NOTHING = {"StoragePoisonedError", "StorageFullError", "ClosedError"}
UNKNOWN = {"CommitUnknownError"}
# A read that failed: what the call had written by then is not for the caller to know.
READ = {"StorageError", "CorruptionError"}
OPENING = {
    "OpenError",
    "StorePathError",
    "StorageError",
    "StorageFullError",
    "CommitUnknownError",
    "CorruptionError",
    "RecoveryRefusedError",
}
REASONS = ("is poisoned", "is stalled", "read failed", "the disk is nearly full")


class BrokenError(AssertionError):
    """A promise was not kept."""


def demand(holds: object, *what: object) -> None:
    if not holds:
        raise BrokenError(" ".join(str(part) for part in what))


class Judge:
    """Feed it every record with ``take``; it raises ``BrokenError``."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.tasks: dict[int, set[State]] = {}
        self.ids: dict[str, int] = {}
        self.calls: dict[int, tuple[str, Any]] = {}
        self.wholes: list[tuple[str, list[int]]] = []  # batches: all there, or nothing of them
        self.unheard: dict[int, set[State]] = {}  # attempts of leases that nobody was given
        self.is_open = self.is_poisoned = self.was_refused = False
        self.last: tuple[bool, list[str]] | None = None
        self.ends: set[str] = set()
        self.stalls = 0
        self.acked = 0
        self.hits = 0
        self.events: list[Event] = []
        self.refusal: list[str] = []
        self.errors: list[str] = []

    def take(self, record: list) -> None:
        """One record of the child."""
        getattr(
            self, "_" + {"i": "invoked", "a": "answered", "e": "failed"}.get(record[0], record[0])
        )(*record[1:])

    # -- the life ----------------------------------------------------------------------------

    def _crash(self, trace: str) -> None:
        raise BrokenError(f"the child failed:\n{trace}")

    def _hang(self, op: int) -> None:
        raise BrokenError(f"{self.calls[op][0]} never returned")

    def _opened(self, recoveries: list[str]) -> None:
        self.is_open = True
        demand(not recoveries, "open reports", recoveries)

    def _refused(self, kinds: list[str], text: str) -> None:
        self.refusal = [*kinds, text]
        demand("LodeqError" in kinds, "open raised", kinds, text)
        demand(OPENING.intersection(kinds), "open raised", kinds, text)

    def _invoked(self, op: int, kind: str, params: Any) -> None:
        self.calls[op] = (kind, params)

    def _answered(self, op: int, answer: Any) -> None:
        kind, params = self.calls.pop(op)
        self.acked += 1
        if kind.startswith("enqueue"):
            for (number, place), task_id in zip(params, answer, strict=True):
                self.tasks[number] = {(place, 0)}
                self.ids[task_id] = number
            self._whole(kind, params)
        elif kind == "claim":
            for number, task_id, attempt in answer:
                self._claimed(number, task_id, attempt)
            if len(answer) < params:
                self._left_out({number for number, _, _ in answer})
        elif kind == "cancel":
            self.tasks[params] = (
                {("cancelled", 0)}
                if answer
                else {state for state in self.tasks[params] if state[0] not in {"ready", "leased"}}
            )
            demand(self.tasks[params], f"cancel says that task {params} is over")
        elif kind not in {"fsync", "checkpoint", "get"}:
            self._move(kind, params)

    def _claimed(self, number: int, task_id: str, attempt: int) -> None:
        states = self.tasks.get(number, set())
        demand(
            ("ready", attempt - 1) in states,
            f"task {number}: claimed as attempt {attempt}, may be",
            states,
        )
        self.tasks[number] = {("leased", attempt)}
        self.ids[task_id] = number

    def _left_out(self, named: set[int]) -> None:
        """Where one shard of several fails, a claim gives the leases of the others only."""
        for number, states in self.tasks.items():
            if number not in named:
                more = {("ready", n + 1) for place, n in states if place == "ready"}
                self.unheard.setdefault(number, set()).update(more)

    def _move(self, kind: str, params: Any) -> None:
        number, then = params if kind == "complete" else (params, None)
        self.tasks[number] = {settled(kind, state) for state in self.tasks[number]}
        if then is not None:
            self.tasks[then] = {("ready", 0)}

    def _whole(self, kind: str, params: Any) -> None:
        if kind == "enqueue_whole":
            self.wholes.append((kind, [number for number, _ in params]))

    def _failed(self, op: int, kinds: list[str], text: str, receipts: list) -> None:
        kind, params = self.calls.pop(op)
        self.errors.append(f"{kind}: {kinds[0]}: {text}")
        demand("LodeqError" in kinds, kind, "raised", kinds, text)
        may = NOTHING | UNKNOWN | READ | ({"StorePathError"} if kind == "checkpoint" else set())
        demand(kinds[0] in may, kind, "raised", kinds, text)
        if kinds[0] in {"CommitUnknownError", "StoragePoisonedError"}:
            self.is_poisoned = True
        demand(
            kinds[0] != "CommitUnknownError" or self.shards > 1 or not self.was_refused,
            kind,
            "was attempted on a poisoned shard:",
            text,
        )
        self.was_refused |= kinds[0] == "StoragePoisonedError"
        if kind in {"fsync", "checkpoint", "get"}:
            return
        is_unknown = kinds[0] not in NOTHING
        if kind.startswith("enqueue"):
            for number, place in params:
                self.tasks[number] = {("none", 0)} | ({(place, 0)} if is_unknown else set())
            self._whole(kind, params)
        elif kind == "claim":
            self._claim_failed(params if is_unknown else 0)
        elif is_unknown:
            self._maybe(kind, params)
        elif kind == "complete":
            self.tasks[params[1]] = {("none", 0)}

    def _claim_failed(self, limit: int) -> None:
        for number, states in self.tasks.items() if limit else ():
            more = {("leased", n + 1) for place, n in states if place == "ready"}
            self.tasks[number] = states | more

    def _maybe(self, kind: str, params: Any) -> None:
        number, then = params if kind == "complete" else (params, None)
        states = self.tasks[number]
        self.tasks[number] = states | {settled(kind, state) for state in states}
        if then is not None:
            self.tasks[then] = {("none", 0), ("ready", 0)}
            self.wholes.append(("complete", [-number, then]))

    def _health(self, ok: bool, reasons: list[str]) -> None:
        if self.is_poisoned:
            demand(
                not ok and any("is poisoned" in r for r in reasons),
                "poisoned, health says",
                reasons,
            )
        demand(ok is not bool(reasons), "health says", ok, reasons)
        demand(all(any(word in r for word in REASONS) for r in reasons), "health says", reasons)

    def _stalled(self, reasons: list[str]) -> None:
        self.stalls += 1

    def _last(self, ok: bool, reasons: list[str]) -> None:
        self.last = (ok, reasons)
        self._health(ok, reasons)

    def _closed(self) -> None:
        self.ends.add("closed")

    def _close_failed(self, kinds: list[str], text: str) -> None:
        raise BrokenError(f"close raised {kinds[0]}: {text}")

    def _hits(self, hits: int) -> None:
        self.hits = hits

    def _events(self, events: list[list]) -> None:
        self.events = [Event(*event) for event in events]
        self._judge_syncs()

    def _judge_syncs(self) -> None:
        """After a failed sync of a log that log is never synced again, nor is anything promised."""
        failed: dict[str, int] = {}
        for event in self.events:
            if "/store/" not in event.path:  # a checkpoint's
                continue
            if event.op == "sync" and event.kind in {"wal", "watermark"}:
                # From a full disk RocksDB recovers by itself: it may sync once more in closing.
                again = failed.get(event.path, errno.ENOSPC) != errno.ENOSPC
                demand(not again, "synced again after it had failed:", event.path)
                if event.failed:
                    failed[event.path] = event.failed
            elif event.kind == "watermark" and event.op == "write" and self.is_open:
                shard = event.path.rpartition("watermark")[2].partition(".")[0]
                demand(
                    not any(f"/shard{shard}/" in path for path in failed),
                    "a watermark was written after the log's sync had failed",
                )

    def restarted(self) -> None:
        """The process died: what was leased is back in the queue."""
        self.is_open, self.last, self.acked = False, None, 0
        for number, states in self.tasks.items():
            self.tasks[number] = {("ready", n) if p == "leased" else (p, n) for p, n in states}

    # -- what is there afterwards ------------------------------------------------------------

    def dropped(self) -> dict[str, int]:
        """Logs whose sync failed, and how much of each is on disk if the kernel drops the rest."""
        sizes: dict[str, int] = {}
        found: dict[str, int] = {}
        for event in self.events:
            if event.op == "sync" and event.kind == "wal" and "/store/" in event.path:
                if event.failed:  # what a later sync says of these pages is not true
                    found.setdefault(event.path, sizes.get(event.path, 0))
                else:
                    sizes[event.path] = event.size
        return found

    def _found(self, found: dict) -> None:
        self.ends.add("found")
        demand(not found["findings"], "verify finds", found["findings"])
        demand(not found["anomalies"], "anomalies", found["anomalies"])
        demand(found["counted"] == found["rows"], found["counted"], "!=", found["rows"])
        seen: dict[int, State] = {}
        for task_id, number, places in found["tasks"]:
            demand(number is not None and len(places) == 1, "task", task_id, "is in", places)
            place, attempts, _ = places[0]
            seen[number] = (place, attempts)
            self.ids[task_id] = number
        for task_id, status, attempts in found["results"]:
            if status in {"completed", "cancelled"}:
                demand(task_id in self.ids, "a result of a task nobody enqueued", task_id)
                demand(self.ids[task_id] not in seen, "a finished task is there", task_id)
                seen[self.ids[task_id]] = (status, attempts if status == "completed" else 0)
        for number in self.tasks.keys() | seen.keys():
            self._check(number, seen.get(number, ("none", 0)))
        for kind, numbers in self.wholes:
            there = {self._is_there(n, seen) for n in numbers}
            demand(len(there) == 1, "a torn batch:", kind, numbers, seen)
        self.seen = seen

    def _is_there(self, number: int, seen: dict[int, State]) -> bool:
        if number < 0:  # its end
            return seen.get(-number, ("none", 0))[0] == "completed"
        return number in seen

    def _check(self, number: int, state: State) -> None:
        may = self.tasks.get(number)
        demand(may is not None, "a task nobody enqueued:", number)
        may = {("ready", n) if place == "leased" else (place, n) for place, n in may or ()}
        if self.is_poisoned and self.shards > 1:
            may |= self.unheard.get(number, set())
        demand(state in may, f"task {number} is {state}, may be {sorted(may)}")

    def _drained(self, numbers: list[int], findings: list, reasons: list) -> None:
        self.ends.add("drained")
        ready = sorted(n for n, (place, _) in self.seen.items() if place == "ready")
        demand(sorted(numbers) == ready, "drained", numbers, "of", ready)
        demand(not findings and not reasons, "after the drain", findings, reasons)

    def unanswered(self) -> Iterable[tuple[str, Any]]:
        """Calls that neither returned nor raised."""
        return self.calls.values()

    def settle_unanswered(self) -> None:
        """The process ended under them: each may have happened."""
        known = self.is_poisoned, self.was_refused, list(self.errors)
        for op in list(self.calls):
            self._failed(op, ["CommitUnknownError", "LodeqError"], "the process ended", [])
        self.is_poisoned, self.was_refused, self.errors = known


def settled(kind: str, state: State) -> State:
    """Where a settled lease leaves its task."""
    place, attempts = state
    if kind == "cancel":
        return ("cancelled", 0) if place != "none" else state
    if place != "leased":
        return state
    return {
        "complete": ("completed", attempts),
        "nack": ("ready", attempts),
        "release": ("ready", attempts - 1),
        "bury": ("dead", attempts),
    }[kind]
