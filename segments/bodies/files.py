"""The body files of one shard: appended to, read at any offset, removed whole.

What is written is an ``.sqs`` file of ours (``sqs.py`` beside); every record in it has a checksum.
One is *current*; the others are sealed and never change again, but for holes that are punched into
what is dead. Numbers only grow, and none is used twice: a file that comes back after a power cut
can never be taken for another. Files of the older format lie below them (``layout``). A streamed
body has a file of its own (``streams``), which a load may have brought.

Appends, reads and removals happen on the shard's loop, ``sync`` in its thread.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar
from weakref import WeakSet

from ...engine.files.disk_errors import NO_LINKS, disk_error, short_write
from ...engine.files.durable_files import sync_data
from ...engine.files.paths import fsync_dir, fsync_file
from ...engine.records.rows import BodyRow
from ...errors import StorageError
from .layout import (
    NO_FILE,
    BodyFile,
    BodyLayout,
    Location,
    examine_folder,
    list_numbers,
    list_parts,
)
from .punch import punch
from .reader import BodyReader
from .sqs import HEADER, HEADER_BYTES, Sqs
from .streams import PART_SUFFIX, StreamReader, StreamWriter

__all__ = ["FILE_BYTES", "BodyFiles"]

FILE_BYTES = 16 << 20
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_PARTS_MAX: Final = 1024  # of one writev: what Linux takes
_codec: Final = Sqs()
T = TypeVar("T")


class BodyFiles:
    """Made by ``open``. ``current`` is the number of the file that is appended to, or ``NO_FILE``.

    ``v1`` has the files of format 1 that are left, and their bytes.
    """

    def __init__(
        self, folder: str, layout: BodyLayout, *, next_number: int, file_bytes: int
    ) -> None:
        self.folder = folder
        self.current = NO_FILE
        self.offset = 0  # where the next record of the current file goes
        self.first_number = self.next_number = next_number
        self._file_bytes = file_bytes
        self._folder_fd = -1  # kept: a sync must not need a descriptor that the process lacks
        self._streams: WeakSet[StreamWriter] = WeakSet()  # those under way
        self._fd = -1
        # What ``sync`` is to do. Deques, for it runs in another thread: each step is atomic.
        self._dirty: deque[int] = deque()
        self._sealed: deque[int] = deque()
        self._names: deque[None] = deque()
        self._reader = BodyReader(folder, layout.last_v1_file)
        self._leaving: set[int] = set()  # forgotten, and perhaps still there
        self.left_parts: list[int] = []  # of streamed bodies that were under way at a crash
        self._known = set(layout.numbers)  # were there at open or begun since, and not forgotten
        self.v1 = {
            number: os.stat(self.path(number)).st_size
            for number in layout.numbers
            if number <= layout.last_v1_file
        }

    @classmethod
    def open(cls, folder: str, *, least: int = 1, file_bytes: int | None = None) -> BodyFiles:
        """The files in ``folder``, which is made with the first of them. Nothing is written.

        Args:
            least: No file of a number below it is begun: what rows and notes still speak of.
            file_bytes: When a file is full; None: 16 MiB. A larger body gets one of its own.

        Raises:
            OpenError: files are of a format that is not read, see ``examine_folder``.
            StorageError: the folder cannot be read.
        """
        layout = examine_folder(folder)
        parts = list_parts(folder)
        following = max([least, *(number + 1 for number in (*layout.numbers, *parts))])
        bound = FILE_BYTES if file_bytes is None else file_bytes
        try:
            files = cls(folder, layout, next_number=following, file_bytes=bound)
            files.left_parts = parts
            return files
        except OSError as exc:
            raise StorageError(f"{exc.filename}: {exc.strerror}") from exc

    # -- writing ---------------------------------------------------------------------------

    def append(self, id: bytes, body: bytes) -> Location:
        """Write a record. It is in the kernel on return.

        Raises:
            StorageFullError: nothing was written.
            StorageError: the disk failed; nothing points to what may have been written.
        """
        return self.append_all(((id, body),))[0]

    def append_all(self, records: Iterable[tuple[bytes, bytes]]) -> list[Location]:
        """Write records, each an id and a body: with one call those that go to the same file.

        They are in the kernel on return. Raises as ``append`` does; some may have been written.
        """
        found: list[Location] = []
        parts: list[bytes] = []
        at = self.offset
        for id, body in records:
            head = _codec.encode_head(id, body)
            size = len(head) + len(body)
            is_full = at > HEADER_BYTES and at + size > self._file_bytes
            if self._fd < 0 or is_full or len(parts) >= _PARTS_MAX:
                self._write(parts, at - self.offset)
                parts = []
                if self._fd < 0 or is_full:
                    self.seal()
                    self._begin()
                at = self.offset
            parts += (head, body)
            found.append(Location(self.current, at, size))
            at += size
        self._write(parts, at - self.offset)
        return found

    def _write(self, parts: list[bytes], size: int) -> None:
        """All of it, or none."""
        if not parts:
            return
        try:
            done = os.writev(self._fd, parts)
            if done < size:  # a signal, or a disk that is nearly full
                rest = memoryview(b"".join(parts))[done:]
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
        except OSError as exc:
            self._take_back(self.offset)
            raise self._error(exc) from exc
        self.offset += size
        self._dirty.append(self._fd)

    def _take_back(self, at: int) -> None:
        """No record may lie behind a part of one."""
        try:
            os.ftruncate(self._fd, at)
        except OSError:
            self.seal()  # nothing is appended to it any more

    def _begin(self) -> None:
        number = self.next_number
        path = self.path(number)
        try:
            self._hold_folder()
            fd = os.open(path, _NEW, 0o600)
            try:
                if os.write(fd, HEADER) != HEADER_BYTES:
                    raise short_write("a header")
            except OSError:
                os.close(fd)
                os.unlink(path)
                raise
        except OSError as exc:
            raise self._error(exc) from exc
        self.next_number = number + 1
        self._known.add(number)
        self.current, self.offset, self._fd = number, HEADER_BYTES, fd
        self._names.append(None)

    def _hold_folder(self) -> None:
        if self._folder_fd >= 0:
            return
        try:
            os.mkdir(self.folder, 0o700)
        except FileExistsError:
            pass
        else:
            fsync_dir(os.path.dirname(self.folder))
        self._folder_fd = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)

    def begin_stream(self, record_id: bytes) -> StreamWriter:
        """A writer of a streamed body, for any thread; then ``take_in`` or ``discard`` it.

        Whoever has it keeps the file busy: no row leads there.

        Raises:
            StorageFullError, StorageError: the folder cannot be made.
        """
        number = self.take_number()
        body = StreamWriter(self.path(number), number, record_id)
        self._streams.add(body)
        return body

    def take_number(self) -> int:
        """The number of a file that is yet to come; the folder is there.

        Raises:
            StorageFullError, StorageError: the folder cannot be made.
        """
        try:
            self._hold_folder()
        except OSError as exc:
            raise self._error(exc) from exc
        number = self.next_number
        self.next_number = number + 1
        return number

    def link(self, path: str, number: int) -> None:
        """Give a file that lies elsewhere, whole and synced, a number here. In any thread; blocks.

        Where the file system has no links it is copied. ``sync_folder`` makes the name durable.

        Raises:
            StorageFullError, StorageError: the disk failed.
        """
        target = self.path(number)
        try:
            try:
                os.link(path, target, follow_symlinks=False)
            except OSError as exc:
                if exc.errno not in NO_LINKS:
                    raise
                shutil.copyfile(path, target, follow_symlinks=False)
                fsync_file(target)
        except OSError as exc:
            raise self._error(exc) from exc

    def sync_folder(self) -> None:
        """Make the names of all files durable. In any thread; blocks.

        Raises:
            StorageFullError, StorageError: the disk failed.
        """
        try:
            fsync_dir(self.folder)
        except OSError as exc:
            raise self._error(exc) from exc

    def take_in_links(self, numbers: Iterable[int]) -> None:
        """Files that ``link`` brought are some of these."""
        self._known.update(numbers)

    def take_in(self, body: StreamWriter) -> None:
        """A finished streamed body is one of the files: the next ``sync`` makes it durable."""
        self._known.add(body.number)
        self._streams.discard(body)
        fd, body.fd = body.fd, -1
        self._dirty.append(fd)
        self._sealed.append(fd)
        self._names.append(None)

    def remove_left_parts(self) -> None:
        """Remove what a crash has left of streamed bodies. In any thread; blocks."""
        for number in list(self.left_parts):  # another pass may be at it: no number comes again
            with suppress(OSError):  # it is tried again after the next open
                os.unlink(self.path(number) + PART_SUFFIX)
        self.left_parts.clear()

    def seal(self) -> None:
        """Nothing more goes to the current file."""
        fd, self._fd = self._fd, -1
        self.current, self.offset = NO_FILE, 0
        if fd >= 0:
            self._sealed.append(fd)

    def seal_all(self) -> list[str]:
        """Seal, and return all files there are: no row that is there now leads to another."""
        self.seal()
        return [os.path.basename(self.path(number)) for number in self.numbers()]

    def sync(self) -> None:
        """Make durable all that was appended before this call. In any thread; blocks.

        Raises:
            OSError: it may never be durable. Nothing that rests on it may be acknowledged.
        """
        sealed = _drained(self._sealed)
        dirty = set(_drained(self._dirty))
        try:
            for fd in dirty:
                sync_data(fd)
            if _drained(self._names):
                os.fsync(self._folder_fd)
        finally:
            for fd in sealed:
                os.close(fd)

    # -- reading ---------------------------------------------------------------------------

    def read(self, location: Location, id: bytes) -> bytes | None:
        """The body. None: the file is not there (any more): look the location up again.

        Raises:
            SegmentCorruptError: it is not what was written.
            StorageError: the disk failed.
        """
        return self._reader.read(location, id)

    def open_stream(self, location: Location, id: bytes) -> StreamReader | None:
        """See ``BodyReader.open_stream``. In any thread; blocks."""
        return self._reader.open_stream(location, id)

    def problem(self, number: int, rows: Sequence[BodyRow]) -> str:
        """Why a file is not the one that these rows of it were written with; see ``BodyReader``."""
        return self._reader.problem(number, rows)

    def gone(self) -> list[int]:
        """Numbers of files that somebody else has taken away since open."""
        return sorted(self._known.difference(list_numbers(self.folder)))

    def another_reader(self) -> BodyReader:
        """For another thread, which closes it."""
        return BodyReader(self.folder, self._reader.last_v1_file)

    # -- files -----------------------------------------------------------------------------

    def path(self, number: int) -> str:
        """Path of a body file."""
        return self._reader.path(number)

    def is_v1(self, number: int) -> bool:
        """Whether a file is of format 1: read, never written to."""
        return number <= self._reader.last_v1_file

    def data_offset(self, number: int) -> int:
        """Where the first record of a file lies."""
        return self._reader.codec(number).data_offset

    def files(self) -> list[BodyFile]:
        """All that are there, by number; of the current one the bytes that were written."""
        return [file for number in self.numbers() if (file := self.file(number)) is not None]

    def file(self, number: int) -> BodyFile | None:
        """The file of a number; None: it is not there. Of the current one what was written.

        Raises:
            StorageError: it cannot be looked at.
        """
        if number in self._leaving:
            return None
        try:
            return BodyFile(number, os.stat(self.path(number)).st_size)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise self._error(exc) from exc

    def is_known(self, number: int) -> bool:
        """Whether a file of this number was there at open or has been begun, and not forgotten."""
        return number in self._known

    def forget(self, number: int) -> None:
        """Nothing points to it any more, durably: it is no longer listed, and is to be unlinked."""
        self._leaving.add(number)
        self._known.discard(number)
        self._reader.forget(number)

    def unlink(self, number: int) -> None:
        """Take a forgotten file off the disk. Idempotent. In any thread; blocks.

        Raises:
            StorageError: it is still there, and listed again.
        """
        try:
            with suppress(FileNotFoundError):
                os.unlink(self.path(number))
            self.v1.pop(number, None)
        except OSError as exc:
            raise StorageError(f"cannot remove {self.path(number)!r}: {exc.strerror}") from exc
        finally:
            self._leaving.discard(number)

    def numbers(self) -> list[int]:
        """Numbers of all that are there, ascending. It lists the folder, and looks at no file."""
        # A streamed body has its name before it is taken in. It may be discarded yet.
        away = self._leaving.union([body.number for body in self._streams])
        return [n for n in list_numbers(self.folder) if n not in away]

    def punch(self, number: int, offset: int, size: int) -> int:
        """Give the pages of a dead range of a sealed file back. Returns how many bytes went.

        The range becomes a hole of the format first, so that a scan passes over it. A file that a
        checkpoint has a link to is left alone: there, the range may be alive.
        """
        if number == self.current:
            raise StorageError("the current file is not punched")
        try:
            return punch(self.path(number), offset, size, is_v1=self.is_v1(number))
        except OSError as exc:
            raise StorageError(f"cannot punch {self.path(number)!r}: {exc.strerror}") from exc

    def close(self) -> None:
        """Let go of all files; sync first what is to be durable. Idempotent.

        Streamed bodies under way go: their numbers may be used again by whoever opens the files.
        """
        for body in list(self._streams):
            body.discard()
        self.seal()
        for fd in _drained(self._sealed):
            os.close(fd)
        fd, self._folder_fd = self._folder_fd, -1
        if fd >= 0:
            os.close(fd)
        self._reader.close()

    def _error(self, exc: OSError) -> StorageError:
        return disk_error(exc, self.folder)


def _drained(todo: deque[T]) -> list[T]:
    found: list[T] = []
    while True:
        try:
            found.append(todo.popleft())
        except IndexError:
            return found
