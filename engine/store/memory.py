"""The store in memory: for tests, simulation and queues that need not outlive the process.

The rows are a dict; scans need order. Keeping a sorted list exact on every write would cost a
memmove per key, sorting per scan worse, so order is kept lazily: new keys wait in ``_fresh`` until
a scan asks, deleted ones stay in the list as tombstones (value None) until half of it is dead. The
dict knows every key of both, so no key is ever listed twice.

``start_sync`` and ``run`` do their work at once and call ``done`` before they return: there is no
disk to wait for, and no thread that a simulation would have to control.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakSet

from ...errors import ClosedError, LodeqError, UsageError
from .port import Op, Rows, StoreView

__all__ = ["MemoryStore", "MemoryView"]

# Below this many new keys an insertion each is cheaper than one pass over the whole list.
_INSORT_MAX = 32
# Fewer tombstones than this are not worth a rebuild.
_DEAD_MIN = 1024


class MemoryView:
    """Ordered rows that can be read: a snapshot, and the reading half of the store."""

    __slots__ = ("__weakref__", "_closed", "_fresh", "_keys", "_refusal", "_rows")

    def __init__(self, rows: dict[bytes, bytes | None]) -> None:
        self._rows = rows
        self._keys: list[bytes] = []  # sorted; may hold dead keys
        self._fresh: list[bytes] = list(rows)  # in no order; merged by the next scan
        self._closed = False
        self._refusal: Callable[[], LodeqError] = _store_closed

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        self._check_open()
        return self._rows.get(_as_bytes(key))

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of ``keys``, None for those that are not there."""
        self._check_open()
        return [self._rows.get(_as_bytes(key)) for key in keys]

    def scan(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        """At most ``limit`` rows with ``lower <= key < upper``, ascending."""
        self._check_open()
        found: Rows = []
        if limit <= 0:
            return found
        keys, rows = self._sorted(), self._rows
        for at in range(bisect_left(keys, lower), bisect_left(keys, upper)):
            value = rows[keys[at]]
            if value is not None:
                found.append((keys[at], value))
                if len(found) == limit:
                    break
        return found

    def scan_part(self, lower: bytes, upper: bytes, limit: int) -> tuple[Rows, bytes | None]:
        """A scan, and where to go on: deleted rows cost next to nothing here."""
        rows = self.scan(lower, upper, limit)
        return rows, rows[-1][0] + b"\0" if rows and len(rows) == limit else None

    def scan_last(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        """The last row with ``lower <= key < upper``, or None."""
        self._check_open()
        keys, rows = self._sorted(), self._rows
        for at in range(bisect_left(keys, upper) - 1, bisect_left(keys, lower) - 1, -1):
            value = rows[keys[at]]
            if value is not None:
                return keys[at], value
        return None

    def scan_back(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        """The last rows of a range, descending."""
        self._check_open()
        found: Rows = []
        keys, rows = self._sorted(), self._rows
        for at in range(bisect_left(keys, upper) - 1, bisect_left(keys, lower) - 1, -1):
            if len(found) >= limit:
                break
            value = rows[keys[at]]
            if value is not None:
                found.append((keys[at], value))
        return found

    def close(self) -> None:
        """Forget the rows. Idempotent."""
        self._closed = True
        self._rows, self._keys, self._fresh = {}, [], []

    def _check_open(self) -> None:
        if self._closed:
            raise self._refusal()

    def _sorted(self) -> list[bytes]:
        keys, fresh = self._keys, self._fresh
        if fresh:
            if len(fresh) <= _INSORT_MAX:
                for key in fresh:
                    insort(keys, key)
            else:
                keys += fresh
                keys.sort()  # two runs, one of them sorted: close to one merging pass
            self._fresh = []
        return keys


class MemoryStore(MemoryView):
    """A ``Store`` without a disk. ``close`` forgets everything."""

    reads_beside = False  # a scan puts the keys in order

    __slots__ = ("_dead", "_views")

    def __init__(self) -> None:
        super().__init__({})
        self._dead = 0
        self._views: WeakSet[MemoryView] = WeakSet()

    def write(self, ops: Iterable[Op]) -> None:
        """Apply ``ops`` in order, all or none: they are checked before the first is applied."""
        self._check_open()
        batch = list(ops)
        for op in batch:
            _check_op(op)
        rows, fresh = self._rows, self._fresh
        for key, value in batch:
            if key not in rows:
                if value is None:
                    continue
                fresh.append(key)
            elif rows[key] is None:
                self._dead -= value is not None
            elif value is None:
                self._dead += 1
            rows[key] = value
        if self._dead > _DEAD_MIN and 2 * self._dead > len(rows):
            self._bury()

    def start_sync(self, done: Callable[[BaseException | None], None]) -> None:
        """Nothing to sync: ``done(None)`` is called before this returns."""
        self._check_open()
        done(None)

    def run(self, fn: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Run ``fn`` now; ``done`` is called before this returns."""
        self._check_open()
        error: BaseException | None = None
        try:
            fn()
        except BaseException as exc:  # noqa: BLE001 - the waiter hears of it, as on RocksDB
            error = exc
        done(error)

    def flush(self, wait: bool = True) -> None:
        """Nothing to flush."""
        self._check_open()

    def snapshot(self, splits: Sequence[bytes] = ()) -> StoreView:
        """A copy of the rows as they are; values are shared. No part of a scan is too long."""
        self._check_open()
        view = MemoryView({key: value for key, value in self._rows.items() if value is not None})
        self._views.add(view)
        return view

    def checkpoint(self, path: str) -> None:
        """Not here.

        Raises:
            UsageError: always; there is nothing on disk to copy.
        """
        self._check_open()
        raise UsageError("an in-memory store has no checkpoint")

    def property_int(self, name: str) -> int | None:
        """The number of rows under RocksDB's name for it; None for any other."""
        self._check_open()
        if name == "rocksdb.estimate-num-keys":
            return len(self._rows) - self._dead
        return None

    def close(self) -> None:
        """Forget everything, the snapshots too. Idempotent."""
        for view in list(self._views):
            view.close()
        super().close()

    def retire(self, refusal: Callable[[], LodeqError]) -> Callable[[], None]:
        """Forget everything; calls get ``refusal()`` from now on, those of snapshots too."""
        for view in (*self._views, self):
            view._refusal = refusal
        self.close()
        return self.close

    def _bury(self) -> None:
        """Drop the tombstones. Amortised over the deletes that made them."""
        self._rows = {key: value for key, value in self._rows.items() if value is not None}
        self._keys = [key for key in self._keys if key in self._rows]
        self._fresh = [key for key in self._fresh if key in self._rows]
        self._dead = 0


def _store_closed() -> LodeqError:
    return ClosedError("the store is closed")


def _as_bytes(key: bytes) -> bytes:
    if not isinstance(key, bytes):
        raise UsageError(f"keys and values are bytes, not {type(key).__name__}")
    return key


def _check_op(op: Op) -> None:
    try:
        key, value = op
    except (TypeError, ValueError) as exc:
        raise UsageError(f"an operation is (bytes, bytes | None): {exc}") from exc
    _as_bytes(key)
    if value is not None:
        _as_bytes(value)
