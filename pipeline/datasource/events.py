"""Events of the lifecycle journal as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from ...segments.lifecycle import Event, Missed, Reader, RolledBack
from .points import Stretch, records

__all__ = ["JOURNAL_SCHEMA", "event_batches"]

_RANGES: Final = pa.list_(pa.struct([("first", pa.int64()), ("last", pa.int64())]))

JOURNAL_SCHEMA: Final = pa.schema(
    [
        ("shard", pa.int32()),
        ("incarnation", pa.int64()),
        ("number", pa.int64()),
        ("sequence", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("kind", pa.string()),
        ("id", pa.binary()),
        ("task_id", pa.string()),
        ("queue", pa.string()),
        ("tenant", pa.string()),
        ("priority", pa.int32()),
        ("attempts", pa.int32()),
        ("worker", pa.string()),
        ("reason", pa.string()),
        ("rolled_back_to", pa.int64()),
        ("missing", _RANGES),
    ]
)


def event_batches(stretch: Stretch, schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield a stretch as Arrow batches of about ``rows`` rows, with the columns of ``schema``."""
    reader = Reader(stretch.start.seen)
    pending: list[tuple[int, Event | RolledBack | Missed]] = []
    for record in records(stretch):
        pending += [(record.sequence, event) for event in reader.read(record)]
        if len(pending) >= rows:
            yield _batch(pending, schema)
            pending = []
    if pending:
        yield _batch(pending, schema)


def _batch(
    rows: Sequence[tuple[int, Event | RolledBack | Missed]], schema: pa.Schema
) -> pa.RecordBatch:
    arrays = []
    for name in schema.names:
        kind = schema.field(name).type
        value_of = _COLUMNS.get(name)
        values: list[Any]
        if name == "sequence":
            values = [sequence for sequence, _ in rows]
        elif value_of is not None:
            values = [value_of(event) for _, event in rows]
        else:
            values = [getattr(event, name, None) for _, event in rows]
        arrays.append(pa.array(values, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _kind(event: Event | RolledBack | Missed) -> str:
    if isinstance(event, Event):
        return event.kind.name.lower()
    return "rolled_back" if isinstance(event, RolledBack) else "missed"


def _missing(event: Event | RolledBack | Missed) -> list[dict[str, int]] | None:
    if not isinstance(event, RolledBack):
        return None
    return [{"first": first, "last": last} for first, last in event.missing]


_COLUMNS: Final[dict[str, Callable[[Event | RolledBack | Missed], Any]]] = {
    "at": lambda event: event.time_us if isinstance(event, Event) else None,
    "kind": _kind,
    "id": lambda event: bytes(event.task_id) if isinstance(event, Event) else None,
    "task_id": lambda event: str(event.task_id) if isinstance(event, Event) else None,
    "number": lambda event: None if isinstance(event, RolledBack) else event.number,
    "rolled_back_to": lambda event: event.to if isinstance(event, RolledBack) else None,
    "missing": _missing,
}
