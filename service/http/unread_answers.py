"""Answers that nobody has read yet: one bound for all connections of a server.

Above it the connection is cut that has gone longest without reading anything. Each connection has
a limit of its own beside that (it is sent no more while it does not read), and a time.
"""

from __future__ import annotations

from typing import Final, Protocol

from anyio import current_time, sleep

__all__ = ["CLAIM_BYTES_LEAST", "ClaimShare", "ClaimedBytes", "Reader", "UnreadAnswers"]

CLAIM_BYTES_LEAST: Final = 256 << 10  # that a claim may take, however many are under way
LOOK_S: Final = 0.02  # between looks whether answers were read
STILL_S: Final = 0.5  # in which nobody has read anything: those who do not read hold up nobody


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
        self.bytes_max = bytes_max
        self._n_reads = 0  # looks that found somebody to have read
        self._sizes: dict[Reader, int] = {}  # who has read last comes last
        self.total_bytes = 0

    def written(self, one: Reader, n_bytes: int) -> None:
        """Note that ``n_bytes`` more were written; cut the slowest while there are too many."""
        self._look(one, n_bytes)
        if self.total_bytes <= self.bytes_max:
            return
        self.look()
        while self.total_bytes > self.bytes_max:
            slowest = next(iter(self._sizes))
            self.left(slowest)
            slowest.cut()

    def left(self, one: Reader) -> None:
        """Forget a connection that has read everything, or is closed."""
        self.total_bytes -= self._sizes.pop(one, 0)

    def look(self) -> None:
        """Count what was read meanwhile no more."""
        for one in list(self._sizes):
            self._look(one, 0)

    async def room(self) -> None:
        """Wait before a large answer is made, while much is unread and somebody reads.

        It waits for less than a quarter of the bound: sixteen answers that are then made at once
        stay below it. Where nobody reads it goes on, and the slowest of them is cut.
        """
        n_reads, since = self._n_reads, None
        while self.total_bytes > self.bytes_max // 4:
            self.look()
            if self.total_bytes <= self.bytes_max // 4:
                return
            now = current_time()
            if since is None or n_reads != self._n_reads:
                n_reads, since = self._n_reads, now
            elif now - since > STILL_S:
                return
            await sleep(LOOK_S)

    def _look(self, one: Reader, n_bytes: int) -> None:
        before, size = self._sizes.get(one), one.unread_bytes
        if before is None:
            if size:
                self._sizes[one] = size
        elif not size:
            del self._sizes[one]
            self._n_reads += 1
        else:
            if size < before + n_bytes:
                del self._sizes[one]  # it reads
                self._n_reads += 1
            self._sizes[one] = size
        self.total_bytes += size - (before or 0)


class ClaimedBytes:
    """The tasks that claims have taken and not answered yet: bounded over all of a server.

    Half the bound of unread answers is for them and for those answers. Beyond it nobody waits: a
    claim is granted fewer tasks, one at least.
    """

    def __init__(self, unread: UnreadAnswers) -> None:
        self._unread = unread
        self.taken_bytes = 0

    def left_bytes(self) -> int:
        """Bytes that there is room for now; less than none: nothing more is to be taken."""
        most = self._unread.bytes_max // 2 - self.taken_bytes
        if self._unread.total_bytes > most - CLAIM_BYTES_LEAST:
            self._unread.look()
        return most - self._unread.total_bytes


class ClaimShare:
    """One claim's part of it, until ``end``: a ``ClaimBound`` of the engine."""

    __slots__ = ("_all", "_bytes")

    def __init__(self, all_claims: ClaimedBytes) -> None:
        self._all = all_claims
        self._bytes = 0

    def left_bytes(self) -> int:
        """Bytes that it may take now, beside its first task; a large claim takes in turns."""
        return max(CLAIM_BYTES_LEAST - self._bytes, self._all.left_bytes())

    def took(self, n_bytes: int) -> None:
        """It has taken so many."""
        self._bytes += n_bytes
        self._all.taken_bytes += n_bytes

    def end(self) -> None:
        """It is answered, or has given back what it took. May be repeated."""
        self._all.taken_bytes -= self._bytes
        self._bytes = 0
