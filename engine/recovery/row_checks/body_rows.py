"""Rows of payloads outside the tree, held against the tasks they belong to and against each other.

``b/`` says where a task's payload lies, ``o/`` says the same in the order of the files. Batches
keep them together; what does not fit is what damage, or a batch that was lost, has left.

The record of a task names the record of its payload, so rows that are gone can be made again from
the files themselves: only in a salvage, because every byte is read. So it does for one
that is damaged where its row says: a copy of it may lie elsewhere. What is not found
gets a row that says so, with its place if one is known: from then on it is known to be lost, and a
row that is missing is news. Its place keeps the file from being removed if it comes back.

Every open looks whether each file that rows lead to is there, is long enough and is the right one:
one row of a file, the last, says all that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol

from ....errors import CorruptionError, RecordCorruptError
from ...records import keyspace as ks
from ...records.frame import attempt
from ...records.keyspace import ID_AT
from ...records.rows import (
    BodyRow,
    decode_body,
    decode_body_at,
    encode_body,
    encode_body_at,
    is_lost_at,
)
from ...records.task import decode_task, has_body
from ...store.port import Op, Store, StoreView, pages
from ...store.walk import Walk

__all__ = [
    "BodyFinding",
    "BodyFolder",
    "BodyFolders",
    "find_bodies",
    "lost_rows",
    "mend_bodies",
    "rows_of_file",
    "strange_bodies",
    "wrong_files",
]

BodyFinding = tuple[str, bytes]  # what is wrong, and with which task
_SAMPLE: Final = 8  # rows that a file is known by, if the last one does not do
_PAGE: Final = 1024
WANTED_MAX: Final = 1 << 18  # records that are looked for at a time: a reading of all files each


class BodyFolder(Protocol):
    """Questions that an open has about a shard's body files; ``segments`` answers them."""

    def examine(self, *, was_left: bool) -> None:
        """Look at it, and sync what a process that died has left. Before RocksDB syncs its rows.

        Raises OpenError: it has files that this release cannot go on with.
        """

    def whole(self, rows: Sequence[BodyRow]) -> Sequence[bool]:
        """Whether each of these records can be read. If the disk fails, nobody knows: then so."""

    def problem(self, number: int, rows: Sequence[BodyRow]) -> str:
        """Why a file is not the one that these rows of it were written with; empty: it is.

        If the disk fails, nobody knows: then empty.
        """

    def find(self, wanted: Set[bytes]) -> Mapping[bytes, BodyRow]:
        """Where the records of these ids lie. Raises StorageError."""


BodyFolders = Callable[[str], BodyFolder]


def strange_bodies(walk: Walk) -> Iterator[list[BodyFinding]]:
    """Findings, page by page. Rows that cannot be read are no finding."""
    for rows in walk.pages(ks.BODY, ks.BODY_END):
        yield [
            (what, key[ks.ROW_ID])
            for key, raw in rows
            if (what := _wrong_with(walk, key, raw)) is not None
        ]
    for rows in walk.pages(ks.BODY_AT, ks.BODY_AT_END):
        yield [(_useless(key), key[ID_AT:]) for key, _ in rows if not _may_be_used(walk, key)]


def _useless(key: bytes) -> str:
    return f"row without use: {key!r}"


def _wrong_with(walk: Walk, key: bytes, raw: bytes) -> str | None:
    row = attempt(decode_body, raw)
    task, is_known = walk.read(ks.TASK + key[ks.ROW_ID])
    if row is None or (is_known and not has_body(task)):
        return _useless(key)
    if not is_known or not row.size:
        return None
    twin, is_known = walk.read(ks.body_at_key(row.file, row.offset, key[ks.ROW_ID]))
    is_right = attempt(decode_body_at, twin) == row.size
    return None if is_right or not is_known else "no row by place"


def _may_be_used(walk: Walk, key: bytes) -> bool:
    try:
        return _is_used(walk.view, key)
    except CorruptionError:
        return True


def wrong_files(store: Store, folder: BodyFolder) -> dict[int, str]:
    """Body files that rows lead to and that are missing, cut short or other ones, and why.

    Costs two reads a file. Rows in a damaged block are left to ``verify``.
    """
    found: dict[int, str] = {}
    upper = ks.BODY_AT_END
    with suppress(CorruptionError):
        while (last := store.scan_last(ks.BODY_AT, upper)) is not None:
            upper, raw = last
            size, place = attempt(decode_body_at, raw), attempt(ks.decode_body_at_key, upper)
            if not size or place is None or is_lost_at(raw):
                continue
            file, offset, task_id = place
            upper = ks.body_at_key(file, 0, b"")
            row = attempt(decode_body, store.get(ks.BODY + task_id))
            if row is None or (row.file, row.offset) != (file, offset):
                continue
            if problem := folder.problem(file, [row]):
                first = [other for _, other in islice(rows_of_file(store, file), _SAMPLE)]
                if problem := folder.problem(file, [row, *first]):
                    found[file] = problem
    return dict(sorted(found.items()))


def rows_of_file(view: StoreView, file: int) -> Iterator[tuple[bytes, BodyRow]]:
    """Tasks whose payloads lie in a file, by offset, and their rows."""
    lower, upper = ks.body_at_key(file, 0, b""), ks.body_at_key(file + 1, 0, b"")
    while rows := view.scan(lower, upper, _PAGE):
        lower = rows[-1][0] + b"\0"
        found = view.multi_get([ks.BODY + key[ID_AT:] for key, _ in rows])
        for (key, _), raw in zip(rows, found, strict=True):
            row = attempt(decode_body, raw)
            if row is not None and row.size and row.file == file:
                yield key[ID_AT:], row


def find_bodies(
    view: StoreView, folder: BodyFolder
) -> Generator[tuple[list[Op], int, int], None, None]:
    """Rows for payloads that none leads to: operations, tasks that get theirs back, and others.

    One record at a time. Some of the rows may be there.
    """
    for lost in _lost(view, folder):
        for record_id, row in folder.find(lost.keys()).items():
            ops: list[Op] = []
            for task_id, _ in (task_ids := lost.pop(record_id)):
                ops.append((ks.BODY + task_id, encode_body(row)))
                twin = ks.body_at_key(row.file, row.offset, task_id)
                ops.append((twin, encode_body_at(row.size)))
            yield ops, len(task_ids), 0
        for record_id, task_ids in lost.items():
            gone: list[Op] = []
            fresh = 0
            for task_id, place in task_ids:
                gone += lost_rows(task_id, place or BodyRow(0, 0, 0, record_id))
                fresh += place is None or not place.is_lost
            yield gone, 0, fresh


def lost_rows(task_id: bytes, row: BodyRow) -> list[Op]:
    """Operations that say of a payload that it is lost, and where it was: it may come back."""
    ops: list[Op] = [(ks.BODY + task_id, encode_body(row._replace(is_lost=bool(row.size))))]
    if row.size:
        twin = ks.body_at_key(row.file, row.offset, task_id)
        ops.append((twin, encode_body_at(row.size, is_lost=True)))
    return ops


_Lost = dict[bytes, list[tuple[bytes, BodyRow | None]]]


def _lost(view: StoreView, folder: BodyFolder) -> Generator[_Lost, None, None]:
    """Tasks without a row that leads to their record, whole, by those records; with that row."""
    lost: _Lost = {}
    for rows in pages(view, ks.TASK, ks.TASK_END):
        flagged = [(key[ks.ROW_ID], raw) for key, raw in rows if has_body(raw)]
        found = view.multi_get([ks.BODY + task_id for task_id, _ in flagged])
        fit: list[tuple[bytes, BodyRow]] = []
        for (task_id, raw), at in zip(flagged, found, strict=True):
            task, row = attempt(decode_task, raw), attempt(decode_body, at)
            if task is None:
                continue
            if row is not None and row.size and row.record_id == task.payload:
                fit.append((task_id, row))
            else:
                lost.setdefault(task.payload, []).append((task_id, None))
        whole = folder.whole([row for _, row in fit])
        for (task_id, row), is_whole in zip(fit, whole, strict=True):
            if not is_whole or row.is_lost:
                lost.setdefault(row.record_id, []).append((task_id, row))
        if len(lost) >= WANTED_MAX:
            yield lost
            lost = {}
    if lost:
        yield lost


def mend_bodies(view: StoreView) -> Generator[list[Op], None, None]:
    """Operations that mend the rows, page by page: useless ones go, a missing twin comes."""
    for rows in pages(view, ks.BODY, ks.BODY_END):
        ops: list[Op] = []
        tasks = view.multi_get([ks.TASK + key[ks.ROW_ID] for key, _ in rows])
        for (key, raw), task in zip(rows, tasks, strict=True):
            row = attempt(decode_body, raw)
            if row is None or not has_body(task):
                ops.append((key, None))
                continue
            twin = ks.body_at_key(row.file, row.offset, key[ks.ROW_ID])
            if row.size and attempt(decode_body_at, view.get(twin)) != row.size:
                ops.append((twin, encode_body_at(row.size, is_lost=row.is_lost)))
        yield ops
    for rows in pages(view, ks.BODY_AT, ks.BODY_AT_END):
        yield [(key, None) for key, _ in rows if not _is_used(view, key)]


def _is_used(view: StoreView, key: bytes) -> bool:
    try:
        file, offset, task_id = ks.decode_body_at_key(key)
    except RecordCorruptError:
        return False
    row = attempt(decode_body, view.get(ks.BODY + task_id))
    task = view.get(ks.TASK + task_id)
    return (
        row is not None
        and row.size > 0
        and (row.file, row.offset) == (file, offset)
        and has_body(task)
    )
