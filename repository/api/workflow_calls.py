"""The calls on workflows, as the engine's: arguments checked and tasks encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...engine.runtime.task_id import TaskId
from ...errors import LimitError, UsageError
from ..model.arguments import check_on_failure, listed, shard_key_bytes, task_ids
from ..model.flows.workflows import (
    SLICE_TASKS_MAX,
    WORKFLOW_NAME_BYTES_MAX,
    WorkflowGraph,
    WorkflowInfo,
    WorkflowPage,
)
from ..model.values import AnyId, NewTask, Part
from ..state.engine_state import EngineState
from ..tasks.lookup import Payloads
from ..workflows import acts, build, dependencies, graph, listing, views
from .queue import encode_tasks

__all__ = [
    "add",
    "after",
    "cancel",
    "graph_of",
    "info",
    "list_some",
    "open_one",
    "parts_of",
    "redrive",
    "seal",
]


async def open_one(
    core: EngineState, callback: NewTask | None, key: Any, name: Any, on_failure: Any
) -> tuple[TaskId, TaskId | None, bool]:
    """See ``Engine.workflow``.

    Args:
        callback: runs when all members have ended.
        key: at most 4,096 bytes, or None.
        name: at most 128 bytes, shown to people.
        on_failure: ``run``, ``wait`` or ``cancel``.
    """
    core.check()
    check_on_failure(on_failure)
    bytes_max = WORKFLOW_NAME_BYTES_MAX
    if not isinstance(name, str) or len(name.encode("utf-8", "replace")) > bytes_max:
        raise UsageError(f"the name of a workflow is text of at most {bytes_max} bytes")
    packed = None if key is None else shard_key_bytes(key, "key")
    item = None if callback is None else (await encode_tasks(core, [callback], None))[0]
    return await build.open_workflow(core, item, packed, name, on_failure)


async def add(
    core: EngineState,
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
    core.check()
    given = listed(tasks)
    if len(given) > SLICE_TASKS_MAX:
        raise LimitError(
            f"a slice has at most {SLICE_TASKS_MAX} members, this one {len(given)}: add them in "
            "several, or use Workflow.add"
        )
    if first is not None and (isinstance(first, bool) or not isinstance(first, int)):
        raise UsageError(f"first {first!r} is not a number")
    waits_for = task_ids(after, "after=")
    items = await encode_tasks(core, given, None)
    return await build.add_members(
        core, TaskId(workflow), items, first=first, after=waits_for, is_chain=bool(chain)
    )


async def after(
    core: EngineState, task: Any, waits_for: Sequence[AnyId], on_failure: Any
) -> TaskId:
    """See ``Engine.enqueue_after``.

    Args:
        task: one that names its queue.
        waits_for: ids of other tasks.
        on_failure: ``run``, ``wait`` or ``cancel``.
    """
    core.check()
    check_on_failure(on_failure)
    ids = task_ids(waits_for, "after=")
    (item,) = await encode_tasks(core, [task], None)
    return (await dependencies.enqueue_after(core, item, ids, on_failure)).id


async def seal(core: EngineState, workflow: AnyId) -> bool:
    """See ``Engine.seal_workflow``."""
    core.check()
    return await build.seal_workflow(core, TaskId(workflow))


async def info(core: EngineState, workflow: AnyId) -> WorkflowInfo:
    """See ``Engine.workflow_info``."""
    core.check()
    return await views.workflow_info(core, TaskId(workflow))


async def graph_of(core: EngineState, workflow: AnyId) -> WorkflowGraph:
    """See ``Engine.workflow_graph``."""
    core.check()
    return await graph.workflow_graph(core, TaskId(workflow))


async def list_some(core: EngineState, state: Any, limit: Any, cursor: Any) -> WorkflowPage:
    """See ``Engine.workflows``.

    Args:
        core: of the engine.
        state: one of ``WORKFLOW_STATES``, or None.
        limit: workflows, 1 to 256.
        cursor: of the page before, or None.
    """
    core.check()
    return await listing.list_workflows(core, state=state, limit=limit, cursor=cursor)


async def parts_of(
    core: EngineState,
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
    core.check()
    return await views.parts(
        core, TaskId(id), after=after, limit=limit, failed=bool(failed), payloads=payloads
    )


async def cancel(core: EngineState, workflow: AnyId) -> int:
    """See ``Engine.cancel_workflow``."""
    core.check()
    return await acts.cancel_workflow(core, TaskId(workflow))


async def redrive(core: EngineState, workflow: AnyId) -> int:
    """See ``Engine.redrive_workflow``."""
    core.check()
    return await acts.redrive_workflow(core, TaskId(workflow))
