"""Answers that nobody has read yet: one bound for all connections of a server.

Above it the connection is cut that has gone longest without reading anything. Each connection has
a limit of its own beside that (it is sent no more while it does not read), and a time.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Reader", "UnreadAnswers"]


class Reader(Protocol):
    """A connection that has answers to read."""

    @property
    def unread_bytes(self) -> int:
        """Bytes that were written and that the system has not taken yet."""

    def cut(self) -> None:
        """Close it at once."""


class UnreadAnswers:
    """The answers under way of one server. ``bytes_max``: of all together."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._sizes: dict[Reader, int] = {}  # who has read last comes last
        self.total_bytes = 0

    def written(self, one: Reader, n_bytes: int) -> None:
        """Note that ``n_bytes`` more were written; cut the slowest while there are too many."""
        self._look(one, n_bytes)
        if self.total_bytes <= self._bytes_max:
            return
        for other in list(self._sizes):
            self._look(other, 0)
        while self.total_bytes > self._bytes_max:
            slowest = next(iter(self._sizes))
            self.left(slowest)
            slowest.cut()

    def left(self, one: Reader) -> None:
        """Forget a connection that has read everything, or is closed."""
        self.total_bytes -= self._sizes.pop(one, 0)

    def _look(self, one: Reader, n_bytes: int) -> None:
        before, size = self._sizes.get(one), one.unread_bytes
        if before is None:
            if size:
                self._sizes[one] = size
        elif not size:
            del self._sizes[one]
        else:
            if size < before + n_bytes:
                del self._sizes[one]  # it reads
            self._sizes[one] = size
        self.total_bytes += size - (before or 0)
