"""A queue's tasks by state, and one task with its times, attempts and events."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from ...engine.records.keyspace import check_name
from ...engine.runtime.task_id import TaskId
from ...errors import InvalidNameError, RecordCorruptError, TaskNotFoundError, UsageError
from ...repository.api.engine import Engine
from ...repository.api.queue import Queue
from ...repository.model.codec import CodecBytes
from ...repository.model.encoded_tasks import to_datetime
from ...repository.model.values import ALL_TENANTS, Codec, QueueStats, Result, Task
from ...repository.tasks import lookup
from ...repository.tasks.task_list import list_page
from ..shared.queue_looks import NO_STATS
from .live_figures import Watch
from .overview import QueueLine
from .task_trace import Trace

__all__ = ["PAGE", "STATES", "known_queue", "queue_of", "queue_page", "task_page", "tenant_of"]

PAGE: Final = 25
TENANTS_MAX: Final = 50
CODEC_BYTES_MAX: Final = 64 << 10  # what a codec is asked to decode for a page
STATES: Final = ("ready", "delayed", "leased", "dead")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def tenant_of(query: Mapping[str, str]) -> str | None:
    """Whose tasks are meant; None: those of all tenants."""
    tenant = query.get("tenant")
    if tenant:
        check_name(tenant, "tenant")
    return tenant


def queue_of(engine: Engine, name: str, tenant: str | None) -> Queue:
    """The queue of a page. InvalidNameError: it cannot be one."""
    return engine.queue(name, tenant=ALL_TENANTS if tenant is None else tenant)


def known_queue(engine: Engine, name: str) -> bool:
    """Whether there is, or just was, anything of it."""
    try:
        return check_name(name, "queue") in engine._core.topics
    except InvalidNameError:
        return False


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
    engine: Engine, watch: Watch, name: str, query: Mapping[str, str]
) -> dict[str, Any]:
    """What the template of a queue needs.

    Raises:
        UsageError: of the query.
    """
    state = query.get("state", "ready")
    if state not in STATES:
        raise UsageError(f"state {state!r} is not one of {', '.join(STATES)}")
    tenant, after = tenant_of(query), query.get("after", "")
    here = (await watch.look()).queues.get(name)
    tenants = {} if here is None else here.tenants
    stats, n_tenants = NO_STATS, 0
    if here is not None and tenant is None:
        stats, n_tenants = here.stats, len(tenants)
    elif tenant is not None and tenant in tenants:
        stats, n_tenants = tenants[tenant], 1
    core = engine._core
    core.check()
    found, _ = await list_page(
        core,
        *queue_of(engine, name, tenant)._keys[0],
        state,
        PAGE + 1,
        _position(after),
        payloads="none",
    )
    more = ""
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
        "now": engine._core.clock.wall_us() / 1e6,
        "stats": stats,
        "line": QueueLine(name, n_tenants, stats, watch.rates(name, tenant), False),
        "counts": {one: getattr(stats, one) for one in STATES},
        "any_paused": stats.is_paused
        or (tenant is None and here is not None and here.is_partly_paused),
        "tenants": _tenants(tenants),
        "leases": _leases(engine, found),
        "states": STATES,
    }


def _tenants(tenants: Mapping[str, QueueStats]) -> tuple[list[tuple[str, Any]], int]:
    """Each tenant's counts, and how many more there are; nothing if there is only the nameless."""
    if not tenants or list(islice(tenants, 2)) == [""]:
        return [], 0
    return list(islice(tenants.items(), TENANTS_MAX)), max(0, len(tenants) - TENANTS_MAX)


def _leases(engine: Engine, tasks: list[Task]) -> dict[TaskId, tuple[float, float]]:
    """Of leased tasks: seconds since they were claimed, and until their lease may be reaped."""
    core = engine._core
    now_us, mono, found = core.clock.wall_us(), core.clock.mono(), {}
    for task in tasks:
        lease = core.leases.get(task.id)
        if lease is not None:
            found[task.id] = ((now_us - lease.leased_us) / 1e6, lease.deadline_mono - mono)
    return found


async def _result(engine: Engine, task_id: TaskId) -> Result | None:
    try:
        return await lookup.result(engine._core, task_id, 0.0, "stored")
    except (TaskNotFoundError, RecordCorruptError):
        return None


async def task_page(engine: Engine, trace: Trace, text: str) -> dict[str, Any] | None:
    """What the template of a task needs; None: there is none.

    Raises:
        UsageError: ``text`` is no id.
        RecordCorruptError: its record is damaged, and only that tells where it is.
    """
    task_id = TaskId(text)
    core = engine._core
    core.check()
    task = await lookup.get(core, task_id, "stored")
    if task is None:
        return None
    result = await _result(engine, task_id)
    codec = core.codecs.get(task.queue.encode())
    if codec is not None:
        task = replace(task, payload=_of_codec(codec, task.payload))
        if result is not None:
            result = replace(result, value=_of_codec(codec, result.value))
    lease = _leases(engine, [task]).get(task_id)
    return {
        "task": task,
        "result": result,
        "lease": lease,
        "now": engine._core.clock.wall_us() / 1e6,
        "steps": _steps(engine, task, result),
        "trace": await trace.of(task),
    }


def _of_codec(codec: Codec, value: Any) -> Any:
    """Decode what a codec packed, if it is not too much to be shown, and the codec can read it."""
    if not isinstance(value, CodecBytes) or len(value) > CODEC_BYTES_MAX:
        return value
    try:
        return codec.decode(bytes(value))
    except Exception:  # noqa: BLE001 - the user's, of whatever somebody has sent: it is shown raw
        return value


def _steps(
    engine: Engine, task: Task, result: Result | None
) -> list[tuple[str, datetime, float | None]]:
    """What is known of its way: (what, when, seconds since the step before)."""
    found: list[tuple[str, datetime | None]] = [("enqueued", task.enqueued_at)]
    if result is not None and task.state not in ("ready", "delayed", "leased"):
        found += [("ready", result.ready_at), ("claimed", result.leased_at)]
    lease = engine._core.leases.get(task.id)
    if lease is not None:
        found.append(("claimed", to_datetime(lease.leased_us)))
    if task.state == "delayed":
        found.append(("due", task.due_at))
    if task.finished_at is not None:  # of a dead letter, its result knows it more exactly
        is_its = result is not None and result.status == task.state
        found.append((task.state, result.finished_at if result and is_its else task.finished_at))
    found.append(("forgotten" if task.state == "dead" else "expires", task.expires_at))
    steps: list[tuple[str, datetime, float | None]] = []
    for what, when in found:
        if when is not None:
            since = (when - steps[-1][1]).total_seconds() if steps else None
            steps.append((what, when, since))
    return steps
