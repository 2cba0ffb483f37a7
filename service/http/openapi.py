"""The OpenAPI document of all operations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.json import schema_components

from ...engine.runtime.task_id import TaskId
from . import schemas as s
from .operations import Answer, Operation

__all__ = ["openapi"]


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


def openapi(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """Write the document of these operations."""
    paths: dict[str, dict[str, Any]] = {}
    components = _Components()
    for one in operations:
        by_method = paths.setdefault(f"/v1{one.path}", {})
        by_method[one.method.lower()] = _operation(one, components)
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


def _operation(spec: Operation, components: _Components) -> dict[str, Any]:
    in_path = {"queue": s.Name, "task_id": TaskId, "snapshot_id": s.SnapshotId}
    parameters: list[dict[str, Any]] = [
        {"name": one, "in": "path", "required": True, "schema": components.schema(in_path[one])}
        for one in re.findall(r"\{(\w+)\}", spec.path)
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
        "operationId": spec.name,
        "summary": (spec.handler.__doc__ or "").partition("\n")[0],
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
