"""Who may stay when there are too many: one for each listener.

A connection is *silent* until a request's head has come, and *known* once one of its requests has
shown that it may be here (a token, a session, or that none is asked for). Silent ones have a number
of their own, so they take nothing from the known; where there are too many the oldest goes: a
caller sends its head at once. So have those whose request has shown nothing: it may be public, and
slow. Of the known those at rest go before anybody is refused, and then it is the newest who is told
to come again. Long polls leave a reserve to all other calls.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from ...errors import BusyError

__all__ = ["Admission", "Connection", "Refusals", "TooManyError"]

_LOG_S: Final = 60.0
_log = logging.getLogger("lodeq.http")


class TooManyError(BusyError):
    """The server has as many callers as it may: nothing was done, come again."""


class Connection(Protocol):
    """What can be shed."""

    def shed(self) -> None:
        """Close at once."""


class Admission:
    """The connections and long polls of one listener.

    Args:
        connections_max: known ones. As many may be silent beside them, and as many at a request
            that has shown nothing; an eighth is what long polls leave to others.
    """

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self.silent_max = connections_max
        self.polls_max = connections_max - max(1, connections_max // 8)
        self.polls = 0
        # In the order of arrival, or of coming to rest.
        self._silent: dict[Connection, None] = {}
        self._resting: dict[Connection, None] = {}
        self._working: dict[Connection, None] = {}
        self._unproved: dict[Connection, None] = {}

    def arrived(self, one: Connection) -> None:
        """A connection was made; the oldest silent one goes if there are too many."""
        self._silent[one] = None
        if len(self._silent) > self.silent_max:
            self._shed(self._silent)

    def asked(self, one: Connection) -> None:
        """The head of a request has come."""
        if one in self._silent:
            del self._silent[one]
            self._unproved[one] = None
            if len(self._unproved) > self.silent_max:
                self._shed(self._unproved)
        elif one in self._resting:
            del self._resting[one]
            self._working[one] = None

    def admits(self, one: Connection) -> bool:
        """Its request may be here: whether there is room, once those at rest have gone."""
        if one not in self._unproved:
            return True
        if len(self._working) + len(self._resting) >= self.connections_max:
            if not self._resting:
                return False
            self._shed(self._resting)
        del self._unproved[one]
        self._working[one] = None
        return True

    def answered(self, one: Connection) -> None:
        """It rests; one that is not known is silent again."""
        if one in self._working:
            del self._working[one]
            self._resting[one] = None
        elif one in self._unproved:
            del self._unproved[one]
            self.arrived(one)

    def left(self, one: Connection) -> None:
        """It is closed."""
        for among in (self._silent, self._unproved, self._resting, self._working):
            among.pop(one, None)

    @contextmanager
    def polling(self) -> Iterator[None]:
        """While a long poll waits.

        Raises:
            TooManyError: there are as many as there may be.
        """
        if self.polls >= self.polls_max:
            raise TooManyError(f"{self.polls} calls wait here already: come again, or wait less")
        self.polls += 1
        try:
            yield
        finally:
            self.polls -= 1

    def _shed(self, among: dict[Connection, None]) -> None:
        oldest = next(iter(among))
        del among[oldest]
        oldest.shed()


class Refusals:
    """Counts what is refused before any route sees it, and tells it in one line a minute."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._next_mono = float("-inf")

    def count(self, status: int, mono: float) -> None:
        """One more of a status; ``mono``: the loop's time."""
        self._counts[status] += 1
        if mono < self._next_mono:
            return
        self._next_mono = mono + _LOG_S
        counts, self._counts = self._counts, Counter()
        told = ", ".join(f"{n} with {status}" for status, n in sorted(counts.items()))
        fields = {"event": "requests_refused", "count": counts.total()}
        _log.warning("requests refused since the last such line: %s", told, extra=fields)
