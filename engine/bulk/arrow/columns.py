"""A table of a shard as Arrow columns: the way in to what needs NumPy and pyarrow (an extra).

::

    with open_shard(snapshot.path, 0) as reader:
        for one in key_ranges(reader, "tasks"):
            for batch in read_columns(reader, one, "tasks", ["queue", "state"]):
                ...

Columns that are not asked for cost nothing: neither their bytes nor, of tasks, the look at where
each is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ....errors import UsageError
from ...records.task import PAYLOAD_AT, has_body, raw_bytes_of
from ...store.port import Rows
from ..ranges import KeyRange
from ..reader import BATCH_BYTES, BATCH_ROWS, ShardReader
from ..tables import columns_of

try:
    import pyarrow as pa

    from .leases import LeasePage
    from .page import TYPES, Bodies, Page
    from .results import ResultPage
    from .rows import DeadPage, DelayedPage, GhostPage, RawPage, ReadyPage
    from .tasks import TaskPage
except ImportError as exc:
    raise UsageError('columns need an extra: pip install "lodeq[spark]"') from exc

__all__ = ["read_columns", "schema", "to_columns"]

_PAGES: Final[Mapping[str, type[Page]]] = {
    "tasks": TaskPage,
    "ready": ReadyPage,
    "delayed": DelayedPage,
    "dead": DeadPage,
    "leases": LeasePage,
    "results": ResultPage,
    "ghosts": GhostPage,
    "kv": RawPage,
}


def schema(table: str, columns: Sequence[str] | None = None) -> Any:
    """The Arrow schema of ``table``, or of some of its columns, in that order.

    Raises ``UsageError`` if there is no such table or column.
    """
    return pa.schema([(name, TYPES[kind]) for name, kind in columns_of(table, columns).items()])


def to_columns(
    reader: ShardReader,
    rows: Rows,
    table: str,
    columns: Sequence[str] | None = None,
    *,
    bodies: Bodies | None = None,
    verify: bool = False,
) -> Any:
    """Rows of ``table``, in the order of their keys, as a record batch.

    Args:
        reader: of the shard that they are of.
        rows: keys and values.
        table: which they are of.
        columns: which are wanted; None: all.
        bodies: reads payloads that lie outside; needed where some do, and ``payload`` is wanted.
        verify: compare the checksum of every record, too.

    Raises:
        RecordCorruptError: a record is damaged; it says which.
        UsageError: no such table or column, or ``bodies`` is missing.
    """
    wanted = schema(table, columns)
    if not rows:
        return pa.RecordBatch.from_pylist([], wanted)
    page = _PAGES[table](reader, rows, bodies, verify=verify)
    arrays = [getattr(page, name)() for name in wanted.names]
    if not arrays:  # only how many there are
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def read_columns(
    reader: ShardReader,
    one: KeyRange,
    table: str,
    columns: Sequence[str] | None = None,
    *,
    rows: int = BATCH_ROWS,
    bytes_max: int = BATCH_BYTES,
    bodies: Bodies | None = None,
    verify: bool = False,
) -> Iterator[Any]:
    """The rows of a range as record batches of at most ``rows``, or about ``bytes_max``.

    For the rest see ``to_columns``. A damaged block raises ``CorruptionError`` when it is reached;
    what is handed out before is right.

    Args:
        reader: the shard, opened only to read.
        one: the range of keys.
        table: name of the table, one of ``TABLES``.
        columns: names of the columns wanted; None: all of the table.
        rows: rows of a batch at most.
        bytes_max: stored bytes of a batch, about; payloads outside the tree count as well.
        bodies: reads payloads that lie outside the tree; needed where some do, and ``payload`` is
            wanted.
        verify: whether each record's checksum is compared.
    """
    has_payloads = bodies is not None and table == "tasks"
    for batch in reader.batches(one.lower, one.upper, rows=rows, bytes_max=bytes_max):
        for some in _bounded(batch, bytes_max) if has_payloads else (batch,):
            yield to_columns(reader, some, table, columns, bodies=bodies, verify=verify)


def _bounded(batch: Rows, bytes_max: int) -> Iterator[Rows]:
    """Parts of a batch of tasks, each with about ``bytes_max`` of payloads that lie outside."""
    begin = size = 0
    for at, (_, value) in enumerate(batch):
        if has_body(value) and len(value) > PAYLOAD_AT:
            size += raw_bytes_of(value)
        if size > bytes_max and at > begin:
            yield batch[begin:at]
            begin, size = at, raw_bytes_of(value)
    if begin < len(batch):
        yield batch[begin:]
