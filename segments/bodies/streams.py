"""Streamed bodies: each is the one record of a body file of its own, written and read in slices.

A file under way bears the suffix ``.part`` behind its name, so nobody counts it among the body
files. Its head is written last, when size and checksum are known; then it is synced where that is
asked for, and renamed. What a crash leaves of it is removed after the next open.

Being alone in its file, such a record is never copied: the file goes when its task does. A reader
keeps the file open, and so reads on although it has been removed.

All calls block, for as long as a slice takes; one at a time, in any thread.
"""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Lock
from typing import Final, NoReturn

from ...engine.files.disk_errors import error_class
from ...engine.files.durable_files import sync_data
from ...errors import ClosedError, SegmentCorruptError, StorageError
from ..checksums import crc32
from .layout import Location
from .sqs import HEADER, HEADER_BYTES, Sqs
from .sqs_search import CHECKED, CHECKED_BYTES, CRC_AT, crc_of_both

__all__ = ["PART_SUFFIX", "SLICE_BYTES", "StreamReader", "StreamWriter"]

PART_SUFFIX: Final = ".part"
SLICE_BYTES: Final = 256 << 10
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_codec: Final = Sqs()


class StreamWriter:
    """Writes one record to a file of its own. ``finish`` it or ``discard`` it.

    Args:
        path: of the file once it is whole.
        number: of the file.
        record_id: id of the record.
    """

    def __init__(self, path: str, number: int, record_id: bytes) -> None:
        self.number = number
        self.record_id = record_id
        self.size = 0  # of the payload, so far
        self.fd = -1
        self._path = path
        self._crc = 0
        self._lock = Lock()  # a step in a thread ends before the files are closed
        self._is_over = False

    def write(self, data: bytes | memoryview) -> None:
        """Append to the payload.

        Raises:
            StorageFullError, StorageError: the file is to be discarded.
            ClosedError: the files are closed.
        """
        with self._lock:
            self._check()
            self._write(data)

    def _write(self, data: bytes | memoryview) -> None:
        try:
            if self.fd < 0:
                self.fd = os.open(self._path + PART_SUFFIX, _NEW, 0o600)
                _write_all(self.fd, memoryview(HEADER + bytes(CHECKED_BYTES)))
            view = memoryview(data)
            for at in range(0, len(view), SLICE_BYTES):
                part = view[at : at + SLICE_BYTES]
                self._crc = crc32(part, self._crc)
                _write_all(self.fd, part)
        except OSError as exc:
            raise self._error(exc) from exc
        self.size += len(data)

    def finish(self, *, is_durable: bool) -> Location:
        """Make it a body file. Its name becomes durable with the folder.

        Args:
            is_durable: sync its bytes.

        Raises:
            StorageFullError, StorageError: the file is to be discarded.
            ClosedError: the files are closed.
        """
        with self._lock:
            self._check()
            return self._finish(is_durable=is_durable)

    def _finish(self, *, is_durable: bool) -> Location:
        self._write(b"")
        head = _codec.head_of(self.record_id, self.size, self._crc)
        try:
            os.pwrite(self.fd, head, HEADER_BYTES)
            if is_durable:
                sync_data(self.fd)
            os.rename(self._path + PART_SUFFIX, self._path)
        except OSError as exc:
            raise self._error(exc) from exc
        return Location(self.number, HEADER_BYTES, CHECKED_BYTES + self.size)

    def close(self) -> None:
        """Let go of a finished file that no store has taken in. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def discard(self) -> None:
        """Remove what was written; no step follows. Idempotent."""
        with self._lock:
            self._is_over = True
            self._remove()

    def _check(self) -> None:
        if self._is_over:
            raise ClosedError("the engine is closed")

    def _remove(self) -> None:
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        os.close(fd)
        for path in (self._path + PART_SUFFIX, self._path):
            with suppress(OSError):  # it goes after the next open
                os.unlink(path)

    def _error(self, exc: OSError) -> StorageError:
        return error_class(exc)(f"{self._path}{PART_SUFFIX}: {exc.strerror}")


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


class StreamReader:
    """Reads the payload of one record. ``close`` it.

    Args:
        path: of the file; opened here.
        location: of the record.
        record_id: the id it must bear.

    Raises:
        FileNotFoundError: there is no such file (any more).
        SegmentCorruptError: there is no such record at that place.
        StorageError: the disk failed.
    """

    def __init__(self, path: str, location: Location, record_id: bytes) -> None:
        self.size = location.size - CHECKED_BYTES
        self.left = self.size
        self._path = path
        self._at = location.offset + CHECKED_BYTES
        self._offset = location.offset
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            is_there = location.offset + location.size <= os.fstat(self._fd).st_size
            # First: a row may say anything, also what no file can have.
            head = os.pread(self._fd, CHECKED_BYTES, location.offset) if is_there else b""
        except FileNotFoundError:
            raise
        except OSError as exc:
            self.close()
            raise self._error(exc) from exc
        size = int.from_bytes(head[1:5], "big")
        if not is_there or head[:1] != bytes([CHECKED]):
            self._damaged("torn_tail" if not is_there else "no_record")
        if size != location.size or head[5:CRC_AT] != record_id:
            self._damaged("another_record")
        self._sum = int.from_bytes(head[CRC_AT:], "big")
        self._crc = self._head_crc = crc32(head[:CRC_AT])

    def read(self, most: int = SLICE_BYTES) -> bytes:
        """The next bytes; none at the end. The last come only once the checksum has been right.

        Args:
            most: how many; fewer at the end.

        Raises:
            SegmentCorruptError: it is not what was written.
            StorageError: the disk failed.
        """
        count = min(most, self.left)
        if count <= 0:
            return b""
        try:
            found = os.pread(self._fd, count, self._at)
            while len(found) < count:  # a signal, of what is read in one piece
                more = os.pread(self._fd, count - len(found), self._at + len(found))
                if not more:
                    self._damaged("torn_tail")
                found += more
        except OSError as exc:
            raise self._error(exc) from exc
        view = memoryview(found)
        for at in range(0, count, SLICE_BYTES):
            self._crc = crc32(view[at : at + SLICE_BYTES], self._crc)
        self._at += count
        self.left -= count
        if not self.left and self._crc != self._sum:
            self._damaged("bad_checksum")
        return found

    @property
    def sum(self) -> int:
        """CRC-32 of the payload, as its head says."""
        return crc_of_both(self._head_crc, self._sum, self.size)

    def part(self, offset: int, most: int) -> bytes:
        """Bytes from an offset on, not checked; ``read`` goes on where it was.

        Args:
            offset: of the payload.
            most: how many; fewer at the end.

        Raises:
            StorageError: the disk failed.
        """
        at = self._offset + CHECKED_BYTES + offset
        try:
            return os.pread(self._fd, max(0, min(most, self.size - offset)), at)
        except OSError as exc:
            raise self._error(exc) from exc

    def check(self) -> None:
        """Read what is left and keep none of it. Raises as ``read`` does."""
        while self.read():
            pass

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def _damaged(self, reason: str) -> NoReturn:
        self.close()
        raise SegmentCorruptError(
            f"{self._path!r} at {self._offset}: {reason}", offset=self._offset, reason=reason
        )

    def _error(self, exc: OSError) -> StorageError:
        return StorageError(f"cannot read {self._path!r}: {exc.strerror}")
