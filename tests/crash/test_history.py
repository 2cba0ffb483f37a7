"""The history of the kill tests bites: each broken promise, planted in its records, is found."""

from __future__ import annotations

import itertools

import pytest
from crash.history import History
from crash.states import BrokenError, after, leased, pending, reachable

A, B = "aa" * 16, "bb" * 16
KILL = ["kill"]
GOOD = [
    ["i", 1, "enqueue", {"tasks": [[1, 0, None, 2, False]], "conflict": "return"}],
    ["a", 1, [[A, False, None]]],
    ["i", 2, "claim", {"queues": [0], "limit": 1, "short": False}],
    ["a", 2, [[1, A, 1, 5]]],
    ["i", 3, "complete", {"n": 1, "epoch": 5, "then": [[2, 0, None, 2, False]]}],
    ["a", 3, None],
]
AGAIN = ["i", 4, "claim", {"queues": [0], "limit": 9, "short": False}]
FOLLOW_UP = [B, 2, [["ready", 0, 0]]]
DONE = [[A, "completed", 1]]


def found(*tasks: list, results: list | None = None, counted: dict | None = None) -> list:
    """What a child says it found."""
    return ["found", {
        "tasks": list(tasks), "results": results or [], "findings": [], "anomalies": [],
        "rows": {}, "counted": counted or {},
    }]  # fmt: skip


def ready(attempts: int) -> list:
    return [A, 1, [["ready", attempts, 0]]]


KEYED = [
    ["i", 1, "enqueue", {"tasks": [[1, 0, "k", 2, False]], "conflict": "return"}],
    ["a", 1, [[A, False, None]]],
    ["i", 2, "enqueue", {"tasks": [[2, 0, "k", 2, False]], "conflict": "return"}],
]
MANY = [
    ["i", 1, "enqueue", {
        "tasks": [[1, 0, None, 2, False], [2, 0, None, 2, False]], "conflict": "return"}],
    KILL,
]  # fmt: skip
KEPT = {
    "everything": [*GOOD, KILL, found(FOLLOW_UP, results=DONE)],
    "done and not told": [*GOOD[:5], KILL, found(FOLLOW_UP, results=DONE)],
    "not done": [*GOOD[:5], KILL, found(ready(1))],
    "claimed and not told": [*GOOD[:3], KILL, found(ready(1))],
    "not claimed": [*GOOD[:3], KILL, found(ready(0))],
    "a duplicate": [*KEYED, ["a", 2, [[A, True, None]]], KILL, found(ready(0))],
    "many": [*MANY, found(ready(0), FOLLOW_UP)],
    "none": [*MANY, found()],
    "a lost complete under way, completed by the next holder": [
        ["i", 1, "enqueue", {"tasks": [[1, 0, None, 3, False]], "conflict": "return"}],
        ["a", 1, [[A, False, None]]],
        ["i", 2, "claim", {"queues": [0], "limit": 1, "short": True}],
        ["a", 2, [[1, A, 1, 5]]],
        ["i", 3, "complete", {"n": 1, "epoch": 5, "then": [[2, 0, None, 2, False]]}],
        ["i", 4, "claim", {"queues": [0], "limit": 1, "short": False}],
        ["a", 4, [[1, A, 2, 6]]],
        ["i", 5, "complete", {"n": 1, "epoch": 6, "then": []}],
        ["a", 5, None],
        KILL,
        found(results=[[A, "completed", 2]]),
    ],
    "completed before a cancel that was told first": [
        ["i", 1, "enqueue", {"tasks": [[1, 0, None, 1, False]], "conflict": "return"}],
        ["a", 1, [[A, False, None]]],
        ["i", 2, "claim", {"queues": [0], "limit": 1, "short": True}],
        ["a", 2, [[1, A, 1, 5]]],
        ["i", 3, "complete_many", {"pairs": [[1, 5]]}],
        ["i", 4, "cancel", {"n": 1}],
        ["a", 4, False],  # the complete, or the end of the short lease: both explain it
        ["a", 3, [True]],
        KILL,
        found(results=DONE),
    ],
}
BROKEN = {
    "lost": [*GOOD[:2], KILL, found()],
    "phantom": [found(ready(0))],
    "delivered, never enqueued": [AGAIN, ["a", 4, [[7, A, 1, 9]]]],
    "delivered after its complete": [*GOOD, AGAIN, ["a", 4, [[1, A, 2, 9]]]],
    "delivered after its complete and a kill": [
        *GOOD, KILL, found(FOLLOW_UP, results=DONE), AGAIN, ["a", 4, [[1, A, 2, 9]]]],
    "back after its complete": [*GOOD, KILL, found(ready(1), FOLLOW_UP)],
    "two leases": [*GOOD[:4], AGAIN, ["a", 4, [[1, A, 2, 9]]]],
    "two places": [*GOOD[:2], KILL, found([A, 1, [["ready", 0, 0], ["leased", 1, 5]]])],
    "still leased": [*GOOD[:4], KILL, found([A, 1, [["leased", 2, 9]]])],
    "a lower epoch": [*GOOD[:4], KILL, found(ready(1)), AGAIN, ["a", 4, [[1, A, 2, 4]]]],
    "an attempt too many": [*GOOD[:4], KILL, found(ready(2))],
    "an attempt too few": [*GOOD[:4], KILL, found(ready(0))],
    "claimed by nobody": [*GOOD[:2], KILL, found(ready(1))],
    "lost without a reason": [*GOOD[:5], ["e", 3, "LeaseLostError", None]],
    "completed without its follow-up": [*GOOD[:5], KILL, found(results=DONE)],
    "a follow-up without its complete": [*GOOD[:5], KILL, found(ready(1), FOLLOW_UP)],
    "half of many": [*MANY, found(ready(0))],
    "two of one key": [*KEYED, ["a", 2, [[B, False, None]]]],
    "two of one key, found": [*KEYED, KILL, found(ready(0), FOLLOW_UP)],
    "a duplicate of a task that is gone": [
        *KEYED, ["a", 2, [[B, True, None]]], KILL, found(ready(0))],
    "a wrong result": [*GOOD, KILL, found(FOLLOW_UP, results=[[A, "cancelled", 1]])],
    "counters": [found(counted={"alpha": {"ready": 1}})],
}  # fmt: skip


def run(records: list[list]) -> None:
    history = History(1)
    for record in records:
        if record == KILL:
            history.killed()
        else:
            history.take(record)


@pytest.mark.parametrize("records", KEPT.values(), ids=KEPT)
def test_a_kept_promise_is_accepted(records: list[list]) -> None:
    run(records)


@pytest.mark.parametrize("records", BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_found(records: list[list]) -> None:
    with pytest.raises(BrokenError):
        run(records)


def test_the_automaton_is_finite() -> None:
    """Every pair of operations on a state ends, and nothing either can do is left out."""
    names = ("enqueue", "redrive", "cancel", "replace", "complete", "nack", "release", "bury")
    for state, (a, b) in itertools.product(
        [pending(0), pending(1), leased(1, 7, is_short=True)], itertools.combinations(names, 2)
    ):
        states = reachable(frozenset([state]), ((a, 7), (b, 7)), 1, 2, 3)
        assert state in states
        assert {new for op in (a, b) if (new := after(state, (op, 7), 3))} <= states
