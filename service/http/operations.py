"""Operations: what the routes register, and what they take and answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

from starlette.responses import Response

from . import schemas
from .request_context import RequestContext

__all__ = ["OPERATIONS", "Answer", "Operation", "called", "operation"]

Answer = type[Any] | Mapping[str, Any]  # a document, or the types of a small one's members
Handler = Callable[..., Awaitable[Response]]
H = TypeVar("H", bound=Handler)


class Operation(NamedTuple):
    """One operation of the service.

    Attributes:
        name: its ``operationId``.
        method: of HTTP.
        path: behind ``/v1``.
        handler: called with the request, then with its query and its document if it has them.
        answers: by status.
        query: what may stand in the query.
        takes: the document in the body; None: there is none.
        headers: those that change what it does.
    """

    name: str
    method: str
    path: str
    handler: Handler
    answers: Mapping[int, Answer]
    query: type[schemas.Query]
    takes: type[schemas.Request] | None
    headers: Mapping[str, Any]


OPERATIONS: Final[list[Operation]] = []
_NOTHING: Final[Mapping[str, Any]] = {}


def operation(
    route: str,
    answer: Answer = _NOTHING,
    *,
    by_status: Mapping[int, Answer] | None = None,
    name: str | None = None,
    headers: Mapping[str, Any] | None = None,
) -> Callable[[H], H]:
    """Register a handler. Its arguments ``query`` and ``document`` say what it takes.

    A POST without a document takes ``schemas.Nothing``: the media type has to be stated all the
    same, and a page of another site cannot state it.

    Args:
        route: method and path.
        answer: with status 200.
        by_status: answers by status instead.
        name: the handler's own where it is None.
        headers: types of headers that change what it does.
    """
    method, _, path = route.partition(" ")

    def register(handler: H) -> H:
        hints = get_type_hints(handler)
        OPERATIONS.append(
            Operation(
                name or handler.__name__,
                method,
                path,
                handler,
                by_status or {200: answer},
                hints.get("query", schemas.NoQuery),
                hints.get("document", schemas.Nothing if method == "POST" else None),
                headers or {},
            )
        )
        return handler

    return register


async def called(operation: Operation, context: RequestContext) -> Response:
    """Read what an operation takes, and call its handler."""
    given: list[schemas.Request] = []
    query = context.query(operation.query)
    if operation.query is not schemas.NoQuery:
        given.append(query)
    if operation.takes is not None:
        document = await context.read(operation.takes)
        if operation.takes is not schemas.Nothing:
            given.append(document)
    return await operation.handler(context, *given)
