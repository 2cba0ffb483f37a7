"""Search for tasks by a filter, their number, and acts on what was found."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

from msgspec import UNSET
from starlette.responses import Response

from ....client.documents.records import task_doc
from ....errors import AccessDeniedError, ClosedError
from ....repository.model.filters import FOUND_MAX, Act, TaskFilter, filter_of
from ....repository.model.values import RedrivePolicy, Task
from ....repository.tasks.lookup import Payloads
from ...shared.found_files import MEDIA_TYPES, found_chunks
from .. import schemas
from ..access.roles import Role
from ..named_queues import filtered_queue
from ..operations import operation
from ..request_context import RequestContext

__all__ = ["act", "check_open", "count", "export", "find"]


@operation(
    "POST /tasks/find",
    {
        "tasks": schemas.list_of(schemas.Task),
        "cursor": str | None,
        "is_short": bool,
        "has_cut_previews": bool,
    },
    needs=Role.READER,
    names=filtered_queue,
    changes=False,
    is_checked_again=True,
)
async def find(context: RequestContext, document: schemas.Find) -> Response:
    """List a page of the tasks that a filter means."""
    meant, view = filter_of(document.filter), context.server.view
    payloads: Payloads = "stored" if document.payloads else "none"
    async with context.server.pages:
        found = await view.find(
            meant,
            document.limit,
            document.cursor,
            payloads,
            oldest_first=document.oldest_first,
            after=None if document.after is UNSET else document.after,
        )
        docs = (task_doc(context.out, task, None) for task in found)
        rest = {
            "cursor": found.cursor,
            "is_short": found.is_short,
            "has_cut_previews": found.has_cut_previews,
        }
        return await context.answer_list("tasks", docs, rest)


@operation(
    "POST /tasks/export",
    media=[one.partition(";")[0] for one in MEDIA_TYPES.values()],
    needs=Role.READER,
    names=filtered_queue,
    changes=False,
)
async def export(context: RequestContext, document: schemas.ExportFound) -> Response:
    """Stream all tasks that a filter means, as lines of JSON, CSV or Parquet."""
    meant = filter_of(document.filter)
    chunks = found_chunks(
        _found(context, meant, "stored" if document.payloads else "none"),
        document.format,
        payloads=document.payloads,
        turn=context.turns.give_now,
    )
    return context.stream(chunks, MEDIA_TYPES[document.format])


def check_open(context: RequestContext) -> None:
    """Refuse to go on in a server that closes, or for a caller who has lost his rights."""
    if context.access.is_over:
        raise AccessDeniedError("the token is not valid any more: the export is not whole")
    if context.server.is_closing:
        raise ClosedError("the server closes: the export is not whole")


async def _found(
    context: RequestContext, meant: TaskFilter, payloads: Payloads
) -> AsyncIterator[Task]:
    """Tasks, page by page. A server that closes breaks the answer off: it must not look whole."""
    cursor = None
    while True:
        check_open(context)
        page = await context.server.view.find(meant, FOUND_MAX, cursor, payloads)
        for task in page:
            yield task
        cursor = page.cursor
        if cursor is None:
            return


@operation(
    "POST /tasks/count",
    {"count": schemas.Count, "is_exact": bool, "has_cut_previews": bool},
    needs=Role.READER,
    names=filtered_queue,
    changes=False,
    is_checked_again=True,
)
async def count(context: RequestContext, document: schemas.Counted) -> Response:
    """Count the tasks that a filter means."""
    meant = filter_of(document.filter)
    found = await context.server.engine.count(meant, looks=document.looks)
    doc = {
        "count": found.count,
        "is_exact": found.is_exact,
        "has_cut_previews": found.has_cut_previews,
    }
    return context.answer(doc)


@operation(
    "POST /tasks/act",
    {
        "done": schemas.Count,
        "skipped": schemas.Count,
        "refused": dict[str, str],
        "cursor": str | None,
    },
    needs=Role.ADMIN,
    names=filtered_queue,
)
async def act(context: RequestContext, document: schemas.ActOn) -> Response:
    """Act on the tasks that a filter means: one slice."""
    report = await context.server.engine.act(
        cast("Act", document.act),  # the engine checks it
        filter_of(document.filter),
        priority=document.priority,
        policy=cast("RedrivePolicy", document.policy),
        limit=document.limit,
        cursor=document.cursor,
    )
    doc = {
        "done": report.done,
        "skipped": report.skipped,
        "refused": dict(report.refused),
        "cursor": report.cursor,
    }
    return context.answer(doc)
