"""A served engine behind the pages: what a client can ask of it, in the shape of an engine's view.

Less is known than of an engine in this process: no rates of single queues, no mean waits and runs,
no time left of a lease, no figures of RocksDB, no events. The pages leave those out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

from anyio import Lock
from anyio.lowlevel import checkpoint

from ...client import calls
from ...client.calls import FORM
from ...client.documents.records import result_of, task_of
from ...client.engine import RemoteEngine
from ...engine.runtime.clock import SystemClock
from ...engine.runtime.current_loop import current_spawner
from ...engine.runtime.event_loop import Spawner
from ...engine.runtime.task_id import TaskId
from ...engine.store.upkeep import Figures
from ...errors import TaskNotFoundError
from ...repository.api.view import Flows, LeaseTimes
from ...repository.model.codec import PackedBytes, stored_value
from ...repository.model.values import Codec, EngineStats, QueueStats, Result, Task
from ...repository.state.turns import TURN_S
from ..shared.engine_status import EngineStatus, QueueFlows, QueueStatus

__all__ = ["UNKNOWN", "RemoteStatuses", "RemoteView", "remote_statuses"]

AGE_S: Final = 0.9  # a status is so old at most
_STEP: Final = 16  # queues between two looks at the clock
UNKNOWN: Final = (
    "seen through a client: no rates of single queues, mean waits and runs, time left of leases, "
    "figures of RocksDB and the disk, and events of tasks"
)
_NO_FLOWS: Final = QueueFlows(Flows(), {})


class RemoteView:
    """Questions to a served engine. It has the methods of ``EngineView`` that pages call."""

    path: Final = None  # the folder is the server's
    journal_name: Final = None

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self.clock = SystemClock()

    @property
    def spawner(self) -> Spawner:
        """The loop that is running."""
        return current_spawner()

    def check(self) -> None:
        """Nothing to check: a request that cannot be sent says why."""

    @property
    def shard_count(self) -> int:
        """The number of shards."""
        return self._engine.shards

    def figures(self, shard: int) -> Figures | None:
        """Not known."""
        del shard
        return None

    def disk_free_bytes(self) -> int | None:
        """Not known."""

    def codec(self, queue: str) -> Codec | None:
        """The codec that this client was given for a queue."""
        return self._engine.session.codecs.get(queue)

    def lease_times(self, task_id: TaskId) -> LeaseTimes | None:
        """Not known."""
        del task_id
        return None

    async def task(self, task_id: TaskId, payloads: str) -> Task | None:
        """A task with its stored bytes; None if there is none. ``payloads`` changes nothing."""
        del payloads
        try:
            doc = await self._engine.send(calls.task_call(task_id))
        except TaskNotFoundError:
            return None
        headers = FORM.take(doc, "headers")
        shown: Any = {} if headers is None else PackedBytes(headers.data)
        return replace(task_of(FORM, doc, {}), payload=_stored(doc, "payload"), headers=shown)

    async def result(self, task_id: TaskId, wait: float = 0.0, payloads: str = "") -> Result | None:
        """The result of a task with its stored bytes; None while it has not ended."""
        del wait, payloads
        doc = await self._engine.send(calls.task_call(task_id, what="/result"))
        return replace(result_of(FORM, doc, {}), value=_stored(doc, "value")) if doc else None

    async def page(
        self, queue: Any, state: str, limit: int, after: Task | None, *, payloads: str
    ) -> tuple[list[Task], bool]:
        """A page of a queue's tasks without payloads; and whether its bytes ended it.

        Args:
            queue: of this client.
            state: as ``Queue.list``.
            limit: tasks, 1 to 10,000.
            after: the last task of the page before.
            payloads: changes nothing: none are read.
        """
        del payloads
        query = calls.list_query(state, limit, after) | {"payloads": "false"}
        doc = await self._engine.send(calls.queue_call(queue.template, "tasks", **query))
        return [task_of(FORM, one, {}) for one in doc["tasks"]], doc["more"]


def _stored(doc: Mapping[str, Any], name: str) -> Any:
    """A value as it is stored, not decoded: it is shown within bounds."""
    stored = FORM.take(doc, name)
    if stored is None:
        return None
    return stored_value(stored.kind, 0, stored.data, len(stored.data))


class RemoteStatuses:
    """The status of a served engine, asked for at most once a second for all who look."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self._clock = SystemClock()
        self._lock = Lock()
        self._last: EngineStatus | None = None

    async def get(self) -> EngineStatus:
        """The status now, or a moment ago.

        Raises:
            UnreachableError: the server is not reached.
        """
        async with self._lock:  # whoever waited while another asked shares the answer
            last = self._last
            if last is None or self._clock.mono() - last.mono >= AGE_S:
                last = self._last = await self._ask()
            return last

    async def _ask(self) -> EngineStatus:
        engine = self._engine
        stats, health = await engine.stats(), await engine.health()
        tenants: dict[str, dict[str, QueueStats]] = {}
        for (queue, tenant), counted in (await engine.queues()).items():
            tenants.setdefault(queue, {})[tenant] = counted
        queues: dict[str, QueueStatus] = {}
        since = self._clock.mono()
        for n, (name, found) in enumerate(sorted(tenants.items())):
            if n and not n % _STEP and self._clock.mono() - since >= TURN_S:
                await checkpoint()
                since = self._clock.mono()
            queues[name] = _queue_status(name, found)
        ages = [one.stats.oldest_ready_age for one in queues.values()]
        return EngineStatus(
            mono=self._clock.mono(),
            wall_us=self._clock.wall_us(),
            stats=stats,
            health=health,
            queues=queues,
            names=list(queues),
            flows=_flows(stats),
            tasks=(),
            oldest_ready=max((age for age in ages if age is not None), default=None),
            took_s=0.0,  # of this loop
        )


def _flows(stats: EngineStats) -> Flows:
    failed = stats.nacked_total + stats.reaped_total
    return Flows(stats.enqueued_total, stats.claimed_total, stats.completed_total, failed)


def _queue_status(name: str, tenants: Mapping[str, QueueStats]) -> QueueStatus:
    """A queue, all its tenants together."""
    found = list(tenants.values())
    ages = [one.oldest_ready_age for one in found if one.oldest_ready_age is not None]
    paused = sum(one.is_paused for one in found)
    total = QueueStats(
        ready=sum(one.ready for one in found),
        delayed=sum(one.delayed for one in found),
        leased=sum(one.leased for one in found),
        dead=sum(one.dead for one in found),
        results=sum(one.results for one in found),
        oldest_ready_age=max(ages, default=None),
        is_paused=paused == len(found),
        waiting=sum(one.waiting for one in found),
    )
    attention = not (total.dead or paused), -(total.oldest_ready_age or 0.0), name
    return QueueStatus(total, tenants, _NO_FLOWS, 0 < paused < len(found), attention)


_STATUSES: Final[WeakKeyDictionary[RemoteEngine, RemoteStatuses]] = WeakKeyDictionary()


def remote_statuses(engine: RemoteEngine) -> RemoteStatuses:
    """The one cache of a client's status, for all who ask."""
    found = _STATUSES.get(engine)
    if found is None:
        found = _STATUSES[engine] = RemoteStatuses(engine)
    return found
