"""The store port: an ordered, atomic-batch key-value map.

Two implementations from the first day, ``engine/store/rocks.py`` (RocksDB through rocksdict) and
``engine/store/memory.py``, held together by one conformance suite; a simulation brings a third.

Everything but the sync is synchronous and called on the event loop's thread: a plain RocksDB
write costs microseconds and holds the GIL anyway, a thread hop costs more than the write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from ...errors import LodeqError, StoreStalledError

__all__ = [
    "SLICE_ROWS",
    "IngestingStore",
    "Op",
    "PlacedStore",
    "Rows",
    "Store",
    "StoreView",
    "ops_bytes",
    "pages",
    "write_patiently",
]

# A put, or a delete where the value is None.
Op = tuple[bytes, bytes | None]
Rows = list[tuple[bytes, bytes]]

SLICE_ROWS = 512
_STALLS_MAX = 100


def ops_bytes(ops: Iterable[Op]) -> int:
    """Bytes of the keys and values."""
    return sum([len(key) + len(value) if value else len(key) for key, value in ops])


class StoreView(Protocol):
    """Reads. A store reads the latest applied state, a snapshot one moment of it."""

    def get(self, key: bytes) -> bytes | None:
        """The value, or None. Raises ``CorruptionError`` where the bytes are damaged."""

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of ``keys``, None for those that are not there."""

    def scan(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        """At most ``limit`` rows with ``lower <= key < upper``, ascending.

        Checked: fewer rows than ``limit`` means there are no more, never that an iterator
        stopped at damage (then ``CorruptionError``). No iterator outlives the call.
        """

    def scan_part(self, lower: bytes, upper: bytes, limit: int) -> tuple[Rows, bytes | None]:
        """A part of ``scan`` that takes a few milliseconds at most, and where to go on.

        The second value is None when the range is through; else it is the lower bound of the next
        part, above ``lower``, and of a store what follows a key: it ends with a zero byte. Fewer
        rows than ``limit``, even none, do *not* mean that there are no more: a part ends among many
        deleted rows as well. It ends before damage, too: ``CorruptionError`` means that nothing can
        be read at ``lower``.
        """

    def scan_last(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        """The last row with ``lower <= key < upper``, or None. Checked in the same way."""

    def close(self) -> None:
        """Let go of it. Idempotent."""


class Store(StoreView, Protocol):
    """One shard's rows."""

    @property
    def reads_beside(self) -> bool:
        """Whether ``scan_part`` and ``scan_last`` may be called from another thread meanwhile."""

    def scan_back(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        """The last rows with ``lower <= key < upper``, descending, at most ``limit``.

        For callers who know how many rows there are: what was deleted in front of those is not
        met. Fewer than ``limit``, even none, do *not* mean that there are no more: it ends among
        many deleted rows, after a few milliseconds, and where something cannot be read.
        """

    def write(self, ops: Iterable[Op]) -> None:
        """Apply all of ``ops``, in order, as one atomic batch; visible to reads on return.

        Survives the death of the process from then on, a power cut only after a sync.

        Raises:
            StoreStalledError: refused, nothing applied; the same operations may be retried.
            StorageFullError: refused, nothing applied; the same operations may be retried.
            CommitUnknownError: anything else; the store must take no further write.
            ClosedError: the store is closed.
        """

    def start_sync(self, done: Callable[[BaseException | None], None]) -> None:
        """Make everything written so far durable; then call ``done`` once, from any thread.

        ``done(None)`` on success, ``done(error)`` otherwise; a failed sync is never retried.
        At most one sync at a time: the caller sees to it.
        """

    def run(self, fn: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Run blocking work of this shard (watermark, memtable flush) on the sync's thread."""

    def flush(self, wait: bool = True) -> None:
        """Write the memtables to SST files. Blocks, or only starts it where ``wait`` is False.

        Call it through ``run``. A store that is full or stalled raises and heals by itself.
        """

    def snapshot(self, splits: Sequence[bytes] = ()) -> StoreView:
        """A view of this moment. Close it before the store.

        ``splits``: ascending keys at which a ``scan_part`` of the view ends. A store cannot find
        them afterwards; ``Walk.splits`` of a walk over the store itself says where they belong.
        """

    def checkpoint(self, path: str) -> None:
        """A consistent copy at ``path``, which must not exist. Blocks: flush first."""

    def property_int(self, name: str) -> int | None:
        """A RocksDB integer property (``rocksdb.estimate-num-keys``, …) or None."""

    def retire(self, refusal: Callable[[], LodeqError]) -> Callable[[], None]:
        """Begin to close while others may still call: they get ``refusal()`` from now on.

        Views are closed as well. Returns what does the rest, and blocks: call it when no other
        thread is at a read that began before.
        """

    def close(self) -> None:
        """Join the sync thread, drop iterators, close. Idempotent; later calls: ``ClosedError``."""


@runtime_checkable
class IngestingStore(Store, Protocol):
    """A store that also takes whole files of rows. RocksDB's does; one in memory need not."""

    path: str

    def ingest(self, paths: Sequence[str], *, may_flush: bool = False) -> bool:
        """Take finished SST files in, by move, in one atomic step; durable on return.

        Where two files have a key, the later one counts; the files are newer than all there is.
        Holds the GIL for milliseconds. False: a memtable overlaps them, nothing was done, flush
        first; with ``may_flush`` that happens inside, and blocks.

        Raises:
            StorageFullError, StoreStalledError: refused, nothing applied; may be tried again.
            CommitUnknownError: anything else; the store must take no further write.
            ClosedError: the store is closed.
        """


@runtime_checkable
class PlacedStore(Store, Protocol):
    """A store that makes files at a path, which may be taken by another one."""

    def displace(self) -> None:
        """Make no file any more, not even when it is closed: the path is another store's.

        What is committed stays in the files that are open. The process keeps them until it ends.
        """


def pages(view: StoreView, lower: bytes, upper: bytes) -> Iterator[Rows]:
    """All rows of a range, a slice at a time, each read afresh."""
    while True:
        rows = view.scan(lower, upper, SLICE_ROWS)
        if rows:
            yield rows
        if len(rows) < SLICE_ROWS:
            return
        lower = rows[-1][0] + b"\0"


def write_patiently(store: Store, ops: Iterable[Op]) -> None:
    """``write`` while nobody else uses the store: a stall is waited for. Blocks; ``ops`` is reread.

    An engine retries on its loop. An open that gave up instead would close the store, and with it
    end the compaction that would have ended the stall.
    """
    for _ in range(_STALLS_MAX):
        try:
            store.write(ops)
            return
        except StoreStalledError:
            store.flush()  # blocks until one more table would not stall it
    store.write(ops)
