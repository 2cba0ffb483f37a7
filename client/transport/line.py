"""The lines of a client that speaks HTTP: how many calls it has under way, and who is next.

A burst of calls opens as many connections as there are places, and no more: the others wait here,
first come, first served, and are sent on connections that have become free. A call that the server
has refused before it looked at it is sent again from its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum, unique
from threading import Lock
from typing import Final

from anyio import Event, move_on_after

from ...errors import UnreachableError
from ..calls import Call

__all__ = ["Lane", "Line", "SyncLine", "delays"]

_FIRST_S: Final = 0.02
_LONGEST_S: Final = 1.0


@unique
class Lane(Enum):
    """Kinds of calls that do not wait for one another; the value: how many are under way."""

    PLAIN = 32
    LEASE = 16  # a lease must not end while a burst of enqueues is sent
    POLL = 512  # what the server may hold would keep the others waiting
    UPLOAD = 256  # they may last; fewer than a server takes beside the calls of others

    @staticmethod
    def of(call: Call) -> Lane:
        """The lane of a call."""
        if call.wait_s:
            return Lane.POLL
        return Lane.LEASE if call.path.startswith("/leases/") else Lane.PLAIN


def delays(seconds: float) -> Iterator[float]:
    """How long to wait before each further try; together no more than ``seconds``."""
    delay_s = _FIRST_S
    while seconds > 0:
        yield min(delay_s, seconds)
        seconds -= delay_s
        delay_s = min(2 * delay_s, _LONGEST_S)


class _Rule:
    """The places of a line, and when it stands still."""

    def __init__(self, lane: Lane, timeout_s: float) -> None:
        self._n_free: int = lane.value
        self._n_answered = 0
        self._timeout_s = timeout_s
        self._held_s = 0.0  # the longest time that an answer may be held here

    def _patience_s(self, wait_s: float) -> float:
        self._held_s = max(self._held_s, wait_s)
        return self._timeout_s + self._held_s

    @staticmethod
    def _stuck() -> UnreachableError:
        return UnreachableError(
            "none of the calls before this one is answered; it was not sent. Is the server running?"
        )


class Line(_Rule):
    """The line of one lane, for the tasks of an event loop."""

    def __init__(self, lane: Lane, timeout_s: float) -> None:
        super().__init__(lane, timeout_s)
        self._waiting: deque[Event] = deque()

    async def enter(self, wait_s: float) -> None:
        """Take a place, in the order of the calls. ``wait_s``: for which the answer may be held.

        Raises:
            UnreachableError: nobody before it was answered for as long as an answer may take.

        Cancellation: the place goes to the next one.
        """
        patience_s = self._patience_s(wait_s)
        if self._n_free:
            self._n_free -= 1
            return
        turn = Event()
        self._waiting.append(turn)
        try:
            while not turn.is_set():
                n_answered = self._n_answered
                with move_on_after(patience_s):
                    await turn.wait()
                if not turn.is_set() and n_answered == self._n_answered:
                    raise self._stuck()
        except BaseException:
            if turn.is_set():
                self.leave(is_answered=False)
            else:
                self._waiting.remove(turn)
            raise

    def moved(self) -> None:
        """A call that has a place gets on, and will be answered: who waits goes on waiting."""
        self._n_answered += 1

    def leave(self, *, is_answered: bool) -> None:
        """Hand the place to the next one."""
        self._n_answered += is_answered
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self._n_free += 1


class SyncLine(_Rule):
    """The line of one lane, for threads."""

    def __init__(self, lane: Lane, timeout_s: float) -> None:
        super().__init__(lane, timeout_s)
        self._lock = Lock()
        self._waiting: deque[Lock] = deque()

    def enter(self, wait_s: float) -> None:
        """Take a place. See ``Line.enter``."""
        with self._lock:
            patience_s = self._patience_s(wait_s)
            if self._n_free:
                self._n_free -= 1
                return
            turn = Lock()
            turn.acquire()
            self._waiting.append(turn)
        has_place = False
        try:
            while not has_place:
                n_answered = self._n_answered
                has_place = turn.acquire(timeout=patience_s)
                if not has_place and n_answered == self._n_answered:
                    raise self._stuck()
        except BaseException:
            with self._lock:
                is_passed = turn not in self._waiting
                if not is_passed:
                    self._waiting.remove(turn)
            if is_passed:
                self.leave(is_answered=False)
            raise

    def moved(self) -> None:
        """See ``Line.moved``."""
        with self._lock:
            self._n_answered += 1

    def leave(self, *, is_answered: bool) -> None:
        """Hand the place to the next one."""
        with self._lock:
            self._n_answered += is_answered
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._n_free += 1
