"""Two folders change names, in one step where the system can."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

__all__ = ["exchange"]

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_CANNOT: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def exchange(one: str, other: str) -> bool:
    """Let each have the other's name. Raises ``OSError``; then nothing has changed.

    Returns: False where the system or the file system cannot; nothing has changed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2", None)  # glibc 2.28, musl 1.2.5
    if rename is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code), one, None, other)
