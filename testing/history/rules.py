"""The rules of docs/history.md, and the error that names a broken one."""

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
    13: "limits of a queue hold",
    20: "a join fires once a generation",
    21: "a join fires after the seal and the end of every member",
    22: "a join fires at last",
    23: "an end is kept for as long as it says",
}


class BrokenError(AssertionError):
    """A history breaks a rule. ``rule`` is its number, 0 for records that are no history."""

    def __init__(self, message: str, rule: int = 0) -> None:
        super().__init__(message)
        self.rule = rule


def broken(rule: int, text: str) -> BrokenError:
    """Make the error, with number and name of the rule in front."""
    return BrokenError(f"rule {rule}, {RULES[rule]}: {text}", rule)
