"""How much of a shard's log may go: never what somebody still needs.

An entry is kept until

- enough live nodes that have a copy have a checkpoint that reaches it (``copies_min``; a checkpoint
  of a node that is gone may be gone with it), so that a new replica can start behind it. Where
  every node has every shard a checkpoint is restored whole, so the same ones count for all; and
- every live node that has a copy, or is making one, says that it is durable there.

The second rule has an end: of more than ``entries_max`` entries, or more than so many bytes, those
go that the checkpoints reach, and a node that is still behind restores one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from .port import NO_COPY, Checkpoint, Member, ShardState

__all__ = ["LogBytes", "floor_of"]

STEP_BYTES: Final = 1 << 20


class LogBytes:
    """How many bytes the newest entries of a shard's log have, to about a MiB.

    It counts what passes this node, so nothing from before it was opened.

    Args:
        bytes_max: the most that anybody asks about.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._total = 0
        self._marks: deque[tuple[int, int]] = deque()  # index, and the bytes up to it

    def add(self, last: int, size: int) -> None:
        """Count a record of ``size`` bytes that ends with the entry ``last``."""
        self._total += size
        if not self._marks or self._total - self._marks[-1][1] >= STEP_BYTES:
            self._marks.append((last, self._total))
        while len(self._marks) > 1 and self._total - self._marks[1][1] >= self._bytes_max:
            self._marks.popleft()

    @property
    def first_kept(self) -> int:
        """The first of the newest ``bytes_max``, or a little more; 0: there are not as many."""
        if self._marks and self._total - self._marks[0][1] >= self._bytes_max:
            return self._marks[0][0] + 1
        return 0


def floor_of(
    state: ShardState,
    members: Iterable[Member],
    checkpoints: Iterable[Checkpoint],
    *,
    copies_min: int,
    entries_max: int,
    first_kept: int = 0,
    floors: Sequence[int] = (),
) -> int:
    """The first index that has to stay in the log of a shard.

    Args:
        state: the shard.
        members: the live nodes; those without a copy do not count.
        checkpoints: each node's last one.
        copies_min: live nodes that have to have one, 1 or more.
        entries_max: entries kept for nodes that are behind.
        first_kept: the first entry that is kept for them because of its bytes; 0: any.
        floors: of all shards, where a checkpoint is restored as a whole: what does not reach them
            cannot be. Empty where shards are restored one by one.
    """
    shard, live = state.shard, {member.node: member for member in members}
    usable = [
        one
        for one in checkpoints
        if one.node in live
        and _at(live[one.node].applied, shard) != NO_COPY
        and shard < len(one.applied)
        and one.applied[shard] != NO_COPY
        and _reaches(one, floors)
    ]
    durable = [at for one in live.values() if (at := _at(one.durable, shard)) != NO_COPY]
    if len(usable) < copies_min or len(durable) < copies_min:
        return state.floor
    if floors:
        usable.sort(key=lambda one: (-sum(one.applied), one.node))
    else:
        usable.sort(key=lambda one: -one.applied[shard])
    restorable = min(one.applied[shard] for one in usable[:copies_min]) + 1
    needed = min(durable, default=0) + 1
    kept = max(needed, state.last - entries_max + 1, first_kept)
    return max(state.floor, min(restorable, kept))


def _at(indexes: Sequence[int], shard: int) -> int:
    """A position; 0 of a node that has not said it."""
    return indexes[shard] if shard < len(indexes) else 0


def _reaches(checkpoint: Checkpoint, floors: Sequence[int]) -> bool:
    """Whether the logs go on where a checkpoint ends."""
    return all(have + 1 >= floor for have, floor in zip(checkpoint.applied, floors, strict=False))
