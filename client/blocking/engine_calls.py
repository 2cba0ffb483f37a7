# Generated from client/engine_calls.py by make twins; do not edit.
"""The calls of a served engine that block: queues, tasks, figures, snapshots and loads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from ...engine.runtime.clock import SystemClock
from ...engine.runtime.task_id import TaskId
from ...engine.values import Health, Snapshot
from ...errors import IncompleteError, PayloadNotLoadedError, TaskNotFoundError, UsageError
from ...repository.model.arguments import SNAPSHOT_S, duration_s, listed
from ...repository.model.calls.functions import PublishedFunction
from ...repository.model.codec import SLICE_BYTES, check_slice
from ...repository.model.filters import (
    COUNT_LOOKS_MAX,
    FOUND_MAX,
    Act,
    ActReport,
    FoundCount,
    FoundTasks,
    TaskFilter,
    discard_filter,
    discarded,
)
from ...repository.model.flows.sync_workflow_handle import SyncWorkflow
from ...repository.model.flows.workflows import (
    PARTS_MAX,
    OnFailure,
    WorkflowGraph,
    WorkflowInfo,
    WorkflowPage,
)
from ...repository.model.ingest_report import IngestReport
from ...repository.model.queue_settings import (
    BY_OPERATOR,
    SETTING_UNCHANGED,
    QueueSettings,
    Unchanged,
)
from ...repository.model.reports import (
    ForgottenLoads,
    MigrationReport,
    PurgeReport,
    VerifyReport,
)
from ...repository.model.values import (
    AllTenants,
    AnyId,
    Attempt,
    Backoff,
    Codec,
    Duration,
    EngineStats,
    HistoryPage,
    NewTask,
    Part,
    QueueStats,
    Receipt,
    RedrivePolicy,
    Result,
    Task,
)
from ...repository.model.workers import WorkerReport
from .. import bulk, calls, filters, workflows
from .. import functions as by_name
from ..calls import FORM, LEASE_S, QueueTemplate
from ..documents.records import (
    attempt_of,
    flat_of,
    health_of,
    queues_of,
    receipt_of,
    report_of,
    result_of,
    settings_of,
    stats_of,
    task_of,
)
from .lease import SyncRemoteLease
from .payload import SyncRemotePayloadReader, open_remote_payload
from .queue import SyncRemoteQueue
from .requests import SyncRemoteRequests, read_whole
from .waits import in_thread

__all__ = ["SyncRemoteCalls"]

_mono = SystemClock.mono


def _history_of(codecs: Mapping[str, Codec], doc: Mapping[str, Any]) -> HistoryPage:
    results = tuple([result_of(FORM, one, codecs) for one in doc["results"]])
    has_cut_previews = doc.get("has_cut_previews", False)  # an older server sends none
    return HistoryPage(results, doc["cursor"], doc["is_short"], has_cut_previews)


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
        faces: bool = True,
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
            faces: False stores no function, preview and labels.
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
            faces=faces,
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

    # -- settings of queues --------------------------------------------------------------

    def configure(
        self,
        queue: str,
        *,
        history: Duration | Unchanged | None = SETTING_UNCHANGED,
        history_rows: int | Unchanged | None = SETTING_UNCHANGED,
        history_bytes: int | Unchanged | None = SETTING_UNCHANGED,
        dead_max: int | Unchanged | None = SETTING_UNCHANGED,
        dead_bytes: int | Unchanged | None = SETTING_UNCHANGED,
        faces: bool | Unchanged | None = SETTING_UNCHANGED,
        rate: str | Unchanged | None = SETTING_UNCHANGED,
        concurrency: int | Unchanged | None = SETTING_UNCHANGED,
        key_concurrency: str | Unchanged | None = SETTING_UNCHANGED,
        by: str = BY_OPERATOR,
        replace: bool = True,
    ) -> QueueSettings:
        """See ``Engine.configure``, also for Durability and Cancellation.

        Args:
            queue: its name; it need not have any tasks.
            history: seconds for which the history of an ended task is kept, 0 for none.
            history_rows: ended tasks in the history at most.
            history_bytes: bytes of history at most.
            dead_max: dead letters at most; the oldest go first.
            dead_bytes: bytes of dead letters at most, estimated.
            faces: whether function, preview and labels of its tasks are stored.
            rate: starts in any window of a period, such as ``"10/s"``.
            concurrency: leases at once, 1 to 1,000,000.
            key_concurrency: leases at once for each value of a label, such as ``"2/customer"``.
            by: who sets it, 1 to 512 bytes; kept with the setting.
            replace: False refuses to change what somebody else has set to another value.
        """
        doc = calls.settings_change(
            by,
            replace=replace,
            history=history,
            history_rows=history_rows,
            history_bytes=history_bytes,
            dead_max=dead_max,
            dead_bytes=dead_bytes,
            faces=faces,
            rate=rate,
            concurrency=concurrency,
            key_concurrency=key_concurrency,
        )
        return settings_of(self.send(calls.queue_settings(self.session, queue, doc)))

    def settings(self, queue: str) -> QueueSettings:
        """See ``Engine.settings``, also for Durability and Cancellation."""
        return settings_of(self.send(calls.queue_settings(self.session, queue)))

    # -- one task ----------------------------------------------------------------------

    def get(self, task_id: AnyId) -> Task | None:
        """See ``Engine.get``, also for Durability and Cancellation."""
        try:
            doc = self.send(calls.task_call(task_id))
        except TaskNotFoundError:
            return None
        return task_of(FORM, doc, self.session.codecs)

    def read_payload(self, task_id: AnyId) -> Any:
        """See ``Engine.read_payload``, also for Durability and Cancellation."""
        found = self.get(task_id)
        if found is not None and found.finished_at is None:
            with suppress(PayloadNotLoadedError):
                return found.payload
        with self.open_payload(task_id) as reader:
            return reader.read()

    def open_payload(
        self, task_id: AnyId, *, slice_bytes: int = SLICE_BYTES
    ) -> SyncRemotePayloadReader:
        """See ``Engine.open_payload``, also for Durability and Cancellation."""
        check_slice(slice_bytes)
        return open_remote_payload(self, TaskId(task_id), slice_bytes)

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

    def attempts(self, task_id: AnyId) -> list[Attempt]:
        """See ``Engine.attempts``, also for Durability and Cancellation."""
        calls.check_history(self.session)
        doc = self.send(calls.task_call(task_id, what="/attempts"))
        return [attempt_of(one) for one in doc["attempts"]]

    def history(
        self,
        queue: str | None = None,
        *,
        tenant: str | None = None,
        function: str | None = None,
        state: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        text: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        oldest_first: bool = False,
        after: AnyId | None = None,
    ) -> HistoryPage:
        """See ``Engine.history``, also for Durability and Cancellation.

        Args:
            queue: its name; None for all.
            tenant: its name; None for all, empty for the default tenant.
            function: name of the task function; None for all.
            state: completed, dead, expired or cancelled; None for all.
            since: only those that ended then or later; with a time zone.
            until: only those that ended before; with a time zone.
            text: part of its function, preview, error or of a label, in any case; None for all.
            limit: results, 1 to 1,000; an answer holds 4 MiB of values at most.
            cursor: of the page before; None begins.
            oldest_first: by rising ids.
            after: with ``oldest_first``, only what is behind this id.
        """
        call = calls.history(
            self.session,
            queue,
            since=since,
            until=until,
            limit=limit,
            oldest_first=oldest_first,
            after=after,
            tenant=tenant,
            function=function,
            state=state,
            text=text,
            cursor=cursor,
        )
        return read_whole(self, call, partial(_history_of, self.session.codecs))

    # -- search and bulk acts ----------------------------------------------------------

    def find(
        self,
        tasks: TaskFilter,
        *,
        limit: int = 100,
        cursor: str | None = None,
        payloads: bool = True,
        oldest_first: bool = False,
        after: AnyId | None = None,
    ) -> FoundTasks:
        """See ``Engine.find``, also for Durability and Cancellation.

        Args:
            tasks: which tasks.
            limit: tasks, 1 to 1,000.
            cursor: of the page before; None begins.
            payloads: False leaves out payloads and headers.
            oldest_first: ended tasks by rising ids.
            after: with ``oldest_first``, only what is behind this id.
        """
        call = filters.find(
            self.session,
            tasks,
            limit,
            cursor,
            payloads=payloads,
            oldest_first=oldest_first,
            after=after,
        )
        return read_whole(self, call, partial(filters.found_of, self.session))

    def find_all(
        self,
        tasks: TaskFilter,
        *,
        payloads: bool = True,
        oldest_first: bool = False,
        after: AnyId | None = None,
    ) -> Iterator[Task]:
        """See ``Engine.find_all``, also for Durability and Cancellation.

        Args:
            tasks: which tasks.
            payloads: as ``find``.
            oldest_first: as ``find``.
            after: as ``find``.
        """
        cursor = None
        while True:
            page = self.find(
                tasks,
                limit=FOUND_MAX,
                cursor=cursor,
                payloads=payloads,
                oldest_first=oldest_first,
                after=after,
            )
            for task in page:
                yield task
            cursor = page.cursor
            if cursor is None:
                return

    def count(self, tasks: TaskFilter, *, looks: int = COUNT_LOOKS_MAX) -> FoundCount:
        """See ``Engine.count``, also for Durability and Cancellation."""
        return read_whole(self, filters.count(self.session, tasks, looks), filters.count_of)

    def act(
        self,
        name: Act,
        tasks: TaskFilter,
        *,
        priority: int | None = None,
        policy: RedrivePolicy = "stored",
        limit: int = FOUND_MAX,
        cursor: str | None = None,
    ) -> ActReport:
        """See ``Engine.act``, also for Durability and Cancellation.

        Args:
            name: ``redrive``, ``cancel``, ``delete`` or ``reprioritise``.
            tasks: which tasks.
            priority: 0 to 9, for ``reprioritise``.
            policy: ``stored`` or ``current``, for ``redrive``.
            limit: tasks of this slice, 1 to 1,000.
            cursor: of the slice before; None begins.
        """
        call = filters.act(
            self.session,
            name,
            tasks,
            priority=priority,
            policy=policy,
            limit=limit,
            cursor=cursor,
        )
        return filters.act_of(self.send(call))

    def cancel(self, task_id: AnyId) -> bool:
        """See ``Engine.cancel``, also for Durability and Cancellation."""
        cancelled: bool = (self.send(calls.task_call(task_id, method="DELETE")))["cancelled"]
        return cancelled

    def discard(self, task_id: AnyId) -> bool:
        """See ``Engine.discard``, also for Durability and Cancellation."""
        return discarded(self.act("delete", discard_filter(task_id), limit=1))

    # -- workflows ---------------------------------------------------------------------

    def workflow(
        self,
        callback: NewTask | None = None,
        *,
        key: str | bytes | None = None,
        name: str = "",
        on_failure: OnFailure = "run",
    ) -> SyncWorkflow:
        """See ``Engine.workflow``, also for Durability and Cancellation.

        Args:
            callback: the task that runs when all members have ended, or None.
            key: whoever opens a workflow with it again gets the same one.
            name: shown to people, at most 128 bytes.
            on_failure: ``run``, ``wait`` or ``cancel``.
        """
        call = workflows.workflow(self.session, callback, key, name, on_failure)
        doc = self.send(call)
        target = doc["callback"]
        found = None if target is None else TaskId(target)
        return SyncWorkflow(self, TaskId(doc["id"]), found, is_new=doc["is_new"])

    def add_members(
        self,
        workflow: AnyId,
        tasks: Sequence[NewTask],
        *,
        first: int | None = None,
        after: Sequence[AnyId] = (),
        chain: bool = False,
    ) -> list[TaskId]:
        """See ``Engine.add_members``, also for Durability and Cancellation.

        Args:
            workflow: its id.
            tasks: at most 256 and 3 MiB; each names its ``queue``, none has a key.
            first: number of the first; None: the next.
            after: members that each of these waits for.
            chain: each of these waits for the one before it.
        """
        call = workflows.add_members(self.session, workflow, tasks, first, after, chain)
        return [TaskId(one) for one in (self.send(call))["ids"]]

    def enqueue_after(
        self, task: NewTask, after: Sequence[AnyId], *, on_failure: OnFailure = "run"
    ) -> TaskId:
        """See ``Engine.enqueue_after``, also for Durability and Cancellation."""
        call = workflows.enqueue_after(self.session, task, after, on_failure)
        return TaskId((self.send(call))["id"])

    def seal_workflow(self, workflow: AnyId) -> bool:
        """See ``Engine.seal_workflow``, also for Durability and Cancellation."""
        was_open: bool = (self.send(workflows.change(workflow, "seal")))["was_open"]
        return was_open

    def workflow_info(self, workflow: AnyId) -> WorkflowInfo:
        """See ``Engine.workflow_info``, also for Durability and Cancellation."""
        return workflows.info_of(self.send(workflows.read(workflow)))

    def workflow_graph(self, workflow: AnyId) -> WorkflowGraph:
        """See ``Engine.workflow_graph``, also for Durability and Cancellation."""
        return workflows.graph_of(self.send(workflows.read(workflow, "/graph")))

    def workflows(
        self, *, state: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> WorkflowPage:
        """See ``Engine.workflows``, also for Durability and Cancellation.

        Args:
            state: one of the states of a workflow; None for all.
            limit: workflows at most, 1 to 256.
            cursor: of the page before; None begins with the newest.
        """
        return read_whole(self, workflows.some(state, limit, cursor), workflows.page_of)

    def parts(self, id: AnyId, *, failed: bool = False) -> Iterator[Part]:
        """See ``Engine.parts``, also for Durability and Cancellation."""
        after = -1
        while page := self.parts_page(id, after=after, limit=PARTS_MAX, failed=failed):
            for part in page:
                after = part.number
                yield part

    def parts_page(
        self, id: AnyId, *, after: int = -1, limit: int = 256, failed: bool = False
    ) -> list[Part]:
        """See ``Engine.parts_page``, also for Durability and Cancellation.

        Args:
            id: of a workflow, of its callback, or of a member that waits for others.
            after: the number of the last one of the page before; -1 for the first page.
            limit: parts at most, 1 to 1,024; fewer where their values are large.
            failed: only those that have ended and did not complete.
        """
        doc = self.send(workflows.parts(id, after, limit, failed))
        return [workflows.part_of(one, self.session.codecs) for one in doc["parts"]]

    def cancel_workflow(self, workflow: AnyId) -> int:
        """See ``Engine.cancel_workflow``, also for Durability and Cancellation."""
        count: int = (self.send(workflows.change(workflow, "cancel")))["cancelled"]
        return count

    def redrive_workflow(self, workflow: AnyId) -> int:
        """See ``Engine.redrive_workflow``, also for Durability and Cancellation."""
        count: int = (self.send(workflows.change(workflow, "redrive")))["redriven"]
        return count

    # -- functions and workers ---------------------------------------------------------

    def functions(self, queue: str | None = None) -> list[PublishedFunction]:
        """See ``Engine.functions``, also for Durability and Cancellation."""
        found: list[PublishedFunction] = []
        after: str | None = None
        while True:
            doc = self.send(by_name.functions(self.session, queue, after))
            found += by_name.functions_of(doc)
            after = doc["next"]
            if after is None:
                return found

    def publish_functions(self, functions: Sequence[PublishedFunction]) -> int:
        """See ``Engine.publish_functions``, also for Durability and Cancellation."""
        written = 0
        for call in by_name.publish(self.session, functions):
            written += (self.send(call))["written"]
        return written

    def forget_function(self, queue: str, name: str) -> bool:
        """See ``Engine.forget_function``, also for Durability and Cancellation."""
        doc = self.send(by_name.forget_function(self.session, queue, name))
        forgotten: bool = doc["forgotten"]
        return forgotten

    def enqueue_function(
        self,
        queue: str,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        tenant: str = "",
        priority: int | None = None,
        delay: Duration | None = None,
        ttl: Duration | None = None,
        dedup_key: str | bytes | None = None,
        headers: Mapping[str, Any] | None = None,
        max_attempts: int | None = None,
        labels: Mapping[str, str] | None = None,
        preview: str | None = None,
        durable: bool | None = None,
    ) -> Receipt:
        """See ``Engine.enqueue_function``, also for Durability and Cancellation.

        Args:
            queue: of the function.
            name: of the function.
            arguments: values by parameter name.
            tenant: whose task; empty for the default tenant.
            priority: 0 to 9; None takes the function's.
            delay: seconds until the task may be claimed.
            ttl: seconds after which it expires; None takes the function's.
            dedup_key: whoever holds it, its receipt is returned.
            headers: a mapping with str keys; ``lodeq.task`` is added.
            max_attempts: 1 to 65,535; None takes the function's.
            labels: as ``Queue.enqueue``.
            preview: arguments for people to read; None makes one of ``arguments``.
            durable: as ``Queue.enqueue``.
        """
        redaction = self.session.redaction
        if redaction is not None and isinstance(labels, Mapping | None):
            found = self.functions(queue)
            labels = by_name.stored_labels(redaction, found, name, arguments, labels)
        options = {
            "tenant": tenant,
            "priority": priority,
            "delay": delay,
            "ttl": ttl,
            "dedup_key": dedup_key,
            "headers": headers,
            "max_attempts": max_attempts,
            "labels": labels,
            "preview": preview,
            "durable": durable,
        }
        call = by_name.enqueue_function(self.session, queue, name, arguments, options)
        return receipt_of(self.send(call))

    def beat(self, report: WorkerReport) -> None:
        """See ``Engine.beat``, also for Durability and Cancellation."""
        self.send(by_name.beat(self.session, report))

    def workers(self) -> list[WorkerReport]:
        """See ``Engine.workers``, also for Durability and Cancellation."""
        return by_name.workers_of(self.send(by_name.workers(self.session)))

    # -- the whole ---------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """See ``Engine.stats``, also for Durability and Cancellation."""
        return read_whole(self, calls.engine_call("/stats"), stats_of)

    def queues(self) -> dict[tuple[str, str], QueueStats]:
        """See ``Engine.queues``, also for Durability and Cancellation."""
        found: dict[tuple[str, str], QueueStats] = {}
        after: str | None = None
        while True:
            try:
                doc = self.send(calls.queues(after))
            except IncompleteError as error:
                error.found = found | queues_of(error.found)
                raise
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
        doc = self.send(calls.long_write("/migrate_bodies", {}))
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
