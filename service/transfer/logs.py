"""Sources that are append-only files, read with the codecs of ``segments``, around damage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Self

from ...errors import SegmentCorruptError, UsageError
from ...segments.detect import DetectedPath, detect
from ...segments.formats.rust_queue.folder import QueueDirectory
from ...segments.item import Damage, Record
from ...segments.source import FileSource
from ..shared.file_reader import FoundItem, Part, bytes_of, name_in, of_part, parts_of
from .entries import CONTENT_TYPE, Entry, Mark, SourceItem, Unreadable, digest

__all__ = ["LogSource", "Rdq", "RustQueue"]

_ERLANG: Final = "application/x-erlang-binary"
_ERLANG_VERSION: Final = 131  # the byte that its terms begin with
_NO_QUEUES: Final[Sequence[str]] = ()


class LogSource(ABC):
    """The files of a path, read once, in order. ``formats`` are those of ``segments`` it reads."""

    kind = ""
    formats: frozenset[str] = frozenset()
    queues = _NO_QUEUES

    def __init__(self, detected: DetectedPath) -> None:
        self._detected = detected
        self.path = detected.path
        self.source_id = ""
        self.total_bytes = bytes_of(detected)
        self.left_out: Counter[str] = Counter()
        self._last: tuple[str, Record] | None = None

    @classmethod
    def opened(cls, path: str) -> Self | None:
        """See ``Foreign``."""
        try:
            detected = detect(path)
        except UsageError:
            return None
        return cls(detected) if detected.format in cls.formats else None

    @property
    def mark(self) -> Mark | None:
        """See ``Foreign``."""
        if self._last is None:
            return None
        file, record = self._last
        return Mark(file, record.offset, digest(record.payload))

    def holds(self, mark: Mark) -> bool:
        """See ``Foreign``."""
        return _part_of(parts_of(self._detected), mark) is not None

    def entries(self, after: Mark | None = None) -> Iterator[SourceItem]:
        """See ``Foreign``."""
        yield from self._beside()
        is_end_damaged = False
        for file, item in self._items(after):
            if isinstance(item, Damage):
                is_end_damaged = True
                yield Unreadable(file, item)
            elif isinstance(item, Record):
                is_end_damaged = False
                found = self._found(file, item)
                if isinstance(found, Entry):
                    self._last = file, item
                if found is not None:
                    yield found
        if after is None and not is_end_damaged:
            yield from self._behind()

    def _behind(self) -> Iterator[Unreadable]:
        """Entries that should follow the end, though that is not damaged."""
        yield from ()

    def _beside(self) -> Iterator[Unreadable]:
        """Damage outside of the segment files."""
        yield from ()

    @abstractmethod
    def _found(self, file: str, record: Record) -> SourceItem | None:
        """The entry that a record holds; None for one that is left out."""

    def _items(self, after: Mark | None) -> Iterator[FoundItem]:
        parts = parts_of(self._detected)
        first = _part_of(parts, after) if after is not None else None
        start = after.offset if after is not None and first is not None else -1
        for part in parts[first or 0 :]:
            with FileSource(part.path) as source:
                for item in of_part(part, source, start if start >= 0 else None, True):
                    if item.offset > start:
                        yield FoundItem(part.name, item)
            start = -1


def _part_of(parts: Sequence[Part], mark: Mark) -> int | None:
    """The number of the file that holds the marked entry, if that is unchanged."""
    for i, part in enumerate(parts):
        if part.name == mark.file:
            with FileSource(part.path) as source:
                try:
                    record = next(part.codec.scan(source, mark.offset), None)
                except SegmentCorruptError:
                    return None
            is_same = isinstance(record, Record) and digest(record.payload) == mark.digest
            return i if is_same else None
    return None


class RustQueue(LogSource):
    """Payloads, and nothing else: the format has no times, headers or marks.

    So equal payloads at equal places of two queues differ by their source id.
    """

    kind = "rust-queue"
    formats = frozenset({"rust-queue"})

    def __init__(self, detected: DetectedPath) -> None:
        super().__init__(detected)
        self.source_id = self.path

    def _beside(self) -> Iterator[Unreadable]:
        if self._detected.is_folder:
            for finding in QueueDirectory(self._detected.path).findings:
                name = name_in(self._detected, finding.path)
                yield Unreadable(name, Damage(0, 0, finding.reason))

    def entries(self, after: Mark | None = None) -> Iterator[SourceItem]:
        """See ``Foreign``. Records that only index or manifest know of are reported."""
        records: Counter[str] = Counter()
        ends: dict[str, int] = {}
        damaged = set()
        for item in super().entries(after):
            if isinstance(item, Entry):
                records[item.file] += 1
                ends[item.file] = item.end
            else:
                damaged.add(item.file)
            yield item
        if not self._detected.is_folder:
            return
        directory = QueueDirectory(self._detected.path)
        names = [name_in(self._detected, file.path) for file in directory.files]
        # What lies before the mark was looked at when the mark was made.
        first = names.index(after.file) + 1 if after is not None and after.file in names else 0
        for name, file in list(zip(names, directory.files, strict=True))[first:]:
            end = ends.get(name, 0)
            if name not in damaged and (why := directory.missing(file, records[name], end)):
                yield Unreadable(name, Damage(end, 0, why))

    def _found(self, file: str, record: Record) -> SourceItem | None:
        if not record.payload:
            damage = Damage(record.offset, record.size, "an empty record reads as the end")
            return Unreadable(file, damage)
        return Entry(
            file,
            record.offset,
            record.offset + record.size,
            f"{file}:{record.offset}:{digest(record.payload)}",
            record.payload,
        )


class Rdq(LogSource):
    """Bodies under their ids. The format does not say which queue they belong to, or whether still.

    Also ``.sqs``, for a store on its way from one to the other.
    """

    kind = "rdq"
    formats = frozenset({"rdq", "sqs"})

    def _found(self, file: str, record: Record) -> SourceItem | None:
        headers = {"message-id": record.id.hex()}
        if record.payload[:1] == bytes((_ERLANG_VERSION,)):
            headers[CONTENT_TYPE] = _ERLANG
        return Entry(
            file,
            record.offset,
            record.offset + record.size,
            record.id.hex(),
            record.payload,
            headers=headers,
        )
