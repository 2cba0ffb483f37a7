"""A reader's view of a journal's folder: its files, and where records lie in them.

A reader in another process has nothing but the folder. Beside a writer, the writer knows better:
what it says replaces a listing and the heads of the newest file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

from ...errors import LodeqError, RecordCorruptError, SegmentCorruptError, StorageError
from ..source import FileSource
from .layout import LogFile, index_path, list_files
from .log_format import HEADER_BYTES, decode_header
from .log_walk import Walk, find_frame
from .recovery import INDEX_EVERY
from .small_files import INDEX_BYTES_MAX, IndexEntry, decode_index
from .writer import LogWriter

__all__ = [
    "FolderView",
    "View",
    "WriterView",
    "entry_before",
    "entry_earlier",
    "file_at",
    "file_before",
    "index_of",
]


class View(Protocol):
    """See the module's essay."""

    def files(self, since: str = "") -> list[LogFile]:
        """In order; at least those of the day ``since`` and later."""

    def entries(self, file: LogFile, source: FileSource) -> Sequence[IndexEntry]:
        """Where its frames lie, sparsely."""


class FolderView:
    """From the folder alone. What was found in a file without an index is remembered."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._heads: _Heads | None = None

    def files(self, since: str = "") -> list[LogFile]:
        """See ``View``."""
        return list_files(self.root, since)

    def entries(self, file: LogFile, source: FileSource) -> Sequence[IndexEntry]:
        """See ``View``."""
        index = _read_index(file, source)
        if index is not None:
            return index
        heads = self._heads
        if heads is None or heads.file != file or heads.upto > source.size:
            heads = self._heads = _Heads(file)
        return heads.extended(source)


class WriterView:
    """Beside a writer, in the same thread."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    def files(self, since: str = "") -> list[LogFile]:
        """See ``View``."""
        return self._writer.files

    def entries(self, file: LogFile, source: FileSource) -> Sequence[IndexEntry]:
        """See ``View``."""
        own = self._writer.entries_of(file)
        return index_of(file, source) if own is None else own


def index_of(file: LogFile, source: FileSource) -> Sequence[IndexEntry]:
    """From the index file; where that is missing or not of this file, from the heads of frames."""
    index = _read_index(file, source)
    return _Heads(file).extended(source) if index is None else index


def _read_index(file: LogFile, source: FileSource) -> Sequence[IndexEntry] | None:
    try:
        with FileSource(index_path(file.path)) as small:
            if small.size > INDEX_BYTES_MAX:  # before it is read
                return None
            index = decode_index(small.read(0, small.size))
        if index.first == file.first and index.log_bytes <= source.size:
            return index.entries
    except (RecordCorruptError, StorageError):
        pass
    return None


class _Heads:
    """Entries for an index of a file, so far. No byte is read twice while the file grows."""

    def __init__(self, file: LogFile) -> None:
        self.file = file
        self.upto = HEADER_BYTES
        self._entries: list[IndexEntry] = []

    def extended(self, source: FileSource) -> Sequence[IndexEntry]:
        """With what is there now."""
        entries, walk = self._entries, Walk(source, self.upto)
        while True:
            try:
                head = walk.head()
            except SegmentCorruptError:
                behind = find_frame(source, walk.at + 1)
                if behind is None:
                    return entries  # more may come: it is looked for again
                walk.at = behind
                continue
            if head is None or head.is_end:
                return entries
            if not entries or head.first >= entries[-1].sequence + INDEX_EVERY:
                entries.append(IndexEntry(head.first, head.time_us, walk.at))
            walk.at += head.size
            self.upto = walk.at


def file_at(files: Sequence[LogFile], sequence: int) -> LogFile | None:
    """The file that has, or will have, that record; None if it was before all of them."""
    at = bisect_right(files, sequence, key=lambda file: file.first)
    return files[at - 1] if at else None


def file_before(files: Sequence[LogFile], time_us: int) -> int:
    """How many files begin before that time: the last of them may reach up to it."""
    return bisect_left(files, time_us, key=_created_us)


def _created_us(file: LogFile) -> int:
    try:
        with FileSource(file.path) as source:
            return decode_header(source.read(0, HEADER_BYTES)).created_us
    except LodeqError:
        return 0  # it is looked at for what it has


def entry_before(entries: Sequence[IndexEntry], sequence: int) -> IndexEntry | None:
    """Where to walk from, to come to a record; None: from the start."""
    at = bisect_right(entries, sequence, key=lambda entry: entry.sequence)
    return entries[at - 1] if at else None


def entry_earlier(entries: Sequence[IndexEntry], time_us: int) -> IndexEntry | None:
    """Where to walk from, to come to the first frame of that time or a later one."""
    at = bisect_left(entries, time_us, key=lambda entry: entry.time_us)
    return entries[at - 1] if at else None
