"""Payloads that lie outside the tree: the rows that find them, and their way there and back.

A large payload goes to the shard's body files before the task's rows are queued, so a row never
points to what is not there; in fsync mode the files are synced before those rows are written, in
nosync mode before the log is synced. It is written once: moving the task, a lease, a death rewrite
small rows only. All of this happens within atomic sections, under the loop: nobody sees a row
between two of its states.

Every task has rows of its own for its payload (ADR a-row-per-reference), so several may share one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from ...coalescer.group import Group
from ...coalescer.overlay import Overlay
from ...engine.files.paths import bodies_path
from ...engine.records.frame import attempt
from ...engine.records.keyspace import (
    BODY,
    BODY_AT,
    BODY_AT_END,
    BODY_FILES,
    ID_AT,
    body_at_key,
    decode_body_at_key,
)
from ...engine.records.rows import (
    BodyRow,
    decode_body,
    decode_files,
    encode_body,
    encode_body_at,
    encode_files,
)
from ...engine.runtime.ids import IdSource
from ...engine.store.port import Op, Store
from ...engine.store.rocks import RocksStore
from ...errors import RecordCorruptError, SegmentCorruptError
from ...segments.bodies.files import BodyFiles
from ...segments.bodies.layout import Location
from ...segments.bodies.streams import StreamReader
from ..model.encoded_tasks import EncodedTask

__all__ = ["Bodies", "open_bodies"]

_SAMPLE: Final = 8  # rows that a file is known by


class Bodies:
    """The body files of one shard, and the rows that lead to them."""

    def __init__(self, files: BodyFiles, noted: int = 0) -> None:
        self.files = files
        self.is_replica = False  # entries have whole records: see ``replica_bodies``
        self._noted = noted  # no number below it is begun by any later open
        self.is_known = False  # ``body_gc`` has begun with them
        self.to_look: set[int] = set()  # files that ``body_gc`` has reason to look at
        self.died: set[int] = set()  # those in which something has died since it did
        self.died_mono: dict[int, float] = {}  # when it saw that, by file
        self.stuck: set[int] = set()  # those with records that cannot be read
        # A row was missing. What else is, nobody knows: no file goes, so that a salvage finds all.
        self.is_doubted = False
        self.absent: dict[int, BodyRow] = {}  # files that tasks wait for, with a row of each
        self._busy: Counter[int] = Counter()  # by file: for how many
        # Tasks whose rows are being moved, not known to be durable: their earlier ``o/`` key. Were
        # that batch lost to a power cut alone, nobody else would know that this row is to go.
        self.moving: dict[bytes, bytes] = {}

    def is_busy(self, number: int) -> bool:
        """Whether somebody is at work on a file: see ``body_gc``."""
        return number in self._busy

    @contextmanager
    def busy(self, number: int) -> Iterator[None]:
        """Somebody is at work on a file, inside; it may be several."""
        self._busy[number] += 1
        try:
            yield
        finally:
            self._busy[number] -= 1
            if not self._busy[number]:
                del self._busy[number]

    def write(self, record_id: bytes, body: bytes) -> BodyRow:
        """Write a payload; it is garbage until a task refers to it.

        Whoever waits before its rows are queued keeps the file ``busy`` meanwhile.

        Raises:
            StorageFullError, StorageError: nothing was written.
        """
        at = self.files.append(record_id, body)
        return BodyRow(at.size, at.file, at.offset, record_id)

    def refer(self, group: Group, task_id: bytes, row: BodyRow) -> None:
        """``+b +o``: the payload of this task lies there. With a file's first rows, its number.

        A file goes only once it is durable that no row leads to it, and so is by then its number.
        """
        group.has_bodies = True
        group.ops += self.refer_ops(task_id, row)

    def refer_ops(self, task_id: bytes, row: BodyRow) -> list[Op]:
        """The operations of ``refer``, to be queued before any of another call."""
        ops: list[Op] = [
            (BODY + task_id, encode_body(row)),
            (body_at_key(row.file, row.offset, task_id), encode_body_at(row.size)),
        ]
        return ops + self.note_ops(row.file)

    def note_ops(self, number: int) -> list[Op]:
        """The operation that notes that a file of this number has been, if none does yet."""
        if number < self._noted:
            return []
        self._noted = number + 1
        return [(BODY_FILES, encode_files(number + 1, self.files.first_number))]

    def locate(self, overlay: Overlay, task_id: bytes, record_id: bytes) -> BodyRow:
        """Where the payload of a task lies, in the record that the task's own record names.

        Raises:
            RecordCorruptError: it is lost.
        """
        raw = overlay.get(BODY + task_id)
        if raw is None:
            self.is_doubted = True
            raise RecordCorruptError(f"task {task_id.hex()}: no row says where its payload lies")
        row = decode_body(raw)
        if row.record_id != record_id:
            raise RecordCorruptError(f"task {task_id.hex()}: its row leads to another's payload")
        if not row.size:
            raise RecordCorruptError(f"task {task_id.hex()}: a salvage has not found its payload")
        return row

    def get(self, overlay: Overlay, task_id: bytes, record_id: bytes) -> bytes:
        """The payload of a task. Blocks for as long as a streamed one takes.

        Raises:
            RecordCorruptError: it is lost or damaged.
            StorageError: the disk failed.
        """
        row = self.locate(overlay, task_id, record_id)
        try:
            body = self.files.read(Location(row.file, row.offset, row.size), row.record_id)
        except SegmentCorruptError as exc:
            raise RecordCorruptError(str(exc)) from exc
        if body is None:
            raise self._gone(task_id, row)
        return body

    def open_stream(self, task_id: bytes, row: BodyRow) -> StreamReader:
        """A reader of a streamed payload. In any thread; blocks.

        Raises:
            RecordCorruptError: it is lost or damaged.
            StorageError: the disk failed.
        """
        at = Location(row.file, row.offset, row.size)
        try:
            found = self.files.open_stream(at, row.record_id)
        except SegmentCorruptError as exc:
            raise RecordCorruptError(str(exc)) from exc
        if found is None:
            raise self._gone(task_id, row)
        return found

    def _gone(self, task_id: bytes, row: BodyRow) -> RecordCorruptError:
        path = self.files.path(row.file)
        return RecordCorruptError(f"task {task_id.hex()}: {path!r} is gone, and its payload")

    def waits_for(self, overlay: Overlay, task_id: bytes) -> str:
        """Say why a task waits whose payload could not be read: its file is not the right one.

        Empty: its record is lost, or known to be. What is wrong is kept in ``absent``.

        Raises:
            StorageError: the disk failed.
        """
        row = attempt(decode_body, overlay.get_sound(BODY + task_id))
        if row is None or not row.size or row.is_lost:
            return ""
        if problem := self.problem(overlay, row):
            self.absent[row.file] = row
        return problem

    def place(self, overlay: Overlay, task_id: bytes) -> str:
        """Where a task's payload lies, or should; empty: no row says it."""
        row = attempt(decode_body, overlay.get_sound(BODY + task_id))
        if row is None or not row.size:
            return ""
        path = self.files.path(row.file)
        return f"{os.path.join(*path.split(os.sep)[-2:])} at {row.offset}"

    def problem(self, overlay: Overlay, row: BodyRow) -> str:
        """Why the file of a row is not the one that it was written to; empty: it is."""
        lower, upper = body_at_key(row.file, 0, b""), body_at_key(row.file + 1, 0, b"")
        keys = [key for key, _ in overlay.scan(lower, upper, _SAMPLE)[0]]
        found = overlay.multi_get([BODY + key[ID_AT:] for key in keys])
        rows = [other for raw in found if (other := attempt(decode_body, raw)) is not None]
        sample = [other for other in rows if other.file == row.file and other.size]
        return self.files.problem(row.file, [row, *sample])

    def write_all(self, ids: IdSource, encoded_tasks: Iterable[EncodedTask]) -> None:
        """Write the payloads of tasks about to be queued. One that they share, once.

        Raises:
            StorageFullError, StorageError: nothing was queued. What was written is garbage.
        """
        sharers: dict[int, list[EncodedTask]] = {}  # by which object the payload is
        records: list[tuple[bytes, bytes]] = []
        for encoded in encoded_tasks:
            if encoded.body is None or encoded.body_row is not None:
                continue
            if id(encoded.body) in sharers:
                sharers[id(encoded.body)].append(encoded)
            else:
                sharers[id(encoded.body)] = [encoded]
                records.append((ids.token(), encoded.body))
        if not records:
            return
        places = self.files.append_all(records)
        for at, (record_id, _), same in zip(places, records, sharers.values(), strict=True):
            row = BodyRow(at.size, at.file, at.offset, record_id)
            for encoded in same:
                encoded.body_row = row

    def drop(self, overlay: Overlay, group: Group, task_id: bytes) -> None:
        """``-b -o``: the task is over. Its payload, if nobody shares it, is dead."""
        group.ops += self.drop_ops(task_id, overlay.get_sound(BODY + task_id))

    def drop_ops(self, task_id: bytes, raw: bytes | None) -> list[Op]:
        """The operations of ``drop``. ``raw``: the task's body row; None: it cannot be read."""
        row = attempt(decode_body, raw)  # of one that is damaged the other row is left to repair
        if row is None:
            return [(BODY + task_id, None)]
        self.to_look.add(row.file)
        self.died.add(row.file)
        at = body_at_key(row.file, row.offset, task_id)
        ops: list[Op] = [(BODY + task_id, None), (at, None)]
        if task_id in self.moving:
            ops.append((self.moving[task_id], None))
        return ops


def open_bodies(store: Store, root: str, shard: int) -> Bodies | None:
    """Open the body files of a shard; every sync of its store covers them. None: not on disk.

    The folder is made with the first file.

    Raises:
        StorePathError, StorageError: nothing was opened.
    """
    if not isinstance(store, RocksStore):
        return None
    row = store.scan_last(BODY_AT, BODY_AT_END)
    least = decode_body_at_key(row[0])[0] + 1 if row is not None else 1
    # A store of an earlier release has none, and ``verify`` reports one that is damaged.
    noted = attempt(decode_files, store.get(BODY_FILES)) or 0
    files = BodyFiles.open(bodies_path(root, shard), least=max(least, noted))
    store.sync_before(files.sync)
    return Bodies(files, noted)
