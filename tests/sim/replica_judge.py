"""The answers that clients of a simulated cluster had, and the rules that hold for them."""

from __future__ import annotations

from typing import Any

from sim.rules import RuleBrokenError

import lodeq
from lodeq.replication.memory.service import LogService, Tries


class Claimed:
    """A lease that a client was given."""

    def __init__(self, lease: Any) -> None:
        self.lease = lease
        self.is_over = False


class Judge:
    """The answers that clients had, and the rules that they have to keep.

    1. An acknowledged task is there until it has ended, and ends.
    2. Once a later claim of a task was answered, no call with an earlier lease succeeds.
    3. A claim that begins after a task's completion was acknowledged does not get it.
    4. A leader that says "nothing there" leaves no task out that was acknowledged before.
    5. A task whose enqueue was refused by a node that does not lead is never there.
    6. What is claimed has the payload that was acknowledged.
    7. Where a limit of keys holds, no leader grants what is above it (``replica_keys.py``).

    Worlds with more than the usual calls have two more (``replica_variety.py``).
    """

    def __init__(self) -> None:
        self.acknowledged: set[lodeq.TaskId] = set()
        self.completed: dict[lodeq.TaskId, int] = {}  # and when
        self.moment = 0  # grows with every completion
        self.unsure: set[lodeq.TaskId] = set()  # of an end whose answer was lost
        self.latest: dict[lodeq.TaskId, int] = {}  # epoch of the newest lease
        self.by_key: dict[str, lodeq.TaskId] = {}
        self.claims = 0
        self.in_flight = 0  # claims under way
        self.blind_until = 0.0  # until then a lost claim may hold tasks
        self.ready: set[lodeq.TaskId] = set()  # acknowledged, and never claimed or unsure
        self.refused: set[bytes] = set()  # payloads, each drawn once
        self.payloads: dict[lodeq.TaskId, bytes] = {}

    def enqueued(self, receipt: Any, key: str | None, payload: bytes) -> None:
        if key is not None:
            first = self.by_key.setdefault(key, receipt.id)
            if first != receipt.id:
                raise RuleBrokenError(f"dedup key {key} gave {first} and {receipt.id}")
        if receipt.id not in self.acknowledged:
            self.acknowledged.add(receipt.id)
            if not receipt.duplicate:
                self.payloads[receipt.id] = payload
                if receipt.id not in self.latest:  # a claim may have been answered before
                    self.ready.add(receipt.id)

    def claimed(self, lease: Any, began: int) -> Claimed:
        """Take the answer of a claim that began at such a moment."""
        self.claims += 1
        task_id = lease.task_id
        if began > self.completed.get(task_id, began):
            raise RuleBrokenError(f"rule 3: {task_id} was completed and is claimed again")
        if lease.payload in self.refused:
            raise RuleBrokenError(f"rule 5: {task_id} was refused and is there")
        if self.payloads.get(task_id, lease.payload) != lease.payload:
            raise RuleBrokenError(f"rule 6: {task_id} has another payload")
        self.ready.discard(task_id)
        self.latest[task_id] = max(lease.epoch, self.latest.get(task_id, 0))
        return Claimed(lease)

    def newest(self, one: Claimed) -> bool:
        """Whether nobody has been given the task since; ask before a call is sent."""
        return self.latest[one.lease.task_id] == one.lease.epoch

    def succeeded(self, one: Claimed, call: str, *, was_newest: bool) -> None:
        if not was_newest:
            raise RuleBrokenError(
                f"rule 2: {call} of {one.lease.task_id} succeeds with an earlier lease"
            )
        if call == "complete":
            self.completed.setdefault(one.lease.task_id, self.moment)
            self.moment += 1


class JudgedService(LogService):
    """A log service that notes which records it should not have taken."""

    def __init__(self, ttl_s: float, quota_bytes: int) -> None:
        super().__init__(ttl_s, quota_bytes)
        self.wrong: list[str] = []

    def append(self, tries: Tries, raw: bytes, fragments: int) -> None:
        """See ``LogService.append``."""
        before = self.state(tries.shard)
        super().append(tries, raw, fragments)
        if self.state(tries.shard).last != before.last and before.term != tries.term:
            self.wrong.append(f"{tries} was taken while term {before.term} led")
