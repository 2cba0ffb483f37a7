"""A queue of LedgerQ: its folder, read without a change to it, or written anew.

::

    00000000000000000001.log   segments, in the order of their numbers (codec.py)
    00000000000000000001.idx   the index of each that has been closed (index.py)
    metadata.dat               the next id, and the first unread one (state.py)
    .retry_state.json          failures, if the queue has a queue of dead letters, which is a
                               folder like this elsewhere
    .dedup_state.json          keys and their windows, as of the last close

The numbers in the names are 1, 1000001, 2000001 and so on, whatever ids are in the files: only the
records say. LedgerQ takes no lock, so nothing shows whether it is at work in the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final, NamedTuple, TypeVar

from ....engine.files.disk_errors import error_class
from ....engine.files.durable_files import new_file
from ....engine.files.paths import fsync_dir
from ....errors import CorruptionError, StorageError, UsageError
from ...item import Damage, Item, Record
from ...source import FileSource
from .codec import HEADER_BYTES, LedgerQ, SegmentHeader, decode_header, encode, encode_header
from .index import Index, IndexEntry, decode_index, encode_index, index_damage, is_indexed
from .state import (
    STATE_BYTES_MAX,
    DedupState,
    GoTime,
    Metadata,
    RetryEntry,
    RetryState,
    decode_dedup,
    decode_metadata,
    decode_retry,
    encode_dedup,
    encode_metadata,
    encode_retry,
    parse_time,
)

__all__ = [
    "SEGMENT_RECORDS_MAX",
    "DeadLetter",
    "Directory",
    "Placed",
    "Problem",
    "dead_letter",
    "read_directory",
    "write_directory",
]

SEGMENT_RECORDS_MAX: Final = 1_000_000
_SEGMENT: Final = re.compile(r"(\d{20})\.log", re.ASCII)
_INDEX: Final = re.compile(r"(\d{20})\.idx", re.ASCII)
_METADATA, _RETRY, _DEDUP = "metadata.dat", ".retry_state.json", ".dedup_state.json"
_NUMBER_END: Final = 1 << 64
_FORMAT: Final = LedgerQ()
T = TypeVar("T")


class Placed(NamedTuple):
    """An item, and the name of the file in which it lies at its offset."""

    file: str
    item: Item


class Problem(NamedTuple):
    """Something that is wrong in the file of this name."""

    file: str
    damage: Damage


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The message that the headers of a dead letter describe."""

    original_id: int
    retry_count: int
    failure_reason: str
    last_failure: GoTime | None


@dataclass(frozen=True, slots=True)
class Directory:
    """Contents of the folder, its segments' records left out.

    ``segments`` are names, in order. ``problems`` are those met so far; ``verify`` finds all. A
    small file that is missing, or cannot be read, is None.
    """

    path: str
    segments: tuple[str, ...]
    metadata: Metadata | None
    retries: RetryState | None
    dedup: DedupState | None
    problems: tuple[Problem, ...]

    @property
    def read_id(self) -> int:
        """The first unread message; without metadata the first there ever was."""
        return self.metadata.read_id if self.metadata else 1

    @property
    def failures(self) -> Mapping[int, RetryEntry]:
        """By message."""
        return {entry.message_id: entry for entry in self.retries.entries} if self.retries else {}

    def is_unread(self, record: Record) -> bool:
        """Whether LedgerQ has yet to hand it out (which is when it counts as read)."""
        return record.sequence >= self.read_id

    def items(self) -> Iterator[Placed]:
        """All that can be read, in order of segments, and the damage between.

        Raises:
            StorageError: a file cannot be opened or read.
        """
        for name in self.segments:
            with FileSource(os.path.join(self.path, name)) as source:
                for item in _FORMAT.salvage(source):
                    yield Placed(name, item)

    def verify(self) -> list[Problem]:
        """All that is wrong with the files and between them. Reads every byte.

        Raises:
            StorageError: a file cannot be opened or read.
        """
        found = list(self.problems)
        highest = 0
        for name in self.segments:
            ids, problems = _verify_segment(self.path, name)
            found += problems
            if ids and min(ids) <= highest:
                reason = f"ids from {min(ids)} on, but earlier segments have ids up to {highest}"
                found.append(Problem(name, Damage(HEADER_BYTES, 0, reason)))
            highest = max([highest, *ids])
        if self.metadata:
            next_id, read_id = self.metadata
            if next_id != highest + 1:
                reason = f"the next id is {next_id}, but the last there is is {highest}"
                found.append(Problem(_METADATA, Damage(4, 8, reason)))
            if read_id > next_id:
                reason = f"read up to {read_id}, but the next id is {next_id}"
                found.append(Problem(_METADATA, Damage(12, 8, reason)))
        return found


def read_directory(path: str | os.PathLike[str]) -> Directory:
    """Look at the folder of a queue. Nothing in it is opened for writing, now or later.

    Raises:
        StorageError: it cannot be listed, or a file in it cannot be read.
    """
    folder = os.fspath(path)
    try:
        with os.scandir(folder) as entries:
            names = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    except OSError as exc:
        raise StorageError(f"cannot list {folder!r}: {exc.strerror}") from exc
    problems: list[Problem] = []
    segments = sorted(name for name in names if _is_numbered(_SEGMENT, name))
    indexes = sorted(name for name in names if _is_numbered(_INDEX, name))
    for name in [*segments, *indexes, _METADATA, _RETRY, _DEDUP]:
        if not names.get(name, True):
            problems.append(Problem(name, Damage(0, 0, "not a regular file")))
            names.pop(name)
    problems += [
        Problem(name, Damage(0, 0, "an index without a segment"))
        for name in indexes
        if f"{name[:-4]}.log" not in segments
    ]

    def small(name: str, decode: Callable[[bytes], T]) -> T | None:
        if name not in names:
            return None
        value, problem = _read_small(folder, name, decode)
        problems.extend(problem)
        return value

    return Directory(
        folder,
        tuple(name for name in segments if name in names),
        small(_METADATA, decode_metadata),
        small(_RETRY, decode_retry),
        small(_DEDUP, decode_dedup),
        tuple(problems),
    )


def dead_letter(record: Record) -> DeadLetter | None:
    """The message that a dead letter was before; None for any other message."""
    try:
        return DeadLetter(
            int(record.headers["dlq.original_msg_id"]),
            int(record.headers.get("dlq.retry_count", "0")),
            record.headers.get("dlq.failure_reason", ""),
            parse_time(at) if (at := record.headers.get("dlq.last_failure")) else None,
        )
    except (KeyError, ValueError, CorruptionError):
        return None  # headers of the user's own


def _is_numbered(pattern: re.Pattern[str], name: str) -> bool:
    match = pattern.fullmatch(name)
    return match is not None and int(match[1]) < _NUMBER_END


def _read_small(
    folder: str, name: str, decode: Callable[[bytes], T]
) -> tuple[T | None, list[Problem]]:
    with FileSource(os.path.join(folder, name)) as source:
        try:
            if source.size > STATE_BYTES_MAX:
                raise CorruptionError(f"{source.size} bytes; {STATE_BYTES_MAX} at most")
            return decode(source.read(0, source.size)), []
        except CorruptionError as exc:
            return None, [Problem(name, Damage(0, source.size, str(exc)))]


def _verify_segment(folder: str, name: str) -> tuple[list[int], list[Problem]]:
    """The lowest and the highest id, if there is any, and what is wrong with segment and index."""
    base, index_name = int(name[:-4]), name[:-4] + ".idx"
    index: Index | None = None
    problems: list[Problem] = []
    index_path = os.path.join(folder, index_name)
    if os.path.isfile(index_path) and not os.path.islink(index_path):
        index, problems = _read_small(folder, index_name, decode_index)
    ids: list[int] = []

    def records(source: FileSource) -> Iterator[IndexEntry]:
        for item in _FORMAT.salvage(source):
            if isinstance(item, Record):
                ids[:] = [min([item.sequence, *ids]), max([item.sequence, *ids])]
                yield IndexEntry(item.sequence, item.offset, item.timestamp_ns)

    with FileSource(os.path.join(folder, name)) as source:
        problems += [Problem(name, damage) for damage in _FORMAT.verify(source)]
        try:
            said = decode_header(source.read(0, HEADER_BYTES)).base
        except CorruptionError:
            said = base  # reported already
        if said != base:
            problems.append(Problem(name, Damage(8, 8, f"header: the number is {said}")))
        there = records(source)
        if index is not None:
            problems += [Problem(index_name, d) for d in index_damage(index, base, there)]
        for _ in there:
            pass
    return ids, problems


def write_directory(
    path: str | os.PathLike[str],
    records: Iterable[Record],
    *,
    read_id: int = 1,
    next_id: int | None = None,
    retries: RetryState | None = None,
    dedup: DedupState | None = None,
    segment_bytes_max: int = 1 << 30,
    segment_records_max: int = SEGMENT_RECORDS_MAX,
) -> Metadata:
    """Make a queue that LedgerQ opens, closed in good order, of records with ascending ids.

    Every file is written under another name, synced, and renamed; ``metadata.dat`` comes last, so
    without it a folder is not whole. A segment is as old as its first record.

    Args:
        path: a folder that is empty, or not there yet; its parent is.
        records: what ``encode`` takes.
        read_id: the first unread message.
        next_id: the id of the next message; the last one plus 1 if None.
        retries: what ``.retry_state.json`` shall hold.
        dedup: what ``.dedup_state.json`` shall hold.
        segment_bytes_max: where a segment ends; its last record may reach beyond.
        segment_records_max: the same, in records.

    Raises:
        UsageError: the folder is in use, ids do not ascend, or LedgerQ could not read a record
            back. As with any error, what was written is removed.
        StorageError: a file cannot be written.
    """
    if segment_bytes_max < 1 or segment_records_max < 1:
        raise UsageError("a segment holds at least one record")
    folder = os.fspath(path)
    made: list[str] = []
    try:
        _make_empty(folder)
        try:
            writer = _Writer(folder, made, segment_bytes_max, segment_records_max)
            last = writer.segments(iter(records))
            metadata = Metadata(last + 1 if next_id is None else next_id, read_id)
            if metadata.next_id <= last or read_id > metadata.next_id:
                raise UsageError(f"{metadata} does not go with a last id of {last}")
            if retries is not None:
                writer.file(_RETRY, encode_retry(retries), 0o600)
            if dedup is not None:
                writer.file(_DEDUP, encode_dedup(dedup), 0o600)
            fsync_dir(folder)  # before the file that says it is whole
            writer.file(_METADATA, encode_metadata(metadata))
            fsync_dir(folder)
        except BaseException:
            for name in made:
                os.unlink(os.path.join(folder, name))
            raise
    except OSError as exc:
        raise error_class(exc)(f"{folder!r}: {exc.strerror}") from exc
    return metadata


def _make_empty(folder: str) -> None:
    try:
        os.mkdir(folder, 0o700)
        fsync_dir(os.path.dirname(os.path.abspath(folder)))
    except FileExistsError:
        if os.listdir(folder):
            raise UsageError(f"{folder!r} is not empty") from None


class _Writer:
    """``made`` are the names of its files, at any time."""

    def __init__(self, folder: str, made: list[str], bytes_max: int, records_max: int) -> None:
        self._folder = folder
        self._made = made
        self._bytes_max = bytes_max
        self._records_max = records_max

    def segments(self, records: Iterator[Record]) -> int:
        """Write them all. Returns the last id, or 0."""
        base, last = 1, 0
        record = next(records, None)
        while record is not None:
            record, last = self._segment(base, record, records, last)
            base += self._records_max
        return last

    def _segment(
        self, base: int, first: Record, records: Iterator[Record], last: int
    ) -> tuple[Record | None, int]:
        """Write one segment and its index. Returns the record that was too much, and the last."""
        entries: list[IndexEntry] = []
        record: Record | None = first
        at, count = HEADER_BYTES, 0
        with self._durable(f"{base:020}.log", 0o644) as file:
            file.write(bytes(HEADER_BYTES))
            while record is not None and self._fits(at, count):
                if record.sequence <= last:
                    raise UsageError(f"id {record.sequence} after {last}")
                last = record.sequence
                if is_indexed(at, entries[-1].offset if entries else None):
                    entries.append(IndexEntry(last, at, record.timestamp_ns))
                count += 1
                at += file.write(encode(record))
                record = next(records, None)
            file.seek(0)
            file.write(encode_header(SegmentHeader(base, first.timestamp_ns, first.sequence, last)))
        self.file(f"{base:020}.idx", encode_index(Index(base, tuple(entries))))
        return record, last

    def _fits(self, at: int, count: int) -> bool:
        return at - HEADER_BYTES < self._bytes_max and count < self._records_max

    def file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Write one whole."""
        with self._durable(name, mode) as file:
            file.write(data)

    @contextmanager
    def _durable(self, name: str, mode: int) -> Iterator[BinaryIO]:
        """A new file, under this name once it is written and synced."""
        temporary = os.path.join(self._folder, f"{name}.tmp")
        with new_file(temporary, mode=mode) as file:
            yield file
        self._made.append(f"{name}.tmp")
        os.rename(temporary, os.path.join(self._folder, name))
        self._made[-1] = name
