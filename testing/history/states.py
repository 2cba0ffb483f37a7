"""States of one task and their transitions: a small automaton that uses none of lodeq's code.

A state is (kind, attempts, epoch, flags): *absent*, *pending* (ready or delayed), *leased*,
*dead*, *held* (a dead letter under a lease), *completed*, *cancelled*, *expired*, or *gone* (a dead
letter that was replaced, purged or forgotten). While operations on a task are under way, or were
when the process died, several states are possible; ``reachable`` returns all of them. Observations
only remove states, and an observation that removes the last one breaks a rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ...errors import InvariantError

__all__ = [
    "ABSENT",
    "CANCELLABLE",
    "CANCELLED",
    "ENDED",
    "EXPIRED",
    "EXPORTED",
    "FORGET",
    "HOLDS",
    "LIVE",
    "NO_CLAIMS",
    "SHORT",
    "TTL",
    "Claims",
    "Op",
    "State",
    "States",
    "given_back",
    "held",
    "leased",
    "outcomes",
    "pending",
    "reachable",
    "restarted",
]

State = tuple[str, int, int, int]  # kind, attempts, epoch, flags
States = frozenset[State]
Op = tuple[str, int]  # kind, epoch (or 0)
Claims = tuple[int, int, int, int]  # how many claims may take it, by the flags of their leases

ABSENT: State = ("absent", 0, 0, 0)
CANCELLED: State = ("cancelled", 0, 0, 0)  # after whatever attempts
EXPIRED: State = ("expired", 0, 0, 0)
UNKNOWN_EPOCH = 0
LIVE = frozenset({"pending", "leased"})
HOLDS = frozenset({"leased", "held"})  # somebody has a lease
CANCELLABLE = LIVE | HOLDS
ENDED = frozenset({"completed", "cancelled", "expired", "gone"})
NO_CLAIMS: Claims = (0, 0, 0, 0)

# Flags of a lease: its time may be up; it outlives its process.
SHORT, EXPORTED = 1, 2
# What time may do by itself: end a pending task, forget a dead letter.
TTL, FORGET = 1, 2


def pending(attempts: int) -> State:
    """Return the state of a task that is ready or delayed."""
    return ("pending", attempts, 0, 0)


def leased(attempts: int, epoch: int, flags: int = 0) -> State:
    """Return the state of a task that a worker holds."""
    return ("leased", attempts, epoch, flags)


def held(attempts: int, epoch: int, flags: int = 0) -> State:
    """Return the state of a dead letter that somebody has under a lease."""
    return ("held", attempts, epoch, flags)


def given_back(attempts: int, attempts_max: int) -> State:
    """Return the state after a failed attempt: back in the queue, or dead after the last one."""
    return pending(attempts) if attempts < attempts_max else ("dead", attempts, 0, 0)


def outcomes(state: State, op: Op, attempts_max: int, time: int = 0) -> tuple[State, ...]:
    """Return the states a successful operation can lead to; none if it cannot succeed there.

    Args:
        state: before the operation.
        op: its kind, and the epoch of the lease or 0.
        attempts_max: of the task.
        time: ``TTL`` and ``FORGET``, what time may do by itself.
    """
    kind, attempts, epoch, _ = state
    name, by = op
    if kind == "leased" and epoch == by:
        if name == "complete":
            return (("completed", attempts, epoch, 0),)
        if name == "heartbeat":
            return (state,)
        if name == "bury":
            return (("dead", attempts, 0, 0),)
        if name == "cancel_lease":
            return (CANCELLED,)
        if name in {"nack", "release"}:
            counts = name == "nack"
            new = given_back(attempts, attempts_max) if counts else pending(attempts - 1)
            return (new, EXPIRED) if time & TTL else (new,)
    if kind == "held" and epoch == by:
        if name == "complete":
            return (("completed", attempts, epoch, 0),)
        if name == "heartbeat":
            return (state,)
        if name in {"nack", "release", "bury"}:
            return (("dead", attempts, 0, 0),)
        if name == "cancel_lease":
            return (CANCELLED,)
        if name == "redrive_lease":
            return (pending(0),)
    if name == "claim_dead":  # its second field has the flags of the lease
        return (held(attempts, UNKNOWN_EPOCH, by),) if kind == "dead" else ()
    if name == "enqueue":
        return (pending(0),) if kind == "absent" else ()
    if name == "redrive":
        return (pending(0),) if kind == "dead" else ()
    if name == "cancel":
        return (CANCELLED,) if kind in CANCELLABLE else ()
    if name in {"replace", "purge"}:
        if kind == "pending":
            return (CANCELLED,)
        return (("gone", attempts, 0, 0),) if kind == "dead" else ()
    if name == "purge dead":
        return (("gone", attempts, 0, 0),) if kind == "dead" else ()
    if name == "complete":  # repeated by the same lease it succeeds again
        return (state,) if kind == "completed" and epoch == by else ()
    if name in {"heartbeat", "bury", "cancel_lease", "nack", "release", "redrive_lease"}:
        return ()
    raise InvariantError(f"no operation is called {name}")


Node = tuple[State, tuple[Op, ...], Claims]


def _next(node: Node, attempts_max: int, time: int) -> Iterator[Node]:
    state, ops, claims = node
    kind, attempts, epoch, flags = state
    for i, op in enumerate(ops):
        for new in outcomes(state, op, attempts_max, time):
            if new != state:
                yield new, ops[:i] + ops[i + 1 :], claims
    if kind == "pending":
        for bits, count in enumerate(claims):
            if count:
                left = (*claims[:bits], count - 1, *claims[bits + 1 :])
                new = leased(attempts + 1, UNKNOWN_EPOCH, bits)
                yield new, ops, (left[0], left[1], left[2], left[3])
        if time & TTL:
            yield EXPIRED, ops, claims
    elif kind == "leased" and flags & SHORT:
        yield given_back(attempts, attempts_max), ops, claims
        if time & TTL:
            yield EXPIRED, ops, claims
    elif kind == "held" and (flags & SHORT or epoch == UNKNOWN_EPOCH):
        yield ("dead", attempts, 0, 0), ops, claims  # expired, or a claim that was given up
    elif kind == "dead" and time & FORGET:
        yield ("gone", attempts, 0, 0), ops, claims


@lru_cache(maxsize=1 << 16)
def reachable(
    states: States, ops: tuple[Op, ...], claims: Claims, attempts_max: int, time: int
) -> States:
    """Return all states after any of the operations and claims, each at most once, in any order.

    Args:
        states: before them.
        ops: operations under way.
        claims: how many may take the task, by the flags of their leases.
        attempts_max: of the task.
        time: ``TTL`` and ``FORGET``, what time may do by itself.
    """
    todo: list[Node] = [(state, ops, claims) for state in states]
    seen = set(todo)
    while todo:
        for node in _next(todo.pop(), attempts_max, time):
            if node not in seen:
                seen.add(node)
                todo.append(node)
    return frozenset(node[0] for node in seen)


def restarted(states: States, attempts_max: int, time: int) -> States:
    """Return the states after an open: leases have gone back, exported ones stay or expire."""
    new: set[State] = set()
    for state in states:
        kind, attempts, epoch, flags = state
        if kind == "held":
            new.add(("dead", attempts, 0, 0))
            if flags & EXPORTED:
                new.add(held(attempts, epoch, flags | SHORT))
            continue
        if kind != "leased":
            new.add(state)
            continue
        if flags & EXPORTED:
            new.add(leased(attempts, epoch, flags | SHORT))
        new.add(given_back(attempts, attempts_max))
        if time & TTL:
            new.add(EXPIRED)
    return frozenset(new)
