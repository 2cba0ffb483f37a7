"""Copies payloads from the body files of old shards to those of a new shard."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from ...engine.bulk.reader import ShardReader
from ...engine.files.paths import bodies_path
from ...engine.records.keyspace import BODY, BODY_END, ROW_ID, body_at_key
from ...engine.records.rows import BodyRow, decode_body, encode_body, encode_body_at
from ...engine.records.task import WHOLE_BYTES_MAX
from ...engine.runtime.ids import shard_of
from ...engine.store.port import pages
from ...errors import RecordCorruptError
from ...segments.bodies.files import BodyFiles
from ...segments.bodies.layout import Location

__all__ = ["copy_bodies"]

Rows = list[tuple[bytes, bytes]]
RECORD_BYTES: Final = 25  # of a body's record, beside the body


class _Wanted(NamedTuple):
    """A row to copy. Sorted as on disk, so that a payload shared by tasks is copied once."""

    source: int
    file: int
    offset: int
    task_id: bytes
    row: BodyRow


def copy_bodies(
    readers: Sequence[ShardReader], folder: str, shard: int, shards: int
) -> tuple[Rows, Rows]:
    """Copy the payloads of one new shard's tasks. Blocks.

    Args:
        readers: readers of the old shards that have some of its tasks.
        folder: where the new files go; made with the first one.
        shard: the new shard's index.
        shards: the new number of shards.

    Returns: the new rows by task, and by place in the files.

    Raises:
        RecordCorruptError, SegmentCorruptError: a payload or a row is damaged, or gone.
        StorageFullError, StorageError: the disk.

    Durability: the files are synced.
    """
    wanted: list[_Wanted] = []
    for source, reader in enumerate(readers):
        for rows in pages(reader, BODY, BODY_END):
            for key, raw in rows:
                if shard_of(key[ROW_ID], shards) == shard:
                    row = decode_body(raw)
                    if row.is_lost:
                        row = BodyRow(0, 0, 0, row.record_id)
                    wanted.append(_Wanted(source, row.file, row.offset, key[ROW_ID], row))
    found: Rows = []
    twins: Rows = []
    with ExitStack() as stack:
        sources = [BodyFiles.open(_folder_of(reader)) for reader in readers]
        target = BodyFiles.open(folder)
        for files in (*sources, target):
            stack.callback(files.close)
        last: tuple[int, int, int] | None = None
        here = BodyRow(0, 0, 0, b"")
        for source, file, offset, task_id, row in sorted(wanted):
            if row.size and last != (source, file, offset):
                copied = _streamed if row.size > WHOLE_BYTES_MAX + RECORD_BYTES else _copied
                at = copied(sources[source], target, row)
                if at is None:
                    path = sources[source].path(file)
                    raise RecordCorruptError(f"task {task_id.hex()}: {path!r} is gone")
                here = BodyRow(at.size, at.file, at.offset, row.record_id)
                last = source, file, offset
            new = here if row.size else row
            found.append((BODY + task_id, encode_body(new)))
            if new.size:
                twins.append((body_at_key(new.file, new.offset, task_id), encode_body_at(new.size)))
        target.sync()
    return found, twins


def _copied(source: BodyFiles, target: BodyFiles, row: BodyRow) -> Location | None:
    body = source.read(Location(row.file, row.offset, row.size), row.record_id)
    return None if body is None else target.append(row.record_id, body)


def _streamed(source: BodyFiles, target: BodyFiles, row: BodyRow) -> Location | None:
    """The same of a streamed payload: into a file of its own, of which a slice is in memory."""
    reader = source.open_stream(Location(row.file, row.offset, row.size), row.record_id)
    if reader is None:
        return None
    writer = target.begin_stream(row.record_id)
    try:
        while data := reader.read():
            writer.write(data)
        at = writer.finish(is_durable=False)
    except BaseException:
        writer.discard()
        raise
    finally:
        reader.close()
    target.take_in(writer)
    target.sync()  # it is open until then
    return at


def _folder_of(reader: ShardReader) -> str:
    return bodies_path(os.path.dirname(reader.path), reader.shard)
