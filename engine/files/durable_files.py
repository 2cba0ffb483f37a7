"""Durable files: create without following links, write, fsync, rename, fsync the folder.

Two kinds of files are made here:

- a *new* file (``new_file``, ``write_new``): its contents are durable when the call returns, its
  name once the folder is fsynced too. For files of a folder that is published as a whole.
- a *replaced* file (``replaced_file``, ``replace_file``): it is written under a temporary name
  beside it and renamed, so readers see the whole old file or the whole new one, and after a power
  cut, too.

No call follows a symbolic link in the last part of a path. When anything fails, the file that was
begun is removed and the error passes through: an ``OSError`` of the disk becomes an error of ours
by ``disk_errors``. Every call blocks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final

from .paths import fsync_dir

__all__ = [
    "create_file",
    "new_file",
    "replace_file",
    "replaced_file",
    "sync_data",
    "sync_file",
    "write_new",
]

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE: Final = 0o600


_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: through the drive


def sync_data(fd: int) -> None:
    """Make a file's bytes and its size durable. Blocks; raises ``OSError``."""
    if _FULL_SYNC is not None:
        fcntl.fcntl(fd, _FULL_SYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def create_file(path: str, *, mode: int = _MODE, may_exist: bool = False) -> BinaryIO:
    """A new, empty file, open for writing.

    Args:
        path: its name.
        mode: its permissions, less the process's umask.
        may_exist: remove what has the name, a link rather than what it leads to; without, a name
            in use is a ``FileExistsError``.
    """
    try:
        fd = os.open(path, _FLAGS, mode)
    except FileExistsError:
        if not may_exist:
            raise
        os.unlink(path)
        fd = os.open(path, _FLAGS, mode)
    return open(fd, "wb")


def sync_file(file: BinaryIO) -> None:
    """Make durable what was written to an open file."""
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def new_file(path: str, *, mode: int = _MODE, may_exist: bool = False) -> Iterator[BinaryIO]:
    """A new file for the block to write; fsynced at its end, removed if it raises.

    The name is not durable yet: fsync the folder. ``mode`` and ``may_exist``: see ``create_file``.

    Raises:
        FileExistsError: the name is in use, and what has it is left alone.
        OSError: the file cannot be written.
    """
    with create_file(path, mode=mode, may_exist=may_exist) as file, _removed_on_error(path):
        yield file
        sync_file(file)


def write_new(path: str, data: bytes, *, mode: int = _MODE, may_exist: bool = False) -> None:
    """Create a file of these bytes and fsync it; its name is not durable yet.

    Args:
        path: its name.
        data: the whole contents.
        mode: its permissions, less the process's umask.
        may_exist: remove what has the name; without, that is a ``FileExistsError``.
    """
    with new_file(path, mode=mode, may_exist=may_exist) as file:
        file.write(data)


@contextmanager
def replaced_file(
    path: str, *, suffix: str = ".tmp", mode: int = _MODE, is_durable: bool = True
) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` at the end of the block; kept out if it raises.

    Args:
        path: the final name. What has it now is replaced, not followed.
        suffix: makes the temporary name, ``path`` with ``suffix``. A leftover of that name is
            removed first; two writers of one file need two suffixes.
        mode: permissions, less the process's umask.
        is_durable: fsync the file before it is renamed, and the folder afterwards. Without, a
            power cut may leave the old file, or an empty one.

    Raises:
        OSError: ``path`` is what it was. But if only the fsync of the folder failed, the new file
            is there, and may be lost in a power cut.
    """
    fresh = f"{path}{suffix}"
    with create_file(fresh, mode=mode, may_exist=True) as file, _removed_on_error(fresh):
        yield file
        if is_durable:
            sync_file(file)
        else:
            file.flush()
        os.replace(fresh, path)
    if is_durable:
        fsync_dir(os.path.dirname(path) or ".")


def replace_file(path: str, data: bytes, *, suffix: str = ".tmp", is_durable: bool = True) -> None:
    """Replace a file by these bytes, or create it; see ``replaced_file``.

    Args:
        path: the final name.
        data: the whole contents.
        suffix: makes the temporary name beside it.
        is_durable: on return, the file survives a power cut.
    """
    with replaced_file(path, suffix=suffix, is_durable=is_durable) as file:
        file.write(data)


@contextmanager
def _removed_on_error(path: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            os.unlink(path)
        raise
