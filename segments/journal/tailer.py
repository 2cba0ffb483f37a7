"""A reader of a journal on an event loop.

Tailers know nothing of each other, and nothing is consumed: each gets every record, in order. A
named one stores its place, in a file that any process can go on from. What is stored is the first
record that is *not* finished, so what a crash interrupts comes again: at least once. A loop has
finished a record when it asks for the next one; left early, it has not, and the tailer is there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator
from math import inf
from typing import Final, Literal

from ...engine.runtime.clock import Clock, TimerHandle
from ...engine.runtime.event_loop import Future, Spawner
from ...engine.values import spelled
from ...errors import ClosedError, UsageError
from .cursor import Gap, LogCursor
from .log_format import LogRecord
from .positions import read_place, store_place
from .small_files import TailerPosition
from .view import View
from .waits import check_loop

__all__ = ["Tailer", "Wakes"]

GAPS_MAX: Final = 1000
BATCH: Final = 256
POLL_S: Final = 0.2
SEQUENCE_MAX: Final = (1 << 63) - 1

_log = logging.getLogger(__name__)


class Wakes:
    """Who waits for more, and is woken by every flush."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self._waiting: dict[Future, None] = {}
        self.is_ended = False

    def wait(self) -> Future:
        """Done at the next flush, or at the end."""
        future = self._spawner.future()
        if self.is_ended:
            future.set_result(None)
        else:
            self._waiting[future] = None
        return future

    def leave(self, future: Future) -> None:
        """It is waited for no more: of a journal that nobody appends to nothing piles up."""
        self._waiting.pop(future, None)

    def all(self) -> None:
        """Wake everybody."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def end(self) -> None:
        """There will be no more."""
        self.is_ended = True
        self.all()


class Tailer:
    """One reader. Get it from ``Journal.tailer``, or, without a writer, from ``open_tailer``.

    ``async for record in tailer`` gives every record, waits for more, and stores its place now and
    then. A record is finished when the loop asks for the next one. Left early, by ``break`` or an
    error, the tailer is at the record of that turn: who reads next, also in another loop, gets
    it again.

    Attributes:
        gaps: the last records that were not there, and why: damage, or removed by retention. Each
            is also logged as a warning.
    """

    def __init__(
        self,
        root: str,
        view: View,
        spawner: Spawner,
        clock: Clock,
        *,
        name: str | None,
        start: Literal["start", "end"] | int,
        wakes: Wakes | None,
    ) -> None:
        self.name = name
        self.gaps: deque[Gap] = deque(maxlen=GAPS_MAX)
        self._root = root
        self._spawner = spawner
        self._clock = clock
        self._wakes = wakes
        self._cursor = LogCursor(view, self._count_gap)
        self._is_closed = False
        self._batch: list[LogRecord] = []  # of ``async for``; its body is busy with the one at
        self._at = 0
        place = read_place(root, name) if name is not None else None
        if place is not None:
            following = place.following
            # Perhaps no writer has looked at it since a power cut.
            if wakes is None and following > _newest_of(view):
                following = min(following, _end_of(view))
            self._cursor.seek(following)
        elif isinstance(start, int):
            self._cursor.seek(_number(start))
        elif start in ("start", "end"):
            (self._cursor.seek_start if start == "start" else self._cursor.seek_end)()
        else:
            raise UsageError(f"start {spelled(start)} is not 'start', 'end' or a sequence number")
        if name is not None and place is None:
            self.store()  # from here on retention keeps what it is to read

    @property
    def following(self) -> int:
        """The sequence number of the record it returns next, if that is there.

        Within ``async for`` that of this turn: it is not finished.
        """
        return self._batch[self._at].sequence if self._batch else self._cursor.following

    # -- moving ----------------------------------------------------------------------------

    def seek(self, to: Literal["start", "end"] | int) -> None:
        """Go on at an end, or with that record (or the first one behind it that is there)."""
        if isinstance(to, int):
            _number(to)
        self.put_back()
        if to == "start":
            self._cursor.seek_start()
        elif to == "end":
            self._cursor.seek_end()
        elif isinstance(to, int):
            self._cursor.seek(to)
        else:
            raise UsageError(f"{to!r} is not 'start', 'end' or a sequence number")

    def seek_time(self, time_us: int) -> None:
        """Go on with the first record appended at that time (Unix microseconds) or later."""
        self.put_back()
        self._cursor.seek_time(time_us)

    # -- reading ---------------------------------------------------------------------------

    async def read(self, most: int = 1024, *, wait: float | None = 0.0) -> list[LogRecord]:
        """Up to ``most`` records, in order; records past their TTL are left out.

        Args:
            most: At least 1.
            wait: Seconds to wait for the first one; None: until there is one. Nothing after that
                time, or once the journal is closed, is an empty list.

        Raises:
            ClosedError: the tailer is closed.
            UsageError: ``most`` or ``wait`` is none.
            StorageError: the disk failed. The tailer is where it was.

        **Cancellation.** The tailer is where it was.
        """
        self._check()
        _count(most)
        if wait is not None:
            _seconds(wait)
        self.put_back()
        return await self._wait(most, wait)

    async def _wait(self, most: int, wait: float | None) -> list[LogRecord]:
        check_loop(self._spawner)
        until = None if wait is None else self._clock.mono() + wait
        while True:
            wake = self._wakes.wait() if self._wakes is not None and wait != 0.0 else None
            try:
                found = self._read(most)
                if found or wait == 0.0 or (self._wakes is not None and self._wakes.is_ended):
                    return found
                if until is not None and self._clock.mono() >= until:
                    return found
                await self._more(wake, until)
            finally:
                if wake is not None and self._wakes is not None:
                    self._wakes.leave(wake)

    def read_now(self, most: int = 1024) -> list[LogRecord]:
        """As ``read``, without waiting and without an event loop: for a thread."""
        self._check()
        _count(most)
        self.put_back()
        return self._read(most)

    def take_back(self, records: list[LogRecord]) -> None:
        """Go back to before these, which ``read`` has just returned to nobody."""
        if records:
            self._cursor.put_back(records)

    def _read(self, most: int) -> list[LogRecord]:
        while found := self._cursor.read(most):
            if found := self._alive(found):
                break
        return found

    def _alive(self, records: list[LogRecord]) -> list[LogRecord]:
        """Those that are not past their TTL."""
        if any(record.expires_us for record in records):
            now_us = self._clock.wall_us()
            return [r for r in records if not 0 < r.expires_us <= now_us]
        return records

    async def _more(self, wake: Future | None, until: float | None) -> None:
        """Until there may be more, or it is time."""
        now = self._clock.mono()
        timer: TimerHandle | None = None
        if wake is None:  # another process writes: look again
            wake = self._spawner.future()
            until = now + POLL_S if until is None else min(until, now + POLL_S)
        if until is not None:
            timer = self._clock.call_at(self._spawner, until, lambda: _done(wake))
        try:
            await wake
        finally:
            if timer is not None:
                timer.cancel()

    def read_back(self, most: int = 1024) -> list[LogRecord]:
        """Up to ``most`` records before the place, the latest first. The place goes back.

        Records past their TTL are left out. Raises as ``read`` does.
        """
        self._check()
        _count(most)
        self.put_back()
        while found := self._cursor.read_back(most):
            if found := self._alive(found):
                break
        return found

    def __aiter__(self) -> AsyncIterator[LogRecord]:
        self.put_back()
        return _Loop(self)

    async def _turn(self) -> LogRecord:
        """The next record for ``async for``: whoever asks for it has finished the one before."""
        self._check()
        record = self.next_held()
        if record is None:
            record = await self.next_read(None)
        if record is None:
            raise StopAsyncIteration
        return record

    def next_held(self) -> LogRecord | None:
        """The next record of a loop, of those that are read. None: ``next_read`` reads more.

        Whoever asks has finished the one before.
        """
        at = self._at + 1
        if at >= len(self._batch):
            return None
        self._at = at
        return self._batch[at]

    async def next_read(self, wait: float | None) -> LogRecord | None:
        """The next record of a loop that has finished all that were read: its place is stored.

        Args:
            wait: See ``read``. None is returned for nothing.
        """
        self._check()
        if self._batch:
            self._batch = []
            self.store()
        batch = await self._wait(BATCH, wait)
        if not batch:
            return None
        self._batch, self._at = batch, 0
        return batch[0]

    def put_back(self) -> None:
        """Go back to the record that ``async for`` has read and not finished."""
        if self._batch:
            batch, self._batch = self._batch, []
            self._cursor.put_back(batch[self._at :])

    # -- its place -------------------------------------------------------------------------

    def store(self) -> None:
        """Everything that was returned is finished: a tailer of this name goes on behind it.

        Within ``async for`` the record of this turn is not finished yet.

        **Durability.** It survives the process. A power cut may take it back a little.
        """
        if self.name is not None:
            store_place(
                self._root, self.name, TailerPosition(self.following, self._clock.wall_us())
            )

    def close(self) -> None:
        """Let go of its files. Nothing is stored. Idempotent."""
        self._is_closed = True
        self._cursor.close()

    def _check(self) -> None:
        if self._is_closed:
            raise ClosedError("the tailer is closed")

    def _count_gap(self, gap: Gap) -> None:
        self.gaps.append(gap)
        where = "; ".join(f"{f.path} at {f.offset}: {f.reason}" for f in gap.findings)
        fields = {
            "event": "journal_gap",
            "path": self._root,
            "first": gap.first,
            "last": gap.last,
            "detail": where or "removed",
        }
        _log.warning(
            "journal %r: records %d to %d are not there: %s",
            self._root,
            gap.first,
            gap.last,
            where or "removed",
            extra=fields,
        )


class _Loop:
    """One ``async for``. What it has not finished lies with its tailer, however it is left."""

    def __init__(self, tailer: Tailer) -> None:
        self._tailer = tailer

    def __aiter__(self) -> AsyncIterator[LogRecord]:
        return self

    async def __anext__(self) -> LogRecord:
        return await self._tailer._turn()


def _newest_of(view: View) -> int:
    """The first record of the newest file: no place up to it is behind the end."""
    files = view.files()
    return files[-1].first if files else 0


def _end_of(view: View) -> int:
    """Number of the record that is appended next, as far as the folder says."""
    cursor = LogCursor(view, lambda _: None)
    try:
        cursor.seek_end()
        return cursor.following
    finally:
        cursor.close()


def _number(value: int) -> int:
    """A sequence number; one that is below the first stands for that."""
    if value > SEQUENCE_MAX:
        raise UsageError(f"{spelled(value)} is above any sequence number")
    return value


def _count(most: object) -> None:
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise UsageError(f"most is a number of records, at least 1, not {spelled(most)}")


def _seconds(wait: object) -> None:
    if isinstance(wait, bool) or not isinstance(wait, int | float):
        raise UsageError(f"wait is seconds, or None, not {spelled(wait)}")
    if not (abs(wait) < SEQUENCE_MAX or wait == inf):  # refuses NaN as well
        raise UsageError(f"wait is seconds, or None, not {spelled(wait)}")


def _done(future: Future) -> None:
    if not future.done():
        future.set_result(None)
