"""Records of workflows in a history, handed to the ledger of joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .joins import JoinLedger
from .rules import BrokenError

__all__ = ["FlowRecords"]


class FlowRecords:
    """Takes the records of a ``FlowRecorder``; raises ``BrokenError`` for a rule that is broken.

    Args:
        is_durable: what was acknowledged survives a power cut.
    """

    def __init__(self, *, is_durable: bool) -> None:
        self.ledger = JoinLedger(is_durable=is_durable)
        self._policies: dict[bytes, str] = {}
        self._takes: dict[str, Callable[..., None]] = {
            "opened": self._opened,
            "sealing": self._sealing,
            "cancelling": self._cancelling,
            "redriving": self._redriving,
            "delivered": self._delivered,
            "drained": self._drained,
        }

    def take(self, record: Sequence[Any]) -> None:
        """Take one record: ``["flow", what, fields…, wall, mono]``."""
        take = self._takes.get(record[1]) if len(record) > 1 else None
        if take is None:
            raise BrokenError(f"no record of a workflow: {record}")
        try:
            take(*record[2:-2])
        except (TypeError, ValueError) as error:
            raise BrokenError(f"no record of a workflow: {record}: {error}") from error

    def _opened(self, workflow: str, callback: str, on_failure: str) -> None:
        one = bytes.fromhex(workflow)
        self._policies[one] = on_failure
        self.ledger.opened(one, bytes.fromhex(callback))

    def _sealing(self, workflow: str, members: list[str]) -> None:
        self.ledger.sealing(bytes.fromhex(workflow), map(bytes.fromhex, members))

    def _cancelling(self, workflow: str) -> None:
        self.ledger.cancelling(bytes.fromhex(workflow))

    def _redriving(self, workflow: str) -> None:
        self.ledger.redriving(bytes.fromhex(workflow))

    def _delivered(
        self,
        callback: str,
        attempt: int,
        statuses: list[str | None],
        alive: int,
        current: str | None,
    ) -> None:
        named = None if current is None else bytes.fromhex(current)
        self.ledger.delivered(bytes.fromhex(callback), attempt, statuses, alive, named)

    def _drained(self, found: list[list[Any]]) -> None:
        ended, there = [], []
        for workflow, state, failed, callback, callback_state in found:
            one = bytes.fromhex(workflow)
            there.append(one)
            policy = self._policies.get(one)
            if state == "cancelled" or (failed and policy in ("wait", "cancel")):
                self.ledger.callback_may_end(one)
            named = None if callback is None else bytes.fromhex(callback)
            if named is not None and callback_state == "completed":
                ended.append(named)
            self.ledger.current(one, named)
        self.ledger.over(ended, there)
