"""Admission: which connections of a listener stay when there are too many.

A connection is *silent* until the head of a request has arrived, *unproved* until one of its
requests has shown that it may be here (by a token, by a session, or because none is required), and
*known* from then on. Each of the three kinds has a limit of its own, so strangers take no place
from known clients. Above the limit the oldest silent or unproved connection is closed: an honest
client sends its head at once. Of the known ones, idle connections are closed first; when all are at
work, the newest request is refused with 503. Long polls leave an eighth of the limit to other
calls.

None is closed that has sent what nobody has looked at yet: not a silent or idle one with bytes in
its socket, and none whose request the guard has not seen. The next turns of the loop look at both,
so for so long there may be a few more than the limit says. One that has sent nothing is told 503
before it is closed, since its request may be on the way.
"""

from __future__ import annotations

import logging
from asyncio import BaseTransport
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from itertools import islice
from struct import unpack
from termios import FIONREAD
from typing import Final, Protocol

from ...errors import BusyError

__all__ = ["Admission", "Connection", "Refusals", "TooManyError", "has_unread"]

_LOG_S: Final = 60.0
_LOOKS: Final = 64  # at the sockets of others, for one that arrives
_log = logging.getLogger("lodeq.http")


class TooManyError(BusyError):
    """The server has as many callers as it accepts. Nothing was done: try again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, not_begun=True)


class Connection(Protocol):
    """A connection that can be closed to make place for others."""

    @property
    def has_unread(self) -> bool:
        """Whether it has sent something that has not been read yet."""

    def shed(self) -> None:
        """Close it at once."""

    def turn_away(self) -> None:
        """Say that it has to come again, and close; ``Admission.left`` follows."""


def has_unread(transport: BaseTransport | None) -> bool:
    """Whether bytes have arrived on a connection that nobody has read."""
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is None:
        return False
    try:
        (n_bytes,) = unpack("i", ioctl(sock.fileno(), FIONREAD, bytes(4)))
    except (OSError, ValueError):  # it is closed
        return False
    return bool(n_bytes)


class Admission:
    """The connections and long polls of one listener.

    Args:
        connections_max: known connections. As many may be silent beside them, and as many
            unproved. Long polls may take seven eighths of it.
    """

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self.silent_max = connections_max
        self.leaving_max = max(1, connections_max // 2)  # told to come again, for a moment each
        self.polls_max = connections_max - max(1, connections_max // 8)
        self.polls = 0
        # Each in the order of arrival; idle ones in the order in which they became idle.
        self._silent: dict[Connection, None] = {}
        self._idle: dict[Connection, None] = {}
        self._leaving: dict[Connection, None] = {}  # turned away, and not closed yet
        self._at_work: dict[Connection, None] = {}
        self._heard: dict[Connection, None] = {}  # their heads have arrived, unseen by the guard
        self._unproved: dict[Connection, None] = {}

    def arrived(self, one: Connection) -> None:
        """Add a new connection; close the oldest silent one if there are too many."""
        self._silent[one] = None
        if len(self._silent) > self.silent_max:
            self._shed_quiet(self._silent)

    def asked(self, one: Connection) -> None:
        """Note that the head of a request has arrived."""
        if one in self._silent:
            del self._silent[one]
            self._heard[one] = None
        elif one in self._idle:
            del self._idle[one]
            self._at_work[one] = None

    def strange(self, one: Connection) -> None:
        """Note that its request shows nothing; close the oldest of these if there are too many."""
        if one in self._heard:
            del self._heard[one]
            self._unproved[one] = None
            if len(self._unproved) > self.silent_max:
                self._shed(self._unproved)

    def admits(self, one: Connection) -> bool:
        """Make a connection known, closing an idle one if need be; False: all are at work."""
        if one not in self._heard and one not in self._unproved:
            return True
        if len(self._at_work) + len(self._idle) >= self.connections_max and not self._shed_quiet(
            self._idle
        ):
            self.strange(one)
            return False
        self._heard.pop(one, None)
        self._unproved.pop(one, None)
        self._at_work[one] = None
        return True

    def answered(self, one: Connection) -> None:
        """Note that its request is answered: it is idle, or silent again if it is not known."""
        if one in self._at_work:
            del self._at_work[one]
            self._idle[one] = None
        elif one in self._heard or one in self._unproved:
            self._heard.pop(one, None)
            self._unproved.pop(one, None)
            self.arrived(one)

    def left(self, one: Connection) -> None:
        """Forget a connection that is closed."""
        for among in (
            self._silent,
            self._heard,
            self._unproved,
            self._idle,
            self._at_work,
            self._leaving,
        ):
            among.pop(one, None)

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Count a long poll while it waits.

        Raises:
            TooManyError: as many wait already as may.
        """
        self.begin_poll()
        try:
            yield
        finally:
            self.end_poll()

    def begin_poll(self) -> None:
        """Count a long poll, until ``end_poll``. Raises as ``polling``."""
        if self.polls >= self.polls_max:
            raise TooManyError(f"{self.polls} calls wait here already: try again, or wait less")
        self.polls += 1

    def end_poll(self) -> None:
        """Count a long poll no more."""
        self.polls -= 1

    def _shed_quiet(self, among: dict[Connection, None]) -> bool:
        """Close the oldest that has sent nothing more; of those looked at, others become newest."""
        for one in list(islice(among, _LOOKS)):
            del among[one]
            if not one.has_unread:
                if len(self._leaving) < self.leaving_max:
                    self._leaving[one] = None
                    one.turn_away()
                else:
                    one.shed()
                return True
            among[one] = None
        return False

    def _shed(self, among: dict[Connection, None]) -> None:
        oldest = next(iter(among))
        del among[oldest]
        oldest.shed()


class Refusals:
    """Counts requests that are refused before any route sees them; logs one line a minute."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._next_mono = float("-inf")

    def count(self, status: int, mono: float) -> None:
        """Count one refusal; ``mono``: the loop's time, in seconds."""
        self._counts[status] += 1
        if mono < self._next_mono:
            return
        self._next_mono = mono + _LOG_S
        counts, self._counts = self._counts, Counter()
        summary = ", ".join(f"{n} with {status}" for status, n in sorted(counts.items()))
        fields = {"event": "requests_refused", "count": counts.total()}
        _log.warning("requests refused since the last such line: %s", summary, extra=fields)
