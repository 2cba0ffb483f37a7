"""Rules 20 to 22, of joins: each fires once, never before the last end, and at last.

A ledger beside ``History``, for what its records do not say: who is a member of what, and which
task is the callback. Feed it in the order in which things happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .rules import BrokenError, broken

__all__ = ["JoinLedger"]


class JoinLedger:
    """Workflows as their users know them: members, seals, callbacks they got.

    ::

        ledger = JoinLedger(is_durable=durability == "fsync")
        ledger.sealing(workflow.id, members, workflow.callback)   # before the call
        ledger.delivered(join.task_id, join.attempt, [p.status for p in parts])
        ledger.over()                                             # everything has been drained

    Args:
        is_durable: what was acknowledged survives a power cut.
    """

    def __init__(self, *, is_durable: bool) -> None:
        self._is_durable = is_durable
        self._members: dict[bytes, frozenset[bytes]] = {}
        self._callbacks: dict[bytes, bytes] = {}  # workflow by callback
        self._sealed: set[bytes] = set()  # asked to be: a callback may run
        self._first: set[bytes] = set()  # callbacks whose first attempt was delivered
        self._may_end: set[bytes] = set()  # callbacks that a cancel may have ended
        self.deliveries = 0

    def opened(self, workflow: bytes, callback: bytes) -> None:
        """A workflow is there, with this callback; a redrive may have made another one."""
        self._callbacks[callback] = workflow

    def sealing(self, workflow: bytes, members: Iterable[bytes]) -> None:
        """Somebody is about to seal a workflow with these members."""
        self._members[workflow] = frozenset(members)
        self._sealed.add(workflow)

    def cancelling(self, workflow: bytes) -> None:
        """Somebody is about to cancel a workflow: its callback may end without a run."""
        self._sealed.add(workflow)
        self._may_end.update(c for c, w in self._callbacks.items() if w == workflow)

    def callback_may_end(self, workflow: bytes) -> None:
        """The callback may end without a run: a member failed, and ``on_failure`` says so."""
        self._may_end.update(c for c, w in self._callbacks.items() if w == workflow)

    def redriving(self, workflow: bytes) -> None:
        """Somebody is about to redrive a workflow: its callback may be delivered anew."""
        for callback, one in self._callbacks.items():
            if one == workflow:
                self._first.discard(callback)

    def current(self, workflow: bytes, callback: bytes | None) -> None:
        """This is the callback now; those before it have ended."""
        for one in [c for c, w in self._callbacks.items() if w == workflow and c != callback]:
            del self._callbacks[one]

    def power_cut(self) -> None:
        """The power was cut: what was not synced need not have happened."""
        if not self._is_durable:
            self._first.clear()
            self._may_end.update(self._callbacks)

    def knows(self, callback: bytes) -> bool:
        """Whether it is the callback of a workflow that was opened."""
        return callback in self._callbacks

    def workflow_of(self, callback: bytes) -> bytes | None:
        """The workflow whose callback it is, or was."""
        return self._callbacks.get(callback)

    def delivered(
        self,
        callback: bytes,
        attempt: int,
        statuses: Sequence[str | None],
        alive: int,
        current: bytes | None,
    ) -> None:
        """A worker got a callback. Raises ``BrokenError``.

        Args:
            callback: its id.
            attempt: of its lease.
            statuses: of all parts that it sees.
            alive: how many of its members are ready, delayed, waiting or leased.
            current: the callback that its workflow names now; None: the same.
        """
        workflow = self._callbacks.get(callback)
        name = callback.hex()
        if workflow is None:
            raise broken(20, f"the callback {name} belongs to no workflow")
        self.deliveries += 1
        if current not in (None, callback):
            raise broken(20, f"{name} runs, and {current.hex() if current else ''} has its place")
        if workflow not in self._sealed:
            raise broken(21, f"the callback {name} runs before its workflow was sealed")
        members = self._members.get(workflow)  # None: a cancel has sealed it
        if None in statuses or alive:
            raise broken(21, f"the callback {name} runs while {alive} members are under way")
        if members is not None and len(statuses) != len(members):
            raise broken(21, f"{name} sees {len(statuses)} of {len(members)} members")
        if attempt == 1:
            if callback in self._first:
                raise broken(20, f"the join of {name} has fired twice")
            self._first.add(callback)

    def stuck(self, workflow: bytes, state: str, members: int, ended: int) -> BrokenError:
        """The error for a workflow that waits for nothing when everything was drained.

        Args:
            workflow: its id.
            state: of it.
            members: how many it has.
            ended: how many of them have ended.
        """
        return broken(22, f"{workflow.hex()} is {state}: {ended} of {members} members have ended")

    def over(self, ended: Iterable[bytes], workflows: Iterable[bytes]) -> None:
        """Everything was drained.

        Args:
            ended: the callbacks that have a result.
            workflows: those that are there: a power cut may have taken others.
        """
        known, there = set(ended), set(workflows)
        for callback, workflow in self._callbacks.items():
            if workflow in self._sealed & there and callback not in known | self._may_end:
                raise broken(22, f"the callback {callback.hex()} never ran")
