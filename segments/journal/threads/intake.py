"""Records of threads, on their way to the loop that writes the journal.

An append of a thread takes two steps. Under a lock it gets its numbers and joins what is waiting
here: that is all that a *buffered* one does, a fraction of a microsecond, and no event loop is
involved. The loop is woken once for all that came since it last looked. It takes everything, frames
it, and writes it with one ``write``; who waits for more (*flushed*, *fsynced*) is woken by it.

Two simpler ways lost. One call to the loop for every record costs two switches of threads, ten
times the append itself. Threads that frame and write by themselves hold a lock during a
``write``, behind which all others queue up; and ``KeyboardInterrupt`` can reach the main thread
between any two lines, so that it could leave a writer half changed.

Invariants:

- A number is given out and its record is kept in one step, ``list.append``: whatever interrupts a
  thread, there is no number without a record. All else is derived from the last entry.
- Only the loop takes and frames. Its own appends take their numbers under the same lock, behind
  everything that waits here.
- What is refused is refused before it has a number: only what is sure to be a frame comes here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Final, Literal
from weakref import WeakSet

from ....errors import ClosedError, LodeqError, StorageFullError, UsageError
from ..log_format import FRAME_BYTES_MAX, FRAME_RECORDS_MAX
from ..roll import Roll
from ..waits import Ack, Waiters
from ..writer import LogWriter

__all__ = ["LOOK_S", "Entry", "Intake", "ThreadWait", "fits"]

ROOM_BYTES: Final = 256 << 10  # what waits here, before appends wait for room
RECORD_BYTES: Final = 44  # what a frame, and the memory of it, adds to one record
BATCHED_BYTES: Final = 16  # what a record adds to a batch
SMALL_BYTES: Final = 4096  # records of up to so much may share a frame with others
SHARED_BYTES: Final = 64 << 10  # of such a frame: what one damaged byte can cost
SHARED_RECORDS: Final = 1024
ROLL_BYTES: Final = 1 << 20  # files of less are left after the very record that fills them
LOOK_S: Final = 1.0  # a blocked thread notices within this time that the loop has ended

Entry = tuple[int, bytes | Sequence[bytes]]  # the number behind it; a record, or a batch
_ack: Final = tuple.__new__


class ThreadWait:
    """A future for one blocked thread, which a lock stands behind."""

    __slots__ = ("_is_done", "_lock", "error", "value")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.value: object = None
        self._is_done = False
        self._lock = Lock()
        self._lock.acquire()

    def done(self) -> bool:
        """Whether it has a result or an error."""
        return self._is_done

    def set_result(self, value: object) -> None:
        """Let the thread go on. Once; not together with ``set_exception``."""
        self.value = value
        self._is_done = True
        self._lock.release()

    def set_exception(self, error: BaseException) -> None:
        """Let the thread go on, with an error."""
        self.error = error
        self.set_result(None)

    def wait(self, timeout_s: float) -> bool:
        """Whether it is done, at the latest after ``timeout_s`` seconds. Called by one thread."""
        return self._lock.acquire(timeout=timeout_s)


class Intake:
    """See the module's essay. ``lock`` guards ``entries`` and ``first``.

    Args:
        writer: of the journal.
        post: runs the loop's part soon, from any thread; returns None if the loop is closed.
        is_on_loop: whether this is the loop's own thread.
        roll: when files are left: it decides which records may share a frame.
    """

    def __init__(
        self,
        writer: LogWriter,
        post: Callable[[], object],
        is_on_loop: Callable[[], bool],
        roll: Roll,
    ) -> None:
        self.lock = Lock()
        self.entries: list[Entry] = []
        self.first = writer.following  # of the first entry
        self.is_due = False  # the loop has been woken, and has not looked yet
        self.is_shared = roll.records is None and (roll.bytes is None or roll.bytes >= ROLL_BYTES)
        self._writer = writer
        self._post = post
        self._is_on_loop = is_on_loop
        self._bytes = 0
        self._waits: list[tuple[Ack, ThreadWait, Literal["flushed", "fsynced"]]] = []
        self._no_room: list[ThreadWait] = []
        self._refusal: str | None = None
        self._pid = os.getpid()
        _watched.add(self)

    @property
    def following(self) -> int:
        """The sequence number the next record gets."""
        entries = self.entries
        return entries[-1][0] if entries else self.first

    # -- in any thread ---------------------------------------------------------------------

    def check(self, *, is_last: bool = False) -> None:
        """Raise unless threads may call; with ``is_last``, also after the end.

        Raises:
            UsageError: on the loop's own thread, which would wait for itself.
            ClosedError: the journal is closed, or belongs to the process this was forked from.
        """
        if self._is_on_loop():
            raise UsageError(
                "this is the thread of the journal's event loop, which the call would block: "
                "await the journal's own methods here"
            )
        if self._refusal is not None and not (is_last and self._pid == os.getpid()):
            raise ClosedError(self._refusal)

    def put(
        self,
        data: bytes | Sequence[bytes],
        count: int,
        size: int,
        state: Literal["buffered", "flushed", "fsynced"],
    ) -> Ack:
        """Number records and keep them for the loop; with another state than *buffered*, wait.

        Args:
            data: one record, or a batch of ``count`` that nobody changes any more.
            count: at least 1.
            size: bytes of the payloads, and what a batch adds.
            state: what to wait for.

        Raises:
            StorageFullError: with ``receipts``: the records are kept, and written once there is
                space. Without: nothing was appended.
            StorageError, ClosedError: the outcome is unknown.
            UsageError: on the loop's own thread.
        """
        if self._is_on_loop():
            self.check()
        wait: ThreadWait | None = None
        while True:
            with self.lock:
                if self._refusal is not None or self._writer.failure is not None:
                    self._refuse()
                if self._bytes < ROOM_BYTES:
                    entries = self.entries
                    first = entries[-1][0] if entries else self.first
                    following = first + count
                    taken: Ack = _ack(Ack, (first, following - 1, "buffered"))
                    self._bytes += size + RECORD_BYTES
                    if state != "buffered":
                        wait = ThreadWait()
                        self._waits.append((taken, wait, state))
                    entries.append((following, data))
                    break
                room = ThreadWait()
                self._no_room.append(room)
            self.wake()
            self.wait(room)
        if not self.is_due:
            self.wake()
        if wait is None:
            return taken
        self.wait(wait)
        return Ack(taken.first, taken.last, state)

    def _refuse(self) -> None:
        if self._refusal is not None:
            raise ClosedError(self._refusal)
        self._writer.check()

    def wake(self) -> None:
        """Have the loop look, unless it is about to."""
        if self.is_due:
            return
        try:
            self.is_due = True
            if self._post() is None:
                raise ClosedError("the journal's event loop is closed")
        except BaseException:  # an interrupt: whoever comes next wakes it
            self.is_due = False
            raise

    def wait(self, wait: ThreadWait) -> None:
        """Wait until it is done; raise its error.

        Raises:
            ClosedError: also if the event loop has ended without closing the journal.
        """
        while not wait.wait(LOOK_S):
            if self._post() is None and not wait.done():
                raise ClosedError("the journal's event loop is gone: open the journal again")
        if wait.error is not None:
            raise wait.error

    # -- on the loop -----------------------------------------------------------------------

    def take(self, waiters: Waiters) -> list[Entry]:
        """Everything that waits here, and who waits for it. The lock is held."""
        for taken, wait, state in self._waits:
            waiters.wait_with(wait, taken, state)
        self._waits.clear()
        entries = self.entries
        if entries:
            self.entries = []
            self.first = entries[-1][0]
            self._bytes = 0
        return entries

    def put_back(self, entries: list[Entry]) -> None:
        """Keep what was taken last and could not be framed. The lock is held."""
        if entries:
            self.entries[:0] = entries
            self.first = self._writer.following
            self._bytes += sum(map(_bytes, entries))

    def frames(self, entries: list[Entry]) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Records that are one frame, and how many entries they are."""
        at, most = 0, len(entries)
        while at < most:
            data = entries[at][1]
            at += 1
            if not isinstance(data, bytes):
                yield 1, data
                continue
            together = [data]
            if self.is_shared and len(data) <= SMALL_BYTES:
                size = len(data)
                for _, more in entries[at : at + SHARED_RECORDS - 1]:
                    if not isinstance(more, bytes) or len(more) > SMALL_BYTES:
                        break
                    size += len(more)
                    if size > SHARED_BYTES:
                        break
                    together.append(more)
                at += len(together) - 1
            yield len(together), together

    def make_room(self, error: LodeqError | None = None) -> None:
        """Let those go on who wait for room: there may be some, or there is none, for now."""
        if self._no_room:
            with self.lock:
                waits, self._no_room = self._no_room, []
            for wait in waits:
                if error is None:
                    wait.set_result(None)
                else:
                    wait.set_exception(StorageFullError(str(error)))

    def shut(self, text: str) -> None:
        """Take nothing more: from here on every call raises ``ClosedError`` with that text."""
        with self.lock:
            self._refusal = text
        self.make_room()

    def abandon(self) -> None:
        """In a forked child: the threads and the loop were not forked along."""
        self.lock = Lock()  # perhaps it was held
        self._refusal = "the journal belongs to the process this one was forked from"


def _bytes(entry: Entry) -> int:
    data = entry[1]
    return RECORD_BYTES + (len(data) if isinstance(data, bytes) else _weight(data))


def _weight(payloads: Sequence[bytes]) -> int:
    return sum(map(len, payloads)) + BATCHED_BYTES * len(payloads)


def fits(payloads: Sequence[bytes]) -> int:
    """Bytes that a batch takes, which is surely a frame; -1: it may be none, ask the writer."""
    count = len(payloads)
    if not 0 < count <= FRAME_RECORDS_MAX or set(map(type, payloads)) != {bytes}:
        return -1
    size = _weight(payloads)
    return size if size + RECORD_BYTES <= FRAME_BYTES_MAX else -1


_watched: WeakSet[Intake] = WeakSet()


def _abandon() -> None:
    for intake in list(_watched):
        intake.abandon()


os.register_at_fork(after_in_child=_abandon)
