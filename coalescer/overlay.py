"""The overlay: reads of the store that see the groups not yet applied.

The event loop is the lock, but only for memory; the disk lags behind by the groups not yet
applied. Every read that decides something goes through an overlay over those groups: one map of
what they add up to, whatever their number. It is lazy: operations enter the map only when somebody
reads while they are pending, so the common path (claims from memory, completes by the lease table)
pays nothing for it. It is made anew, at the next read, once a group has left the line: applied, or
dropped with a leadership.

One damaged block costs the rows in it, not the queue: ``get`` raises for that key alone, and
``scan_readable`` goes on behind a range that cannot be read (``unreadable.py``). ``scan`` raises:
it is for callers that must not act on a part of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from ..engine.records.keyspace import FAMILY_BYTES
from ..engine.store.port import Rows, Store
from ..errors import CorruptionError
from .group import Group
from .paged import paged
from .unreadable import Unreadable

__all__ = ["Overlay"]


class Overlay:
    """The store with the pending groups on top: the state after the last queued operation."""

    def __init__(self, store: Store, pending: Callable[[], Sequence[Group]]) -> None:
        self._store = store
        self._pending = pending
        # What the first ``in_map`` pending groups add up to; of the last of them, ``_last``, the
        # first ``indexed`` operations.
        self._map: dict[bytes, bytes | None] = {}
        self.in_map = 0
        self._first: Group | None = None
        self._last: Group | None = None
        self.unreadable: Unreadable | None = None  # None until a scan meets damage
        self.failed_reads: dict[bytes, int] = {}  # failed reads of single rows, by key family
        self.report: Callable[[bytes, bytes, CorruptionError], None] = _ignore

    def _queued(self, pending: Sequence[Group]) -> dict[bytes, bytes | None]:
        """The map of all that is pending; ``pending`` is not empty."""
        count = len(pending)
        last = pending[count - 1]
        if count == self.in_map and last is self._last and pending[0] is self._first:
            if last.indexed == len(last.ops):
                return self._map
        elif (
            count < self.in_map
            or pending[0] is not self._first
            or pending[self.in_map - 1] is not self._last
        ):
            self.forget()
        at = max(self.in_map - 1, 0)  # the last one may have grown
        for group in pending if not at else islice(pending, at, None):
            done = group.indexed if group is self._last else 0
            ops = group.ops
            self._map.update(ops[done:] if done else ops)
            group.indexed = len(ops)
        self._first, self._last, self.in_map = pending[0], last, count
        return self._map

    def forget(self) -> None:
        """Drop the map; the next read makes it anew if there is anything pending."""
        if self.in_map:
            self._map = {}
            self._first = self._last = None
            self.in_map = 0

    def get(self, key: bytes) -> bytes | None:
        """The value as queued, else as applied.

        Raises:
            CorruptionError: the row lies in a damaged block; others can be read.
        """
        pending = self._pending()
        if pending:
            queued = self._queued(pending)
            if key in queued:
                return queued[key]
        try:
            return self._store.get(key)
        except CorruptionError as error:
            family = key[:FAMILY_BYTES]
            self.failed_reads[family] = self.failed_reads.get(family, 0) + 1
            raise CorruptionError(f"row {key!r} lies in a damaged block: {error}") from error

    def get_sound(self, key: bytes) -> bytes | None:
        """The value; None if there is no such row or it lies in a damaged block."""
        try:
            return self.get(key)
        except CorruptionError:
            return None

    def has(self, key: bytes) -> bool:
        """Whether there is such a row. A row that cannot be read counts as there."""
        try:
            return self.get(key) is not None
        except CorruptionError:
            return True

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, with one read of the store for those that are not queued."""
        groups = self._pending()
        if not groups:
            return self._store.multi_get(keys) if keys else []
        queued = self._queued(groups)
        values = [queued.get(key) for key in keys]
        missing = [i for i, key in enumerate(keys) if key not in queued]
        if missing:
            found = self._store.multi_get([keys[i] for i in missing])
            for i, value in zip(missing, found, strict=True):
                values[i] = value
        return values

    def last_key(self, lower: bytes, upper: bytes) -> bytes | None:
        """An upper bound of the keys in ``[lower, upper)``; its row may be queued for delete."""
        row = self._store.scan_last(lower, upper)
        keys = [] if row is None else [row[0]]
        groups = self._pending()
        if groups:
            keys += [k for k in self._queued(groups) if lower <= k < upper]
        return max(keys, default=None)

    def scan(self, lower: bytes, upper: bytes, limit: int) -> tuple[Rows, bytes | None]:
        """Up to ``limit`` rows in ``[lower, upper)``, and where to go on.

        The second value is None when the range is exhausted; otherwise it is the lower bound
        for the next call, and ends with a zero byte. Fewer than ``limit`` rows, even none, do *not*
        mean that there are no more: deleted rows are passed over for a few milliseconds only, and
        so are those that a pending group deletes. Callers that do not carry the bound on use
        ``pages`` or ``first``, or on the loop ``repository/state/pages.py``.

        Raises:
            CorruptionError: some of the range lies in a damaged block.
        """
        rows, resume = self._store.scan_part(lower, upper, limit)
        return self._merge(rows, resume, lower, upper, limit)

    def scan_readable(
        self, lower: bytes, upper: bytes, limit: int, *, renew: bool = True
    ) -> tuple[Rows, bytes | None]:
        """As ``scan``, but go on behind what cannot be read.

        If finding the end of a damaged range takes more probes than one call may make, it returns
        what it has, which may be no rows and ``lower`` as where to go on. The end of such a range
        need not end with a zero byte.

        Args:
            lower: the first key.
            upper: the end of the keys, excluded.
            limit: rows at most.
            renew: grant a new budget of probes; False: this goes on with that of the call before.
        """
        unreadable = self.unreadable
        if unreadable is None:
            try:
                return self.scan(lower, upper, limit)
            except CorruptionError:
                unreadable = self.unreadable = Unreadable(self._store)
                unreadable.report = self.report
        elif renew:
            unreadable.renew()
        rows, resume = unreadable.scan(lower, upper, limit)
        return self._merge(rows, resume, lower, upper, limit)

    def _merge(
        self, rows: Rows, resume: bytes | None, lower: bytes, upper: bytes, limit: int
    ) -> tuple[Rows, bytes | None]:
        groups = self._pending()
        if groups:
            bound = upper if resume is None else resume
            merged = dict(rows)
            changed = False
            for key, value in self._queued(groups).items():
                if lower <= key < bound:
                    changed = True
                    if value is None:
                        merged.pop(key, None)
                    else:
                        merged[key] = value
            if changed:
                rows = sorted(merged.items())
                if len(rows) > limit:
                    del rows[limit:]
                    resume = rows[-1][0] + b"\0"
        return rows, resume

    def scan_back(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        """The last rows of a range, descending, as ``Store.scan_back``; none if a group waits."""
        return [] if self._pending() else self._store.scan_back(lower, upper, limit)

    def pages(self, lower: bytes, upper: bytes, limit: int) -> Iterator[Rows]:
        """All rows of the range, page by page; each page is read when it is asked for."""
        return paged(self.scan, lower, upper, limit)

    def first(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        """The first row of the range, or None."""
        at: bytes | None = lower
        while at is not None:
            rows, at = self.scan(at, upper, 1)
            if rows:
                return rows[0]
        return None


def _ignore(lower: bytes, upper: bytes, error: CorruptionError) -> None:
    """Report unreadable ranges to nobody."""
