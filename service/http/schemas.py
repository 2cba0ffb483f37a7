"""What documents look like, as JSON Schema: the parts that ``openapi`` puts together.

JSON only; docs/http.md says what msgpack writes differently.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = [
    "BOOL", "CLAIM_ID", "COMPONENTS", "COUNT", "HELD", "ID", "JOB", "LEASE_S_MAX", "NAME",
    "SECONDS", "SECONDS_MAX", "SNAPSHOT_ID", "STORE_ID", "TENANT", "TOKEN", "WHEN", "Schema",
    "answer", "array", "body", "integer", "nullable", "number", "ref", "text", "value",
]  # fmt: skip

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


def value(name: str, what: str) -> Schema:
    """The members of a value: itself, or base64 of its bytes."""
    return {
        name: {"description": f"{what}: any JSON value"},
        f"{name}_base64": text(format="byte", description=f"{what}, as bytes"),
        f"{name}_kind": text(
            enum=["bytes", "msgpack", "codec"], description=f"what {name}_base64 holds"
        ),
    }


BOOL: Final[Schema] = {"type": "boolean"}
COUNT: Final = integer(0)
WHEN: Final = text(format="date-time")
MAYBE_WHEN: Final = nullable("string", format="date-time")
ID: Final = text(format="uuid")
TOKEN: Final = text(format="byte")  # base64
CLAIM_ID: Final = text(format="byte", pattern="^[A-Za-z0-9+/]{22}==$")  # 16 bytes
SECONDS: Final = number(0, SECONDS_MAX)
NAME: Final = text(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", minLength=1, maxLength=64)
TENANT: Final = text(pattern=r"^([a-z0-9][a-z0-9._-]{0,63})?$", maxLength=64)
KEY: Final = text(minLength=1, maxLength=1024)
JOB: Final = text(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", minLength=1, maxLength=128)
SNAPSHOT_ID: Final = text(pattern=r"^[0-9]{8}T[0-9]{9}Z$")
STORE_ID: Final = text(pattern=r"^[0-9a-f]{32}$")

_HELD: Final[Schema] = {"task_id": ID, "epoch": {"type": "integer"}, "token": TOKEN}
HELD: Final = ("task_id", "epoch", "token")

_SHARD: Final[Schema] = dict.fromkeys(
    (
        "shard", "commits", "submissions", "operations", "bytes", "syncs", "stalls", "waiting",
        "durable_commit", "applied_commit",
    ),
    COUNT,
)  # fmt: skip
_COUNTS: Final = dict.fromkeys(("ready", "delayed", "leased", "dead", "results"), COUNT)
_LATENCY: Final = answer(dict.fromkeys(("count", "p50_us", "p99_us", "max_us"), COUNT))

COMPONENTS: Final[dict[str, Schema]] = {
    "NewTask": body(
        value("payload", "The payload")
        | value("headers", "The headers, an object")
        | {
            "headers": {"type": "object"},
            "queue": NAME,
            "tenant": TENANT,
            "priority": integer(0, 9),
            "delay": SECONDS,
            "run_at": WHEN,
            "ttl": SECONDS,
            "dedup_key": KEY,
            "dedup_key_base64": TOKEN,
            "dedup_window": SECONDS,
            "on_conflict": text(enum=["return", "raise", "replace"]),
            "max_attempts": integer(1, 65_535),
            "shard_key": KEY,
            "shard_key_base64": TOKEN,
        },
        anyOf=[{"required": ["payload"]}, {"required": ["payload_base64"]}],
    ),
    "Receipt": answer(
        {"id": ID, "duplicate": BOOL, "replaced": nullable("string", format="uuid")}
    ),
    "Policy": body(
        {
            "max_attempts": integer(1, 65_535),
            "retention": SECONDS,
            "dead_retention": SECONDS,
            "backoff": body(
                {
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
            "old_body_files": COUNT, "old_body_bytes": COUNT,
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
