"""Walking a store's rows in key order, whatever was deleted from it and wherever it is damaged.

A pass over a family comes in *pages*, some of them empty: each takes a few milliseconds at most, so
that whoever walks on an event loop can give it a turn in between. Two things are remembered for
the next pass:

- *Stretches of deleted rows.* They take as long to pass over as rows do, and there may be a million
  of them in front of the first row. Only where the view does not change: on a snapshot.
- *Unreadable ranges.* A damaged block ends a scan. A walk looks for a position behind it from which
  one can read on (``probe``), notes what lies between, and goes on there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

from ...errors import CorruptionError
from .port import Rows, Store, StoreView
from .probe import readable_from

__all__ = ["Unreadable", "Walk", "find_splits"]

PAGE_ROWS: Final = 64
SPLITS_MAX: Final = 2048  # an iterator each


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A range of keys, ``upper`` excluded, of which nothing could be read by a scan."""

    lower: bytes
    upper: bytes
    error: str


class _Stretches:
    """Ranges of keys that do not overlap, by where they begin."""

    __slots__ = ("lowers", "uppers")

    def __init__(self) -> None:
        self.lowers: list[bytes] = []
        self.uppers: list[bytes] = []

    def add(self, lower: bytes, upper: bytes) -> None:
        """One more; what it touches becomes one with it."""
        at = bisect_right(self.lowers, lower)
        if at and self.uppers[at - 1] >= lower:
            at -= 1
            self.uppers[at] = max(self.uppers[at], upper)
        else:
            self.lowers.insert(at, lower)
            self.uppers.insert(at, upper)
        while at + 1 < len(self.lowers) and self.lowers[at + 1] <= self.uppers[at]:
            self.uppers[at] = max(self.uppers[at], self.uppers.pop(at + 1))
            del self.lowers[at + 1]

    def behind(self, key: bytes) -> bytes:
        """``key``, or where the stretch ends in which it lies."""
        at = bisect_right(self.lowers, key)
        return max(key, self.uppers[at - 1]) if at else key

    def touch(self, lower: bytes, upper: bytes) -> bool:
        """Whether any of a range lies in one."""
        at = bisect_right(self.lowers, lower)
        if at and self.uppers[at - 1] > lower:
            return True
        return at < len(self.lowers) and self.lowers[at] < upper


class Walk:
    """Passes over one view. ``is_fixed``: it does not change, as a snapshot does not."""

    def __init__(self, view: StoreView, *, is_fixed: bool = True) -> None:
        self.view = view
        self.unreadable: list[Unreadable] = []
        self.splits: list[bytes] = []  # where a part ended among deleted rows: see ``snapshot``
        self.failed_reads = 0  # of single rows
        self.last_error = ""  # of these
        self._is_fixed = is_fixed
        self._empty = _Stretches()
        self._lost = _Stretches()

    def pages(self, lower: bytes, upper: bytes) -> Iterator[Rows]:
        """All rows of a range that can be read. A page that is empty is time that has passed."""
        at: bytes | None = lower
        while at is not None and at < upper:
            behind = self._empty.behind(self._lost.behind(at))
            if behind > at:
                at = behind
                continue
            try:
                rows, following = self.view.scan_part(at, upper, PAGE_ROWS)
            except CorruptionError as exc:
                rows, following = [], self._behind_damage(at, upper, exc)
            else:
                if not rows and following is not None:
                    self.splits.append(following)
                if not rows and self._is_fixed:
                    self._empty.add(at, following if following is not None else upper)
            yield rows
            at = following

    def _behind_damage(self, lower: bytes, upper: bytes, error: CorruptionError) -> bytes:
        following = readable_from(lambda key: self._can_read(key, upper), lower, upper)
        self._lost.add(lower, following)
        self.unreadable.append(Unreadable(lower, following, str(error)))
        return following

    def _can_read(self, key: bytes, upper: bytes) -> bool:
        try:
            self.view.scan_part(key, upper, 1)
        except CorruptionError:
            return False
        return True

    def read(self, key: bytes) -> tuple[bytes | None, bool]:
        """A single row, and whether that is known: a damaged block says nothing of its keys."""
        try:
            return self.view.get(key), True
        except CorruptionError as exc:
            self.failed_reads += 1
            self.last_error = str(exc)
            return None, False

    def is_lost(self, key: bytes) -> bool:
        """Whether ``key`` lies in a range that a pass could not read."""
        return self._lost.behind(key) > key

    def has_lost(self, lower: bytes, upper: bytes) -> bool:
        """Whether any of a range could not be read by a pass."""
        return self._lost.touch(lower, upper)


def find_splits(
    store: Store, lower: bytes = b"", upper: bytes = b"\xff"
) -> Generator[None, None, list[bytes]]:
    """Where a snapshot is to be split for its parts to be short; yields after each page.

    That a stretch is empty can only be found out in the present, piece by piece. It is the number
    of deleted rows in it that counts, and that changes little until the snapshot is taken.
    """
    walk = Walk(store, is_fixed=False)
    for _ in walk.pages(lower, upper):
        yield
    return walk.splits[:: len(walk.splits) // SPLITS_MAX + 1]
