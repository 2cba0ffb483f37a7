"""A folder that is kept open, to see whether its path still leads to it.

RocksDB has its files open, and makes new ones by path. Where a store is moved away and another one
is made in its place, the first would go on in the files of the second, and both would be lost.
"""

from __future__ import annotations

import os
from enum import Enum

__all__ = ["HeldFolder", "Place"]


class Place(Enum):
    """The state of a folder's path."""

    SAME = "same"
    NOTHING = "nothing"
    ANOTHER = "another"


class HeldFolder:
    """An open folder. ``close`` it.

    It is held open because some file systems give an inode another number once nobody has it.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def look(self) -> Place:
        """Look at its path; one that cannot be seen is taken for the same."""
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return Place.NOTHING
        except OSError:
            return Place.SAME
        return Place.SAME if os.path.samestat(found, os.fstat(self._fd)) else Place.ANOTHER

    def close(self) -> None:
        """Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
