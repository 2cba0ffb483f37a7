"""The overlay: reads of the store that see the groups not yet applied.

The event loop is the lock, but only for memory; the disk lags behind by the groups not yet
applied. Every read that decides something goes through an overlay over those groups. It is
lazy: a group becomes a map only when somebody reads while it is pending, so the common path
(claims from memory, completes by the lease table) pays nothing for it.

One damaged block costs the rows in it, not the queue: ``get`` raises for that key alone, and
``scan_readable`` goes on behind a range that cannot be read (``unreadable.py``). ``scan`` raises:
it is for callers that must not act on a part of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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
        self.unreadable: Unreadable | None = None  # None until a scan meets damage
        self.failed_reads: dict[bytes, int] = {}  # failed reads of single rows, by key family
        self.report: Callable[[bytes, bytes, CorruptionError], None] = _ignore

    def get(self, key: bytes) -> bytes | None:
        """The value as queued, else as applied.

        Raises:
            CorruptionError: the row lies in a damaged block; others can be read.
        """
        for group in reversed(self._pending()):
            index = group.index()
            if key in index:
                return index[key]
        try:
            return self._store.get(key)
        except CorruptionError as error:
            family = key[:2]
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
        values: list[bytes | None] = [None] * len(keys)
        missing: list[int] = []
        indexes = [group.index() for group in reversed(groups)]
        for i, key in enumerate(keys):
            for index in indexes:
                if key in index:
                    values[i] = index[key]
                    break
            else:
                missing.append(i)
        if missing:
            found = self._store.multi_get([keys[i] for i in missing])
            for i, value in zip(missing, found, strict=True):
                values[i] = value
        return values

    def last_key(self, lower: bytes, upper: bytes) -> bytes | None:
        """An upper bound of the keys in ``[lower, upper)``; its row may be queued for delete."""
        row = self._store.scan_last(lower, upper)
        keys = [] if row is None else [row[0]]
        keys += [k for group in self._pending() for k in group.index() if lower <= k < upper]
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
            for group in groups:
                for key, value in group.index().items():
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
