"""The queues that a request names, by operation: what a token with limits is held against.

Each operation declares one of these functions as its ``names``. They are called only for a token
that has limits, once query and document have been read and before anything is done. An operation
whose ``names`` is ``WHOLE`` is about the store as a whole: such a token never may do it.

An id names a queue, too. A task of a queue on which the token has no role at all is answered as one
that is not there, so that nobody learns what others have.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

from msgspec import UNSET

from ...engine.runtime.task_id import TaskId
from ...errors import TaskNotFoundError, UsageError
from ...repository.api.lease_proof import LeaseProof
from ...repository.api.queue import Queue, tenant_queue_of
from ...repository.api.view import EngineView
from ...repository.tasks.lease import Lease
from . import schemas
from .access.roles import ANY, SOME_TENANT, Access, NamedQueue, Role
from .request_context import RequestContext

__all__ = [
    "WHOLE",
    "Names",
    "claimed_queues",
    "document_queue",
    "filtered_queue",
    "function_queue",
    "held_lease",
    "held_leases",
    "history_queue",
    "no_queue",
    "published_queues",
    "queue_in_path",
    "queue_of_lease",
    "queue_of_object",
    "reported_queues",
    "require_follow_ups",
    "require_leases",
    "settings_in_path",
    "task_after",
    "task_for_path",
    "task_in_path",
    "tasks_of_document",
    "whole_queue_in_path",
]

Names = Callable[[RequestContext, Any, Any], AsyncIterator[NamedQueue]] | None
WHOLE: Final = None
_NONE: Final[tuple[NamedQueue, ...]] = ()


async def no_queue(context: RequestContext, query: Any, document: Any) -> AsyncIterator[NamedQueue]:
    """No queue: nothing that is about one."""
    del context, query, document
    for named in _NONE:
        yield named


# -- by name ---------------------------------------------------------------------------------


async def queue_in_path(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queue in the path, and the tenant in the query."""
    del document
    is_all = getattr(query, "all_tenants", False)
    yield NamedQueue(context.path("queue"), None if is_all else query.tenant)


async def settings_in_path(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queue in the path, with what is the same for all its tenants."""
    del query, document
    yield NamedQueue(context.path("queue"), SOME_TENANT)


async def whole_queue_in_path(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queue in the path, of all tenants."""
    del query, document
    yield NamedQueue(context.path("queue"), None)


def _reference(one: str | schemas.QueueReference) -> NamedQueue:
    if isinstance(one, str):
        return NamedQueue(one, "")
    tenant = "" if one.tenant is UNSET else one.tenant
    return NamedQueue(one.queue, None if one.all_tenants is True else tenant)


async def claimed_queues(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queues of a claim."""
    del context, query
    for one in document.queues:
        yield _reference(one)


async def document_queue(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """``queue`` and ``tenant`` of the document; where it has no tenant, all of them."""
    del context, query
    yield NamedQueue(document.queue, getattr(document, "tenant", None))


async def filtered_queue(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queue of a filter."""
    del query
    given = document.filter
    yield _named(context, given.get("queue"), given.get("tenant"), "the filter")


async def history_queue(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queue of a query."""
    del document
    queue = None if query.queue is UNSET else query.queue
    yield _named(context, queue, None if query.tenant is UNSET else query.tenant, "the query")


async def function_queue(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queue of a query, if it has one; what is of others is left out of the answer."""
    del context, document
    if query.queue is not UNSET:
        yield NamedQueue(query.queue, SOME_TENANT)


def _named(context: RequestContext, queue: Any, tenant: Any, where: str) -> NamedQueue:
    """The queue that is given; without one the request is about the whole store."""
    if queue is None:
        name = context.access.name
        raise UsageError(f"token {name!r} is not for all queues and tenants: name one in {where}")
    if not isinstance(queue, str) or not isinstance(tenant, str | None):
        raise UsageError(f"queue and tenant in {where} are text")
    return NamedQueue(queue, tenant)


# -- functions and workers -------------------------------------------------------------------


async def published_queues(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queues of functions that are published."""
    del context, query
    for one in document.functions:
        yield NamedQueue(_text(one), SOME_TENANT)


async def reported_queues(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queues that a worker serves, and those of what it runs."""
    del context, query
    report = document.report
    for one in _list(report, "queues"):
        yield NamedQueue(one if isinstance(one, str) else "", SOME_TENANT)
    for name in ("running", "ticks"):
        for one in _list(report, name):
            yield NamedQueue(_text(one), SOME_TENANT)


def _list(document: dict[str, Any], name: str) -> Iterable[Any]:
    found = document.get(name, ())
    return found if isinstance(found, list | tuple) else ()


def _text(document: Any) -> str:
    """The queue in a document that is checked later; empty if it is none: no token covers that."""
    found = document.get("queue") if isinstance(document, dict) else None
    return found if isinstance(found, str) else ""


# -- tasks that are enqueued -----------------------------------------------------------------


async def tasks_of_document(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queues of tasks that are enqueued, and of those that they wait for."""
    del query
    base = None
    if document.queue is not UNSET:
        base = NamedQueue(document.queue, "" if document.tenant is UNSET else document.tenant)
    for task in document.tasks:
        for named in await _queues_of(context, task, base):
            yield named


async def task_for_path(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queue in the path, and those of the tasks that the new one waits for."""
    yield NamedQueue(context.path("queue"), query.tenant)
    for one in document.after:
        await _require_seen(context, one)


async def task_after(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queue of a task, and those of the tasks that it waits for."""
    del query
    for one in document.after:
        await _require_seen(context, one)
    for named in await _queues_of(context, document.task, None):
        yield named


async def _queues_of(
    context: RequestContext, task: schemas.NewTask, base: NamedQueue | None
) -> list[NamedQueue]:
    """The queue of a new task; ``base``: the one of the call. Without any the engine refuses it."""
    await context.turns.give()
    for one in task.after:
        await _require_seen(context, one)
    queue = base.queue if task.queue is None and base is not None else task.queue
    tenant = (base.tenant if base is not None else "") if task.tenant is None else task.tenant
    return [] if queue is None else [NamedQueue(queue, tenant)]


async def require_follow_ups(
    context: RequestContext, proof: LeaseProof, then: Iterable[schemas.NewTask]
) -> None:
    """Check that a token may enqueue what follows a task.

    Raises:
        AccessDeniedError: it may not. TaskNotFoundError: one is to wait for a task of others.
    """
    access = context.access
    access.require(Role.PRODUCER)
    if access.whole & Role.PRODUCER:
        return
    base = queue_of_lease(context.server.view, proof)
    for task in then:
        for named in await _queues_of(context, task, base):
            access.require_on(Role.PRODUCER, named)


# -- by id -----------------------------------------------------------------------------------


async def task_in_path(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queue of the task in the path."""
    del query, document
    yield await _require_seen(context, context.task_id)


async def _require_seen(context: RequestContext, task_id: TaskId) -> NamedQueue:
    """The queue of a task.

    Raises:
        TaskNotFoundError: there is no such task in the queues of the token.
    """
    task = await context.server.view.task(task_id, "none")
    if task is not None:
        named = NamedQueue(task.queue, task.tenant)
        if context.access.allows(ANY, named):
            return named
    raise TaskNotFoundError(
        f"no task {task_id} in the queues of token {context.access.name!r}", task_id=task_id
    )


def queue_of_object(queue: Queue) -> NamedQueue:
    """The queue that a queue object stands for."""
    name, tenant = tenant_queue_of(queue)
    return NamedQueue(name.decode(), None if tenant is None else tenant.decode())


def queue_of_lease(view: EngineView, proof: LeaseProof) -> NamedQueue | None:
    """The queue of a live lease, by its proof; None: it has ended, or the proof is none."""
    lease: Lease | None = view.held_lease(proof)
    return None if lease is None else NamedQueue(lease.queue, lease.tenant)


def require_leases(access: Access, view: EngineView, proofs: Iterable[LeaseProof]) -> None:
    """Check that a token may end, or extend, leases. Those that have ended hurt nobody.

    Raises:
        AccessDeniedError: one is of a queue that is not the token's.
    """
    for proof in proofs:
        named = queue_of_lease(view, proof)
        if named is not None:
            access.require_on(Role.WORKER, named)


async def held_lease(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queue of the lease in the document, while it is live."""
    del query
    named = queue_of_lease(context.server.view, _proof(document))
    if named is not None:
        yield named


async def held_leases(
    context: RequestContext, query: Any, document: Any
) -> AsyncIterator[NamedQueue]:
    """The queues of the leases in the document, of those that are live."""
    del query
    for one in document.leases:
        named = queue_of_lease(context.server.view, _proof(one))
        if named is not None:
            yield named


def _proof(held: schemas.Held) -> LeaseProof:
    return LeaseProof(held.task_id, held.epoch, held.token)
