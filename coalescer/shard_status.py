"""The status of a shard: whether it takes writes, and if not, why.

A commit loop is in exactly one status at a time, and changes it by ``Coalescer.enter``, which
consults ``TRANSITIONS``. Beside the status it keeps the error that stands for it
(``Coalescer.status_error``): the reason why writes are refused, or None while they are taken.

The numbers are ordered, so that the hot path needs one comparison:

- up to ``STALLED``: submissions are taken;
- above ``STALLED`` and below ``FAILED``: writes are refused because of the shard's role;
- from ``FAILED`` on: nothing is written any more until the store is reopened.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from ..errors import (
    ClosedError,
    InvariantError,
    LodeqError,
    NotLeaderError,
    StoragePoisonedError,
)
from .group import Group

__all__ = [
    "CLOSED",
    "ELECTED",
    "FAILED",
    "FOLLOWING",
    "NAMES",
    "READ_ONLY",
    "SERVING",
    "STALLED",
    "TRANSITIONS",
    "ShardStatus",
    "check_transition",
    "fail_waiters",
    "refusal",
]

ShardStatus: TypeAlias = int  # ints, not an enum: they are compared for every submission

SERVING: Final = 0  # takes submissions and writes them
STALLED: Final = 1  # takes submissions; the store refuses writes, which are retried
ELECTED: Final = 2  # leads, and builds its memory: nobody but the builder may submit
FOLLOWING: Final = 3  # applies what another replica has committed
READ_ONLY: Final = 4  # opened to be read beside its owner
FAILED: Final = 5  # a write or sync failed with an unknown outcome
CLOSED: Final = 6  # drained; the engine is closed

NAMES: Final = ("serving", "stalled", "elected", "following", "read_only", "failed", "closed")

# What each status may become. A status that nothing follows ends with the process's store.
TRANSITIONS: Final[dict[ShardStatus, frozenset[ShardStatus]]] = {
    SERVING: frozenset({STALLED, FOLLOWING, READ_ONLY, FAILED, CLOSED}),
    STALLED: frozenset({SERVING, FOLLOWING, FAILED, CLOSED}),
    ELECTED: frozenset({SERVING, STALLED, FOLLOWING, FAILED, CLOSED}),
    FOLLOWING: frozenset({ELECTED, FAILED, CLOSED}),
    READ_ONLY: frozenset(),
    FAILED: frozenset(),
    CLOSED: frozenset(),
}


def check_transition(shard: int, old: ShardStatus, new: ShardStatus) -> None:
    """Raise ``InvariantError`` unless a shard that is ``old`` may become ``new``."""
    if new not in TRANSITIONS[old]:
        raise InvariantError(f"shard {shard}: {NAMES[old]} cannot become {NAMES[new]}")


def refusal(shard: int, error: LodeqError) -> LodeqError:
    """A new error for a submission that a shard refuses; ``error`` stands for its status."""
    if isinstance(error, ClosedError):
        return ClosedError(str(error))
    if isinstance(error, NotLeaderError):
        return NotLeaderError(str(error), leader=error.leader)
    refused = StoragePoisonedError(
        f"shard {shard} is poisoned ({error}); close the engine and reopen it"
    )
    refused.__cause__ = error
    return refused


def fail_waiters(
    groups: Iterable[Group], kind: type[LodeqError], text: str, cause: LodeqError | None = None
) -> None:
    """Fail every future that still waits for one of ``groups``, each with an error of its own.

    Args:
        groups: those that will not be written, or whose outcome is unknown.
        kind: the class of the errors.
        text: their message.
        cause: the ``__cause__`` of each.
    """
    for group in groups:
        for future, _ in (*group.waiters, *group.durable_waiters):
            if not future.done():
                error = kind(text)
                error.__cause__ = cause
                future.set_exception(error)
