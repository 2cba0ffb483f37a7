"""Filters of Spark, as far as they limit the key ranges to read.

A filter here only saves reading. Spark applies every filter again, so one that is not used here
costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from ...engine.bulk.ranges import Filters
from ...engine.records.keyspace import check_name
from ...engine.runtime.task_id import TaskId
from ...errors import LodeqError

__all__ = ["TIMES", "narrowed"]

TIMES: Final = {  # the time that the keys of a table are ordered by
    "tasks": "id_at",
    "leases": "id_at",
    "results": "id_at",
    "ready": "ready_at",
    "delayed": "due_at",
    "dead": "died_at",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def narrowed(table: str, filters: Iterable[Filter]) -> Filters:
    """Return the ranges of ``table`` that all filters together leave."""
    sets: dict[str, frozenset[Any]] = {}
    since: int | None = None
    until: int | None = None
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        column = path[0] if len(path) == 1 else ""
        if column == TIMES.get(table):
            least, past = _span(one)
            since = least if since is None else max(since, least if least is not None else since)
            until = past if until is None else min(until, past if past is not None else until)
        elif column in _VALUES and isinstance(one, EqualTo | EqualNullSafe | In):
            name, read = _VALUES[column]
            given = one.value if isinstance(one, In) else (one.value,)
            values = frozenset(value for each in given for value in read(each))
            sets[name] = sets[name] & values if name in sets else values
    return Filters(**sets, since_us=since, until_us=until)


def _span(one: Filter) -> tuple[int | None, int | None]:
    """Return the microseconds a filter allows: from the first up to, not including, the second."""
    value = getattr(one, "value", None)
    if not isinstance(value, datetime):
        return None, None
    us = (value.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    if isinstance(one, EqualTo | EqualNullSafe):
        return us, us + 1
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return us + isinstance(one, GreaterThan), None
    if isinstance(one, LessThan | LessThanOrEqual):
        return None, us + isinstance(one, LessThanOrEqual)
    return None, None


def _shard(value: object) -> list[int]:
    return [value] if isinstance(value, int) else []


def _queue(value: object) -> list[str]:
    """Return the name in a list; an invalid name matches no queue."""
    try:
        return [check_name(value, "queue").decode()]
    except LodeqError:
        return []


def _tenant(value: object) -> list[str]:
    return [""] if value == "" else _queue(value)


def _id(value: object) -> list[bytes]:
    try:
        return [bytes(TaskId(bytes(value)))] if isinstance(value, bytes | bytearray) else []
    except LodeqError:
        return []


def _task_id(value: object) -> list[bytes]:
    """Return the id of a text, if it is spelled as Spark sees it; other spellings match no row."""
    try:
        found = TaskId(value) if isinstance(value, str) else None
    except LodeqError:
        return []
    return [bytes(found)] if found is not None and str(found) == value else []


_VALUES: Final[dict[str, tuple[str, Callable[[object], list[Any]]]]] = {
    "shard": ("shards", _shard),
    "queue": ("queues", _queue),
    "tenant": ("tenants", _tenant),
    "id": ("ids", _id),
    "task_id": ("ids", _task_id),
}
