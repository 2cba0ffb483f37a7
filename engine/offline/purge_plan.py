"""Purge plans: which ended tasks a store need not keep any more, because they are archived.

::

    <archive>/_lodeq/purge-<run>/
      plan.json             the store, the snapshot, the files; sealed, written last
      results-<shard>-….rows   16 bytes of id, 8 of when it ended (ms, big-endian), sorted by id
      dead-<shard>-….rows

A plan names what was seen, by id *and* moment. So nothing newer than its snapshot can go: a task
that was redriven meanwhile and has ended again is another row. Whoever applies a plan twice finds
nothing the second time.
"""

from __future__ import annotations

import os
import re
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import xxhash

from ...errors import CorruptionError, StorageError, UsageError
from ..bulk.documents import natural, read_document, write_document
from ..files.durable_files import new_file

__all__ = [
    "KINDS",
    "PLAN",
    "ROW_BYTES",
    "EndedRows",
    "PurgeFile",
    "PurgePlan",
    "read_plan",
    "write_plan",
    "write_rows",
]

PLAN: Final = "plan.json"
KINDS: Final = ("results", "dead")
_FORMAT, _VERSION = "lodeq-purge", 1
_ROW: Final = struct.Struct(">16sQ")
ROW_BYTES: Final = _ROW.size
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_BATCH: Final = 4096


class PurgeFile(NamedTuple):
    """Rows of one kind (``results`` or ``dead``) of one shard."""

    shard: int
    kind: str
    name: str
    rows: int
    xxh3_128: str


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """Rows that may go. ``run`` names the run of the archive that has them."""

    folder: str
    store_id: bytes
    shards: int
    snapshot: str
    run: str
    files: tuple[PurgeFile, ...]

    def rows_of(self, kind: str) -> int:
        """How many of that kind."""
        return sum(file.rows for file in self.files if file.kind == kind)


def write_rows(
    folder: str, name: str, shard: int, kind: str, rows: Iterable[tuple[bytes, int]]
) -> PurgeFile:
    """A file of a plan, durable when this returns. Blocks.

    Args:
        rows: (id, when it ended in ms), sorted by id, each id once.

    Raises:
        StorageError: the disk.
    """
    digest, count, last = xxhash.xxh3_128(), 0, b""
    try:
        with new_file(os.path.join(folder, name), may_exist=True) as file:
            for batch in _batches(rows):
                for id, _ in batch:
                    if id <= last:
                        raise CorruptionError(f"{name}: ids are not in order")
                    last = id
                raw = b"".join([_ROW.pack(*row) for row in batch])
                digest.update(raw)
                file.write(raw)
                count += len(batch)
    except OSError as exc:
        raise StorageError(f"{name}: {exc.strerror}") from exc
    return PurgeFile(shard, kind, name, count, digest.hexdigest())


def _batches(rows: Iterable[tuple[bytes, int]]) -> Iterator[list[tuple[bytes, int]]]:
    batch: list[tuple[bytes, int]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def write_plan(plan: PurgePlan) -> str:
    """Make the files a plan; its path. Raises ``StorageError``."""
    path = os.path.join(plan.folder, PLAN)
    body = {
        "format": _FORMAT,
        "version": _VERSION,
        "store_id": plan.store_id.hex(),
        "shards": plan.shards,
        "snapshot": plan.snapshot,
        "run": plan.run,
        "files": [list(file) for file in plan.files],
    }
    try:
        write_document(path, body)
    except OSError as exc:
        raise StorageError(f"{path}: {exc.strerror}") from exc
    return path


def read_plan(path: str | os.PathLike[str]) -> PurgePlan:
    """The plan at ``path``: the file, or its folder.

    Raises:
        CorruptionError: it is not there, or is damaged.
        FormatTooNewError: it is of a newer lodeq.
    """
    whole = os.path.abspath(path)
    if os.path.isdir(whole):
        whole = os.path.join(whole, PLAN)
    body = read_document(whole, _FORMAT, _VERSION)
    try:
        shards = natural(body["shards"])
        files = tuple(_file(row, shards) for row in body["files"])
        store_id = bytes.fromhex(body["store_id"])
        return PurgePlan(
            os.path.dirname(whole), store_id, shards, str(body["snapshot"]), str(body["run"]), files
        )
    except (ValueError, TypeError, KeyError) as exc:
        raise CorruptionError(f"{whole} is damaged ({exc})") from exc


def _file(row: list[object], shards: int) -> PurgeFile:
    shard, kind, name, rows, digest = row
    if natural(shard) >= shards or kind not in KINDS:
        raise ValueError(f"not a file of a plan: {row!r}")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None or not isinstance(digest, str):
        raise ValueError(f"not the name of a file: {name!r}")
    return PurgeFile(natural(shard), str(kind), name, natural(rows), digest)


class EndedRows:
    """The rows of one file, in memory: 24 bytes each."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    @classmethod
    def read(cls, folder: str, file: PurgeFile) -> EndedRows:
        """Check it, and hold it. Blocks.

        Raises ``CorruptionError`` if it is not what the plan says, or not there.
        """
        path = os.path.join(folder, file.name)
        try:
            with open(path, "rb") as stream:
                raw = stream.read(file.rows * _ROW.size + 1)
        except OSError as exc:
            raise CorruptionError(f"{path}: {exc.strerror}") from exc
        if xxhash.xxh3_128_hexdigest(raw) != file.xxh3_128:
            raise CorruptionError(f"{path} is damaged: archive again, into the same folder")
        return cls(raw)

    @classmethod
    def of(cls, parts: Iterable[bytes]) -> EndedRows:
        """Rows of several files, or of parts of them, in whatever order they come.

        Raises ``UsageError`` if there is a part that is not whole rows.
        """
        size, rows = _ROW.size, []
        for part in parts:
            if len(part) % size:
                raise UsageError(f"rows have {size} bytes each, {len(part)} bytes are none")
            rows += [part[at : at + size] for at in range(0, len(part), size)]
        return cls(b"".join(sorted(rows)))

    def parts(self, rows: int) -> Iterator[bytes]:
        """The bytes of so many rows at a time."""
        step = rows * _ROW.size
        return (self._raw[at : at + step] for at in range(0, len(self._raw), step))

    def __len__(self) -> int:
        return len(self._raw) // _ROW.size

    def __getitem__(self, at: slice) -> list[tuple[bytes, int]]:
        """Some of them: (id, when it ended in ms)."""
        start, stop, _ = at.indices(len(self))
        return list(_ROW.iter_unpack(self._raw[start * _ROW.size : stop * _ROW.size]))

    def find(self, id: bytes) -> int | None:
        """When it ended, of an id that is in it."""
        raw, size = self._raw, _ROW.size
        at = bisect_left(range(len(self)), id, key=lambda i: raw[i * size : i * size + 16])
        row = raw[at * size : (at + 1) * size]
        return int.from_bytes(row[16:], "big") if row[:16] == id else None
