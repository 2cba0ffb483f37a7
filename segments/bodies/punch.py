"""Giving pages of dead ranges back to the file system, in place.

What is left of a range must read as a hole, in either format, so that a scan passes over it. In
format 2 five bytes say so, whatever follows them. In format 1 only zeros are a hole: a header that
stayed would make a record of them, under an id that a copy elsewhere may bear.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

from ...engine.files.durable_files import sync_data
from .sqs import Sqs

__all__ = ["punch"]

PAGE_BYTES: Final = 4096
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_codec: Final = Sqs()


def punch(path: str, offset: int, size: int, *, is_v1: bool) -> int:
    """Returns how many bytes went. A file that has another name is left alone: 0.

    Args:
        path: of the body file.
        offset: of the dead body, in bytes.
        size: its size, in bytes.
        is_v1: whether the file is of the older format.

    Raises:
        OSError: the disk failed, or cannot do it. The range is a hole then, or as it was.
    """
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_nlink > 1:
            return 0
        end = offset + size
        head = b"" if is_v1 else _codec.holes(size)
        first = -(-(offset + len(head)) // PAGE_BYTES) * PAGE_BYTES
        last = max(end // PAGE_BYTES * PAGE_BYTES, first)
        if is_v1:
            os.pwrite(fd, bytes(min(first, end) - offset), offset)
            os.pwrite(fd, bytes(max(end - last, 0)), last)
        else:
            os.pwrite(fd, head, offset)
        if last <= first:
            return 0
        sync_data(fd)  # the hole says how far it goes before its inside goes
        if _fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, first, last - first):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)
    return last - first


def _fallocate(fd: int, mode: int, offset: int, size: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate", None)
    if call is None:  # not Linux: the space stays until the file goes
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return int(call(fd, mode, offset, size))
