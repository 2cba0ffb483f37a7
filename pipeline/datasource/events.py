"""Events of the lifecycle journal as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from ...segments.lifecycle import Event, Reader, RolledBack
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
    """The stretch as Arrow, ``rows`` to a batch or a few more; the columns of ``schema``."""
    reader = Reader(stretch.start.seen)
    pending: list[tuple[int, Event | RolledBack]] = []
    for record in records(stretch):
        pending += [(record.sequence, said) for said in reader.read(record)]
        if len(pending) >= rows:
            yield _batch(pending, schema)
            pending = []
    if pending:
        yield _batch(pending, schema)


def _batch(rows: Sequence[tuple[int, Event | RolledBack]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for name in schema.names:
        kind = schema.field(name).type
        tell = _COLUMNS.get(name)
        values: list[Any]
        if name == "sequence":
            values = [sequence for sequence, _ in rows]
        elif tell is not None:
            values = [tell(said) for _, said in rows]
        else:
            values = [getattr(said, name, None) for _, said in rows]
        arrays.append(pa.array(values, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _missing(said: Event | RolledBack) -> list[dict[str, int]] | None:
    if isinstance(said, Event):
        return None
    return [{"first": first, "last": last} for first, last in said.missing]


_COLUMNS: Final[dict[str, Callable[[Event | RolledBack], Any]]] = {
    "at": lambda said: said.time_us if isinstance(said, Event) else None,
    "kind": lambda said: said.kind.name.lower() if isinstance(said, Event) else "rolled_back",
    "id": lambda said: bytes(said.task_id) if isinstance(said, Event) else None,
    "task_id": lambda said: str(said.task_id) if isinstance(said, Event) else None,
    "number": lambda said: said.number if isinstance(said, Event) else None,
    "rolled_back_to": lambda said: said.to if isinstance(said, RolledBack) else None,
    "missing": _missing,
}
