"""Tasks and queues as operators see them, and the running of the whole."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from msgspec import UNSET
from starlette.responses import Response

from ....client.documents.records import (
    plain_doc,
    queue_doc,
    report_doc,
    result_doc,
    settings_doc,
    task_doc,
)
from ....engine.files.paths import check_new_names
from ....engine.runtime.task_id import TaskId
from ....errors import StorePathError, TaskNotFoundError, UsageError
from ....repository.api.queue import Queue
from ....repository.model.queue_settings import SETTING_NAMES
from ....repository.model.values import RedrivePolicy, Task
from ...shared.engine_status import status_cache
from .. import schemas
from ..access.roles import ANY, NamedQueue, Role
from ..document_reader import at_most
from ..named_queues import (
    WHOLE,
    no_queue,
    queue_in_path,
    settings_in_path,
    task_in_path,
    whole_queue_in_path,
)
from ..operations import operation
from ..request_context import RequestContext, problem
from ..server_state import tenant_of

__all__ = [
    "cancel",
    "cancel_all",
    "checkpoint",
    "checkpoint_path",
    "configure",
    "engine",
    "fsync",
    "get",
    "health",
    "migrate_bodies",
    "pause",
    "payload",
    "purge",
    "queue_stats",
    "queues",
    "redrive",
    "result",
    "resume",
    "settings",
    "stats",
    "tasks",
    "verify",
]

_EPOCH = datetime.fromtimestamp(0, UTC)
_PAGE_BYTES = 4 << 20


# -- one task --------------------------------------------------------------------------


@operation(
    "GET /tasks/{task_id}", schemas.Task, needs=Role.PRODUCER | Role.READER, names=task_in_path
)
async def get(context: RequestContext) -> Response:
    """Get a task, in whatever state."""
    task_id = context.task_id
    async with context.server.pages:
        task = await context.server.view.task(task_id, "stored")
        if task is None:
            raise TaskNotFoundError(f"no task {task_id}", task_id=task_id)
        await context.turns.give()
        return context.answer(task_doc(context.out, task, None))


@operation(
    "GET /tasks/{task_id}/payload",
    schemas.PayloadPart,
    needs=Role.PRODUCER | Role.READER | Role.WORKER,
    names=task_in_path,
)
async def payload(context: RequestContext, query: schemas.PayloadQuery) -> Response:
    """Get a part of a task's payload."""
    part = context.server.view.payload_part
    size, crc, data = await part(context.task_id, query.offset, query.bytes)
    await context.turns.give()
    doc = {"payload_bytes": size, "crc32": crc, "data": context.out.raw(data)}
    return context.answer(doc)


@operation(
    "GET /tasks/{task_id}/result",
    by_status={200: schemas.Result, 202: {}},
    needs=Role.PRODUCER | Role.READER,
    names=task_in_path,
)
async def result(context: RequestContext, query: schemas.ResultQuery) -> Response:
    """Get how a task ended; 202 while it has not."""
    server, task_id = context.server, context.task_id
    wait_s = server.wait_s(query.wait)
    call = partial(server.view.result, task_id, wait_s, "stored")
    found = await (context.poll(call, None) if wait_s else call())
    if found is None:
        return context.answer({}, 202)
    return context.answer(result_doc(context.out, found, None))


@operation("DELETE /tasks/{task_id}", {"cancelled": bool}, needs=Role.ADMIN, names=task_in_path)
async def cancel(context: RequestContext) -> Response:
    """End a task that is not over."""
    return context.answer({"cancelled": await context.server.engine.cancel(context.task_id)})


# -- one queue -------------------------------------------------------------------------


def _queue_of(context: RequestContext, query: schemas.TenantsQuery) -> Queue:
    return context.server.queue(context.path("queue"), tenant_of(query.tenant, query.all_tenants))


@operation(
    "GET /queues/{queue}/tasks",
    {"tasks": schemas.list_of(schemas.Task), "more": bool},
    name="list",
    needs=Role.READER,
    names=queue_in_path,
)
async def tasks(context: RequestContext, query: schemas.TasksQuery) -> Response:
    """List a page of a queue's tasks by state."""
    after = None
    if query.after is not UNSET:  # a position: nothing else of the task is looked at
        after = Task(TaskId(bytes(16)), "", "", "", 0, 0, _EPOCH, position=query.after)
    async with context.server.pages:
        found, is_full = await context.server.view.page(
            _queue_of(context, query),
            query.state,
            query.limit,
            after,
            payloads="stored" if query.payloads else "none",
            bytes_max=_PAGE_BYTES,
        )
        # At most ``limit`` tasks, and about as many bytes as an answer may have; ``more`` says that
        # it was the bytes that ended the page.
        docs = (task_doc(context.out, task, None) for task in found)
        return await context.answer_list(
            "tasks", docs, {"more": is_full and len(found) < query.limit}
        )


@operation("GET /queues/{queue}/stats", schemas.QueueStats, needs=Role.READER, names=queue_in_path)
async def queue_stats(context: RequestContext, query: schemas.TenantsQuery) -> Response:
    """Count a queue's tasks."""
    return context.answer(plain_doc(await _queue_of(context, query).stats()))


@operation(
    "POST /queues/{queue}/redrive",
    {"redriven": schemas.Count},
    needs=Role.ADMIN,
    names=queue_in_path,
)
async def redrive(
    context: RequestContext, query: schemas.TenantsQuery, document: schemas.Redrive
) -> Response:
    """Enqueue dead letters again."""
    queue = _queue_of(context, query)
    ids = document.ids
    if ids is not UNSET:
        at_most(ids, "ids", context.server.settings.batch_max)
    named = None if ids is UNSET else ids
    policy = cast("RedrivePolicy", document.policy)  # the queue checks it
    return context.answer({"redriven": await queue.redrive(named, policy=policy)})


@operation(
    "POST /queues/{queue}/cancel_all",
    {"cancelled": schemas.Count},
    needs=Role.ADMIN,
    names=queue_in_path,
)
async def cancel_all(
    context: RequestContext, query: schemas.TenantsQuery, document: schemas.CancelAll
) -> Response:
    """Cancel the tasks that have not ended."""
    cancelled = await _queue_of(context, query).cancel_all(leased=document.leased)
    return context.answer({"cancelled": cancelled})


@operation(
    "POST /queues/{queue}/purge", {"purged": schemas.Count}, needs=Role.ADMIN, names=queue_in_path
)
async def purge(
    context: RequestContext, query: schemas.TenantsQuery, document: schemas.Purge
) -> Response:
    """Delete the tasks that are not leased."""
    purged = await _queue_of(context, query).purge(document.state)
    return context.answer({"purged": purged})


@operation("POST /queues/{queue}/pause", needs=Role.ADMIN, names=queue_in_path)
async def pause(context: RequestContext, query: schemas.TenantsQuery) -> Response:
    """Pause a queue: claims get nothing."""
    await _queue_of(context, query).pause()
    return context.answer({})


@operation("POST /queues/{queue}/resume", {"resumed": bool}, needs=Role.ADMIN, names=queue_in_path)
async def resume(context: RequestContext, query: schemas.TenantsQuery) -> Response:
    """Resume a queue: claims get tasks again; false while it is paused for all tenants."""
    return context.answer({"resumed": await _queue_of(context, query).resume()})


@operation(
    "GET /queues/{queue}/settings",
    schemas.QueueSettings,
    needs=Role.WORKER | Role.READER,
    names=settings_in_path,
)
async def settings(context: RequestContext) -> Response:
    """Get what is set for a queue, and who has set it; null is not set."""
    found = await context.server.engine.settings(context.path("queue"))
    return context.answer(settings_doc(found))


@operation(
    "POST /queues/{queue}/settings",
    schemas.QueueSettings,
    needs=Role.ADMIN,
    names=whole_queue_in_path,
)
async def configure(context: RequestContext, document: schemas.Configure) -> Response:
    """Set what is durable of a queue: rate, concurrency, history, faces."""
    changes = {
        name: value for name in SETTING_NAMES if (value := getattr(document, name)) is not UNSET
    }
    found = await context.server.engine.configure(
        context.path("queue"), by=document.by, replace=document.replace, **changes
    )
    return context.answer(settings_doc(found))


# -- the whole -------------------------------------------------------------------------


@operation(
    "GET /engine",
    {
        "path": str | None,
        "shards": schemas.Count,
        "durability": str,
        "limits": dict[str, Any],
        "batch_max": schemas.Count,
        "wait_s_max": float,
        "body_bytes_max": schemas.Count,
        "takes_claim_ids": bool,
        "takes_queue_settings": bool,
        "has_history": bool,
        "takes_filters": bool,
        "takes_policies": bool,
        "takes_faces": bool,
        "takes_progress": bool,
        "takes_dependencies": bool,
        "takes_dead_claims": bool,
        "skips_functions": bool,
        "stream_bytes_max": schemas.Count,
        "lists_oldest_first": bool,
        "processes": dict[str, str] | None,
    },
    needs=ANY,
    names=no_queue,
)
async def engine(context: RequestContext) -> Response:
    """Describe the engine: a client asks for this before anything else."""
    server = context.server
    server.view.check()
    doc = {
        "path": server.engine.path,
        "shards": server.engine.shards,
        "durability": server.engine.durability,
        # What a request may bring. (A client before format 4 takes no greater limit for one.)
        "limits": asdict(server.limits) | {"payload_bytes_max": server.limits.value_bytes_max},
        "batch_max": server.settings.batch_max,
        "wait_s_max": server.settings.wait_s_max,
        "body_bytes_max": server.settings.body_bytes_max,
        "takes_claim_ids": True,
        "takes_queue_settings": True,
        "has_history": True,
        "takes_filters": True,
        "takes_policies": True,
        "takes_faces": True,
        "takes_progress": True,
        "takes_dependencies": True,
        "takes_dead_claims": True,
        "skips_functions": True,
        "stream_bytes_max": server.view.stream_bytes_max,
        "lists_oldest_first": True,
        "processes": server.view.processes(),
    }
    return context.answer(doc)


@operation(
    "GET /queues",
    {"queues": schemas.list_of(schemas.QueueSummary), "next": str | None},
    needs=Role.READER,
    names=no_queue,
)
async def queues(context: RequestContext, query: schemas.QueuesQuery) -> Response:
    """List a page of the queues that hold anything, with their counts."""
    after = None
    if query.after is not UNSET:
        queue, slash, tenant = query.after.partition("/")
        if not slash:
            raise UsageError("after is the 'next' of the page before: a queue, '/', its tenant")
        after = queue, tenant
    if context.server.view.is_scoped:  # the status that all share is of all shards
        rows = sorted((await context.server.view.queues()).items())
        rows = [one for one in rows if after is None or one[0] > after]
        found = [one for one in rows if _is_seen(context, one)][: query.limit + 1]
    else:
        status = await status_cache(context.server.engine).get()
        page = found = status.page(after, query.limit + 1)
        if not context.access.whole & Role.READER:  # 'next' is a name, too: never of others' queues
            found = [one for one in page if _is_seen(context, one)]
            while len(page) > query.limit and len(found) <= query.limit:
                await context.turns.give()
                page = status.page(page[-1][0], query.limit + 1)
                found += [one for one in page if _is_seen(context, one)]
            del found[query.limit + 1 :]
    has_more = len(found) > query.limit
    del found[query.limit :]
    docs = (queue_doc(*one) for one in found)
    rest = {"next": "/".join(found[-1][0]) if has_more else None}
    return await context.answer_list("queues", docs, rest)


def _is_seen(context: RequestContext, one: tuple[tuple[str, str], object]) -> bool:
    """Whether the line of a queue is shown to this caller."""
    return context.access.allows(Role.READER, NamedQueue(*one[0]))


@operation("GET /stats", schemas.EngineStats, needs=Role.READER, names=WHOLE)
async def stats(context: RequestContext) -> Response:
    """Counts and commit statistics."""
    return context.answer(plain_doc(await context.server.engine.stats()))


@operation("GET /health", {"ok": bool, "reasons": list[str]}, needs=Role.READER, names=WHOLE)
async def health(context: RequestContext) -> Response:
    """``ok``, or the reasons why not."""
    found = await context.server.engine.health()
    return context.answer({"ok": found.ok, "reasons": list(found.reasons)})


@operation(
    "POST /verify",
    {"ok": bool, "findings": list[dict[str, Any]]},
    needs=Role.ADMIN,
    names=WHOLE,
    changes=False,
)
async def verify(context: RequestContext) -> Response:
    """Check every row."""
    return context.answer(report_doc(context.out, await context.server.engine.verify()))


@operation("POST /checkpoint", {"path": str}, needs=Role.ADMIN, names=WHOLE)
async def checkpoint(context: RequestContext, document: schemas.Checkpoint) -> Response:
    """Copy the store, below the folder that the server was given for that."""
    name = document.path
    folder = context.server.settings.checkpoints
    if folder is None:
        raise UsageError("this server makes no checkpoints: start it with --checkpoints DIR")
    path = checkpoint_path(folder, name)
    try:
        await context.server.engine.checkpoint(path)
    except StorePathError as error:
        return problem(error, 409)  # the path is the caller's, not the server's own
    return context.answer({"path": path})


def checkpoint_path(folder: str, name: str) -> str:
    """Where a checkpoint of that name goes.

    Raises:
        UsageError: it would lie outside of the server's folder for them.
    """
    root = os.path.realpath(folder)
    try:
        check_new_names(name, name.split("/"))
    except StorePathError as exc:
        raise UsageError(str(exc)) from exc
    try:
        path = os.path.realpath(os.path.join(root, name))
    except ValueError as exc:  # a NUL, or a lone surrogate
        raise UsageError(f"{name!r} is no path: {exc}") from exc
    if os.path.commonpath([root, path]) != root or path == root:
        raise UsageError(f"checkpoints go below the server's folder for them, {name!r} does not")
    return path


@operation("POST /migrate_bodies", schemas.MigrationReport, needs=Role.ADMIN, names=WHOLE)
async def migrate_bodies(context: RequestContext) -> Response:
    """Leave the older format of body files."""
    return context.answer(plain_doc(await context.server.engine.migrate_bodies()))


@operation("POST /fsync", needs=Role.ADMIN, names=WHOLE)
async def fsync(context: RequestContext) -> Response:
    """Make everything acknowledged so far durable."""
    await context.server.engine.fsync()
    return context.answer({})
