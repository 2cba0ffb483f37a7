"""The view of an open engine that services, importers and the testing kit work through.

Users hold an ``Engine``. What serves one to others (HTTP, dashboard, metrics, worker, import and
export, the history recorder) needs a little more: raw payload bytes, figures of each shard, leases
by their proof, the engine's clock. All of that is here, so that nothing outside ``repository``
depends on how the engine is built. It works for every engine: opened, read-only and in memory.

A view holds no state and does not keep the engine alive; make one wherever it is needed. Unless a
method says otherwise it belongs to the engine's event loop, as the engine does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any, NamedTuple

from ...coalescer.stats import CommitStats
from ...engine.records.keyspace import check_name
from ...engine.records.task import TaskRecord
from ...engine.recovery.health import disk_free_bytes
from ...engine.runtime.clock import Clock
from ...engine.runtime.event_loop import Spawner
from ...engine.runtime.task_id import TaskId
from ...engine.store.port import StoreView
from ...engine.store.upkeep import Figures, figures_of
from ...engine.values import Health
from ...errors import (
    ClosedError,
    InvalidNameError,
    LeaseLostError,
    LodeqError,
    NotLeaderError,
    StorageError,
)
from ...segments.journal.journal import Journal
from ..background.lease_keepalive import LeaseKeepalive
from ..bulk.export_scan import ExportedTask, UnreadableTask, scan_tasks
from ..bulk.imported_tasks import ImportedTask, encode_imported, enqueue_imported
from ..bulk.purge import Parts, purge_parts
from ..model.calls.functions import PublishedFunction
from ..model.codec import SLICE_BYTES
from ..model.encoded_tasks import EncodedTask, TaskTemplate
from ..model.filters import FoundTasks, TaskFilter
from ..model.reports import PurgeReport
from ..model.values import (
    AnyId,
    Codec,
    EngineStats,
    HistoryPage,
    Limits,
    NewTask,
    Part,
    QueueStats,
    Result,
    Task,
)
from ..state.function_counts import FunctionRuns
from ..state.long_polls import ClaimRequest
from ..state.queue_state import Shard
from ..state.shard_scope import is_scoped, only
from ..state.turns import Turns
from ..tasks import claim, lookup
from ..tasks.enqueue_stream import kept_bytes_max, stream_bytes_max
from ..tasks.lease import Lease
from ..tasks.lookup import Payloads
from ..tasks.operators import bulk_acts
from ..tasks.operators.functions import functions
from ..tasks.operators.history import HistoryFilter, history
from ..tasks.task_end import give_back
from ..tasks.task_list import list_page
from ..workflows.other_leaders import LeaderCalls
from . import lease_proof
from .cluster_view import ClusterMap, NamesFront, cluster_map
from .direct_calls import DirectCalls
from .engine import Engine, runtime_of
from .lease_proof import LeaseProof
from .queue import Queue, options_of, tenant_queue_of
from .runtime import EngineRuntime
from .serve_options import RunningServer
from .statistics import Sums, queues_of, stats_of, tenant_queue_stats, tenant_queues_of
from .workflow_calls import parts_of

__all__ = [
    "EngineView",
    "Flows",
    "LeaseTimes",
    "ShardView",
    "TenantQueueView",
    "view_of",
]


class Flows(NamedTuple):
    """Tasks that have passed through a queue, and the µs they spent there; since open."""

    enqueued: int = 0
    claimed: int = 0
    completed: int = 0
    failed: int = 0  # runs that count: nacked, buried, lease expired
    waited_us: int = 0  # from ready to claimed, summed over those claimed
    ran_us: int = 0  # from claimed to completed, summed over those completed

    def since(self, before: Flows) -> Flows:
        """The difference; all of it where the queue was dropped and made anew meanwhile."""
        if any(now < then for now, then in zip(self, before, strict=True)):
            return self
        return Flows(*(now - then for now, then in zip(self, before, strict=True)))

    def plus(self, other: Flows) -> Flows:
        """The sum."""
        return Flows(*(mine + yours for mine, yours in zip(self, other, strict=True)))


class TenantQueueView(NamedTuple):
    """One (queue, tenant)."""

    queue: bytes
    tenant: bytes
    stats: QueueStats | None  # None: it is empty and not paused
    flows: Flows
    tasks: Sequence[tuple[int, int]]  # (shard, tasks there that are not over)


class ShardView(NamedTuple):
    """One shard's commit loop, as of now."""

    shard: int
    stats: CommitStats  # live: it goes on counting
    waiting: int  # submissions that are not applied yet
    not_durable: int  # commits that are applied and that a power cut might lose
    is_poisoned: bool  # takes no writes until it is reopened; one led elsewhere is not poisoned


class LeaseTimes(NamedTuple):
    """When a live lease began, and how long it lasts."""

    leased_us: int  # wall time, Unix microseconds
    left_s: float  # until it may be reaped; negative: it may be already


class EngineView:
    """Questions and acts of one engine. Get it from ``view_of``.

    Attributes:
        clock: the engine's time.
        spawner: the engine's event loop: threads, timers, tasks.
    """

    __slots__ = ("_runtime", "_state", "clock", "spawner")

    def __init__(self, runtime: EngineRuntime) -> None:
        self._runtime = runtime
        self._state = runtime.state
        self.clock: Clock = runtime.state.clock
        self.spawner: Spawner = runtime.state.spawner

    @property
    def server(self) -> RunningServer | None:
        """The server of ``lodeq.open(serve=…)``; None: this process does not serve the store."""
        return self._runtime.server

    # -- the loop ----------------------------------------------------------------------

    def check(self) -> None:
        """Check that the engine is open and that this is its event loop and thread.

        Raises:
            ClosedError: the engine is closed.
            UsageError: this is another loop or thread.
        """
        self._state.check()

    @property
    def is_closed(self) -> bool:
        """Whether the engine is closed, or closing."""
        return self._state.is_closed

    @property
    def is_on_loop_thread(self) -> bool:
        """Whether the caller runs in the thread of the engine's loop. For any thread."""
        return get_ident() == self._state.thread

    def turns(self) -> Turns:
        """A pacer for long work on the loop: it yields to others every few milliseconds."""
        return Turns(self._state)

    # -- the engine --------------------------------------------------------------------

    @property
    def path(self) -> str | None:
        """The store's folder; None in memory."""
        return self._runtime.opened.path

    @property
    def limits(self) -> Limits:
        """Bounds of the engine."""
        return self._state.limits

    @property
    def stream_bytes_max(self) -> int:
        """Bytes of a streamed payload at most; where no body files are, those of any payload."""
        return stream_bytes_max(self._state)

    def kept_bytes_max(self) -> int:
        """Bytes of a streamed payload that are in memory until its end; a longer one is written."""
        state = self._state
        return max((kept_bytes_max(state, one) for one in state.hosted), default=0)

    @property
    def has_redaction(self) -> bool:
        """Whether a hook takes out of previews and labels what must not be stored."""
        return self._state.redaction is not None

    @property
    def journal_name(self) -> str | None:
        """The name of the lifecycle journal; None without one."""
        publisher = self._runtime.event_publisher
        journal = publisher.journal if publisher is not None else None
        return journal.name if isinstance(journal, Journal) else None

    @property
    def is_disk_low(self) -> bool:
        """Whether enqueues are refused because the disk is nearly full."""
        return self._state.is_disk_low

    @property
    def anomalies(self) -> list[str]:
        """The first hundred inconsistencies that were met and settled since open."""
        return list(self._state.anomalies)

    def disk_free_bytes(self) -> int | None:
        """Free space of the store's file system; None in memory, or once its folder is gone.

        For any thread.

        Raises:
            StorageError: the file system cannot be asked.
        """
        path = self.path
        return disk_free_bytes(path) if path is not None and os.path.isdir(path) else None

    def health(self) -> Health:
        """As ``Engine.health``, without a check that the engine is open."""
        return self._runtime.health()

    def stats(self, sums: Sums) -> EngineStats:
        """As ``Engine.stats``, with counts that the caller has summed over ``tenant_queues``."""
        return stats_of(self._state, self._runtime.opened.recoveries, sums)

    # -- shards ------------------------------------------------------------------------

    @property
    def shard_count(self) -> int:
        """The number of shards."""
        return len(self._state.shards)

    def shards(self) -> Iterator[ShardView]:
        """Every shard that is here, by index."""
        for shard in self._state.hosted:
            coalescer = shard.coalescer
            yield ShardView(
                shard.index,
                coalescer.stats,
                coalescer.waiting,
                max(0, coalescer.applied_number - coalescer.durable_number),
                shard.coalescer.failure is not None,
            )

    def refusing_shards(self) -> int:
        """The number of shards here that take no writes: poisoned, led elsewhere, or closed."""
        return sum(not shard.coalescer.takes_writes for shard in self._state.hosted)

    def figures(self, shard: int) -> Figures | None:
        """RocksDB's own figures of a shard, in bytes. Reads no row. For any thread.

        None: the shard is in memory, is closed, is not here, or its disk cannot be read.
        """
        try:
            return figures_of(self._state.shards[shard].store)
        except (ClosedError, NotLeaderError, StorageError, OSError):
            return None

    # -- the cluster -------------------------------------------------------------------

    def cluster(self) -> ClusterMap:
        """Who leads which shard, as this node knows it."""
        return cluster_map(self._state, self._runtime.members)

    @property
    def replicator(self) -> object | None:
        """The layer, or a ``Hosting``, that knows the other nodes; None: nobody does."""
        return self._runtime.members

    def processes(self) -> dict[str, str] | None:
        """Where the processes are that have the store between them; None: this one has all of it.

        As a client takes it: their ``address`` as that of a cluster, and ``front``, their
        supervisor.
        """
        members = self._runtime.members
        if not isinstance(members, NamesFront):
            return None
        address = f"lodeq://{','.join(members.member_urls())}"
        return {"address": address, "front": members.front_url}

    def when_reopening_may_help(self, call: Callable[[], None]) -> None:
        """Call this, on the loop, for each shard that is poisoned and that a reopening may mend."""
        runtime = self._runtime

        def failed(failure: LodeqError) -> None:
            if runtime.may_reopen(failure):
                call()

        self._state.on_failure = failed
        for shard in self._state.hosted:  # before this call
            if shard.coalescer.failure is not None:
                failed(shard.coalescer.failure)

    def check_led(self, shards: Collection[int]) -> None:
        """Check that this node leads these shards; see ``EngineState.check_led``."""
        self._state.check_led(shards)

    def only(self, shards: Collection[int]) -> AbstractContextManager[None]:
        """Within the block, whole-queue calls of this task are about these shards alone."""
        return only(shards)

    @property
    def is_scoped(self) -> bool:
        """Whether this call is about some of the shards."""
        return is_scoped()

    async def ready(
        self, queues: Sequence[Queue], wait_s: float, skip_tenants: Collection[str] = ()
    ) -> bool:
        """Whether a claim from these queues would get something; waits until one would.

        Args:
            queues: one at least.
            wait_s: seconds.
            skip_tenants: of a queue of ALL_TENANTS, tenants that are passed over.
        """
        keys = list(dict.fromkeys(map(tenant_queue_of, queues)))
        request = ClaimRequest(keys, limit=1, lease_s=1.0, worker=b"", is_look=True)
        if skip_tenants:
            request.skipped = claim.skipping(request, skip_tenants).skipped
        return await claim.ready(self._state, request, wait_s)

    # -- queues ------------------------------------------------------------------------

    async def queues(self) -> dict[tuple[str, str], QueueStats]:
        """As ``Engine.queues``: nothing of a moment ago, as the shared status may be."""
        return await queues_of(self._state)

    def tenant_queues(self) -> Iterator[TenantQueueView]:
        """Every (queue, tenant) in order. The engine may change between two of them."""
        state = self._state
        for queue_state, tenant_queue in tenant_queues_of(state):
            flow = tenant_queue.flow
            yield TenantQueueView(
                tenant_queue.queue,
                tenant_queue.tenant,
                tenant_queue_stats(state, queue_state, tenant_queue),
                Flows(
                    flow.enqueued,
                    flow.claimed,
                    flow.completed,
                    flow.failed,
                    flow.waited_us,
                    flow.ran_us,
                ),
                [
                    (
                        index,
                        shard_queue.ready
                        + shard_queue.delayed
                        + shard_queue.leased
                        + shard_queue.dead,
                    )
                    for index, shard_queue in enumerate(tenant_queue.shard_queues)
                    if shard_queue is not None
                ],
            )

    def counters(self) -> Iterator[tuple[bytes, bytes, Sums]]:
        """(queue, tenant, counts) of all that memory knows of, empty ones included."""
        for queue_state in self._state.queue_states.values():
            for tenant_queue in queue_state.tenant_queues.values():
                counts = [0] * len(Sums._fields)
                for shard_queue in tenant_queue.shard_queues:
                    if shard_queue is not None:
                        for n, name in enumerate(Sums._fields):
                            counts[n] += getattr(shard_queue, name)
                yield queue_state.queue, tenant_queue.tenant, Sums(*counts)

    def queue_names(self) -> list[str]:
        """The names of all queues that hold, or just held, anything; sorted."""
        return sorted(name.decode() for name in self._state.queue_states)

    def has_queue(self, name: str) -> bool:
        """Whether a queue holds, or just held, anything; False for what cannot be a name."""
        try:
            return check_name(name, "queue") in self._state.queue_states
        except InvalidNameError:
            return False

    def has_tenant_queue(self, queue: bytes, tenant: bytes) -> bool:
        """The same of one tenant of a queue."""
        return self._state.find_tenant_queue(queue, tenant) is not None

    async def functions(
        self, queue: str | None, limit: int, after: tuple[str, str] | None
    ) -> list[PublishedFunction]:
        """A page of ``Engine.functions``, behind the queue and name of the last one before."""
        self._state.check()
        return await functions(self._state, queue, limit, after)

    def codec(self, queue: str) -> Codec | None:
        """The codec that this process has given a queue, if any."""
        return self._state.codecs.get(queue.encode())

    # -- tasks -------------------------------------------------------------------------

    async def task(self, task_id: TaskId, payloads: Payloads = "decoded") -> Task | None:
        """As ``Engine.get``; ``payloads``: values, the stored bytes, or neither."""
        self._state.check()
        return await lookup.get(self._state, task_id, payloads)

    async def payload_part(self, task_id: TaskId, offset: int, most: int) -> tuple[int, int, bytes]:
        """A payload's bytes, its CRC-32, and its part of ``most`` bytes from ``offset`` on."""
        self._state.check()
        async with await lookup.open_payload(self._state, task_id, SLICE_BYTES) as reader:
            sum, data = await reader.part(offset, most)
            return reader.size, sum, data

    async def result(
        self, task_id: TaskId, wait_s: float = 0.0, payloads: Payloads = "decoded"
    ) -> Result | None:
        """As ``Engine.result``; ``payloads`` as ``task``."""
        self._state.check()
        return await lookup.result(self._state, task_id, wait_s, payloads)

    async def history(
        self,
        meant: HistoryFilter,
        limit: int,
        cursor: str | None,
        bytes_max: int,
        *,
        oldest_first: bool = False,
        after: AnyId | None = None,
    ) -> HistoryPage:
        """As ``Engine.history``, with values as stored bytes.

        Args:
            meant: what the page shows.
            limit: results, 1 to 1,000.
            cursor: of the page before; None begins.
            bytes_max: the page ends when it has read so many stored bytes.
            oldest_first: as ``Engine.history``.
            after: as ``Engine.history``.
        """
        self._state.check()
        return await history(
            self._state,
            meant,
            limit=limit,
            cursor=cursor,
            oldest_first=oldest_first,
            after=after,
            payloads="stored",
            bytes_max=bytes_max,
        )

    async def find(
        self,
        meant: TaskFilter,
        limit: int,
        cursor: str | None,
        payloads: Payloads = "stored",
        *,
        oldest_first: bool = False,
        after: AnyId | None = None,
    ) -> FoundTasks:
        """As ``Engine.find``, with payloads as stored bytes.

        Args:
            meant: which tasks.
            limit: tasks, 1 to 1,000.
            cursor: of the page before; None begins.
            payloads: values, the stored bytes, or neither; then no payload is read.
            oldest_first: as ``Engine.find``.
            after: as ``Engine.find``.
        """
        self._state.check()
        return await bulk_acts.find(
            self._state,
            meant,
            limit=limit,
            cursor=cursor,
            payloads=payloads,
            oldest_first=oldest_first,
            after=after,
        )

    async def page(
        self,
        queue: Queue,
        state: str,
        limit: int,
        after: Task | None = None,
        *,
        payloads: Payloads = "decoded",
        bytes_max: int | None = None,
    ) -> tuple[list[Task], bool]:
        """As ``Queue.list``; also whether it was ``bytes_max`` that ended the page.

        Args:
            queue: one tenant's, or of ALL_TENANTS.
            state: as ``Queue.list`` takes it.
            limit: tasks, 1 to 10,000.
            after: the last task of the page before; None begins at the head.
            payloads: values, the stored bytes, or neither; then no payload is read.
            bytes_max: the page ends with the task that makes it so many stored bytes.
        """
        self._state.check()
        options = options_of(queue)
        return await list_page(
            self._state,
            options.queue,
            options.tenant,
            state,
            limit,
            after,
            payloads=payloads,
            bytes_max=bytes_max,
        )

    def function_runs(self) -> list[FunctionRuns]:
        """Runs by function since the open, of a bounded number of functions. In any thread."""
        return self._state.function_counts.read()

    def lease_times(self, task_id: TaskId) -> LeaseTimes | None:
        """Begin and end of the live lease on a task; None if no lease is held here."""
        lease = self._state.leases.get(task_id)
        if lease is None:
            return None
        return LeaseTimes(lease.leased_us, lease.deadline_mono - self.clock.mono())

    # -- leases held elsewhere ---------------------------------------------------------

    async def proved_lease(self, proof: LeaseProof) -> Lease:
        """The live lease that a proof belongs to.

        Raises:
            LeaseLostError: it has ended, and what ended it is committed.
        """
        return await lease_proof.require(self._state, proof)

    async def complete_proved(
        self,
        proof: LeaseProof,
        result: Any,
        *,
        then: Sequence[NewTask] = (),
        keep: bool = True,
        durable: bool | None = None,
    ) -> None:
        """``Lease.complete`` by proof; a repeated call succeeds again.

        Args:
            proof: id, epoch and token of the lease.
            result: as ``Lease.complete``.
            then: follow-up tasks, enqueued in the same batch.
            keep: whether the result is stored at all.
            durable: True waits for an fsync; None: as the engine's mode.

        Raises:
            LeaseLostError: the lease has ended otherwise.
        """
        await lease_proof.complete(
            self._state, proof, result, then=then, keep=keep, durable=durable
        )

    async def complete_many_proved(
        self, pairs: Sequence[tuple[LeaseProof, Any]], durable: bool | None
    ) -> list[LeaseLostError | None]:
        """Complete many leases by proof: (proof, result) each; repeated ones succeed again."""
        return await lease_proof.complete_many(self._state, pairs, durable)

    def direct_calls(self) -> DirectCalls:
        """Calls whose outcome goes to an object: for who answers many on one connection."""
        return DirectCalls(self._state)

    def held_lease(self, proof: LeaseProof) -> Lease | None:
        """The live lease that a proof belongs to; None: it has ended, or there is none."""
        return lease_proof.find(self._state, proof)

    def live_lease(self, task_id: bytes, epoch: int) -> Lease | None:
        """The lease of that epoch on a task, if it is live."""
        lease: Any = self._state.leases.get(task_id)  # a ``Lease``, as all that are in use
        found: Lease | None = lease if lease is not None and lease.epoch == epoch else None
        return found

    def give_back(self, leases: Sequence[Lease]) -> None:
        """Release leases that nobody will work on."""
        give_back(self._state, leases)

    def lease_keepalive(self, on_lost: Callable[[Lease], None], *, look_s: float) -> LeaseKeepalive:
        """A keepalive of leases in this process, which looks for lost ones every ``look_s``."""
        return LeaseKeepalive(self._state, on_lost=on_lost, look_s=look_s)

    # -- workflows ---------------------------------------------------------------------

    async def parts(
        self, id: TaskId, after: int, limit: int, *, failed: bool, payloads: Payloads
    ) -> list[Part]:
        """``Engine.parts_page``, with values decoded, as they are stored, or not at all.

        Args:
            id: of a workflow, its callback, or a task that waits for others.
            after: the last number of the page before; -1 for the first page.
            limit: parts at most.
            failed: only those that did not complete.
            payloads: what to read of their values.
        """
        return await parts_of(self._state, id, after, limit, failed, payloads)

    def reach_leaders(self, calls: LeaderCalls) -> None:
        """Tell the leaders of other shards of joins by these calls, from now on."""
        self._runtime.other_leaders.calls = calls

    async def take_joins(self, document: object) -> Mapping[str, Any]:
        """Do what the leader of another shard says of joins: see ``other_leaders``."""
        return await self._runtime.other_leaders.take(document)

    # -- import and export -------------------------------------------------------------

    def encode_imported(
        self, template: TaskTemplate, task: ImportedTask, now_us: int
    ) -> EncodedTask:
        """Validate and encode a task of another queue. See ``bulk.imported_tasks``.

        Raises:
            UsageError: it is none that a task can be.
        """
        return encode_imported(self._state, template, task, now_us)

    async def enqueue_imported(
        self, tasks: Sequence[tuple[ImportedTask, EncodedTask]]
    ) -> Sequence[bool]:
        """Enqueue imported tasks durably; for each, whether it is new."""
        return await enqueue_imported(self._state, tasks)

    def exported(
        self, queue: bytes, tenant: bytes, *, dead: bool
    ) -> Iterator[ExportedTask | UnreadableTask]:
        """Every task of a queue with its stored bytes, in the order of claims.

        For an engine that nobody else is using: nothing may move between two of them.
        """
        return scan_tasks(self._state, queue, tenant, dead=dead)

    # -- upkeep ------------------------------------------------------------------------

    async def upkeep(self) -> None:
        """Do all upkeep that is due: expired leases and tasks, results, body files."""
        await self._runtime.upkeep()

    # -- purges ------------------------------------------------------------------------

    async def purge_parts(self, planned: tuple[bytes, int], parts: Parts) -> PurgeReport:
        """Remove archived rows of a plan that comes as bytes. See ``bulk.purge.purge_parts``."""
        self._state.check()
        return await purge_parts(self._state, self._runtime.opened.store_id, planned, parts)

    # -- rows, for the history checker -------------------------------------------------

    async def quiesce(self) -> None:
        """Wait until nothing is queued and, in fsync mode, all is durable: memory equals disk."""
        state = self._state

        def is_busy(shard: Shard) -> bool:
            coalescer = shard.coalescer
            is_loose = state.is_fsync and coalescer.durable_number < coalescer.applied_number
            return coalescer.takes_writes and (bool(coalescer.pending()) or is_loose)

        while any(is_busy(shard) for shard in state.hosted):
            for shard in state.hosted:
                if shard.coalescer.takes_writes:
                    await state.commit_barrier(shard, is_durable=state.is_fsync, is_local=True)

    def stores(self) -> Iterator[tuple[int, StoreView]]:
        """(index, rows) of every shard here, as they are on disk: without what is still queued."""
        for shard in self._state.hosted:
            yield shard.index, shard.store

    def with_body(self, shard: int, task_id: bytes, record: TaskRecord) -> TaskRecord:
        """A task's record together with a payload that lies in a body file.

        Raises:
            RecordCorruptError: that payload cannot be read.
        """
        return self._state.shards[shard].whole_task(task_id, record)


def view_of(engine: Engine) -> EngineView:
    """The view of an engine. Cheap: it touches no disk and checks nothing."""
    return EngineView(runtime_of(engine))
