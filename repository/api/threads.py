"""The engine for threads: the same calls, each blocking until the event loop has done it.

A call is one hop to the loop and one back, so a thread gets a few thousand of them a second;
batch calls and many threads get more. ``engine.sync`` is one beside a running engine,
``lodeq.sync.open`` one with a loop of its own. thread_calls.py says what a blocked thread may
rely on.

The facade is spelled out, method by method, for editors and type checkers. What the arguments
mean, what is raised and what a return promises stands at the asynchronous twin.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ...errors import ClosedError, LeaseLostError, UsageError
from ..model.arguments import SNAPSHOT_S, listed
from ..model.values import (
    AllTenants,
    AnyId,
    Backoff,
    Codec,
    Duration,
    EngineStats,
    NewTask,
    OnConflict,
    QueueStats,
    Receipt,
    Result,
    Task,
)
from ..tasks.lease import Lease
from .thread_calls import ThreadCalls
from .thread_leases import ThreadLease, ThreadLeaseStream

if TYPE_CHECKING:
    import builtins

    from ...engine.values import Health, Snapshot
    from ..model.ingest_report import IngestReport
    from ..model.reports import ForgottenLoads, MigrationReport, PurgeReport, VerifyReport
    from .engine import Engine
    from .queue import Queue

__all__ = ["ThreadEngine", "ThreadQueue"]


def _twin(lease: ThreadLease | Lease) -> Lease:
    return lease.twin if isinstance(lease, ThreadLease) else lease


class ThreadQueue:
    """A ``Queue`` whose calls block."""

    def __init__(self, queue: Queue, call: ThreadCalls) -> None:
        self._queue = queue
        self._call = call

    def __repr__(self) -> str:
        return f"<Thread{repr(self._queue)[1:]}"

    @property
    def twin(self) -> Queue:
        """The queue as the loop's own code holds it."""
        return self._queue

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue.name

    @property
    def tenant(self) -> str:
        """The tenant's name; empty for the default tenant, and for ALL_TENANTS."""
        return self._queue.tenant

    def enqueue(
        self,
        payload: Any,
        *,
        priority: int = 5,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        ttl: Duration | None = None,
        dedup_key: str | bytes | None = None,
        dedup_window: Duration | None = None,
        on_conflict: OnConflict = "return",
        headers: Mapping[str, Any] | None = None,
        max_attempts: int | None = None,
        shard_key: str | bytes | None = None,
        durable: bool | None = None,
    ) -> Receipt:
        """See ``Queue.enqueue``, also for Durability and Cancellation."""
        return self._call(
            self._queue.enqueue,
            payload,
            priority=priority,
            delay=delay,
            run_at=run_at,
            ttl=ttl,
            dedup_key=dedup_key,
            dedup_window=dedup_window,
            on_conflict=on_conflict,
            headers=headers,
            max_attempts=max_attempts,
            shard_key=shard_key,
            durable=durable,
        )

    def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> builtins.list[Receipt]:
        """See ``Queue.enqueue_many``, also for Durability and Cancellation."""
        return self._call(self._queue.enqueue_many, listed(tasks), durable=durable, atomic=atomic)

    def claim(
        self,
        *,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0.0,
        worker: str = "",
        exported: bool = False,
        skip_tenants: Collection[str] = (),
    ) -> builtins.list[ThreadLease]:
        """See ``Queue.claim``, also for Durability and Cancellation."""
        found = self._call(
            self._queue.claim,
            limit=limit,
            lease=lease,
            wait=wait,
            worker=worker,
            exported=exported,
            skip_tenants=skip_tenants,
        )
        return [ThreadLease(one, self._call) for one in found]

    def claim_one(
        self, *, lease: Duration | None = None, wait: Duration = 0.0, worker: str = ""
    ) -> ThreadLease | None:
        """See ``Queue.claim_one``, also for Durability and Cancellation."""
        leases = self.claim(lease=lease, wait=wait, worker=worker)
        return leases[0] if leases else None

    def leases(
        self,
        *,
        limit: int = 64,
        lease: Duration | None = None,
        keepalive: bool = True,
        wait: Duration = 1.0,
        worker: str = "",
    ) -> ThreadLeaseStream:
        """Leases one after another, without end: ``for lease in queue.leases(): with lease: …``.

        Otherwise as ``Queue.leases``, including Durability and Cancellation. They are kept alive
        by the loop, whatever their thread does meanwhile.
        """
        stream = self._queue.leases(
            limit=limit, lease=lease, keepalive=keepalive, wait=wait, worker=worker
        )
        return ThreadLeaseStream(stream, self._call)

    def stats(self) -> QueueStats:
        """See ``Queue.stats``, also for Durability and Cancellation."""
        return self._call(self._queue.stats)

    def list(
        self, state: str, *, limit: int = 100, after: Task | None = None
    ) -> builtins.list[Task]:
        """See ``Queue.list``, also for Durability and Cancellation."""
        return self._call(self._queue.list, state, limit=limit, after=after)

    def peek(self, limit: int = 10) -> builtins.list[Task]:
        """See ``Queue.peek``, also for Durability and Cancellation."""
        return self._call(self._queue.peek, limit)

    def dead_letters(self, limit: int = 100, *, after: Task | None = None) -> builtins.list[Task]:
        """See ``Queue.dead_letters``, also for Durability and Cancellation."""
        return self._call(self._queue.dead_letters, limit, after=after)

    def redrive(self, ids: Sequence[AnyId] | None = None) -> int:
        """See ``Queue.redrive``, also for Durability and Cancellation."""
        return self._call(self._queue.redrive, ids)

    def pause(self) -> None:
        """See ``Queue.pause``, also for Durability and Cancellation."""
        self._call(self._queue.pause)

    def resume(self) -> None:
        """See ``Queue.resume``, also for Durability and Cancellation."""
        self._call(self._queue.resume)

    def purge(self, state: str | None = None) -> int:
        """See ``Queue.purge``, also for Durability and Cancellation."""
        return self._call(self._queue.purge, state)


class ThreadEngine:
    """An ``Engine`` whose calls block, for any number of threads but that of its event loop."""

    def __init__(self, engine: Engine, call: ThreadCalls) -> None:
        self._engine = engine
        self._call = call

    @classmethod
    def beside(cls, engine: Engine) -> Self:
        """The facade of a running engine: what ``engine.sync`` is."""
        return cls(engine, ThreadCalls(engine._core, engine._operator))

    def __repr__(self) -> str:
        return f"<Thread{repr(self._engine)[1:]}"

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
        return self._engine.path

    @property
    def shards(self) -> int:
        """How many shards the store has."""
        return self._engine.shards

    @property
    def durability(self) -> str:
        """``nosync`` or ``fsync``."""
        return self._engine.durability

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
        """See ``Engine.queue``. It touches no disk and does not block."""
        queue = self._engine.queue(
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
        return self._call(self._engine.enqueue_many, listed(tasks), durable=durable, atomic=atomic)

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
        """See ``Engine.claim``, also for Durability and Cancellation."""
        if isinstance(queues, str | ThreadQueue):
            raise UsageError("queues must be a list of names or queues")
        found = self._call(
            self._engine.claim,
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
        return self._call(self._engine.complete_many, twins, durable=durable)

    def heartbeat_many(
        self, leases: Sequence[ThreadLease], seconds: Duration | None = None
    ) -> list[LeaseLostError | None]:
        """See ``Engine.heartbeat_many``, also for Durability and Cancellation."""
        return self._call(self._engine.heartbeat_many, [_twin(x) for x in leases], seconds)

    def get(self, task_id: AnyId) -> Task | None:
        """See ``Engine.get``, also for Durability and Cancellation."""
        return self._call(self._engine.get, task_id)

    def result(self, task_id: AnyId, *, wait: Duration = 0.0) -> Result | None:
        """See ``Engine.result``, also for Durability and Cancellation."""
        return self._call(self._engine.result, task_id, wait=wait)

    def cancel(self, task_id: AnyId) -> bool:
        """See ``Engine.cancel``, also for Durability and Cancellation."""
        return self._call(self._engine.cancel, task_id)

    def stats(self) -> EngineStats:
        """See ``Engine.stats``, also for Durability and Cancellation."""
        return self._call(self._engine.stats)

    def queues(self) -> dict[tuple[str, str], QueueStats]:
        """See ``Engine.queues``."""
        return self._call(self._engine.queues)

    def health(self) -> Health:
        """See ``Engine.health``, also for Durability and Cancellation."""
        return self._call(self._engine.health)

    def verify(self) -> VerifyReport:
        """See ``Engine.verify``, also for Durability and Cancellation."""
        return self._call(self._engine.verify)

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """See ``Engine.checkpoint``, also for Durability and Cancellation."""
        self._call(self._engine.checkpoint, path)

    def snapshot(self, *, keep: Duration = SNAPSHOT_S) -> Snapshot:
        """See ``Engine.snapshot``, also for Durability and Cancellation."""
        return self._call(self._engine.snapshot, keep=keep)

    def snapshots(self) -> list[Snapshot]:
        """See ``Engine.snapshots``, also for Durability and Cancellation."""
        return self._call(self._engine.snapshots)

    def release_snapshot(self, id: str) -> None:
        """See ``Engine.release_snapshot``, also for Durability and Cancellation."""
        self._call(self._engine.release_snapshot, id)

    def purge_archived(self, plan: str | os.PathLike[str]) -> PurgeReport:
        """See ``Engine.purge_archived``, also for Durability and Cancellation."""
        return self._call(self._engine.purge_archived, plan)

    def ingest(self, job: str | None = None) -> IngestReport:
        """See ``Engine.ingest``, also for Durability and Cancellation."""
        return self._call(self._engine.ingest, job)

    def forget_loads(self, older_than: Duration) -> ForgottenLoads:
        """See ``Engine.forget_loads``, also for Durability and Cancellation."""
        return self._call(self._engine.forget_loads, older_than)

    def migrate_bodies(self) -> MigrationReport:
        """See ``Engine.migrate_bodies``, also for Durability and Cancellation."""
        return self._call(self._engine.migrate_bodies)

    def fsync(self) -> None:
        """See ``Engine.fsync``, also for Durability and Cancellation."""
        self._call(self._engine.fsync)

    def close(self) -> None:
        """Close the engine, for everybody. Idempotent; see ``Engine.close``.

        Durability and Cancellation: as there.
        """
        if self._call.is_over:
            return
        try:
            self._call(self._engine.close)
        except ClosedError:
            if not self._call.is_over:  # else another thread has closed it meanwhile
                raise
