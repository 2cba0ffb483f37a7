"""Ballast: a file of no use, in the folder of a store, that an open removes where space is short.

RocksDB replays its log into tables when it is opened, and the log goes only afterwards. So a store
that has filled its volume and is killed could not be opened again, nor could anything be removed
through it. The file is made while there is space, and given up by an open before RocksDB is asked
(where the space that is left does not do), or after RocksDB has failed for lack of space.

It is made only when the volume gets tight: on a large and empty one it would hold blocks for
nothing. How much: what two generations of memtables take, one to replay the log and one for the
work that makes space again; never more than a sixteenth of the volume, nor more than a quarter of
what is free above the level at which enqueues are refused.

It starts with a line of ours. A plain file of that name without it is somebody's, and stays.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from .paths import ballast_path, fsync_dir, shard_path

__all__ = [
    "TIGHT_BYTES",
    "FreeSpace",
    "due_bytes",
    "free_space_of",
    "give_up",
    "make",
    "needed_bytes",
]

# Disks write at most a few GiB a second, and the engine looks once a second: it sees this go by.
TIGHT_BYTES: Final = 4 << 30
LEAST_BYTES: Final = 4 << 20  # the smallest memtable: with less nothing could be replayed
VOLUME_PART: Final = 16
SPARE_PART: Final = 4
SHARD_BYTES: Final = 1 << 20  # manifest, options, RocksDB's own log, the watermark: with a margin
_HEAD: Final = b"lodeq ballast 1: given up by an open that is short of room\n"
_CHUNK: Final = b"\0" * (1 << 20)
_UNABLE: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)
_log: Final = logging.getLogger(__name__)


class FreeSpace(NamedTuple):
    """Bytes of a volume: what this process may still write, and all of it."""

    free: int
    total: int


def free_space_of(path: str) -> FreeSpace:
    """The bytes of the volume that ``path`` lies on. Raises ``OSError``."""
    info = os.statvfs(path)
    return FreeSpace(info.f_bavail * info.f_frsize, info.f_blocks * info.f_frsize)


def needed_bytes(root: str, shards: tuple[int, ...]) -> int:
    """About how many bytes the recovery of these shards writes before it frees any.

    Tables hold what the logs do, and an index and a filter above it; then the first work.
    """
    logs = 0
    for shard in shards:
        with os.scandir(shard_path(root, shard)) as entries:
            logs += sum(
                entry.stat(follow_symlinks=False).st_size
                for entry in entries
                if entry.name.endswith(".log")
            )
    return logs + logs // 4 + SHARD_BYTES * max(1, len(shards)) + LEAST_BYTES


def due_bytes(root: str, most: int, *, floor: int) -> int:
    """How large the ballast is to be made now; 0: it is large enough, or there is no space for it.

    Args:
        root: the folder of an open store.
        most: bytes that a recovery may want at most; 0: no ballast is kept.
        floor: bytes that must stay free whatever is made.

    Raises ``OSError``.
    """
    space = free_space_of(root)
    if not most or space.free >= TIGHT_BYTES:
        return 0
    have = _size(root)
    size = min(most, space.total // VOLUME_PART, (space.free + have - floor) // SPARE_PART)
    return size if size >= LEAST_BYTES and size >= 2 * have else 0


def make(root: str, size: int, *, is_stopped: Callable[[], bool] = lambda: False) -> bool:
    """Make the ballast, or enlarge it, durably. Blocks. Without space for it, none is left.

    Args:
        root: the folder of an open store.
        size: in bytes.
        is_stopped: asked now and then; once it is true nothing more is written.

    Returns: whether it is there. False without an error: stopped.

    Raises ``OSError``: no space after all, the disk fails, or the file of that name is not ours.
    """
    path = ballast_path(root)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not _is_ours(fd):
            raise OSError(errno.EEXIST, "it is not ours, so no ballast is kept", path)
        try:
            os.pwrite(fd, _HEAD, 0)
            os.fsync(fd)  # before it is large: what is large and has no head is not ours
            is_whole = _allocate(fd, size, is_stopped)
            os.fsync(fd)
        except OSError:
            os.unlink(path)
            raise
    finally:
        os.close(fd)
    fsync_dir(root)
    if is_whole:
        fields = {"event": "ballast_made", "path": path, "bytes": size}
        _log.info("made %r of %d bytes, for an open without space", path, size, extra=fields)
    return is_whole


def give_up(root: str) -> int:
    """Remove the ballast; returns the bytes that gave, 0 if there was none. Blocks.

    Raises ``OSError``.
    """
    path = ballast_path(root)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        size = os.fstat(fd).st_blocks * 512 if _is_ours(fd) else 0
    finally:
        os.close(fd)
    if size:
        os.unlink(path)
        fsync_dir(root)  # the blocks are free once the file system has written that down
        fields = {"event": "ballast_given_up", "path": path, "bytes": size}
        _log.warning("gave up %r of %d bytes: no space to open", path, size, extra=fields)
    return size


def _size(root: str) -> int:
    try:
        return os.stat(ballast_path(root), follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def _is_ours(fd: int) -> bool:
    """Begun by us, and perhaps cut off in its first line."""
    head = os.pread(fd, len(_HEAD), 0)
    return head == _HEAD or (os.fstat(fd).st_size < len(_HEAD) and _HEAD.startswith(head))


def _allocate(fd: int, size: int, is_stopped: Callable[[], bool]) -> bool:
    """Blocks, not only a size."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
            return True
        except OSError as exc:
            if exc.errno not in _UNABLE:
                raise
    at = max(len(_HEAD), os.fstat(fd).st_size)
    while at < size:
        if is_stopped():
            return False
        at += os.pwrite(fd, _CHUNK[: size - at], at)
    return True
