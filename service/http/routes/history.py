"""The history of ended tasks, and the attempts of one."""

from __future__ import annotations

from typing import TypeVar

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from ....client.documents.records import attempt_doc, result_doc
from ....engine.records.keyspace import check_name
from ....repository.tasks.operators.history import HistoryFilter, tenant_or_all
from .. import schemas
from ..access.roles import Role
from ..named_queues import history_queue, task_in_path
from ..operations import operation
from ..request_context import RequestContext

__all__ = ["attempts", "history"]

_PAGE_BYTES = 4 << 20
T = TypeVar("T")


@operation(
    "GET /tasks/{task_id}/attempts",
    {"attempts": schemas.list_of(schemas.Attempt)},
    needs=Role.PRODUCER | Role.READER,
    names=task_in_path,
)
async def attempts(context: RequestContext) -> Response:
    """List how the runs of a task ended."""
    found = await context.server.engine.attempts(context.task_id)
    return context.answer({"attempts": [attempt_doc(one) for one in found]})


@operation(
    "GET /history",
    {
        "results": schemas.list_of(schemas.Result),
        "cursor": str | None,
        "is_short": bool,
        "has_cut_previews": bool,
    },
    needs=Role.READER,
    names=history_queue,
)
async def history(context: RequestContext, query: schemas.HistoryQuery) -> Response:
    """List a page of ended tasks, those that were enqueued last first, or the oldest first."""
    queue = _given(query.queue)
    meant = HistoryFilter(
        queue=None if queue is None else check_name(queue, "queue"),
        tenant=tenant_or_all(_given(query.tenant)),
        function=_given(query.function),
        state=_given(query.state),
        since=_given(query.since),
        until=_given(query.until),
        text=_given(query.text),
    )
    view, cursor = context.server.view, _given(query.cursor)
    async with context.server.pages:
        page = await view.history(
            meant,
            query.limit,
            cursor,
            _PAGE_BYTES,
            oldest_first=query.oldest_first,
            after=_given(query.after),
        )
        docs = (result_doc(context.out, one, None) for one in page)
        rest = {
            "cursor": page.cursor,
            "is_short": page.is_short,
            "has_cut_previews": page.has_cut_previews,
        }
        return await context.answer_list("results", docs, rest)


def _given(member: T | UnsetType) -> T | None:
    return None if member is UNSET else member
