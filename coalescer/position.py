"""The position of a replica in the log of its shard, and whether an entry is the next one.

The index is enough if the replication layer keeps its promises (``replicator``). Term and
commit number check that it does: terms never fall, and numbers have no gaps within an
incarnation, or the ring of commit numbers would show a hole that no power cut has made.
"""

from __future__ import annotations

from ..engine.records.rows import Applied
from ..errors import InvariantError
from .replicator import Entry

__all__ = ["NUMBER_BITS", "Position"]

NUMBER_BITS = 40  # commit_seq = incarnation << 40 | number


class Position:
    """The last entry that was taken: applied, or waiting for the store."""

    __slots__ = ("_shard", "last", "number")

    def __init__(self, shard: int, last: Applied, number: int) -> None:
        self._shard = shard
        self.last = last
        self.number = number

    def copy(self) -> Position:
        """The same position, to try entries on."""
        return Position(self._shard, self.last, self.number)

    def has(self, entry: Entry) -> bool:
        """Whether ``entry`` was taken before: delivering it again is harmless."""
        return entry.shard == self._shard and entry.index <= self.last.index

    def advance(self, entry: Entry) -> None:
        """Take ``entry``.

        Raises:
            InvariantError: it is not the next one; nothing has changed.
        """
        last, number, commit = self.last, self.number, entry.commit_seq
        starts_incarnation = (
            commit >> NUMBER_BITS > number >> NUMBER_BITS and commit & (1 << NUMBER_BITS) - 1 == 1
        )
        problem = ""
        if entry.shard != self._shard:
            problem = f"it is one of shard {entry.shard}"
        elif entry.index != last.index + 1:
            problem = f"{last.index} was the last one taken"
        elif entry.term < last.term:
            problem = f"term {entry.term} after {last.term}"
        elif commit != number + 1 and not starts_incarnation:
            problem = f"commit {commit:#x} after {number:#x}"
        if problem:
            raise InvariantError(f"shard {self._shard}, entry {entry.index}: {problem}")
        self.last = Applied(entry.term, entry.index)
        self.number = commit
