"""Counts of runs by function: what metrics show of tasks that have a face.

A fixed number of functions is counted apart, those that came first since the open; all others are
counted together. Tasks without a function cost nothing here.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

__all__ = [
    "CANCELLED",
    "COMPLETED",
    "DEAD",
    "EXPIRED",
    "FAILED",
    "FUNCTIONS_MAX",
    "OTHER",
    "OUTCOMES",
    "RELEASED",
    "RUN_BOUNDS_US",
    "FunctionCounts",
    "FunctionRuns",
    "FunctionTally",
    "function_in",
]

FUNCTIONS_MAX: Final = 200
SHORTEST: Final = 4  # bytes of a packed face
STR_8: Final = 0xD9  # msgpack: text of up to 255 bytes; above it text of 256 at most
NAME_END: Final = 4 + 256
OTHER: Final = "other"  # queue and function of those that are not counted apart
OUTCOMES: Final = ("", "completed", "dead", "expired", "cancelled", "failed", "released")
COMPLETED, DEAD, EXPIRED, CANCELLED, FAILED, RELEASED = range(1, 7)  # the first four: ``Status``
SHORT_US: Final = 10_000  # the first bound of a run's time
_RAN: Final = (False, True, True, False, False, True, False)  # whose time says how long a run takes
RUN_BOUNDS_US: Final = (
    *(SHORT_US, 50_000, 100_000, 500_000, 1_000_000, 5_000_000, 10_000_000, 30_000_000),
    *(60_000_000, 300_000_000, 3_600_000_000),
)


def function_in(face: bytes) -> bytes:
    """The function of a packed face; empty: it has none."""
    # It begins with its function: msgpack of a list of three, then text.
    if len(face) < SHORTEST:
        return b""
    kind = face[1]
    if kind < STR_8:
        return face[2 : 2 + (kind & 31)]
    return face[3 : 3 + face[2]] if kind == STR_8 else face[4:NAME_END]


class FunctionRuns(NamedTuple):
    """Runs of one function since the open.

    ``ends`` are by position in ``OUTCOMES``; ``times`` are numbers of runs up to each of
    ``RUN_BOUNDS_US``, each by itself, and above the last; ``total_us`` is their sum.
    """

    queue: str
    function: str
    started: int
    ends: tuple[int, ...]
    times: tuple[int, ...]
    total_us: int


class FunctionTally:
    """Counts of one function. A lease keeps the tally of its task's function until it ends."""

    __slots__ = ("ends", "started", "times", "total_us")

    def __init__(self) -> None:
        self.started = 0
        self.ends = [0] * len(OUTCOMES)
        self.times = [0] * (len(RUN_BOUNDS_US) + 1)
        self.total_us = 0

    def ended(self, outcome: int, ran_us: int) -> None:
        """Count the end of a lease.

        Args:
            outcome: one of the numbers above.
            ran_us: microseconds since the claim.
        """
        self.ends[outcome] += 1
        if _RAN[outcome]:
            ran_us = max(0, ran_us)  # the wall clock may have been set back
            self.times[bisect_left(RUN_BOUNDS_US, ran_us)] += 1
            self.total_us += ran_us

    def completed(self, ran_us: int) -> None:
        """``ended`` for ``COMPLETED``."""
        self.ends[COMPLETED] += 1
        if ran_us > SHORT_US:
            self.times[bisect_left(RUN_BOUNDS_US, ran_us)] += 1
        else:
            self.times[0] += 1
            if ran_us < 0:
                return
        self.total_us += ran_us


class FunctionCounts:
    """Counts of one engine. Written on its loop; read in any thread."""

    __slots__ = ("_apart", "_others")

    def __init__(self) -> None:
        self._apart: dict[tuple[bytes, bytes], FunctionTally] = {}
        self._others = FunctionTally()

    def of(self, queue: bytes, face: bytes) -> FunctionTally | None:
        """The tally of the function in a packed face; None: it has none."""
        name = function_in(face)
        runs = self._apart.get((queue, name))
        if runs is None:
            if not name:
                return None
            if len(self._apart) >= FUNCTIONS_MAX:
                return self._others
            runs = self._apart[queue, name] = FunctionTally()
        return runs

    def started(self, queue: bytes, face: bytes) -> FunctionTally | None:
        """Count a lease that was granted on a task with this face. Returns the tally."""
        runs = None
        if len(face) >= SHORTEST and face[1] < STR_8:  # a name of up to 31 bytes
            runs = self._apart.get((queue, face[2 : 2 + (face[1] & 31)]))
        if runs is None:
            runs = self.of(queue, face)
        if runs is not None:
            runs.started += 1
        return runs

    def read(self) -> list[FunctionRuns]:
        """All counts, by queue and function; those of the others last."""
        apart = sorted(self._apart.items())
        found = [
            _read(queue.decode(), name.decode("utf-8", "replace"), runs)
            for (queue, name), runs in apart
        ]
        if self._others.started or any(self._others.ends):
            found.append(_read(OTHER, OTHER, self._others))
        return found


def _read(queue: str, function: str, runs: FunctionTally) -> FunctionRuns:
    ends, times = tuple(runs.ends), tuple(runs.times)
    return FunctionRuns(queue, function, runs.started, ends, times, runs.total_us)
