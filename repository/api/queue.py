"""A queue as users hold it: ``Queue``, and what a call over several of them is made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Unpack

from ...engine.runtime.task_id import TaskId
from ...engine.values import spelled
from ...errors import LodeqError, UsageError
from ..model.arguments import (
    check_after,
    check_limit,
    check_redrive_policy,
    check_worker,
    duration_s,
    length_s,
    listed,
    names_of,
    task_ids,
    waits,
)
from ..model.codec import encode_headers
from ..model.encoded_tasks import (
    EncodedTask,
    TaskTemplate,
    encoded_task,
    item_among,
    simple_item,
)
from ..model.faces import packed_face
from ..model.flows.workflows import OnFailure
from ..model.payload_sources import PayloadSource
from ..model.task_options import CONFLICT_DEFAULT, NO_IDS, ON_FAILURE_DEFAULT, PRIORITY_DEFAULT
from ..model.values import (
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
from ..state.caches.claim_sets import TenantQueueKey
from ..state.engine_state import EngineState
from ..state.long_polls import ClaimBound, ClaimRequest
from ..state.queue_state import TenantQueue
from ..state.turns import Turns
from ..tasks import task_list
from ..tasks.claim import bounded, claim, drop, skipping
from ..tasks.dead_claim import claim_dead
from ..tasks.enqueue import check_durable, enqueue, enqueue_many
from ..tasks.enqueue_stream import enqueue_stream
from ..tasks.fast_path import line_of, submit_claim, submit_plain, submit_plain_many
from ..tasks.in_line import claim_in_line, enqueue_in_line
from ..tasks.lease import Lease
from ..tasks.operators import admin
from ..tasks.operators.functions import policies_of_today
from ..tasks.option_path import submit_keyed, submit_task, submit_tasks
from ..tasks.task_end import give_back
from ..workflows.dependencies import enqueue_after
from .leases import LeaseStream

__all__ = [
    "LEASE_S",
    "Queue",
    "QueueOptions",
    "boosts_of",
    "encode_tasks",
    "enqueue_waiting",
    "has_dependencies",
    "lease_s_of",
    "name_bad_task",
    "options_of",
    "tenant_queue_of",
]

LEASE_S = 30.0
NO_ENQUEUE = "a queue of ALL_TENANTS takes no enqueue: name the tenant"
Tasks = list[Task]  # inside the class ``list`` is a method


class Queue:
    """A handle on one queue and tenant. Cheap to make: ``engine.queue(name)`` touches no disk.

    With ``tenant=lodeq.ALL_TENANTS`` it claims from all tenants in fair turns and sums their
    statistics, but takes no enqueue.
    """

    __slots__ = (
        "_boost_after_s",
        "_defaults",
        "_is_everybodys",
        "_keys",
        "_last_call",
        "_lease_s",
        "_requests",
        "_state",
    )

    def __init__(
        self,
        state: EngineState,
        defaults: TaskTemplate,
        *,
        is_all_tenants: bool,
        lease_s: float,
        boost_after_s: float | None,
    ) -> None:
        self._state = state
        self._defaults = defaults
        self._keys = [(defaults.queue, None if is_all_tenants else defaults.tenant)]
        self._is_everybodys = is_all_tenants
        self._lease_s = lease_s
        self._boost_after_s = boost_after_s
        # Workers repeat the same call: its arguments are validated once.
        self._requests: dict[tuple[object, ...], ClaimRequest] = {}
        self._last_call: tuple[Any, ...] = (object(),) * 7

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} tenant={'*' if self._keys[0][1] is None else self.tenant!r}>"

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._defaults.queue.decode()

    @property
    def tenant(self) -> str:
        """The tenant's name; empty for the default tenant, and for ALL_TENANTS."""
        return self._defaults.tenant.decode()

    # -- in ----------------------------------------------------------------------------

    async def enqueue(
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
        """Add one task.

        Args:
            payload: bytes, or anything msgpack (or the queue's codec) packs; at most
                ``Limits.payload_bytes_max``.
            priority: 0 to 9, 9 is claimed first.
            delay: seconds (or timedelta) until it may be claimed; not with ``run_at``.
            run_at: an aware datetime before which it is not claimed; the past means now.
            ttl: seconds after max(now, run_at) at which it ends as *expired* unless it is leased.
            dedup_key: at most one task per key and (queue, tenant) while the task lives …
            dedup_window: … and for this many seconds from the enqueue, if that is longer.
            on_conflict: what to do when the key is held: ``return`` the holder's receipt,
                ``raise`` DuplicateTaskError, or ``replace`` a holder that is not leased.
            headers: a str-keyed mapping msgpack packs, at most ``Limits.headers_bytes_max``.
            max_attempts: instead of the queue's, 1 to 65,535.
            retry: how long it waits after a run that failed, instead of the queue's.
            retention: seconds that its result is kept, instead of the queue's.
            dead_retention: seconds that it is kept as a dead letter, instead of the queue's.
            shard_key: tasks of one key live on one shard; not with ``dedup_key``.
            labels: str to str, to find the task by: at most 8 of 64 bytes as ``key=value``.
            function: name of what the task calls, at most 256 bytes; shown wherever the task is.
            preview: its arguments for people to read, cut to 256 bytes; shown as ``function``.
            durable: True waits for an fsync, whatever the engine's mode.
            after: ids of at most 255 tasks, of any queues: it is *waiting* until all have ended,
                and ready then; not with ``delay`` or ``run_at``. Where the dedup key is held,
                the call is answered as without, and nothing is waited for.
            on_failure: what follows when one of ``after`` did not complete: ``run`` it, let it
                ``wait`` (until it is cancelled), ``cancel`` it.

        Raises:
            UsageError, PayloadTooLargeError: the call is wrong; nothing was written.
            UnknownDependencyError: no task and no result has an id of ``after``.
            DuplicateTaskError: the key is held, and ``raise``; or held by a leased task, and
                ``replace``.
            QueueFullError: ``Limits.pending_max`` is reached. StorageFullError: the disk is.
            CommitUnknownError: retry with the same dedup key once the store is reopened.

        Durability: on return the task survives a process crash (nosync) or a power cut (fsync,
            or durable=True). A duplicate's receipt rests on the holder's commit in the same way.
        Cancellation: while waiting for backpressure nothing has happened; in the last wait it
        happens.
        """
        state = self._state
        state.check()
        if durable is not None:
            check_durable(state, durable)
        if self._is_everybodys:
            raise UsageError(NO_ENQUEUE)
        has_after = after is not NO_IDS or on_failure is not ON_FAILURE_DEFAULT
        if has_after and waits(after, on_failure):
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
                labels=labels,
                function=function,
                preview=preview,
                after=after,
                on_failure=on_failure,
            )
            return (await enqueue_waiting(state, [task], self._defaults, durable))[0]
        if (
            priority is PRIORITY_DEFAULT
            and delay is None
            and run_at is None
            and ttl is None
            and dedup_key is None
            and dedup_window is None
            and max_attempts is None
            and retry is None
            and retention is None
            and dead_retention is None
            and shard_key is None
            and on_conflict is CONFLICT_DEFAULT
        ):
            shared, face, packed = self._defaults, b"", b""
            has_face = function is not None or preview is not None or labels is not None
            if has_face and shared.faces and state.keeps_faces(shared.queue):
                face = packed_face(function, preview, labels, state.redaction)
            if headers is not None:
                packed = encode_headers(headers, state.limits.headers_bytes_max)
            submitted = submit_plain(state, shared, payload, durable, None, None, packed, face)
            if submitted is None and type(payload) is bytes and not face and not packed:
                line = line_of(state, payload)
                if line is not None:
                    shard, task_id = line
                    if durable is True:
                        await shard.coalescer.wait_in_line()
                        state.check()
                    else:
                        receipt = await enqueue_in_line(
                            state, shard.coalescer, shared, payload, task_id
                        )
                        if receipt is not None:
                            return receipt
                    submitted = submit_plain(state, shared, payload, durable, None, task_id)
            if submitted is not None:
                future, receipt = submitted
                if future is not None:
                    await future
                return receipt
            if face or packed:
                task = NewTask(
                    payload, headers=headers, labels=labels, function=function, preview=preview
                )
                encoded = encoded_task(state, shared, task, state.clock.wall_us())
            else:
                encoded = simple_item(state, shared, payload)
        else:
            if (
                run_at is None
                and max_attempts is None
                and retry is None
                and retention is None
                and dead_retention is None
                and shard_key is None
                and on_conflict is CONFLICT_DEFAULT
            ):
                shared, face = self._defaults, b""
                has_face = function is not None or preview is not None or labels is not None
                if has_face and shared.faces and state.keeps_faces(shared.queue):
                    face = packed_face(function, preview, labels, state.redaction)
                if (
                    dedup_key is not None
                    and delay is None
                    and ttl is None
                    and headers is None
                    and not face
                ):
                    queued = submit_keyed(
                        state, shared, payload, priority, dedup_key, dedup_window, durable
                    )
                else:
                    queued = submit_task(
                        state,
                        shared,
                        payload,
                        priority,
                        delay,
                        ttl,
                        dedup_key,
                        dedup_window,
                        headers,
                        durable,
                        face,
                    )
                if queued is not None:
                    await queued[0]
                    return queued[1]
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
            )
            encoded = encoded_task(state, self._defaults, task, state.clock.wall_us())
        return await enqueue(state, encoded, durable)

    async def enqueue_stream(
        self,
        source: PayloadSource,
        *,
        durable: bool | None = None,
        **options: Unpack[StreamOptions],
    ) -> Receipt:
        """Add one task whose payload comes in slices: it never is in memory as a whole.

        Args:
            source: an iterable of bytes, async or not, or a file open for reading bytes; one that
                blocks is read in a thread. At most ``Limits.payload_bytes_max`` in all.
            durable: True waits for an fsync, whatever the engine's mode.
            options: those of ``enqueue``, but ``after`` and ``on_failure``. Times count from the
                moment that all of the payload is there.

        Raises:
            UsageError, PayloadTooLargeError: the call is wrong; nothing was written.
            Otherwise as ``enqueue``, and what the source raises; nothing is left behind.

        Durability: as ``enqueue``: the payload is durable before its task is.
        Cancellation: before the last wait nothing has happened, and what was written goes.
        """
        state = self._state
        state.check()
        check_durable(state, durable)
        if self._is_everybodys:
            raise UsageError(NO_ENQUEUE)
        if unknown := options.keys() - StreamOptions.__annotations__.keys():
            raise UsageError(f"enqueue_stream has no option {sorted(unknown)[0]!r}")
        return await enqueue_stream(state, self._defaults, source, NewTask(b"", **options), durable)

    async def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> list[Receipt]:
        """Add many tasks; receipts in the same order.

        Tasks of one chunk (1,024 tasks, 256 with a dedup key, 2 MiB) that share a shard commit in
        one batch; tasks without a key share a shard. The event loop runs between chunks.

        Args:
            tasks: any iterable of ``NewTask``; ``queue`` and ``tenant`` default to this queue's.
                One with ``after`` is a batch of its own.
            durable: True waits for an fsync, whatever the engine's mode.
            atomic: all in one batch (at most 4,096 tasks, 2 MiB), or ``LimitError``.

        Raises: as ``enqueue``; the error's ``receipts`` list what was enqueued nevertheless.

        Durability: as ``enqueue``. Cancellation: chunks already queued happen.
        """
        state, given = self._state, listed(tasks)
        try:
            state.check()
            check_durable(state, durable)
            if self._is_everybodys:
                raise UsageError(NO_ENQUEUE)
            submitted = submit_plain_many(state, self._defaults, given, durable) or submit_tasks(
                state, self._defaults, given, durable
            )
            if submitted is not None:
                future, receipts = submitted
                await future
                return receipts
            if any(has_dependencies(task) for task in given):
                return await enqueue_waiting(state, given, self._defaults, durable, atomic=atomic)
            encoded_tasks = await encode_tasks(state, given, self._defaults)
            return await enqueue_many(state, encoded_tasks, durable, is_atomic=atomic)
        except LodeqError as error:
            if isinstance(error, UsageError) and not error.receipts:
                await name_bad_task(state, given, self._defaults, error)
            error.receipts = error.receipts or [None] * len(given)
            raise

    # -- out ---------------------------------------------------------------------------

    async def claim(
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
    ) -> list[Lease]:
        """Take up to ``limit`` ready tasks under leases; an empty list if there are none.

        Args:
            limit: 1 to 4,096. A claim also stops at 4 MiB of bodies, a waiting one at 1,024 tasks.
            lease: seconds until it may be reaped, at most 49 days; None uses the queue's.
            wait: seconds to wait for the first task; an enqueue wakes the wait at once.
            worker: a name kept with the lease and the result, at most 256 bytes.
            exported: the worker is another process: after a restart of this one the lease goes on
                until its end instead of going back; after a kill it starts again in full, once.
            skip_tenants: with ALL_TENANTS, tenants that get nothing this time.
            dead: take dead letters instead, the oldest first, 256 at most in one call, of one
                tenant; also of a paused queue, and beyond its limits.
            skip_functions: with ALL_TENANTS, functions whose tasks are left to others where that
                can be, 256 names at most: of the first 64 tasks in line that have been there for
                less than a minute; none where all are for such functions and more lie behind them,
                and none of a queue with a rate, a concurrency or ``boost_after``.

        Raises:
            UsageError: the call is wrong. StoragePoisonedError: no healthy shard is left.

        Durability: a claim is committed before it returns; after a crash it goes back (its
            attempt stays counted), so a task is never leased twice at once.
        Cancellation: the tasks it took go back by themselves, to their old places.
        """
        state = self._state
        state.check()
        if dead is not False:
            if dead is not True:
                raise UsageError(f"dead must be True or False, not {spelled(dead)}")
            skipped = [*skip_tenants, *skip_functions]
            return await self._claim_dead(limit, lease, wait, worker, exported, skipped)
        last = self._last_call
        if (  # the same objects as in the last call: a worker's loop
            limit is last[0]
            and lease is last[1]
            and wait is last[2]
            and worker is last[3]
            and exported is last[4]
            and not skip_tenants
            and not skip_functions
        ):
            request, wait_s = last[5], last[6]
        else:
            wait_s = 0.0 if wait == 0 else duration_s(wait, "wait")
            request = self._request(limit, lease, worker, exported)
            if skip_tenants or skip_functions:
                request = skipping(request, skip_tenants, skip_functions)
                return await claim(state, request, wait_s)
            self._last_call = (limit, lease, wait, worker, exported, request, wait_s)
        if request.is_plain:
            submitted = submit_claim(state, request)
            is_admitted = False
            if submitted is None and len(state.shards) == 1:
                coalescer = state.shards[0].coalescer
                if not coalescer.has_capacity:
                    granted = await claim_in_line(state, coalescer, request)
                    if granted is not None:
                        return granted
                    is_admitted = True
                    submitted = submit_claim(state, request, None, True)
            if submitted is not None:
                future, leases = submitted
                if future is None:
                    return leases
                try:
                    await future
                except LodeqError:
                    drop(leases)
                    raise
                except BaseException:  # cancelled: the task goes back by itself
                    give_back(state, leases)
                    raise
                return leases
            return await claim(state, request, wait_s, is_admitted=is_admitted)
        return await claim(state, request, wait_s)

    async def _claim_dead(
        self,
        limit: int,
        lease: Duration | None,
        wait: Duration,
        worker: str,
        exported: bool,
        skipped: Collection[str],
    ) -> list[Lease]:
        if self._is_everybodys or skipped:
            raise UsageError(
                "dead=True claims the dead letters of one tenant: name it in engine.queue(…, "
                "tenant=…); ALL_TENANTS, skip_tenants and skip_functions are for ready tasks"
            )
        request = self._request(limit, lease, worker, exported)
        return await claim_dead(self._state, request, duration_s(wait, "wait"))

    async def _claim_within(
        self,
        bound: ClaimBound,
        *,
        limit: int,
        lease: Duration | None,
        wait: Duration,
        worker: str,
        skip_tenants: Collection[str] = (),
        skip_functions: Collection[str] = (),
    ) -> list[Lease]:
        """``claim`` for another process, of which ``bound`` says how many bytes it may take."""
        self._state.check()
        wait_s = duration_s(wait, "wait")
        request = self._request(limit, lease, worker, True)
        if skip_tenants or skip_functions:
            request = skipping(request, skip_tenants, skip_functions)
        return await claim(self._state, bounded(request, bound), wait_s)

    def _request(
        self, limit: int, lease: Duration | None, worker: str, exported: bool
    ) -> ClaimRequest:
        is_plain = type(limit) is int and (lease is None or type(lease) is float)
        known = (limit, lease, worker, exported) if is_plain and type(worker) is str else None
        if known is not None and (request := self._requests.get(known)) is not None:
            return request
        request = ClaimRequest(
            self._keys,
            limit=check_limit(limit),
            boosts=boosts_of([self]),
            lease_s=self._lease_s if lease is None else length_s(lease),
            worker=b"" if worker == "" else check_worker(worker),
            is_exported=exported,
        )
        if known is not None:
            if len(self._requests) >= 64:
                self._requests.clear()
            self._requests[known] = request
        return request

    async def claim_one(
        self,
        *,
        lease: Duration | None = None,
        wait: Duration = 0.0,
        worker: str = "",
        dead: bool = False,
    ) -> Lease | None:
        """``claim(limit=1)``: the lease, or None. Durability, Cancellation: as ``claim``.

        Args:
            lease: seconds; None uses the queue's.
            wait: seconds to wait for a task.
            worker: a name kept with the lease and the result, at most 256 bytes.
            dead: take a dead letter instead.
        """
        leases = await self.claim(lease=lease, wait=wait, worker=worker, dead=dead)
        return leases[0] if leases else None

    def leases(
        self,
        *,
        limit: int = 64,
        lease: Duration | None = None,
        keepalive: bool = True,
        wait: Duration = 1.0,
        worker: str = "",
    ) -> LeaseStream:
        """A stream of leases, one after another, for as long as it is iterated.

        ::

            async with queue.leases(limit=64) as stream:
                async for lease in stream:
                    async with lease:
                        ...

        Args:
            limit: how many to claim at a time.
            lease: seconds; None uses the queue's.
            keepalive: extend all leases it holds every third of their length.
            wait: seconds that one poll waits; the stream goes on polling.
            worker: a name kept with the lease and the result, at most 256 bytes.

        Leaving the inner block cleanly completes, an exception nacks with its repr, cancellation
        releases; leaving the outer one releases what was not started.

        Durability and Cancellation: as ``claim``.
        """
        return LeaseStream(
            self._state,
            self._request(limit, lease, worker, False),
            wait_s=duration_s(wait, "wait", least=0.001),
            is_kept_alive=keepalive,
        )

    # -- reading -----------------------------------------------------------------------

    def _tenant_queues(self) -> list[TenantQueue]:
        queue, tenant = self._keys[0]
        if tenant is None:
            queue_state = self._state.queue_states.get(queue)
            return list(queue_state.tenant_queues.values()) if queue_state is not None else []
        tenant_queue = self._state.find_tenant_queue(queue, tenant)
        return [tenant_queue] if tenant_queue is not None else []

    async def stats(self) -> QueueStats:
        """Exact counts, from memory; ``oldest_ready_age`` (seconds, or None) may need a read.

        Many tenants are counted in several turns of the loop: then the counts are not all of one
        moment.

        Durability: includes what is queued but not yet committed. Cancellation: changes nothing.
        """
        self._state.check()
        return await task_list.queue_stats_in_turns(
            self._state, self._keys[0][0], self._tenant_queues()
        )

    async def list(self, state: str, *, limit: int = 100, after: Task | None = None) -> Tasks:
        """Tasks by state: ready, delayed, waiting, leased, dead, completed, expired, cancelled.

        Args:
            limit: 1 to 10,000.
            after: the last task of the previous page.

        Ready tasks come in claim order, delayed by due time, dead by time of death, leased by
        time of claim, finished ones roughly by time of finishing.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        self._state.check()
        return await task_list.list_tasks(self._state, *self._keys[0], state, limit, after)

    async def peek(self, limit: int = 10) -> Tasks:
        """The next tasks a claim would get, without claiming them: ``list("ready")``.

        Durability and Cancellation: as ``list``.
        """
        return await self.list("ready", limit=limit)

    async def dead_letters(self, limit: int = 100, *, after: Task | None = None) -> Tasks:
        """Dead letters, oldest first, with their reasons: ``list("dead")``.

        Durability and Cancellation: as ``list``.
        """
        return await self.list("dead", limit=limit, after=after)

    # -- administration ----------------------------------------------------------------

    async def redrive(
        self, ids: Sequence[AnyId] | None = None, *, policy: RedrivePolicy = "stored"
    ) -> int:
        """Put dead letters back to the tail of their queue with a fresh set of attempts.

        Args:
            ids: None for all that are dead at the call (to the millisecond). Tasks whose dedup
                key has a newer holder, or whose record is missing or damaged, stay dead.
            policy: ``stored``, that of each task; ``current``: attempts, backoff and retentions
                that its function was last published with, if it was.

        Returns: how many were put back.

        Raises, after redriving the others of ``ids``:
            TaskNotFoundError: an id is not a dead letter here.
            DuplicateTaskError: its dedup key has a newer holder.
            RecordCorruptError: its record cannot be read.

        Durability: as ``enqueue``. Cancellation: slices already queued happen.
        """
        self._state.check()
        named = None if ids is None else task_ids(ids, "redrive")
        renew = None
        if check_redrive_policy(policy) == "current":
            renew = await policies_of_today(self._state, self.name)
        return await admin.redrive(self._state, self._tenant_queues(), named, renew)

    async def pause(self) -> None:
        """Claims get nothing until ``resume``; survives a restart. Enqueues go on.

        With ``tenant=ALL_TENANTS`` it is one switch for the whole queue, whatever the tenant;
        otherwise it is this tenant's own.

        Durability: as ``enqueue``. Cancellation: in the last wait it happens.
        """
        self._state.check()
        await admin.pause(self._state, *self._keys[0])

    async def resume(self) -> bool:
        """Undo ``pause``; waiting claims are served at once.

        Without a tenant it also undoes a pause of the whole queue, and with ``ALL_TENANTS`` that
        and the pause of every tenant. A tenant's ``resume`` undoes only its own.

        Returns: whether its tasks are handed out again; False: the whole queue is still paused.

        Durability: as ``enqueue``. Cancellation: in the last wait it happens; slices of many
        tenants that are already queued happen.
        """
        self._state.check()
        return await admin.resume(self._state, *self._keys[0])

    async def cancel_all(self, *, leased: bool = True) -> int:
        """Cancel all tasks that are ready, delayed, waiting or leased at the call, not dead ones.

        It works in slices: tasks that move while it runs may go or stay.

        Args:
            leased: leased ones, too: their leases are revoked, and their workers learn of it.

        Returns: how many were cancelled.

        Durability: as ``enqueue``. Cancellation: slices already queued happen.
        """
        self._state.check()
        if not isinstance(leased, bool):
            raise UsageError(f"leased must be True or False, not {spelled(leased)}")
        return await admin.cancel_all(self._state, self._tenant_queues(), leased)

    async def purge(self, state: str | None = None) -> int:
        """Delete the tasks that are ready, delayed, waiting or dead at the call (None: all).

        Ready and delayed ones end as *cancelled*. It works in slices: tasks that become due, are
        released or die while it runs, or in the same millisecond, may go or stay.

        Returns: how many were deleted.

        Durability: as ``enqueue``. Cancellation: slices already queued happen.
        """
        self._state.check()
        return await admin.purge(self._state, self._tenant_queues(), state)


async def encode_tasks(
    state: EngineState, tasks: Sequence[NewTask], base: TaskTemplate | None
) -> list[EncodedTask]:
    """Validate and encode tasks for one or several queues, before anything is queued.

    ``base`` gives the queue and the defaults of tasks that name none; None: each must name one.
    """
    turns = Turns(state)
    now_us = state.clock.wall_us()
    shared: dict[tuple[str | None, str | None], TaskTemplate] = {}
    encoded_tasks: list[EncodedTask] = []
    large: dict[int, EncodedTask] = {}
    for n, task in enumerate(list(tasks)):  # a copy: the caller may change the list meanwhile
        if n and turns.is_over:
            await turns.give_now()
            state.check()
        if not isinstance(task, NewTask):
            raise _no_task(task)
        try:
            template = shared.get((task.queue, task.tenant))
        except TypeError:  # a name of a wrong type: the next line refuses it
            template = None
        if template is None:
            template = shared[task.queue, task.tenant] = _template_of(state, task, base)
        encoded_tasks.append(item_among(state, template, task, now_us, large))
    return encoded_tasks


def has_dependencies(task: object) -> bool:
    """Whether a task of a call waits for others, or says what follows when one fails."""
    return isinstance(task, NewTask) and waits(task.after, task.on_failure)


async def enqueue_waiting(
    state: EngineState,
    tasks: Sequence[NewTask],
    base: TaskTemplate | None,
    durable: bool | None,
    *,
    atomic: bool = False,
) -> list[Receipt]:
    """Enqueue tasks of which some wait for others: those one by one, the rest between them.

    Args:
        state: of the engine.
        tasks: of one call; all are checked before anything is written.
        base: gives queue and defaults to tasks that name none.
        durable: True waits for an fsync, whatever the engine's mode.
        atomic: refused: what a task waits for may live on another shard.
    """
    if atomic:
        raise UsageError("atomic=True takes no task with after=: it may wait for another shard")
    waits: list[list[TaskId]] = []
    plain: list[NewTask] = []
    for n, task in enumerate(tasks):
        if not isinstance(task, NewTask):
            raise _no_task(task)
        try:
            waits.append(check_after(task))
        except UsageError as error:
            error.at(n)
            raise
        plain.append(task._replace(after=(), on_failure="run"))
    encoded_tasks = await encode_tasks(state, plain, base)
    receipts: list[Receipt | None] = [None] * len(encoded_tasks)
    at = 0
    try:
        while at < len(encoded_tasks):
            end = at
            while end < len(encoded_tasks) and not waits[end]:
                end += 1
            if end > at:
                receipts[at:end] = await enqueue_many(state, encoded_tasks[at:end], durable)
            if end < len(encoded_tasks):
                receipts[end] = await enqueue_after(
                    state, encoded_tasks[end], waits[end], tasks[end].on_failure, durable
                )
            at = end + 1
    except LodeqError as error:
        if len(encoded_tasks) > 1 or error.receipts:
            some = list(error.receipts or ())
            error.receipts = [*receipts[:at], *some, *receipts[at + len(some) :]]
        raise
    return [one for one in receipts if one is not None]


async def name_bad_task(
    state: EngineState, tasks: Sequence[Any], base: TaskTemplate | None, error: UsageError
) -> None:
    """Say in an error which task it is about: the first that fails with the same words.

    Nothing was written, and the paths that encode many tasks do not count: here each is tried.

    Args:
        state: the engine's state.
        tasks: as the call was given them.
        base: the defaults of the queue that was called; None where each task names its own.
        error: gets the number of the task.
    """
    turns, now_us = Turns(state), state.clock.wall_us()
    for n, task in enumerate(tasks):
        if turns.is_over:
            await turns.give_now()
        try:
            if not isinstance(task, NewTask):
                raise _no_task(task)
            encoded_task(state, _template_of(state, task, base), task, now_us)
        except UsageError as one:
            if str(one) == str(error):
                error.at(n)
                return
        except Exception:  # noqa: BLE001 - a codec's own error is not this one
            return


def _no_task(given: object) -> UsageError:
    return UsageError(f"tasks must be lodeq.NewTask, not {type(given).__name__}")


def _template_of(state: EngineState, task: NewTask, base: TaskTemplate | None) -> TaskTemplate:
    """Defaults for the queue and tenant that a task names, or else ``base`` does."""
    if task.queue is None and base is None:
        raise UsageError("engine.enqueue_many needs a queue for every task: NewTask(queue=…)")
    if base is not None and task.queue is None and task.tenant is None:
        return base
    queue = base.queue.decode() if task.queue is None and base else task.queue
    tenant = task.tenant
    if tenant is None:
        tenant = base.tenant.decode() if base is not None else ""
    names = names_of(queue, tenant)
    if base is not None and names[0] == base.queue:
        return base if names[1] == base.tenant else base.for_tenant(names[1])
    return TaskTemplate(*names, codec=state.codecs.get(names[0]))


def tenant_queue_of(queue: Queue) -> TenantQueueKey:
    """Queue and tenant of a queue object; a tenant of None stands for all."""
    return queue._keys[0]


def lease_s_of(queue: Queue) -> float:
    """Seconds for which a claim through a queue object holds a task."""
    return queue._lease_s


def boosts_of(queues: Iterable[Queue]) -> dict[tuple[bytes, bytes | None], float]:
    """``boost_after`` in seconds, by queue and tenant, of those queues that have one."""
    return {q._keys[0]: q._boost_after_s for q in queues if q._boost_after_s is not None}


class QueueOptions(NamedTuple):
    """Options of a queue object. Names of seconds end in ``_s``."""

    queue: bytes
    tenant: bytes | None  # None: all tenants
    max_attempts: int
    retention_s: float
    dead_retention_s: float
    lease_s: float
    boost_after_s: float | None


def options_of(queue: Queue) -> QueueOptions:
    """The options of a queue object, for ``view``."""
    name, tenant = queue._keys[0]
    defaults = queue._defaults
    return QueueOptions(
        name,
        tenant,
        defaults.max_attempts,
        defaults.retention_s,
        defaults.dead_retention_s,
        queue._lease_s,
        queue._boost_after_s,
    )
