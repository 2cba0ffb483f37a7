"""The engine as users hold it: ``Engine`` on its event loop, ``ThreadEngine`` for other threads.

Here is everything that spans queues and shards; what concerns one queue is in ``queue``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ...engine.bulk.snapshot_lease import release_snapshot
from ...engine.bulk.snapshots import list_snapshots
from ...engine.records.keyspace import check_name
from ...engine.runtime.task_id import TaskId
from ...engine.values import Snapshot
from ...errors import (
    ClosedError,
    LeaseLostError,
    LodeqError,
    NotLeaderError,
    PayloadNotLoadedError,
    UsageError,
)
from ..background.body_migration import migrate_bodies
from ..background.run_to_completion import run_to_completion
from ..bulk.purge import purge_archived
from ..model.arguments import SNAPSHOT_S, age_s, duration_s, length_s, listed, names_of
from ..model.calls.functions import PublishedFunction
from ..model.codec import SLICE_BYTES, check_slice
from ..model.encoded_tasks import TaskTemplate
from ..model.filters import (
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
from ..model.flows.sync_workflow_handle import SyncWorkflow
from ..model.flows.workflow_handle import Workflow
from ..model.flows.workflows import PARTS_MAX, OnFailure, WorkflowGraph, WorkflowInfo, WorkflowPage
from ..model.ingest_report import IngestReport
from ..model.queue_settings import (
    BY_OPERATOR,
    SETTING_UNCHANGED,
    QueueSettings,
    Unchanged,
    check_by,
    check_changes,
)
from ..model.reports import ForgottenLoads, MigrationReport, PurgeReport, VerifyReport
from ..model.values import (
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
from ..model.workers import WorkerReport
from ..state.engine_state import EngineState
from ..state.long_polls import ClaimBound
from ..state.turns import Turns
from ..tasks import lease_operations, lookup
from ..tasks.claim import bounded, claim, granted
from ..tasks.enqueue import check_durable, enqueue_many
from ..tasks.fast_path import submit_claim
from ..tasks.lease import Lease
from ..tasks.lookup import Payloads
from ..tasks.operators import admin, bulk_acts
from ..tasks.operators import functions as published
from ..tasks.operators.history import HistoryFilter, attempts, history, tenant_or_all
from ..tasks.operators.queue_settings import configure as set_rules
from ..tasks.operators.queue_settings import settings_of
from ..tasks.streamed_payloads import PayloadReader
from ..workflows import acts, build, graph, views
from . import workflow_calls
from .queue import (
    LEASE_S,
    Queue,
    encode_tasks,
    enqueue_waiting,
    has_dependencies,
    name_bad_task,
)
from .runtime import EngineRuntime
from .several_queues import SeveralQueues
from .statistics import queues_of, stats_of, sums_of
from .threads.thread_calls import ThreadCalls, ThreadTwin, blocking
from .threads.thread_leases import ThreadLease, ThreadPayloadReader
from .threads.thread_queue import ThreadQueue

if TYPE_CHECKING:
    from ...engine.values import Health

__all__ = ["Engine", "ThreadEngine", "claim_within", "runtime_of"]


class Engine:
    """An open store. Get one with ``async with lodeq.open(path) as engine:``.

    It belongs to the event loop (and thread) that opened it; from other threads use
    ``engine.sync``. Everything that can touch the disk is ``async``.
    """

    def __init__(self, state: EngineState, runtime: EngineRuntime) -> None:
        self._state = state
        self._runtime = runtime
        self._threads: ThreadEngine | None = None
        self._claims = SeveralQueues(state)

    def __repr__(self) -> str:
        state = "closed" if self._state.is_closed else "open"
        return f"<Engine {self.path or 'in memory'} shards={self.shards} {self.durability} {state}>"

    @property
    def path(self) -> str | None:
        """The store's folder; None in memory."""
        return self._runtime.opened.path

    @property
    def shards(self) -> int:
        """How many shards the store has; stamped when it was created."""
        return len(self._state.shards)

    @property
    def durability(self) -> str:
        """``nosync`` or ``fsync``."""
        return "fsync" if self._state.is_fsync else "nosync"

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
        faces: bool = True,
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
                priority, if there is one. With ALL_TENANTS, of every eight of a tenant: which
                tenant is served is settled by turns.
            codec: how objects become bytes; msgpack by default.
            faces: False stores no function, preview and labels, whoever gives them.

        Raises:
            InvalidNameError, UsageError: an argument is wrong; nothing was changed.
        """
        is_all = isinstance(tenant, AllTenants)
        queue_name, tenant_name = names_of(name, "" if is_all else tenant)
        defaults = TaskTemplate(
            queue_name,
            tenant_name,
            max_attempts=max_attempts,
            retention=retention,
            dead_retention=dead_retention,
            backoff=backoff,
            codec=codec,
            faces=faces,
        )
        queue = Queue(
            self._state,
            defaults,
            is_all_tenants=is_all,
            lease_s=length_s(lease),
            boost_after_s=None if boost_after is None else duration_s(boost_after, "boost_after"),
        )
        if codec is not None:
            self._state.codecs[queue_name] = codec
        return queue

    async def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> list[Receipt]:
        """Add tasks of several queues; every ``NewTask`` names its ``queue``.

        Otherwise as ``Queue.enqueue_many``, including Durability and Cancellation.
        """
        state, given = self._state, listed(tasks)
        try:
            state.check()
            check_durable(state, durable)
            if any(has_dependencies(task) for task in given):
                return await enqueue_waiting(state, given, None, durable, atomic=atomic)
            encoded_tasks = await encode_tasks(state, given, None)
            return await enqueue_many(state, encoded_tasks, durable, is_atomic=atomic)
        except LodeqError as error:
            if isinstance(error, UsageError) and not error.receipts:
                await name_bad_task(state, given, None, error)
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
        state = self._state
        state.check()
        request, wait_s = self._claims.request(queues, limit, lease, wait, worker, exported)
        if request.is_plain:
            submitted = submit_claim(state, request)
            if submitted is not None:
                future, leases = submitted
                return leases if future is None else await granted(state, future, leases)
        return await claim(state, request, wait_s)

    async def complete_many(
        self, pairs: Sequence[tuple[Lease, Any]], *, durable: bool | None = None
    ) -> list[LeaseLostError | None]:
        """Complete many leases, in one batch a shard for each 1,024 of them, or 4 MiB.

        Args:
            pairs: (lease, result) each; see ``Lease.complete`` for results.

        Returns: None for each that was completed, its ``LeaseLostError`` for each that was lost.

        Raises:
            PayloadTooLargeError, UsageError: nothing was written.
            StorageError: a shard takes no writes; the leases of other shards are completed.

        Durability: as ``Lease.complete``. Cancellation: batches that are queued happen; of up to
        1,024 leases all are, or none.
        """
        self._state.check()
        if durable is not None:
            check_durable(self._state, durable)
        return await lease_operations.complete_many(self._state, pairs, durable)

    async def heartbeat_many(
        self, leases: Sequence[Lease], seconds: Duration | None = None
    ) -> list[LeaseLostError | None]:
        """Extend many leases to now + ``seconds`` (default: each by its own length).

        Returns: None for each that was extended, its ``LeaseLostError`` for each that was lost.

        Raises:
            NotLeaderError: another replica may lead the shard of some; these were not extended, the
                others were. See ``Lease.heartbeat``.

        Durability: none needed. Cancellation: those that were reached are extended.
        """
        self._state.check()
        length = None if seconds is None else duration_s(seconds, "seconds")
        out: list[LeaseLostError | None] = []
        unknown: NotLeaderError | None = None
        turns = Turns(self._state)
        for lease in list(leases):  # of now: others have turns
            if len(out) % 1024 == 1023:
                await turns.give()
            try:
                lease_operations.check_lease(self._state, lease)
                lease_operations.heartbeat(lease, lease.lease_s if length is None else length)
                out.append(None)
            except LeaseLostError as error:
                out.append(error)
            except NotLeaderError as error:
                unknown = error
        if unknown is not None:
            raise unknown
        return out

    # -- settings of queues --------------------------------------------------------------

    async def configure(
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
        """Set what is durable of a queue, for all its tenants; see docs/limits.md.

        It holds at once, for every process that works on the store, and after a restart. What is
        not named stays as it is; None takes a setting back, so that the default holds.

        Args:
            queue: its name; it need not have any tasks.
            history: seconds for which the history of an ended task is kept, 0 for none.
            history_rows: ended tasks in the history at most.
            history_bytes: bytes of history at most.
            dead_max: dead letters at most; the oldest go first.
            dead_bytes: bytes of dead letters at most, estimated.
            faces: whether function, preview and labels of its tasks are stored.
            rate: starts in any window of a period: ``"10/s"``, ``"100/m"``, ``"3/10s"``.
            concurrency: leases at once over all shards and tenants, 1 to 1,000,000. Where several
                processes lead shards, each has its share of it, and of ``rate``.
            key_concurrency: leases at once of tasks with the same value of a label, in each tenant:
                ``"2/customer"``; 1 to 1,000,000. Tasks without the label have no such limit.
            by: who sets it, 1 to 512 bytes; kept with the setting.
            replace: False refuses to change what somebody else has set to another value.

        Returns: all that is set for the queue now.

        Raises:
            InvalidNameError, UsageError: an argument is wrong, or (``replace=False``) another has
                set it, who is named; nothing was changed.
            LimitError: 10,000 queues have settings; nothing was changed.
            StorageError: the first shard takes no writes, and settings lie there.

        Durability: on return it survives a power cut, in either mode.
        Cancellation: in the last wait it happens.
        """
        self._state.check()
        name, _ = names_of(queue, "")
        changes = check_changes(
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
        return await set_rules(self._state, name, changes, check_by(by), replace=replace)

    async def settings(self, queue: str) -> QueueSettings:
        """The settings of a queue, and who has set them; None is not set.

        Durability: includes what is queued but not yet committed. Cancellation: changes nothing.
        """
        self._state.check()
        return settings_of(self._state, names_of(queue, "")[0])

    # -- one task ----------------------------------------------------------------------

    async def get(self, task_id: AnyId) -> Task | None:
        """A task by id, in whatever state; None if it never existed or is forgotten.

        Raises:
            RecordCorruptError: its record is damaged, without which it cannot be found. ``list``
                shows it, ``purge`` ends it, a claim that comes to it buries it.
            NotLeaderError: it is not in this replica's copy, and another one leads its shard.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        self._state.check()
        return await lookup.get(self._state, TaskId(task_id))

    async def read_payload(self, task_id: AnyId) -> Any:
        """The payload of a task that has not ended, of any size, whole.

        Raises:
            TaskNotFoundError: there is no such task, or it has ended.
            NotLeaderError: it is not in this replica's copy, and another one leads its shard.
            RecordCorruptError: it is lost or damaged. StorageError: the disk failed.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        self._state.check()
        found = await lookup.get(self._state, TaskId(task_id))
        if found is not None and found.finished_at is None:
            with suppress(PayloadNotLoadedError):
                return found.payload
        async with await self.open_payload(task_id) as reader:
            return await reader.read()

    async def open_payload(
        self, task_id: AnyId, *, slice_bytes: int = SLICE_BYTES
    ) -> PayloadReader:
        """The payload of a task that has not ended, of any size, in slices.

        Args:
            slice_bytes: of each slice; at least 1. See ``Lease.open_payload``.

        Raises:
            TaskNotFoundError: there is no such task, or it has ended.
            NotLeaderError: it is not in this replica's copy, and another one leads its shard.
            RecordCorruptError: it is lost or damaged. StorageError: the disk failed.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        self._state.check()
        check_slice(slice_bytes)
        return await lookup.open_payload(self._state, TaskId(task_id), slice_bytes)

    async def result(self, task_id: AnyId, *, wait: Duration = 0.0) -> Result | None:
        """The result of a task; None until it has ended.

        Args:
            wait: seconds to wait for the end; it returns as soon as the task ends.

        Raises:
            TaskNotFoundError: it never existed, or its result has expired. Its ``state`` says how
                the task ended, as long as the history knows it.
            NotLeaderError: it is not in this replica's copy, and another one leads its shard.
            RecordCorruptError: its result is damaged.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        self._state.check()
        return await lookup.result(self._state, TaskId(task_id), duration_s(wait, "wait"))

    async def attempts(self, task_id: AnyId) -> list[Attempt]:
        """How the runs of a task ended, the earliest first: at most ten, and the one that ended it.

        A task that its first run completed has that one only; one that has not run has none.

        Raises:
            TaskNotFoundError: it never existed, or its history is over.
            NotLeaderError: it is not in this replica's copy, and another one leads its shard.
            RecordCorruptError: what is known of it is damaged.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        self._state.check()
        return await attempts(self._state, TaskId(task_id))

    async def history(
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
        """Tasks that have ended, those that were enqueued last first: results without a value.

        With ``oldest_first`` they come in the order in which they were enqueued, as in ``find``.
        Within its retention a result has its value; afterwards its row is kept as long as the
        history of its queue. The search is bounded: a page may come back short, with a cursor, and
        says so (``HistoryPage.is_short``). See docs/job-history.md.

        Args:
            queue: its name; None for all.
            tenant: its name; None for all, empty for the default tenant.
            function: name of the task function; None for all.
            state: completed, dead, expired or cancelled; None for all.
            since: only those that ended then or later; with a time zone.
            until: only those that ended before; with a time zone.
            text: part of its function, preview, error or of a label, in any case; None for all.
            limit: results, 1 to 1,000.
            cursor: of the page before, asked with the same order and ``after``; None begins.
            oldest_first: by rising ids.
            after: with ``oldest_first``, only what is behind this id; its task may be gone.

        Raises:
            InvalidNameError, UsageError: an argument is wrong, or the cursor is of another order or
                start.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        self._state.check()
        meant = HistoryFilter(
            queue=None if queue is None else check_name(queue, "queue"),
            tenant=tenant_or_all(tenant),
            function=function,
            state=state,
            since=since,
            until=until,
            text=text,
        )
        return await history(
            self._state,
            meant,
            limit=limit,
            cursor=cursor,
            oldest_first=oldest_first,
            after=after,
        )

    # -- search and bulk acts ----------------------------------------------------------

    async def find(
        self,
        tasks: TaskFilter,
        *,
        limit: int = 100,
        cursor: str | None = None,
        payloads: bool = True,
        oldest_first: bool = False,
        after: AnyId | None = None,
    ) -> FoundTasks:
        """Search for tasks by a filter: queue after queue, state after state, in the order of rows.

        Nothing is indexed for it. A call looks at 10,000 rows at most, so it may come back short,
        with a cursor, and says so. Tasks that come after the first call are not meant.

        ``oldest_first=True`` lists tasks that have ended in the order of their ids, upwards. That
        is the order in which they were enqueued, to the millisecond, not that in which they ended:
        one that ends after a page was read may belong before its last task, and whoever goes on
        behind that never sees it. See docs/find-and-act.md.

        Args:
            tasks: which tasks; with ``oldest_first`` those that are completed, expired or
                cancelled, which is also what no state means then.
            limit: tasks, 1 to 1,000.
            cursor: of the page before, asked with the same order and ``after``; None begins.
            payloads: False leaves out payloads and headers, and reads none.
            oldest_first: ended tasks by rising ids.
            after: with ``oldest_first``, only what is behind this id. It is a place in the order:
                its task may be in any state, or not be kept any more.

        Raises:
            UsageError: an argument is wrong, or the cursor is of another order or start.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        self._state.check()
        shown: Payloads = "decoded" if payloads else "none"
        return await bulk_acts.find(
            self._state,
            tasks,
            limit=limit,
            cursor=cursor,
            payloads=shown,
            oldest_first=oldest_first,
            after=after,
        )

    async def find_all(
        self,
        tasks: TaskFilter,
        *,
        payloads: bool = True,
        oldest_first: bool = False,
        after: AnyId | None = None,
    ) -> AsyncIterator[Task]:
        """Go through all tasks that a filter means, slice by slice: ``async for``; see ``find``.

        In memory are 1,000 tasks at most, or those that have 4 MiB of payloads.

        Args:
            tasks: which tasks.
            payloads: as ``find``.
            oldest_first: as ``find``.
            after: as ``find``.

        Durability and Cancellation: as ``find``.
        """
        cursor = None
        while True:
            page = await self.find(
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

    async def count(self, tasks: TaskFilter, *, looks: int = COUNT_LOOKS_MAX) -> FoundCount:
        """Count the tasks that a filter means.

        Args:
            tasks: which tasks.
            looks: rows that it looks at, 1 to 1,000,000 (or a page more); beyond them the number
                is "at least".

        Durability: what it counts is committed, or about to be. Cancellation: changes nothing.
        """
        self._state.check()
        return await bulk_acts.count(self._state, tasks, looks)

    async def act(
        self,
        name: Act,
        tasks: TaskFilter,
        *,
        priority: int | None = None,
        policy: RedrivePolicy = "stored",
        limit: int = FOUND_MAX,
        cursor: str | None = None,
    ) -> ActReport:
        """Act on tasks that a filter means: one slice. Call it again with the report's cursor.

        It changes tasks that were in their state when the first slice began, and looks at each
        again in the step that changes it. A slice that is repeated does no harm.

        Args:
            name: ``redrive`` (dead), ``cancel`` (ready, delayed, waiting, leased), ``delete``
                (dead, completed, expired, cancelled; a dedup window stays), ``reprioritise``
                (ready, delayed, waiting; the same place among its equals).
            tasks: which tasks; None as its state means all that the act applies to.
            priority: 0 to 9, for ``reprioritise``.
            policy: for ``redrive``, as ``Queue.redrive``.
            limit: tasks of this slice, 1 to 1,000.
            cursor: of the slice before; None begins.

        Raises:
            UsageError: an argument is wrong, or the act does not apply to a state asked for.

        Durability: as ``Queue.enqueue``. Cancellation: batches already queued happen.
        """
        self._state.check()
        return await bulk_acts.act(
            self._state,
            name,
            tasks,
            priority=priority,
            policy=policy,
            limit=limit,
            cursor=cursor,
        )

    async def cancel(self, task_id: AnyId) -> bool:
        """End a task that is ready, delayed, waiting or leased (its lease is revoked).

        Returns: whether there was such a task; False for one that is dead or has ended.

        Raises:
            RecordCorruptError: as ``get``; nothing changed.

        Durability: as ``Queue.enqueue``. Cancellation: in the last wait it happens.
        """
        self._state.check()
        return await admin.cancel(self._state, TaskId(task_id))

    async def discard(self, task_id: AnyId) -> bool:
        """Delete one dead letter, with its attempts; its dedup window stays.

        Many: ``act("delete", …)``.

        Returns: whether there was such a dead letter.

        Raises:
            UsageError: an unfinished workflow may still read it; nothing changed.

        Durability: as ``Queue.enqueue``. Cancellation: in the last wait it happens.
        """
        return discarded(await self.act("delete", discard_filter(task_id), limit=1))

    # -- workflows ---------------------------------------------------------------------

    async def workflow(
        self,
        callback: NewTask | None = None,
        *,
        key: str | bytes | None = None,
        name: str = "",
        on_failure: OnFailure = "run",
    ) -> Workflow:
        """Open a workflow: members are added to it, and when all have ended its callback runs.

        Args:
            callback: the task that runs once when it is sealed and all members have ended; it
                names its ``queue``. None: nothing runs.
            key: whoever opens a workflow with a key that is held gets that workflow; at most
                4,096 bytes. The key is held for a week after the workflow is over.
            name: shown to people, at most 128 bytes.
            on_failure: what follows when a member did not complete. ``run`` the callback
                (``parts(failed=True)`` names them), let it ``wait`` for a redrive, ``cancel`` it.
                It holds for members that wait for members as well.

        Durability: as ``Queue.enqueue``. Cancellation: in the last wait it happens.
        """
        opened = await workflow_calls.open_one(self._state, callback, key, name, on_failure)
        return Workflow(self, opened[0], opened[1], is_new=opened[2])

    async def add_members(
        self,
        workflow: AnyId,
        tasks: Sequence[NewTask],
        *,
        first: int | None = None,
        after: Sequence[AnyId] = (),
        chain: bool = False,
    ) -> list[TaskId]:
        """Add a slice of members to a workflow, in one batch. ``Workflow.add`` adds any number.

        Args:
            workflow: its id.
            tasks: at most 256 and 3 MiB; each names its ``queue``, none has a key.
            first: number of the first one: members whose numbers are taken are there already, and
                are not added again. None: the next free number; not for who may repeat the call.
            after: members that each of these waits for; 255 at most.
            chain: each of these waits for the one before it instead, the first for ``after``.

        Returns: their ids, in order, of those that were there as well.

        Raises:
            UsageError, LimitError: a task is wrong, or the workflow is sealed or cancelled.
            UnknownDependencyError: an id of ``after`` is no member.
            TaskNotFoundError: there is no such workflow.

        Durability: as ``Queue.enqueue``. Cancellation: in the last wait it happens.
        """
        return await workflow_calls.add(self._state, workflow, tasks, first, after, chain)

    async def enqueue_after(
        self, task: NewTask, after: Sequence[AnyId], *, on_failure: OnFailure = "run"
    ) -> TaskId:
        """Add a task that waits for others, wherever these live, and runs when they have ended.

        It reads their ends and results with ``parts``. Others on its own slot (those of its
        workflow, or of its ``shard_key``) let it go in the batch of their end; after an end
        elsewhere it takes until the next pass of the reaper, a second at most.

        Args:
            task: it names its ``queue``; no delay.
            after: 1 to 255 ids. One that has ended counts as its result says.
            on_failure: what follows when one did not complete: ``run``, ``wait`` (for ever, unless
                it is cancelled) or ``cancel``.

        Returns: its id.

        Raises:
            UnknownDependencyError: there is no such task, and no result of one.
            UsageError, LimitError: the call is wrong; nothing was written.
            NotLeaderError: one is on a shard whose leader was not reached, or that another of
                several processes has; the task was not written.

        Durability: as ``Queue.enqueue``. Cancellation: in the last wait it happens.
        """
        return await workflow_calls.after(self._state, task, after, on_failure)

    async def seal_workflow(self, workflow: AnyId) -> bool:
        """No more members: the callback runs as soon as all have ended. Returns if it was open.

        Durability: as ``Queue.enqueue``. Cancellation: in the last wait it happens.
        """
        return await workflow_calls.on(self._state, workflow, build.seal_workflow)

    async def workflow_info(self, workflow: AnyId) -> WorkflowInfo:
        """A workflow in numbers. ``TaskNotFoundError`` where there is none.

        Args:
            workflow: its id, or that of a member, its callback or the task that opened it.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        return await workflow_calls.on(self._state, workflow, views.workflow_info)

    async def workflow_graph(self, workflow: AnyId) -> WorkflowGraph:
        """A workflow as a small drawing: members in groups by function, and who failed.

        It looks at the first 2,000 members; ``info`` has the numbers of all.

        Args:
            workflow: its id, or that of a member, its callback or the task that opened it.

        Raises:
            TaskNotFoundError: there is no such workflow.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        return await workflow_calls.on(self._state, workflow, graph.workflow_graph)

    async def workflows(
        self, *, state: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> WorkflowPage:
        """A page of the workflows that are known, the newest first.

        One is known until a week after it is over.

        Args:
            state: ``open``, ``running``, ``waiting``, ``joined``, ``over`` or ``cancelled``; None
                for all.
            limit: workflows at most, 1 to 256.
            cursor: of the page before; None begins with the newest.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        return await workflow_calls.list_some(self._state, state, limit, cursor)

    async def parts(self, id: AnyId, *, failed: bool = False) -> AsyncIterator[Part]:
        """Go through all that a workflow or a task waits for, by number: ``async for``.

        It reads page by page: in memory are 1,024 parts at most, or those that have 4 MiB of
        results.

        Args:
            id: of a workflow, of its callback, or of a member that waits for others.
            failed: only those that have ended and did not complete.

        Raises:
            TaskNotFoundError: it is no workflow, and waits for no others.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        after = -1
        while page := await self.parts_page(id, after=after, limit=PARTS_MAX, failed=failed):
            for part in page:
                after = part.number
                yield part

    async def parts_page(
        self, id: AnyId, *, after: int = -1, limit: int = 256, failed: bool = False
    ) -> list[Part]:
        """One page of ``parts``: not all of them. The last page is followed by an empty one.

        Args:
            id: of a workflow, of its callback, or of a member that waits for others.
            after: the number of the last one of the page before; -1 for the first page.
            limit: parts at most, 1 to 1,024; fewer where their results have more than 4 MiB.
            failed: only those that have ended and did not complete.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        return await workflow_calls.parts_of(self._state, id, after, limit, failed)

    async def cancel_workflow(self, workflow: AnyId) -> int:
        """Cancel every task of a workflow that has not ended, its callback too, in slices.

        Returns: how many members were cancelled; the callback is not counted.

        Durability: as ``Queue.enqueue``. Cancellation: it goes on at the next open, or next call.
        """
        return await workflow_calls.on(self._state, workflow, acts.cancel_workflow)

    async def redrive_workflow(self, workflow: AnyId) -> int:
        """Redrive the dead members of a workflow, and have its callback wait for them again.

        A new generation begins. A callback that is over is made anew, with a new id.

        Returns: how many members were redriven.

        Raises:
            UsageError: it is not sealed, or its callback is under way.

        Durability: as ``Queue.enqueue``. Cancellation: it goes on at the next open, or next call.
        """
        return await workflow_calls.on(self._state, workflow, acts.redrive_workflow)

    # -- functions and workers ---------------------------------------------------------

    async def functions(self, queue: str | None = None) -> list[PublishedFunction]:
        """Functions that workers have published in this store, by queue and name.

        Args:
            queue: those of this queue only.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        self._state.check()
        return await published.functions(self._state, queue, None, None)

    async def publish_functions(self, functions: Sequence[PublishedFunction]) -> int:
        """Publish functions, as a worker does at its start; a newer start replaces an older one.

        At most 10,000 are kept, 2 KiB each; those longest not published give way.

        Returns: how many rows were written: none for those that say what they did.

        Raises:
            UsageError: one is wrong; nothing was written.
            LimitError: there are more than fit, and none that may give way.

        Durability: as ``Queue.enqueue``. Cancellation: slices already queued happen.
        """
        self._state.check()
        return await published.publish(self._state, functions)

    async def forget_function(self, queue: str, name: str) -> bool:
        """Forget a published function; tasks that wait for it stay.

        Returns: whether it was published.

        Durability: as ``Queue.enqueue``. Cancellation: in the last wait it happens.
        """
        self._state.check()
        return await published.forget_function(self._state, queue, name)

    async def enqueue_function(
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
        """Enqueue a call of a function by its name, with the policy that was published.

        The task is what the function's own ``enqueue`` makes: it has the whole policy, function
        and preview. Arguments are checked as far as the published schemas go.

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

        Raises:
            UsageError: no such function is published; or an argument is not one of its parameters,
                is missing, or is not what its schema says. The text says what exists, or where the
                wrong value stands. Nothing was written.

        Otherwise as ``Queue.enqueue``, including Durability and Cancellation.
        """
        self._state.check()
        names_of(queue, tenant)  # before the function is looked for
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
        }
        task = await published.task_by_name(self._state, queue, name, arguments, options)
        return (await self.enqueue_many([task], durable=durable))[0]

    async def beat(self, report: WorkerReport) -> None:
        """Report a worker and what it runs; kept in memory until ten minutes without a beat.

        Raises:
            UsageError: the report is wrong.

        Durability: none. Cancellation: does not wait.
        """
        self._state.check()
        self._runtime.workers.beat(report)

    async def workers(self) -> list[WorkerReport]:
        """Live workers of this store, as they last reported.

        Durability: none: known from beats since this engine was opened.
        Cancellation: does not wait.
        """
        self._state.check()
        return self._runtime.workers.workers()

    # -- whole store -------------------------------------------------------------------

    async def stats(self) -> EngineStats:
        """Counts and commit statistics, from memory. Many thousand queues take several turns.

        Durability: includes what is queued but not yet committed. Cancellation: changes nothing.
        """
        self._state.check()
        sums = await sums_of(self._state)
        self._state.check()
        return stats_of(self._state, self._runtime.opened.recoveries, sums)

    async def queues(self) -> dict[tuple[str, str], QueueStats]:
        """Statistics of every queue that holds anything, by (queue, tenant), sorted.

        Many thousand queues are counted in several turns of the loop, so not all at one moment.

        Durability: includes what is queued but not yet committed. Cancellation: changes nothing.
        """
        self._state.check()
        return await queues_of(self._state)

    async def health(self) -> Health:
        """``ok``, or the reasons why not: poisoned, stalled, disk low, anomalies, reaper late.

        Of a replica also whatever keeps it from following its log, or from leading: no session.

        Durability: reads a reserved key of every shard. Cancellation: changes nothing.
        """
        self._state.check()
        return self._runtime.health()

    async def verify(self) -> VerifyReport:
        """Check every row against every rule, and read every payload, in slices. Writes nothing.

        It reads a snapshot of each shard; until it ends no body file is removed.

        Durability: sees what is committed. Cancellation: changes nothing.
        """
        self._state.check()
        return await self._runtime.verify()

    async def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Make a consistent copy of every shard at ``path``, which must not exist; see ``restore``.

        Durability: holds everything acknowledged before the call. Cancellation: leaves nothing.
        """
        self._state.check()
        await self._runtime.checkpoint(path)

    async def snapshot(self, *, keep: Duration = SNAPSHOT_S) -> Snapshot:
        """Make a copy of every shard for other readers, under ``<store>/snapshots/``.

        Its tables are hard links: taking it costs next to nothing, and it takes space as the
        store moves on. See docs/snapshots.md, and ``checkpoint`` for a backup.

        Args:
            keep: seconds (or a timedelta) until the engine removes it, at most ten years. A reader
                can extend that.

        Raises:
            UsageError: the engine is in memory, or has not every shard; nothing was made.
            StorageError: a shard takes no writes, or the disk is full; nothing is left of it.

        Durability: holds everything acknowledged before the call, and survives a power cut.
        Cancellation: leaves nothing.
        """
        keep_s = duration_s(keep, "keep", least=0.001)
        self._state.check()
        return await self._runtime.snapshots.take(keep_s)

    async def snapshots(self) -> list[Snapshot]:
        """All complete snapshots, oldest first; ``latest`` stands for the last one.

        Durability: all of them survive a power cut. Cancellation: changes nothing.
        """
        self._state.check()
        listed = partial(list_snapshots, self._runtime.snapshots.root)
        found: list[Snapshot] = await self._state.spawner.run_in_thread(listed)
        return found

    async def release_snapshot(self, id: str) -> None:
        """Remove a snapshot, pinned or not. Whoever reads it gets an error.

        Raises:
            SnapshotNotFoundError: there is none with this id, or it has lapsed.

        Durability: a power cut may bring it back, whole. Cancellation: it is removed all the same.
        """
        self._state.check()
        release = partial(release_snapshot, self._runtime.snapshots.root, id)
        await run_to_completion(self._state.spawner, release, lambda _: None)

    async def purge_archived(self, plan: str | os.PathLike[str]) -> PurgeReport:
        """Remove results and dead letters that the archive job has saved.

        Exactly those that its plan names, by id and time: none that ended after the snapshot.

        Args:
            plan: the file (or its folder) that ``lodeq-spark archive`` names in its report.

        Raises:
            UsageError: the plan is for another store, or another number of shards.
            NotLeaderError: another replica leads a shard of the plan; nothing is purged.
            CorruptionError: the plan is damaged; rows read before the damage are purged.
            StorageError: the disk failed; call it again.

        Durability: as ``Queue.enqueue``. Cancellation: rows already removed stay removed; call it
        again.
        """
        self._state.check()
        store_id = self._runtime.opened.store_id
        return await purge_archived(self._state, store_id, plan)

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
        self._state.check()
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
        self._state.check()
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
        self._state.check()
        return await migrate_bodies(self._state, self._runtime.body_gc)

    async def fsync(self) -> None:
        """Make everything acknowledged so far durable, in either mode.

        Durability: on return it survives a power cut. Cancellation: the sync still happens.
        """
        self._state.check()
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
        super().__init__(engine, ThreadCalls(engine._state, engine._runtime))

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
        faces: bool = True,
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
            faces: False stores no function, preview and labels.
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
            faces=faces,
        )
        return ThreadQueue(queue, self._call)

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
        found = self._call(self._twin.workflow, callback, key=key, name=name, on_failure=on_failure)
        return SyncWorkflow(self, found.id, found.callback, is_new=found.is_new)

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

    configure = blocking(Engine.configure)
    """See ``Engine.configure``, also for Durability and Cancellation."""

    settings = blocking(Engine.settings)
    """See ``Engine.settings``, also for Durability and Cancellation."""

    get = blocking(Engine.get)
    """See ``Engine.get``, also for Durability and Cancellation."""

    read_payload = blocking(Engine.read_payload)
    """See ``Engine.read_payload``, also for Durability and Cancellation."""

    def open_payload(
        self, task_id: AnyId, *, slice_bytes: int = SLICE_BYTES
    ) -> ThreadPayloadReader:
        """See ``Engine.open_payload``, also for Durability and Cancellation."""
        reader = self._call(self._twin.open_payload, task_id, slice_bytes=slice_bytes)
        return ThreadPayloadReader(reader, self._call)

    attempts = blocking(Engine.attempts)
    """See ``Engine.attempts``, also for Durability and Cancellation."""

    history = blocking(Engine.history)
    """See ``Engine.history``, also for Durability and Cancellation."""

    result = blocking(Engine.result)
    """See ``Engine.result``, also for Durability and Cancellation."""

    cancel = blocking(Engine.cancel)
    """See ``Engine.cancel``, also for Durability and Cancellation."""

    discard = blocking(Engine.discard)
    """See ``Engine.discard``."""

    find = blocking(Engine.find)
    """See ``Engine.find``, also for Durability and Cancellation."""

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
            payloads: as ``Engine.find``.
            oldest_first: as ``Engine.find``.
            after: as ``Engine.find``.
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
            yield from page
            cursor = page.cursor
            if cursor is None:
                return

    count = blocking(Engine.count)
    """See ``Engine.count``, also for Durability and Cancellation."""

    act = blocking(Engine.act)
    """See ``Engine.act``, also for Durability and Cancellation."""

    add_members = blocking(Engine.add_members)
    """See ``Engine.add_members``."""

    enqueue_after = blocking(Engine.enqueue_after)
    """See ``Engine.enqueue_after``."""

    seal_workflow = blocking(Engine.seal_workflow)
    """See ``Engine.seal_workflow``."""

    workflow_info = blocking(Engine.workflow_info)
    """See ``Engine.workflow_info``."""

    workflow_graph = blocking(Engine.workflow_graph)
    """See ``Engine.workflow_graph``."""

    workflows = blocking(Engine.workflows)
    """See ``Engine.workflows``."""

    def parts(self, id: AnyId, *, failed: bool = False) -> Iterator[Part]:
        """See ``Engine.parts``, also for Durability and Cancellation."""
        after = -1
        while page := self.parts_page(id, after=after, limit=PARTS_MAX, failed=failed):
            yield from page
            after = page[-1].number

    parts_page = blocking(Engine.parts_page)
    """See ``Engine.parts_page``."""

    cancel_workflow = blocking(Engine.cancel_workflow)
    """See ``Engine.cancel_workflow``."""

    redrive_workflow = blocking(Engine.redrive_workflow)
    """See ``Engine.redrive_workflow``."""

    functions = blocking(Engine.functions)
    """See ``Engine.functions``, also for Durability and Cancellation."""

    publish_functions = blocking(Engine.publish_functions)
    """See ``Engine.publish_functions``, also for Durability and Cancellation."""

    forget_function = blocking(Engine.forget_function)
    """See ``Engine.forget_function``, also for Durability and Cancellation."""

    enqueue_function = blocking(Engine.enqueue_function)
    """See ``Engine.enqueue_function``, also for Durability and Cancellation."""

    beat = blocking(Engine.beat)
    """See ``Engine.beat``, also for Durability and Cancellation."""

    workers = blocking(Engine.workers)
    """See ``Engine.workers``, also for Durability and Cancellation."""

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


async def claim_within(
    engine: Engine,
    queues: Sequence[Queue],
    bound: ClaimBound,
    *,
    limit: int,
    lease: Duration | None,
    wait: Duration,
    worker: str,
    **skipped: Collection[str],
) -> list[Lease]:
    """A claim for another process, of which ``bound`` says how many bytes it may take.

    Args:
        engine: open, on this loop.
        queues: one at least.
        bound: asked whenever it takes.
        limit: 1 to 4,096 tasks.
        lease: seconds; None uses the queues' own.
        wait: seconds for the first task.
        worker: at most 256 bytes.
        skipped: ``skip_tenants`` and ``skip_functions``, of one queue.

    Otherwise as ``Queue.claim``, including Durability and Cancellation.
    """
    if len(queues) == 1:
        return await queues[0]._claim_within(
            bound, limit=limit, lease=lease, wait=wait, worker=worker, **skipped
        )
    engine._state.check()
    request, wait_s = engine._claims.request(queues, limit, lease, wait, worker, True)
    return await claim(engine._state, bounded(request, bound), wait_s)


def _twin(lease: ThreadLease | Lease) -> Lease:
    return lease.twin if isinstance(lease, ThreadLease) else lease
