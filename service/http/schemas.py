"""What documents look like, as JSON Schema: the parts that ``openapi`` puts together.

JSON only; docs/http.md says what msgpack writes differently.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = [
    "BOOL",
    "CLAIM_ID",
    "COMPONENTS",
    "COUNT",
    "HELD",
    "ID",
    "JOB",
    "LEASE_S_MAX",
    "NAME",
    "SECONDS",
    "SECONDS_MAX",
    "SNAPSHOT_ID",
    "STORE_ID",
    "TENANT",
    "TOKEN",
    "WHEN",
    "WORKER",
    "Schema",
    "answer",
    "apart",
    "array",
    "body",
    "given",
    "integer",
    "needs",
    "nullable",
    "number",
    "or_null",
    "ref",
    "short",
    "text",
    "value",
]

Schema = dict[str, Any]

SECONDS_MAX: Final = 10 * 366 * 86_400
LEASE_S_MAX: Final = 4_294_967


def ref(name: str) -> Schema:
    """A component."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Schema, most: int | None = None) -> Schema:
    """A list."""
    return {"type": "array", "items": items} | ({} if most is None else {"maxItems": most})


def body(properties: Schema, *required: str, **more: Any) -> Schema:
    """An object with these members and no others."""
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    return schema | more


def answer(properties: Schema, *optional: str) -> Schema:
    """An object with all of these members but the optional ones; a later release may add some."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def text(**more: Any) -> Schema:
    """A string."""
    return {"type": "string"} | more


def nullable(kind: str, **more: Any) -> Schema:
    """That, or null."""
    return {"type": [kind, "null"]} | more


def number(least: float, most: float) -> Schema:
    """Seconds, as a rule."""
    return {"type": "number", "minimum": least, "maximum": most}


def integer(least: int, most: int | None = None) -> Schema:
    """A whole number."""
    schema: Schema = {"type": "integer", "minimum": least}
    return schema if most is None else schema | {"maximum": most}


def or_null(schema: Schema) -> Schema:
    """That, or null, which says the same as leaving it out."""
    return (
        schema | {"type": [schema["type"], "null"]}
        if "type" in schema
        else {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    )


def short(least: int, most: int) -> Schema:
    """A string of so many bytes in UTF-8: however its characters are, if they are all of one kind.

    A schema counts characters; what mixes them is taken as far as its bytes go.
    """
    kinds = (
        (r"[\u0000-\u007f]", most),
        (r"[\u0000-\u07ff]", most // 2),
        (r"[\u0000-\uffff]", most // 3),
    )
    return {
        "anyOf": [text(pattern=f"^{kind}{{{least},{n}}}$") for kind, n in kinds]
        + [text(minLength=least, maxLength=most // 4)],
        "description": f"{least} to {most} bytes in UTF-8",
    }


def given(name: str) -> Schema:
    """Holds where a member is there, and not null."""
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


def apart(*names: str) -> Schema:
    """No two of these members together."""
    pairs = [(one, other) for n, one in enumerate(names) for other in names[n + 1 :]]
    return {"allOf": [{"not": {"allOf": [given(a), given(b)]}} for a, b in pairs]}


def needs(condition: Schema, *names: str) -> Schema:
    """Where the condition holds, one of these members is there."""
    return {"anyOf": [{"not": condition}, *(given(name) for name in names)]}


def value(name: str, what: str) -> Schema:
    """The members of a value: itself, or base64 of its bytes."""
    return {
        name: {"description": f"{what}: any JSON value"},
        f"{name}_base64": text(format="byte", pattern=_BASE64, description=f"{what}, as bytes"),
        f"{name}_kind": text(
            enum=["bytes", "msgpack", "codec"], description=f"what {name}_base64 holds"
        ),
    }


BOOL: Final[Schema] = {"type": "boolean"}
COUNT: Final = integer(0)
WHEN: Final = text(format="date-time")
MAYBE_WHEN: Final = nullable("string", format="date-time")
ID: Final = text(
    pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$|^[0-9a-fA-F]{32}$",
    description="A UUID, with or without its hyphens",
)
_BASE64: Final = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
TOKEN: Final = text(format="byte", pattern=_BASE64)
RUN_AT: Final = text(
    format="date-time",
    pattern=r"^(197[1-9]|19[89][0-9]|[2-5][0-9]{3}|6[0-3][0-9]{2}|64[01][0-9]|642[0-8])-",
)
CLAIM_ID: Final = text(format="byte", pattern="^[A-Za-z0-9+/]{22}==$")  # 16 bytes
SECONDS: Final = number(0, SECONDS_MAX)
NAME: Final = text(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", minLength=1, maxLength=64)
TENANT: Final = text(pattern=r"^([a-z0-9][a-z0-9._-]{0,63})?$", maxLength=64)
KEY: Final = short(1, 4096)
WORKER: Final = short(0, 256)
JOB: Final = text(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", minLength=1, maxLength=128)
SNAPSHOT_ID: Final = text(pattern=r"^[0-9]{8}T[0-9]{9}Z$")
STORE_ID: Final = text(pattern=r"^[0-9a-f]{32}$")

_HELD: Final[Schema] = {"task_id": ID, "epoch": {"type": "integer"}, "token": TOKEN}
HELD: Final = ("task_id", "epoch", "token")

_SHARD: Final[Schema] = dict.fromkeys(
    (
        "shard",
        "commits",
        "submissions",
        "operations",
        "bytes",
        "syncs",
        "stalls",
        "waiting",
        "durable_commit",
        "applied_commit",
    ),
    COUNT,
)
_COUNTS: Final = dict.fromkeys(("ready", "delayed", "leased", "dead", "results"), COUNT)
_LATENCY: Final = answer(dict.fromkeys(("count", "p50_us", "p99_us", "max_us"), COUNT))

# 1 to 4,096 bytes: two characters of padding behind as many as there may be.
KEY_BASE64: Final[Schema] = {
    "anyOf": [
        TOKEN | {"minLength": 4, "maxLength": 5460},
        TOKEN | {"minLength": 5464, "maxLength": 5464, "pattern": "^[A-Za-z0-9+/]{5462}==$"},
    ]
}
TASK_RULES: Final[list[Schema]] = [
    {"not": {"required": ["headers", "headers_base64"]}},
    {"dependentRequired": {"headers_base64": ["headers_kind"]}},
    apart("delay", "run_at"),
    apart("dedup_key", "dedup_key_base64", "shard_key", "shard_key_base64"),
    needs(given("dedup_window"), "dedup_key", "dedup_key_base64"),
    needs(
        {"required": ["on_conflict"],
         "properties": {"on_conflict": {"enum": ["raise", "replace"]}}},
        "dedup_key", "dedup_key_base64",
    ),
]  # fmt: skip

COMPONENTS: Final[dict[str, Schema]] = {
    "NewTask": body(
        value("payload", "The payload")
        | value("headers", "The headers, an object")
        | {
            "headers": {"type": "object"},
            "headers_kind": text(enum=["msgpack"], description="what headers_base64 holds"),
            "queue": or_null(NAME),
            "tenant": or_null(TENANT),
            "priority": integer(0, 9),
            "delay": or_null(SECONDS),
            "run_at": or_null(RUN_AT),
            "ttl": or_null(SECONDS),
            "dedup_key": or_null(KEY),
            "dedup_key_base64": KEY_BASE64,
            "dedup_window": or_null(SECONDS),
            "on_conflict": text(enum=["return", "raise", "replace"]),
            "max_attempts": or_null(integer(1, 65_535)),
            "shard_key": or_null(KEY),
            "shard_key_base64": KEY_BASE64,
        },
        oneOf=[{"required": ["payload"]}, {"required": ["payload_base64"]}],
        allOf=TASK_RULES,
    ),
    "Receipt": answer(
        {"id": ID, "duplicate": BOOL, "replaced": nullable("string", format="uuid")}
    ),
    "Policy": body(
        type=["object", "null"],
        properties={
            "max_attempts": or_null(integer(1, 65_535)),
            "retention": or_null(SECONDS),
            "dead_retention": or_null(SECONDS),
            "backoff": body(
                type=["object", "null"],
                properties={
                    "kind": text(
                        enum=["fixed", "linear", "exponential", "equal_jitter", "full_jitter"]
                    ),
                    "base": number(0, 4_000_000),
                    "factor": number(0, 1_000_000),
                    "cap": number(0, 4_000_000),
                }
            ),
        }
    ),
    "Held": body(_HELD, *HELD),
    "Lease": answer(
        _HELD
        | {
            "queue": NAME, "tenant": TENANT, "priority": integer(0, 9),
            "attempt": integer(1), "policy": TOKEN, "enqueued_at": WHEN, "deadline": WHEN,
            "lease_s": number(0, LEASE_S_MAX),
        }
        | value("payload", "The payload")
        | value("headers", "The headers"),
        *value("payload", ""), *value("headers", ""),
    ),
    "Task": answer(
        {
            "id": ID,
            "state": text(
                enum=["ready", "delayed", "leased", "dead", "completed", "expired", "cancelled"]
            ),
            "queue": NAME, "tenant": TENANT, "priority": integer(0, 9), "attempts": COUNT,
            "max_attempts": nullable("integer"), "worker": text(), "reason": text(),
            "enqueued_at": WHEN, "due_at": MAYBE_WHEN, "expires_at": MAYBE_WHEN,
            "finished_at": MAYBE_WHEN, "position": TOKEN,
        }
        | value("payload", "The payload")
        | value("headers", "The headers"),
        *value("payload", ""), *value("headers", ""),
    ),
    "Result": answer(
        {
            "task_id": ID, "status": text(enum=["completed", "dead", "expired", "cancelled"]),
            "error": text(), "attempts": COUNT, "queue": NAME, "tenant": TENANT,
            "worker": text(), "priority": integer(0, 9), "enqueued_at": WHEN,
            "ready_at": MAYBE_WHEN, "leased_at": MAYBE_WHEN, "finished_at": WHEN,
        }
        | value("value", "The result"),
        *value("value", ""),
    ),
    "QueueStats": answer(
        _COUNTS | {"oldest_ready_age": nullable("number"), "is_paused": BOOL}
    ),
    "QueueSummary": answer(
        _COUNTS
        | {"oldest_ready_age": nullable("number"), "is_paused": BOOL}
        | {"queue": NAME, "tenant": TENANT}
    ),
    "EngineStats": answer(
        _COUNTS
        | {
            f"{name}_total": COUNT
            for name in (
                "enqueued", "claimed", "completed", "nacked", "reaped", "dead", "expired",
                "duplicates",
            )
        }
        | {
            "recoveries": array(text()), "anomalies": array(text()),
            "reaper_lag": {"type": "number"}, "oldest_lease_age": nullable("number"),
            "old_body_files": COUNT, "old_body_bytes": COUNT, "unreadable": array(text()),
            "shards": array(
                answer(
                    _SHARD
                    | {
                        "merge_sizes": array(array(COUNT)), "commit": _LATENCY,
                        "fsync": _LATENCY,
                    }
                )
            ),
        }
    ),
    "Snapshot": answer(
        {
            "id": SNAPSHOT_ID, "path": text(), "store_id": STORE_ID, "store_format": COUNT,
            "created_ms": COUNT, "expires_ms": COUNT, "shards": array(array(COUNT)),
            "journals": {"type": "object", "additionalProperties": COUNT}, "bodies": array(COUNT),
        }
    ),
    "IngestedJob": answer(
        {"job": text(), "state": text(enum=["done", "refused", "known"]), "reason": text()}
        | dict.fromkeys(("tasks", "skipped", "replaced"), COUNT)
    ),
    "Health": answer({"ok": BOOL, "reasons": array(text())}),
    "Problem": answer(
        {
            "type": text(), "title": text(), "status": {"type": "integer"}, "detail": text(),
            "task_id": ID, "retry_after_ms": COUNT, "size_bytes": COUNT, "limit_bytes": COUNT,
            "receipts": array({"oneOf": [{"type": "null"}, ref("Receipt")]}),
        },
        "task_id", "retry_after_ms", "size_bytes", "limit_bytes", "receipts",
    ),
}  # fmt: skip
