"""Where a codec reads from: a file of known size, or bytes.

Reads are positional and say nothing about a position, so one source serves any number of readers.
``size`` is taken once: what a writer appends meanwhile is not part of the source.
"""

from __future__ import annotations

import os
import stat
from types import TracebackType
from typing import Final, Protocol, Self

from ..errors import CorruptionError, StorageError

__all__ = ["BytesSource", "FileSource", "Source"]


# Not blocking: a named pipe in a hostile folder would hold up who opens it.
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Source(Protocol):
    """``size`` bytes, read at any offset."""

    @property
    def size(self) -> int:
        """In bytes."""

    def read(self, offset: int, count: int) -> bytes:
        """``count`` bytes from ``offset`` on; fewer only where the source ends."""


class BytesSource:
    """Bytes in memory."""

    __slots__ = ("_data", "size")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, count: int) -> bytes:
        """See ``Source``."""
        return self._data[offset : offset + count]


class FileSource:
    """A file that is opened for reading and never written. Use it as a context manager.

    Raises:
        StorageError: it cannot be opened or read.
        CorruptionError: it is no regular file (a link is none), or it has become shorter.
    """

    __slots__ = ("_fd", "path", "size")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            self._fd = os.open(
                self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            )
        except OSError as exc:
            raise StorageError(f"cannot open {self.path!r}: {exc.strerror}") from exc
        try:
            self.size = _regular_size(self._fd, self.path)
        except BaseException:
            os.close(self._fd)
            raise

    def read(self, offset: int, count: int) -> bytes:
        """See ``Source``."""
        count = min(count, self.size - offset)
        if count <= 0:
            return b""
        parts: list[bytes] = []
        while count > 0:
            try:
                part = os.pread(self._fd, count, offset)
            except OSError as exc:  # of the disk: nothing is concluded about the bytes
                raise StorageError(f"cannot read {self.path!r}: {exc.strerror}") from exc
            if not part:
                raise CorruptionError(f"{self.path!r} was cut short to {offset} bytes while read")
            parts.append(part)
            offset += len(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def grow(self) -> bool:
        """Take in what was appended meanwhile. Returns whether there was anything."""
        before = self.size
        self.size = max(before, _regular_size(self._fd, self.path))
        return self.size > before

    def close(self) -> None:
        """Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def _regular_size(fd: int, path: str) -> int:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise CorruptionError(f"{path!r} is no regular file")
    return status.st_size
