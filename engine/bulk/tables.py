"""The columns of every table: names and types, without the libraries that hold them.

What is null, and what times are, is said in docs/snapshots.md. Types are those of Arrow that Spark
has too: ``timestamp`` has microseconds and UTC, ``map`` is text to text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...errors import UsageError

__all__ = ["COLUMNS", "columns_of"]

_TASK: Final = {
    "shard": "int32",
    "id": "binary",
    "task_id": "string",
    "id_at": "timestamp",
}
_FACE: Final = {"function": "string", "preview": "string", "labels": "map"}
_TENANT_QUEUE: Final = {**_TASK, "queue": "string", "tenant": "string", "priority": "int32"}
_INDEX: Final = {
    **_TENANT_QUEUE,
    "attempts": "int32",
    "reason": "string",
    "record_bytes": "int64",
}

COLUMNS: Final[dict[str, dict[str, str]]] = {
    "tasks": {
        **_TENANT_QUEUE,
        "state": "string",
        "attempts": "int32",
        "max_attempts": "int32",
        "created_at": "timestamp",
        "run_at": "timestamp",
        "ready_at": "timestamp",
        "due_at": "timestamp",
        "leased_at": "timestamp",
        "lease_until": "timestamp",
        "died_at": "timestamp",
        "expires_at": "timestamp",
        "worker": "string",
        "dedup_hash": "binary",
        "dedup_until": "timestamp",
        "headers": "map",
        "payload": "binary",
        "payload_kind": "string",
        "payload_bytes": "int64",
        **_FACE,
    },
    "ready": {**_INDEX, "ready_at": "timestamp", "expires_at": "timestamp"},
    "delayed": {**_INDEX, "due_at": "timestamp", "expires_at": "timestamp"},
    "dead": {**_INDEX, "died_at": "timestamp", "forget_at": "timestamp"},
    "leases": {
        **_TENANT_QUEUE,
        "attempts": "int32",
        "max_attempts": "int32",
        "worker": "string",
        "epoch": "int64",
        "exported": "bool",
        "created_at": "timestamp",
        "ready_at": "timestamp",
        "leased_at": "timestamp",
        "lease_until": "timestamp",
        "expires_at": "timestamp",
        "record_bytes": "int64",
    },
    "results": {
        **_TENANT_QUEUE,
        "outcome": "string",
        "attempts": "int32",
        "error": "string",
        "worker": "string",
        "created_at": "timestamp",
        "ready_at": "timestamp",
        "leased_at": "timestamp",
        "finished_at": "timestamp",
        "retention_ms": "int64",
        "value": "binary",
        "value_kind": "string",
        "value_bytes": "int64",
        **_FACE,
    },
    "ghosts": {
        "shard": "int32",
        "dedup_hash": "binary",
        "id": "binary",
        "task_id": "string",
        "id_at": "timestamp",
        "expires_at": "timestamp",
    },
    "kv": {"shard": "int32", "family": "string", "key": "binary", "value": "binary"},
}


def columns_of(table: str, wanted: Sequence[str] | None = None) -> dict[str, str]:
    """Name and type of the columns of ``table``: all, or those that are ``wanted``, in that order.

    Raises ``UsageError`` if there is no such table or column.
    """
    known = COLUMNS.get(table)
    if known is None:
        raise UsageError(f"no table {table!r}: there are {', '.join(COLUMNS)}")
    if wanted is None:
        return dict(known)
    strange = [name for name in wanted if name not in known]
    if strange:
        raise UsageError(f"{table} has no column {strange[0]!r}: there are {', '.join(known)}")
    return {name: known[name] for name in wanted}
