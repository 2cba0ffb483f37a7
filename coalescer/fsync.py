"""When a shard is synced, and how far it is known to be durable.

One sync runs at a time. The commits that it covers are fixed before it starts. When it returns,
the callers who waited are answered. At most every ``interval_s``, the last durable number is also
written to the watermark file; open compares it with the commits it recovers.

A sync starts when a caller waits for one; at the latest ``interval_s`` after a write that is not
yet durable (about as much as nosync mode may lose); and every 16,384 commits. Every 32,768 commits
the memtable is flushed, so that live log files stay inside the ring of 65,536 commit numbers. A
flush that RocksDB refuses (a full disk, a stall) is retried after 512 more commits, because the log
files that it would free still take up room in the ring.

A sync, a flush and a watermark are jobs of the store's one thread, one after the other. So the time
of a sync (``fsync_us``) has its wait for that thread in it.

A failed sync is never retried: Linux marks the pages clean after a failure, so a second call would
report success for lost data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from ..engine.runtime.clock import TimerHandle, perf_s
from ..engine.runtime.event_loop import Future, Spawner
from ..engine.store.port import Store
from ..errors import LodeqError, StorageFullError, StoreStalledError
from .group import Group
from .stats import CommitStats

__all__ = ["SyncedLoop", "Syncer"]

SYNC_COMMITS_MAX = 16_384
FLUSH_COMMITS_MAX = 32_768
FLUSH_RETRY_COMMITS = 512  # after a flush that was refused


class SyncedLoop(Protocol):
    """A commit loop, as far as a ``Syncer`` needs it."""

    applied_number: int
    stats: CommitStats
    refused_write: LodeqError | None

    @property
    def failure(self) -> LodeqError | None:
        """Why nothing is written any more, or None."""

    @property
    def wants_sync(self) -> bool:
        """Whether somebody waits for a sync that has not started."""

    def take_unsynced(self) -> list[Group]:
        """The groups that the sync that starts now covers."""

    def put_back_unsynced(self, groups: list[Group]) -> None:
        """Take these groups back: their sync was refused."""

    def synced(self, groups: list[Group]) -> None:
        """A sync has covered these."""

    def fail(self, error: BaseException, covered: Sequence[Group] = ()) -> None:
        """The outcome of ``covered``, and of what is pending, is unknown: write nothing more."""


class Syncer:
    """Starts the syncs and flushes of one shard, and tracks its last durable commit."""

    def __init__(
        self,
        store: Store,
        spawner: Spawner,
        *,
        first_number: int,
        interval_s: float,
        write_watermark: Callable[[int], None],
    ) -> None:
        self._store = store
        self._spawner = spawner
        self._interval_s = interval_s
        self._write_watermark = write_watermark
        self._attached: SyncedLoop | None = None
        # The commit loop need not call ``applied`` for commits below this number. 0: call it for
        # the next commit.
        self.due_number = 0
        self.durable_number = first_number - 1
        self._published = first_number - 1
        self._is_publish_due = False
        self._flush_at = first_number - 1 + FLUSH_COMMITS_MAX
        self._is_flushing = False
        self._is_running = False
        self._is_publishing = False
        self._is_finishing = False
        self._timer: TimerHandle | None = None
        self._waiters: list[tuple[int, Future]] = []

    def attach(self, coalescer: SyncedLoop) -> None:
        """Set the commit loop that this syncs."""
        self._attached = coalescer

    @property
    def _coalescer(self) -> SyncedLoop:
        if self._attached is None:
            raise RuntimeError("not attached")
        return self._attached

    @property
    def _failure(self) -> LodeqError | None:
        """The failure that stopped syncing, or None. A replica that follows keeps syncing."""
        return self._coalescer.failure

    @property
    def _is_full(self) -> bool:
        """The disk has no space: RocksDB refuses syncs as well, until a write has succeeded."""
        return isinstance(self._coalescer.refused_write, StorageFullError)

    @property
    def _applied(self) -> int:
        return self._coalescer.applied_number

    def applied(self, number: int) -> None:
        """Commit ``number`` has been written. The caller may skip commits below ``due_number``.

        Most commits change nothing here: a timer runs for them, and they are far from a flush.
        """
        if self._waiters:  # a sync is running for them, unless a full disk prevented it
            self.kick()
        if self._timer is None and not self._is_finishing:
            self._timer = self._spawner.call_later(self._interval_s, self._interval_over)
        if number - self.durable_number >= SYNC_COMMITS_MAX:
            self.kick()
        if number >= self._flush_at and not self._is_flushing:
            self._flush(number)
        if self._timer is not None and not self._waiters:
            due = self.durable_number + SYNC_COMMITS_MAX
            self.due_number = due if self._is_flushing else min(due, self._flush_at)

    def _flush(self, number: int) -> None:
        """Start a flush of what has been written up to ``number``."""

        def flushed(error: BaseException | None) -> None:
            self._spawner.call_soon_threadsafe(self._flush_done, error, number)

        self._is_flushing = True
        try:
            # Do not wait for the flush: later syncs run on the same thread and would be delayed.
            self._store.run(partial(self._store.flush, wait=False), flushed)
        except BaseException:
            self._is_flushing = False
            raise

    def _flush_done(self, error: BaseException | None, number: int) -> None:
        self._is_flushing = False
        self.due_number = 0
        if error is None:
            self._flush_at = number + FLUSH_COMMITS_MAX
        elif isinstance(error, StorageFullError | StoreStalledError):
            # Refused, so try again soon: the old log files still take up room in the ring.
            self._flush_at = self._applied + FLUSH_RETRY_COMMITS
        else:
            self._coalescer.fail(error)

    def commit_barrier(self, number: int) -> Future | None:
        """A future for commit ``number`` to be durable; None if it is."""
        if number <= self.durable_number:
            return None
        future = self._spawner.future()
        self._waiters.append((number, future))
        self.due_number = 0
        self.kick()
        return future

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.due_number = 0

    def _interval_over(self) -> None:
        self._timer = None
        self.due_number = 0
        self._is_publish_due = True  # by the sync that runs, or one that starts below
        if self.durable_number < self._applied:
            self.kick()
        elif self._published < self.durable_number:
            self._publish()

    def kick(self) -> None:
        """Start a sync unless one is running; the running one starts the next when it is done."""
        if self._is_running or self._failure is not None or self._is_full:
            return
        groups = self._coalescer.take_unsynced()
        target = self._applied
        started = perf_s()
        self._is_running = True

        def done(error: BaseException | None) -> None:
            took_us = int((perf_s() - started) * 1e6)
            self._spawner.call_soon_threadsafe(self._done, error, target, groups, took_us)

        try:
            self._store.start_sync(done)
        except Exception as error:  # noqa: BLE001 - it could not start: as if it had failed
            self._done(error, target, groups, 0)

    def _done(
        self, error: BaseException | None, target: int, groups: list[Group], took_us: int
    ) -> None:
        coalescer = self._coalescer
        self._is_running = False
        if isinstance(error, StorageFullError) and not self._is_finishing:
            # RocksDB refused it because the disk is full; it is retried once there is space.
            coalescer.put_back_unsynced(groups)
            if self._timer is None:
                self._timer = self._spawner.call_later(self._interval_s, self._interval_over)
            return
        if error is not None:
            coalescer.fail(error, groups)
            return
        if (failure := self._failure) is not None:
            coalescer.fail(failure, groups)
            return
        coalescer.stats.syncs += 1
        coalescer.stats.fsync_us.add(took_us)
        self.durable_number = max(self.durable_number, target)
        still: list[tuple[int, Future]] = []
        for number, future in self._waiters:
            if number > self.durable_number:
                still.append((number, future))
            elif not future.done():
                future.set_result(None)
        self._waiters = still
        coalescer.synced(groups)
        if self._is_publish_due or self._is_finishing:
            self._publish()
        if coalescer.wants_sync or still:
            self.kick()
        elif (
            (self._applied > self.durable_number or self._published < self.durable_number)
            and self._timer is None
            and not self._is_finishing
        ):
            self._timer = self._spawner.call_later(self._interval_s, self._interval_over)

    def _publish(self) -> None:
        if self._is_publishing or self._published >= self.durable_number:
            return
        number = self.durable_number
        self._is_publishing = True
        self._is_publish_due = False

        def published(error: BaseException | None) -> None:
            self._spawner.call_soon_threadsafe(self._published_done, error, number)

        self._store.run(lambda: self._write_watermark(number), published)

    def _published_done(self, error: BaseException | None, number: int) -> None:
        self._is_publishing = False
        if isinstance(error, StorageFullError):
            # The old watermark stays valid, so a full disk here need not fail the shard.
            number = self.durable_number if self._is_finishing else self._published
        elif error is not None:
            self._coalescer.fail(error)
            return
        self._published = number
        if self._published < self.durable_number and self._timer is None:
            if self._is_finishing:
                self._publish()
            else:
                self._timer = self._spawner.call_later(self._interval_s, self._interval_over)
        self._wake_finish()

    def fail_waiters(self, error: LodeqError) -> None:
        """Fail everyone who waits for durability."""
        self._cancel_timer()
        waiters, self._waiters = self._waiters, []
        for _, future in waiters:
            if not future.done():
                wrapped = type(error)(str(error))
                wrapped.__cause__ = error
                future.set_exception(wrapped)
        self._wake_finish()

    # -- closing -----------------------------------------------------------------------

    _finish_waiter: Future | None = None

    def _wake_finish(self) -> None:
        waiter = self._finish_waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def finish(self) -> None:
        """Run a last sync and write a last watermark. Do not write to the shard after this."""
        self._is_finishing = True
        self._cancel_timer()
        if self._failure is None and (future := self.commit_barrier(self._applied)) is not None:
            try:
                await future
            except LodeqError:
                return
        while self._failure is None and self._published < self.durable_number:
            self._finish_waiter = self._spawner.future()
            self._publish()
            await self._finish_waiter
