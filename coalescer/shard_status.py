"""What callers are told when a shard takes no more writes."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import ClosedError, LodeqError, NotLeaderError, StoragePoisonedError
from .group import Group

__all__ = ["refusal", "tell"]


def refusal(shard: int, poison: LodeqError) -> LodeqError:
    """What a submission to a poisoned or closed shard raises."""
    if isinstance(poison, ClosedError):
        return ClosedError(str(poison))
    if isinstance(poison, NotLeaderError):
        return NotLeaderError(str(poison), leader=poison.leader)
    error = StoragePoisonedError(
        f"shard {shard} is poisoned ({poison}); close the engine and reopen it"
    )
    error.__cause__ = poison
    return error


def tell(
    groups: Iterable[Group], kind: type[LodeqError], text: str, cause: LodeqError | None = None
) -> None:
    """Fail everybody who still waits for one of ``groups``, each with an error of its own."""
    for group in groups:
        for future, _ in (*group.waiters, *group.durable_waiters):
            if not future.done():
                error = kind(text)
                error.__cause__ = cause
                future.set_exception(error)
