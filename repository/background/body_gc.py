"""Gives the space of dead payloads back, in the background.

A body file is looked at when something in it has died, and once after open. What is live in it is
counted from its ``o/`` rows: no file is ever read to find that out. A sealed file without any is
removed; one of which less than two thirds are live is *compacted*, when nothing has died in it for
a while: its live records are copied to the current file, and their rows moved, a slice at a time.
(At a half, every second payload that goes would leave every second file as it is.) So files of the
older format go as well, and what is copied out of them is in the newer one; ``migration`` does the
same to all that are left of them, whatever is live.

Five rules make that safe, whatever happens in between (``tests/segments/test_body_races.py`` has a
test for each race):

- A record is copied, the copy is synced, and only then rows are moved: whatever a power cut takes
  back, a row leads to bytes that are on the disk.
- Rows are moved in one atomic section, each compared with what it says now. So nothing that ended
  meanwhile comes back.
- A file goes only after a sync of the log: after a power cut no row can come back that needs it.
- The current file is left alone, and no file is ever changed but for what is dead in it.
- A file is *busy* while somebody removes it, punches it or copies out of it, and from a copy into
  it until the rows that lead there are queued: till then nothing says that the copy is needed. What
  is busy, nobody else touches.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from ...engine.records.frame import attempt
from ...engine.records.keyspace import BODY, INDEX, INDEX_END, body_at_key
from ...engine.records.rows import BODY_ROW, BodyRow, decode_body, decode_index_row
from ...engine.runtime.event_loop import Future
from ...errors import (
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
from ..state.waits import await_shielded, on_shard_thread
from .body_liveness import LiveBody, live_bodies, live_slice

__all__ = ["LOOK_S", "BodyGC", "CopiedOut"]

LOOK_S = 1.0
QUIET_S = 15.0  # since the last death in a file: it may well go as a whole
COPY_BYTES_S: Final = 32 << 20
LOOK_FILES: Final = 64  # in one look
SAMPLE_ROWS: Final = 1024

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class CopiedOut:
    """What became of a file. ``is_stuck``: it is kept, for something in it cannot be read."""

    records: int = 0
    bytes: int = 0
    is_stuck: bool = False


_Copies = list[tuple[LiveBody, BodyRow | None]]


class BodyGC:
    """One for all shards of an engine."""

    def __init__(self, core: EngineState) -> None:
        self._core = core
        self._wakers: set[Future] = set()
        self._is_stopping = False
        self._died_mono: dict[tuple[int, int], float] = {}
        self._stuck: set[tuple[int, int]] = set()  # files with records that cannot be read
        self.pauses = 0  # checkpoints and checks at work: no file goes meanwhile

    def stop(self) -> None:
        """Let ``run`` return at its next turn: no copy is waited for."""
        self._is_stopping = True
        for waker in list(self._wakers):
            _done(waker)

    async def run(self) -> None:
        """Until stopped."""
        for shard in self._core.shards:
            if shard.bodies is not None:
                try:
                    shard.bodies.to_look.update(file.number for file in shard.bodies.files.files())
                    await self._look_for_rows(shard, shard.bodies)
                except LodeqError:  # of this shard: nothing goes while so much cannot be read
                    shard.bodies.is_doubted = True
                    _tell(shard)
        while not self._is_stopping:
            await self.pause(LOOK_S)
            for shard in self._core.shards:
                try:
                    await self.step(shard)
                except LodeqError:  # of this shard; its next look may find it healed
                    _tell(shard)

    def _is_held(self, shard: Shard) -> bool:
        return self._is_stopping or self.pauses > 0 or not shard.co.takes_writes

    async def _look_for_rows(self, shard: Shard, bodies: Bodies) -> None:
        """A sample: with many rows lost, no file of those that they led to may go."""
        rows = await Pages(self._core, shard, INDEX, INDEX_END, SAMPLE_ROWS).following()
        found = ((key, attempt(decode_index_row, raw)) for key, raw in rows)
        keys = [BODY + key[-16:] for key, row in found if row is not None and row.flags & BODY_ROW]
        if None in shard.overlay.multi_get(keys):
            bodies.is_doubted = True
            self._core.anomaly(
                f"shard {shard.index}: rows of payloads are missing; no body file is removed until "
                'the store is opened with recovery="salvage"'
            )

    async def step(self, shard: Shard) -> None:
        """A look at files of a shard that have changed."""
        bodies, core = shard.bodies, self._core
        if bodies is None or not bodies.to_look:
            return
        looked = 0
        for file in bodies.files.files():
            number, at = file.number, (shard.index, file.number)
            if number not in bodies.to_look or number == bodies.files.current:
                continue
            if bodies.is_busy(number):
                continue
            if self._is_held(shard) or looked >= LOOK_FILES:
                return
            looked += 1
            if number in bodies.died:
                bodies.died.discard(number)
                self._died_mono[at] = core.clock.mono()
            with bodies.busy(number):
                try:
                    await self._see_to(shard, bodies, file)
                except CorruptionError as error:  # nobody knows what lives in it; others go on
                    if at not in self._stuck:
                        self._stuck.add(at)
                        path = bodies.files.path(number)
                        core.anomaly(f"shard {shard.index}: {path!r}: {error}; the file is kept")
                    _looked(bodies, number)

    async def _see_to(self, shard: Shard, bodies: Bodies, file: BodyFile) -> None:
        """One file; the caller keeps it busy."""
        core, number, at = self._core, file.number, (shard.index, file.number)
        live = sum(record.size for record in live_bodies(shard, number))
        await core.spawner.checkpoint()
        if not live:
            await self._remove(shard, bodies, number)
        elif _is_dense(bodies, file, live) or at in self._stuck:
            _looked(bodies, number)
        elif core.is_disk_low:
            await self._punch(shard, bodies, file)
        elif core.clock.mono() >= self._died_mono.get(at, -QUIET_S) + QUIET_S:
            with suppress(StorageFullError):  # there is no room for copies: leave it as it is
                await self.copy_out(shard, bodies, number)

    async def _remove(self, shard: Shard, bodies: Bodies, number: int) -> bool:
        """A file that no row needs; after a sync, so that none comes back that does."""
        await self._core.settled(shard, is_durable=True)
        if self._is_held(shard) or bodies.is_doubted:
            return False
        if next(live_bodies(shard, number), None) is not None:
            return False
        bodies.files.forget(number)
        # Freeing the blocks of a large file takes long; not on the loop, nor before anybody's sync.
        unlink = partial(bodies.files.unlink, number)
        cancelled = await await_shielded(partial(self._core.spawner.run_in_thread, unlink))
        bodies.to_look.discard(number)
        self._died_mono.pop((shard.index, number), None)
        if cancelled is not None:
            raise cancelled
        return True

    # -- copying out ------------------------------------------------------------------------

    async def copy_out(self, shard: Shard, bodies: Bodies, number: int) -> CopiedOut:
        """Copy what is live in a sealed file, then remove it. Held up, it ends before that.

        Raises:
            StorageFullError: there is no room for copies. What has been copied counts.

        Durability: rows lead to what is durable, at any moment. Cancellation: between two slices;
        nothing is lost, and the next time goes on.
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
            self._stuck.add((shard.index, number))
        return done

    def _copy(
        self, shard: Shard, bodies: Bodies, number: int, record: LiveBody, targets: ExitStack
    ) -> BodyRow | None:
        """Write a record again, under the id it bears; None: it cannot be read.

        Args:
            targets: keeps the file busy into which it was written.
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
            self._core.anomaly(
                f"shard {shard.index}: {bodies.files.path(number)!r} at {record.offset}: "
                "a payload cannot be read; its file is kept"
            )
            return None
        copy = bodies.write(row.record_id, body)
        targets.enter_context(bodies.busy(copy.file))
        return copy

    async def _move(self, shard: Shard, bodies: Bodies, number: int, copies: _Copies) -> None:
        """Point the rows to the copies: those that still say what they said."""
        core = self._core
        if not shard.co.has_room:
            await core.room(shard)
        if not shard.co.takes_writes:
            return
        # atomic section
        group = shard.co.begin(sum(256 * len(record.task_ids) for record, _ in copies))
        for record, copy in copies:
            if copy is None:
                continue
            bodies.to_look.add(copy.file)  # should nobody need it any more
            for task_id in record.task_ids:
                row = attempt(decode_body, shard.overlay.get_sound(BODY + task_id))
                if row is None or (row.file, row.offset) != (number, record.offset):
                    continue  # over since: it must not come back
                with group:
                    bodies.refer(group, task_id, copy)
                    group.ops.append((body_at_key(number, record.offset, task_id), None))
        await shard.co.wait(group)

    async def _punch(self, shard: Shard, bodies: Bodies, file: BodyFile) -> None:
        """There is no room for copies: give the pages of what is dead back where they are."""
        await self._core.settled(shard, is_durable=True)
        if self._is_held(shard):
            return
        at = bodies.files.data_offset(file.number)
        ends = [(record.offset, record.size) for record in live_bodies(shard, file.number)]
        for offset, size in [*ends, (file.bytes, 0)]:
            if offset > at:
                bodies.files.punch(file.number, at, offset - at)
                await self._core.spawner.checkpoint()
            at = offset + size
        _looked(bodies, file.number)

    # -- waiting ---------------------------------------------------------------------------

    async def _sync(self, shard: Shard, bodies: Bodies) -> None:
        """What was copied is durable; a failure is one of the shard: the next sync tells none."""

        def failed(error: BaseException) -> BaseException:
            failure = CommitUnknownError(f"a sync of body files failed: {error}")
            shard.co.fail(failure)
            return failure

        await on_shard_thread(self._core.spawner, shard, bodies.files.sync, failed)

    async def pause(self, seconds: float) -> None:
        """Let time pass; ``stop`` ends it."""
        if self._is_stopping:
            return
        core = self._core
        waker = core.spawner.future()
        self._wakers.add(waker)
        until = core.clock.mono() + seconds
        timer = core.clock.call_at(core.spawner, until, lambda: _done(waker))
        try:
            await waker
        finally:
            timer.cancel()
            self._wakers.discard(waker)


def _tell(shard: Shard) -> None:
    fields = {"event": "bodies_failed", "shard": shard.index}
    _log.warning("body files of shard %d", shard.index, exc_info=True, extra=fields)


def _looked(bodies: Bodies, number: int) -> None:
    """No need to look again, unless something in it has died during the look."""
    if number not in bodies.died:
        bodies.to_look.discard(number)


def _done(future: Future) -> None:
    if not future.done():
        future.set_result(None)


def _is_dense(bodies: Bodies, file: BodyFile, live: int) -> bool:
    """Whether two thirds of a file are live."""
    return 3 * live >= 2 * (file.bytes - bodies.files.data_offset(file.number))
