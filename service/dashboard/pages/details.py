"""A queue's tasks by state, and one task with its times, attempts and events."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, cast
from urllib.parse import urlencode

from ....engine.records.keyspace import check_name
from ....engine.runtime.task_id import TaskId
from ....errors import PayloadNotLoadedError, RecordCorruptError, TaskNotFoundError, UsageError
from ....repository.api.queue import Queue
from ....repository.api.view import LeaseTimes
from ....repository.model.codec import CodecBytes
from ....repository.model.encoded_tasks import to_datetime
from ....repository.model.filters import TEXT_MAX
from ....repository.model.values import (
    ALL_TENANTS,
    Attempt,
    Codec,
    HistoryPage,
    QueueStats,
    Result,
    Task,
)
from ...shared.duration_text import seconds_of
from ...shared.engine_status import NO_STATS
from ..live.figures import LiveFigures
from ..source import AnyEngine, Source, source_of
from .overview import QueueLine
from .task_trace import Trace
from .workflows import ties_of

__all__ = ["HISTORY", "PAGE", "STATES", "queue_of", "queue_page", "task_page", "tenant_of"]

PAGE: Final = 25
TENANTS_MAX: Final = 50
CODEC_BYTES_MAX: Final = 64 << 10  # a codec decodes nothing larger for a page
STATES: Final = ("ready", "delayed", "waiting", "leased", "dead")
HISTORY: Final = "history"  # a tab beside the states
_SOUGHT: Final = ("since", "until", "text")  # of ended tasks
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def tenant_of(query: Mapping[str, str]) -> str | None:
    """The tenant that a page is about; None: all tenants."""
    tenant = query.get("tenant")
    if tenant:
        check_name(tenant, "tenant")
    return tenant


def _ago(now: datetime, age: str) -> datetime | None:
    """The moment so long ago as a form says; None where it says nothing."""
    if not age:
        return None
    try:
        return now - timedelta(seconds=seconds_of(age))
    except OverflowError:
        raise UsageError(f"{age!r} is longer ago than there are dates") from None


def queue_of(engine: AnyEngine, name: str, tenant: str | None) -> Queue:
    """The queue of a page. InvalidNameError: no queue can have that name."""
    found = engine.queue(name, tenant=ALL_TENANTS if tenant is None else tenant)
    return cast("Queue", found)  # a client's has the same methods


def _position(text: str) -> Task | None:
    if not text:
        return None
    try:
        position = base64.b64decode(text, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as exc:
        raise UsageError("this is not the position of a task") from exc
    if not position:
        return None
    return Task(TaskId(bytes(16)), "", "", "", 0, 0, _EPOCH, position=position)


async def queue_page(
    engine: AnyEngine, figures: LiveFigures, name: str, query: Mapping[str, str]
) -> dict[str, Any]:
    """The context of a queue's template.

    Args:
        engine: an open one.
        figures: its status and rates.
        name: the queue's.
        query: of the request: ``state``, ``tenant``, and ``after``, the position of a task; of
            ended tasks also ``since`` and ``until``, how long ago they ended, and ``text``.

    Raises:
        UsageError: the query asks for what there is not.
    """
    view = source_of(engine)
    state = query.get("state", "ready")
    if state not in (*STATES, HISTORY):
        raise UsageError(f"state {state!r} is not one of {', '.join(STATES)}, {HISTORY}")
    tenant, after = tenant_of(query), query.get("after", "")
    here = (await figures.status()).queues.get(name)
    tenants = {} if here is None else here.tenants
    stats, n_tenants = NO_STATS, 0
    if here is not None and tenant is None:
        stats, n_tenants = here.stats, len(tenants)
    elif tenant is not None and tenant in tenants:
        stats, n_tenants = tenants[tenant], 1
    queue = queue_of(engine, name, tenant)
    sought = {field: query.get(field, "").strip()[:TEXT_MAX] for field in _SOUGHT}
    found: list[Task] = []
    ended = HistoryPage((), None, False)
    more = ""
    if state == HISTORY:
        now = to_datetime(view.clock.wall_us())
        ended = await engine.history(
            name,
            tenant=tenant,
            limit=PAGE,
            cursor=after or None,
            since=_ago(now, sought["since"]),
            until=_ago(now, sought["until"]),
            text=sought["text"] or None,
        )
        more = ended.cursor or ""
    else:
        found, _ = await view.page(queue, state, PAGE + 1, _position(after), payloads="none")
    if len(found) > PAGE:
        found = found[:PAGE]
        more = base64.urlsafe_b64encode(found[-1].position).decode()
    return {
        "name": name,
        "tenant": tenant,
        "state": state,
        "after": after,
        "more": more,
        "tasks": found,
        "ended": ended,
        "sought": sought,
        "sought_query": urlencode({field: text for field, text in sought.items() if text}),
        "is_still": state == HISTORY,  # a search, not to be repeated every second
        "now": view.clock.wall_us() / 1e6,
        "stats": stats,
        "line": QueueLine(name, n_tenants, stats, figures.rates(name, tenant), False),
        "counts": {one: getattr(stats, one) for one in STATES} | {HISTORY: stats.results},
        "any_paused": stats.is_paused
        or (tenant is None and here is not None and here.is_partly_paused),
        "tenants": _tenants(tenants),
        "leases": _leases(view, found),
        "states": (*STATES, HISTORY),
    }


def _tenants(tenants: Mapping[str, QueueStats]) -> tuple[list[tuple[str, Any]], int]:
    """Each tenant's counts, and the number of tenants left out; none if only the default exists."""
    if not tenants or list(islice(tenants, 2)) == [""]:
        return [], 0
    return list(islice(tenants.items(), TENANTS_MAX)), max(0, len(tenants) - TENANTS_MAX)


def _leases(view: Source, tasks: list[Task]) -> dict[TaskId, tuple[float, float]]:
    """By id: seconds since the task was claimed, and until its lease may be reaped."""
    now_us, found = view.clock.wall_us(), {}
    for task in tasks:
        lease = view.lease_times(task.id)
        if lease is not None:
            found[task.id] = ((now_us - lease.leased_us) / 1e6, lease.left_s)
    return found


async def _result(view: Source, task_id: TaskId) -> Result | None:
    try:
        return await view.result(task_id, payloads="stored")
    except (TaskNotFoundError, RecordCorruptError):
        return None


async def _attempts(engine: AnyEngine, task_id: TaskId) -> list[Attempt]:
    try:
        return await engine.attempts(task_id)
    except (TaskNotFoundError, RecordCorruptError, UsageError):  # gone, damaged, an older server
        return []


async def task_page(engine: AnyEngine, trace: Trace, text: str) -> dict[str, Any] | None:
    """The context of a task's template; None: there is no such task.

    Raises:
        UsageError: ``text`` is no id.
        RecordCorruptError: the task's record is damaged, and nothing else says where it is.
    """
    view, task_id = source_of(engine), TaskId(text)
    task = await view.task(task_id, "stored")
    if task is None:
        return None
    try:
        _ = task.payload
    except PayloadNotLoadedError as exc:
        task = replace(task, payload=f"({exc.size_bytes} bytes)")
    result = await _result(view, task_id)
    codec = view.codec(task.queue)
    if codec is not None:
        task = replace(task, payload=_of_codec(codec, task.payload))
        if result is not None:
            result = replace(result, value=_of_codec(codec, result.value))
    lease = _leases(view, [task]).get(task_id)
    return {
        "task": task,
        "result": result,
        "lease": lease,
        "now": view.clock.wall_us() / 1e6,
        "steps": _steps(task, result, view.lease_times(task_id)),
        "trace": await trace.events_of(task),
        "attempts": await _attempts(engine, task_id),
        "ties": await ties_of(engine, task),
    }


def _of_codec(codec: Codec, value: Any) -> Any:
    """A value that the queue's codec packed, decoded; as it is where it is too large or foreign."""
    if not isinstance(value, CodecBytes) or len(value) > CODEC_BYTES_MAX:
        return value
    try:
        return codec.decode(bytes(value))
    except Exception:  # noqa: BLE001 - the user's codec, on bytes that anybody may have sent
        return value


def _steps(
    task: Task, result: Result | None, lease: LeaseTimes | None
) -> list[tuple[str, datetime, float | None]]:
    """The steps of a task's life: (name, when, seconds since the step before)."""
    found: list[tuple[str, datetime | None]] = [("enqueued", task.enqueued_at)]
    if result is not None and task.state not in ("ready", "delayed", "waiting", "leased"):
        found += [("ready", result.ready_at), ("claimed", result.leased_at)]
    if lease is not None:
        found.append(("claimed", to_datetime(lease.leased_us)))
    if task.state == "delayed":
        found.append(("due", task.due_at))
    if task.finished_at is not None:  # the result of a dead letter has the time more exactly
        is_its = result is not None and result.status == task.state
        found.append((task.state, result.finished_at if result and is_its else task.finished_at))
    found.append(("forgotten" if task.state == "dead" else "expires", task.expires_at))
    steps: list[tuple[str, datetime, float | None]] = []
    for what, when in found:
        if when is not None:
            since = (when - steps[-1][1]).total_seconds() if steps else None
            steps.append((what, when, since))
    return steps
