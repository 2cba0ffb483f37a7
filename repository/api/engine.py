"""The engine as users hold it: ``Engine`` on its event loop, ``ThreadEngine`` for other threads.

Here is everything that spans queues and shards; what concerns one queue is in ``queue``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ...engine.bulk.snapshot_lease import release_snapshot
from ...engine.bulk.snapshots import list_snapshots
from ...engine.runtime.task_id import TaskId
from ...engine.values import Snapshot
from ...errors import ClosedError, LeaseLostError, LodeqError, UsageError
from ..background.body_migration import migrate_bodies
from ..background.run_to_completion import run_to_completion
from ..bulk.purge import purge_archived
from ..model.arguments import SNAPSHOT_S, age_s, duration_s, length_s, listed, names_of
from ..model.encoded_tasks import TaskTemplate
from ..model.ingest_report import IngestReport
from ..model.reports import ForgottenLoads, MigrationReport, PurgeReport, VerifyReport
from ..model.values import (
    AllTenants,
    AnyId,
    Backoff,
    Codec,
    Duration,
    EngineStats,
    NewTask,
    QueueStats,
    Receipt,
    Result,
    Task,
)
from ..state.engine_state import EngineState
from ..tasks import admin, lease_operations, lookup
from ..tasks.claim import claim
from ..tasks.enqueue import check_durable, enqueue_many
from ..tasks.lease import Lease
from .queue import LEASE_S, Queue, claim_request, encode_tasks
from .runtime import EngineRuntime
from .statistics import queues_of, stats_of, sums_of
from .thread_calls import ThreadCalls, ThreadTwin, blocking
from .thread_leases import ThreadLease
from .thread_queue import ThreadQueue

if TYPE_CHECKING:
    from ...engine.values import Health

__all__ = ["Engine", "ThreadEngine", "runtime_of"]


class Engine:
    """An open store. Get one with ``async with lodeq.open(path) as engine:``.

    It belongs to the event loop (and thread) that opened it; from other threads use
    ``engine.sync``. Everything that can touch the disk is ``async``.
    """

    def __init__(self, core: EngineState, runtime: EngineRuntime) -> None:
        self._core = core
        self._runtime = runtime
        self._threads: ThreadEngine | None = None

    def __repr__(self) -> str:
        state = "closed" if self._core.is_closed else "open"
        return f"<Engine {self.path or 'in memory'} shards={self.shards} {self.durability} {state}>"

    @property
    def path(self) -> str | None:
        """The store's folder; None in memory."""
        return self._runtime.opened.path

    @property
    def shards(self) -> int:
        """How many shards the store has; stamped when it was created."""
        return len(self._core.shards)

    @property
    def durability(self) -> str:
        """``nosync`` or ``fsync``."""
        return "fsync" if self._core.is_fsync else "nosync"

    @property
    def sync(self) -> ThreadEngine:
        """The same engine for other threads: every call blocks until the loop has done it.

        On the loop's own thread its calls raise ``UsageError``: they would wait for themselves.
        """
        if self._threads is None:
            self._threads = ThreadEngine(self)
        return self._threads

    # -- queues ------------------------------------------------------------------------

    def queue(
        self,
        name: str,
        *,
        tenant: str | AllTenants = "",
        max_attempts: int = 5,
        lease: Duration = LEASE_S,
        retention: Duration = 3600.0,
        dead_retention: Duration = 604_800.0,
        backoff: Backoff | None = None,
        boost_after: Duration | None = None,
        codec: Codec | None = None,
    ) -> Queue:
        """A handle on a queue, with the defaults of tasks that are enqueued through it.

        Args:
            name: the queue's name: ``[a-z0-9][a-z0-9._-]{0,63}``.
            tenant: a name of the same form, or empty for the default tenant; or
                ``lodeq.ALL_TENANTS``.
            max_attempts: runs before a task is buried, 1 to 65,535.
            lease: seconds a claim holds a task before it may be reaped, at most 49 days.
            retention: seconds a result is kept; 0 writes none.
            dead_retention: seconds a dead letter is kept.
            backoff: how long a nacked task waits; ``Backoff()`` by default.
            boost_after: seconds; None for never. Of every eight tasks claimed through such a
                handle one is the oldest that has been ready for longer than this, whatever its
                priority, if there is one. Not with ALL_TENANTS, which serves tenants in turns.
            codec: how objects become bytes; msgpack by default.

        Raises:
            InvalidNameError, UsageError: an argument is wrong; nothing was changed.
        """
        is_all = isinstance(tenant, AllTenants)
        if is_all and boost_after is not None:
            raise UsageError("boost_after needs one tenant: ALL_TENANTS is served in turns")
        queue_name, tenant_name = names_of(name, "" if is_all else tenant)
        defaults = TaskTemplate(
            queue_name,
            tenant_name,
            max_attempts=max_attempts,
            retention=retention,
            dead_retention=dead_retention,
            backoff=backoff,
            codec=codec,
        )
        queue = Queue(
            self._core,
            defaults,
            is_all_tenants=is_all,
            lease_s=length_s(lease),
            boost_after_s=None if boost_after is None else duration_s(boost_after, "boost_after"),
        )
        if codec is not None:
            self._core.codecs[queue_name] = codec
        return queue

    async def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> list[Receipt]:
        """Add tasks of several queues; every ``NewTask`` names its ``queue``.

        Otherwise as ``Queue.enqueue_many``, including Durability and Cancellation.
        """
        core, given = self._core, listed(tasks)
        try:
            core.check()
            check_durable(core, durable)
            items = await encode_tasks(core, given, None)
            return await enqueue_many(core, items, durable, is_atomic=atomic)
        except LodeqError as error:
            error.receipts = error.receipts or [None] * len(given)
            raise

    async def claim(
        self,
        queues: Sequence[str | Queue],
        *,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0.0,
        worker: str = "",
        exported: bool = False,
    ) -> list[Lease]:
        """Claim from several queues at once: the best task over all of them, by priority and seq.

        Args:
            queues: names (default tenant) or ``Queue`` objects (their tenant, or ALL_TENANTS).
            limit: 1 to 4,096 tasks at most.
            lease: seconds until a lease may be reaped; None uses the shortest of the queues'
                own, which is 30 for a plain name.
            wait: seconds to wait for the first task.
            worker: a name kept with the lease and the result, at most 256 bytes.
            exported: the worker is another process: the lease outlives this one.

        Otherwise as ``Queue.claim``, including Durability and Cancellation.
        """
        core = self._core
        core.check()
        request = claim_request(queues, limit=limit, lease=lease, worker=worker, exported=exported)
        return await claim(core, request, duration_s(wait, "wait"))

    async def complete_many(
        self, pairs: Sequence[tuple[Lease, Any]], *, durable: bool | None = None
    ) -> list[LeaseLostError | None]:
        """Complete many leases, in one batch per shard if they fit.

        Args:
            pairs: (lease, result) each; see ``Lease.complete`` for results.

        Returns: None for each that was completed, its ``LeaseLostError`` for each that was lost.

        Raises:
            PayloadTooLargeError, UsageError: nothing was written.
            StorageError: a shard takes no writes; the leases of other shards are completed.

        Durability: as ``Lease.complete``. Cancellation: in the last wait it happens.
        """
        self._core.check()
        if durable is not None:
            check_durable(self._core, durable)
        return await lease_operations.complete_many(self._core, pairs, durable)

    async def heartbeat_many(
        self, leases: Sequence[Lease], seconds: Duration | None = None
    ) -> list[LeaseLostError | None]:
        """Extend many leases to now + ``seconds`` (default: each by its own length).

        Returns: None for each that was extended, its ``LeaseLostError`` for each that was lost.

        Durability: none needed. Cancellation: does not wait.
        """
        self._core.check()
        length = None if seconds is None else duration_s(seconds, "seconds")
        out: list[LeaseLostError | None] = []
        for lease in leases:
            try:
                lease_operations.check_lease(self._core, lease)
                lease_operations.heartbeat(lease, lease.lease_s if length is None else length)
                out.append(None)
            except LeaseLostError as error:
                out.append(error)
        return out

    # -- one task ----------------------------------------------------------------------

    async def get(self, task_id: AnyId) -> Task | None:
        """A task by id, in whatever state; None if it never existed or is forgotten.

        Raises:
            RecordCorruptError: its record is damaged, without which it cannot be found. ``list``
                shows it, ``purge`` ends it, a claim that comes to it buries it.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        self._core.check()
        return await lookup.get(self._core, TaskId(task_id))

    async def result(self, task_id: AnyId, *, wait: Duration = 0.0) -> Result | None:
        """The result of a task; None until it has ended.

        Args:
            wait: seconds to wait for the end; it returns as soon as the task ends.

        Raises:
            TaskNotFoundError: it never existed, or its result has expired.
            RecordCorruptError: its result is damaged.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        self._core.check()
        return await lookup.result(self._core, TaskId(task_id), duration_s(wait, "wait"))

    async def cancel(self, task_id: AnyId) -> bool:
        """End a task that is ready, delayed or leased (its lease is revoked).

        Returns: whether there was such a task; False for one that is dead or has ended.

        Raises:
            RecordCorruptError: as ``get``; nothing changed.

        Durability: as ``Queue.enqueue``. Cancellation: in the last wait it happens.
        """
        self._core.check()
        return await admin.cancel(self._core, TaskId(task_id))

    # -- whole store -------------------------------------------------------------------

    async def stats(self) -> EngineStats:
        """Counts and commit statistics, from memory. Many thousand queues take several turns.

        Durability: includes what is queued but not yet committed. Cancellation: changes nothing.
        """
        self._core.check()
        sums = await sums_of(self._core)
        self._core.check()
        return stats_of(self._core, self._runtime.opened.recoveries, sums)

    async def queues(self) -> dict[tuple[str, str], QueueStats]:
        """Statistics of every queue that holds anything, by (queue, tenant), sorted.

        Many thousand queues are counted in several turns of the loop, so not all at one moment.

        Durability: includes what is queued but not yet committed. Cancellation: changes nothing.
        """
        self._core.check()
        return await queues_of(self._core)

    async def health(self) -> Health:
        """``ok``, or the reasons why not: poisoned, stalled, disk low, anomalies, reaper late.

        Durability: reads a reserved key of every shard. Cancellation: changes nothing.
        """
        self._core.check()
        return self._runtime.health()

    async def verify(self) -> VerifyReport:
        """Check every row against every rule, and read every payload, in slices. Writes nothing.

        It reads a snapshot of each shard; until it ends no body file is removed.

        Durability: sees what is committed. Cancellation: changes nothing.
        """
        self._core.check()
        return await self._runtime.verify()

    async def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Make a consistent copy of every shard at ``path``, which must not exist; see ``restore``.

        Durability: holds everything acknowledged before the call. Cancellation: leaves nothing.
        """
        self._core.check()
        await self._runtime.checkpoint(path)

    async def snapshot(self, *, keep: Duration = SNAPSHOT_S) -> Snapshot:
        """Make a copy of every shard for other readers, under ``<store>/snapshots/``.

        Its tables are hard links: taking it costs next to nothing, and it takes space as the
        store moves on. See docs/snapshots.md, and ``checkpoint`` for a backup.

        Args:
            keep: seconds (or a timedelta) until the engine removes it, at most ten years. A reader
                can extend that.

        Raises:
            UsageError: the engine is in memory; nothing was made.
            StorageError: a shard takes no writes, or the disk is full; nothing is left of it.

        Durability: holds everything acknowledged before the call, and survives a power cut.
        Cancellation: leaves nothing.
        """
        keep_s = duration_s(keep, "keep", least=0.001)
        self._core.check()
        return await self._runtime.snapshots.take(keep_s)

    async def snapshots(self) -> list[Snapshot]:
        """All complete snapshots, oldest first; ``latest`` stands for the last one.

        Durability: all of them survive a power cut. Cancellation: changes nothing.
        """
        self._core.check()
        listed = partial(list_snapshots, self._runtime.snapshots.root)
        found: list[Snapshot] = await self._core.spawner.run_in_thread(listed)
        return found

    async def release_snapshot(self, id: str) -> None:
        """Remove a snapshot, pinned or not. Whoever reads it gets an error.

        Raises:
            SnapshotNotFoundError: there is none with this id, or it has lapsed.

        Durability: a power cut may bring it back, whole. Cancellation: it is removed all the same.
        """
        self._core.check()
        release = partial(release_snapshot, self._runtime.snapshots.root, id)
        await run_to_completion(self._core.spawner, release, lambda _: None)

    async def purge_archived(self, plan: str | os.PathLike[str]) -> PurgeReport:
        """Remove results and dead letters that the archive job has saved.

        Exactly those that its plan names, by id and time: none that ended after the snapshot.

        Args:
            plan: the file (or its folder) that ``lodeq-spark archive`` names in its report.

        Raises:
            UsageError: the plan is for another store, or another number of shards.
            CorruptionError: the plan is damaged; rows read before the damage are purged.
            StorageError: the disk failed; call it again.

        Durability: as ``Queue.enqueue``. Cancellation: rows already removed stay removed; call it
        again.
        """
        self._core.check()
        store_id = self._runtime.opened.store_id
        return await purge_archived(self._core, store_id, plan)

    async def forget_loads(self, older_than: Duration) -> ForgottenLoads:
        """Forget loads that ended longer ago: their outcome, and what is left of their files.

        Staging one of these jobs again adds its tasks a second time. Staged files that were never
        published are removed too, if all of a job's are older.

        Args:
            older_than: seconds (or a timedelta), at least an hour.

        Raises:
            UsageError: the engine is in memory, or the age is too small; nothing was forgotten.
            StorageError: the disk failed; call it again.

        Durability: what it reports stays forgotten after a power cut, in either mode.
        Cancellation: what is forgotten stays so; call it again.
        """
        self._core.check()
        age_s(older_than)
        return await self._runtime.ingester.forget(older_than)

    async def ingest(self, job: str | None = None) -> IngestReport:
        """Take in all loads that wait in the inbox, or one of them, now. See ``Stage``.

        A load that does not fit is refused as a whole; the report says so, nothing is raised.

        Raises:
            UsageError: in memory, on a replica, or there is no such job.
            StorageError, CorruptionError: it could not go on. The load waits; some shards may have
                their whole part of it.

        Durability: what it reports as done survives a power cut, in either mode.
        Cancellation: between two steps; the next call goes on with the load.
        """
        self._core.check()
        return await self._runtime.ingester.ingest(job)

    async def migrate_bodies(self) -> MigrationReport:
        """Copy payloads in body files of the older format to the newer one, and remove those files.

        It runs at the pace of compaction, while work goes on; ``stats()`` says what is left. It
        waits for checkpoints. Called again, it goes on where it ended.

        Raises:
            StorageFullError: there is no space for copies; those already made stay.
            StoragePoisonedError: a shard takes no writes.

        Durability: a copy is durable before its original is removed, in either mode.
        Cancellation: between two slices of 1 MiB; nothing is lost.
        """
        self._core.check()
        return await migrate_bodies(self._core, self._runtime.body_gc)

    async def fsync(self) -> None:
        """Make everything acknowledged so far durable, in either mode.

        Durability: on return it survives a power cut. Cancellation: the sync still happens.
        """
        self._core.check()
        await self._runtime.fsync()

    async def close(self) -> None:
        """Drain, sync, close. Idempotent; ``async with`` does it. Waiting calls end.

        Durability: everything acknowledged is durable afterwards, in either mode.
        Cancellation: closing goes on; await it again.
        """
        await self._runtime.close()


class ThreadEngine(ThreadTwin[Engine]):
    """An ``Engine`` whose calls block, for any number of threads but that of its event loop.

    ``engine.sync`` is one beside a running engine, ``lodeq.sync.open`` makes one with an event loop
    of its own. A call costs one hop to the loop and one back: a thread makes a few thousand a
    second; batch calls and several threads get more done.

    Arguments, errors and what a return promises are documented at the method of ``Engine`` that a
    call runs.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, ThreadCalls(engine._core, engine._runtime))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def path(self) -> str | None:
        """The store's folder; None in memory."""
        return self._twin.path

    @property
    def shards(self) -> int:
        """How many shards the store has."""
        return self._twin.shards

    @property
    def durability(self) -> str:
        """``nosync`` or ``fsync``."""
        return self._twin.durability

    def queue(
        self,
        name: str,
        *,
        tenant: str | AllTenants = "",
        max_attempts: int = 5,
        lease: Duration = 30.0,
        retention: Duration = 3600.0,
        dead_retention: Duration = 604_800.0,
        backoff: Backoff | None = None,
        boost_after: Duration | None = None,
        codec: Codec | None = None,
    ) -> ThreadQueue:
        """A handle on a queue, as ``Engine.queue``. It touches no disk and does not block.

        Args:
            name: the queue's name: ``[a-z0-9][a-z0-9._-]{0,63}``.
            tenant: the tenant's name, empty for the default one, or ``lodeq.ALL_TENANTS``.
            max_attempts: runs before a task is buried, 1 to 65,535.
            lease: seconds a claim holds a task before it may be reaped, at most 49 days.
            retention: seconds a result is kept; 0 writes none.
            dead_retention: seconds a dead letter is kept.
            backoff: how long a nacked task waits; ``Backoff()`` by default.
            boost_after: seconds; see ``Engine.queue``.
            codec: how objects become bytes; msgpack by default.
        """
        queue = self._twin.queue(
            name,
            tenant=tenant,
            max_attempts=max_attempts,
            lease=lease,
            retention=retention,
            dead_retention=dead_retention,
            backoff=backoff,
            boost_after=boost_after,
            codec=codec,
        )
        return ThreadQueue(queue, self._call)

    def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> list[Receipt]:
        """See ``Engine.enqueue_many``, also for Durability and Cancellation."""
        return self._call(self._twin.enqueue_many, listed(tasks), durable=durable, atomic=atomic)

    def claim(
        self,
        queues: Sequence[str | ThreadQueue],
        *,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0.0,
        worker: str = "",
        exported: bool = False,
    ) -> list[ThreadLease]:
        """Claim from several queues, as ``Engine.claim``, also in Durability and Cancellation.

        Args:
            queues: names (default tenant) or ``ThreadQueue`` objects.
            limit: 1 to 4,096 tasks at most.
            lease: seconds until a lease may be reaped; None uses the shortest of the queues' own.
            wait: seconds to wait for the first task.
            worker: a name kept with the lease and the result, at most 256 bytes.
            exported: the worker is another process: the lease outlives this one.
        """
        if isinstance(queues, str | ThreadQueue):
            raise UsageError("queues must be a list of names or queues")
        found = self._call(
            self._twin.claim,
            [q.twin if isinstance(q, ThreadQueue) else q for q in queues],
            limit=limit,
            lease=lease,
            wait=wait,
            worker=worker,
            exported=exported,
        )
        return [ThreadLease(one, self._call) for one in found]

    def complete_many(
        self, pairs: Sequence[tuple[ThreadLease, Any]], *, durable: bool | None = None
    ) -> list[LeaseLostError | None]:
        """See ``Engine.complete_many``, also for Durability and Cancellation."""
        twins = [(_twin(lease), result) for lease, result in pairs]
        return self._call(self._twin.complete_many, twins, durable=durable)

    def heartbeat_many(
        self, leases: Sequence[ThreadLease], seconds: Duration | None = None
    ) -> list[LeaseLostError | None]:
        """See ``Engine.heartbeat_many``, also for Durability and Cancellation."""
        return self._call(self._twin.heartbeat_many, [_twin(x) for x in leases], seconds)

    get = blocking(Engine.get)
    """See ``Engine.get``, also for Durability and Cancellation."""

    result = blocking(Engine.result)
    """See ``Engine.result``, also for Durability and Cancellation."""

    cancel = blocking(Engine.cancel)
    """See ``Engine.cancel``, also for Durability and Cancellation."""

    stats = blocking(Engine.stats)
    """See ``Engine.stats``, also for Durability and Cancellation."""

    queues = blocking(Engine.queues)
    """See ``Engine.queues``."""

    health = blocking(Engine.health)
    """See ``Engine.health``, also for Durability and Cancellation."""

    verify = blocking(Engine.verify)
    """See ``Engine.verify``, also for Durability and Cancellation."""

    checkpoint = blocking(Engine.checkpoint)
    """See ``Engine.checkpoint``, also for Durability and Cancellation."""

    snapshot = blocking(Engine.snapshot)
    """See ``Engine.snapshot``, also for Durability and Cancellation."""

    snapshots = blocking(Engine.snapshots)
    """See ``Engine.snapshots``, also for Durability and Cancellation."""

    release_snapshot = blocking(Engine.release_snapshot)
    """See ``Engine.release_snapshot``, also for Durability and Cancellation."""

    purge_archived = blocking(Engine.purge_archived)
    """See ``Engine.purge_archived``, also for Durability and Cancellation."""

    ingest = blocking(Engine.ingest)
    """See ``Engine.ingest``, also for Durability and Cancellation."""

    forget_loads = blocking(Engine.forget_loads)
    """See ``Engine.forget_loads``, also for Durability and Cancellation."""

    migrate_bodies = blocking(Engine.migrate_bodies)
    """See ``Engine.migrate_bodies``, also for Durability and Cancellation."""

    fsync = blocking(Engine.fsync)
    """See ``Engine.fsync``, also for Durability and Cancellation."""

    def close(self) -> None:
        """Close the engine, for everybody. Idempotent; see ``Engine.close``.

        Durability and Cancellation: as there.
        """
        if self._call.is_over:
            return
        try:
            self._call(self._twin.close)
        except ClosedError:
            if not self._call.is_over:  # else another thread has closed it meanwhile
                raise


def runtime_of(engine: Engine) -> EngineRuntime:
    """The runtime of an open engine, for other modules of ``repository/api``.

    Users have no use for it: whoever changes it without the operations breaks the store's rules.
    """
    return engine._runtime


def _twin(lease: ThreadLease | Lease) -> Lease:
    return lease.twin if isinstance(lease, ThreadLease) else lease
