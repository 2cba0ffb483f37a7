"""The runtime of an engine: start, health, fsync, verify, checkpoint, close."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from ...coalescer.replicator import KnowsWhy, Replicator
from ...coalescer.shard_status import FAILED
from ...coalescer.write_pause import writes_paused
from ...engine.files import ballast
from ...engine.files.held_folder import HeldFolder, Place
from ...engine.recovery.checkpoint import (
    abandon_checkpoint,
    begin_checkpoint,
    checkpoint_bodies,
    checkpoint_shard,
    write_manifest,
)
from ...engine.recovery.decide import ADVICE
from ...engine.recovery.health import disk_free_bytes, has_inodes, read_probe
from ...engine.recovery.open_shard import OpenStore
from ...engine.recovery.verify import verify_slices
from ...engine.runtime.clock import DrivingClock, TimerHandle
from ...engine.runtime.event_loop import TaskHandle
from ...engine.runtime.shielded import ShieldedTask
from ...engine.store.port import PlacedStore
from ...engine.store.rocks_errors import is_damage
from ...engine.store.walk import find_splits
from ...engine.values import Finding, Health, ShardMark
from ...errors import (
    ClosedError,
    CommitUnknownError,
    LodeqError,
    NotLeaderError,
    StorageError,
    StoragePoisonedError,
    UsageError,
)
from ..background.body_checks import check_bodies
from ..background.body_gc import BodyGC
from ..background.body_liveness import absent_files
from ..background.event_publisher import EventPublisher
from ..background.leadership import Leadership
from ..background.reaper import Reaper
from ..background.run_to_completion import run_to_completion
from ..bulk.ingest import Ingester
from ..maintenance.snapshots import SnapshotScheduler
from ..model.reports import VerifyReport
from ..state import engine_log
from ..state.engine_state import DISK_LOW, NO_INODES, EngineState
from ..state.queue_state import Shard
from ..state.turns import in_slices
from ..state.waits import on_shard_thread
from ..state.worker_register import WorkerRegister
from ..tasks.lease_rows import save_ends
from ..tasks.operators.queue_settings import save_starts
from ..workflows.build import the_joins
from ..workflows.other_leaders import OtherLeaders
from .cluster_view import NamesMembers
from .serve_options import RunningServer
from .statistics import unreadable_of

__all__ = ["EngineRuntime"]

DISK_FREE_BYTES_MIN = 2 * (64 << 20)  # two write buffers: ending tasks needs space, too
WATCH_S = 1.0
REAPER_LAG_S_MAX = 10.0


class EngineRuntime:
    """Background tasks of an engine, and operations on the whole store."""

    def __init__(self, state: EngineState, opened: OpenStore, reaper: Reaper | None) -> None:
        self.state = state
        self.opened = opened
        self.reaper = reaper
        self.body_gc = BodyGC(state)
        self.snapshots = SnapshotScheduler(
            state,
            opened,
            copy_shards=self.copy_shards,
            journal_positions=self.journal_positions,
        )
        self.workers = WorkerRegister(state.clock)
        self.replicator: Replicator | None = None
        self.members: NamesMembers | None = None  # who knows the other nodes or processes
        self.event_publisher: EventPublisher | None = None  # with a lifecycle journal
        self.ingester = Ingester(state, opened.store_id, opened.path, self._flush)
        self.watches_inbox = False
        self._ingest_task: TaskHandle | None = None
        self._is_ingesting = False
        self._body_gc_task: TaskHandle | None = None
        self._reaper_task: TaskHandle | None = None
        self._runs_reaper = False  # as a task: no clock moved by hand calls it
        self._reaper_end: str | None = None  # why it ended although nobody stopped it
        self._watch: TimerHandle | None = None
        self._folder: HeldFolder | None = None
        self._driven: TimerHandle | None = None
        self._ballast_bytes = opened.ballast_bytes
        self._ballast_task: TaskHandle | None = None
        self._is_stopping = False
        self._closing = ShieldedTask(state.spawner, self._tear_down, "lodeq-close")
        self._is_torn_down = False
        self.server: RunningServer | None = None  # that others reach the store through
        self.leadership: Leadership | None = None  # of a replica
        self.other_leaders = OtherLeaders(state, the_joins(state))

    # -- running -----------------------------------------------------------------------

    def forget(self, shard: Shard) -> None:
        """The shard is not here any more."""
        if self.event_publisher is not None:
            self.event_publisher.drop(shard)
        if self.reaper is not None:
            self.reaper.forget(shard)

    def start(self) -> None:
        """Start the background tasks."""
        state, reaper = self.state, self.reaper
        if reaper is not None and isinstance(state.clock, DrivingClock):
            self._driven = state.clock.drive(reaper.catch_up)
        elif reaper is not None:
            self._runs_reaper = True
            self._reaper_task = state.spawner.spawn(
                partial(self._run_reaper, reaper), "lodeq-reaper"
            )
        # On disk every shard has body files, and one may come here later.
        if self.opened.path is not None or any(shard.bodies is not None for shard in state.hosted):
            self._body_gc_task = state.spawner.spawn(self.body_gc.run, "lodeq-bodies")
        if self.event_publisher is not None:
            self.event_publisher.start()
        self.snapshots.start()
        if self.opened.path is not None:
            with suppress(OSError):  # then it is not watched
                self._folder = HeldFolder(self.opened.path)
        self._watch_disk()

    async def _run_reaper(self, reaper: Reaper) -> None:
        try:
            await reaper.run()
        except BaseException as error:  # also if something cancels all tasks
            if not self.state.is_closed:
                self._reaper_end = repr(error)
            raise

    def _watch_disk(self) -> None:
        state = self.state
        if self.opened.path is not None and not state.is_closed:
            self._note_disk(self.opened.path)
            is_there = state.not_there is None
            if is_there:
                self._keep_ballast(self.opened.path)
            if self.watches_inbox and not self._is_ingesting and self.ingester.is_due:
                self._is_ingesting = True
                self._ingest_task = state.spawner.spawn(self._ingest, "lodeq-inbox")
            self._watch = state.spawner.call_later(WATCH_S, self._watch_disk)

    def _note_disk(self, root: str) -> None:
        """See whether there is room, and the store; log each change of that once."""
        state = self.state
        try:
            free: int | None = disk_free_bytes(root)
        except StorageError:
            free = None
        has_files = has_inodes(root)
        is_low = free is None or free < DISK_FREE_BYTES_MIN or not has_files
        problem = DISK_LOW if has_files else NO_INODES
        is_there = self._is_there(root)
        if state.note_disk(is_low=is_low or not is_there, problem=problem):
            if state.not_there is not None:
                engine_log.disk_low(root, state.not_there, free)
            elif is_low:
                engine_log.disk_low(root, problem, free)
            else:
                engine_log.disk_has_room(root, free)

    def _is_there(self, root: str) -> bool:
        """Whether the store is at its path. Where another one is, all shards are poisoned.

        New files are made by path: they would replace those of the other store.
        """
        place = Place.SAME if self._folder is None else self._folder.look()
        self.state.not_there = None
        if place is Place.NOTHING:
            self.state.not_there = f"{root} was removed, or moved away while it is open"
        elif place is Place.ANOTHER:
            self.state.not_there = f"{root} was moved away, and another folder is in its place"
            error = StorageError(f"{self.state.not_there}: end this process, and open the store")
            for shard in self.state.hosted:
                if shard.coalescer.failure is None:
                    shard.coalescer.fail(error)
                if isinstance(shard.store, PlacedStore):
                    shard.store.displace()
        return place is Place.SAME

    def may_reopen(self, failure: LodeqError) -> bool:
        """Whether a new process may mend what has poisoned a shard.

        Not where a table is damaged, which the next compaction meets again, and not where the store
        is not at its path: the open would find another one, or make it.
        """
        is_there = self._folder is None or self._folder.look() is Place.SAME
        return is_there and not is_damage(failure)

    def _keep_ballast(self, root: str) -> None:
        """Keep a ballast file, which a recovery can free. Made in a thread: it may be slow."""
        if self._ballast_task is not None or not self._ballast_bytes:
            return
        try:
            size = ballast.due_bytes(root, self._ballast_bytes, floor=DISK_FREE_BYTES_MIN)
        except OSError:
            return  # others report the disk's error
        if size:
            make = partial(self._make_ballast, root, size)
            self._ballast_task = self.state.spawner.spawn(make, "lodeq-ballast")

    async def _make_ballast(self, root: str, size: int) -> None:
        make = partial(ballast.make, root, size, is_stopped=lambda: self._is_stopping)
        try:
            await self.state.spawner.run_in_thread(make)
        except OSError as exc:
            self._ballast_bytes = 0  # not tried again by this process
            engine_log.ballast_failed(root, exc.strerror or repr(exc))
        finally:
            self._ballast_task = None

    async def _ingest(self) -> None:
        try:
            await self.ingester.run()
        finally:
            self._is_ingesting = False

    def health(self) -> Health:
        """See ``Engine.health``."""
        state = self.state
        reasons = []
        for shard in state.hosted:
            # A shard that is led elsewhere is healthy.
            failure = shard.coalescer.failure
            if failure is not None:
                advice = f": a table is damaged; close, then {ADVICE}"
                reasons.append(
                    f"shard {shard.index} is poisoned: {failure}"
                    f"{advice if is_damage(failure) else ''}"
                )
            elif shard.coalescer.refused_write is not None:
                reasons.append(f"shard {shard.index} is stalled: {shard.coalescer.refused_write}")
            reasons.extend(f"shard {shard.index}: {r}" for r in read_probe(shard.store).reasons)
            reasons.extend(unreadable_of(shard))
            reasons.extend(absent_files(shard))
        if isinstance(self.replicator, KnowsWhy):
            reasons.extend(self.replicator.failures())
        if state.log_full is not None:
            reasons.append(state.log_full)
        elif state.not_there is not None:
            reasons.append(f"{state.not_there}: enqueues are refused")
        elif state.is_disk_low:
            reasons.append(f"{state.disk_problem}: enqueues are refused")
        if self._reaper_end is not None:
            reasons.append(f"the reaper has ended, nothing falls due any more: {self._reaper_end}")
        lag = state.deadlines.lag_s(state.clock.mono(), state.clock.wall_us() // 1000)
        if self.reaper is not None and lag > REAPER_LAG_S_MAX:
            reasons.append(f"the reaper is {lag:.1f} s late")
        if self.event_publisher is not None and self.event_publisher.problem is not None:
            reasons.append(f"the lifecycle journal is not written: {self.event_publisher.problem}")
        if self.ingester.problem is not None:
            reasons.append(f"a load waits in the inbox: {self.ingester.problem}")
        if self.server is not None and self.server.problem is not None:
            reasons.append(f"the store is not served any more: {self.server.problem}")
        if self.server is not None and self.server.warning is not None:
            reasons.append(self.server.warning)
        reasons.extend(state.flows.problems())
        reasons.extend(state.all_anomalies())
        return Health.of(*reasons)

    async def fsync(self) -> None:
        """See ``Engine.fsync``."""
        for shard in self.state.hosted:
            failure = shard.coalescer.failure  # a follower has none: it syncs what it has applied
            if (
                failure is not None
                and shard.coalescer.durable_number < shard.coalescer.applied_number
            ):
                raise StoragePoisonedError(
                    f"shard {shard.index} is poisoned ({failure}): its last commits may not be "
                    "durable; close the engine, look at the disk, reopen it"
                ) from failure
            await self.state.commit_barrier(shard, is_durable=True, is_local=True)

    async def verify(self) -> VerifyReport:
        """See ``Engine.verify``."""
        self.body_gc.pauses += 1  # before any snapshot: its rows' payloads must stay
        try:
            findings = [found for shard in self.state.hosted for found in await self._check(shard)]
        finally:
            self.body_gc.pauses -= 1
        return VerifyReport(not findings, tuple(findings))

    async def _check(self, shard: Shard) -> list[Finding]:
        """Check the rows of a shard, slice by slice, then its payloads; none of one that goes."""
        try:
            return await self._findings(shard)
        except (ClosedError, NotLeaderError):
            if self.state.is_closed or self.state.shards[shard.index] is shard:
                raise
            return []

    async def _findings(self, shard: Shard) -> list[Finding]:
        state = self.state
        await state.commit_barrier(shard, is_local=True)
        splits = await in_slices(state, find_splits(shard.store))
        view = shard.store.snapshot(splits)
        try:
            slices = verify_slices(view, shard.index, len(state.shards))
            findings = await in_slices(state, slices)
            if shard.bodies is not None:
                shard.bodies.is_doubted |= any(f.kind == "body" for f in findings)
            return findings + await check_bodies(state, shard, view)
        finally:
            view.close()

    async def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """See ``Engine.checkpoint``."""
        state = self.state
        if self.opened.path is None:
            raise UsageError("an engine in memory has nothing to checkpoint")
        if not state.hosted:
            raise UsageError("this process has no shard, so there is nothing to checkpoint")
        for shard in state.hosted:
            await state.commit_barrier(shard, is_local=True)
        work = begin_checkpoint(path, store=self.opened.path)
        try:
            marks = await self.copy_shards(work)
            write = partial(
                write_manifest,
                work,
                store_id=self.opened.store_id,
                shards=marks,
                total=len(state.shards),
            )
            await run_to_completion(state.spawner, write, abandon_checkpoint)
        except BaseException:
            abandon_checkpoint(work)
            raise

    def journal_positions(self) -> Mapping[str, int]:
        """The next sequence number of the lifecycle journal, by its name; empty without one."""
        return self.event_publisher.next_numbers if self.event_publisher is not None else {}

    async def copy_shards(self, work: str) -> list[ShardMark]:
        """Link every shard that is here into the folder ``work``; returns how far each copy goes.

        The event loop runs meanwhile, except during the linking itself. A shard is flushed, then
        takes no writes while the rest is flushed and linked: a checkpoint would otherwise flush it
        with the GIL held.
        """
        async with self.ingester.paused():
            self.body_gc.pauses += 1
            try:
                return [await self._copy_shard(work, shard) for shard in self.state.hosted]
            finally:
                self.body_gc.pauses -= 1

    async def _copy_shard(self, work: str, shard: Shard) -> ShardMark:
        await self._flush(shard)
        with writes_paused(shard.coalescer):
            await self._flush(shard)
            names = shard.bodies.files.seal_all() if shard.bodies is not None else []
            checkpoint_shard(shard.store, work, shard.index)
            number = shard.coalescer.applied_number
        if shard.bodies is not None:
            add = partial(checkpoint_bodies, shard.bodies.files.folder, names, work, shard.index)
            await self.state.spawner.run_in_thread(add)
        return ShardMark(shard.index, number >> 40, number)

    async def _flush(self, shard: Shard) -> None:
        """Flush a shard in its thread: a checkpoint would do it with the GIL held."""
        if shard.coalescer.failure is None:
            try:
                await on_shard_thread(self.state.spawner, shard, shard.store.flush)
                return
            except CommitUnknownError as error:  # RocksDB takes no more writes either
                shard.coalescer.fail(error)
        raise shard.coalescer.refusal()

    # -- closing -----------------------------------------------------------------------

    @property
    def is_torn_down(self) -> bool:
        """Whether the stores are closed, so that nothing can run any more."""
        return self._is_torn_down

    async def close(self) -> None:
        """See ``Engine.close``. It runs in its own task, which a cancelled caller does not stop."""
        state = self.state
        if self._is_torn_down:
            return
        state.check_loop()
        if self.server is None:
            state.is_closed = True
        await self._closing.wait()

    async def _tear_down(self) -> None:
        """Close everything. If cancelled it is called again, so each step must work twice."""
        state = self.state
        if self.leadership is not None:
            await self.leadership.closing()
        if self.server is not None:  # the requests that it still answers need an engine
            await self.server.close()
            state.is_closed = True
        await self._stop_background()
        why = "the engine was closed while this call waited"
        state.waiters.fail_all(ClosedError(why))
        state.fail_dead_waiters(lambda: ClosedError(why))
        state.queue_limits.close()
        with suppress(LodeqError):  # then the next process knows of no starts
            save_starts(state)
        if self.leadership is None:
            with suppress(LodeqError):  # then leases start again in full
                await save_ends(state)
        for futures in list(state.result_waiters.values()):
            for future in futures:
                if not future.done():
                    future.set_exception(ClosedError(why))
        state.result_waiters.clear()
        for shard in state.hosted:  # the journal waits for them, too
            shard.coalescer.limit_refusals()
        await self._finish_upkeep()
        if self.event_publisher is not None:
            await self.event_publisher.finish()
        for shard in state.hosted:
            await shard.coalescer.drain()
        await state.thread_reads.finish()
        # Where a shard could not write all to the last, ends of leases may be missing, too.
        self.opened.is_sound = not any(
            shard.coalescer.status == FAILED or shard.coalescer.is_abandoned
            for shard in state.hosted
        )
        await state.spawner.run_in_thread(self.opened.close)
        for shard in state.hosted:
            if shard.bodies is not None:
                shard.bodies.files.close()
        if self._folder is not None:
            self._folder.close()
        self._is_torn_down = True
        if self.opened.path is not None and self.opened.lock is not None:
            engine_log.closed(self.opened.path)
        if self.leadership is not None:
            await self.leadership.closed()
        await state.spawner.aclose()

    async def _finish_upkeep(self) -> None:
        """Do a bounded share of what is due, if the engine was open too shortly for any."""
        if self.reaper is not None and self.leadership is None:
            if self._runs_reaper:
                await self.reaper.finish()
            await self.body_gc.finish()

    async def upkeep(self) -> None:
        """Do all upkeep that is due now, rather than bit by bit beside other work."""
        if self.reaper is not None:
            await self.reaper.do_all()
        await self.body_gc.do_all()

    async def _stop_background(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._is_stopping = True
        if self._ballast_task is not None:
            await self._ballast_task.join()  # not cancelled: its thread would go on writing
        await self.snapshots.stop()
        await self.other_leaders.close()
        if self._ingest_task is not None:
            self._ingest_task.cancel()  # at any step: the next open goes on with the load
            await self._ingest_task.join()
            self._ingest_task = None
        self.body_gc.stop()  # an unfinished copy is garbage, nothing worse
        if self._body_gc_task is not None:
            self._body_gc_task.cancel()
            await self._body_gc_task.join()
            self._body_gc_task = None
        if self.reaper is not None:
            self.reaper.stop()
        if self._driven is not None:
            self._driven.cancel()
            self._driven = None
        if self._reaper_task is not None:
            # Not awaited to its next pause: it may be waiting for a stalled store.
            self._reaper_task.cancel()
            await self._reaper_task.join()
            self._reaper_task = None
