"""The OpenAPI document, out of the routes and what each takes and gives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from .schemas import (
    BOOL,
    CLAIM_ID,
    COMPONENTS,
    COUNT,
    HELD,
    ID,
    JOB,
    LEASE_S_MAX,
    NAME,
    SECONDS,
    SECONDS_MAX,
    SNAPSHOT_ID,
    STORE_ID,
    TENANT,
    TOKEN,
    WHEN,
    WORKER,
    Schema,
    answer,
    array,
    body,
    given,
    integer,
    nullable,
    number,
    or_null,
    ref,
    text,
    value,
)

__all__ = ["openapi"]

BATCH_MAX: Final = 4096
SKIPPED_MAX: Final = 65_536  # as ``claiming``'s
_HELD: Final = COMPONENTS["Held"]["properties"]
_DURABLE: Final[Schema] = {"type": ["boolean", "null"]}
_TENANT: Final[Schema] = {"tenant": TENANT}
_WHOSE: Final[Schema] = _TENANT | {"all_tenants": BOOL}
_EMPTY: Final = body({})
_DONE: Final = answer({})
_PLACE: Final = body(
    {
        "queue": NAME,
        "tenant": TENANT,
        "all_tenants": BOOL,
        "policy": ref("Policy"),
        "boost_after": or_null(SECONDS),
    },
    "queue",
    anyOf=[
        {"properties": {"all_tenants": {"const": False}}},
        {"properties": {"tenant": {"const": ""}, "boost_after": {"type": "null"}}},
    ],
)


class _Spec(NamedTuple):
    """One operation: its query, the document it takes, the answers by status."""

    answers: Mapping[int, Schema]
    takes: Schema | None = None
    query: Mapping[str, Schema] = {}
    headers: Mapping[str, Schema] = {}


def _held(**more: Schema) -> Schema:
    return body(_HELD | more, *HELD)


def _held_with_result(**more: Schema) -> Schema:
    schema = _held(**value("result", "The result"), **more)
    return schema | {"not": {"required": ["result", "result_base64"]}}


_KEY: Final = {"Idempotency-Key": text(pattern="^[A-Za-z0-9._:-]{1,255}$")}
_TASK: Final[Schema] = COMPONENTS["NewTask"]
_ONE: Final = _TASK | {
    "properties": {
        name: schema
        for name, schema in (_TASK["properties"] | {"durable": _DURABLE}).items()
        if name not in ("queue", "tenant")
    }
}
_LOST: Final[Schema] = {"type": "object", "additionalProperties": text()}

_SPECS: Final[Mapping[str, _Spec]] = {
    "enqueue": _Spec({201: ref("Receipt"), 200: ref("Receipt")}, _ONE, _TENANT, _KEY),
    "enqueue_many": _Spec(
        {200: answer({"receipts": array(ref("Receipt"))})},
        body(
            _PLACE["properties"]
            | {
                "tasks": array(ref("NewTask"), BATCH_MAX),
                "all_tenants": {"const": False},
                "durable": _DURABLE,
                "atomic": BOOL,
            },
            "tasks",
            dependentRequired={
                name: ["queue"] for name in ("tenant", "all_tenants", "policy", "boost_after")
            },
            anyOf=[{"required": ["queue"]}, {"properties": {"tasks": array(given("queue"))}}],
        ),
        {},
        _KEY,
    ),
    "claim": _Spec(
        {200: answer({"leases": array(ref("Lease"))})},
        body(
            {
                "queues": array({"oneOf": [NAME, _PLACE]}, BATCH_MAX) | {"minItems": 1},
                "limit": integer(1, BATCH_MAX),
                "lease": or_null(number(0.001, LEASE_S_MAX)),
                "wait": SECONDS,
                "worker": WORKER,
                "skip_tenants": array(TENANT, SKIPPED_MAX),
                "claim_id": CLAIM_ID,
            },
            "queues",
        ),
    ),
    "cancel_claim": _Spec(
        {200: answer({"released": COUNT})}, body({"claim_id": CLAIM_ID}, "claim_id")
    ),
    "heartbeat": _Spec({200: answer({"deadline": WHEN})}, _held(seconds=or_null(SECONDS))),
    "complete": _Spec(
        {200: _DONE},
        _held_with_result(then=array(ref("NewTask"), 256), keep=BOOL, durable=_DURABLE),
    ),
    "nack": _Spec({200: _DONE}, _held(delay=or_null(SECONDS), reason=text())),
    "release": _Spec({200: _DONE}, _held(delay=or_null(SECONDS))),
    "bury": _Spec({200: _DONE}, _held(reason=text())),
    "cancel_lease": _Spec({200: _DONE}, _held()),
    "complete_many": _Spec(
        {200: answer({"lost": _LOST})},
        body({"leases": array(_held_with_result(), BATCH_MAX), "durable": _DURABLE}, "leases"),
    ),
    "heartbeat_many": _Spec(
        {200: answer({"lost": _LOST, "deadlines": array(nullable("string", format="date-time"))})},
        body({"leases": array(ref("Held"), BATCH_MAX), "seconds": or_null(SECONDS)}, "leases"),
    ),
    "get": _Spec({200: ref("Task")}),
    "cancel": _Spec({200: answer({"cancelled": BOOL})}),
    "result": _Spec({200: ref("Result"), 202: _DONE}, None, {"wait": number(0, SECONDS_MAX)}),
    "list": _Spec(
        {200: answer({"tasks": array(ref("Task")), "more": BOOL})},
        None,
        _WHOSE
        | {
            "state": text(enum=COMPONENTS["Task"]["properties"]["state"]["enum"]),
            "limit": integer(1, 10_000),
            "after": TOKEN | {"minLength": 4},
            "payloads": BOOL,
        },
    ),
    "queues": _Spec(
        {200: answer({"queues": array(ref("QueueSummary")), "next": nullable("string")})},
        None,
        {"limit": integer(1, 1000), "after": text(pattern="^[^/]*/.*$")},
    ),
    "queue_stats": _Spec({200: ref("QueueStats")}, None, _WHOSE),
    "redrive": _Spec(
        {200: answer({"redriven": COUNT})}, body({"ids": array(ID, BATCH_MAX)}), _WHOSE
    ),
    "purge": _Spec(
        {200: answer({"purged": COUNT})},
        body({"state": nullable("string", enum=["ready", "delayed", "dead", None])}),
        _WHOSE,
    ),
    "pause": _Spec({200: _DONE}, _EMPTY, _WHOSE),
    "resume": _Spec({200: _DONE}, _EMPTY, _WHOSE),
    "engine": _Spec(
        {
            200: answer(
                {
                    "path": nullable("string"),
                    "shards": COUNT,
                    "durability": text(),
                    "limits": {"type": "object"},
                    "batch_max": COUNT,
                    "wait_s_max": {"type": "number"},
                    "body_bytes_max": COUNT,
                }
            )
        }
    ),
    "stats": _Spec({200: ref("EngineStats")}),
    "health": _Spec({200: ref("Health")}),
    "verify": _Spec({200: answer({"ok": BOOL, "findings": array({"type": "object"})})}, _EMPTY),
    "checkpoint": _Spec(
        {200: answer({"path": text()})}, body({"path": text(minLength=1, maxLength=255)}, "path")
    ),
    "migrate_bodies": _Spec(
        {200: answer(dict.fromkeys(("files", "records", "bytes", "files_left"), COUNT))},
        _EMPTY,
    ),
    "snapshot": _Spec({201: ref("Snapshot")}, body({"keep": or_null(number(0.001, SECONDS_MAX))})),
    "snapshots": _Spec({200: answer({"snapshots": array(ref("Snapshot"))})}),
    "release_snapshot": _Spec({200: _DONE}),
    "ingest": _Spec(
        {200: answer({"ok": BOOL, "tasks": COUNT, "jobs": array(ref("IngestedJob"))})},
        body({"job": or_null(JOB)}),
    ),
    "forget_loads": _Spec(
        {200: answer(dict.fromkeys(("done", "refused", "abandoned", "freed_bytes"), COUNT))},
        body({"older_than": number(3600, SECONDS_MAX)}, "older_than"),
    ),
    "purge_archived": _Spec(
        {200: answer(dict.fromkeys(("results", "dead", "absent"), COUNT))},
        body(
            {
                "store_id": STORE_ID,
                "shards": integer(1, 4096),
                "parts": array(
                    body(
                        {
                            "shard": integer(0, 4095),
                            "kind": text(enum=["results", "dead"]),
                            "rows": TOKEN,
                        },
                        "shard",
                        "kind",
                        "rows",
                    ),
                    BATCH_MAX,
                ),
            },
            "store_id",
            "shards",
            "parts",
        ),
    ),
    "fsync": _Spec({200: _DONE}, _EMPTY),
}


def openapi(operations: Sequence[tuple[str, str, str, Any]], version: str) -> dict[str, Any]:
    """The document, for ``(name, method, path, handler)`` of each operation."""
    paths: dict[str, dict[str, Any]] = {}
    for name, method, path, handler in operations:
        paths.setdefault(f"/v1{path}", {})[method.lower()] = _operation(name, path, handler)
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
            "schemas": COMPONENTS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(name: str, path: str, handler: Any) -> dict[str, Any]:
    spec = _SPECS[name]
    in_path = {"queue": NAME, "task_id": ID, "snapshot_id": SNAPSHOT_ID}
    parameters = [
        {"name": one, "in": "path", "required": True, "schema": in_path[one]}
        for one in re.findall(r"\{(\w+)\}", path)
    ]
    parameters += [
        {"name": one, "in": "query", "schema": schema} for one, schema in spec.query.items()
    ]
    parameters += [
        {"name": one, "in": "header", "schema": schema} for one, schema in spec.headers.items()
    ]
    problem = {
        "description": "A problem: urn:lodeq:problem:… in its type names the error",
        "content": {"application/problem+json": {"schema": ref("Problem")}},
    }
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": (handler.__doc__ or "").partition("\n")[0],
        "parameters": parameters,
        "responses": {
            str(status): {"description": "Done", "content": _json(schema)}
            for status, schema in spec.answers.items()
        }
        | {"4XX": problem, "5XX": problem},
    }
    if spec.takes is not None:
        operation["requestBody"] = {"required": True, "content": _json(spec.takes)}
    return operation


def _json(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
