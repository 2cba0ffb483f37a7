"""Workflows: opened, filled, sealed, read, cancelled and redriven."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from msgspec import UNSET
from starlette.responses import Response

from ....client.documents.records import part_doc, when_text
from ....engine.runtime.task_id import TaskId
from ....repository.model.flows.workflows import WorkflowInfo
from .. import schemas
from ..access.roles import Role
from ..document_reader import at_most, key_of
from ..named_queues import WHOLE, task_after
from ..operations import operation
from ..request_context import RequestContext
from .enqueue import new_tasks

__all__ = [
    "add_members",
    "cancel_workflow",
    "enqueue_after",
    "open_workflow",
    "parts",
    "redrive_workflow",
    "seal_workflow",
    "workflow_graph",
    "workflow_info",
    "workflows",
]


@operation(
    "POST /workflows",
    {"id": TaskId, "callback": TaskId | None, "is_new": bool},
    needs=Role.PRODUCER,
    names=WHOLE,
)
async def open_workflow(context: RequestContext, document: schemas.OpenWorkflow) -> Response:
    """Open a workflow, or find the one that has the key."""
    callback = None
    if document.callback is not UNSET:
        (callback,) = await new_tasks(context, [document.callback])
    found = await context.server.engine.workflow(
        callback,
        key=key_of(document, "key"),
        name=document.name,
        on_failure=document.on_failure,  # type: ignore[arg-type]  # the engine checks it
    )
    out = context.out
    target = None if found.callback is None else out.id(found.callback)
    return context.answer({"id": out.id(found.id), "callback": target, "is_new": found.is_new})


@operation(
    "POST /workflows/{task_id}/members", {"ids": list[TaskId]}, needs=Role.PRODUCER, names=WHOLE
)
async def add_members(context: RequestContext, document: schemas.AddMembers) -> Response:
    """Add a slice of members; those whose numbers are taken are there already."""
    at_most(document.tasks, "tasks", context.server.settings.batch_max)
    tasks = await new_tasks(context, document.tasks)
    ids = await context.server.engine.add_members(
        context.task_id,
        tasks,
        first=document.first,
        after=document.after,
        chain=document.chain,
    )
    return context.answer({"ids": [context.out.id(one) for one in ids]})


@operation("POST /tasks/after", {"id": TaskId}, needs=Role.PRODUCER, names=task_after)
async def enqueue_after(context: RequestContext, document: schemas.EnqueueAfter) -> Response:
    """Enqueue a task that waits for others."""
    (task,) = await new_tasks(context, [document.task])
    task_id = await context.server.engine.enqueue_after(
        task,
        document.after,
        on_failure=document.on_failure,  # type: ignore[arg-type]  # the engine checks it
    )
    return context.answer({"id": context.out.id(task_id)})


@operation("POST /workflows/{task_id}/seal", {"was_open": bool}, needs=Role.PRODUCER, names=WHOLE)
async def seal_workflow(context: RequestContext) -> Response:
    """Seal a workflow: no more members."""
    return context.answer({"was_open": await context.server.engine.seal_workflow(context.task_id)})


@operation(
    "POST /workflows/{task_id}/cancel", {"cancelled": schemas.Count}, needs=Role.ADMIN, names=WHOLE
)
async def cancel_workflow(context: RequestContext) -> Response:
    """Cancel every task of a workflow that has not ended."""
    count = await context.server.engine.cancel_workflow(context.task_id)
    return context.answer({"cancelled": count})


@operation(
    "POST /workflows/{task_id}/redrive", {"redriven": schemas.Count}, needs=Role.ADMIN, names=WHOLE
)
async def redrive_workflow(context: RequestContext) -> Response:
    """Redrive the dead members of a workflow."""
    count = await context.server.engine.redrive_workflow(context.task_id)
    return context.answer({"redriven": count})


@operation(
    "GET /workflows/{task_id}", schemas.WorkflowInfo, needs=Role.PRODUCER | Role.READER, names=WHOLE
)
async def workflow_info(context: RequestContext) -> Response:
    """Get a workflow in numbers."""
    found = await context.server.engine.workflow_info(context.task_id)
    return context.answer(_info_doc(context, found))


@operation("GET /workflows/{task_id}/graph", schemas.WorkflowGraph, needs=Role.READER, names=WHOLE)
async def workflow_graph(context: RequestContext) -> Response:
    """Get the members of a workflow in groups by function, and the first that failed."""
    found = await context.server.engine.workflow_graph(context.task_id)
    groups = [
        {
            "function": one.function,
            "queue": one.queue,
            "layer": one.layer,
            "states": dict(one.states),
            "waits_for": [list(pair) for pair in one.waits_for.items()],
        }
        for one in found.groups
    ]
    failed = [{**asdict(one), "task_id": context.out.id(one.task_id)} for one in found.failed]
    info = _info_doc(context, found.info)
    return context.answer(
        {"info": info, "groups": groups, "failed": failed, "looked": found.looked}
    )


@operation(
    "GET /workflows",
    {
        "workflows": schemas.list_of(schemas.WorkflowInfo),
        "cursor": TaskId | None,
        "is_short": bool,
    },
    needs=Role.READER,
    names=WHOLE,
)
async def workflows(context: RequestContext, query: schemas.WorkflowsQuery) -> Response:
    """List a page of the workflows that are known, the newest first."""
    found = await context.server.engine.workflows(
        state=None if query.state is UNSET else query.state,
        limit=query.limit,
        cursor=None if query.cursor is UNSET else str(query.cursor),
    )
    docs = (_info_doc(context, one) for one in found)
    cursor = None if found.cursor is None else context.out.id(TaskId(found.cursor))
    return await context.answer_list(
        "workflows", docs, {"cursor": cursor, "is_short": found.is_short}
    )


def _info_doc(context: RequestContext, info: WorkflowInfo) -> dict[str, Any]:
    return {
        "id": context.out.id(info.id),
        "name": info.name,
        "state": info.state,
        "on_failure": info.on_failure,
        "generation": info.generation,
        "members": info.members,
        "ended": info.ended,
        "failed": info.failed,
        "callback": None if info.callback is None else context.out.id(info.callback),
        "callback_state": info.callback_state,
        "created_at": when_text(info.created_at),
        "joined_at": when_text(info.joined_at),
    }


@operation(
    "GET /workflows/{task_id}/parts",
    {"parts": schemas.list_of(schemas.Part)},
    needs=Role.PRODUCER | Role.WORKER | Role.READER,
    names=WHOLE,
)
async def parts(context: RequestContext, query: schemas.PartsQuery) -> Response:
    """List a page of what a workflow, or a waiting task, waits for."""
    found = await context.server.view.parts(
        context.task_id, query.after, query.limit, failed=query.failed, payloads="stored"
    )
    docs = (part_doc(context.out, part, None) for part in found)
    return await context.answer_list("parts", docs, {})
