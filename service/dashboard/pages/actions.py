"""Actions of the pages: each is done only after a page that asks for confirmation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, cast

from ....engine.runtime.task_id import TaskId
from ....errors import UsageError
from ....repository.model.arguments import check_redrive_policy
from ....repository.model.values import RedrivePolicy
from ....repository.tasks.operators.admin import PURGE_STATES
from ..source import AnyEngine, source_of
from .details import queue_of

__all__ = [
    "QUEUE_ACTIONS",
    "TASK_ACTIONS",
    "WORKFLOW_ACTIONS",
    "Question",
    "act_on_queue",
    "act_on_task",
    "act_on_workflow",
    "check_state",
    "done_text",
    "policy_of",
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
WORKFLOW_ACTIONS: Final[Mapping[str, Question]] = {
    "cancel": Question(
        "Cancel",
        "Every task of it that has not ended ends as cancelled, its callback too; workers lose "
        "their leases. This cannot be undone.",
        "Cancel all of it",
        is_final=True,
    ),
    "redrive": Question(
        "Redrive",
        "Its dead members run again, with all their attempts, and its callback waits for them. "
        "A callback that is over is made anew, with a new id.",
        "Redrive the dead members",
    ),
}
_DONE: Final[Mapping[str, str]] = {
    "pause": "Paused.",
    "resume": "Resumed.",
    "still-paused": "Still paused: the queue is paused for all tenants. Resume it for all tenants.",
    "cancel": "Cancelled.",
    "not-cancelled": "Nothing to cancel: the task was over already.",
}


def done_text(query: Mapping[str, str]) -> str:
    """The message on the page after an action, out of a fixed set whatever the query holds."""
    done, number = query.get("done", ""), query.get("n", "0")
    count = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else 0
    words = {"redrive": "redriven", "purge": "deleted", "cancel-all": "cancelled"}
    if done in words:
        what = words[done]
        return f"{count:,} {'task' if count == 1 else 'tasks'} {what}."
    return _DONE.get(done, "")


def check_state(state: str) -> str:
    """The state that a purge is for; empty for all. UsageError: it cannot be purged."""
    if state not in ("", *PURGE_STATES):
        raise UsageError(f"state {state!r} is not one of {', '.join(PURGE_STATES)}")
    return state


def policy_of(form: Mapping[str, str]) -> RedrivePolicy:
    """The policy that a form asks a redrive to take; ``UsageError`` for what is none."""
    return cast("RedrivePolicy", check_redrive_policy(form.get("policy", "stored")))


async def act_on_queue(
    engine: AnyEngine,
    name: str,
    tenant: str | None,
    action: str,
    state: str,
    policy: RedrivePolicy = "stored",
) -> str:
    """Do one of ``QUEUE_ACTIONS``. Returns the query of the page that follows.

    Args:
        engine: an open one.
        name: the queue's.
        tenant: None for all tenants.
        action: a key of ``QUEUE_ACTIONS``.
        state: for a purge, a state that ``check_state`` takes; empty for all.
        policy: for a redrive, as ``Queue.redrive``.

    Raises:
        LodeqError: as the engine's methods; slices that are already queued happen.
    """
    queue = queue_of(engine, name, tenant)
    if action == "redrive":
        return f"done=redrive&n={await queue.redrive(policy=policy)}"
    if action == "purge":
        return f"done=purge&n={await queue.purge(state or None)}"
    if action == "resume":
        return "done=resume" if await queue.resume() else "done=still-paused"
    await queue.pause()
    return f"done={action}"


async def act_on_task(
    engine: AnyEngine, task_id: TaskId, action: str, policy: RedrivePolicy = "stored"
) -> str:
    """Do one of ``TASK_ACTIONS``. Returns the query of the page that follows.

    Args:
        engine: an open one.
        task_id: the task's.
        action: a key of ``TASK_ACTIONS``.
        policy: for a redrive, as ``Queue.redrive``.

    Raises:
        LodeqError: as the engine's methods.
    """
    if action == "cancel":
        return "done=cancel" if await engine.cancel(task_id) else "done=not-cancelled"
    task = await source_of(engine).task(task_id, "none")
    if task is None:
        raise UsageError(f"there is no task {task_id} any more")
    queue = queue_of(engine, task.queue, task.tenant)
    return f"done=redrive&n={await queue.redrive([task_id], policy=policy)}"


async def act_on_workflow(engine: AnyEngine, workflow: TaskId, action: str) -> str:
    """Do one of ``WORKFLOW_ACTIONS``. Returns the query of the page that follows.

    Raises:
        LodeqError: as the engine's methods.
    """
    if action == "cancel":
        return f"done=cancel-all&n={await engine.cancel_workflow(workflow)}"
    return f"done=redrive&n={await engine.redrive_workflow(workflow)}"
