"""A queue's tasks by state, and one task with its times, attempts and events."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ...engine.keyspace import check_name
from ...engine.task_id import TaskId
from ...errors import InvalidNameError, RecordCorruptError, TaskNotFoundError, UsageError
from ...repository.engine import Engine
from ...repository.items import to_datetime
from ...repository.queue import Queue
from ...repository.values import ALL_TENANTS, Result, Task
from .overview import QueueLine, summed
from .tracing import Trace
from .watching import Watch

__all__ = ["PAGE", "STATES", "known_queue", "queue_of", "queue_page", "task_page", "tenant_of"]

PAGE: Final = 25
TENANTS_MAX: Final = 50
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
    look = watch.look()
    keys = [key for key in look.queues if key[0] == name and tenant in (None, key[1])]
    stats = summed([look.queues[key] for key in keys])
    found = await queue_of(engine, name, tenant).list(state, limit=PAGE + 1, after=_position(after))
    more = ""
    if len(found) > PAGE:
        found = found[:PAGE]
        more = base64.urlsafe_b64encode(found[-1].position).decode()
    flows = [key for key in look.flows if key[0] == name and tenant in (None, key[1])]
    return {
        "name": name, "tenant": tenant, "state": state, "after": after, "more": more,
        "tasks": found, "now": engine._core.clock.wall_us() / 1e6, "stats": stats,
        "line": QueueLine(name, len(keys), stats, watch.rates(flows), False),
        "counts": {one: getattr(stats, one) for one in STATES},
        "any_paused": any(look.queues[key].is_paused for key in keys),
        "tenants": _tenants(watch, name), "leases": _leases(engine, found),
        "states": STATES,
    }  # fmt: skip


def _tenants(watch: Watch, name: str) -> tuple[list[tuple[str, Any]], int]:
    """Each tenant's counts, and how many more there are; nothing if there is only the nameless."""
    look = watch.look()
    mine = [(key[1], stats) for key, stats in look.queues.items() if key[0] == name]
    if [tenant for tenant, _ in mine] in ([], [""]):
        return [], 0
    return mine[:TENANTS_MAX], max(0, len(mine) - TENANTS_MAX)


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
        return await engine.result(task_id)
    except (TaskNotFoundError, RecordCorruptError):
        return None


async def task_page(engine: Engine, trace: Trace, text: str) -> dict[str, Any] | None:
    """What the template of a task needs; None: there is none.

    Raises:
        UsageError: ``text`` is no id.
        RecordCorruptError: its record is damaged, and only that tells where it is.
    """
    task_id = TaskId(text)
    task = await engine.get(task_id)
    if task is None:
        return None
    result = await _result(engine, task_id)
    lease = _leases(engine, [task]).get(task_id)
    return {
        "task": task, "result": result, "lease": lease, "now": engine._core.clock.wall_us() / 1e6,
        "steps": _steps(engine, task, result),
        "trace": await trace.of(task),
    }  # fmt: skip


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
