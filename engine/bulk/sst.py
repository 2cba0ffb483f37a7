"""Files of rows that a store can take in whole: RocksDB's SST files, written outside of it.

A file takes keys in strictly ascending order only. Files roll by bytes, and are made when the first
row comes. On ``finish`` each
is fsynced and checksummed: RocksDB does not look at the blocks of what it takes in.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, NamedTuple

import xxhash
from rocksdict import SstFileWriter

from ...errors import LodeqError, StorageError, StorageFullError, UsageError
from ..files.disk_errors import disk_error
from ..files.paths import fsync_file
from ..store.rocks_errors import translate
from ..store.rocks_options import sst_options
from .manifest import FileMark

__all__ = ["ROLL_BYTES", "SstWriter", "checksum_of"]

# A store syncs each file as it takes it in, with the GIL held: better few files than small ones.
ROLL_BYTES: Final = 256 << 20
_CHUNK: Final = 1 << 20


class _Summed(NamedTuple):
    """Size and checksum of a file."""

    size_bytes: int
    xxh3_128: str


def checksum_of(path: str) -> _Summed:
    """Size and checksum of a file. Blocks; raises ``OSError``."""
    digest, size = xxhash.xxh3_128(), 0
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return _Summed(size, digest.hexdigest())


class SstWriter:
    """One shard's rows of one family, in as many files as it takes. Blocks; for one thread.

    Args:
        folder: where the files go; it must exist.
        stem: what their names begin with; unique for this writer within ``folder``.
        shard: whose rows these are.
        family: ``e``, ``g``, ``q`` or ``t``; the engine also writes ``b``, ``m`` and ``o``.
        roll_bytes: of keys and values in one file, before compression.

    Durability: a file is fsynced by ``finish``; its name is not, fsync the folder.
    """

    __slots__ = (
        "_bytes",
        "_family",
        "_first",
        "_folder",
        "_last",
        "_marks",
        "_path",
        "_prefix",
        "_put",
        "_roll_bytes",
        "_rows",
        "_shard",
        "_stem",
        "_writer",
    )

    def __init__(
        self, folder: str, stem: str, *, shard: int, family: str, roll_bytes: int = ROLL_BYTES
    ) -> None:
        self._folder = folder
        self._stem = stem
        self._shard = shard
        self._family = family
        self._prefix = f"{family}/".encode()
        self._roll_bytes = roll_bytes
        self._marks: list[FileMark] = []
        self._writer: SstFileWriter | None = None
        self._path = ""
        self._first = self._last = b""
        self._rows = self._bytes = 0

    @property
    def rows(self) -> int:
        """How many were written, in all files."""
        return sum(mark.rows for mark in self._marks) + self._rows

    def put(self, key: bytes, value: bytes) -> None:
        """The next row.

        Raises:
            UsageError: ``key`` is not above the one before, or of another family.
            StorageFullError, StorageError: the disk; ``abort`` the writer.
        """
        self._write(key, value)

    def put_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Many rows, ascending. Raises as ``put``."""
        last, put, n, size = self._last, None, 0, 0  # since ``_bytes`` was brought up to date
        left = self._roll_bytes
        for key, value in rows:
            if put is None or key <= last or size >= left:
                self._took(last, n, size)
                n = size = 0
                self._write(key, value)
                put = None if self._writer is None else self._writer.__setitem__
                left = self._roll_bytes - self._bytes
            else:  # ``_write`` where nothing special happens, in place
                try:
                    put(key, value)
                except Exception as exc:
                    raise self._failed(exc) from exc
                n += 1
                size += len(key) + len(value)
            last = key
        self._took(last, n, size)

    def _took(self, last: bytes, rows: int, size: int) -> None:
        if rows:
            self._last = last
            self._rows += rows
            self._bytes += size
            if self._bytes >= self._roll_bytes:
                self._close()

    def delete(self, key: bytes) -> None:
        """In place of a row, a tombstone: an older row of that key goes. Raises as ``put``."""
        self._write(key, None)

    def _write(self, key: bytes, value: bytes | None) -> None:
        if key <= self._last:
            raise UsageError(
                f"shard {self._shard}, family {self._family!r}: {key!r} does not come after "
                f"{self._last!r}: sort the rows by key, and give no key twice"
            )
        writer = self._writer
        if writer is None:
            writer = self._open(key)
        try:
            if value is None:
                del writer[key]
            else:
                writer[key] = value
                self._bytes += len(value)
        except Exception as exc:
            raise self._failed(exc) from exc
        self._last = key
        self._rows += 1
        self._bytes += len(key)
        if self._bytes >= self._roll_bytes:
            self._close()

    def _open(self, key: bytes) -> SstFileWriter:
        if not key.startswith(self._prefix):
            raise UsageError(f"{key!r} is not a key of family {self._family!r}")
        name = f"{self._stem}-{self._family}{len(self._marks):04d}.sst"
        self._path = os.path.join(self._folder, name)
        writer = SstFileWriter(sst_options())
        try:
            writer.open(self._path)
        except Exception as exc:
            raise self._failed(exc) from exc
        self._writer, self._first = writer, key
        return writer

    def _close(self) -> None:
        """End the file that is being written: durable, and summed up."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if not self._last.startswith(self._prefix):  # ascending: so none in between is another's
            raise UsageError(f"{self._last!r} is not a key of family {self._family!r}")
        try:
            writer.finish()
        except Exception as exc:
            raise self._failed(exc) from exc
        try:
            fsync_file(self._path)
            summed = checksum_of(self._path)
        except OSError as exc:
            raise disk_error(exc, self._path) from exc
        self._marks.append(
            FileMark(
                self._shard,
                self._family,
                os.path.basename(self._path),
                *summed,
                self._rows,
                self._first,
                self._last,
            )
        )
        self._rows = self._bytes = 0

    def _failed(self, exc: Exception) -> LodeqError:
        error = translate(exc, "open")
        if isinstance(error, StorageFullError | UsageError):
            return error
        return StorageError(f"{self._path} could not be written: {exc}; look at the disk")

    def finish(self) -> list[FileMark]:
        """End the last file; all that were made, none if there was no row.

        Raises:
            StorageFullError, StorageError: the disk; ``abort`` the writer.
        """
        self._close()
        return self._marks

    def abort(self) -> None:
        """Remove what was made. Idempotent."""
        self._writer = None
        names = [mark.name for mark in self._marks]
        if self._path:
            names.append(os.path.basename(self._path))
        self._marks = []
        for name in names:
            try:
                os.unlink(os.path.join(self._folder, name))
            except FileNotFoundError:
                pass
