"""Opening a journal, for writing or for reading."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Literal

from ...engine.records.compression import Compressor
from ...engine.runtime.clock import Clock, SystemClock
from ...engine.runtime.current_loop import current_spawner
from ...engine.runtime.shielded import obtain
from ...errors import StorePathError, UsageError
from .journal import Flush, Journal
from .retention import Retention, roll_for
from .roll import Roll
from .tailer import Tailer
from .view import FolderView
from .writer import LogWriter

__all__ = ["JournalOpening", "open_journal", "open_tailer"]


class JournalOpening:
    """Returned by ``open_journal``: ``async with`` it, or ``await`` it and close the journal."""

    def __init__(self, start: Callable[[], Awaitable[Journal]]) -> None:
        self._start = start
        self._journal: Journal | None = None

    def __await__(self) -> Generator[Any, Any, Journal]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Journal:
        self._journal = journal = await self._start()
        return journal

    async def __aexit__(self, *error: object) -> None:
        if self._journal is not None:
            await self._journal.close()


def open_journal(
    path: str | os.PathLike[str],
    *,
    flush: Flush = "async",
    batch_bytes: int = 1 << 20,
    batch_interval: float = 0.1,
    roll: Roll | None = None,
    retention: Retention | None = None,
    compression: Literal["zlib", "zstd"] | None = None,
    clock: Clock | None = None,
) -> JournalOpening:
    """Open the journal at ``path`` for writing; it is made if it is not there.

    ::

        async with lodeq.open_journal("var/events", flush="batch") as journal:
            ack = await journal.append(b"...", headers={"kind": "login"})

    Args:
        path: a folder of its own. One writer at a time holds it; readers are not counted.
        flush: what an append waits for, unless it says ``until``. ``async``: nothing, it is written
            within a turn of the loop. ``batch``: the write; a sync follows after ``batch_bytes``
            or ``batch_interval`` seconds. ``sync``: a sync, which appends share.
        roll: when a file is full; None: at 128 MiB, or at an eighth of what ``retention`` keeps.
        retention: what is kept; None: everything. Applied at open, when a file is full, at every
            eighth of its ``seconds`` (each hour at the latest), and by ``trim``.
        compression: None, ``zlib``, or ``zstd`` (an extra), for payloads from 1 KiB that gain by
            it, each by itself. Whatever it says, what is there is read.
        clock: another clock, for tests.

    Raises:
        UsageError: of the options; nothing was opened.
        LockedError: another writer has it.
        StorePathError: it is no folder, or not to be written.
        StorageError: the disk failed.

    **Durability.** What is found there is as it was after the last write; a torn tail is cut off,
    everything else that is wrong is in ``Journal.findings``.
    """
    if flush not in ("async", "batch", "sync"):
        raise UsageError(f"flush {flush!r} is not 'async', 'batch' or 'sync'")
    if batch_bytes < 1 or not batch_interval > 0:
        raise UsageError("batch_bytes and batch_interval are above 0")

    compressor = Compressor(compression) if compression is not None else None
    root = os.path.abspath(os.fspath(path))

    async def start() -> Journal:
        spawner = current_spawner()
        the_clock = clock if clock is not None else SystemClock()
        rule = roll if roll is not None else roll_for(retention)
        writer = await obtain(
            spawner,
            lambda: LogWriter.open(root, clock=the_clock, roll=rule, compressor=compressor),
            LogWriter.close,
        )
        return Journal(
            writer,
            spawner,
            the_clock,
            flush=flush,
            batch_bytes=batch_bytes,
            batch_s=batch_interval,
            retention=retention,
        )

    return JournalOpening(start)


def open_tailer(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    start: Literal["start", "end"] | int = "start",
    clock: Clock | None = None,
) -> Tailer:
    """Read the journal at ``path`` beside whoever writes it, in this process or another.

    It writes nothing, but for the place of a named tailer: the first at once. It looks for
    more five times a second.

    Args:
        path: the journal's folder.
        name: under which the tailer's position is kept, 1 to 64 of a-z, 0-9, ``_`` and ``-``; None:
            it is not kept.
        start: where a tailer without a kept position begins: a record's number, ``start`` or
            ``end``.
        clock: None uses the machine's.

    Raises:
        StorePathError: there is no folder.
        InvalidNameError, CorruptionError: of the name, or of the place stored under it.
        StorageError: the place cannot be read or written.
    """
    root = os.path.abspath(os.fspath(path))
    if not os.path.isdir(root):
        raise StorePathError(f"no journal at {root!r}")
    the_clock = clock if clock is not None else SystemClock()
    return Tailer(
        root, FolderView(root), current_spawner(), the_clock, name=name, start=start, wakes=None
    )
