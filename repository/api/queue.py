"""A queue as users hold it: ``Queue``, and what a call over several of them is made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ...engine.records.keyspace import check_name
from ...engine.runtime.task_id import TaskId
from ...errors import LodeqError, UsageError
from ..model.arguments import check_limit, check_worker, duration_s, length_s, listed, names_of
from ..model.encoded_tasks import (
    EncodedTask,
    TaskTemplate,
    encoded_task,
    item_among,
    simple_item,
)
from ..model.values import AnyId, Duration, NewTask, OnConflict, QueueStats, Receipt, Task
from ..state.engine_state import EngineState
from ..state.long_polls import ClaimRequest
from ..state.queue_state import TenantQueue
from ..state.turns import Turns
from ..tasks import admin, task_list
from ..tasks.claim import claim, drop, skipping
from ..tasks.enqueue import check_durable, enqueue, enqueue_many
from ..tasks.fast_path import submit_claim, submit_plain, submit_plain_many
from ..tasks.lease import Lease
from ..tasks.task_end import give_back
from .leases import LeaseStream

__all__ = ["LEASE_S", "Queue", "QueueOptions", "claim_request", "encode_tasks", "options_of"]

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
        "_core",
        "_defaults",
        "_is_everybodys",
        "_keys",
        "_last_call",
        "_lease_s",
        "_requests",
    )

    def __init__(
        self,
        core: EngineState,
        defaults: TaskTemplate,
        *,
        is_all_tenants: bool,
        lease_s: float,
        boost_after_s: float | None,
    ) -> None:
        self._core = core
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
        shard_key: str | bytes | None = None,
        durable: bool | None = None,
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
            shard_key: tasks of one key live on one shard; not with ``dedup_key``.
            durable: True waits for an fsync, whatever the engine's mode.

        Raises:
            UsageError, PayloadTooLargeError: the call is wrong; nothing was written.
            DuplicateTaskError: the key is held, and ``raise``; or held by a leased task, and
                ``replace``.
            QueueFullError: ``Limits.pending_max`` is reached. StorageFullError: the disk is.
            CommitUnknownError: retry with the same dedup key once the store is reopened.

        Durability: on return the task survives a process crash (nosync) or a power cut (fsync,
            or durable=True). A duplicate's receipt rests on the holder's commit in the same way.
        Cancellation: while waiting for backpressure nothing has happened; in the last wait it
        happens.
        """
        core = self._core
        core.check()
        if durable is not None:
            check_durable(core, durable)
        if self._is_everybodys:
            raise UsageError(NO_ENQUEUE)
        if (
            priority == 5
            and delay is None
            and run_at is None
            and ttl is None
            and dedup_key is None
            and dedup_window is None
            and headers is None
            and max_attempts is None
            and shard_key is None
            and on_conflict == "return"
        ):
            submitted = submit_plain(core, self._defaults, payload, durable)
            if submitted is not None:
                future, receipt = submitted
                if future is not None:
                    await future
                return receipt
            item = simple_item(core, self._defaults, payload)
        else:
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
            )
            item = encoded_task(core, self._defaults, task, core.clock.wall_us())
        return await enqueue(core, item, durable)

    async def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> list[Receipt]:
        """Add many tasks; receipts in the same order.

        Tasks of one chunk (1,024 tasks, 256 with a dedup key, 2 MiB) that share a shard commit in
        one batch; tasks without a key share a shard. The event loop runs between chunks.

        Args:
            tasks: any iterable of ``NewTask``; ``queue`` and ``tenant`` default to this queue's.
            durable: True waits for an fsync, whatever the engine's mode.
            atomic: all in one batch (at most 4,096 tasks, 2 MiB), or ``LimitError``.

        Raises: as ``enqueue``; the error's ``receipts`` list what was enqueued nevertheless.

        Durability: as ``enqueue``. Cancellation: chunks already queued happen.
        """
        core, given = self._core, listed(tasks)
        try:
            core.check()
            check_durable(core, durable)
            if self._is_everybodys:
                raise UsageError(NO_ENQUEUE)
            submitted = submit_plain_many(core, self._defaults, given, durable)
            if submitted is not None:
                future, receipts = submitted
                await future
                return receipts
            items = await encode_tasks(core, given, self._defaults)
            return await enqueue_many(core, items, durable, is_atomic=atomic)
        except LodeqError as error:
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
    ) -> list[Lease]:
        """Take up to ``limit`` ready tasks under leases; an empty list if there are none.

        Args:
            limit: 1 to 4,096. A claim also stops at 4 MiB of bodies, a waiting one at 1,024 tasks.
            lease: seconds until it may be reaped, at most 49 days; None uses the queue's.
            wait: seconds to wait for the first task; an enqueue wakes the wait at once.
            worker: a name kept with the lease and the result, at most 256 bytes.
            exported: the worker is another process: after a restart of this one the lease starts
                again in full instead of going back.
            skip_tenants: with ALL_TENANTS, tenants that get nothing this time.

        Raises:
            UsageError: the call is wrong. StoragePoisonedError: no healthy shard is left.

        Durability: a claim is committed before it returns; after a crash it goes back (its
            attempt stays counted), so a task is never leased twice at once.
        Cancellation: the tasks it took go back by themselves, to their old places.
        """
        core = self._core
        core.check()
        last = self._last_call
        if (  # the same objects as in the last call: a worker's loop
            limit is last[0]
            and lease is last[1]
            and wait is last[2]
            and worker is last[3]
            and exported is last[4]
            and not skip_tenants
        ):
            request, wait_s = last[5], last[6]
        else:
            wait_s = 0.0 if wait == 0 else duration_s(wait, "wait")
            request = self._request(limit, lease, worker, exported)
            if skip_tenants:
                return await claim(core, skipping(request, skip_tenants), wait_s)
            self._last_call = (limit, lease, wait, worker, exported, request, wait_s)
        if request.is_plain:
            submitted = submit_claim(core, request)
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
                    give_back(core, leases)
                    raise
                return leases
        return await claim(core, request, wait_s)

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
            boosts=_boosts([self]),
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
        self, *, lease: Duration | None = None, wait: Duration = 0.0, worker: str = ""
    ) -> Lease | None:
        """``claim(limit=1)``: the lease, or None. Durability, Cancellation: as ``claim``."""
        leases = await self.claim(lease=lease, wait=wait, worker=worker)
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
            self._core,
            self._request(limit, lease, worker, False),
            wait_s=duration_s(wait, "wait", least=0.001),
            is_kept_alive=keepalive,
        )

    # -- reading -----------------------------------------------------------------------

    def _lanes(self) -> list[TenantQueue]:
        queue, tenant = self._keys[0]
        if tenant is None:
            topic = self._core.topics.get(queue)
            return list(topic.lanes.values()) if topic is not None else []
        lane = self._core.find_lane(queue, tenant)
        return [lane] if lane is not None else []

    async def stats(self) -> QueueStats:
        """Exact counts, from memory; ``oldest_ready_age`` (seconds, or None) may need a read.

        Durability: includes what is queued but not yet committed. Cancellation: does not wait.
        """
        self._core.check()
        return task_list.queue_stats(self._core, self._keys[0][0], self._lanes())

    async def list(self, state: str, *, limit: int = 100, after: Task | None = None) -> Tasks:
        """Tasks by state: ready, delayed, leased, dead, completed, expired or cancelled.

        Args:
            limit: 1 to 10,000.
            after: the last task of the previous page.

        Ready tasks come in claim order, delayed by due time, dead by time of death, leased by
        time of claim, finished ones roughly by time of finishing.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        self._core.check()
        return await task_list.list_tasks(self._core, *self._keys[0], state, limit, after)

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

    async def redrive(self, ids: Sequence[AnyId] | None = None) -> int:
        """Put dead letters back to the tail of their queue with a fresh set of attempts.

        Args:
            ids: None for all that are dead at the call (to the millisecond). Tasks whose dedup
                key has a newer holder, or whose record is missing or damaged, stay dead.

        Returns: how many were put back.

        Raises, after redriving the others of ``ids``:
            TaskNotFoundError: an id is not a dead letter here.
            DuplicateTaskError: its dedup key has a newer holder.
            RecordCorruptError: its record cannot be read.

        Durability: as ``enqueue``. Cancellation: slices already queued happen.
        """
        self._core.check()
        named = None if ids is None else [TaskId(i) for i in ids]
        return await admin.redrive(self._core, self._lanes(), named)

    async def pause(self) -> None:
        """Claims get nothing until ``resume``; survives a restart. Enqueues go on.

        Durability: as ``enqueue``. Cancellation: in the last wait it happens.
        """
        self._core.check()
        await admin.pause(self._core, *self._keys[0])

    async def resume(self) -> None:
        """Undo ``pause``; waiting claims are served at once.

        Durability: as ``enqueue``. Cancellation: in the last wait it happens.
        """
        self._core.check()
        await admin.resume(self._core, *self._keys[0])

    async def purge(self, state: str | None = None) -> int:
        """Delete the tasks that are ready, delayed or dead at the call (None: all three).

        Ready and delayed ones end as *cancelled*. It works in slices: tasks that become due, are
        released or die while it runs, or in the same millisecond, may go or stay.

        Returns: how many were deleted.

        Durability: as ``enqueue``. Cancellation: slices already queued happen.
        """
        self._core.check()
        return await admin.purge(self._core, self._lanes(), state)


async def encode_tasks(
    core: EngineState, tasks: Sequence[NewTask], base: TaskTemplate | None
) -> list[EncodedTask]:
    """Validate and encode tasks for one or several queues, before anything is queued.

    ``base`` gives the queue and the defaults of tasks that name none; None: each must name one.
    """
    turns = Turns(core)
    now_us = core.clock.wall_us()
    shared: dict[tuple[str | None, str | None], TaskTemplate] = {}
    items: list[EncodedTask] = []
    large: dict[int, EncodedTask] = {}
    for n, task in enumerate(list(tasks)):  # a copy: the caller may change the list meanwhile
        if n and turns.is_over:
            await turns.give_now()
            core.check()
        if not isinstance(task, NewTask):
            raise UsageError(f"tasks must be lodeq.NewTask, not {type(task).__name__}")
        template = shared.get((task.queue, task.tenant))
        if template is None:
            template = shared[task.queue, task.tenant] = _template_of(core, task, base)
        items.append(item_among(core, template, task, now_us, large))
    return items


def _template_of(core: EngineState, task: NewTask, base: TaskTemplate | None) -> TaskTemplate:
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
    return TaskTemplate(*names, codec=core.codecs.get(names[0]))


def claim_request(
    queues: Sequence[str | Queue],
    *,
    limit: int,
    lease: Duration | None,
    worker: str,
    exported: bool,
) -> ClaimRequest:
    """Make a request that claims from several queues.

    Args:
        queues: names (default tenant) or ``Queue`` objects.
        limit: 1 to 4,096 tasks at most.
        lease: seconds until a lease may be reaped; None uses the shortest of the queues' own.
        worker: a name kept with the lease and the result, at most 256 bytes.
        exported: the worker is another process: the lease outlives this one.

    Raises:
        UsageError, InvalidNameError: an argument is wrong.
    """
    if isinstance(queues, str | Queue) or not queues:
        raise UsageError("queues must be a non-empty list of names or Queue objects")
    keys: list[tuple[bytes, bytes | None]] = [
        queue._keys[0] if isinstance(queue, Queue) else (check_name(queue, "queue"), b"")
        for queue in queues
    ]
    if lease is None:
        lease = min(queue._lease_s if isinstance(queue, Queue) else LEASE_S for queue in queues)
    return ClaimRequest(
        list(dict.fromkeys(keys)),
        limit=check_limit(limit),
        lease_s=length_s(lease),
        worker=check_worker(worker),
        is_exported=exported,
        boosts=_boosts([queue for queue in queues if isinstance(queue, Queue)]),
    )


def _boosts(queues: Iterable[Queue]) -> dict[tuple[bytes, bytes | None], float]:
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
