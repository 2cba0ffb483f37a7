# Generated from client/queue.py by make twins; do not edit.
"""A queue of a client whose calls block."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import itemgetter
from typing import Any, Unpack

from ...errors import IncompleteError, LodeqError
from ...repository.model.arguments import duration_s, listed, waits
from ...repository.model.flows.workflows import OnFailure
from ...repository.model.payload_sources import PayloadSource
from ...repository.model.tally import Tally
from ...repository.model.task_options import (
    CONFLICT_DEFAULT,
    NO_IDS,
    ON_FAILURE_DEFAULT,
    PRIORITY_DEFAULT,
)
from ...repository.model.values import (
    AnyId,
    Backoff,
    Duration,
    NewTask,
    OnConflict,
    QueueStats,
    Receipt,
    RedrivePolicy,
    StreamOptions,
    Task,
)
from .. import calls
from ..calls import FORM, QueueTemplate
from ..documents.records import flat_of, receipt_of, task_of
from ..uploads import enqueue_stream
from .lease import SyncRemoteLease
from .leases import SyncRemoteLeaseStream
from .requests import SyncRemoteRequests, read_whole

__all__ = ["SyncRemoteQueue"]

# Inside the class ``list`` is a method.
Leases = list[SyncRemoteLease]
Receipts = list[Receipt]
Tasks = list[Task]


class SyncRemoteQueue:
    """A queue of a served store whose calls block, with the methods of ``lodeq.Queue``.

    ``lodeq.Queue`` says what each call does, raises and promises.
    """

    __slots__ = ("_engine", "_template")

    def __init__(self, engine: SyncRemoteRequests, template: QueueTemplate) -> None:
        self._engine = engine
        self._template = template

    def __repr__(self) -> str:
        tenant = "*" if self._template.is_all else repr(self.tenant)
        return f"<SyncRemoteQueue {self.name!r} tenant={tenant}>"

    @property
    def template(self) -> QueueTemplate:
        """The queue and tenant, with the options its tasks have in common."""
        return self._template

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._template.name

    @property
    def tenant(self) -> str:
        """The tenant's name; empty for the default tenant, and for ALL_TENANTS."""
        return self._template.tenant

    # -- enqueue -----------------------------------------------------------------------

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
        retry: Backoff | None = None,
        retention: Duration | None = None,
        dead_retention: Duration | None = None,
        shard_key: str | bytes | None = None,
        labels: Mapping[str, str] | None = None,
        function: str | None = None,
        preview: str | None = None,
        durable: bool | None = None,
        after: Sequence[AnyId] = (),
        on_failure: OnFailure = "run",
    ) -> Receipt:
        """See ``Queue.enqueue``, also for Durability and Cancellation.

        Args:
            payload: at most ``Limits.payload_bytes_max`` once the codec or msgpack has packed it.
            priority: 0 to 9, 9 is claimed first.
            delay: seconds until it may be claimed; not with ``run_at``.
            run_at: an aware datetime before which it is not claimed.
            ttl: seconds after which it expires unless it is leased.
            dedup_key: 1 to 4,096 bytes; at most one live task has it in this queue and tenant.
            dedup_window: seconds for which the key is held at least.
            on_conflict: ``return`` the holder's receipt, ``raise``, or ``replace`` the holder.
            headers: at most ``Limits.headers_bytes_max`` as msgpack.
            max_attempts: 1 to 65,535; None: the queue's.
            retry: how long it waits after a run that failed; None: the queue's.
            retention: seconds that its result is kept; None: the queue's.
            dead_retention: seconds that it is kept as a dead letter; None: the queue's.
            shard_key: 1 to 4,096 bytes; tasks of one key lie on one shard.
            labels: at most 8, each 64 bytes as ``key=value``.
            function: name of what the task calls, at most 256 bytes.
            preview: its arguments for people to read, cut to 256 bytes.
            durable: True waits for an fsync, whatever the server's mode.
            after: ids of at most 255 tasks that it waits for.
            on_failure: what follows when one of ``after`` did not complete.
        """
        fast = self._engine.fast
        if (
            fast is not None
            and priority is PRIORITY_DEFAULT
            and delay is None
            and run_at is None
            and ttl is None
            and dedup_key is None
            and dedup_window is None
            and headers is None
            and max_attempts is None
            and retry is None
            and retention is None
            and dead_retention is None
            and shard_key is None
            and labels is None
            and function is None
            and preview is None
            and durable is None
            and on_conflict is CONFLICT_DEFAULT
            and not waits(after, on_failure)
        ):
            receipt = fast.enqueue(self._template, payload)
            if receipt is not None:
                return receipt
            fast = None
        task = NewTask(
            payload,
            None,
            None,
            priority,
            delay,
            run_at,
            ttl,
            dedup_key,
            dedup_window,
            on_conflict,
            headers,
            max_attempts,
            shard_key,
            retry=retry,
            retention=retention,
            dead_retention=dead_retention,
            labels=labels,
            function=function,
            preview=preview,
            after=after,
            on_failure=on_failure,
        )
        if (
            fast is not None
            and durable is None
            and after is NO_IDS
            and on_failure is ON_FAILURE_DEFAULT
        ):
            receipt = fast.enqueue_with(self._template, task)
            if receipt is not None:
                return receipt
        doc = self._engine.send(calls.enqueue(self._engine.session, self._template, task, durable))
        return receipt_of(doc["receipts"][0])

    def enqueue_stream(
        self,
        source: PayloadSource,
        *,
        durable: bool | None = None,
        **options: Unpack[StreamOptions],
    ) -> Receipt:
        """See ``Queue.enqueue_stream``, also for Durability.

        The payload goes over HTTP, on a connection of its own, in slices of at most 256 KiB. A
        client that blocks takes no asynchronous iterable.

        Args:
            source: an iterable of bytes or a file open for reading bytes; of at most
                ``Limits.payload_bytes_max`` of the server.
            durable: True waits for an fsync, whatever the server's mode.
            options: those of ``enqueue``, but ``after`` and ``on_failure``; at most 28 KiB.

        Raises:
            UnreachableError: the connection was lost before all was sent: nothing was enqueued.
            CommitUnknownError: it was lost after that. It is never sent again by itself.
            Otherwise as ``Queue.enqueue_stream``.

        Cancellation: until all of the payload is sent nothing has happened.
        """
        call = enqueue_stream(self._engine.session, self._template, options, durable)
        return receipt_of(self._engine.upload(call, source))

    def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> Receipts:
        """See ``Queue.enqueue_many``, also for Durability and Cancellation."""
        return self._engine.enqueue_tasks(self._template, listed(tasks), durable, atomic)

    # -- claim -------------------------------------------------------------------------

    def claim(
        self,
        *,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0.0,
        worker: str = "",
        exported: bool = False,
        skip_tenants: Collection[str] = (),
        dead: bool = False,
        skip_functions: Collection[str] = (),
    ) -> Leases:
        """See ``Queue.claim``, also for Durability and Cancellation.

        Args:
            limit: the most leases, 1 to 4,096; the server bounds it further.
            lease: seconds until a lease may be reaped, at most 49 days; None: the queue's.
            wait: seconds to wait for the first task.
            worker: a name kept with lease and result, at most 256 bytes.
            exported: changes nothing: leases of a served store always outlive the server.
            skip_tenants: with ALL_TENANTS, tenants that get nothing this time.
            dead: take dead letters instead, the oldest first, 256 at most.
            skip_functions: with ALL_TENANTS, functions whose tasks are left to others where that
                can be; an older server, and a cluster, leaves none.
        """
        return self._engine.claim_from(
            [self._template],
            limit=limit,
            lease=lease,
            wait=wait,
            worker=worker,
            skip_tenants=skip_tenants,
            dead=dead,
            skip_functions=skip_functions,
        )

    def claim_one(
        self,
        *,
        lease: Duration | None = None,
        wait: Duration = 0.0,
        worker: str = "",
        dead: bool = False,
    ) -> SyncRemoteLease | None:
        """See ``Queue.claim_one``, also for Durability and Cancellation."""
        leases = self.claim(lease=lease, wait=wait, worker=worker, dead=dead)
        return leases[0] if leases else None

    def leases(
        self,
        *,
        limit: int = 64,
        lease: Duration | None = None,
        keepalive: bool = True,
        wait: Duration = 1.0,
        worker: str = "",
    ) -> SyncRemoteLeaseStream:
        """See ``Queue.leases``, also for Durability and Cancellation.

        Args:
            limit: the most leases of one claim, 1 to 4,096.
            lease: seconds, at most 49 days; None: the queue's.
            keepalive: extend the leases that are held, every third of their length.
            wait: seconds that one claim waits for tasks, 0.001 at least.
            worker: a name kept with lease and result, at most 256 bytes.
        """
        calls.check_claim(limit, lease, worker)
        wait_s = duration_s(wait, "wait", least=0.001)
        claim = partial(self.claim, limit=limit, lease=lease, wait=wait_s, worker=worker)
        return SyncRemoteLeaseStream(self._engine, claim, is_kept_alive=keepalive)

    # -- reading -----------------------------------------------------------------------

    def stats(self) -> QueueStats:
        """See ``Queue.stats``, also for Durability and Cancellation."""
        call = calls.queue_call(self._template, "stats")
        return read_whole(self._engine, call, partial(flat_of, QueueStats))

    def list(self, state: str, *, limit: int = 100, after: Task | None = None) -> Tasks:
        """See ``Queue.list``, also for Durability and Cancellation."""
        codecs = self._engine.session.codecs
        found: Tasks = []
        while True:
            query = calls.list_query(state, limit - len(found) if found else limit, after)
            try:
                doc = self._engine.send(calls.queue_call(self._template, "tasks", **query))
            except IncompleteError as error:
                rest = error.found["tasks"]
                error.found = found + [task_of(FORM, one, codecs) for one in rest]
                raise
            found += [task_of(FORM, one, codecs) for one in doc["tasks"]]
            if not doc["more"]:
                return found
            after = found[-1]

    def peek(self, limit: int = 10) -> Tasks:
        """See ``Queue.peek``, also for Durability and Cancellation."""
        return self.list("ready", limit=limit)

    def dead_letters(self, limit: int = 100, *, after: Task | None = None) -> Tasks:
        """See ``Queue.dead_letters``, also for Durability and Cancellation."""
        return self.list("dead", limit=limit, after=after)

    # -- operating ---------------------------------------------------------------------

    def redrive(
        self, ids: Sequence[AnyId] | None = None, *, policy: RedrivePolicy = "stored"
    ) -> int:
        """See ``Queue.redrive``, also for Durability and Cancellation."""
        problem: LodeqError | None = None
        with Tally() as tally:
            for call in calls.redrive(self._engine.session, self._template, ids, policy):
                try:
                    tally.count += read_whole(self._engine, call, itemgetter("redriven"))
                except calls.REDRIVE_ERRORS as error:
                    tally.take(error)
                    problem = problem or error
            if problem is not None:
                raise problem
        return tally.count

    def pause(self) -> None:
        """See ``Queue.pause``, also for Durability and Cancellation."""
        self._do("pause", {})

    def resume(self) -> bool:
        """See ``Queue.resume``, also for Durability and Cancellation."""
        is_resumed: bool = (self._do("resume", {}))["resumed"]
        return is_resumed

    def cancel_all(self, *, leased: bool = True) -> int:
        """See ``Queue.cancel_all``, also for Durability and Cancellation."""
        call = calls.cancel_all(self._engine.session, self._template, leased)
        cancelled: int = read_whole(self._engine, call, itemgetter("cancelled"))
        return cancelled

    def purge(self, state: str | None = None) -> int:
        """See ``Queue.purge``, also for Durability and Cancellation."""
        doc = {} if state is None else {"state": state}
        call = calls.queue_call(self._template, "purge", doc)
        purged: int = read_whole(self._engine, call, itemgetter("purged"))
        return purged

    def _do(self, verb: str, doc: Any) -> Any:
        return self._engine.send(calls.queue_call(self._template, verb, doc))
