"""Disk errors: which ones mean a full disk, and how a failed call becomes an error of ours.

A disk is full for us when the volume has no free space (ENOSPC) or the quota is used up (EDQUOT):
both end when somebody frees space, so a caller may try again. Every other error of a disk may have
lost data.

RocksDB reports errors as text. It names only ENOSPC "no space", and goes on by itself once there is
space again. After EDQUOT it takes no more writes until it is reopened, as after a broken disk; so
its text for that one does not count as full.
"""

from __future__ import annotations

import errno
from typing import Final

from ...errors import StorageError, StorageFullError

__all__ = ["disk_error", "error_class", "is_full", "is_full_text", "short_write"]

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_ROCKSDB_FULL: Final = "No space left on device"


def is_full(exc: OSError) -> bool:
    """Whether free space, or quota, is all that was missing."""
    return exc.errno in _FULL


def is_full_text(status: str) -> bool:
    """Whether RocksDB's text for a failed call says that the volume is full."""
    return _ROCKSDB_FULL in status


def error_class(exc: OSError) -> type[StorageError]:
    """``StorageFullError`` for a full disk, else ``StorageError``."""
    return StorageFullError if is_full(exc) else StorageError


def disk_error(exc: OSError, path: str) -> StorageError:
    """The error to raise for a failed call, with advice.

    It names the file that the system names; ``path`` where it names none.
    """
    advice = "free some disk space" if is_full(exc) else "look at the disk"
    return error_class(exc)(f"{exc.filename or path}: {exc.strerror}; {advice}")


def short_write(what: str) -> OSError:
    """The error of a write that took fewer bytes than it was given: a disk that has become full."""
    return OSError(errno.ENOSPC, f"no space for {what}")
