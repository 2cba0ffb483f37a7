"""Operations: what the routes register, and the OpenAPI document of all of them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

from msgspec.json import schema_components
from starlette.responses import Response

from ...engine.runtime.task_id import TaskId
from . import schemas
from .access.roles import Role, scopes_text
from .named_queues import WHOLE, Names
from .request_context import BYTES, RequestContext

__all__ = ["OPERATIONS", "Answer", "Operation", "called", "openapi", "operation"]

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
        streams: whether the body is bytes instead, which the handler reads as they come.
        headers: those that change what it does.
        media: types of its answers.
        needs: the roles of which its caller needs one.
        names: the queues that it is about, for callers with limits.
        changes: whether it changes anything.
        is_checked_again: whether its answer is given only if its shards are still led here then.
    """

    name: str
    method: str
    path: str
    handler: Handler
    answers: Mapping[int, Answer]
    query: type[schemas.Query]
    takes: type[schemas.Request] | None
    streams: bool
    headers: Mapping[str, Any]
    media: Sequence[str]
    needs: Role
    names: Names
    changes: bool
    is_checked_again: bool


OPERATIONS: Final[list[Operation]] = []
_NOTHING: Final[Mapping[str, Any]] = {}
_JSON: Final = ("application/json",)


def operation(
    route: str,
    answer: Answer = _NOTHING,
    *,
    needs: Role,
    names: Names,
    by_status: Mapping[int, Answer] | None = None,
    name: str | None = None,
    headers: Mapping[str, Any] | None = None,
    streams: bool = False,
    media: Sequence[str] = _JSON,
    changes: bool | None = None,
    is_checked_again: bool | None = None,
) -> Callable[[H], H]:
    """Register a handler. Its arguments ``query`` and ``document`` say what it takes.

    A POST without a document takes ``schemas.Nothing``: the media type has to be stated all the
    same, and a page of another site cannot state it.

    Args:
        route: method and path.
        answer: with status 200.
        needs: the roles of which its caller needs one.
        names: the queues that it is about; ``WHOLE``: the store, which callers with limits may not.
        by_status: answers by status instead.
        name: the handler's own where it is None.
        headers: types of headers that change what it does.
        streams: its body is bytes, which the handler reads as they come.
        media: types of its answers, where they are no documents.
        changes: False: it changes nothing although it is no GET. None: as its method says.
        is_checked_again: True: it reads, so whether its shards are still led here is checked once
            more before the answer. None: of a GET alone.
    """
    method, _, path = route.partition(" ")

    def register(handler: H) -> H:
        hints = get_type_hints(handler)
        has_document = method == "POST" and not streams
        OPERATIONS.append(
            Operation(
                name or handler.__name__,
                method,
                path,
                handler,
                by_status or {200: answer},
                hints.get("query", schemas.NoQuery),
                hints.get("document", schemas.Nothing if has_document else None),
                streams,
                headers or {},
                media,
                needs,
                names,
                method != "GET" if changes is None else changes,
                method == "GET" if is_checked_again is None else is_checked_again,
            )
        )
        return handler

    return register


async def called(operation: Operation, context: RequestContext) -> Response:
    """Read what an operation takes, and call its handler.

    Raises:
        AccessDeniedError: the caller's token does not allow it.
    """
    context.access.require(operation.needs)
    shards = context.shards()
    if shards is None:
        return await _called(operation, context)
    view = context.server.view
    view.check_led(shards)
    with view.only(shards):
        response = await _called(operation, context)
    if operation.is_checked_again:
        view.check_led(shards)  # else what was read may have been old before the answer was made
    return response


async def _called(operation: Operation, context: RequestContext) -> Response:
    given: list[schemas.Request] = []
    query = context.query(operation.query)
    if operation.query is not schemas.NoQuery:
        given.append(query)
    document: schemas.Request | None = None
    if operation.takes is not None:
        document = await context.read(operation.takes)
        if operation.takes is not schemas.Nothing:
            given.append(document)
    if not context.access.whole & operation.needs:
        await _require_named(operation, context, query, document)
    return await operation.handler(context, *given)


async def _require_named(
    operation: Operation,
    context: RequestContext,
    query: schemas.Query,
    document: schemas.Request | None,
) -> None:
    """Hold a caller with limits against the queues of its request."""
    if operation.names is WHOLE:
        context.access.require_whole(operation.needs)
        return
    async for named in operation.names(context, query, document):
        context.access.require_on(operation.needs, named)


# -- OpenAPI -------------------------------------------------------------------------------


class _Components:
    """The components that the document needs, found while it is written."""

    def __init__(self) -> None:
        self.schemas: dict[str, schemas.Schema] = {}
        self._rules = {one.__name__: one.rules for one in _kinds_of(schemas.Request)}

    def schema(self, kind: Any) -> schemas.Schema:
        """A type's schema; what it refers to becomes a component."""
        schema, found = _schemas(kind)
        self._add(found)
        return schema

    def _add(self, found: Mapping[str, schemas.Schema]) -> None:
        for name, component in found.items():
            if name not in self.schemas:
                self.schemas[name] = _ruled(component, self._rules.get(name, {}))

    def answer(self, answer: Answer) -> schemas.Schema:
        """The schema of an answer."""
        if not isinstance(answer, Mapping):
            return self.schema(answer)
        properties = {name: self.schema(kind) for name, kind in answer.items()}
        return {"type": "object", "properties": properties, "required": list(answer)}

    def parameters(self, query: type[schemas.Query]) -> Mapping[str, schemas.Schema]:
        """The schemas of a query's members."""
        _, found = _schemas(query)
        properties: Mapping[str, schemas.Schema] = found.pop(query.__name__)["properties"]
        self._add(found)
        return {name: _given(schema) for name, schema in properties.items()}


def _schemas(kind: Any) -> tuple[schemas.Schema, dict[str, schemas.Schema]]:
    """A type's schema, and those that it refers to."""
    (schema,), found = schema_components(
        [kind], schema_hook=schemas.schema_of_type, ref_template="#/components/schemas/{name}"
    )
    return schema, found


def _given(schema: schemas.Schema) -> schemas.Schema:
    """The schema of a parameter that is there: in a query nothing is null."""
    given = {name: one for name, one in schema.items() if (name, one) != ("default", None)}
    if isinstance(given.get("type"), list):
        (given["type"],) = (one for one in given["type"] if one != "null")
    some = [one for one in given.pop("anyOf", ()) if one != {"type": "null"}]
    return given | ({} if not some else some[0] if len(some) == 1 else {"anyOf": some})


def _kinds_of(kind: type[schemas.Request]) -> Sequence[type[schemas.Request]]:
    return [one for sub in kind.__subclasses__() for one in (sub, *_kinds_of(sub))]


def _ruled(schema: schemas.Schema, rules: schemas.Schema) -> schemas.Schema:
    """With the rules of its class, and those of single properties in them."""
    properties = schema.get("properties", {})
    for name, more in rules.get("properties", {}).items():
        properties[name] |= more
    return schema | rules | {"properties": properties}


def openapi(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """Write the document of these operations."""
    paths: dict[str, dict[str, Any]] = {}
    components = _Components()
    for one in operations:
        by_method = paths.setdefault(f"/v1{one.path}", {})
        by_method[one.method.lower()] = _described(one, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "lodeq",
            "version": version,
            "description": "A durable task queue. Bodies are JSON, or msgpack by Content-Type and "
            "Accept (application/msgpack). Every call takes 'shards' in its query, such as 0,2: "
            "it is then about these shards alone, and refused (421) where the node leads not all.",
        },
        "paths": paths,
        "components": {
            "schemas": components.schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _described(spec: Operation, components: _Components) -> dict[str, Any]:
    in_path = {"queue": schemas.Name, "task_id": TaskId, "snapshot_id": schemas.SnapshotId}
    parameters: list[dict[str, Any]] = [
        {"name": one, "in": "path", "required": True, "schema": components.schema(in_path[one])}
        for one in re.findall(r"\{(\w+)\}", spec.path)
    ]
    parameters += [
        {"name": one, "in": "query", **_written(schema)}
        for one, schema in components.parameters(spec.query).items()
    ]
    parameters += [
        {"name": one, "in": "header", "schema": components.schema(kind)}
        for one, kind in spec.headers.items()
    ]
    problem = {
        "description": "A problem: urn:lodeq:problem:… in its type names the error",
        "content": {"application/problem+json": {"schema": components.schema(schemas.Problem)}},
    }
    operation: dict[str, Any] = {
        "operationId": spec.name,
        "x-lodeq-scopes": scopes_text(spec.needs),
        "summary": (spec.handler.__doc__ or "").partition("\n")[0],
        "parameters": parameters,
        "responses": {
            str(status): {
                "description": "Done",
                "content": _content(spec, components.answer(answer)),
            }
            for status, answer in spec.answers.items()
        }
        | {"4XX": problem, "5XX": problem},
    }
    if spec.takes is not None:
        content = {"application/json": {"schema": components.schema(spec.takes)}}
        operation["requestBody"] = {"required": True, "content": content}
    if spec.streams:
        operation["requestBody"] = {"required": True, "content": {BYTES: {}}}
    return operation


def _written(schema: schemas.Schema) -> dict[str, Any]:
    """How a member of a query is described: objects are JSON in it."""
    if schema.get("type") == "object" or "$ref" in schema:
        return {"content": {"application/json": {"schema": schema}}}
    return {"schema": schema}


def _content(spec: Operation, schema: schemas.Schema) -> dict[str, Any]:
    return {
        one: {
            "schema": schema if one == "application/json" else {},
        }
        for one in spec.media
    }
