"""What the pages can do, each after a page that asks first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ...engine.runtime.task_id import TaskId
from ...errors import UsageError
from ...repository.api.engine import Engine
from ...repository.api.queue import Queue
from ...repository.tasks import lookup
from ...repository.tasks.admin import PURGE_STATES
from .details import queue_of

__all__ = [
    "QUEUE_ACTIONS",
    "TASK_ACTIONS",
    "Asked",
    "act_on_queue",
    "act_on_task",
    "check_state",
    "done_text",
]


class Asked(NamedTuple):
    """What the page says before it is done, and on its button."""

    title: str
    text: str
    button: str
    is_final: bool = False


QUEUE_ACTIONS: Final[Mapping[str, Asked]] = {
    "pause": Asked(
        "Pause",
        "Claims get nothing until it is resumed, restarts included. Enqueues go on, and "
        "so do the leases that workers hold.",
        "Pause",
    ),
    "resume": Asked("Resume", "Claims get tasks again, those that wait at once.", "Resume"),
    "redrive": Asked(
        "Redrive",
        "All dead letters go back to the tail with a fresh set of attempts. Those whose "
        "dedup key has a newer holder stay dead.",
        "Redrive all",
    ),
    "purge": Asked(
        "Purge",
        "These tasks are deleted. Leased tasks stay. This cannot be undone.",
        "Delete them",
        is_final=True,
    ),
}
TASK_ACTIONS: Final[Mapping[str, Asked]] = {
    "cancel": Asked(
        "Cancel",
        "The task ends as cancelled. If it is leased, its worker loses the lease; what "
        "the worker is doing goes on until it notices. This cannot be undone.",
        "Cancel the task",
        is_final=True,
    ),
    "redrive": Asked(
        "Redrive",
        "The dead letter goes back to the tail of its queue with a fresh set of attempts.",
        "Redrive",
    ),
}
_DONE: Final[Mapping[str, str]] = {
    "pause": "Paused.",
    "resume": "Resumed.",
    "cancel": "Cancelled.",
    "not-cancelled": "Nothing to cancel: it was over already.",
}


def done_text(query: Mapping[str, str]) -> str:
    """What the page after an action says. Out of a fixed set, whatever the query holds."""
    done, number = query.get("done", ""), query.get("n", "0")
    count = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else 0
    if done in ("redrive", "purge"):
        what = "redriven" if done == "redrive" else "deleted"
        return f"{count:,} {'task' if count == 1 else 'tasks'} {what}."
    return _DONE.get(done, "")


def check_state(state: str) -> str:
    """Of a purge: empty for all. UsageError: it is none that can be purged."""
    if state not in ("", *PURGE_STATES):
        raise UsageError(f"state {state!r} is not one of {', '.join(PURGE_STATES)}")
    return state


async def act_on_queue(
    engine: Engine, name: str, tenant: str | None, action: str, state: str
) -> str:
    """Do it; the query of the page that follows.

    Raises:
        LodeqError: as the engine's; slices already queued happen.
    """
    queue = queue_of(engine, name, tenant)
    if action == "redrive":
        return f"done=redrive&n={await queue.redrive()}"
    if action == "purge":
        return f"done=purge&n={await queue.purge(state or None)}"
    await (queue.pause() if action == "pause" else _resume(engine, queue, name, tenant))
    return f"done={action}"


async def _resume(engine: Engine, queue: Queue, name: str, tenant: str | None) -> None:
    """Of all tenants: also those that are paused one by one."""
    topic = engine._core.topics.get(name.encode())
    if tenant is None and topic is not None:
        for one in [lane.tenant.decode() for lane in topic.lanes.values() if lane.is_paused]:
            await queue_of(engine, name, one).resume()
    await queue.resume()


async def act_on_task(engine: Engine, task_id: TaskId, action: str) -> str:
    """Do it; the query of the page that follows.

    Raises:
        LodeqError: as the engine's.
    """
    if action == "cancel":
        return "done=cancel" if await engine.cancel(task_id) else "done=not-cancelled"
    engine._core.check()
    task = await lookup.get(engine._core, task_id, "none")
    if task is None:
        raise UsageError(f"there is no task {task_id} any more")
    return f"done=redrive&n={await queue_of(engine, task.queue, task.tenant).redrive([task_id])}"
