"""The store on RocksDB, through rocksdict: a library of sharp edges as the ``Store`` port.

- rocksdict raises bare ``Exception``s that hold RocksDB's status as text. ``translate`` is the one
  place that reads them (rocks_errors.py); nobody else catches ``Exception``.
- ``items()``, ``keys()`` and ``values()`` end silently at damage. Reads go through a ``RdictIter``
  whose ``status()`` is asked before the rows are believed.
- A live iterator keeps the database open, and its LOCK held, after ``close()``. So iterators die
  inside the call that made them, even when it raises (a traceback keeps locals alive). Those of
  snapshots live longer; they are tracked, and dropped by ``close()``.
- A synced write holds the GIL through the fsync. ``write`` never syncs; ``flush_wal`` releases it,
  in the store's one thread. ``close()`` would raise meanwhile, so it ends that thread first.
- After ``fork`` the child's handle is closed at once, and nothing is destroyed (``forked.py``).

Closing swaps the handle for an object that raises ``ClosedError``: the hot path asks no question.
"""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from queue import SimpleQueue
from typing import Final, NoReturn, cast
from weakref import WeakSet, finalize

from rocksdict import (
    Checkpoint,
    IngestExternalFileOptions,
    Rdict,
    RdictIter,
    ReadOptions,
    Snapshot,
    WriteBatch,
)

from ...errors import (
    ClosedError,
    CommitUnknownError,
    CorruptionError,
    LodeqError,
    OpenError,
    StorageError,
    StorageFullError,
    StorePathError,
    UsageError,
)
from ..runtime import forked
from ..runtime.clock import perf_s
from . import full_disk_watchdog
from .io_thread import Done, Job, start_thread
from .port import Op, Rows, StoreView
from .probe import BITS, key_behind, span_bits
from .rocks_errors import Doing, translate
from .rocks_options import RecoveryMode, rocks_options, write_options
from .rocks_options import SharedMemory as SharedMemory  # handed on with the store it is for
from .wal_inspection import check_folder

__all__ = ["RocksStore", "RocksView"]

_log = logging.getLogger(__name__)
SORTED_MIN = 16
SKIPS: Final = 4096  # deleted rows that one piece of a scan passes over: a third of a millisecond
PART_S: Final = 0.002
_NOT_FOUND: Final = "key not found"
_PILE_UP: Final = {  # of a damaged store
    "disable_auto_compactions": "true",
    "level0_slowdown_writes_trigger": "100000",
    "level0_stop_writes_trigger": "100000",
}
# An iterator that has met a damaged block takes the one it had read before for damaged, too, until
# it has been where there is none.
_BEYOND: Final = b"\xff" * 200


class _Closed:
    """Stands in for a database or snapshot that is gone."""

    __slots__ = ("refusal",)

    def __init__(self, refusal: Callable[[], LodeqError]) -> None:
        self.refusal = refusal  # makes the error that every use raises

    def __getattr__(self, name: str) -> NoReturn:
        raise self.refusal()


_CLOSED = _Closed(lambda: ClosedError("the store is closed"))


class RocksView:
    """A snapshot. Closed with its store at the latest.

    It is in two parts, made at one moment: a ``Snapshot``, for single keys (a seek for a key that
    is not there would walk all the deleted rows behind it), and iterators, for those of a
    ``Snapshot`` see the present. One for each stretch between two ``splits``: an iterator's bound
    is all that ends its way through deleted rows. They pin memtables and tables: keep it briefly.
    """

    __slots__ = ("__weakref__", "_its", "_snapshot", "_splits")

    def __init__(self, snapshot: Snapshot, its: list[RdictIter], splits: Sequence[bytes]) -> None:
        self._snapshot = snapshot
        self._its = its  # one more than there are splits
        self._splits = splits

    @classmethod
    def of(cls, db: Rdict, splits: Sequence[bytes]) -> RocksView:
        """A view of the present of ``db``, with an iterator for each stretch."""
        while True:
            number = db.latest_sequence_number()
            snapshot, its = db.snapshot(), []
            for upper in splits:
                bounds = ReadOptions()
                bounds.set_iterate_upper_bound(upper)
                its.append(db.iter(bounds))
            its.append(db.iter())
            if db.latest_sequence_number() == number:  # else another thread has written in between
                return cls(snapshot, its, splits)

    def get(self, key: bytes) -> bytes | None:
        """The value at the moment of the snapshot, or None."""
        read = self._snapshot.__getitem__
        try:
            return cast(bytes, read(key))
        except Exception as exc:
            if str(exc) == _NOT_FOUND:
                return None
            raise translate(exc, "read") from exc
        finally:
            del read

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values at the moment of the snapshot, in the order of ``keys``."""
        self._its[0].valid()  # raises if closed, for no keys too
        return [self.get(key) for key in keys]

    def scan(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        """At most ``limit`` rows of that moment with ``lower <= key < upper``, ascending."""
        rows: Rows = []
        for at, end in self._stretches(lower, upper):
            try:
                rows += _scan(self._its[at], lower, end, limit - len(rows))
            except CorruptionError:
                self._its[at].seek(_BEYOND)
                raise
            if len(rows) >= limit:
                break
            lower = end
        return rows

    def scan_part(self, lower: bytes, upper: bytes, limit: int) -> tuple[Rows, bytes | None]:
        """A part of it, within one stretch, and where to go on."""
        for at, end in self._stretches(lower, upper):
            try:
                rows, is_whole = _scan_until(self._its[at], lower, end, limit)
            finally:
                self._its[at].seek(_BEYOND)
            return rows, _next_part(rows, is_whole and len(rows) < limit, end, upper)
        return [], None

    def scan_last(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        """The last row of that moment with ``lower <= key < upper``, or None."""
        for at, end in reversed(list(self._stretches(lower, upper))):
            try:
                row = _scan_last(self._its[at], lower, end)
            except CorruptionError:
                self._its[at].seek(_BEYOND)
                raise
            if row is not None:
                return row
        return None

    def _stretches(self, lower: bytes, upper: bytes) -> Iterator[tuple[int, bytes]]:
        """Which iterators a range needs (by number), each with where its part of it ends."""
        self._its[0].valid()  # raises if closed
        splits = self._splits
        for at in range(bisect_right(splits, lower), len(splits)):
            yield at, min(splits[at], upper)
            if splits[at] >= upper:
                return
        yield len(splits), upper

    def leak(self) -> None:
        """In a forked child: nothing of it is destroyed."""
        for thing in (self._snapshot, *self._its):
            forked.leak(thing)
        self.close()

    def close(self, stands_in: _Closed = _CLOSED) -> None:
        """Let go of it. Idempotent."""
        self._snapshot = cast(Snapshot, stands_in)
        self._its, self._splits = [cast(RdictIter, stands_in)], ()


def _scan(it: RdictIter, lower: bytes, upper: bytes, limit: int) -> Rows:
    """The one forward scan: it ends with ``status()``. A view's iterator has no bound."""
    seek, key, value, step = it.seek, it.key, it.value, it.next
    rows: Rows = []
    append = rows.append
    try:
        if limit > 0 and lower < upper:
            seek(lower)
            found = key()
            for _ in repeat(None, limit - 1):
                if found is None or found >= upper:
                    break
                append((found, value()))
                step()
                found = key()
            else:  # not past the last row: that could read, and fail on, another block
                if found is not None and found < upper:
                    append((found, value()))
            it.status()
    except Exception as exc:
        raise translate(exc, "read") from exc
    finally:
        del it, seek, key, value, step  # the traceback of an error must not keep the LOCK
    return rows


def _scan_until(it: RdictIter, lower: bytes, upper: bytes, limit: int) -> tuple[Rows, bool]:
    """Rows of a range until something ends them, and whether nothing did.

    That is so many deleted rows that the iterator gives up, damage, or a slice's time. Where it
    happens before the first row: none, or ``CorruptionError``.
    """
    seek, key, value, step = it.seek, it.key, it.value, it.next
    rows: Rows = []
    append = rows.append
    try:
        if limit <= 0 or lower >= upper:
            return rows, True
        ends = perf_s() + PART_S
        seek(lower)
        found = key()
        while found is not None and found < upper:
            append((found, value()))
            if len(rows) >= limit or (not len(rows) & 7 and perf_s() > ends):
                it.status()
                return rows, len(rows) >= limit
            step()
            found = key()
        it.status()
    except Exception as exc:
        if not rows and not str(exc).startswith("Result incomplete"):
            raise translate(exc, "read") from exc
        return rows, False
    finally:
        del it, seek, key, value, step  # the traceback of an error must not keep the LOCK
    return rows, True


def _next_part(rows: Rows, is_whole: bool, end: bytes, upper: bytes) -> bytes | None:
    """Where to go on behind ``rows``; ``is_whole``: they are all there is up to ``end``."""
    if rows and not is_whole:
        return rows[-1][0] + b"\0"
    return end if end < upper else None


def _scan_last(it: RdictIter, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
    seek = it.seek_for_prev
    row = None
    try:
        if lower < upper:
            seek(upper)
            found = it.key()
            if found == upper:  # inclusive, alas
                it.prev()
                found = it.key()
            # rocksdict ignores a lower bound set on the iterator.
            if found is not None and found >= lower:
                row = (found, it.value())
            it.status()
    except Exception as exc:
        raise translate(exc, "read") from exc
    finally:
        del it, seek
    return row


def _scan_back(it: RdictIter, lower: bytes, upper: bytes, limit: int) -> Rows:
    """Up to ``limit`` rows from the end on; many deleted rows end it, or a slice's time."""
    key, value, step = it.key, it.value, it.prev
    rows: Rows = []
    try:
        if limit <= 0 or lower >= upper:
            return rows
        ends = perf_s() + PART_S
        it.seek_for_prev(upper)
        found = key()
        if found == upper:  # inclusive, alas
            step()
            found = key()
        while found is not None and found >= lower:
            rows.append((found, value()))
            if len(rows) >= limit:
                break
            if not len(rows) & 7 and perf_s() > ends:
                break
            step()
            found = key()
        it.status()
    except Exception as exc:
        if str(exc).startswith("Result incomplete"):
            return rows
        raise translate(exc, "read") from exc
    finally:
        del it, key, value, step  # the traceback of an error must not keep the LOCK
    return rows


class RocksStore:
    """One shard in RocksDB. Made by ``open``; used from one thread, except for ``run``'s work.

    Scans may run beside it in another thread, which must be done when the store is closed.
    """

    reads_beside = True

    __slots__ = (
        "__weakref__",
        "_before_sync",
        "_closing",
        "_db",
        "_finish",
        "_forgiven",
        "_full",
        "_is_compacting",
        "_is_displaced",
        "_jobs",
        "_piece_bits",
        "_refused",
        "_thread",
        "_views",
        "path",
    )

    def __init__(self, db: Rdict, path: str) -> None:
        self.path = path
        self._db = db
        self._closing = False
        self._is_displaced = False
        self._finish: Callable[[], None] | None = None  # the rest of ``retire``
        self._is_compacting = True
        self._views: WeakSet[RocksView] = WeakSet()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._refused = self._forgiven = 0  # writes for lack of space; a good sync began after
        self._full = full_disk_watchdog.FullWatch(path)
        self._before_sync: Callable[[], None] | None = None
        self._piece_bits = BITS  # how far a piece of deleted rows reached
        forked.watch(self)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        shared: SharedMemory,
        shards: int = 1,
        recovery_mode: RecoveryMode = "tail",
        create: bool,
        is_compacted: bool = True,
    ) -> RocksStore:
        """Open the database at ``path``; make it, and its folder, only with ``create``.

        Without ``is_compacted`` its tables stay as they are, for one that is only to be read.

        Args:
            path: folder of the shard.
            shared: block cache and write buffers of all shards.
            shards: how many share the memory, 1 to 4,096.
            recovery_mode: how much damage at the end of the WAL is accepted.
            create: whether to make a new database.
            is_compacted: whether background compaction runs.

        Raises:
            StorePathError: no store there (and ``create`` is False), or the path cannot be one.
            LockedError: it is open elsewhere.
            CorruptionError: the WAL or the manifest is damaged in a way ``recovery_mode`` refuses.
            OpenError: anything else. Nothing was opened.
        """
        path = os.fspath(path)
        if forked.is_orphaned():
            raise OpenError("forked from a process that used a store: spawn a new process instead")
        check_folder(path, create=create, cut=recovery_mode == "point_in_time")
        options = rocks_options(shared, shards, recovery_mode=recovery_mode, create=create)
        if not is_compacted:
            options.set_disable_auto_compactions(True)
        try:
            # Options and column families are passed: left out, rocksdict loads stored ones.
            db = Rdict(path, options, {"default": options})
        except Exception as exc:
            raise translate(exc, "open") from exc
        db.set_write_options(write_options())
        return cls(db, path)

    @staticmethod
    def repair(path: str, *, shared: SharedMemory) -> None:
        """Let RocksDB make a manifest of the tables and logs it finds in the folder, a copy.

        What it cannot read it moves to ``lost/`` there. Blocks, without the GIL.

        Raises:
            LodeqError: it gave up; the folder is worthless.
        """
        try:
            Rdict.repair(path, rocks_options(shared, 1))
        except Exception as exc:
            raise translate(exc, "open") from exc

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        read = self._db.get
        try:
            return read(key)
        except Exception as exc:
            raise self._unread(exc) from exc

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of ``keys``, None for those that are not there."""
        read = self._db.get
        try:
            return cast("list[bytes | None]", read(list(keys)))
        except Exception as exc:
            raise self._unread(exc) from exc

    def scan(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        """At most ``limit`` rows with ``lower <= key < upper``, or an error: never a silent end."""
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(upper)
        try:
            return _scan(self._db.iter(bounds), lower, upper, limit)
        except CorruptionError:
            self._stop_compacting()
            raise

    def _unread(self, exc: Exception) -> LodeqError:
        error = translate(exc, "read")
        if isinstance(error, CorruptionError):
            self._stop_compacting()
        return error

    def _stop_compacting(self) -> None:
        """A table is damaged. A compaction that met the block would end all writes.

        So there are none until the store is closed, and tables of level 0 may pile up; a salvage
        reads them all.
        """
        if self._is_compacting:
            self._is_compacting = False
            try:
                self._db.set_options(_PILE_UP)
            except Exception as exc:  # noqa: BLE001 - bare ones are all rocksdict raises
                fields = {"event": "compacting_on", "path": self.path}
                _log.warning("damaged tables may be compacted: %r", str(exc), extra=fields)

    def scan_part(self, lower: bytes, upper: bytes, limit: int) -> tuple[Rows, bytes | None]:
        """A part of a scan, and where to go on.

        Where a scan gave up among deleted rows it does not say. So it is tried with less of the
        range, until a piece is small enough to be found empty. How small that was is remembered.
        """
        rows, is_whole = self._scan_piece(lower, upper, limit)
        if rows or is_whole:
            return rows, _next_part(rows, is_whole and len(rows) < limit, upper, upper)
        at, ends, empty, down = lower, perf_s() + PART_S, 0, 1
        bits = min(self._piece_bits, span_bits(lower, upper))
        while at == lower or perf_s() < ends:
            end = min(upper, key_behind(at, bits))
            try:
                rows, is_whole = self._scan_piece(at, end, limit)
            except CorruptionError:
                if at == lower:
                    raise
                break
            if rows or (is_whole and end == upper):
                at = end
                break
            if is_whole:
                at, empty, down = end, empty + 1, 1
                bits += not empty & 3
            elif bits == 0:  # no key of ours is so long that this could be
                rows, is_whole, at = self.scan(at, end, limit), True, end
                break
            else:
                bits, down, empty = max(0, bits - down), 2 * down, 0
        self._piece_bits = bits
        return rows, _next_part(rows, is_whole and len(rows) < limit, at, upper)

    def _scan_piece(self, lower: bytes, upper: bytes, limit: int) -> tuple[Rows, bool]:
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(upper)
        bounds.set_max_skippable_internal_keys(SKIPS)
        try:
            return _scan_until(self._db.iter(bounds), lower, upper, limit)
        except CorruptionError:
            self._stop_compacting()
            raise

    def scan_last(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        """The last row with ``lower <= key < upper``, or None; checked."""
        try:
            return _scan_last(self._db.iter(), lower, upper)
        except CorruptionError:
            self._stop_compacting()
            raise

    def scan_back(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        """The last rows of a range, descending, as far as a few milliseconds go."""
        bounds = ReadOptions()
        bounds.set_max_skippable_internal_keys(SKIPS)
        try:
            return _scan_back(self._db.iter(bounds), lower, upper, limit)
        except CorruptionError:
            self._stop_compacting()
            return []

    def write(self, ops: Iterable[Op]) -> None:
        """Apply ``ops`` as one atomic batch, unsynced. The hottest loop there is: keep it bare."""
        write = self._db.write
        batch = WriteBatch(raw_mode=True)
        try:
            # In order (and stable), for the memtable looks for a place from the last one on; a few
            # rows are not worth a sort. By item: a tenth faster than by method.
            is_short = type(ops) is list and len(ops) < SORTED_MIN
            for key, value in ops if is_short else sorted(ops, key=itemgetter(0)):
                if value is None:
                    del batch[key]
                else:
                    batch[key] = value
        except (KeyError, TypeError, ValueError) as exc:
            raise UsageError(f"an operation is (bytes, bytes | None): {exc}") from exc
        try:
            write(batch)
        except Exception as exc:
            self._refused += 1  # at once: a sync under way may be the next to meet that log
            error = self._refusal(exc, "write")
            self._refused -= 1
            raise error from exc

    def _refusal(self, exc: Exception, doing: Doing) -> LodeqError:
        """A log that met a full disk takes no sync until RocksDB, with space, begins another."""
        error = translate(exc, doing)
        if doing == "sync" and self._refused > self._forgiven and "previous error" in str(exc):
            return StorageFullError(str(exc))
        if isinstance(error, StorageFullError):
            self._refused += 1
            return self._full.judge(error, self._db.latest_sequence_number())
        return error

    def start_sync(self, done: Done) -> None:
        """Sync the WAL in the store's thread, then call ``done`` from there."""
        self.run(self._sync, done)

    def sync_before(self, first: Callable[[], None]) -> None:
        """First step of every sync: bodies are durable before the rows that lead to them."""
        self._before_sync = first

    def _sync(self) -> None:
        flush_wal, refused = self._db.flush_wal, self._refused
        if self._before_sync is not None:
            try:
                self._before_sync()
            except OSError as exc:
                raise CommitUnknownError(f"a sync of body files failed: {exc}") from exc
        try:
            flush_wal(True)
        except Exception as exc:
            raise self._refusal(exc, "sync") from exc
        self._forgiven = refused

    def run(self, fn: Callable[[], None], done: Done) -> None:
        """Run ``fn`` in the store's thread, after what was asked for before; then ``done``."""
        if self._closing:
            db: object = self._db
            raise (db if isinstance(db, _Closed) else _CLOSED).refusal()
        if self._thread is None or not self._thread.is_alive():  # ended, at exit
            try:  # late: a store that is only read needs none
                self._thread = start_thread("lodeq-sync", self._jobs)
            except RuntimeError as exc:
                raise StorageError(f"no thread for {self.path!r}: {exc}") from exc
            finalize(self, self._jobs.put, None).atexit = False  # a forgotten store needs none
        self._jobs.put((fn, done))

    def flush(self, wait: bool = True) -> None:
        """Write the memtables to SST files. Blocks, without the GIL, unless ``wait`` is false."""
        flush = self._db.flush
        try:
            flush(wait)
        except Exception as exc:
            raise translate(exc, "write") from exc

    def ingest(self, paths: Sequence[str], *, may_flush: bool = False) -> bool:
        """Take finished SST files in, by move. See ``IngestingStore``."""
        options = IngestExternalFileOptions()
        options.set_move_files(True)  # a link and an unlink: milliseconds, whatever the size
        options.set_snapshot_consistency(True)  # views of before must not see them
        options.set_allow_global_seqno(True)  # they may overlap what is there
        options.set_allow_blocking_flush(may_flush)  # in it the GIL is held
        options.set_ingest_behind(False)  # what comes in is newer
        ingest = self._db.ingest_external_file
        try:
            ingest(list(paths), options)
        except Exception as exc:
            if not may_flush and "requires flush" in str(exc):
                return False
            raise translate(exc, "write") from exc
        return True

    def snapshot(self, splits: Sequence[bytes] = ()) -> StoreView:
        """A view of this moment."""
        view = RocksView.of(self._db, splits)
        self._views.add(view)
        return view

    def checkpoint(self, path: str) -> None:
        """A consistent copy at ``path``; tables are hard-linked where the file system can."""
        db = self._db
        if isinstance(db, _Closed):
            raise db.refusal()
        if os.path.lexists(path):
            raise StorePathError(f"the checkpoint's path exists: {path!r}")
        maker = Checkpoint(db)
        try:
            maker.create_checkpoint(path)
        except Exception as exc:
            raise translate(exc, "read") from exc
        finally:
            del maker, db  # either keeps the database open

    def property_int(self, name: str) -> int | None:
        """A RocksDB integer property, or None if there is none of that name."""
        read = self._db.property_int_value
        try:
            return read(name)
        except Exception as exc:
            raise translate(exc, "read") from exc

    def property_text(self, name: str) -> str:
        """A RocksDB property as text; empty if there is none of that name."""
        read = self._db.property_value
        try:
            return read(name) or ""
        except Exception as exc:
            raise translate(exc, "read") from exc

    def compact(self) -> None:
        """Rewrite all tables without what is deleted. Blocks, without the GIL."""
        run = self._db.compact_range
        try:
            run(None, None)
        except Exception as exc:
            raise translate(exc, "read") from exc  # no write of ours is in doubt

    def live_tables(self) -> set[str]:
        """Names of the tables that the manifest knows; others in the folder are to be removed."""
        read = self._db.live_files
        try:
            return {os.path.basename(str(one["name"])) for one in read()}
        except Exception as exc:
            raise translate(exc, "read") from exc

    def retire(self, refusal: Callable[[], LodeqError]) -> Callable[[], None]:
        """Let go of the handle, so that nobody else reads by it; the rest may be done in a thread.

        Called again it returns that same rest, of which nothing is done twice.
        What is still asked of the store's thread fails with ``refusal()``.
        """
        if self._closing:
            return self._finish or self.close
        self._closing = True
        db, stands_in = self._db, _Closed(refusal)
        self._db = cast(Rdict, stands_in)
        for view in list(self._views):
            view.close(stands_in)

        handles, lock = [db], threading.Lock()

        def finish() -> None:
            with lock:  # called again, by another thread maybe: see it through
                self._end_thread()
                while handles:
                    self._close_handle(handles.pop())

        self._finish = finish
        return finish

    def close(self) -> None:
        """Finish the thread's work, drop snapshots, close. Idempotent. Not from ``done``."""
        if self._closing:
            return
        self._closing = True
        self._end_thread()
        for view in list(self._views):
            view.close()
        db, self._db = self._db, cast(Rdict, _CLOSED)
        if self._is_displaced:  # closing it would write what is in memory to files
            forked.unwatch(self)
            forked.leak(db)
        else:
            self._close_handle(db)

    def displace(self) -> None:
        """See ``PlacedStore``."""
        if not self._closing:
            self._is_displaced = True
            self._db.cancel_all_background(False)

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _close_handle(self, db: Rdict) -> None:
        forked.unwatch(self)
        try:
            db.close()
        except Exception as exc:  # noqa: BLE001 - bare ones are all rocksdict raises
            # It is closed all the same: what it could not write is in the WAL, or a sync failed.
            fields = {"event": "close_failed", "path": self.path}
            _log.warning("closing %r: %r", self.path, translate(exc, "write"), extra=fields)

    def abandon(self) -> None:
        """In a forked child: let go without touching what is the parent's. Not for users."""
        self._closing = True
        self._thread = None
        for view in list(self._views):
            view.leak()
        forked.leak(self._db)
        self._db = cast(Rdict, _CLOSED)
