"""What one task can be, given what is known of it: a small automaton without any of our code.

A state is (kind, attempts, epoch, is_short): *absent*, *pending* (ready or delayed), *leased*,
*dead*, *completed*, *cancelled*, or *gone* (a dead letter that was replaced). While operations on
a task are under way, or were when the process died, several states are possible; ``reachable``
gives all of them. Observations only ever take states away, and an observation that takes the
last one away is a broken promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

State = tuple[str, int, int, bool]
States = frozenset[State]
Op = tuple[str, int]  # kind, epoch (or 0)

ABSENT: State = ("absent", 0, 0, False)
CANCELLED: State = ("cancelled", 0, 0, False)  # after whatever attempts
UNKNOWN_EPOCH = 0
LIVE = {"pending", "leased"}


class BrokenError(AssertionError):
    """A promise of the engine was not kept."""


def pending(attempts: int) -> State:
    return ("pending", attempts, 0, False)


def leased(attempts: int, epoch: int, *, is_short: bool) -> State:
    return ("leased", attempts, epoch, is_short)


def given_back(attempts: int, attempts_max: int) -> State:
    """After a failure that counts: back in the queue, or dead with the last attempt."""
    return pending(attempts) if attempts < attempts_max else ("dead", attempts, 0, False)


def after(state: State, op: Op, attempts_max: int) -> State | None:
    """What an operation that succeeds makes of a state; None if it cannot succeed there."""
    kind, attempts, epoch, _ = state
    name, by = op
    if name == "enqueue":
        return pending(0) if kind == "absent" else None
    if name == "redrive":
        return pending(0) if kind == "dead" else None
    if name == "cancel":
        return CANCELLED if kind in {"pending", "leased"} else None
    if name == "replace":
        if kind == "pending":
            return CANCELLED
        return ("gone", attempts, 0, False) if kind == "dead" else None
    if kind != "leased" or epoch != by:
        return None
    if name == "complete":
        return ("completed", attempts, 0, False)
    if name == "nack":
        return given_back(attempts, attempts_max)
    if name == "release":
        return pending(attempts - 1)
    if name == "bury":
        return ("dead", attempts, 0, False)
    if name == "heartbeat":
        return state
    raise AssertionError(name)


Node = tuple[State, tuple[Op, ...], int, int]


def _next(node: Node, attempts_max: int) -> Iterator[Node]:
    state, ops, longs, shorts = node
    kind, attempts, _, is_short = state
    for i, op in enumerate(ops):
        new = after(state, op, attempts_max)
        if new is not None:
            yield new, ops[:i] + ops[i + 1 :], longs, shorts
    if kind == "pending":
        if longs:
            new = leased(attempts + 1, UNKNOWN_EPOCH, is_short=False)
            yield new, ops, longs - 1, shorts
        if shorts:
            new = leased(attempts + 1, UNKNOWN_EPOCH, is_short=True)
            yield new, ops, longs, shorts - 1
    if kind == "leased" and is_short:
        yield given_back(attempts, attempts_max), ops, longs, shorts


@lru_cache(maxsize=1 << 16)
def reachable(
    states: States, ops: tuple[Op, ...], longs: int, shorts: int, attempts_max: int
) -> States:
    """All states after any of ``ops`` and of so many claims, each at most once, in any order."""
    todo: list[Node] = [(state, ops, longs, shorts) for state in states]
    seen = set(todo)
    while todo:
        for node in _next(todo.pop(), attempts_max):
            if node not in seen:
                seen.add(node)
                todo.append(node)
    return frozenset(node[0] for node in seen)


def restarted(states: States, attempts_max: int) -> States:
    """At open a lease of the dead process goes back; an exported (short) one may stay."""
    return states | {given_back(s[1], attempts_max) for s in states if s[0] == "leased"}
