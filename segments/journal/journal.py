"""A journal on an event loop: appends of many callers, few writes, fewer syncs.

Appends of one turn of the loop are written together at its end, or as soon as they are 64 KiB; who
waits for a sync shares one with all who came while the sync before it ran. A full disk raises an
error and loses nothing; a failed one ends the journal.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, Literal, Self

from ...engine.runtime.clock import Clock, TimerHandle
from ...engine.runtime.event_loop import Future, Spawner
from ...engine.runtime.shielded import ShieldedTask
from ...errors import ClosedError, LodeqError, StorageFullError, UsageError
from .frames import expiry_us
from .fsync_thread import SyncJob, SyncThread
from .layout import LogFile
from .positions import forget_place
from .recovery import LogFinding
from .retention import EIGHTH, Retention, due_files, remove_file
from .tailer import Tailer, Wakes
from .threads.calls import JournalCalls
from .threads.intake import LOOK_S, Intake, ThreadWait, fits
from .threads.tailer import ThreadTailer
from .view import WriterView
from .waits import Ack, State, Waiters, check_loop
from .writer import LogWriter

__all__ = ["Appender", "Appends", "Flush", "Journal", "ThreadJournal"]

Flush = Literal["async", "batch", "sync"]
FLUSH_BYTES: Final = 64 << 10
PLAIN_BYTES: Final = FLUSH_BYTES  # larger ones, of threads, are appended on the loop
RETRY_S: Final = 1.0  # a disk that was full is tried again
LOOK_S_MIN: Final = 1.0  # how often retention looks at a journal that nobody appends to
LOOK_S_MAX: Final = 3600.0
_log = logging.getLogger(__name__)
_ack: Final = tuple.__new__  # what Ack(…) does, without its Python frame
_STATES: Final[Mapping[str, State]] = {"async": "buffered", "batch": "flushed", "sync": "fsynced"}


class Journal:
    """An open journal. One process writes it; any number read it.

    It belongs to the event loop (and thread) that opened it; from other threads use ``threads``.

    Attributes:
        findings: what was wrong when it was opened, and where.
    """

    def __init__(
        self,
        writer: LogWriter,
        spawner: Spawner,
        clock: Clock,
        *,
        flush: Flush,
        batch_bytes: int,
        batch_s: float,
        retention: Retention | None,
    ) -> None:
        self._writer = writer
        self._spawner = spawner
        self._clock = clock
        self._state: State = _STATES[flush]
        self._is_batch = flush == "batch"
        self._batch_bytes = batch_bytes
        self._batch_s = batch_s
        self._retention = retention
        self._thread = SyncThread("lodeq-journal")
        self._wakes = Wakes(spawner)
        self._retention_timer: TimerHandle | None = None
        self._is_flush_due = False
        self._job: SyncJob | None = None
        self._unsynced_bytes = 0
        self._timer: TimerHandle | None = None
        self._retry_timer: TimerHandle | None = None
        self._waiters = Waiters(spawner)
        self._is_closing = False
        self._closing: ShieldedTask | None = None
        self._close_error: LodeqError | None = None
        self._idle: Future | None = None
        self._intake: Intake | None = None  # of threads, once they have asked for it
        self._threads: ThreadJournal | None = None
        if retention is not None:  # from whichever thread opened it
            spawner.call_soon_threadsafe(self._keep_only)

    @property
    def findings(self) -> Sequence[LogFinding]:
        """Findings of its open: damage that is passed over, records that are lost."""
        return tuple(self._writer.findings)

    @property
    def path(self) -> str:
        """Path of its folder."""
        return self._writer.root

    @property
    def name(self) -> str:
        """Name of its folder."""
        return os.path.basename(self._writer.root)

    @property
    def following(self) -> int:
        """The sequence number the next record gets."""
        return self._writer.following if self._intake is None else self._intake.following

    @property
    def threads(self) -> ThreadJournal:
        """The same journal for threads beside its event loop: calls that block. From any thread.

        Raises:
            ClosedError: the event loop has ended, or the process was forked.
        """
        spawner = self._spawner
        if self._threads is None:
            if spawner.running_loop() is spawner.loop:
                self._engage()
            else:
                self._engage_from_thread()
        if self._threads is None:
            raise ClosedError("the journal's event loop is gone")
        return self._threads

    def _engage(self) -> None:
        """On the loop: from here on its own appends take their numbers behind those of threads."""
        if self._threads is not None:
            return
        spawner, writer = self._spawner, self._writer
        self._intake = intake = Intake(
            writer,
            lambda: spawner.call_soon_threadsafe(self._look),
            lambda: spawner.running_loop() is spawner.loop,
            writer.roll_at,
        )
        if self._is_closing:
            intake.shut("the journal is closed")
        self._threads = ThreadJournal(self, intake, JournalCalls(spawner, intake), self._state)

    def _engage_from_thread(self) -> None:
        over = ThreadWait()

        def engage() -> None:
            self._engage()
            over.set_result(None)

        post = self._spawner.call_soon_threadsafe
        if not self._is_closing and not self._writer.is_held:
            raise ClosedError("the journal belongs to the process this one was forked from")
        if post(engage) is None:
            raise ClosedError("the journal's event loop is closed")
        while not over.wait(LOOK_S):
            if post(_nothing) is None:
                raise ClosedError("the journal's event loop is gone")

    # -- appending -------------------------------------------------------------------------

    async def append(
        self,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        time_us: int = 0,
        ttl: float | timedelta | None = None,
        until: State | None = None,
    ) -> Ack:
        """Append one record.

        Args:
            payload: Any bytes, also none; up to 1 GiB.
            headers: Texts that travel with it.
            time_us: Its own time; 0: now.
            ttl: Seconds after which no tailer gets it any more.
            until: What to wait for. None: what the journal's ``flush`` says.

        Raises:
            PayloadTooLargeError, UsageError: see ``append_many``.
            StorageFullError: see ``append_many``.
            StorageError, ClosedError: the outcome is unknown; open the journal again to see.

        **Durability.** As ``Ack.state`` says.
        **Cancellation.** The record is appended all the same.
        """
        return await self.append_many(
            (payload,),
            headers=(headers,) if headers else (),
            times_us=(time_us,) if time_us else (),
            ttls=(ttl,) if ttl is not None else (),
            until=until,
        )

    async def append_many(
        self,
        payloads: Sequence[bytes],
        *,
        headers: Sequence[Mapping[str, str] | None] = (),
        times_us: Sequence[int] = (),
        ttls: Sequence[float | timedelta | None] = (),
        until: State | None = None,
    ) -> Ack:
        """Append a batch: consecutive numbers, one frame, all of it or nothing.

        Args:
            payloads: Up to 65,535, of up to 16 MiB together (or a single one of up to 1 GiB).
            headers, times_us, ttls: Empty, or one per payload; see ``append``.
            until: See ``append``.

        Raises:
            PayloadTooLargeError: nothing was appended: the payloads, or one's headers (1 MiB), are
                too large.
            UsageError: nothing was appended: no payloads, something that is not bytes, headers that
                are not text, times that are not whole numbers, or not one for each payload.
            StorageFullError: there is no space. Without ``receipts`` nothing was appended. With its
                ``Ack`` in ``receipts`` the batch is kept in memory, and written and synced once
                there is space: do not append it again. It is tried once a second, and by whatever
                is called next; ``close`` raises if there is still none, and what is kept is lost.
            StorageError, ClosedError: the outcome is unknown; open the journal again to see.

        **Durability.** As ``Ack.state`` says.
        **Cancellation.** The batch is appended all the same.
        """
        spawner = self._spawner
        if self._is_closing or spawner.running_loop() is not spawner.loop:
            self._check()
        writer = self._writer
        state = self._state if until is None else _known(until)
        if writer.buffered_bytes >= FLUSH_BYTES:
            self._flush()  # of a disk that was full: what is kept goes first
        expire_us: Sequence[int] = ()
        if ttls:
            expire_us = expiry_us(self._clock.wall_us(), ttls)
        if self._intake is not None:
            first = self._append_behind(self._intake, payloads, headers, times_us, expire_us)
        elif headers or times_us or expire_us:
            first = writer.append(payloads, headers=headers, times_us=times_us, expire_us=expire_us)
        else:
            first = writer.append(payloads)
        taken = _ack(Ack, (first, writer.following - 1, "buffered"))
        if writer.buffered_bytes >= FLUSH_BYTES:
            try:
                self._flush()
            except StorageFullError as exc:
                exc.receipts = (taken,)
                raise
        elif not self._is_flush_due:
            self._is_flush_due = True
            spawner.call_soon(self._flush_later)
        return taken if state == "buffered" else await self._reach(state, taken)

    def _append_behind(
        self,
        intake: Intake,
        payloads: Sequence[bytes],
        headers: Sequence[Mapping[str, str] | None],
        times_us: Sequence[int],
        expire_us: Sequence[int],
    ) -> int:
        """Append behind everything that threads have appended."""
        with intake.lock:
            self._frame(intake)
            first = self._writer.append(
                payloads, headers=headers, times_us=times_us, expire_us=expire_us
            )
            intake.first = self._writer.following
        return first

    def _take_in(self, intake: Intake) -> None:
        """Frame what threads have appended.

        Raises:
            StorageError: the disk is full, or failed. What is not framed waits where it was.
        """
        with intake.lock:
            self._frame(intake)

    def _frame(self, intake: Intake) -> None:
        """``_take_in``; the lock is held."""
        writer, done = self._writer, 0
        entries = intake.take(self._waiters)
        try:
            if entries and writer.buffered_bytes >= FLUSH_BYTES:
                writer.flush()  # of a disk that was full: what is kept goes first
            for count, payloads in intake.frames(entries):
                writer.append(payloads)
                done += count
        except BaseException:
            intake.put_back(entries[done:])
            raise

    def _look(self) -> None:
        """On the loop, soon after threads have appended."""
        if self._intake is not None:
            self._intake.is_due = False
        self._flush_later()

    def _check(self) -> None:
        """Before anything else in every call: open, and on the right loop and thread."""
        check_loop(self._spawner)
        if self._is_closing:
            raise ClosedError("the journal is closed")

    async def _reach(self, state: Literal["flushed", "fsynced"], taken: Ack) -> Ack:
        """Wait until the records are in that state."""
        is_flushed = self._writer.flushed >= taken.last
        if state == "fsynced" or not is_flushed:
            future = self._waiters.add(taken, state)
            if is_flushed:
                self._begin_sync()
            await future
        return Ack(taken.first, taken.last, state)

    async def flush(self) -> None:
        """The kernel has all that was appended. Raises as ``append_many`` does."""
        self._check()
        self._flush()

    async def sync(self) -> None:
        """The disk has all that was appended. Raises as ``append_many`` does."""
        self._check()
        self._flush()
        writer = self._writer
        if writer.durable < writer.flushed:
            await self._reach("fsynced", Ack(writer.flushed, writer.flushed, "flushed"))

    async def roll(self) -> None:
        """Complete the current file: the next record begins another."""
        self._check()
        if self._intake is not None:
            self._take_in(self._intake)
        self._writer.roll()
        self._after_flush()

    def _flush_later(self) -> None:
        self._is_flush_due = False
        if self._is_closing:
            return
        try:
            self._flush()
        except StorageFullError as exc:
            self._waiters.full(exc, self._writer.flushed)
        except LodeqError as exc:
            self._waiters.fail(exc)

    def _flush(self) -> None:
        writer, intake = self._writer, self._intake
        try:
            if intake is not None:
                self._take_in(intake)
            before = writer.buffered_bytes
            writer.flush()
        except StorageFullError as exc:
            if self._retry_timer is None:
                self._retry_timer = self._clock.call_at(
                    self._spawner, self._clock.mono() + RETRY_S, self._retry
                )
            if intake is not None:
                intake.make_room(exc)
            raise
        finally:
            if intake is not None:  # failed: who waits for room learns of it when it tries again
                intake.make_room()
        self._unsynced_bytes += before
        self._after_flush()

    def _retry(self) -> None:
        """Write what is kept since the disk was full. Whoever waited for it has got the error."""
        self._retry_timer = None
        self._flush_later()
        if self._writer.durable < self._writer.flushed:
            self._begin_sync()

    def _after_flush(self) -> None:
        self._waiters.flushed(self._writer.flushed)
        self._wakes.all()
        if self._waiters.has_sync or self._writer.has_sealed:
            self._begin_sync()
        elif self._is_batch and self._unsynced_bytes:
            if self._unsynced_bytes >= self._batch_bytes:
                self._begin_sync()
            elif self._timer is None:
                self._timer = self._clock.call_at(
                    self._spawner, self._clock.mono() + self._batch_s, self._begin_sync
                )

    # -- syncing ---------------------------------------------------------------------------

    def _begin_sync(self) -> None:
        if self._is_closing:
            return
        writer = self._writer
        if writer.buffered_bytes and self._job is None:
            self._flush_later()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._job is not None:
            return  # its end begins the next one
        if writer.durable >= writer.flushed and not writer.has_sealed:
            self._waiters.synced(writer.durable)
            return
        try:
            self._job = begun = writer.begin_sync(is_flushed=True)
            self._unsynced_bytes = 0
            self._thread.run(begun.run, lambda error: self._call(begun, error))
        except LodeqError as exc:
            job, self._job = self._job, None
            if job is not None:
                writer.give_back(job)
            self._waiters.fail(exc)

    def _call(self, job: SyncJob, error: BaseException | None) -> None:
        """In the thread."""
        self._spawner.call_soon_threadsafe(self._synced, job, error)

    def _synced(self, job: SyncJob, error: BaseException | None) -> None:
        try:
            self._writer.end_sync(job, error)
            self._waiters.synced(self._writer.durable)
            if job.sealed:
                self._trim_quietly()
        except LodeqError as exc:
            self._waiters.fail(exc)
        self._job = None
        if self._idle is not None:
            if not self._idle.done():  # cancelled in this turn: who waited looks again
                self._idle.set_result(None)
        elif self._waiters.has_sync or (
            self._is_batch and self._unsynced_bytes and self._timer is None
        ):
            self._begin_sync()

    # -- reading and keeping ---------------------------------------------------------------

    def tailer(
        self, name: str | None = None, *, start: Literal["start", "end"] | int = "start"
    ) -> Tailer:
        """A reader of its own, that is woken by appends.

        Args:
            name: It goes on where the last tailer of that name stored its place. The first one's
                place is stored here: retention keeps what it has not read. None: no place.
            start: Where to begin, without a stored place: at a sequence number, or an end.

        Raises:
            InvalidNameError, CorruptionError: of the name, or of the place stored under it.
            StorageError: the place cannot be read or written.
        """
        check_loop(self._spawner)
        return Tailer(
            self._writer.root,
            WriterView(self._writer),
            self._spawner,
            self._clock,
            name=name,
            start=start,
            wakes=self._wakes,
        )

    def forget(self, name: str) -> None:
        """There is no tailer of that name any more: nothing is kept for it. Idempotent."""
        check_loop(self._spawner)
        forget_place(self._writer.root, name)

    def trim(self, retention: Retention | None = None, *, dry_run: bool = False) -> list[LogFile]:
        """Remove the files that ``retention`` (None: the journal's own) keeps no longer.

        Returns them, in order; with ``dry_run`` they are still there.
        """
        self._check()
        rule = retention or self._retention
        if rule is None:
            return []
        writer = self._writer
        due = due_files(
            writer.root,
            writer.files,
            rule,
            following=writer.following,
            now_us=self._clock.wall_us(),
        )
        if not dry_run:
            for file in due:
                remove_file(file)
                writer.files.remove(file)
        return due

    def _keep_only(self) -> None:
        """Apply retention also while nobody appends: now, and at intervals.

        Files age, and tailers come on. The file with the last records is left once nothing has been
        appended for an eighth of what is kept: only files that are left go.
        """
        rule = self._retention
        if rule is None or self._is_closing:
            return
        every_s = LOOK_S_MAX
        try:
            if rule.seconds is not None:
                every_s = max(LOOK_S_MIN, rule.seconds / EIGHTH)
                if self._writer.roll_idle(every_s):
                    self._after_flush()
            self.trim()
        except LodeqError:
            self._say_retention_failed()
            every_s = LOOK_S_MAX
        at = self._clock.mono() + min(every_s, LOOK_S_MAX)
        self._retention_timer = self._clock.call_at(self._spawner, at, self._keep_only)

    def _trim_quietly(self) -> None:
        """Remove files that may go; one that cannot be removed is tried again next time."""
        if self._retention is not None and not self._is_closing:
            try:
                self.trim()
            except LodeqError:
                self._say_retention_failed()

    def _say_retention_failed(self) -> None:
        """In the log; called where an error is handled."""
        fields = {"event": "retention_failed", "path": self._writer.root}
        _log.warning("retention of %r", self._writer.root, exc_info=True, extra=fields)

    # -- the end ---------------------------------------------------------------------------

    async def close(self) -> None:
        """Sync, and let go. Tailers end. Idempotent.

        Raises:
            StorageError: the last sync failed: what was not fsynced before may be lost.

        **Cancellation.** It is closed all the same, a little later.
        """
        check_loop(self._spawner)
        if not self._is_closing:
            self._is_closing = True
            if self._intake is not None:
                self._take_last(self._intake)
            for timer in (self._timer, self._retry_timer, self._retention_timer):
                if timer is not None:
                    timer.cancel()
            self._closing = ShieldedTask(self._spawner, self._close, "lodeq-journal-close")
        if self._closing is not None:
            await self._closing.wait()
        error, self._close_error = self._close_error, None
        if error is not None:
            raise error

    def _take_last(self, intake: Intake) -> None:
        """Take what threads have appended so far, and nothing more."""
        intake.shut("the journal is closed")
        try:
            self._take_in(intake)
        except LodeqError as exc:
            if self._writer.failure is None:  # else it is said already, to all that wait
                self._close_error = exc

    async def _close(self) -> None:
        if self._job is not None:  # a sync is never given up, and a failed one never repeated
            self._idle = self._spawner.future()
            await self._idle
        await self._spawner.run_in_thread(self._let_go)
        self._wakes.end()
        # Who appended in the turn of the close waits still, and the close has written it.
        self._waiters.flushed(self._writer.flushed)
        self._waiters.synced(self._writer.durable)
        self._waiters.fail(
            ClosedError(
                "the journal was closed, and its end failed: open it again to see what it has"
            )
        )

    def _let_go(self) -> None:
        """In a thread."""
        self._thread.close()
        try:
            self._writer.close()
        except LodeqError as exc:
            self._close_error = exc

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _known(state: State) -> State:
    if state not in _STATES.values():
        raise UsageError(f"until {state!r} is not 'buffered', 'flushed' or 'fsynced'")
    return state


def _nothing() -> None:
    """Do nothing: posting it shows whether the loop still takes calls."""


class Appends:
    """Appends from threads: the base of an appender and of the journal itself."""

    __slots__ = ("_calls", "_intake", "_twin", "_until")

    def __init__(self, twin: Journal, intake: Intake, calls: JournalCalls, until: State) -> None:
        self._twin = twin
        self._intake = intake
        self._calls = calls
        self._until: State = until

    def append(
        self,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        time_us: int = 0,
        ttl: float | timedelta | None = None,
        until: State | None = None,
    ) -> Ack:
        """Append one record; blocks until it is in the state asked for.

        Args:
            payload: Any bytes, also none; up to 1 GiB.
            headers: Texts that travel with it.
            time_us: Its own time; 0: now.
            ttl: Seconds after which no tailer gets it any more.
            until: What to wait for. None: what the appender, or else the journal's ``flush`` says.

        Raises:
            PayloadTooLargeError, UsageError: see ``append_many``.
            StorageFullError: see ``append_many``.
            StorageError, ClosedError: the outcome is unknown; open the journal again to see.

        **Durability.** As ``Ack.state`` says.
        **Cancellation.** Interrupted (``KeyboardInterrupt``), the record is appended all the same,
        or it never got a number: nothing is left half done, and the journal goes on.
        """
        state = self._until if until is None else _known(until)
        if type(payload) is bytes and not headers and not time_us and ttl is None:
            size = len(payload)
            if size <= PLAIN_BYTES:
                return self._intake.put(payload, 1, size, state)
        return self._calls(
            lambda: self._twin.append(
                payload, headers=headers, time_us=time_us, ttl=ttl, until=state
            )
        )

    def append_many(
        self,
        payloads: Sequence[bytes],
        *,
        headers: Sequence[Mapping[str, str] | None] = (),
        times_us: Sequence[int] = (),
        ttls: Sequence[float | timedelta | None] = (),
        until: State | None = None,
    ) -> Ack:
        """Append a batch: consecutive numbers, one frame, all of it or nothing.

        Args:
            payloads: Up to 65,535, of up to 16 MiB together (or a single one of up to 1 GiB).
            headers, times_us, ttls: Empty, or one per payload; see ``append``.
            until: See ``append``.

        Raises:
            PayloadTooLargeError: nothing was appended: the payloads, or one's headers (1 MiB), are
                too large.
            UsageError: nothing was appended: no payloads, something that is not bytes, headers that
                are not text, times that are not whole numbers, or not one for each payload; or this
                is the thread of the journal's event loop.
            StorageFullError: there is no space. Without ``receipts`` nothing was appended. With its
                ``Ack`` in ``receipts`` the batch is kept in memory, and written and synced once
                there is space: do not append it again. It is tried once a second, and by whatever
                is called next; ``close`` raises if there is still none, and what is kept is lost.
            StorageError, ClosedError: the outcome is unknown; open the journal again to see.

        **Durability.** As ``Ack.state`` says.
        **Cancellation.** As for ``append``.
        """
        state = self._until if until is None else _known(until)
        if not headers and not times_us and not ttls:
            batch = tuple(payloads)
            size = fits(batch)
            if 0 <= size <= PLAIN_BYTES:
                return self._intake.put(batch, len(batch), size, state)
            payloads = batch
        return self._calls(
            lambda: self._twin.append_many(
                payloads, headers=headers, times_us=times_us, ttls=ttls, until=state
            )
        )


class Appender(Appends):
    """The writing end of a journal for threads, and nothing else of it.

    Any thread may use it. A clone costs nothing: give each thread, or each part of a program, its
    own, with what its appends wait for. All of them share the journal's writes and syncs.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Appender {self._twin.path} until={self._until}>"

    def clone(self, *, until: State | None = None) -> Appender:
        """Another one. ``until``: what its appends wait for; None: the same as here."""
        state = self._until if until is None else _known(until)
        return Appender(self._twin, self._intake, self._calls, state)


class ThreadJournal(Appends):
    """A journal for threads: ``Journal.threads``, or ``lodeq.sync.open_journal``. Calls block.

    Any number of threads may use it at once. What they append is written together: an append that
    waits for nothing (*buffered*) takes no turn of the event loop, and those that wait share writes
    and syncs. A call on the loop's own thread raises ``UsageError``: it would wait for itself. A
    blocked call ends with its value, its error, or ``ClosedError``; an event loop that dies without
    closing is noticed within a second.

    Do not append from a signal handler or a finalizer: it could wait for the very append that it
    interrupts.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._twin.path}>"

    @property
    def findings(self) -> Sequence[LogFinding]:
        """Findings of its open: damage that is passed over, records that are lost."""
        return self._twin.findings

    @property
    def path(self) -> str:
        """Path of its folder."""
        return self._twin.path

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self._twin.name

    @property
    def following(self) -> int:
        """The sequence number the next record gets."""
        return self._intake.following

    def appender(self, *, until: State | None = None) -> Appender:
        """The writing end alone, to be cloned for each thread.

        ``until``: what its appends wait for; None: what the journal's ``flush`` says.
        """
        state = self._until if until is None else _known(until)
        return Appender(self._twin, self._intake, self._calls, state)

    def flush(self) -> None:
        """The kernel has all that was appended. Raises as ``append_many`` does."""
        self._calls(self._twin.flush)

    def sync(self) -> None:
        """The disk has all that was appended. Raises as ``append_many`` does.

        **Durability.** What any thread had appended survives the machine.
        **Cancellation.** Interrupted, the sync goes on.
        """
        self._calls(self._twin.sync)

    def roll(self) -> None:
        """Complete the current file: the next record begins another."""
        self._calls(self._twin.roll)

    def tailer(
        self,
        name: str | None = None,
        *,
        start: Literal["start", "end"] | int = "start",
        wait: float | None = None,
    ) -> ThreadTailer:
        """A reader of its own, that is woken by appends. Close it, or use it in a ``with`` block.

        Args:
            name: It goes on where the last tailer of that name stored its place. The first one's
                place is stored here: retention keeps what it has not read. None: no place.
            start: Where to begin, without a stored place: at a sequence number, or an end.
            wait: Seconds after which a ``for`` loop ends that gets no more; None: it goes on
                until the tailer or the journal is closed.

        Raises:
            InvalidNameError, CorruptionError: of the name, or of the place stored under it.
            StorageError: the place cannot be read or written.
        """
        tailer = self._calls.plain(lambda: self._twin.tailer(name, start=start))
        return ThreadTailer(tailer, self._calls, wait)

    def forget(self, name: str) -> None:
        """There is no tailer of that name any more: nothing is kept for it. Idempotent."""
        self._calls.plain(lambda: self._twin.forget(name))

    def trim(self, retention: Retention | None = None, *, dry_run: bool = False) -> list[LogFile]:
        """Remove the files that ``retention`` (None: the journal's own) keeps no longer.

        Returns them, in order; with ``dry_run`` they are still there.
        """
        return self._calls.plain(lambda: self._twin.trim(retention, dry_run=dry_run))

    def close(self) -> None:
        """Sync, and let go. Tailers end, and blocked reads with them. Idempotent.

        What was appended before is written, and acknowledged to those who wait for it; any later
        append raises ``ClosedError``. It closes the journal for its event loop, too.

        Raises:
            StorageError: the last sync failed: what was not fsynced before may be lost.

        **Durability.** Everything acknowledged survives the machine.
        **Cancellation.** Interrupted, closing goes on; call it again to wait for it.
        """
        try:
            self._calls.run(self._calls.new(self._twin.close), is_last=True)
        except ClosedError:
            pass  # with its event loop, or in the process this one was forked from

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
