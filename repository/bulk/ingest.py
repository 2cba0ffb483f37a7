"""Ingesting loads: tasks that were staged outside the engine become rows of it, all at once.

A load goes through these steps; ``docs/ingest.md`` says what a crash leaves after each:

1. *Read.* Its manifest is read and compared with this store. Shards that have it already (a row
   that came in with the load says so) are left out.
2. *Verify.* Every staged file is checked, byte by byte, in a thread.
3. *Decide.* Its ids are compared with those of this store (``id_check``), its dedup keys with those
   held here (``conflicts``). With the policy ``error`` one that is held ends it: it is refused, and
   nothing is visible. Once no shard has a conflict, the load is decided.
4. *Take*, shard by shard: earlier commits are made durable, the memtables are flushed in a thread,
   and one atomic section moves the files in and updates the state in memory (``load``).
5. *Count.* The counters are compared with a recount, in slices.
6. *Conclude.* All of it is made durable, the outcome is written down, and the manifest removed.

The event loop does no more in one turn than 512 rows, or the move of one shard's files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Literal

from anyio import Lock

from ...coalescer.replicated import ReplicatedCoalescer
from ...engine.bulk.inbox import (
    Outcome,
    conclude,
    outcome,
    pending,
    read_pending,
    verify_files,
)
from ...engine.bulk.manifest import FAMILIES, Manifest, check_job
from ...engine.records.ingest import Ingested, decode_ingested
from ...engine.records.keyspace import INGESTED
from ...engine.records.rows import BodyRow
from ...engine.runtime.task_id import TaskId
from ...engine.store.port import IngestingStore
from ...errors import (
    ClosedError,
    CommitUnknownError,
    CorruptionError,
    DuplicateTaskError,
    FormatTooOldError,
    LodeqError,
    OpenError,
    RecordCorruptError,
    UsageError,
)
from ..background.run_to_completion import run_to_completion
from ..model.ingest_report import IngestedJob, IngestReport
from ..model.reports import ForgottenLoads
from ..model.values import Duration
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from .forget import forget_loads
from .id_check import any_may_be_held, find_held
from .load import Held, Ids, Load
from .manifest_check import RefusedError, check_manifest
from .recount import recount_load

__all__ = ["Ingester"]

FLUSHES_MAX: Final = 8  # then RocksDB flushes inside, a memtable that is nearly empty
RETRY_S: Final = 30.0
NAMED_MAX: Final = 3  # ids in a message
Flush = Callable[[Shard], Coroutine[Any, Any, None]]

_log = logging.getLogger(__name__)


class Ingester:
    """Takes loads into one engine. ``root``: the store's folder; None in memory: no loads."""

    def __init__(self, state: EngineState, store_id: bytes, root: str | None, flush: Flush) -> None:
        self._state = state
        self._store_id = store_id
        self._root = root
        self._flush = flush
        self._lock: Lock | None = None
        self._taking: Lock | None = None  # held while a load comes in, or shards are copied
        self._retry_mono = 0.0
        self._problem: str | None = None

    # -- requests ------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether a load waits that might be taken in now. Cheap."""
        state, root = self._state, self._root
        if root is None or state.is_closed or state.is_disk_low or self._why_not:
            return False
        try:
            return state.clock.mono() >= self._retry_mono and bool(pending(root))
        except LodeqError:
            return False  # the next call may succeed

    @property
    def problem(self) -> str | None:
        """Why a load is not taken in, for ``health()``, while any waits."""
        root = self._root
        try:
            return self._problem if self._problem and root and pending(root) else None
        except LodeqError:
            return self._problem

    @property
    def _why_not(self) -> str:
        """Why this engine takes no loads; empty: it does."""
        state = self._state
        if any(isinstance(shard.coalescer, ReplicatedCoalescer) for shard in state.hosted):
            return (
                "a replica takes no loads: its rows come through the replicated log. Send the "
                "tasks through a client instead: lodeq.connect(…), then enqueue_many"
            )
        if state.has_all:
            return ""
        return (
            f"this process has the shards {[shard.index for shard in state.hosted]} of "
            f"{len(state.shards)}, a load is for all: take it in while one process has the store"
        )

    async def run(self) -> None:
        """Take in all loads that wait, in the background; errors are logged."""
        try:
            await self.ingest(None)
        except ClosedError:
            pass
        except Exception as error:  # noqa: BLE001 - nobody awaits this task
            self._problem = str(error)
            self._retry_mono = self._state.clock.mono() + RETRY_S
            fields = {"event": "load_waits"}
            _log.warning("a load could not be taken in, it waits", exc_info=True, extra=fields)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Keep loads out, so that a copy of the shards has all of a load or nothing of it.

        A load that is half in, after a crash or a disk error, is completed first if possible.
        """
        root = self._root
        if root is not None and not self._why_not:
            for job in pending(root):
                try:
                    if self._has_part(job):
                        await self.ingest(job)
                except LodeqError:
                    fields = {"event": "load_in_part", "job": job}
                    _log.warning("a copy has a part of load %r", job, exc_info=True, extra=fields)
        async with self._gate():
            self._state.check()
            yield

    def _gate(self) -> Lock:
        if self._taking is None:
            self._taking = Lock()
        return self._taking

    async def ingest(self, job: str | None) -> IngestReport:
        """See ``Engine.ingest``."""
        state, root = self._state, self._inbox()
        if job is not None:
            check_job(job)
        if why_not := self._why_not:
            raise UsageError(why_not)
        state.check()
        state.check_intake()
        jobs = pending(root)
        if job is not None:
            jobs = [job] if job in jobs else []
        reports, failure = [], None
        for name in jobs:
            try:
                report = await self._take_alone(root, name)
            except CorruptionError as error:  # of this load: others need not wait for it
                failure = failure or error
                continue
            if report is not None:
                reports.append(report)
        if failure is not None:
            raise failure
        if job is None:
            self._problem = None
        elif not reports:
            reports.append(self._earlier_outcome(root, job))
        return IngestReport(tuple(reports))

    async def _take_alone(self, root: str, job: str) -> IngestedJob | None:
        """Take in one load, while no other comes in or is forgotten."""
        async with self._one_at_a_time():
            self._state.check()
            self._state.check_intake()
            return await self._take(root, job)

    def _one_at_a_time(self) -> Lock:
        if self._lock is None:
            self._lock = Lock()
        return self._lock

    def _inbox(self) -> str:
        """The store's folder."""
        if self._root is None:
            raise UsageError("an engine in memory has no inbox: enqueue_many instead")
        return self._root

    async def forget(self, older_than: Duration) -> ForgottenLoads:
        """See ``Engine.forget_loads``."""
        root = self._inbox()
        if not self._state.has_all:
            raise UsageError(self._why_not)
        async with self._one_at_a_time():
            return await forget_loads(self._state, root, older_than)

    def _earlier_outcome(self, root: str, job: str) -> IngestedJob:
        end = outcome(root, job)
        if end is None:
            raise UsageError(f"no load of job {job!r} is in the inbox of {root}: publish it first")
        facts = end.facts
        if end.state == "refused":
            return IngestedJob(job, "refused", reason=str(facts.get("reason", "")))
        return IngestedJob(
            job, "known", facts.get("tasks", 0), facts.get("skipped", 0), facts.get("replaced", 0)
        )

    # -- one load ------------------------------------------------------------------------

    async def _thread(self, fn: Callable[[], Any]) -> Any:
        result = await self._state.spawner.run_in_thread(fn)
        self._state.check()
        return result

    async def _end(self, root: str, job: str, end: Outcome) -> None:
        """Write the outcome. Cancelled, it waits: a late thread could remove the next manifest."""
        await run_to_completion(
            self._state.spawner, partial(conclude, root, job, end), lambda _: None
        )
        self._state.check()

    async def _take(self, root: str, job: str) -> IngestedJob | None:
        """Take in one load; None if it has gone meanwhile."""
        try:
            manifest = await self._thread(partial(read_pending, root, job))
        except FileNotFoundError:
            return None
        except (CorruptionError, OpenError) as error:
            return await self._refuse(root, job, error)
        marks = self._marks(manifest)
        try:
            check_manifest(self._state, self._store_id, manifest, is_decided=bool(marks))
        except RefusedError as error:
            return await self._refuse(root, job, error)
        if any(mark.digest != manifest.digest for mark in marks.values()):
            return await self._conclude(root, manifest)  # another load has come in as this job
        wanted = {mark.shard for mark in manifest.files}
        missing = [s for s in self._state.shards if s.index in wanted and s not in marks]
        load = Load(self._state, root, manifest, missing, is_decided=bool(marks))
        try:
            await self._verify(load)
            async with self._gate():
                self._state.check()
                await self._decide(load)
                for shard in missing:
                    await self._take_shard(load, shard)
                    await self._state.spawner.checkpoint()
                    self._state.check()
        except RefusedError as error:
            return await self._refuse(root, job, error)
        finally:
            load.unwatch()
        await recount_load(self._state, manifest)
        return await self._conclude(root, manifest)

    async def _refuse(self, root: str, job: str, why: LodeqError) -> IngestedJob:
        if self._has_part(job):
            before = await self._thread(partial(outcome, root, job))
            if before is None or before.state != "done":
                raise CorruptionError(
                    f"a part of load {job!r} is in already, so it cannot be refused ({why}): stage "
                    "the tasks of the missing shards as another job, then remove its manifest"
                ) from why
        fields = {"event": "load_refused", "job": job, "detail": str(why)}
        _log.warning("a load was refused: %r: %r", job, why, extra=fields)
        error = why.error if isinstance(why, RefusedError) else type(why).__name__
        facts = {
            "job": job,
            "state": "refused",
            "reason": str(why),
            "error": error,
            "refused_us": self._state.clock.wall_us(),
        }
        await self._end(root, job, Outcome("refused", facts))
        return IngestedJob(job, "refused", reason=str(why))

    def _has_part(self, job: str) -> bool:
        """Whether any shard has a load of this job."""
        return any(_mark_of(shard, job) is not None for shard in self._state.shards)

    def _marks(self, manifest: Manifest) -> dict[Shard, Ingested]:
        """Marks of the shards that have a load of this job."""
        marks = {}
        for shard in self._state.shards:
            raw = _mark_of(shard, manifest.job)
            if raw is not None:
                marks[shard] = _read_mark(shard, manifest.job, raw)
        return marks

    async def _verify(self, load: Load) -> None:
        """Do step 2, and the slow part of step 3."""
        manifest = load.manifest
        numbers = [shard.index for shard in load.missing]
        try:
            await self._thread(partial(verify_files, load.root, manifest, numbers))
            await self._thread(load.check_bodies)
            keys = await self._thread(load.read_keys)
            ids = await self._thread(load.read_ids)
        except CorruptionError as error:
            if load.is_decided:
                raise  # a part of it is visible: an operator has to look
            raise RefusedError(str(error), CorruptionError) from error
        except UsageError as error:
            raise RefusedError(str(error)) from error
        load.watch(keys, await self._check_ids(load, ids))
        for conflicts in load.conflicts.values():
            await conflicts.check_keys()

    async def _check_ids(self, load: Load, tables: Ids) -> Held:
        """Find the tasks whose id this store has; with the policy ``error`` they end the load."""
        state, job, found = self._state, load.manifest.job, {}
        for shard, of_shard in tables.items():
            if not load.manifest.has_ids:
                await self._check_ranges(load, shard)
                continue
            try:
                held = await find_held(state, shard, job, of_shard)
            except (UsageError, DuplicateTaskError) as error:
                raise RefusedError(str(error), type(error)) from error
            if held:
                found[shard] = held
        ids = [TaskId(task.task_id) for some in found.values() for task in some]
        if ids and load.policy == "error":
            raise RefusedError(
                f"this store has {len(ids)} of its ids already ({_named(ids)}): stage it with "
                "on_conflict='skip', or without those tasks, or without their ids",
                DuplicateTaskError,
            )
        if ids:
            fields = {"event": "load_ids_held", "job": job, "detail": _named(ids)}
            _log.warning(
                "%d tasks of load %r stay out: this store has their ids already: %r",
                len(ids),
                job,
                _named(ids),
                extra=fields,
            )
        return found

    async def _check_ranges(self, load: Load, shard: Shard) -> None:
        """Check a load that lists no ids, as releases before this one staged them."""
        files = [one for one in load.manifest.files if one.family == "t"]
        here = [one for one in files if one.shard == shard.index]
        if load.is_decided or not await any_may_be_held(
            self._state, shard, load.manifest.job, here
        ):
            return
        raise RefusedError(
            "the release that staged it did not list its ids, and this store may have one of them: "
            "stage it again, with this release",
            FormatTooOldError,
        )

    async def _decide(self, load: Load) -> None:
        """End step 3. Afterwards the load can no longer be refused."""
        state, manifest = self._state, load.manifest
        # the last turn is atomic: no shard has changed since its keys were checked
        while load.recheck():
            await state.spawner.checkpoint()
            state.check()
        held = sum(len(conflicts.dropped) for conflicts in load.conflicts.values())
        if held and manifest.conflict == "error" and not load.is_decided:
            raise RefusedError(
                f"{held} of its dedup keys are held by tasks of this store: stage it with "
                "on_conflict='skip' or 'replace', or without those tasks",
                DuplicateTaskError,
            )
        load.decide()

    async def _take_shard(self, load: Load, shard: Shard) -> None:
        """Do step 4, for one shard."""
        bodies = load.bodies(shard)
        if bodies is None:
            await self._take_rows(load, shard, {})
            return
        with bodies.busy():
            await self._thread(bodies.link)
            bodies.take_in()
            group = shard.coalescer.begin()
            with group:  # durable before the rows are: their numbers are never used again
                group.ops += bodies.note_ops()
            await self._take_rows(load, shard, bodies.rows)

    async def _take_rows(self, load: Load, shard: Shard, bodies: dict[bytes, BodyRow]) -> None:
        state, conflicts = self._state, load.conflicts[shard]
        for flushes in range(1 << 30):
            kept = await conflicts.read_kept()
            patch = await self._thread(load.patcher(shard, kept, bodies))
            await state.commit_barrier(shard, is_durable=True)
            await self._flush(shard)
            # atomic section
            state.check()
            if not shard.coalescer.takes_writes:
                raise shard.coalescer.refusal()
            shard.coalescer.seal_full(always=True)
            if conflicts.recheck():
                continue
            _check_readable(shard, load.manifest)
            if self._move(shard, [*load.paths(shard), *patch], may_flush=flushes >= FLUSHES_MAX):
                load.update_state(shard)
                return

    def _move(self, shard: Shard, paths: list[str], *, may_flush: bool) -> bool:
        """Move the files in: the moment in which the rows become visible."""
        store = shard.store
        if not isinstance(store, IngestingStore):
            raise UsageError(f"shard {shard.index} is on a store that takes no files")
        gone = [path for path in paths if not os.path.isfile(path)]
        if gone:
            raise CorruptionError(f"{gone[0]} is missing: stage the load again")
        shard.dedup_filter.restart()  # before: they may bring dedup entries
        try:
            return store.ingest(paths, may_flush=may_flush)
        except CommitUnknownError as error:
            shard.coalescer.fail(error)
            raise

    async def _conclude(self, root: str, manifest: Manifest) -> IngestedJob:
        """Do step 6."""
        engine_state = self._state
        for shard in engine_state.shards:
            await engine_state.commit_barrier(shard, is_durable=True)
        engine_state.check()
        marks = self._marks(manifest).values()
        tasks = sum(mark.tasks for mark in marks)
        skipped, replaced = sum(m.skipped for m in marks), sum(m.replaced for m in marks)
        before = outcome(root, manifest.job)
        is_known = before is not None and before.state == "done"
        is_known = is_known or any(mark.digest != manifest.digest for mark in marks)
        facts = {
            "job": manifest.job,
            "state": "done",
            "tasks": tasks,
            "skipped": skipped,
            "replaced": replaced,
            "digest": manifest.digest.hex(),
            "done_us": engine_state.clock.wall_us(),
        }
        await self._end(root, manifest.job, Outcome("done", facts))
        state: Literal["known", "done"] = "known" if is_known else "done"
        return IngestedJob(manifest.job, state, tasks, skipped, replaced)


def _named(ids: Sequence[TaskId]) -> str:
    """The first few, for a message."""
    more = ", …" if len(ids) > NAMED_MAX else ""
    return ", ".join(map(str, ids[:NAMED_MAX])) + more


def _mark_of(shard: Shard, job: str) -> bytes | None:
    """The row that says that a shard has a load, or None.

    Raises:
        CorruptionError: it cannot be read; the load waits.
    """
    try:
        return shard.store.get(INGESTED + os.fsencode(job))
    except CorruptionError as error:
        raise CorruptionError(
            f"whether shard {shard.index} has load {job!r} cannot be read ({error}): close the "
            'store, and open it with recovery="salvage"; the load waits'
        ) from error


def _read_mark(shard: Shard, job: str, raw: bytes) -> Ingested:
    try:
        return decode_ingested(raw)
    except RecordCorruptError as error:
        raise CorruptionError(
            f"shard {shard.index} has load {job!r}, but the row that says so is damaged ({error}): "
            "stage the tasks of shards that have not got it as another job, then remove its "
            "manifest; until then it waits"
        ) from error


def _check_readable(shard: Shard, manifest: Manifest) -> None:
    """Read the rows around each file, as RocksDB will: damage met there would poison the shard.

    Raises:
        CorruptionError: they are damaged; nothing was done, and the load waits.
    """
    for file in manifest.files:
        if file.shard == shard.index and file.family in FAMILIES:
            try:
                shard.store.scan_part(file.first, file.last + b"\0", 1)
            except CorruptionError as error:
                raise CorruptionError(
                    f"load {manifest.job!r} has rows beside a damaged block ({error}): close the "
                    'store, and open it with recovery="salvage"; the load waits'
                ) from error
