"""Opening a source by its kind and path; or the error that says what the path looks like."""

from __future__ import annotations

import os
from typing import Final, TypeAlias

from ...errors import UsageError
from .chunk_files import ChunkFiles
from .entries import Foreign
from .ledgerq import LedgerQ
from .logs import LogSource, Rdq, RustQueue
from .tables import Huey, LiteQueue, PersistQueue, TableSource

__all__ = ["KINDS", "open_source"]

OpenedSource: TypeAlias = LogSource | ChunkFiles | TableSource
# A line for each; of two of one kind the first that finds something at a path is taken.
_SOURCES: Final[tuple[type[OpenedSource], ...]] = (
    LedgerQ,
    RustQueue,
    Rdq,
    ChunkFiles,
    PersistQueue,
    Huey,
    LiteQueue,
)
KINDS: Final = tuple(dict.fromkeys(source.kind for source in _SOURCES))


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


def _open(kind: str, path: str) -> OpenedSource | None:
    found = (source.opened(path) for source in _SOURCES if source.kind == kind)
    return next((source for source in found if source is not None), None)


def _unknown(kind: str, path: str) -> str:
    is_file = all(issubclass(one, TableSource) for one in _SOURCES if one.kind == kind)
    if is_file and os.path.isdir(path):
        return "give the file of its database"
    return "there is nothing that can be imported"
