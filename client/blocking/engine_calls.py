# Generated from client/engine_calls.py by make twins; do not edit.
"""The calls of a served engine that block: queues, tasks, figures, snapshots and loads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial

from ...engine.runtime.clock import SystemClock
from ...engine.values import Health, Snapshot
from ...errors import TaskNotFoundError, UsageError
from ...repository.model.arguments import SNAPSHOT_S, duration_s, listed
from ...repository.model.ingest_report import IngestReport
from ...repository.model.reports import (
    ForgottenLoads,
    MigrationReport,
    PurgeReport,
    VerifyReport,
)
from ...repository.model.values import (
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
from .. import bulk, calls
from ..calls import FORM, LEASE_S, QueueTemplate
from ..records import flat_of, health_of, queues_of, report_of, result_of, stats_of, task_of
from .lease import SyncRemoteLease
from .queue import SyncRemoteQueue
from .requests import SyncRemoteRequests
from .waits import in_thread

__all__ = ["SyncRemoteCalls"]

_mono = SystemClock.mono


class SyncRemoteCalls(SyncRemoteRequests):
    """The methods of ``lodeq.Engine`` that are requests to its server, blocking."""

    @property
    def path(self) -> str | None:
        """The store's folder, where the server runs; None in memory."""
        return self.session.path

    @property
    def shards(self) -> int:
        """How many shards the store has."""
        return self.session.shards

    @property
    def durability(self) -> str:
        """``nosync`` or ``fsync``."""
        return self.session.durability

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
    ) -> SyncRemoteQueue:
        """See ``Engine.queue``. The codec stays here: the server never needs it.

        Args:
            name: 1 to 64 of a-z, 0-9, ``.``, ``_`` and ``-``.
            tenant: empty for the default tenant; ALL_TENANTS claims for all in fair turns.
            max_attempts: 1 to 65,535, then a task is dead.
            lease: seconds until a lease may be reaped, at most 49 days.
            retention: seconds for which a result is kept.
            dead_retention: seconds for which a dead letter is kept.
            backoff: how long a nacked task waits; None: full jitter up to 900 seconds.
            boost_after: seconds; of every eight tasks granted, one is then the oldest that has been
                ready for longer, whatever its priority. Not with ALL_TENANTS.
            codec: turns payloads and results into bytes and back; None: msgpack.
        """
        template = QueueTemplate(
            self.session,
            name,
            tenant,
            max_attempts=max_attempts,
            lease=lease,
            retention=retention,
            dead_retention=dead_retention,
            backoff=backoff,
            boost_after=boost_after,
            codec=codec,
        )
        return SyncRemoteQueue(self, template)

    def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> list[Receipt]:
        """See ``Engine.enqueue_many``, also for Durability and Cancellation."""
        return self.enqueue_tasks(None, listed(tasks), durable, atomic)

    def claim(
        self,
        queues: Sequence[str | SyncRemoteQueue],
        *,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0.0,
        worker: str = "",
        exported: bool = False,
    ) -> list[SyncRemoteLease]:
        """See ``Engine.claim``, also for Durability and Cancellation.

        Args:
            queues: names or queues of this client, one at least.
            limit: the most leases, 1 to 4,096; the server bounds it further.
            lease: seconds, at most 49 days; None: the shortest length of the queues.
            wait: seconds to wait for the first task.
            worker: a name kept with lease and result, at most 256 bytes.
            exported: changes nothing: leases of a served store always outlive the server.
        """
        if isinstance(queues, str | SyncRemoteQueue) or not queues:
            raise UsageError("queues must be a non-empty list of names or Queue objects")
        named = [q.template if isinstance(q, SyncRemoteQueue) else q for q in queues]
        return self.claim_from(named, limit=limit, lease=lease, wait=wait, worker=worker)

    # -- one task ----------------------------------------------------------------------

    def get(self, task_id: AnyId) -> Task | None:
        """See ``Engine.get``, also for Durability and Cancellation."""
        try:
            doc = self.send(calls.task_call(task_id))
        except TaskNotFoundError:
            return None
        return task_of(FORM, doc, self.session.codecs)

    def result(self, task_id: AnyId, *, wait: Duration = 0.0) -> Result | None:
        """See ``Engine.result``, also for Durability and Cancellation."""
        left_s = duration_s(wait, "wait")
        give_up = _mono() + left_s
        while True:
            poll_s = min(left_s, self.session.wait_s_max)
            call = calls.task_call(task_id, what="/result", wait=repr(poll_s))
            doc = self.send(call._replace(wait_s=poll_s))
            left_s = give_up - _mono()
            if doc or left_s <= 0:
                return result_of(FORM, doc, self.session.codecs) if doc else None

    def cancel(self, task_id: AnyId) -> bool:
        """See ``Engine.cancel``, also for Durability and Cancellation."""
        cancelled: bool = (self.send(calls.task_call(task_id, method="DELETE")))["cancelled"]
        return cancelled

    # -- the whole ---------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """See ``Engine.stats``, also for Durability and Cancellation."""
        return stats_of(self.send(calls.engine_call("/stats")))

    def queues(self) -> dict[tuple[str, str], QueueStats]:
        """See ``Engine.queues``, also for Durability and Cancellation."""
        found: dict[tuple[str, str], QueueStats] = {}
        after: str | None = None
        while True:
            doc = self.send(calls.queues(after))
            found |= queues_of(doc)
            after = doc.get("next")  # an older server returns all at once
            if after is None:
                return found

    def health(self) -> Health:
        """See ``Engine.health``, also for Durability and Cancellation."""
        return health_of(self.send(calls.engine_call("/health")))

    def verify(self) -> VerifyReport:
        """See ``Engine.verify``, also for Durability and Cancellation."""
        return report_of(self.send(calls.engine_call("/verify", {}, takes_long=True)))

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """See ``Engine.checkpoint``. ``path`` lies below the server's folder for checkpoints.

        Durability and Cancellation: as there.
        """
        self.send(calls.checkpoint(path))

    def migrate_bodies(self) -> MigrationReport:
        """See ``Engine.migrate_bodies``, also for Durability and Cancellation."""
        doc = self.send(calls.engine_call("/migrate_bodies", {}, takes_long=True))
        return flat_of(MigrationReport, doc)

    def fsync(self) -> None:
        """See ``Engine.fsync``, also for Durability and Cancellation."""
        self.send(calls.engine_call("/fsync", {}))

    # -- data at large -----------------------------------------------------------------

    def snapshot(self, *, keep: Duration = SNAPSHOT_S) -> Snapshot:
        """See ``Engine.snapshot``, also for Durability. Its ``path`` is the server's.

        Cancellation: the server may take it all the same; it lapses.
        """
        return bulk.snapshot_of(self.send(bulk.snapshot(keep)))

    def snapshots(self) -> list[Snapshot]:
        """See ``Engine.snapshots``, also for Durability and Cancellation."""
        return [bulk.snapshot_of(one) for one in (self.send(bulk.snapshots()))["snapshots"]]

    def release_snapshot(self, id: str) -> None:
        """See ``Engine.release_snapshot``, also for Durability and Cancellation."""
        self.send(bulk.release_snapshot(id))

    def purge_archived(self, plan: str | os.PathLike[str]) -> PurgeReport:
        """See ``Engine.purge_archived``, also for Durability and Cancellation.

        ``plan`` is the client's: it is read here, and its rows are sent, 131,072 at a time.
        """
        report = PurgeReport()
        requests = bulk.purge_archived(self.session, plan)
        while (call := in_thread(partial(next, requests, None))) is not None:
            report = bulk.added(report, self.send(call))
        return report

    def ingest(self, job: str | None = None) -> IngestReport:
        """See ``Engine.ingest``, also for Durability. The inbox is the server's.

        Cancellation: the server goes on.
        """
        return bulk.ingest_of(self.send(bulk.ingest(job)))

    def forget_loads(self, older_than: Duration) -> ForgottenLoads:
        """See ``Engine.forget_loads``, also for Durability. The inbox is the server's.

        Cancellation: the server goes on.
        """
        return flat_of(ForgottenLoads, self.send(bulk.forget_loads(older_than)))
