"""Opening a source by its kind and path; or the error that says what the path looks like."""

from __future__ import annotations

import os
from typing import Final

from ...errors import StorageError, UsageError
from ...segments.detect import DetectedPath, detect
from ...segments.source import FileSource
from .chunk_files import ChunkFiles, is_chunk_folder
from .database import MAGIC, Database
from .entries import Foreign
from .ledgerq import LedgerQ
from .logs import LogSource, Rdq, RustQueue
from .tables import Huey, LiteQueue, PersistQueue, TableSource

__all__ = ["KINDS", "open_source"]

_LOGS: Final[dict[str, type[LogSource]]] = {
    "ledgerq": LedgerQ,
    "rust-queue": RustQueue,
    "rdq": Rdq,
    "sqs": Rdq,
}
_TABLES: Final[tuple[type[TableSource], ...]] = (PersistQueue, Huey, LiteQueue)
KINDS: Final = ("ledgerq", "rust-queue", "rdq", "persist-queue", "huey", "litequeue")
_SUFFIXES: Final = (".db", ".sqlite", ".sqlite3")


def open_source(
    kind: str, path: str | os.PathLike[str], *, source_id: str | None = None
) -> Foreign:
    """A source of that kind at a path: a folder, or a file of it.

    Args:
        kind: one of ``KINDS``.
        path: where it lies.
        source_id: who it is, whatever its path. None: for ``rust-queue`` and the files of
            ``persist-queue`` the path without links, for others nothing is needed.

    Raises:
        UsageError: it is none; the message says what it looks like.
        StorageError: it cannot be read.
    """
    if kind not in KINDS:
        raise UsageError(f"expected a kind of source among {', '.join(KINDS)}, got {kind!r}")
    whole = os.path.realpath(path)
    if not os.path.exists(whole):
        raise UsageError(f"{os.fspath(path)!r} does not exist: give the folder of the queue")
    if source_id == "":
        raise UsageError("a source id must not be empty")
    opened = _open(kind, whole)
    if opened is None:
        seen = next((name for name in KINDS if _open(name, whole) is not None), "")
        advice = f"it looks like {seen}: lodeq import {seen}" if seen else _unknown(kind, whole)
        raise UsageError(f"no {kind} at {os.fspath(path)!r}; {advice}")
    if source_id is not None:
        opened.source_id = source_id
    return opened


def _open(kind: str, path: str) -> LogSource | ChunkFiles | TableSource | None:
    if kind in _LOGS:
        detected = _detected(path)
        wanted = {kind, "sqs"} if kind == "rdq" else {kind}
        if detected is None or detected.format not in wanted:
            return None
        return _LOGS[detected.format](detected)
    if kind == "persist-queue" and os.path.isdir(path) and is_chunk_folder(path):
        return ChunkFiles(path)
    database = _database(path)
    if database is None:
        return None
    with Database(database) as opened:
        tables = opened.tables
    fits = [source for source in _TABLES if source.kind == kind and source.fits(tables)]
    return fits[0](database) if fits else None


def _detected(path: str) -> DetectedPath | None:
    try:
        return detect(path)
    except UsageError:
        return None


def _database(path: str) -> str | None:
    """The database at a path; in a folder, the only one."""
    if not os.path.isdir(path):
        return path if _is_database(path) else None
    found = [
        os.path.join(path, name)
        for name in sorted(os.listdir(path))
        if name.endswith(_SUFFIXES) and _is_database(os.path.join(path, name))
    ]
    if len(found) > 1:
        raise UsageError(f"{path!r} holds several databases: give one of the files")
    return found[0] if found else None


def _is_database(path: str) -> bool:
    try:
        with FileSource(path) as source:
            return source.read(0, len(MAGIC)) == MAGIC
    except StorageError:
        return False


def _unknown(kind: str, path: str) -> str:
    if kind in ("huey", "litequeue") and os.path.isdir(path):
        return "give the file of its database"
    return "there is nothing that can be imported"
