"""Disk errors: which ones mean a full disk, and how a failed call becomes an error of ours.

A disk is full for us when the volume has no free space (ENOSPC) or the quota is used up (EDQUOT):
both end when somebody frees space, so a caller may try again. Where the process has no open files
or memory left, nothing is said of the disk, nor of any file on it. Every other error may have lost
data.

RocksDB reports errors as text. It names only ENOSPC "no space", and goes on by itself once there is
space again. After EDQUOT it takes no more writes until it is reopened, as after a broken disk; so
its text for that one does not count as full.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from ...errors import StorageError, StorageFullError, StorePathError

__all__ = [
    "LIMIT_ADVICE",
    "NO_LINKS",
    "disk_error",
    "error_class",
    "is_disk_text",
    "is_full",
    "is_full_text",
    "is_limit",
    "is_limit_text",
    "path_error",
    "short_write",
]

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
# Of a hard link that this file system, or these two, cannot have: a copy does as well.
NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_FAILING_NAMES: Final = [
    "EIO",
    "ENXIO",
    "ENODEV",
    "ESTALE",
    "EUCLEAN",
    "EBADMSG",
    "EREMOTEIO",
    "ETIMEDOUT",
    "ENOTCONN",
]
_FAILING: Final = tuple(  # a disk, or a file server, that fails; not all systems have all of them
    getattr(errno, name) for name in _FAILING_NAMES if hasattr(errno, name)
)
_FAILING_TEXTS: Final = tuple(f": {os.strerror(code)}" for code in (errno.EDQUOT, *_FAILING))
_LIMITS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of the process, or the machine
_LIMIT_TEXTS: Final = tuple(f": {os.strerror(code)}" for code in _LIMITS)
LIMIT_ADVICE: Final = "give the process more open files (ulimit -n, LimitNOFILE=) or memory"
_ROCKSDB_FULL: Final = "No space left on device"


def is_full(exc: OSError) -> bool:
    """Whether free space, or quota, is all that was missing."""
    return exc.errno in _FULL


def is_full_text(status: str) -> bool:
    """Whether RocksDB's text for a failed call says that the volume is full."""
    return _ROCKSDB_FULL in status


def is_disk_text(status: str) -> bool:
    """Whether RocksDB's text for a failed call says that the disk fails, or its quota is used."""
    return status.startswith("IO error") and any(text in status for text in _FAILING_TEXTS)


def is_limit(exc: OSError) -> bool:
    """Whether the process, or the machine, has no more of them: it says nothing of a file."""
    return exc.errno in _LIMITS


def is_limit_text(status: str) -> bool:
    """The same of RocksDB's text for a failed call."""
    return any(text in status for text in _LIMIT_TEXTS)


def error_class(exc: OSError) -> type[StorageError]:
    """``StorageFullError`` for a full disk, else ``StorageError``."""
    return StorageFullError if is_full(exc) else StorageError


def disk_error(exc: OSError, path: str) -> StorageError:
    """The error to raise for a failed call, with advice.

    It names the file that the system names; ``path`` where it names none.
    """
    return error_class(exc)(f"{exc.filename or path}: {exc.strerror}; {_advice(exc)}")


def _advice(exc: OSError) -> str:
    if is_limit(exc):
        return LIMIT_ADVICE
    return "free some disk space" if is_full(exc) else "look at the disk"


def path_error(exc: OSError, text: str, advice: str = "") -> StorePathError | StorageError:
    """The error where a path cannot be used: the disk's where that fails or is full.

    Args:
        exc: what the system says.
        text: what could not be done, and why.
        advice: what to do where the path is at fault.
    """
    if is_full(exc) or is_limit(exc) or exc.errno in _FAILING:
        return error_class(exc)(f"{text}; {_advice(exc)}")
    return StorePathError(f"{text}; {advice}" if advice else text)


def short_write(what: str) -> OSError:
    """The error of a write that took fewer bytes than it was given: a disk that has become full."""
    return OSError(errno.ENOSPC, f"no space for {what}")
