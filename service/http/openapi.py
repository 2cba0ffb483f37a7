"""The OpenAPI document: which documents of ``schemas`` each operation takes and returns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.json import schema_components

from ...engine.runtime.task_id import TaskId
from . import schemas as s

__all__ = ["openapi"]

Answer = type[Any] | Mapping[str, Any]  # a document, or the types of a small one's members


class _Spec(NamedTuple):
    """One operation: answers by status, request document, query, headers."""

    answers: Mapping[int, Answer]
    takes: type[s.Request] | None = None
    query: type[s.Query] = s.NoQuery
    headers: Mapping[str, Any] = {}


_KEY: Final = {"Idempotency-Key": s.IdempotencyKey}
_LOST: Final = dict[str, str]  # by position in the request, why
_DONE: Final[Mapping[str, Any]] = {}
_SPECS: Final[Mapping[str, _Spec]] = {
    "enqueue": _Spec({201: s.Receipt, 200: s.Receipt}, s.Enqueue, s.TenantQuery, _KEY),
    "enqueue_many": _Spec({200: {"receipts": s.list_of(s.Receipt)}}, s.EnqueueMany, headers=_KEY),
    "claim": _Spec({200: {"leases": list[s.Lease]}}, s.Claim),
    "cancel_claim": _Spec({200: {"released": s.Count}}, s.CancelClaim),
    "heartbeat": _Spec({200: {"deadline": s.Moment}}, s.Heartbeat),
    "complete": _Spec({200: _DONE}, s.Complete),
    "nack": _Spec({200: _DONE}, s.Nack),
    "release": _Spec({200: _DONE}, s.Release),
    "bury": _Spec({200: _DONE}, s.Bury),
    "cancel_lease": _Spec({200: _DONE}, s.Held),
    "complete_many": _Spec({200: {"lost": _LOST}}, s.CompleteMany),
    "heartbeat_many": _Spec(
        {200: {"lost": _LOST, "deadlines": list[s.Moment | None]}}, s.HeartbeatMany
    ),
    "get": _Spec({200: s.Task}),
    "cancel": _Spec({200: {"cancelled": bool}}),
    "result": _Spec({200: s.Result, 202: _DONE}, query=s.ResultQuery),
    "list": _Spec({200: {"tasks": s.list_of(s.Task), "more": bool}}, query=s.TasksQuery),
    "queues": _Spec(
        {200: {"queues": s.list_of(s.QueueSummary), "next": str | None}}, query=s.QueuesQuery
    ),
    "queue_stats": _Spec({200: s.QueueStats}, query=s.TenantsQuery),
    "redrive": _Spec({200: {"redriven": s.Count}}, s.Redrive, s.TenantsQuery),
    "purge": _Spec({200: {"purged": s.Count}}, s.Purge, s.TenantsQuery),
    "pause": _Spec({200: _DONE}, s.Nothing, s.TenantsQuery),
    "resume": _Spec({200: _DONE}, s.Nothing, s.TenantsQuery),
    "engine": _Spec({200: s.Engine}),
    "stats": _Spec({200: s.EngineStats}),
    "health": _Spec({200: {"ok": bool, "reasons": list[str]}}),
    "verify": _Spec({200: {"ok": bool, "findings": list[dict[str, Any]]}}, s.Nothing),
    "checkpoint": _Spec({200: {"path": str}}, s.Checkpoint),
    "migrate_bodies": _Spec({200: s.MigrationReport}, s.Nothing),
    "snapshot": _Spec({201: s.Snapshot}, s.TakeSnapshot),
    "snapshots": _Spec({200: {"snapshots": s.list_of(s.Snapshot)}}),
    "release_snapshot": _Spec({200: _DONE}),
    "ingest": _Spec(
        {200: {"ok": bool, "tasks": s.Count, "jobs": s.list_of(s.IngestedJob)}}, s.Ingest
    ),
    "forget_loads": _Spec({200: s.ForgottenLoads}, s.ForgetLoads),
    "purge_archived": _Spec({200: s.PurgeReport}, s.PurgeArchived),
    "fsync": _Spec({200: _DONE}, s.Nothing),
}


class _Components:
    """The components that the document needs, found while it is written."""

    def __init__(self) -> None:
        self.schemas: dict[str, s.Schema] = {}
        self._rules = {one.__name__: one.rules for one in _kinds_of(s.Request)}

    def schema(self, kind: Any) -> s.Schema:
        """A type's schema; what it refers to becomes a component."""
        (schema,), found = schema_components(
            [kind], schema_hook=s.schema_of_type, ref_template="#/components/schemas/{name}"
        )
        for name, component in found.items():
            if name not in self.schemas:
                self.schemas[name] = _ruled(component, self._rules.get(name, {}))
        return schema

    def answer(self, answer: Answer) -> s.Schema:
        """The schema of an answer."""
        if not isinstance(answer, Mapping):
            return self.schema(answer)
        properties = {name: self.schema(kind) for name, kind in answer.items()}
        return {"type": "object", "properties": properties, "required": list(answer)}

    def parameters(self, query: type[s.Query]) -> Mapping[str, s.Schema]:
        """The schemas of a query's members."""
        _, found = schema_components([query], schema_hook=s.schema_of_type)
        properties: Mapping[str, s.Schema] = found[query.__name__]["properties"]
        return properties


def _kinds_of(kind: type[s.Request]) -> Sequence[type[s.Request]]:
    return [one for sub in kind.__subclasses__() for one in (sub, *_kinds_of(sub))]


def _ruled(schema: s.Schema, rules: s.Schema) -> s.Schema:
    """With the rules of its class, and those of single properties in them."""
    properties = schema.get("properties", {})
    for name, more in rules.get("properties", {}).items():
        properties[name] |= more
    return schema | rules | {"properties": properties}


def openapi(operations: Sequence[tuple[str, str, str, Any]], version: str) -> dict[str, Any]:
    """Write the document, for ``(name, method, path, handler)`` of each operation."""
    paths: dict[str, dict[str, Any]] = {}
    components = _Components()
    for name, method, path, handler in operations:
        paths.setdefault(f"/v1{path}", {})[method.lower()] = _operation(
            name, path, handler, components
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "lodeq",
            "version": version,
            "description": "A durable task queue. Bodies are JSON, or msgpack by Content-Type and "
            "Accept (application/msgpack).",
        },
        "paths": paths,
        "components": {
            "schemas": components.schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(name: str, path: str, handler: Any, components: _Components) -> dict[str, Any]:
    spec = _SPECS[name]
    in_path = {"queue": s.Name, "task_id": TaskId, "snapshot_id": s.SnapshotId}
    parameters: list[dict[str, Any]] = [
        {"name": one, "in": "path", "required": True, "schema": components.schema(in_path[one])}
        for one in re.findall(r"\{(\w+)\}", path)
    ]
    parameters += [
        {"name": one, "in": "query", "schema": schema}
        for one, schema in components.parameters(spec.query).items()
    ]
    parameters += [
        {"name": one, "in": "header", "schema": components.schema(kind)}
        for one, kind in spec.headers.items()
    ]
    problem = {
        "description": "A problem: urn:lodeq:problem:… in its type names the error",
        "content": {"application/problem+json": {"schema": components.schema(s.Problem)}},
    }
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": (handler.__doc__ or "").partition("\n")[0],
        "parameters": parameters,
        "responses": {
            str(status): {"description": "Done", "content": _json(components.answer(answer))}
            for status, answer in spec.answers.items()
        }
        | {"4XX": problem, "5XX": problem},
    }
    if spec.takes is not None:
        content = _json(components.schema(spec.takes))
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _json(schema: s.Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
