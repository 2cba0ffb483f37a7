"""The ids of a load: a file beside its task rows, for those who cannot look into an SST.

Before a load becomes visible its ids are compared with those that the store has, and with each
other. A task whose id is held may have to stay out, so an ``ids`` file also says where its rows
are::

    0   8s   "lodeqID1"       8   u32 names        12  u32 rows
    16       names: u8 queue bytes, u8 tenant bytes, queue, tenant; each once
    …        rows, ascending by id:
             0  id:16         16 u32 name          20 the index key behind the name, without the
                                                      id: 'r' and 9 bytes, or 'd' and 16; 0-padded

Little-endian. The manifest has its checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ...errors import DuplicateTaskError, UsageError
from ..records.keyspace import DELAYED, ID_AT, READY, decode_index_key, shard_queue_prefix
from ..runtime.ids import is_task_id, shard_of
from ..runtime.task_id import TaskId
from .keys import RowTable, write_table
from .manifest import IDS, FileMark

__all__ = ["IdTable", "ListedTask", "merged_ids", "write_ids"]

_MAGIC: Final = b"lodeqID1"
_PLACE: Final = 17  # bytes of the longer of the two
_ROW: Final = struct.Struct(f"<16sI{_PLACE}s")
_PLACE_BYTES: Final = {READY: 10, DELAYED: 17}
_NOT_VERSION_7: Final = bytes(set(range(256)) - set(range(0x70, 0x80)))
_NOT_VARIANT: Final = bytes(set(range(256)) - set(range(0x80, 0xC0)))


class ListedTask(NamedTuple):
    """A staged task: where its index row is."""

    task_id: bytes
    queue: bytes
    tenant: bytes
    due_ms: int
    index_key: bytes


def write_ids(folder: str, stem: str, shard: int, index_keys: Sequence[bytes]) -> FileMark:
    """Write the file of the tasks that have these index rows, at least one. Blocks.

    Args:
        folder: the staging folder, which is there.
        stem: name of the file without its suffix.
        shard: index of the shard, for the mark.
        index_keys: a ready or delayed key of each task; those of one queue are best together.

    Durability: it is fsynced; its name is not, fsync the folder.

    Raises:
        DuplicateTaskError: two tasks have one id.
        StorageFullError, StorageError: the disk; nothing is left.
    """
    names: dict[tuple[bytes, bytes], int] = {}
    rows: list[bytes] = []
    prefix, size, number = b"", 0, b""
    for key in index_keys:
        if not prefix or not key.startswith(prefix):
            parts = decode_index_key(key)
            prefix = shard_queue_prefix(parts.queue, parts.tenant)
            size = len(prefix)
            name = names.setdefault((parts.queue, parts.tenant), len(names))
            number = name.to_bytes(4, "little")
        rows.append(key[ID_AT:] + number + key[size:ID_AT].ljust(_PLACE, b"\0"))
    rows.sort()
    for one, other in pairwise(rows):
        if one[:16] == other[:16]:
            raise DuplicateTaskError(f"two tasks of the load have the id {TaskId(one[:16])}")
    return write_table(
        folder,
        stem,
        family=IDS,
        shard=shard,
        magic=_MAGIC,
        names=names,
        rows=rows,
        ends=(rows[0][:16], rows[-1][:16]),
    )


class IdTable(RowTable):
    """One ``ids`` file, in memory: 37 bytes a task."""

    __slots__ = ("_first", "_last")

    magic = _MAGIC
    row_bytes = _ROW.size

    def __init__(self, raw: bytes, what: str) -> None:
        super().__init__(raw, what)
        self._first, self._last = self.id_at(0), self.id_at(self.rows - 1)

    def id_at(self, index: int) -> bytes:
        """The id of a row."""
        at = self._rows_at + index * _ROW.size
        return self._raw[at : at + 16]

    def end_of(self, task_id: bytes, low: int, high: int) -> int:
        """The first row from ``low`` on, below ``high``, whose id is greater than this."""
        while low < high:
            middle = (low + high) // 2
            if self.id_at(middle) <= task_id:
                low = middle + 1
            else:
                high = middle
        return low

    def find(self, task_id: bytes) -> ListedTask | None:
        """The task with that id. Raises ``UsageError`` where it names no place."""
        if not self._first <= task_id <= self._last:
            return None
        end = self.end_of(task_id, 0, self.rows)
        if not end or self.id_at(end - 1) != task_id:
            return None
        _, name, padded = _ROW.unpack_from(self._raw, self._rows_at + (end - 1) * _ROW.size)
        size = _PLACE_BYTES.get(padded[:1])
        if name >= len(self._names) or size is None:
            raise UsageError("a file of ids names no place: stage the load again")
        queue, tenant = self._names[name]
        due_ms = int.from_bytes(padded[1:9], "big") if padded[:1] == DELAYED else 0
        key = shard_queue_prefix(queue, tenant) + padded[:size] + task_id
        return ListedTask(task_id, queue, tenant, due_ms, key)

    def check(self, shard: int, shards: int) -> None:
        """Check that these are ids of ours, of this shard.

        Raises:
            UsageError: one is not.
        """
        row, at = _ROW.size, self._rows_at
        sixth, seventh, eighth = (self._raw[at + n :: row] for n in (6, 7, 8))
        # Bytes of one place in all rows: a look at each row would take a second for a million.
        if sixth.translate(None, _NOT_VERSION_7) != sixth or (
            eighth.translate(None, _NOT_VARIANT) != eighth
        ):
            strange = next(i for i in map(self.id_at, range(self.rows)) if not is_task_id(i))
            raise UsageError(
                f"{TaskId(strange)} is no id of a task, which is a UUID of version 7: stage the "
                "load with ids of lodeq's, or without"
            )
        for high, low in set(zip(sixth, seventh, strict=True)):
            if shard_of(bytes((0, 0, 0, 0, 0, 0, high, low)) + bytes(8), shards) != shard:
                raise UsageError(f"ids of another shard are in shard {shard}: stage the load again")


def merged_ids(tables: Sequence[IdTable], many: int) -> Iterator[list[bytes]]:
    """Yield the ids of all tables, ascending, about so many at a time.

    Raises:
        UsageError: a table is not in order.
        DuplicateTaskError: an id is in two of them, or twice in one.
    """
    open_ones = [(table, 0) for table in tables if table.rows]
    last = b""
    while open_ones:
        bound = min(table.id_at(min(at + many, table.rows) - 1) for table, at in open_ones)
        ids: list[bytes] = []
        left = []
        is_sorted = True
        for table, at in open_ones:
            end = table.end_of(bound, at, table.rows)
            some = [table.id_at(i) for i in range(at, end)]
            is_sorted = is_sorted and some == sorted(some)
            ids += some
            if end < table.rows:
                left.append((table, end))
        ids.sort()  # a few sorted runs: that is a merge
        if not is_sorted or not ids or ids[0] < last:
            raise UsageError("a file of ids is not in order: stage the load again")
        for one, other in pairwise((last, *ids)):
            if one == other:
                raise DuplicateTaskError(f"two of its tasks have the id {TaskId(one)}")
        last, open_ones = ids[-1], left
        yield ids
