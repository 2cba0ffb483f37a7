"""Writing the directory of a Rust queue, so that the original can go on with it.

A file is written under another name, synced, and renamed, and its directory synced; the manifest
comes last. So what can be seen is whole, and without ``manifest.current`` the export is not done.
The original must not open it then: finding no manifest, it overwrites a file of the same day.

All files are sealed, and the manifest has no active one: the original starts a new file behind
them, wherever the directory has been moved to. (It takes an active file that it cannot find at its
absolute path for a new one, and overwrites that on the same day.)
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from typing import BinaryIO, Final

from ....engine.files.disk_errors import disk_error
from ....engine.files.durable_files import create_file, replace_file, sync_file
from ....engine.files.paths import fsync_dir
from ....errors import UsageError
from .codec import RustQueue
from .index import (
    CURRENT_NAME,
    INDEX_INTERVAL,
    SLOT_NAMES,
    ActiveFile,
    Index,
    IndexEntry,
    Manifest,
    SealedFile,
    encode_current,
    encode_index,
    encode_manifest,
)
from .reader import Variant

__all__ = ["FILE_BYTES", "write_directory"]

FILE_BYTES: Final = 1 << 30  # the original's default
_SLOT: Final = 1


def write_directory(
    path: str | os.PathLike[str],
    payloads: Iterable[bytes],
    *,
    day: datetime.date,
    variant: Variant = Variant.CRC32,
    file_bytes: int = FILE_BYTES,
    is_preallocated: bool = False,
    interval: int = INDEX_INTERVAL,
) -> Manifest:
    """Write ``payloads`` as a queue that was written on one day. Durable on return.

    Args:
        path: new, or an empty directory.
        variant: the original's code reads ``CRC32``.
        file_bytes: a file is full when a record would reach this. A larger record gets a file of
            its own: the original would lose it.
        is_preallocated: fill files up to ``file_bytes`` with zeros, as the original does.
        interval: records from one entry of an index to the next.

    Raises:
        UsageError: the directory is not empty, or the format cannot hold a payload. What is there
            by then is no queue yet: remove it.
        StorageError: the disk failed or is full.
    """
    if file_bytes <= 0 or interval <= 0:
        raise UsageError("file_bytes and interval must be positive")
    writer = _Writer(os.path.abspath(os.fspath(path)), day, file_bytes, interval)
    codec = RustQueue(variant)
    try:
        writer.make_folders()
        try:
            for payload in payloads:
                writer.append(codec.encode(payload), is_preallocated=is_preallocated)
            writer.seal(is_preallocated=is_preallocated)
        finally:
            writer.close()
        return writer.finish()
    except OSError as exc:
        raise disk_error(exc, writer.root) from exc


class _Writer:
    def __init__(self, root: str, day: datetime.date, file_bytes: int, interval: int) -> None:
        self.root = root
        self._parts = (f"{day:%Y}".zfill(4), f"{day:%m}", f"{day:%d}")
        self._folder = os.path.join(root, *self._parts)
        self._file_bytes = file_bytes
        self._interval = interval
        self._sealed: list[SealedFile] = []
        self._sequence = self._first = 0
        self._entries: list[IndexEntry] = []
        self._file: BinaryIO | None = None
        self._size = 0

    def make_folders(self) -> None:
        if not os.path.isdir(self.root):
            os.mkdir(self.root, 0o700)
            fsync_dir(os.path.dirname(self.root))
        elif os.listdir(self.root):
            raise UsageError(f"{self.root!r} is not empty: choose another path")
        folder = self.root
        for part in self._parts:
            inner = os.path.join(folder, part)
            os.mkdir(inner, 0o700)
            fsync_dir(folder)
            folder = inner

    def append(self, raw: bytes, *, is_preallocated: bool) -> None:
        if self._size and self._size + len(raw) >= self._file_bytes:
            self.seal(is_preallocated=is_preallocated)
        if self._file is None:
            self._file = create_file(f"{self._path('data')}.tmp")
        if not self._entries or self._sequence >= self._entries[-1].sequence + self._interval:
            self._entries.append(IndexEntry(self._sequence, self._size))
        self._file.write(raw)
        self._size += len(raw)
        self._sequence += 1

    def seal(self, *, is_preallocated: bool) -> None:
        if self._file is None:
            return
        if is_preallocated:
            self._file.truncate(max(self._size, self._file_bytes))
        sync_file(self._file)
        self.close()
        replace_file(self._path("index"), encode_index(Index(self._interval, tuple(self._entries))))
        path = self._path("data")
        os.rename(f"{path}.tmp", path)
        fsync_dir(self._folder)
        name = os.path.relpath(path, self.root).replace(os.sep, "/")
        self._sealed.append(SealedFile(self._first, self._sequence - 1, self._size, name))
        self._first, self._size, self._entries = self._sequence, 0, []

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def finish(self) -> Manifest:
        active = ActiveFile(number=len(self._sealed))
        manifest = Manifest(self._sequence, active, tuple(self._sealed))
        replace_file(os.path.join(self.root, SLOT_NAMES[_SLOT]), encode_manifest(manifest))
        replace_file(os.path.join(self.root, CURRENT_NAME), encode_current(_SLOT))
        return manifest

    def _path(self, kind: str) -> str:
        name = f"{''.join(self._parts)}-{len(self._sealed):04d}.{kind}"
        return os.path.join(self._folder, name)
