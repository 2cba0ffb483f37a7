"""Actions of the pages: each is done only after a page that asks for confirmation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ...engine.runtime.task_id import TaskId
from ...errors import UsageError
from ...repository.api.engine import Engine
from ...repository.api.queue import Queue
from ...repository.api.view import view_of
from ...repository.tasks.admin import PURGE_STATES
from .details import queue_of

__all__ = [
    "QUEUE_ACTIONS",
    "TASK_ACTIONS",
    "Question",
    "act_on_queue",
    "act_on_task",
    "check_state",
    "done_text",
]


class Question(NamedTuple):
    """The page that asks before an action: its title, its text, and the label of its button."""

    title: str
    text: str
    button: str
    is_final: bool = False


QUEUE_ACTIONS: Final[Mapping[str, Question]] = {
    "pause": Question(
        "Pause",
        "Claims get nothing until the queue is resumed, even after a restart. Enqueues go on, "
        "and workers keep the leases they hold.",
        "Pause",
    ),
    "resume": Question(
        "Resume", "Claims get tasks again; those that wait are served at once.", "Resume"
    ),
    "redrive": Question(
        "Redrive",
        "All dead letters go back to the tail of the queue with all their attempts. A dead "
        "letter stays dead if a newer task holds its dedup key.",
        "Redrive all",
    ),
    "purge": Question(
        "Purge",
        "These tasks are deleted. Leased tasks stay. This cannot be undone.",
        "Delete them",
        is_final=True,
    ),
}
TASK_ACTIONS: Final[Mapping[str, Question]] = {
    "cancel": Question(
        "Cancel",
        "The task ends as cancelled. If it is leased, its worker loses the lease and goes on "
        "working until it notices. This cannot be undone.",
        "Cancel the task",
        is_final=True,
    ),
    "redrive": Question(
        "Redrive",
        "The dead letter goes back to the tail of its queue with all its attempts.",
        "Redrive",
    ),
}
_DONE: Final[Mapping[str, str]] = {
    "pause": "Paused.",
    "resume": "Resumed.",
    "cancel": "Cancelled.",
    "not-cancelled": "Nothing to cancel: the task was over already.",
}


def done_text(query: Mapping[str, str]) -> str:
    """The message on the page after an action, out of a fixed set whatever the query holds."""
    done, number = query.get("done", ""), query.get("n", "0")
    count = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else 0
    if done in ("redrive", "purge"):
        what = "redriven" if done == "redrive" else "deleted"
        return f"{count:,} {'task' if count == 1 else 'tasks'} {what}."
    return _DONE.get(done, "")


def check_state(state: str) -> str:
    """The state that a purge is for; empty for all. UsageError: it cannot be purged."""
    if state not in ("", *PURGE_STATES):
        raise UsageError(f"state {state!r} is not one of {', '.join(PURGE_STATES)}")
    return state


async def act_on_queue(
    engine: Engine, name: str, tenant: str | None, action: str, state: str
) -> str:
    """Do one of ``QUEUE_ACTIONS``. Returns the query of the page that follows.

    Args:
        engine: an open one.
        name: the queue's.
        tenant: None for all tenants.
        action: a key of ``QUEUE_ACTIONS``.
        state: for a purge, a state that ``check_state`` takes; empty for all.

    Raises:
        LodeqError: as the engine's methods; slices that are already queued happen.
    """
    queue = queue_of(engine, name, tenant)
    if action == "redrive":
        return f"done=redrive&n={await queue.redrive()}"
    if action == "purge":
        return f"done=purge&n={await queue.purge(state or None)}"
    await (queue.pause() if action == "pause" else _resume(engine, queue, name, tenant))
    return f"done={action}"


async def _resume(engine: Engine, queue: Queue, name: str, tenant: str | None) -> None:
    """Resume a queue; for all tenants also those that were paused one by one."""
    if tenant is None:
        for one in view_of(engine).paused_tenants(name):
            await queue_of(engine, name, one).resume()
    await queue.resume()


async def act_on_task(engine: Engine, task_id: TaskId, action: str) -> str:
    """Do one of ``TASK_ACTIONS``. Returns the query of the page that follows.

    Raises:
        LodeqError: as the engine's methods.
    """
    if action == "cancel":
        return "done=cancel" if await engine.cancel(task_id) else "done=not-cancelled"
    task = await view_of(engine).task(task_id, "none")
    if task is None:
        raise UsageError(f"there is no task {task_id} any more")
    return f"done=redrive&n={await queue_of(engine, task.queue, task.tenant).redrive([task_id])}"
