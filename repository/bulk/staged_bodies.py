"""Streamed payloads of a load: body files before the load comes in, and the same files after it.

Whoever stages a load writes each as a body file of its own, in the staging folder; the id of its
record is that of its task. When the load comes in the file gets a number and a second name, in the
shard's folder of body files, and that name is made durable. Only then the rows that lead there come
in, with all others. A crash in between leaves a file that no row needs, which goes after the next
open; the load is taken again, under other numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ...engine.bulk.manifest import BODIES, FileMark
from ...engine.bulk.sst import checksum_of
from ...engine.files.disk_errors import disk_error
from ...engine.records.rows import BodyRow
from ...engine.store.port import Op
from ...errors import CorruptionError, SegmentCorruptError
from ...segments.bodies.layout import Location
from ...segments.bodies.sqs import HEADER_BYTES
from ...segments.bodies.streams import StreamReader, StreamWriter
from ..state.bodies import Bodies

__all__ = ["LoadedBodies", "check_staged_body", "stage_body"]


def stage_body(folder: str, stem: str, shard: int, task_id: bytes, payload: bytes) -> FileMark:
    """Write the payload of a task that is being staged. Blocks.

    Args:
        folder: the staging folder of the job.
        stem: what the file's name begins with, unique in that folder for this task id.
        shard: of the task.
        task_id: its id.
        payload: its bytes, as they are stored.

    Raises:
        StorageFullError, StorageError: the disk; give the stage up.

    Durability: the file is fsynced; its name by whoever publishes.
    """
    name = f"{stem}-{shard}-{task_id.hex()}.sqs"
    path = os.path.join(folder, name)
    writer = StreamWriter(path, 0, task_id)
    try:
        writer.write(payload)
        writer.finish(is_durable=True)
    except BaseException:
        writer.discard()
        raise
    writer.close()
    try:
        summed = checksum_of(path)
    except OSError as exc:
        raise disk_error(exc, path) from exc
    return FileMark(shard, BODIES, name, *summed, 1, task_id, task_id)


def _size(mark: FileMark) -> int:
    """Bytes of its record."""
    return mark.size_bytes - HEADER_BYTES


def check_staged_body(folder: str, mark: FileMark) -> None:
    """Check that a staged file, whose bytes are right, is the payload of its task. Blocks.

    Raises:
        CorruptionError: it is not.
    """
    path = os.path.join(folder, mark.name)
    try:
        StreamReader(path, Location(0, HEADER_BYTES, _size(mark)), mark.first).close()
    except (FileNotFoundError, SegmentCorruptError) as exc:
        raise CorruptionError(
            f"{path} is not the payload of task {mark.first.hex()} ({exc}): stage the load again"
        ) from exc


class LoadedBodies:
    """The streamed payloads that a load brings to one shard, on their way in.

    Args:
        bodies: of the shard.
        folder: the staging folder of the load.
        marks: of the files.

    Raises:
        StorageFullError, StorageError: the folder of body files cannot be made.
    """

    def __init__(self, bodies: Bodies, folder: str, marks: Sequence[FileMark]) -> None:
        self._bodies = bodies
        self._folder = folder
        self._names = {bodies.files.take_number(): mark for mark in marks}
        self.rows = {
            mark.first: BodyRow(_size(mark), number, HEADER_BYTES, mark.first)
            for number, mark in self._names.items()
        }

    def note_ops(self) -> list[Op]:
        """The operations that note the files' numbers."""
        return self._bodies.note_ops(max(self._names))

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Keep the files until rows lead to them, or the load does not come in."""
        with ExitStack() as stack:
            for number in self._names:
                stack.enter_context(self._bodies.busy(number))
            try:
                yield
            finally:
                self._bodies.to_look.update(self._names)

    def link(self) -> None:
        """Have them lie among the shard's body files, durably. In a thread; blocks.

        Raises:
            StorageFullError, StorageError: the disk failed; what is there already goes.
        """
        files = self._bodies.files
        for number, mark in self._names.items():
            files.link(os.path.join(self._folder, mark.name), number)
        files.sync_folder()

    def take_in(self) -> None:
        """They are some of the shard's body files. In the turn of the loop after ``link``."""
        self._bodies.files.take_in_links(self._names)
