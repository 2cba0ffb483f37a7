"""Published functions, calls of them by name, and the workers that run them."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET
from starlette.responses import Response

from ....client.documents.records import receipt_doc
from ....errors import UsageError
from ....repository.model.calls.functions import PublishedFunction, function_doc, function_of
from ....repository.model.workers import report_of_worker, worker_doc
from .. import schemas
from ..access.roles import ANY, SOME_TENANT, NamedQueue, Role
from ..document_reader import at_most
from ..named_queues import WHOLE, document_queue, function_queue, published_queues, reported_queues
from ..operations import operation
from ..request_context import RequestContext

__all__ = ["beat", "enqueue_function", "forget_function", "functions", "publish", "workers"]

_OBJECTS: Final = schemas.list_of(dict[str, Any])


@operation(
    "GET /functions",
    {"functions": _OBJECTS, "next": str | None},
    needs=Role.PRODUCER | Role.WORKER | Role.READER,
    names=function_queue,
)
async def functions(context: RequestContext, query: schemas.FunctionsQuery) -> Response:
    """List a page of the functions that workers have published."""
    after = None
    if query.after is not UNSET:
        queue, slash, name = query.after.partition("/")
        if not slash:
            raise UsageError("after is the 'next' of the page before: a queue, '/', a function")
        after = queue, name
    view, named = context.server.view, None if query.queue is UNSET else query.queue
    page = await view.functions(named, query.limit + 1, after)
    found = [one for one in page if _is_seen(context, one)]
    while len(page) > query.limit and len(found) <= query.limit:  # 'next' is a name, too
        await context.turns.give()
        page = await view.functions(named, query.limit + 1, (page[-1].queue, page[-1].name))
        found += [one for one in page if _is_seen(context, one)]
    del found[query.limit + 1 :]
    has_more = len(found) > query.limit
    del found[query.limit :]
    rest = {"next": f"{found[-1].queue}/{found[-1].name}" if has_more else None}
    docs = (function_doc(one) for one in found)
    return await context.answer_list("functions", docs, rest)


def _is_seen(context: RequestContext, one: PublishedFunction) -> bool:
    """Whether a function is shown to this caller."""
    return context.access.allows(ANY, NamedQueue(one.queue, SOME_TENANT))


@operation(
    "POST /functions/publish", {"written": schemas.Count}, needs=Role.WORKER, names=published_queues
)
async def publish(context: RequestContext, document: schemas.PublishFunctions) -> Response:
    """Publish functions: what a worker does at its start."""
    at_most(document.functions, "functions", schemas.FUNCTIONS_PAGE_MAX)
    given = [function_of(doc) for doc in document.functions]
    return context.answer({"written": await context.server.engine.publish_functions(given)})


@operation("POST /functions/forget", {"forgotten": bool}, needs=Role.ADMIN, names=document_queue)
async def forget_function(context: RequestContext, document: schemas.NamedFunction) -> Response:
    """Forget a published function."""
    engine = context.server.engine
    is_gone = await engine.forget_function(document.queue, document.function)
    return context.answer({"forgotten": is_gone})


@operation(
    "POST /functions/enqueue",
    by_status={201: schemas.Receipt, 200: schemas.Receipt},
    needs=Role.PRODUCER,
    names=document_queue,
)
async def enqueue_function(context: RequestContext, document: schemas.CallFunction) -> Response:
    """Enqueue a call of a published function, with its policy."""
    if not context.access.whole & Role.PRODUCER:  # the engine's error would name others' queues
        queue = document.queue
        if not await context.server.view.functions(queue, 1, None):
            raise UsageError(
                f"no function {document.function!r} is published for queue {queue!r}; none is"
            )
    receipt = await context.server.engine.enqueue_function(
        document.queue,
        document.function,
        document.arguments,
        tenant=document.tenant,
        priority=document.priority,
        delay=document.delay,
        ttl=document.ttl,
        dedup_key=document.dedup_key,
        headers=document.headers,
        max_attempts=document.max_attempts,
        labels=document.labels,
        preview=document.preview,
        durable=document.durable,
    )
    return context.answer(receipt_doc(context.out, receipt), 200 if receipt.duplicate else 201)


@operation("GET /workers", {"workers": _OBJECTS}, needs=Role.READER, names=WHOLE)
async def workers(context: RequestContext) -> Response:
    """List the live workers."""
    found = await context.server.engine.workers()
    return await context.answer_list("workers", (worker_doc(one) for one in found), {})


@operation("POST /workers/beat", needs=Role.WORKER, names=reported_queues)
async def beat(context: RequestContext, document: schemas.WorkerBeat) -> Response:
    """Report a worker: what it does every few seconds."""
    await context.server.engine.beat(report_of_worker(document.report))
    return context.answer({})
