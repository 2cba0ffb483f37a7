"""The engine, as its users hold it: what spans queues, shards and threads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ...engine.records.keyspace import check_name
from ...engine.runtime.task_id import TaskId
from ...errors import LeaseLostError, LodeqError, UsageError
from ..background.body_migration import MigrationReport, migrate_bodies
from ..maintenance.snapshots import SnapshotCalls
from ..model.encoded_tasks import (
    EncodedTask,
    TaskTemplate,
    duration_s,
    item_among,
    listed,
    names_of,
)
from ..model.ingest_report import IngestReport
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
from ..state.long_polls import ClaimRequest
from ..state.turns import Turns
from ..tasks import admin, lease_operations, lookup
from ..tasks.claim import claim
from ..tasks.claim_order import check_limit, check_worker
from ..tasks.enqueue import check_durable, enqueue_many
from ..tasks.lease import Lease, length_s
from .queue import Queue, boosts
from .runtime import EngineRuntime, VerifyReport
from .statistics import queues_of, stats_of, sums_of

if TYPE_CHECKING:
    from ...engine.recovery.health import Health
    from .threads import ThreadEngine

__all__ = ["Engine"]

LEASE_S = 30.0


class Engine(SnapshotCalls):
    """An open store. Get one with ``async with lodeq.open(path) as engine:``.

    It belongs to the event loop (and thread) that opened it; from other threads use
    ``engine.sync``. Everything that can touch the disk is ``async``.
    """

    def __init__(self, core: EngineState, operator: EngineRuntime) -> None:
        self._core = core
        self._operator = operator
        self._threads: ThreadEngine | None = None

    def __repr__(self) -> str:
        state = "closed" if self._core.is_closed else "open"
        return f"<Engine {self.path or 'in memory'} shards={self.shards} {self.durability} {state}>"

    @property
    def path(self) -> str | None:
        """The store's folder; None in memory."""
        return self._operator.opened.path

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
            from .threads import ThreadEngine  # noqa: PLC0415 - only for those who use it

            self._threads = ThreadEngine.beside(self)
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
        """A queue, with the defaults of the tasks that are enqueued through this object.

        Args:
            name: ``[a-z0-9][a-z0-9._-]{0,63}``.
            tenant: the same, or empty; or ``lodeq.ALL_TENANTS``.
            max_attempts: runs before a task is buried, 1 to 65,535.
            lease: seconds a claim holds a task before it may be reaped, at most 49 days.
            retention: seconds a result is kept; 0 writes none.
            dead_retention: seconds a dead letter is kept.
            backoff: how long a nacked task waits; ``Backoff()`` by default.
            boost_after: None, or seconds: then of every eight tasks granted to claims through
                such an object one is the oldest that has been ready for longer, whatever its
                priority, if there is any. Not with ALL_TENANTS: there the turns of the tenants
                decide.
            codec: how objects become bytes; msgpack by default.

        Raises:
            InvalidNameError, UsageError: and nothing was touched.
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
            self,
            self._core,
            defaults,
            is_all_tenants=is_all,
            lease_s=length_s(lease),
            boost_after_s=None if boost_after is None else duration_s(boost_after, "boost_after"),
        )
        if codec is not None:
            self._core.codecs[queue_name] = codec
        return queue

    async def items_of(
        self, tasks: Sequence[NewTask], base: TaskTemplate | None
    ) -> list[EncodedTask]:
        """Validate and encode tasks for one or several queues, before anything is queued."""
        core, turns = self._core, Turns(self._core)
        now_us = core.clock.wall_us()
        shared: dict[tuple[str | None, str | None], TaskTemplate] = {}
        items: list[EncodedTask] = []
        large: dict[int, EncodedTask] = {}
        for n, task in enumerate(list(tasks)):  # as it is now, whoever else holds the list
            if n and turns.is_over:
                await turns.give_now()
                core.check()
            if not isinstance(task, NewTask):
                raise UsageError(f"tasks must be lodeq.NewTask, not {type(task).__name__}")
            defaults = shared.get((task.queue, task.tenant))
            if defaults is None:
                defaults = shared[task.queue, task.tenant] = self._defaults_of(task, base)
            items.append(item_among(core, defaults, task, now_us, large))
        return items

    def _defaults_of(self, task: NewTask, base: TaskTemplate | None) -> TaskTemplate:
        if task.queue is None and base is None:
            raise UsageError("engine.enqueue_many needs a queue for every task: NewTask(queue=…)")
        if base is not None and task.queue is None and task.tenant is None:
            return base
        queue = base.queue.decode() if task.queue is None and base else task.queue
        tenant = task.tenant
        if tenant is None:
            tenant = base.tenant.decode() if base is not None else ""
        names = names_of(queue, tenant)
        return TaskTemplate(*names, codec=self._core.codecs.get(names[0]))

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
            items = await self.items_of(given, None)
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
            lease: seconds until it may be reaped; None uses the least of the queues' own, which
                is 30 for a plain name.

        Otherwise as ``Queue.claim``, including Durability and Cancellation.
        """
        core = self._core
        core.check()
        if isinstance(queues, str | Queue) or not queues:
            raise UsageError("queues must be a non-empty list of names or Queue objects")
        keys: list[tuple[bytes, bytes | None]] = [
            queue._keys[0] if isinstance(queue, Queue) else (check_name(queue, "queue"), b"")
            for queue in queues
        ]
        if lease is None:
            lease = min(q._lease_s if isinstance(q, Queue) else LEASE_S for q in queues)
        request = ClaimRequest(
            list(dict.fromkeys(keys)),
            limit=check_limit(limit),
            lease_s=length_s(lease),
            worker=check_worker(worker),
            is_exported=exported,
            boosts=boosts([queue for queue in queues if isinstance(queue, Queue)]),
        )
        return await claim(core, request, duration_s(wait, "wait"))

    async def complete_many(
        self, pairs: Sequence[tuple[Lease, Any]], *, durable: bool | None = None
    ) -> list[LeaseLostError | None]:
        """Complete many leases; one batch a shard where they fit.

        Args:
            pairs: (lease, result) each; see ``Lease.complete`` for results.

        Returns: None for each that was completed, its ``LeaseLostError`` for each that was lost.

        Raises:
            PayloadTooLargeError, UsageError: nothing was written.
            StorageError: a shard takes no writes; the leases of the others are completed.

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
            RecordCorruptError: its record is damaged, and only that tells where it is. ``list``
                shows it, ``purge`` ends it, the claim that meets it buries it.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        self._core.check()
        return await lookup.get(self._core, TaskId(task_id))

    async def result(self, task_id: AnyId, *, wait: Duration = 0.0) -> Result | None:
        """How a task ended; None while it has not.

        Args:
            wait: seconds to wait for the end; woken by it at once.

        Raises:
            TaskNotFoundError: it never existed, or its result is forgotten.
            RecordCorruptError: its result is damaged.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        self._core.check()
        return await lookup.result(self._core, TaskId(task_id), duration_s(wait, "wait"))

    async def cancel(self, task_id: AnyId) -> bool:
        """End a task that is ready, delayed or leased (its lease is revoked).

        Returns: whether there was such a task. A dead or finished one is left alone: False.

        Raises:
            RecordCorruptError: as ``get``; nothing changed.

        Durability: as ``Queue.enqueue``. Cancellation: in the last wait it happens.
        """
        self._core.check()
        return await admin.cancel(self._core, TaskId(task_id))

    # -- the whole ---------------------------------------------------------------------

    async def stats(self) -> EngineStats:
        """Counts and commit statistics, from memory; of many thousand lanes in turns of the loop.

        Durability: includes what is queued but not yet committed. Cancellation: changes nothing.
        """
        self._core.check()
        sums = await sums_of(self._core)
        self._core.check()
        return stats_of(self._core, self._operator.opened.recoveries, sums)

    async def queues(self) -> dict[tuple[str, str], QueueStats]:
        """Every queue there is anything of, by (queue, tenant), sorted; counts as ``Queue.stats``.

        Of many thousand they are counted in turns of the loop, and not all at one moment.

        Durability: includes what is queued but not yet committed. Cancellation: changes nothing.
        """
        self._core.check()
        return await queues_of(self._core)

    async def health(self) -> Health:
        """``ok``, or the reasons why not: poisoned, stalled, disk low, anomalies, reaper late.

        Durability: reads a reserved key of every shard. Cancellation: changes nothing.
        """
        self._core.check()
        return self._operator.health()

    async def verify(self) -> VerifyReport:
        """Check every row against every rule and read every payload, in slices; writes nothing.

        It is over a snapshot of each shard, and until it ends no body file is removed.

        Durability: sees what is committed. Cancellation: changes nothing.
        """
        self._core.check()
        return await self._operator.verify()

    async def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """A consistent copy of every shard at ``path``, which must not exist; see ``restore``.

        Durability: holds everything acknowledged before the call. Cancellation: leaves nothing.
        """
        self._core.check()
        await self._operator.checkpoint(path)

    async def ingest(self, job: str | None = None) -> IngestReport:
        """Take in what waits in the inbox, or one load of it, now. See ``Stage``.

        A load that cannot be taken is refused whole, and told of in the report, not raised.

        Raises:
            UsageError: in memory, on a replica, or there is no such job.
            StorageError, CorruptionError: it could not go on. The load waits; a part of its shards
                may have it, in full.

        Durability: what it reports as done survives a power cut, in either mode.
        Cancellation: between two steps; the load is taken up again.
        """
        self._core.check()
        return await self._operator.ingester.ingest(job)

    async def migrate_bodies(self) -> MigrationReport:
        """Copy what is left in body files of the older format to the newer one, and remove them.

        At the pace of compaction, while work goes on; ``stats()`` says what is left. It waits for
        checkpoints. Called again, it goes on with what it has not done.

        Raises:
            StorageFullError: there is no room for copies; what has been copied counts.
            StoragePoisonedError: a shard takes no writes.

        Durability: what it has moved is durable before its old place goes, in either mode.
        Cancellation: between two slices of 1 MiB; nothing is lost.
        """
        self._core.check()
        return await migrate_bodies(self._core, self._operator.keeper)

    async def fsync(self) -> None:
        """Make everything acknowledged so far durable, in either mode.

        Durability: on return it survives a power cut. Cancellation: the sync still happens.
        """
        self._core.check()
        await self._operator.fsync()

    async def close(self) -> None:
        """Drain, sync, close. Idempotent; ``async with`` does it. Nobody is left waiting.

        Durability: everything acknowledged is durable afterwards, in either mode.
        Cancellation: closing goes on; await it again.
        """
        await self._operator.close()
