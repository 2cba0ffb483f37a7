"""A reader of a journal whose calls block."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from threading import Lock
from typing import Any, Literal, NamedTuple, Self, TypeVar

from ....errors import ClosedError
from ..cursor import Gap
from ..log_format import LogRecord
from ..tailer import Tailer
from .calls import JournalCall, JournalCalls

__all__ = ["ThreadTailer"]

T = TypeVar("T")


class ThreadTailer:
    """A ``Tailer`` for threads. Get it from ``ThreadJournal.tailer``.

    ``for record in tailer`` gives every record, waits for more, and stores its place now and then.
    A record is finished when the loop asks for the next one. Left early, by ``break`` or an error,
    the tailer is at the record of that turn: who reads next, also in another loop, gets it again.

    The loop ends once the journal or the tailer is closed, by any thread, or when nothing has come
    for ``wait`` seconds. Threads that share a tailer get its records in turns, each of them once;
    then what is stored may be a record that another thread has not finished. A call waits for that
    of another thread to end; ``close`` waits for none.

    A call that is interrupted may go on for a moment, on the loop, and find something. The next
    call puts that back first: nobody has seen it.
    """

    def __init__(self, tailer: Tailer, calls: JournalCalls, wait: float | None) -> None:
        self._tailer = tailer
        self._calls = calls
        self._wait = wait
        self._turn = Lock()  # who reads or moves
        self._call: JournalCall[Any] | None = None  # what may have to be ended
        self._left: list[_Left] = []  # reads whose threads were interrupted
        self._is_closed = False

    @property
    def name(self) -> str | None:
        """The name its place is stored under."""
        return self._tailer.name

    @property
    def gaps(self) -> list[Gap]:
        """The last records that were not there, and why: damage, or removed by retention."""
        return list(self._tailer.gaps)

    @property
    def following(self) -> int:
        """The sequence number of the record it returns next; in a loop, that of this turn."""
        if not self._is_closed and any(one.call.found for one in self._left):
            self._plain(_nothing)
        return self._tailer.following

    # -- moving ----------------------------------------------------------------------------

    def seek(self, to: Literal["start", "end"] | int) -> None:
        """Go on at an end, or with that record (or the first one behind it that is there)."""
        self._plain(lambda: self._tailer.seek(to))

    def seek_time(self, time_us: int) -> None:
        """Go on with the first record appended at that time (Unix microseconds) or later."""
        self._plain(lambda: self._tailer.seek_time(time_us))

    # -- reading ---------------------------------------------------------------------------

    def read(self, most: int = 1024, *, wait: float | None = 0.0) -> list[LogRecord]:
        """Up to ``most`` records, in order; records past their TTL are left out.

        Args:
            most: At least 1.
            wait: Seconds to wait for the first one; None: until there is one. Nothing after that
                time, or once the journal is closed, is an empty list.

        Raises:
            ClosedError: the tailer is closed, or was closed by another thread meanwhile.
            StorageError: the disk failed. The tailer is where it was.

        **Cancellation.** Interrupted, the tailer is where it was.
        """
        with self._turn:
            return self._run(lambda: self._tailer.read(most, wait=wait), self._tailer.take_back)

    def read_back(self, most: int = 1024) -> list[LogRecord]:
        """Up to ``most`` records before the place, the latest first. The place goes back.

        Records past their TTL are left out. Raises as ``read`` does.
        """
        return self._plain(lambda: self._tailer.read_back(most))

    def __iter__(self) -> Iterator[LogRecord]:
        self._plain(self._tailer.put_back)
        return _Loop(self)

    def _next(self) -> LogRecord | None:
        with self._turn:
            if self._is_closed:
                return None
            record = None if self._left else self._tailer.next_held()
            if record is None:
                try:
                    record = self._run(self._next_record, lambda _: self._tailer.put_back())
                except ClosedError:  # the tailer, the journal, or its event loop
                    return None
            return record

    async def _next_record(self) -> LogRecord | None:
        record = self._tailer.next_held()
        return await self._tailer.next_read(self._wait) if record is None else record

    # -- its place -------------------------------------------------------------------------

    def store(self) -> None:
        """Everything that was returned is finished: a tailer of this name goes on behind it.

        Within a ``for`` loop the record of this turn is not finished yet.

        **Durability.** It survives the process. A power cut may take it back a little.
        **Cancellation.** Interrupted, it is stored or not.
        """
        self._plain(self._tailer.store)

    def close(self) -> None:
        """Let go of its files. Nothing is stored; a blocked read ends. Idempotent; any thread."""
        self._is_closed = True
        call = self._call
        if call is not None:
            call.end()
        try:
            self._calls.run(self._calls.new(self._close), is_last=True)
        except ClosedError:  # its event loop has ended: nobody else uses it
            self._tailer.close()

    async def _close(self) -> None:
        self._tailer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- calls -----------------------------------------------------------------------------

    def _plain(self, fn: Callable[[], T]) -> T:
        async def main() -> T:
            return fn()

        with self._turn:
            return self._run(main)

    def _run(
        self,
        main: Callable[[], Coroutine[Any, Any, T]],
        undo: Callable[[T], object] | None = None,
    ) -> T:
        """One call at a time, which ``close`` may end.

        Args:
            main: runs on the loop.
            undo: puts back what it has found, on the loop, if its thread was interrupted.
        """
        left = self._left

        async def settled() -> T:
            for one in left:
                one.settle()
            return await main()

        self._call = call = self._calls.new(settled)
        try:
            if self._is_closed:  # behind the line above: ``close`` sees the call, or this sees it
                raise ClosedError("the tailer is closed")
            found = self._calls.run(call)
        except ClosedError as exc:
            if self._is_closed:
                raise ClosedError("the tailer is closed") from exc
            raise
        except BaseException as exc:
            if undo is not None and not isinstance(exc, Exception):  # an interrupt: not its own
                self._left = [*left, _Left(call, undo)]
            raise
        else:
            self._left = []
            return found
        finally:
            self._call = None


class _Left(NamedTuple):
    """A read whose thread was interrupted."""

    call: JournalCall[Any]
    undo: Callable[[Any], object]

    def settle(self) -> None:
        """Put back what it has found, once. It has ended: its end was asked for before."""
        while self.call.found:
            self.undo(self.call.found.pop())


def _nothing() -> None:
    """Be called, after what was left is put back."""


class _Loop:
    """One ``for``. What it has not finished lies with its tailer, however it is left."""

    def __init__(self, tailer: ThreadTailer) -> None:
        self._tailer = tailer

    def __iter__(self) -> Iterator[LogRecord]:
        return self

    def __next__(self) -> LogRecord:
        record = self._tailer._next()
        if record is None:
            raise StopIteration
        return record
