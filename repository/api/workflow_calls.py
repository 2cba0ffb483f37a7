"""The calls on workflows, as the engine's: arguments checked and tasks encoded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from ...engine.runtime.task_id import TaskId
from ...engine.values import spelled
from ...errors import LimitError, UsageError
from ..model.arguments import check_on_failure, listed, shard_key_bytes, task_ids
from ..model.flows.workflows import (
    SLICE_TASKS_MAX,
    WORKFLOW_NAME_BYTES_MAX,
    WorkflowPage,
)
from ..model.values import AnyId, NewTask, Part
from ..state.engine_state import EngineState
from ..tasks.lookup import Payloads
from ..workflows import build, dependencies, listing, views
from .queue import encode_tasks

__all__ = [
    "add",
    "after",
    "list_some",
    "on",
    "open_one",
    "parts_of",
]

T = TypeVar("T")


async def open_one(
    state: EngineState, callback: NewTask | None, key: Any, name: Any, on_failure: Any
) -> tuple[TaskId, TaskId | None, bool]:
    """See ``Engine.workflow``.

    Args:
        callback: runs when all members have ended.
        key: at most 4,096 bytes, or None.
        name: at most 128 bytes, shown to people.
        on_failure: ``run``, ``wait`` or ``cancel``.
    """
    state.check()
    check_on_failure(on_failure)
    bytes_max = WORKFLOW_NAME_BYTES_MAX
    if not isinstance(name, str) or len(name.encode("utf-8", "replace")) > bytes_max:
        raise UsageError(f"the name of a workflow is text of at most {bytes_max} bytes")
    packed = None if key is None else shard_key_bytes(key, "key")
    encoded = None if callback is None else (await encode_tasks(state, [callback], None))[0]
    return await build.open_workflow(state, encoded, packed, name, on_failure)


async def add(
    state: EngineState,
    workflow: AnyId,
    tasks: Sequence[NewTask],
    first: Any,
    after: Sequence[AnyId],
    chain: bool,
) -> list[TaskId]:
    """See ``Engine.add_members``.

    Args:
        workflow: its id.
        tasks: a slice of members.
        first: number of the first, or None.
        after: members they wait for.
        chain: each waits for the one before it.
    """
    state.check()
    given = listed(tasks)
    if len(given) > SLICE_TASKS_MAX:
        raise LimitError(
            f"a slice has at most {SLICE_TASKS_MAX} members, this one {len(given)}: add them in "
            "several, or use Workflow.add"
        )
    if first is not None and (isinstance(first, bool) or not isinstance(first, int)):
        raise UsageError(f"first {spelled(first)} is not a number")
    waits_for = task_ids(after, "after=")
    encoded_tasks = await encode_tasks(state, given, None)
    return await build.add_members(
        state, TaskId(workflow), encoded_tasks, first=first, after=waits_for, is_chain=bool(chain)
    )


async def after(
    state: EngineState, task: Any, waits_for: Sequence[AnyId], on_failure: Any
) -> TaskId:
    """See ``Engine.enqueue_after``.

    Args:
        task: one that names its queue.
        waits_for: ids of other tasks.
        on_failure: ``run``, ``wait`` or ``cancel``.
    """
    state.check()
    check_on_failure(on_failure)
    ids = task_ids(waits_for, "after=")
    (encoded,) = await encode_tasks(state, [task], None)
    return (await dependencies.enqueue_after(state, encoded, ids, on_failure)).id


async def on(
    state: EngineState, workflow: AnyId, call: Callable[[EngineState, bytes], Awaitable[T]]
) -> T:
    """A call that takes a workflow and nothing else.

    Args:
        workflow: its id, as the caller has it.
        call: of ``repository/workflows``.
    """
    state.check()
    return await call(state, TaskId(workflow))


async def list_some(engine_state: EngineState, state: Any, limit: Any, cursor: Any) -> WorkflowPage:
    """See ``Engine.workflows``.

    Args:
        state: of the engine.
        state: one of ``WORKFLOW_STATES``, or None.
        limit: workflows, 1 to 256.
        cursor: of the page before, or None.
    """
    engine_state.check()
    return await listing.list_workflows(engine_state, state=state, limit=limit, cursor=cursor)


async def parts_of(
    state: EngineState,
    id: AnyId,
    after: int,
    limit: int,
    failed: bool,
    payloads: Payloads = "decoded",
) -> list[Part]:
    """See ``Engine.parts_page``.

    Args:
        id: of a workflow, its callback, or a task that waits for others.
        after: the last number of the page before.
        limit: parts at most.
        failed: only those that did not complete.
        payloads: ``none`` reads no value.
    """
    state.check()
    return await views.parts(
        state, TaskId(id), after=after, limit=limit, failed=bool(failed), payloads=payloads
    )
