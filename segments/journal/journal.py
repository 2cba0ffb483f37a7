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
from .layout import LogFile
from .positions import forget_place
from .recovery import LogFinding
from .retention import EIGHTH, Retention, due_files, remove_file
from .sync import SyncJob, SyncThread
from .tailer import Tailer, Wakes
from .view import WriterView
from .waits import Ack, State, Waiters
from .writer import LogWriter

__all__ = ["Flush", "Journal"]

Flush = Literal["async", "batch", "sync"]
FLUSH_BYTES: Final = 64 << 10
RETRY_S: Final = 1.0  # a disk that was full is tried again
LOOK_S_MIN: Final = 1.0  # how often retention looks at a journal that nobody appends to
LOOK_S_MAX: Final = 3600.0
_log = logging.getLogger(__name__)
_ack: Final = tuple.__new__  # what Ack(…) does, without its Python frame
_STATES: Final[Mapping[str, State]] = {"async": "buffered", "batch": "flushed", "sync": "fsynced"}


class Journal:
    """An open journal. One process writes it; any number read it.

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
        return self._writer.following

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
        if headers or times_us or expire_us:
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

    def _check(self) -> None:
        """Before anything else in every call: open, and on the right loop and thread."""
        self._spawner.check()
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
        before = self._writer.buffered_bytes
        try:
            self._writer.flush()
        except StorageFullError:
            if self._retry_timer is None:
                self._retry_timer = self._clock.call_at(
                    self._spawner, self._clock.mono() + RETRY_S, self._retry
                )
            raise
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
        self._spawner.check()
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
        self._spawner.check()
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
        self._spawner.check()
        if not self._is_closing:
            self._is_closing = True
            for timer in (self._timer, self._retry_timer, self._retention_timer):
                if timer is not None:
                    timer.cancel()
            self._closing = ShieldedTask(self._spawner, self._close, "lodeq-journal-close")
        if self._closing is not None:
            await self._closing.wait()
        error, self._close_error = self._close_error, None
        if error is not None:
            raise error

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
