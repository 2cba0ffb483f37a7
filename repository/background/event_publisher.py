"""The event publisher moves events (``j/`` rows) from the shards to the lifecycle journal.

The events of a commit are a row of its own batch: they exist if and only if the commit does. Five
rules make the journal reliable:

- Only *durable* events are moved, so the journal never has one that a power cut takes back.
- A row is deleted only after a sync of the journal that has it, so no event is lost. After a crash
  in between it is moved again, and readers drop the repeat by its number.
- The rows of a shard are moved in the order of their commits.
- What has been moved, and the deletion of its row, is this store's own affair. On a replica rows
  come with the entries, whoever leads; each replica moves them to a journal of its own, once it
  has applied them and they are durable here, and deletes them in local groups.
- The queue never waits for the journal. If it cannot be written, rows stay in the store,
  ``health()`` says so, and the publisher tries again.

Recent rows are moved from memory (``EventBuffer``); rows beyond its limit, or from an earlier
process, are read from the store.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from ...coalescer.event_buffer import EventBuffer
from ...coalescer.replicated import ReplicatedCoalescer
from ...engine.files.paths import JOURNALS, journal_path, make_root
from ...engine.records.frame import CHECKSUM_BYTES, checksum
from ...engine.records.keyspace import EVENTS_END, events_key
from ...engine.runtime.event_loop import Future, TaskHandle
from ...errors import (
    CorruptionError,
    LodeqError,
    OpenError,
    StorageFullError,
)
from ...segments.journal.journal import Journal
from ...segments.journal.retention import Retention, roll_for
from ...segments.journal.roll import Roll
from ...segments.journal.waits import Ack, State
from ...segments.journal.writer import LogWriter
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from .journal_start import begin_mark, identity_of, is_joined, join

__all__ = ["EventPublisher", "Sink", "open_journal"]

PAUSE_S = 0.1  # events gather for this long, for one write and one sync
RETRY_S = 1.0
CLOSE_S_MAX = 10.0
MOVE_ROWS: Final = 1024  # of one shard at a time
MOVE_BYTES: Final = 1 << 20
SCAN_ROWS: Final = 64

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Port of the publisher to its journal; ``Journal`` implements it."""

    async def append_many(self, payloads: Sequence[bytes], *, until: State | None = None) -> Ack:
        """Append records; with ``until="buffered"`` it does not wait for the disk."""

    async def sync(self) -> None:
        """Make everything appended durable."""

    async def close(self) -> None:
        """Sync and close."""


def open_journal(
    state: EngineState, root: str, *, name: str, retention: Retention | None, roll: Roll | None
) -> Journal:
    """Open the lifecycle journal of a store. Blocks.

    Args:
        state: the engine's state, for its event loop and clock.
        root: the store's folder.
        name: the journal's name, a folder below ``journals/``.
        retention: how much of the journal is kept; None keeps everything.
        roll: when a file of it is full; None derives it from ``retention``.

    Raises:
        OpenError: another file is at its path, or another process writes it.
        StorageError: the disk failed.
    """
    path = journal_path(root, name)
    make_root(os.path.join(root, JOURNALS))
    make_root(path)
    rule = roll if roll is not None else roll_for(retention)
    return Journal(
        LogWriter.open(path, clock=state.clock, roll=rule),
        state.spawner,
        state.clock,
        flush="async",
        batch_bytes=1 << 20,
        batch_s=PAUSE_S,
        retention=retention,
    )


class _Source:
    """Events of one shard that are still to be moved."""

    __slots__ = ("buffer", "is_joined", "is_replica", "is_stuck", "shard")

    def __init__(self, shard: Shard, shards: int) -> None:
        self.shard = shard
        self.is_replica = isinstance(shard.coalescer, ReplicatedCoalescer)
        buffer = EventBuffer(shard.index, shards, is_replica=self.is_replica)
        self.buffer = shard.coalescer.events = buffer
        self.is_joined = not self.is_replica  # see ``journal_start``
        self.is_stuck = False  # the store cannot be read: later events wait

    @property
    def can_move(self) -> bool:
        """Whether its rows can be read and deleted."""
        return self.is_joined and not self.is_stuck and self.shard.coalescer.takes_local_writes

    @property
    def has_due(self) -> bool:
        """Whether there may be a row that can be moved now."""
        rows = self.buffer.rows
        if not rows:
            return not self.buffer.is_complete
        return rows[0][0] <= events_key(self.shard.coalescer.durable_number)


class EventPublisher:
    """Publisher of one engine, for all its shards. Made before anything is queued."""

    def __init__(self, state: EngineState, make: Callable[[], Sink]) -> None:
        self._state = state
        self._make = make  # blocks
        self.journal: Sink | None = None
        self._sources = [_Source(shard, len(state.shards)) for shard in state.hosted]
        self._moving: list[tuple[_Source, int]] = []  # appended, not known to be durable
        self._waker: Future | None = None
        self._is_stopping = False
        self._task: TaskHandle | None = None
        self.problem: str | None = None  # why nothing is moved, for ``health()``

    # -- what comes in -----------------------------------------------------------------

    def replace(self, shard: Shard) -> None:
        """Go on with ``shard`` in place of the one that had its index: it was opened in between."""
        others = [one for one in self._sources if one.shard.index != shard.index]
        self._sources = [*others, _Source(shard, len(self._state.shards))]
        self._wake()

    def drop(self, shard: Shard) -> None:
        """Move no more events of a shard that is let go: other replicas have them as well."""
        self._sources = [one for one in self._sources if one.shard is not shard]

    def _read_on(self, source: _Source) -> int:
        """Read events that are not in memory, from the store and its queued groups; bytes read.

        Of a replica from the store alone: what is queued may never be committed.
        """
        buffer, shard = source.buffer, source.shard
        scan = shard.store.scan_part if source.is_replica else shard.overlay.scan
        try:
            rows, resume = scan(buffer.edge, EVENTS_END, SCAN_ROWS)
        except CorruptionError as error:
            source.is_stuck = True
            self._state.anomaly(f"shard {buffer.shard}: its events cannot be read: {error}")
            return 0
        before = buffer.held_bytes
        for key, value in rows:
            if value[-CHECKSUM_BYTES:] != checksum(value[:-CHECKSUM_BYTES]):
                self._state.anomaly(
                    f"shard {buffer.shard}: events {key!r} are damaged: not published"
                )
                continue
            buffer.rows.append((key, value))
            buffer.held_bytes += len(value)
        if resume is None:
            buffer.is_complete = True
        else:
            buffer.edge = resume
        return buffer.held_bytes - before

    def _due(self, source: _Source) -> list[bytes]:
        """The first events that are durable, up to 1,024 or 1 MiB."""
        if not source.can_move:
            return []
        buffer, read_bytes = source.buffer, 0
        while not (buffer.is_complete or source.is_stuck) and len(buffer.rows) < MOVE_ROWS:
            read = self._read_on(source)
            read_bytes += read
            if read_bytes >= MOVE_BYTES or not read:  # only deleted rows: go on in the next turn
                break
        last, size = events_key(source.shard.coalescer.durable_number), 0
        out: list[bytes] = []
        for key, value in buffer.rows:
            if key > last or len(out) >= MOVE_ROWS or size >= MOVE_BYTES:
                break
            out.append(value)
            size += len(value)
        return out

    @property
    def is_behind(self) -> bool:
        """Whether there are rows that are still to be moved."""
        return any(
            source.can_move and (source.buffer.rows or not source.buffer.is_complete)
            for source in self._sources
        )

    @property
    def _has_due(self) -> bool:
        return any(source.can_move and source.has_due for source in self._sources)

    @property
    def next_numbers(self) -> dict[str, int]:
        """Next sequence number of the journal, by its name; empty while it is not open."""
        journal = self.journal
        return {journal.name: journal.following} if isinstance(journal, Journal) else {}

    # -- what goes out -----------------------------------------------------------------

    async def step(self) -> bool:
        """Move events that are durable. Returns whether there were any.

        Raises:
            LodeqError: the journal failed; events that were not moved are still in the store.
        """
        try:
            return await self._move()
        except LodeqError as error:
            self.problem = str(error)
            if not isinstance(error, StorageFullError):
                await self.close_journal()  # how much it has written is unknown
            raise

    async def _move(self) -> bool:
        journal = self.journal
        if journal is None:
            journal = await self._state.spawner.run_in_thread(self._open_it)
        await self._join(journal)
        if not self._moving:
            payloads: list[bytes] = []
            moving: list[tuple[_Source, int]] = []
            for source in self._sources:
                if due := self._due(source):
                    payloads += due
                    moving.append((source, len(due)))
                    if len(payloads) >= MOVE_ROWS:
                        break
            if not payloads:
                self.problem = None
                return False
            try:
                await journal.append_many(payloads, until="buffered")
            except StorageFullError as error:
                if error.receipts:  # it has kept them and will write them
                    self._moving = moving
                raise
            self._moving = moving
        await journal.sync()
        self.problem = None
        self._drop_moved()
        return True

    async def _join(self, journal: Sink) -> None:
        """Mark where the journal may have a gap, before anything of a replica is moved to it."""
        apart = [source for source in self._sources if not source.is_joined]
        apart = [source for source in apart if source.shard.coalescer.takes_local_writes]
        if not apart:
            return
        if isinstance(journal, Journal):
            find = partial(identity_of, journal.path, self._state.ids.token())
            identity = await self._state.spawner.run_in_thread(find)
            here = [one.shard for one in apart if one.shard.coalescer.failure is None]
            strange = [shard for shard in here if not is_joined(shard, identity)]
            marks = [mark for mark in map(begin_mark, strange) if mark is not None]
            if marks:
                await journal.append_many(marks, until="buffered")
                await journal.sync()
            for shard in strange:
                if shard.coalescer.failure is None:
                    join(shard, identity)
        for source in apart:
            source.is_joined = True

    def _drop_moved(self) -> None:
        """Delete the rows of events that are durable in the journal."""
        moving, self._moving = self._moving, []
        for source, count in moving:
            buffer = source.buffer
            gone = [buffer.rows.popleft() for _ in range(count)]
            buffer.held_bytes -= sum([len(value) for _, value in gone])
            coalescer = source.shard.coalescer
            try:
                group = coalescer.begin_local(24 * count)
            except LodeqError:
                continue  # poisoned: the next process moves them again
            group.ops += [(key, None) for key, _ in gone]
            coalescer.commit_local(group)
        # In turns: a shard with many events does not keep the others waiting.
        moved = {source for source, _ in moving}
        left = [source for source in self._sources if source not in moved]
        there = set(self._sources)  # not one that was replaced meanwhile
        self._sources = left + [source for source, _ in moving if source in there]

    async def close_journal(self) -> None:
        """Close the journal, also after an error. If cancelled, call it again."""
        journal = self.journal
        self._moving = []
        if journal is not None:
            try:
                await journal.close()
            except LodeqError:
                fields = {"event": "journal_close_failed"}
                _log.warning("closing the lifecycle journal", exc_info=True, extra=fields)
            self.journal = None

    # -- running -----------------------------------------------------------------------

    def open(self) -> None:
        """Open the journal. Blocks. A disk error is only noted: ``step`` tries again.

        Raises:
            OpenError: another file is at its path, or another process writes it.
        """
        try:
            self.journal = self._make()
        except OpenError:
            raise
        except LodeqError as error:
            self.problem = str(error)

    def _open_it(self) -> Sink:
        """Open the journal, in a thread. Kept at once, so that a cancelled caller can close it."""
        self.journal = journal = self._make()
        return journal

    def start(self) -> None:
        """Start the background task."""
        self._task = self._state.spawner.spawn(self._run, "lodeq-events")

    async def _run(self) -> None:
        try:
            await self._until_stopped()
        except BaseException as error:
            if not self._is_stopping:
                self.problem = f"the event publisher has ended: {error!r}"
            raise

    async def _until_stopped(self) -> None:
        while not self._is_stopping:
            pause_s = PAUSE_S
            try:
                await self.step()
                pause_s = 0.0 if self._has_due else PAUSE_S
            except LodeqError:
                pause_s = RETRY_S
            if pause_s:
                await self._pause(pause_s)
            else:
                await self._state.spawner.checkpoint()

    async def _pause(self, seconds: float) -> None:
        """Wait until there is something to move, then for ``seconds``."""
        state = self._state
        if not self._is_stopping and not self.is_behind:
            self._waker = state.spawner.future()
            self._listen(self._wake)
            try:
                await self._waker
            finally:
                self._listen(None)
                self._waker = None
        if self._is_stopping:
            return
        self._waker = state.spawner.future()
        timer = state.clock.call_at(state.spawner, state.clock.mono() + seconds, self._wake)
        try:
            await self._waker
        finally:
            timer.cancel()
            self._waker = None

    def _listen(self, wake: Callable[[], None] | None) -> None:
        for source in self._sources:
            source.buffer.wake = wake

    def _wake(self) -> None:
        waker = self._waker
        if waker is not None and not waker.done():
            waker.set_result(None)

    # -- the end -----------------------------------------------------------------------

    async def finish(self) -> None:
        """Move what there is, for at most 10 s, and close the journal. The rest stays in the store.

        Called when no more tasks are taken in but commits still work. If cancelled, call it again.
        """
        if self._is_finished:
            return
        self._is_stopping = True
        self._wake()
        if self._task is not None:
            await self._task.join()
            self._task = None
        timer = self._state.spawner.call_later(CLOSE_S_MAX, self._give_up)
        try:
            for source in self._sources:
                await self._await_durable(source.shard)
            while not self._is_out_of_time and (await self.step() or self._has_due):
                await self._state.spawner.checkpoint()
        except LodeqError as error:
            _log.warning(
                "the lifecycle journal is not written, events stay: %r",
                str(error),
                extra={"event": "journal_not_written", "detail": str(error)},
            )
        finally:
            timer.cancel()
            self._waker = None
            await self.close_journal()
        self._is_finished = True

    async def _await_durable(self, shard: Shard) -> None:
        """Wait until everything queued is durable; a shard that fails keeps its rows."""
        if self._is_out_of_time:
            return
        settled = shard.coalescer.commit_barrier(is_durable=True, is_local=True)
        if settled is None:
            return
        self._waker = settled
        try:
            await settled
        except LodeqError:
            pass  # those who waited for it have got it
        finally:
            self._waker = None

    _is_out_of_time = _is_finished = False

    def _give_up(self) -> None:
        self._is_out_of_time = True
        self._wake()
