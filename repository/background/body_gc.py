"""Background garbage collection of body files: it frees the space of dead payloads.

A body file is examined when a payload in it has died, and once after open. Its live payloads are
counted from its ``o/`` rows, without reading the file. A sealed file without live payloads is
removed. A file with less than two thirds live bytes is *compacted* once nothing has died in it for
15 s: its live records are copied to the current file, and their rows moved, a slice at a time.
(With one half as the limit, a file of which every second payload has died would stay as it is.)
Copies are written in the newer format, so compaction also ends files of the older one;
``body_migration`` copies the rest of them.

Five rules make this safe at any moment (``tests/segments/test_body_races.py`` has a test for each
race):

- A record is copied, the copy is synced, and only then are rows moved: after a power cut every row
  still leads to bytes on disk.
- Rows are moved in one atomic section, and only those that have not changed since: a task that
  ended meanwhile does not come back.
- A file is removed only after a sync of the log: a power cut cannot restore a row that needs it.
- The current file is left alone. In other files only dead bytes are ever changed.
- A file is *busy* while it is removed, punched or copied from, and while it holds copies whose rows
  are not yet queued (until then nothing says that they are needed). Nobody else touches a busy
  file.

Where a payload lies is this store's own affair: rows are moved in local groups (``coalescer/
local_rows``), which on a replica, leading or following, are in no entry of its log.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from ...engine.records.frame import attempt
from ...engine.records.keyspace import BODY, ID_AT, INDEX, INDEX_END, TASK, body_at_key
from ...engine.records.rows import BODY_ROW, BodyRow, decode_body, decode_index_row
from ...engine.records.task import has_body
from ...engine.runtime.event_loop import Future
from ...engine.runtime.shielded import await_shielded
from ...errors import (
    ClosedError,
    CommitUnknownError,
    CorruptionError,
    LodeqError,
    SegmentCorruptError,
    StorageFullError,
)
from ...segments.bodies.layout import BodyFile, Location
from ..state.bodies import Bodies
from ..state.engine_state import EngineState
from ..state.pages import Pages
from ..state.queue_state import Shard
from ..state.waits import on_shard_thread
from .body_liveness import LiveBody, live_bodies, live_slice

__all__ = ["LOOK_S", "BodyGC", "CopiedOut"]

LOOK_S = 1.0
WAIT_S = 0.1
QUIET_S = 15.0  # since the last death in a file: the rest of it may die soon, too
COPY_BYTES_S: Final = 32 << 20
LOOK_FILES: Final = 64  # examined in one pass
SHARE_FILES: Final = 16  # removed at the close of an engine that was open for a moment
SAMPLE_ROWS: Final = 1024

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class CopiedOut:
    """Result of emptying a file. ``is_stuck``: it is kept, because a record cannot be read."""

    records: int = 0
    bytes: int = 0
    is_stuck: bool = False


_Copies = list[tuple[LiveBody, BodyRow | None]]


class BodyGC:
    """Garbage collector of one engine, for all its shards."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._wakers: list[Future] = []
        self._is_stopping = False
        self._is_finishing = False
        self._has_passed = False  # all files have been looked at since the open
        self.pauses = 0  # checkpoints and checks at work: no file goes meanwhile
        self.quiet_s = QUIET_S

    def stop(self) -> None:
        """Make ``run`` return at its next turn; copies under way are given up."""
        self._is_stopping = True
        for waker in list(self._wakers):
            _done(waker)

    async def run(self) -> None:
        """Collect garbage until stopped."""
        while not self._is_stopping:
            for shard in self._state.hosted:
                try:
                    await self.step(shard)
                except LodeqError as error:  # of this shard; the next pass may succeed
                    self._note_failure(shard, error)
            self._has_passed = True
            await self.pause(LOOK_S)

    async def finish(self) -> None:
        """At a close before the first pass has ended: remove a few files that no row needs.

        So they do not pile up in a store that is only ever opened for moments. Others are looked at
        in each opening, for those at the front may be needed for long.
        """
        if self._has_passed:
            return
        self._is_finishing = True
        try:
            for shard in self._state.hosted:
                bodies = shard.bodies
                if bodies is None or bodies.is_replica or shard.coalescer.refused_write is not None:
                    continue
                if bodies.files.left_parts or bodies.files.numbers():
                    try:
                        await self._remove_some(shard, bodies)
                    except LodeqError:
                        _log_failure(shard)
        finally:
            self._is_finishing = False

    async def _remove_some(self, shard: Shard, bodies: Bodies) -> None:
        if not bodies.is_known:
            await self._begin(shard, bodies)
        numbers = bodies.files.numbers()
        first = (shard.next_epoch >> 40) * LOOK_FILES % max(1, len(numbers))
        removed = 0
        for number in (numbers[first:] + numbers[:first])[:LOOK_FILES]:
            if removed == SHARE_FILES or self._is_held(shard):
                return
            if number == bodies.files.current or bodies.is_busy(number):
                continue
            if next(live_bodies(shard, number), None) is None:
                with bodies.busy(number):
                    removed += await self._remove(shard, bodies, number)

    async def do_all(self) -> None:
        """Look at every file now, however lately something has died in it, and free what pays."""
        quiet_s, self.quiet_s = self.quiet_s, 0.0
        try:
            for shard in self._state.hosted:
                bodies, left = shard.bodies, -1
                while bodies is not None and not self._is_stopping:
                    was_busy = any(map(bodies.is_busy, bodies.to_look))  # a pass beside this one
                    await self.step(shard)
                    is_busy = any(map(bodies.is_busy, bodies.to_look))
                    if len(bodies.to_look) == left and not (was_busy or is_busy):
                        break
                    left = len(bodies.to_look)
                    await self._state.spawner.checkpoint()
        finally:
            self.quiet_s = quiet_s

    def _note_failure(self, shard: Shard, error: LodeqError) -> None:
        is_closing = self._is_stopping or self._state.is_closed
        if not (is_closing and isinstance(error, ClosedError)):
            _log_failure(shard)

    def _is_held(self, shard: Shard) -> bool:
        is_over = self._is_stopping and not self._is_finishing
        return is_over or self.pauses > 0 or not shard.coalescer.takes_local_writes

    async def _begin(self, shard: Shard, bodies: Bodies) -> None:
        """Have all files of a shard looked at, once it may be known whether any may go."""
        try:
            if bodies.files.left_parts:
                await self._state.spawner.run_in_thread(bodies.files.remove_left_parts)
            bodies.to_look.update(bodies.files.numbers())
            await self._check_sample(shard, bodies)
        except LodeqError as error:  # of this shard: with unreadable rows no file may go
            bodies.is_doubted = True
            self._note_failure(shard, error)
        bodies.is_known = True

    async def _check_sample(self, shard: Shard, bodies: Bodies) -> None:
        """Check a sample of tasks for missing payload rows; with one missing, no file may go."""
        rows = await Pages(self._state, shard, INDEX, INDEX_END, SAMPLE_ROWS).following()
        found = ((key, attempt(decode_index_row, raw)) for key, raw in rows)
        ids = [key[ID_AT:] for key, row in found if row is not None and row.flags & BODY_ROW]
        bodies_of = shard.overlay.multi_get([BODY + task_id for task_id in ids])
        without = [task_id for task_id, raw in zip(ids, bodies_of, strict=True) if raw is None]
        if any(has_body(raw) for raw in shard.overlay.multi_get([TASK + one for one in without])):
            bodies.is_doubted = True
            self._state.anomaly(
                f"shard {shard.index}: rows of payloads are missing; no body file is removed until "
                'the store is opened with recovery="salvage"'
            )

    async def step(self, shard: Shard) -> None:
        """Examine the files of a shard in which something has changed."""
        bodies, state = shard.bodies, self._state
        if bodies is not None and not bodies.is_known:  # also of one that has come here since
            await self._begin(shard, bodies)
        if bodies is None or not bodies.to_look:
            return
        looked = 0
        for number in sorted(bodies.to_look):  # there may be very many others: they are not listed
            if number == bodies.files.current or bodies.is_busy(number):
                continue
            if self._is_held(shard) or looked >= LOOK_FILES:
                return
            file = bodies.files.file(number)
            if file is None:
                if not bodies.files.is_known(number):  # of an upload that was broken off
                    bodies.to_look.discard(number)
                    bodies.died.discard(number)
                continue
            looked += 1
            if number in bodies.died:
                bodies.died.discard(number)
                bodies.died_mono[number] = state.clock.mono()
            with bodies.busy(number):
                try:
                    await self._collect(shard, bodies, file)
                except CorruptionError as error:  # what is live in it is unknown; other files go on
                    if number not in bodies.stuck:
                        bodies.stuck.add(number)
                        path = bodies.files.path(number)
                        state.anomaly(f"shard {shard.index}: {path!r}: {error}; the file is kept")
                    _mark_examined(bodies, number)

    async def _collect(self, shard: Shard, bodies: Bodies, file: BodyFile) -> None:
        """Remove, compact or punch one file if that pays; the caller keeps it busy."""
        state, number = self._state, file.number
        live = sum(record.size for record in live_bodies(shard, number))
        await state.spawner.checkpoint()
        if not live:
            await self._remove(shard, bodies, number)
        elif _is_dense(bodies, file, live) or number in bodies.stuck:
            _mark_examined(bodies, number)
        elif state.is_disk_low:
            await self._punch(shard, bodies, file)
        elif state.clock.mono() >= bodies.died_mono.get(number, -self.quiet_s) + self.quiet_s:
            with suppress(StorageFullError):  # no space for copies: leave it as it is
                await self.copy_out(shard, bodies, number)

    async def _remove(self, shard: Shard, bodies: Bodies, number: int) -> bool:
        """Remove a file that no row needs, after a sync: a power cut restores no row that does."""
        await self._rows_durable(shard)
        if self._is_held(shard) or bodies.is_doubted:
            return False
        if next(live_bodies(shard, number), None) is not None:
            return False
        bodies.files.forget(number)
        # Freeing the blocks of a large file takes long: not on the loop, nor in the sync thread.
        unlink = partial(bodies.files.unlink, number)
        cancelled = await await_shielded(partial(self._state.spawner.run_in_thread, unlink))
        bodies.to_look.discard(number)
        bodies.died_mono.pop(number, None)
        if cancelled is not None:
            raise cancelled
        return True

    # -- copying out ------------------------------------------------------------------------

    async def copy_out(self, shard: Shard, bodies: Bodies, number: int) -> CopiedOut:
        """Copy the live records of a sealed file, then remove it. A pause ends it before that.

        Raises:
            StorageFullError: no space for copies. Those already made stay.

        Durability: rows lead to durable bytes at any moment. Cancellation: between two slices;
        nothing is lost, and the next call goes on.
        """
        done, after = CopiedOut(), 0
        with bodies.busy(number):
            while not self._is_held(shard):
                records = live_slice(shard, number, after)
                if not records:
                    done.is_stuck |= not await self._remove(shard, bodies, number)
                    break
                after = records[-1].offset + 1
                with ExitStack() as targets:  # busy until the rows are queued
                    copies = [
                        (record, self._copy(shard, bodies, number, record, targets))
                        for record in records
                    ]
                    await self._sync(shard, bodies)
                    await self._move(shard, bodies, number, copies)
                whole = [record.size for record, copy in copies if copy is not None]
                done.records += len(whole)
                done.bytes += sum(whole)
                await self.pause(sum(record.size for record in records) / COPY_BYTES_S)
        done.is_stuck &= not self._is_held(shard)
        if done.is_stuck:
            bodies.stuck.add(number)
        return done

    def _copy(
        self, shard: Shard, bodies: Bodies, number: int, record: LiveBody, targets: ExitStack
    ) -> BodyRow | None:
        """Append a copy of a record to the current file; None if it cannot be read.

        Args:
            shard: the shard of both files.
            bodies: its body files.
            number: the file to copy from.
            record: the record, and the tasks that need it.
            targets: keeps the file with the copy busy until the stack is closed.
        """
        body = None
        for task_id in record.task_ids:
            row = attempt(decode_body, shard.overlay.get_sound(BODY + task_id))
            if row is not None and (row.file, row.offset) == (number, record.offset):
                try:
                    at = Location(number, record.offset, record.size)
                    body = bodies.files.read(at, row.record_id)
                except SegmentCorruptError:
                    pass
                break
        if row is None or body is None:
            self._state.anomaly(
                f"shard {shard.index}: {bodies.files.path(number)!r} at {record.offset}: "
                "a payload cannot be read; its file is kept"
            )
            return None
        copy = bodies.write(row.record_id, body)
        targets.enter_context(bodies.busy(copy.file))
        return copy

    async def _move(self, shard: Shard, bodies: Bodies, number: int, copies: _Copies) -> None:
        """Point rows at the copies, except those that have changed since."""
        state = self._state
        if not shard.coalescer.has_capacity:
            await state.backpressure(shard)
        while not shard.coalescer.takes_local_writes:
            if self._is_stopping or shard.coalescer.failure is not None:
                return
            await self.pause(WAIT_S)  # what is committed shows before long where it is kept
        # atomic section
        moving: dict[bytes, bytes] = {}
        group = shard.coalescer.begin_local(sum(256 * len(record.task_ids) for record, _ in copies))
        for record, copy in copies:
            if copy is None:
                continue
            bodies.to_look.add(copy.file)  # in case no row needs it any more
            for task_id in record.task_ids:
                row = attempt(decode_body, shard.overlay.get_sound(BODY + task_id))
                if row is None or (row.file, row.offset) != (number, record.offset):
                    continue  # ended since: it must not come back
                with group:
                    bodies.refer(group, task_id, copy)
                    old = body_at_key(number, record.offset, task_id)
                    group.ops.append((old, None))
                moving[task_id] = old
        bodies.moving.update(moving)
        moved = shard.coalescer.wait(group, is_durable=bodies.is_replica)
        shard.coalescer.commit_local(group)
        await moved
        for task_id, old in moving.items():
            if bodies.moving.get(task_id) == old:
                del bodies.moving[task_id]

    async def _punch(self, shard: Shard, bodies: Bodies, file: BodyFile) -> None:
        """Free the pages of dead records in place: there is no space for copies."""
        await self._rows_durable(shard)
        if self._is_held(shard):
            return
        at = bodies.files.data_offset(file.number)
        ends = [(record.offset, record.size) for record in live_bodies(shard, file.number)]
        for offset, size in [*ends, (file.bytes, 0)]:
            if offset > at:
                bodies.files.punch(file.number, at, offset - at)
                await self._state.spawner.checkpoint()
            at = offset + size
        _mark_examined(bodies, file.number)

    # -- waiting ---------------------------------------------------------------------------

    async def _rows_durable(self, shard: Shard) -> None:
        """Wait until what is there is durable: no power cut restores a row that needs a file."""
        durable = shard.coalescer.local_barrier()
        if durable is not None:
            await durable

    async def _sync(self, shard: Shard, bodies: Bodies) -> None:
        """Make copies durable. A failure poisons the shard: the next fsync would report success."""

        def failed(error: BaseException) -> BaseException:
            failure = CommitUnknownError(f"a sync of body files failed: {error}")
            shard.coalescer.fail(failure)
            return failure

        await on_shard_thread(self._state.spawner, shard, bodies.files.sync, failed)

    async def pause(self, seconds: float) -> None:
        """Sleep; ``stop`` ends it early."""
        if self._is_stopping:
            return
        state = self._state
        waker = state.spawner.future()
        self._wakers.append(waker)
        until = state.clock.mono() + seconds
        timer = state.clock.call_at(state.spawner, until, lambda: _done(waker))
        try:
            await waker
        finally:
            timer.cancel()
            self._wakers.remove(waker)


def _log_failure(shard: Shard) -> None:
    fields = {"event": "bodies_failed", "shard": shard.index}
    _log.warning("body files of shard %d", shard.index, exc_info=True, extra=fields)


def _mark_examined(bodies: Bodies, number: int) -> None:
    """Do not examine a file again, unless something has died in it meanwhile."""
    if number not in bodies.died:
        bodies.to_look.discard(number)


def _done(future: Future) -> None:
    if not future.done():
        future.set_result(None)


def _is_dense(bodies: Bodies, file: BodyFile, live: int) -> bool:
    """Whether at least two thirds of a file are live."""
    return 3 * live >= 2 * (file.bytes - bodies.files.data_offset(file.number))
