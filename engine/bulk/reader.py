"""A shard opened only to read, without one write into its folder.

RocksDB and rocksdict write into whatever they open: a log, a lock, a file of settings. So what is
opened is an *overlay*: a temporary folder with a symbolic link to each file of the shard. It works
on a read-only mount and for files of another user, and readers go side by side.

A live folder can be opened in the same way. Its files come and go, so what is opened is what it was
at a moment at which nothing changed: the manifest is copied, every file is held by a descriptor,
and if the manifest is still the same, these are the files it names. The links lead to the
descriptors, so however fast the owner flushes and compacts, it can be opened. Where there are no
such links (elsewhere than on Linux), or too many files to hold, they lead to the files, and an open
that meets one that has gone is tried again. Once open, RocksDB holds every table.

``scan`` takes rocksdict's fast path, which ends silently where a block is damaged. So wherever it
ends before its bound, the place is looked at again with an iterator that reports it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, NamedTuple, cast

from rocksdict import AccessType, Rdict, ReadOptions

from ...errors import ClosedError, CorruptionError, LodeqError, OpenError, StorePathError
from ..files.disk_errors import path_error
from ..files.paths import is_rocksdb, shard_path
from ..records.keyspace import STAMP
from ..records.rows import decode_stamp
from ..runtime import forked
from ..store.port import Rows
from ..store.rocks_errors import translate
from ..store.rocks_options import SharedMemory, rocks_options
from ..store.wal_inspection import check_folder

__all__ = ["ShardReader", "TableFile", "open_over", "open_shard"]

CACHE_BYTES: Final = 32 << 20  # a scan reads each block once
READ_AHEAD_BYTES: Final = 1 << 20
BATCH_ROWS: Final = 16_384
BATCH_BYTES: Final = 8 << 20
_FIRST_ROWS: Final = 64
_SLICE_ROWS: Final = 2048
_TRIES_MAX: Final = 16
_LOOKS_MAX: Final = 64  # at a folder that changes: a few system calls each
_HELD_MAX: Final = 256  # of the 1,024 descriptors that a process often has
_DESCRIPTORS: Final = "/proc/self/fd"
_CURRENT: Final = "CURRENT"
_LEFT_OUT: Final = ("LOCK", "LOG")
_CONFIG: Final = "rocksdict-config.json"


class TableFile(NamedTuple):
    """One of the files a shard's rows lie in; its keys are between these two, both included."""

    first_key: bytes
    last_key: bytes
    bytes: int


class ShardReader:
    """Reads of one moment of a shard. Made by ``open_shard``; used from one thread."""

    __slots__ = ("__weakref__", "_db", "path", "shard", "shards", "store_id")

    def __init__(self, db: Rdict, path: str, shard: int) -> None:
        self._db: Rdict | None = db
        self.path = path
        self.shard = shard
        self.shards = 0  # how many the store has
        self.store_id = b""
        forked.watch(self)

    def _open(self) -> Rdict:
        if self._db is None:
            raise ClosedError(f"the reader of {self.path!r} is closed")
        return self._db

    def get(self, key: bytes) -> bytes | None:
        """The value, or None. Raises ``CorruptionError`` where the bytes are damaged."""
        db = self._open()
        try:
            return cast("bytes | None", db.get(key))
        except Exception as exc:
            raise self._translated(exc) from exc

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of ``keys``, None for those that are not there."""
        db = self._open()
        try:
            return cast("list[bytes | None]", db.get(list(keys)))
        except Exception as exc:
            raise self._translated(exc) from exc

    def batches(
        self, lower: bytes, upper: bytes, *, rows: int = BATCH_ROWS, bytes_max: int = BATCH_BYTES
    ) -> Iterator[Rows]:
        """All rows with ``lower <= key < upper``, ascending, some at a time.

        Close it, or read it to its end, before the reader is closed.

        Args:
            lower: the first key, or what is below it.
            upper: above the last key.
            rows: so many at most.
            bytes_max: no more rows once so many bytes of values are together.

        Raises:
            CorruptionError: a block is damaged. What came before it has been handed out.
        """
        if lower >= upper or rows < 1:
            return
        items = self._open().items(from_key=lower, read_opt=_bounded(upper))
        found = cast("Iterator[tuple[bytes, bytes]]", items)
        del items
        try:
            while True:
                batch, is_end = self._take(found, rows, bytes_max)
                if is_end:
                    self._check_end(batch[-1][0] + b"\0" if batch else lower, upper)
                if batch:
                    yield batch
                    lower = batch[-1][0] + b"\0"
                if is_end:
                    return
        finally:
            del found

    def _take(
        self, found: Iterator[tuple[bytes, bytes]], rows: int, most: int
    ) -> tuple[Rows, bool]:
        """A batch, and whether nothing follows. In slices, each as large as may still fit."""
        batch: Rows = []
        size, step = 0, min(rows, _FIRST_ROWS)
        while step > 0:
            try:
                part = list(islice(found, step))
            except Exception as exc:
                raise self._translated(exc) from exc
            batch += part
            if len(part) < step:
                return batch, True
            sizes = [len(value) for _, value in part]
            size += sum(sizes)
            step = min(rows - len(batch), _SLICE_ROWS, (most - size) // (max(sizes) or 1))
        return batch, False

    def scan(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        """At most ``limit`` rows with ``lower <= key < upper``, as the store's port has it."""
        if limit <= 0:
            return []
        rows: Rows = []
        for page in self.batches(lower, upper, rows=limit, bytes_max=1 << 62):
            rows += page
            break
        return rows

    def scan_part(self, lower: bytes, upper: bytes, limit: int) -> tuple[Rows, bytes | None]:
        """A scan, and where to go on: here nobody waits for a loop to turn."""
        rows = self.scan(lower, upper, limit)
        return rows, rows[-1][0] + b"\0" if rows and len(rows) == limit else None

    def scan_last(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        """The last row with ``lower <= key < upper``, or None."""
        it = self._open().iter()
        try:
            if lower >= upper:
                return None
            it.seek_for_prev(upper)
            if it.key() == upper:
                it.prev()
            key, value = it.key(), it.value()
            it.status()
        except Exception as exc:
            raise self._translated(exc) from exc
        finally:
            del it
        return (key, value) if key is not None and lower <= key < upper else None

    def _check_end(self, lower: bytes, upper: bytes) -> None:
        """Nothing is to be found from ``lower`` on. Whatever is, the fast path stumbled over."""
        it = self._open().iter(_bounded(upper))
        try:
            it.seek(lower)
            is_more = it.valid()
            it.status()
        except Exception as exc:
            raise self._translated(exc) from exc
        finally:
            del it
        if is_more:
            raise CorruptionError(f"{self.path}: reading ended before {lower[:40]!r}: audit it")

    def files(self) -> list[TableFile]:
        """The tables there are, by first key. What a WAL holds is in none of them."""
        try:
            found = self._open().live_files()
        except Exception as exc:
            raise self._translated(exc) from exc
        return sorted(
            TableFile(bytes(f["start_key"]), bytes(f["end_key"]), f["size"]) for f in found
        )

    def _translated(self, exc: Exception) -> LodeqError:
        if isinstance(exc, LodeqError):
            return exc
        error = translate(exc, "read")
        return type(error)(f"shard {self.shard} at {self.path}: {error}")

    def close(self) -> None:
        """Let go of it. Idempotent."""
        db, self._db = self._db, None
        if db is not None:
            forked.unwatch(self)
            try:
                db.close()
            except Exception as exc:
                raise translate(exc, "read") from exc

    def abandon(self) -> None:
        """In a forked child: let go without touching what is the parent's. Not for users."""
        if self._db is not None:
            forked.leak(self._db)
        self._db = None


@contextmanager
def open_shard(
    root: str, shard: int, *, memory: SharedMemory | None = None
) -> Iterator[ShardReader]:
    """One shard of a snapshot, a checkpoint or a store, closed or live. Blocks.

    Args:
        root: the folder that has ``shard0`` and so on.
        shard: which.
        memory: the cache to share with other readers.

    Raises:
        StorePathError: there is no such shard.
        CorruptionError: it is damaged.
        OpenError: it cannot be opened; a live folder may change too fast: read a snapshot.
    """
    path = shard_path(root, shard)
    if not is_rocksdb(path):
        raise StorePathError(f"{path} holds no shard: give the folder of a store or of a snapshot")
    if forked.is_orphaned():
        raise OpenError("forked from a process that used a store: spawn a new process instead")
    memory = memory or SharedMemory(CACHE_BYTES)
    with tempfile.TemporaryDirectory(prefix="lodeq-read-") as folder:
        reader = ShardReader(open_over(path, folder, memory), path, shard)
        try:
            _identify(reader)
            yield reader
        finally:
            reader.close()


def _identify(reader: ShardReader) -> None:
    raw = reader.get(STAMP)
    if raw is None:
        raise StorePathError(f"{reader.path} holds no rows of lodeq, or is just being created")
    stamp = decode_stamp(raw)
    if stamp.shard != reader.shard:
        raise StorePathError(f"{reader.path} is shard {stamp.shard} of its store: wrong folder")
    reader.shards, reader.store_id = stamp.shards, stamp.store_id


def _bounded(upper: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(upper)
    options.set_readahead_size(READ_AHEAD_BYTES)
    options.fill_cache(False)  # type: ignore[call-arg]  # the stub has forgotten the argument
    return options


def open_over(path: str, folder: str, memory: SharedMemory) -> Rdict:
    """The RocksDB at ``path``, read-only, through links made in ``folder``. Blocks.

    Raises: as ``open_shard``.
    """
    held: dict[str, int] = {}
    try:
        for attempt in range(_TRIES_MAX):
            overlay = os.path.join(folder, str(attempt))
            try:
                _lay_over(path, overlay, held)
            except OSError as exc:
                raise path_error(exc, f"{exc.filename or path}: {exc.strerror}") from exc
            try:
                db = _open_over(overlay, memory)
                _link_to_files(path, overlay, held)
                return db
            except LodeqError:  # damage that RocksDB would never come back from
                if attempt + 1 == _TRIES_MAX or not _has_changed(path, overlay):
                    raise
            except Exception as exc:
                error = translate(exc, "open")
                is_moving = "No such file" in str(exc) or _has_changed(path, overlay)
                if not is_moving or attempt + 1 == _TRIES_MAX:
                    raise type(error)(f"{path}: {error}") from exc
                shutil.rmtree(overlay, ignore_errors=True)
    finally:
        for descriptor in held.values():
            os.close(descriptor)
    raise OpenError(f"{path} keeps changing: read a snapshot of it")


def _open_over(overlay: str, memory: SharedMemory) -> Rdict:
    check_folder(overlay, create=False)
    options = rocks_options(memory, 1)
    options.set_max_open_files(-1)  # a table that compaction removes is still held
    options.set_keep_log_file_num(1)
    access = AccessType.read_only(False)
    return Rdict(overlay, options, {"default": options}, access)


def _lay_over(path: str, overlay: str, held: dict[str, int]) -> None:
    """Make ``overlay``: links to the files of ``path``, with the manifest as it was with them."""
    os.mkdir(overlay, 0o700)
    names, frozen = _freeze(path, held)
    for name, content in frozen.items():
        with open(os.path.join(overlay, name), "xb") as file:
            file.write(content)
    for name in names - frozen.keys():
        source, link = os.path.join(path, name), os.path.join(overlay, name)
        if name in held:
            os.symlink(f"{_DESCRIPTORS}/{held[name]}", link)
            continue
        try:
            if name == _CONFIG:  # rocksdict writes it anew
                shutil.copyfile(source, link)
            elif stat.S_ISREG(os.stat(source).st_mode):
                os.symlink(os.path.abspath(source), link)
        except FileNotFoundError:
            continue  # a live folder: the open finds out whether it is missed


def _freeze(path: str, held: dict[str, int]) -> tuple[set[str], dict[str, bytes]]:
    """The names in ``path``, and what CURRENT and the manifest said with just these there.

    A table or a log is removed only after the manifest says so. ``held`` follows the names: a
    descriptor of each of the newest files.
    """
    for _ in range(_LOOKS_MAX):
        frozen = _read_manifest(path)
        names = {
            name
            for name in os.listdir(path)
            if not (name.startswith(_LEFT_OUT) or name.endswith(".dbtmp"))
        }
        _hold(path, names - frozen.keys() - {_CONFIG}, held)
        if _read_manifest(path) == frozen:
            return names, frozen
    raise OpenError(f"{path} keeps changing: read a snapshot of it")


def _read_manifest(path: str) -> dict[str, bytes]:
    """CURRENT and the manifest it names; nothing if they cannot be read: the open says why."""
    try:
        with open(os.path.join(path, _CURRENT), "rb") as file:
            current = file.read()
        manifest = os.path.basename(current.decode("ascii").strip())
        with open(os.path.join(path, manifest), "rb") as file:
            return {_CURRENT: current, manifest: file.read()}
    except (OSError, ValueError):
        return {}


def _hold(path: str, names: set[str], held: dict[str, int]) -> None:
    """Have a descriptor of each of the newest ``names``, and of nothing else."""
    if not os.path.isdir(_DESCRIPTORS):
        return
    newest = sorted(names, key=lambda name: (len(name), name), reverse=True)[:_HELD_MAX]
    for name in held.keys() - set(newest):
        os.close(held.pop(name))
    for name in newest:
        if name in held:
            continue
        try:
            descriptor = os.open(
                os.path.join(path, name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError as exc:
            if exc.errno in (errno.EMFILE, errno.ENFILE):
                return
            continue  # it has gone, or the open says what is wrong
        held[name] = descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(held.pop(name))


def _link_to_files(path: str, overlay: str, held: dict[str, int]) -> None:
    """Have the links lead to the files: the descriptors are let go."""
    for name in held:
        link = os.path.join(overlay, name)
        os.remove(link)
        os.symlink(os.path.abspath(os.path.join(path, name)), link)


def _has_changed(path: str, overlay: str) -> bool:
    try:
        now = {n for n in os.listdir(path) if not n.startswith(_LEFT_OUT)}
    except OSError:
        return False
    laid = {n for n in os.listdir(overlay) if not n.startswith(_LEFT_OUT)}
    return now - {_CONFIG} != laid - {_CONFIG}
