"""Tasks and queues as operators see them, and the running of the whole."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from msgspec import UNSET

from ...client.records import plain_doc, queue_doc, report_doc, result_doc, task_doc
from ...engine.runtime.task_id import TaskId
from ...errors import StorePathError, TaskNotFoundError, UsageError
from ...repository.api.queue import Queue
from ...repository.model.encoded_tasks import names_of
from ...repository.model.values import Task
from ...repository.tasks import lookup
from ...repository.tasks.task_list import list_page
from ..shared.queue_looks import looks_of
from . import schemas
from .document_reader import at_most
from .request_context import RequestContext, problem
from .server_state import tenant_of

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = [
    "cancel",
    "checkpoint",
    "engine",
    "fsync",
    "get",
    "health",
    "migrate_bodies",
    "pause",
    "purge",
    "queue_stats",
    "queues",
    "redrive",
    "result",
    "resume",
    "stats",
    "tasks",
    "verify",
]

_EPOCH = datetime.fromtimestamp(0, UTC)
_PAGE_BYTES = 4 << 20


# -- one task --------------------------------------------------------------------------


async def get(context: RequestContext) -> Response:
    """Get a task, in whatever state."""
    task_id = context.task_id
    context.query(schemas.NoQuery)
    state = context.server.engine_state
    state.check()
    task = await lookup.get(state, task_id, "stored")
    if task is None:
        raise TaskNotFoundError(f"no task {task_id}", task_id=task_id)
    await context.turns.give()
    return context.answer(task_doc(context.out, task, None))


async def result(context: RequestContext) -> Response:
    """Get how a task ended; 202 while it has not."""
    server, task_id = context.server, context.task_id
    wait_s = server.wait_s(context.query(schemas.ResultQuery).wait)
    server.engine_state.check()
    call = partial(lookup.result, server.engine_state, task_id, wait_s, "stored")
    found = await (context.poll(call, None) if wait_s else call())
    if found is None:
        return context.answer({}, 202)
    return context.answer(result_doc(context.out, found, None))


async def cancel(context: RequestContext) -> Response:
    """End a task that is not over."""
    context.query(schemas.NoQuery)
    return context.answer({"cancelled": await context.server.engine.cancel(context.task_id)})


# -- one queue -------------------------------------------------------------------------


def _queue_of(context: RequestContext, query: schemas.TenantsQuery) -> Queue:
    return context.server.queue(context.path("queue"), tenant_of(query.tenant, query.all_tenants))


async def tasks(context: RequestContext) -> Response:
    """List a page of a queue's tasks by state."""
    query = context.query(schemas.TasksQuery)
    queue, tenant = names_of(context.path("queue"), query.tenant)
    tenant_of(query.tenant, query.all_tenants)
    after = None
    if query.after is not UNSET:  # a position: nothing else of the task is looked at
        after = Task(TaskId(bytes(16)), "", "", "", 0, 0, _EPOCH, position=query.after)
    state = context.server.engine_state
    state.check()
    found, is_full = await list_page(
        state,
        queue,
        None if query.all_tenants else tenant,
        query.state,
        query.limit,
        after,
        payloads="stored" if query.payloads else "none",
        bytes_max=_PAGE_BYTES,
    )
    # At most ``limit`` tasks, and about as many bytes as an answer may have; ``more`` says that it
    # was the bytes that ended the page.
    docs = (task_doc(context.out, task, None) for task in found)
    return await context.answer_list("tasks", docs, {"more": is_full and len(found) < query.limit})


async def queue_stats(context: RequestContext) -> Response:
    """Count a queue's tasks."""
    queue = _queue_of(context, context.query(schemas.TenantsQuery))
    return context.answer(plain_doc(await queue.stats()))


async def redrive(context: RequestContext) -> Response:
    """Enqueue dead letters again."""
    queue = _queue_of(context, context.query(schemas.TenantsQuery))
    ids = (await context.read(schemas.Redrive)).ids
    if ids is not UNSET:
        at_most(ids, "ids", context.server.settings.batch_max)
    return context.answer({"redriven": await queue.redrive(None if ids is UNSET else ids)})


async def purge(context: RequestContext) -> Response:
    """Delete the tasks that are not leased."""
    queue = _queue_of(context, context.query(schemas.TenantsQuery))
    state = (await context.read(schemas.Purge)).state
    return context.answer({"purged": await queue.purge(state)})


async def pause(context: RequestContext) -> Response:
    """Pause a queue: claims get nothing."""
    queue = _queue_of(context, context.query(schemas.TenantsQuery))
    await context.read(schemas.Nothing)
    await queue.pause()
    return context.answer({})


async def resume(context: RequestContext) -> Response:
    """Resume a queue: claims get tasks again."""
    queue = _queue_of(context, context.query(schemas.TenantsQuery))
    await context.read(schemas.Nothing)
    await queue.resume()
    return context.answer({})


# -- the whole -------------------------------------------------------------------------


async def engine(context: RequestContext) -> Response:
    """What a client has to know before anything else."""
    context.query(schemas.NoQuery)
    server = context.server
    server.engine_state.check()
    doc = {
        "path": server.engine.path,
        "shards": server.engine.shards,
        "durability": server.engine.durability,
        "limits": asdict(server.engine_state.limits),
        "batch_max": server.settings.batch_max,
        "wait_s_max": server.settings.wait_s_max,
        "body_bytes_max": server.settings.body_bytes_max,
        "takes_claim_ids": True,
    }
    return context.answer(doc)


async def queues(context: RequestContext) -> Response:
    """List a page of the queues that hold anything, with their counts."""
    query = context.query(schemas.QueuesQuery)
    after = None
    if query.after is not UNSET:
        queue, slash, tenant = query.after.partition("/")
        if not slash:
            raise UsageError("after is the 'next' of the page before: a queue, '/', its tenant")
        after = queue, tenant
    found = (await looks_of(context.server.engine).look()).lanes(after, query.limit + 1)
    has_more = len(found) > query.limit
    del found[query.limit :]
    docs = (queue_doc(*one) for one in found)
    rest = {"next": "/".join(found[-1][0]) if has_more else None}
    return await context.answer_list("queues", docs, rest)


async def stats(context: RequestContext) -> Response:
    """Counts and commit statistics."""
    context.query(schemas.NoQuery)
    return context.answer(plain_doc(await context.server.engine.stats()))


async def health(context: RequestContext) -> Response:
    """``ok``, or the reasons why not."""
    context.query(schemas.NoQuery)
    found = await context.server.engine.health()
    return context.answer({"ok": found.ok, "reasons": list(found.reasons)})


async def verify(context: RequestContext) -> Response:
    """Check every row."""
    await context.read(schemas.Nothing)
    return context.answer(report_doc(context.out, await context.server.engine.verify()))


async def checkpoint(context: RequestContext) -> Response:
    """Copy the store, below the folder that the server was given for that."""
    name = (await context.read(schemas.Checkpoint)).path
    folder = context.server.settings.checkpoints
    if folder is None:
        raise UsageError("this server makes no checkpoints: start it with --checkpoints DIR")
    path = _below(folder, name)
    try:
        await context.server.engine.checkpoint(path)
    except StorePathError as error:
        return problem(error, 409)  # the path is the caller's, not the server's own
    return context.answer({"path": path})


def _below(folder: str, name: str) -> str:
    root = os.path.realpath(folder)
    try:
        path = os.path.realpath(os.path.join(root, name))
    except ValueError as exc:  # a NUL, or a lone surrogate
        raise UsageError(f"{name!r} is no path: {exc}") from exc
    if os.path.commonpath([root, path]) != root or path == root:
        raise UsageError(f"checkpoints go below the server's folder for them, {name!r} does not")
    return path


async def migrate_bodies(context: RequestContext) -> Response:
    """Leave the older format of body files."""
    await context.read(schemas.Nothing)
    return context.answer(plain_doc(await context.server.engine.migrate_bodies()))


async def fsync(context: RequestContext) -> Response:
    """Make everything acknowledged so far durable."""
    await context.read(schemas.Nothing)
    await context.server.engine.fsync()
    return context.answer({})
