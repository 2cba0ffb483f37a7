"""The directory of a Rust queue: its data files in their true order. Reading writes nothing.

::

    manifest.1, manifest.2, manifest.current   hints, see index.py
    YYYY/MM/DD/YYYYMMDD-NNNN.data              records, see codec.py
    YYYY/MM/DD/YYYYMMDD-NNNN.index             hints

NNNN counts all files of a queue, on from day to day. Names sort otherwise: beyond 9999, and when
the clock steps back over midnight. So files are ordered by number; only where a number occurs twice
(the original begins anew if it finds no manifest) by day first.

Only records are believed. The manifest is compared with them, no more: it is as old as the last
roll, and of its absolute paths the last four parts count, for directories get moved.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NoReturn

from ....errors import CorruptionError, SegmentCorruptError, StorageError
from ...item import Item, Record
from ...source import FileSource
from .codec import UNKNOWN_SEQUENCE, RustQueue, wrong_with
from .index import (
    CURRENT_NAME,
    INDEX_INTERVAL,
    SLOT_NAMES,
    Index,
    Manifest,
    SealedFile,
    build_index,
    decode_current,
    decode_index,
    decode_manifest,
)
from .reader import Variant

__all__ = ["DataFile", "Finding", "QueueDirectory"]

_NAME: Final = re.compile(r"(\d{4,})/(\d\d)/(\d\d)/(\d{8,})-(\d{4,10})\.data", re.ASCII)
_DEPTH_MAX: Final = 8  # of folders that are looked at; a queue's are three
_HINT_BYTES_MAX: Final = 1 << 26  # a million files in a manifest; more is none


@dataclass(frozen=True, slots=True)
class DataFile:
    """One of them. ``name`` is its path within the directory."""

    path: str
    name: str
    day: str  # YYYYMMDD
    number: int

    @property
    def index_path(self) -> str:
        """Path of the index that may lie beside it."""
        return f"{self.path.removesuffix('.data')}.index"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a directory that an operator may want to know."""

    path: str
    reason: str


class QueueDirectory:
    """Contents of a folder, as of now: ``files`` in order, ``manifest``, ``findings``.

    Args:
        variant: see ``RustQueue``. None finds out file by file.
        start_sequence: of the first record of the first file. The original counts from zero, also
            where older files have been removed.

    Raises:
        StorageError: it cannot be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        variant: Variant | None = None,
        *,
        start_sequence: int = 0,
    ) -> None:
        self.path = os.fspath(path)
        self._variant = variant
        self._start_sequence = start_sequence
        self._findings: list[Finding] = []
        self.files = self._find_files()
        self.manifest = self._find_manifest()
        self._indexes = {file.name: self._find_index(file) for file in self.files}
        self._compare()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Contents by names and hints. ``verify`` reads the files, too."""
        return tuple(self._findings)

    def scan(self) -> Iterator[tuple[DataFile, Item]]:
        """All records, holes and torn ends.

        Raises:
            SegmentCorruptError: at the first byte that is not what was written.
        """
        sequence = self._start_sequence
        for file in self._numbered():
            if file is None:
                sequence = UNKNOWN_SEQUENCE
                continue
            with FileSource(file.path) as source:
                try:
                    for item in RustQueue(self._variant, start_sequence=sequence).scan(source):
                        if isinstance(item, Record) and sequence >= 0:
                            sequence = item.sequence + 1
                        yield file, item
                except SegmentCorruptError as exc:
                    raise SegmentCorruptError(
                        f"{file.path}: {exc}", offset=exc.offset, reason=exc.reason
                    ) from exc

    def salvage(self) -> Iterator[tuple[DataFile, Item]]:
        """All that can still be read, and the damage. Files that are gone are among ``findings``.

        Raises:
            StorageError: a file cannot be read.
        """
        sequence = self._start_sequence
        for file in self._numbered():
            if file is None:
                sequence = UNKNOWN_SEQUENCE
                continue
            codec = RustQueue(self._variant, start_sequence=sequence)
            with FileSource(file.path) as source:
                for item, following in codec.salvage_numbered(source):
                    sequence = following
                    yield file, item

    def verify(self) -> list[Finding]:
        """All that is wrong, in names, hints and records. Reads every byte."""
        found = list(self._findings)
        sealed = {_name_in(file.path): file for file in self._sealed()}
        for file in self.files:
            count = 0
            unseen = {entry.offset for entry in self._indexes[file.name].entries}
            with FileSource(file.path) as source:
                for item in RustQueue(self._variant).salvage(source):
                    if damage := wrong_with(item):
                        found.append(Finding(file.path, f"{damage.offset}: {damage.reason}"))
                    if isinstance(item, Record):
                        count += 1
                        unseen.discard(item.offset)
            if unseen:
                found.append(Finding(file.index_path, f"no record begins at {min(unseen)}"))
            if entry := sealed.get(file.name):
                listed = entry.last_sequence - entry.first_sequence + 1
                if listed != count:
                    reason = f"{count} records, where the manifest has {listed}"
                    found.append(Finding(file.path, reason))
        return found

    def missing(self, file: DataFile, records: int, end: int) -> str:
        """Why records must be missing at the end of a file in which nothing is damaged; or "".

        Args:
            file: of ``files``.
            records: how many it has.
            end: behind the last of them.
        """
        last = max((entry.offset for entry in self._indexes[file.name].entries), default=-1)
        if last >= end:
            return f"no record begins at {last}, where the index has one"
        for sealed in self._sealed():
            listed = sealed.last_sequence - sealed.first_sequence + 1
            if _name_in(sealed.path) == file.name and listed > records:
                return f"{records} records, where the manifest has {listed}"
        return ""

    def index(self, file: DataFile, interval: int = INDEX_INTERVAL) -> Index:
        """The index of a file, made from its records: those on disk are often empty.

        Its numbers count from the first record of the file; of those that are unknown it has none.
        """
        with FileSource(file.path) as source:
            return build_index(RustQueue(self._variant).salvage(source), interval)

    # --- what is there --------------------------------------------------------------------------

    def _find_files(self) -> tuple[DataFile, ...]:
        files = []
        for folder, folders, names in os.walk(self.path, onerror=_refuse):
            folders.sort()
            if folders and os.path.relpath(folder, self.path).count(os.sep) + 1 >= _DEPTH_MAX:
                self._note(folder, "folders deeper than a queue's are not read")
                folders.clear()
            for name in sorted(names):
                if not name.endswith(".data"):
                    continue
                path = os.path.join(folder, name)
                inner = os.path.relpath(path, self.path).replace(os.sep, "/")
                match = _NAME.fullmatch(inner)
                if not match or not os.path.isfile(path) or os.path.islink(path):
                    self._note(path, "this is no data file of the queue: it is not read")
                    continue
                if match[4] != "".join(match.group(1, 2, 3)):
                    self._note(path, "the directory is that of another day")
                files.append(DataFile(path, inner, match[4], int(match[5])))
        numbers = {file.number for file in files}
        if len(numbers) == len(files):
            return tuple(sorted(files, key=lambda file: file.number))
        return tuple(sorted(files, key=lambda file: (len(file.day), file.day, file.number)))

    def _find_manifest(self) -> Manifest | None:
        slots: dict[int, Manifest] = {}
        for slot, name in SLOT_NAMES.items():
            raw = self._hint(os.path.join(self.path, name))
            if raw is not None:
                try:
                    slots[slot] = decode_manifest(raw)
                except SegmentCorruptError as exc:
                    self._note(os.path.join(self.path, name), exc.reason)
        current = os.path.join(self.path, CURRENT_NAME)
        raw = self._hint(current)
        try:
            named = decode_current(raw) if raw is not None else 0
        except SegmentCorruptError as exc:
            self._note(current, exc.reason)
            named = 0
        if named in slots:
            return slots[named]
        if named:
            self._note(current, f"names {SLOT_NAMES[named]}, which cannot be read")
        return max(slots.values(), key=lambda manifest: manifest.next_sequence, default=None)

    def _find_index(self, file: DataFile) -> Index:
        """The one beside the file; an empty one if none can be read."""
        raw = self._hint(file.index_path)
        try:
            return decode_index(raw) if raw is not None else Index(0)
        except SegmentCorruptError as exc:
            self._note(file.index_path, exc.reason)
            return Index(0)

    def _compare(self) -> None:
        """Findings in the names, one beside the other and beside the manifest."""
        if self.files and self.files[0].number > 1:
            self._note(self.files[0].path, "the files before this one are gone")
        for one, two in pairwise(self.files):
            if two.number > one.number + 1:
                self._note(
                    two.path, f"{two.number - one.number - 1} files before this one are gone"
                )
            if two.number <= one.number:
                self._note(two.path, "the numbers begin anew: the writer found no manifest")
            if (len(two.day), two.day) < (len(one.day), one.day):
                self._note(two.path, "the clock has stepped back")
        names = {file.name for file in self.files}
        for sealed in self._sealed():
            if _name_in(sealed.path) not in names:
                self._note(_name_in(sealed.path), "the manifest has this file; it is gone")

    def _numbered(self) -> Iterator[DataFile | None]:
        """The files, and None where some are gone: nobody knows how many records they had."""
        for i, file in enumerate(self.files):
            if i and file.number > self.files[i - 1].number + 1:
                yield None
            yield file

    def _sealed(self) -> tuple[SealedFile, ...]:
        return self.manifest.sealed if self.manifest else ()

    def _hint(self, path: str) -> bytes | None:
        """A small file, if it is there. One that is something else is as good as gone."""
        if not os.path.lexists(path):
            return None
        try:
            with FileSource(path) as source:
                return source.read(0, min(source.size, _HINT_BYTES_MAX))
        except (CorruptionError, StorageError) as exc:
            self._note(path, str(exc))
            return None

    def _note(self, path: str, reason: str) -> None:
        self._findings.append(Finding(path, reason))


def _name_in(path: str) -> str:
    """The end of a path in the manifest, which stays when the directory is moved."""
    return "/".join(path.replace("\\", "/").split("/")[-4:])


def _refuse(exc: OSError) -> NoReturn:
    raise StorageError(f"cannot read {exc.filename!r}: {exc.strerror}") from exc
