"""A queue, as its users hold it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ...engine.runtime.task_id import TaskId
from ...errors import LodeqError, UsageError
from ..model.encoded_tasks import TaskTemplate, duration_s, encoded_task, listed, simple_item
from ..model.values import AnyId, Duration, NewTask, OnConflict, QueueStats, Receipt, Task
from ..state.engine_state import EngineState
from ..state.long_polls import ClaimRequest
from ..state.queue_state import TenantQueue
from ..tasks import admin, task_list
from ..tasks.claim import claim, drop, skipping
from ..tasks.claim_order import check_limit, check_worker
from ..tasks.enqueue import check_durable, enqueue, enqueue_many
from ..tasks.fast_path import submit_claim, submit_plain, submit_plain_many
from ..tasks.lease import Lease, length_s
from ..tasks.task_end import give_back
from .leases import LeaseStream

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["Queue", "boosts"]

NO_ENQUEUE = "a queue of ALL_TENANTS takes no enqueue: name the tenant"
Tasks = list[Task]  # inside the class ``list`` is a method


class Queue:
    """One (queue, tenant) of an engine. Cheap to make: ``engine.queue(name)`` touches no disk.

    With ``tenant=lodeq.ALL_TENANTS`` it claims from all tenants in fair turns and sums their
    statistics, but takes no enqueue.
    """

    __slots__ = (
        "_boost_after_s",
        "_core",
        "_defaults",
        "_engine",
        "_is_everybodys",
        "_keys",
        "_last_call",
        "_lease_s",
        "_requests",
    )

    def __init__(
        self,
        engine: Engine,
        core: EngineState,
        defaults: TaskTemplate,
        *,
        is_all_tenants: bool,
        lease_s: float,
        boost_after_s: float | None,
    ) -> None:
        self._engine = engine
        self._core = core
        self._defaults = defaults
        self._keys = [(defaults.queue, None if is_all_tenants else defaults.tenant)]
        self._is_everybodys = is_all_tenants
        self._lease_s = lease_s
        self._boost_after_s = boost_after_s
        # A worker asks for the same again and again: validated once.
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
        Cancellation: while waiting for room nothing has happened; in the last wait it happens.
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

        All tasks of a chunk (1,024 tasks, 256 with a dedup key, 2 MiB) that share a shard commit
        in one batch; tasks without a key share one. Between chunks the loop runs.

        Args:
            tasks: any iterable of ``NewTask``; ``queue`` and ``tenant`` default to this queue's.
            durable: True waits for an fsync, whatever the engine's mode.
            atomic: all in one batch (at most 4,096 tasks, 2 MiB), or ``LimitError``.

        Raises: as ``enqueue``; the error's ``receipts`` tell what was enqueued nevertheless.

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
            items = await self._engine.items_of(given, self._defaults)
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
            exported: the worker is another process, so the lease outlives this one: after a
                restart it starts again in full instead of going back.
            skip_tenants: with ALL_TENANTS, tenants that get nothing this time.

        Raises:
            UsageError: the call is wrong. StoragePoisonedError: no healthy shard is left.

        Durability: a claim is committed before it returns; after a crash it goes back (its
            attempt stays counted), so a task is never leased twice at once.
        Cancellation: the tasks it took go back by themselves, at their old places.
        """
        core = self._core
        core.check()
        last = self._last_call
        if (  # the very objects of the last call: the same place in a worker's code
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
            boosts=boosts([self]),
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
            wait: how long one poll waits; the stream goes on polling.

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

    # -- looking -----------------------------------------------------------------------

    def _lanes(self) -> list[TenantQueue]:
        queue, tenant = self._keys[0]
        if tenant is None:
            topic = self._core.topics.get(queue)
            return list(topic.lanes.values()) if topic is not None else []
        lane = self._core.find_lane(queue, tenant)
        return [lane] if lane is not None else []

    async def stats(self) -> QueueStats:
        """Exact counts, from memory; ``oldest_ready_age`` (seconds, or None) may take a read.

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
        """Tasks out of attempts or buried, oldest first, with their reasons: ``list("dead")``.

        Durability and Cancellation: as ``list``.
        """
        return await self.list("dead", limit=limit, after=after)

    # -- operating ---------------------------------------------------------------------

    async def redrive(self, ids: Sequence[AnyId] | None = None) -> int:
        """Put dead letters back to the tail of their queue with a fresh set of attempts.

        Args:
            ids: which; None means all that are dead at the call (to the millisecond). Those whose
                dedup key has a newer holder, or whose record is missing or damaged, stay dead.

        Returns: how many. Raises, after redriving the others of ``ids``:
            TaskNotFoundError, DuplicateTaskError, RecordCorruptError: for a named id that is not
                dead here, whose key has a newer holder, or whose record cannot be read.

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

        Ready and delayed ones end as *cancelled*. In slices: what becomes due, is released or
        dies while it runs, or in its very millisecond, may go as well or stay.

        Returns: how many. Durability: as ``enqueue``. Cancellation: slices already queued happen.
        """
        self._core.check()
        return await admin.purge(self._core, self._lanes(), state)


def boosts(queues: Iterable[Queue]) -> dict[tuple[bytes, bytes | None], float]:
    """The seconds of those that have them, by what a claim calls a queue."""
    return {q._keys[0]: q._boost_after_s for q in queues if q._boost_after_s is not None}
