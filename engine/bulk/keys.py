"""Who takes which dedup key: a file beside a load's ghosts, for those who cannot look into an SST.

Before a load becomes visible its dedup keys are compared with those the store holds, and the rows
of a task whose key is held may have to go again. So a ``keys`` file says of every task with a dedup
key where its rows are::

    0   8s   "lodeqKY2"       8   u32 names        12  u32 rows
    16       names: u8 queue bytes, u8 tenant bytes, queue, tenant; each once
    …        rows, ascending by ghost:
             0  ghost:16      16 id:16             32 i64 seq      40 i64 due_ms (0: ready)
             48 old hash:16   64 u32 name          68 u8 priority   69 u8[11] 0

The old hash is that of format 1: a store may still have entries under it.

Little-endian. The manifest has its checksum.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final, NamedTuple, Self

from ...errors import CorruptionError, UsageError
from ..files.disk_errors import disk_error
from ..files.durable_files import new_file
from ..records.keyspace import delayed_key, ready_key, shard_queue_prefix
from .manifest import KEYS, FileMark
from .rows import TaskRows
from .sst import checksum_of

__all__ = ["KeyTable", "KeyedTask", "RowTable", "read_head", "write_keys", "write_table"]

_HEAD: Final = struct.Struct("<8sII")
_ROW: Final = struct.Struct("<16s16sqq16sIB11x")
_MAGIC: Final = b"lodeqKY2"


class KeyedTask(NamedTuple):
    """A staged task with a dedup key."""

    ghost: bytes
    task_id: bytes
    seq: int
    due_ms: int
    old_ghost: bytes
    priority: int
    queue: bytes
    tenant: bytes

    @property
    def index_key(self) -> bytes:
        """Key of its ready or delayed row."""
        prefix = shard_queue_prefix(self.queue, self.tenant)
        if self.due_ms:
            return delayed_key(prefix, self.due_ms, self.seq, self.task_id)
        return ready_key(prefix, self.priority, self.seq, self.task_id)


def write_keys(folder: str, stem: str, shard: int, tasks: Iterable[TaskRows]) -> FileMark:
    """Write the file of ``tasks``: those of one shard that have a dedup key, at least one. Blocks.

    Args:
        folder: the staging folder, which is there.
        stem: name of the file without its suffix.
        shard: index of the shard, for the mark.
        tasks: tasks with a dedup key; at least one.

    Durability: it is fsynced; its name is not, fsync the folder.

    Raises:
        UsageError: two tasks have one key.
        StorageFullError, StorageError: the disk; nothing is left.
    """
    names: dict[tuple[bytes, bytes], int] = {}
    rows: list[bytes] = []
    last = first = b""
    for task in sorted(tasks, key=lambda task: task.ghost):
        if task.ghost == last:
            raise UsageError(
                f"two staged tasks of queue {task.queue.decode()!r} have one dedup key: give each "
                "key once"
            )
        last = task.ghost
        first = first or last
        name = names.setdefault((task.queue, task.tenant), len(names))
        rows.append(
            _ROW.pack(
                task.ghost,
                task.task_id,
                task.seq,
                task.due_ms,
                task.old_ghost,
                name,
                task.priority,
            )
        )
    return write_table(
        folder,
        stem,
        family=KEYS,
        shard=shard,
        magic=_MAGIC,
        names=names,
        rows=rows,
        ends=(first, last),
    )


def write_table(
    folder: str,
    stem: str,
    *,
    family: str,
    shard: int,
    magic: bytes,
    names: Iterable[tuple[bytes, bytes]],
    rows: Sequence[bytes],
    ends: tuple[bytes, bytes],
) -> FileMark:
    """Write a file of rows that refer to (queue, tenant) by number. Blocks.

    Args:
        folder: the staging folder, which is there.
        stem: name of the file without its suffix.
        family: the suffix, and the family of the mark.
        shard: index of the shard, for the mark.
        magic: the first 8 bytes.
        names: queues and tenants, in the order of their numbers.
        rows: all of one length.
        ends: the least and the greatest key, for the mark.

    Durability: it is fsynced; its name is not, fsync the folder.

    Raises:
        StorageFullError, StorageError: the disk; nothing is left.
    """
    parts = [bytes((len(q), len(t))) + q + t for q, t in names]
    path = os.path.join(folder, f"{stem}-{family}")
    try:
        with new_file(path) as file:
            file.writelines((_HEAD.pack(magic, len(parts), len(rows)), *parts, *rows))
        summed = checksum_of(path)
    except OSError as exc:
        if os.path.lexists(path):
            os.unlink(path)
        raise disk_error(exc, path) from exc
    return FileMark(shard, family, os.path.basename(path), *summed, len(rows), *ends)


def read_head(
    raw: bytes, magic: bytes, row_bytes: int, what: str
) -> tuple[list[tuple[bytes, bytes]], int, int]:
    """The names of such a file, the number of its rows, and where they begin.

    Raises:
        CorruptionError: it is cut off, or another file; ``what`` names it.
    """
    names: list[tuple[bytes, bytes]] = []
    try:
        found, count, rows = _HEAD.unpack_from(raw)
        at = _HEAD.size
        for _ in range(count):
            queue_at, tenant_at = at + 2, at + 2 + raw[at]
            at = tenant_at + raw[at + 1]
            names.append((raw[queue_at:tenant_at], raw[tenant_at:at]))
    except (struct.error, IndexError) as exc:
        raise CorruptionError(f"{what} is cut off: stage the load again") from exc
    if found != magic or at + rows * row_bytes != len(raw):
        kind = "ids" if magic != _MAGIC else "dedup keys"
        raise CorruptionError(f"{what} is no file of {kind}: stage the load again")
    return names, rows, at


class RowTable:
    """A file of rows of one length behind the names of their queues, in memory."""

    __slots__ = ("_names", "_raw", "_rows_at", "rows")

    magic: ClassVar[bytes]
    row_bytes: ClassVar[int]

    def __init__(self, raw: bytes, what: str) -> None:
        self._raw = raw
        self._names, self.rows, self._rows_at = read_head(raw, self.magic, self.row_bytes, what)

    @classmethod
    def read(cls, path: str) -> Self:
        """Read a file, whole. Blocks."""
        try:
            with open(path, "rb") as file:
                return cls(file.read(), path)
        except OSError as exc:
            raise disk_error(exc, path) from exc

    def __len__(self) -> int:
        return self.rows


class KeyTable(RowTable):
    """One ``keys`` file, in memory: 80 bytes a task."""

    __slots__ = ()

    magic = _MAGIC
    row_bytes = _ROW.size

    def _ghost(self, index: int) -> bytes:
        at = self._rows_at + index * _ROW.size
        return self._raw[at : at + 16]

    def __getitem__(self, index: int) -> KeyedTask:
        if not 0 <= index < self.rows:
            raise IndexError(index)
        ghost, task_id, seq, due_ms, old_ghost, name, priority = _ROW.unpack_from(
            self._raw, self._rows_at + index * _ROW.size
        )
        if name >= len(self._names):
            raise CorruptionError("a file of dedup keys names no queue: stage the load again")
        return KeyedTask(ghost, task_id, seq, due_ms, old_ghost, priority, *self._names[name])

    def slices(self, rows: int) -> Iterator[list[KeyedTask]]:
        """All of them, so many at a time."""
        for at in range(0, self.rows, rows):
            yield [self[i] for i in range(at, min(at + rows, self.rows))]

    def find(self, ghost: bytes) -> KeyedTask | None:
        """Who takes that key."""
        low, high = 0, self.rows
        while low < high:
            middle = (low + high) // 2
            if self._ghost(middle) < ghost:
                low = middle + 1
            else:
                high = middle
        return self[low] if low < self.rows and self._ghost(low) == ghost else None
