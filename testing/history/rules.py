"""The twelve rules a history is held to (docs/history.md), and how a broken one is told."""

from __future__ import annotations

__all__ = ["RULES", "BrokenError", "broken"]

RULES = {
    1: "nothing acknowledged is lost",
    2: "nothing happens that nobody asked for",
    3: "an unknown outcome goes one way, and as a whole",
    4: "no delivery after complete",
    5: "one live lease, growing epochs",
    6: "attempts are exact",
    7: "order within a queue",
    8: "one task a dedup key",
    9: "not before its time",
    10: "counters equal a recount",
    11: "every row has its counterpart",
    12: "the queue drains",
}


class BrokenError(AssertionError):
    """A promise of the engine was not kept. ``rule`` is its number, 0 for a broken history."""

    def __init__(self, message: str, rule: int = 0) -> None:
        super().__init__(message)
        self.rule = rule


def broken(rule: int, text: str) -> BrokenError:
    """The error, with the rule's number and name in front."""
    return BrokenError(f"rule {rule}, {RULES[rule]}: {text}", rule)
