"""persist-queue's ``Queue``: chunks of items one behind the other, and where its two ends are.

::

    info               {chunksize, size, tail: [file, items, offset], head: [file, items, offset]}
    q00000, q00001 …   items, as its serializer frames them

``tail`` is the first item that is not over (an item that was fetched without a ``task_done`` is
not), ``head`` is where the next one goes: bytes behind it were never finished. The form of ``info``
shows the serializer: pickles (the default) say where they end, JSON has lines, msgpack a length
before each item.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple, Self

import msgpack

from ...errors import SegmentCorruptError, StorageError, UsageError
from ...segments.item import Damage
from ...segments.source import FileSource, Source
from .entries import CONTENT_TYPE, PICKLE, Entry, Mark, SourceItem, Unreadable, digest
from .pickle_scan import end_of_pickle, plain_value

__all__ = ["ChunkFiles", "is_chunk_folder"]

_CHUNK: Final = re.compile(r"q(\d{5,})", re.ASCII)
_INFO: Final = "info"
_INFO_BYTES_MAX: Final = 4096
_CHUNK_BYTES_MAX: Final = 256 << 20
_BLOCK: Final = 1 << 20  # one read
_NOT_WHOLE: Final = frozenset(
    {
        "the pickle is not whole",
        "a line without end",
        "the item is not whole",
    }
)
_GONE_MAX: Final = 1000  # missing files that are reported one by one
_LENGTH_BYTES: Final = 4
_CBOR_MAP: Final = 0xA4
# The offsets of an item and behind it, and behind its frame, from an offset on.
Framing = Callable[[bytes, int], tuple[int, int, int]]


class _Ends(NamedTuple):
    """File and offset of the first item, and of where the next one goes."""

    tail: tuple[int, int]
    head: tuple[int, int]


class ChunkFiles:
    """A folder of persist-queue's ``Queue`` as a source."""

    kind = "persist-queue"
    mark: Mark | None = None
    queues: Sequence[str] = ()

    def __init__(self, folder: str) -> None:
        self.path = folder
        self.source_id = folder  # an item has neither number nor time, and every queue a q00000
        self.left_out: Counter[str] = Counter()
        self._chunks = _chunks(folder)
        self.total_bytes = sum(os.stat(path).st_size for path in self._chunks.values())
        self._content_type = PICKLE
        self._ends: _Ends | None = None
        self._problem: Unreadable | None = None
        self._read_info(os.path.join(folder, _INFO))

    def _read_info(self, path: str) -> None:
        if not os.path.exists(path):
            return
        with FileSource(path) as source:
            raw = source.read(0, _INFO_BYTES_MAX)
        try:
            self._content_type, value = _decode_info(raw)
            self._ends = _ends_of(value)
        except UsageError:
            raise
        except (
            SegmentCorruptError,
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
            OverflowError,
            msgpack.exceptions.UnpackException,
        ) as exc:
            why = str(exc)[:200]
            reason = f"the position cannot be read ({why}): all items there are count as waiting"
            self._problem = Unreadable(_INFO, Damage(0, len(raw), reason))

    @classmethod
    def opened(cls, path: str) -> Self | None:
        """See ``Foreign``."""
        return cls(path) if os.path.isdir(path) and is_chunk_folder(path) else None

    def holds(self, mark: Mark) -> bool:
        """See ``Foreign``: such a queue is quickly read again."""
        return False

    def entries(self, after: Mark | None = None) -> Iterator[SourceItem]:
        """See ``Foreign``; ``after`` is ignored."""
        if self._problem is not None:
            yield self._problem
        numbers = sorted(self._chunks)
        ends = self._ends
        if ends is not None:
            numbers = [n for n in numbers if ends.tail[0] <= n <= ends.head[0]]
            for gone in islice(_gone(numbers, *ends), _GONE_MAX):
                yield Unreadable(f"q{gone:05}", Damage(0, 0, "the file is missing, with its items"))
        for number in numbers:
            yield from self._chunk(number)

    def _chunk(self, number: int) -> Iterator[SourceItem]:
        name = os.path.basename(self._chunks[number])
        with FileSource(self._chunks[number]) as source:
            if source.size > _CHUNK_BYTES_MAX:
                yield Unreadable(name, Damage(0, source.size, "larger than 256 MiB"))
                return
            at, end = 0, source.size
            if self._ends is not None:
                tail, head = self._ends
                at = tail[1] if number == tail[0] else 0
                if number == head[0]:
                    if head[1] > end:
                        reason = f"the file ends before {head[1]}, where its last item does"
                        yield Unreadable(name, Damage(end, head[1] - end, reason))
                    end = min(end, head[1])
            yield from self._items(name, source, at, end)

    def _items(self, name: str, source: Source, start: int, end: int) -> Iterator[SourceItem]:
        """The items of a chunk, read block by block; only a large item takes several blocks."""
        framing = _FRAMINGS[self._content_type]
        data, at, count = b"", 0, _BLOCK  # ``start`` is where ``data`` begins
        while start + at < end:
            try:
                first, last, following = framing(data, at)
            except SegmentCorruptError as exc:
                left = end - start - at
                is_cut = at == len(data) or exc.reason in _NOT_WHOLE
                if is_cut and len(data) - at < left:
                    count = _BLOCK if at else 2 * count
                    data, start, at = source.read(start + at, min(count, left)), start + at, 0
                    continue
                reason = f"{exc.reason}; where the next item begins is unknown"
                yield Unreadable(name, Damage(start + at, left, reason))
                return
            item, begin = data[first:last], start + at
            yield Entry(
                name,
                begin,
                start + following,
                f"{name}:{begin}:{digest(item)}",
                item,
                headers={CONTENT_TYPE: self._content_type},
            )
            at = following


def _gone(numbers: Sequence[int], tail: tuple[int, int], head: tuple[int, int]) -> Iterator[int]:
    """Numbers of files between the two ends that are missing; the last one need not exist."""
    for before, number in pairwise([tail[0] - 1, *numbers, max(head[0], tail[0] - 1)]):
        yield from range(before + 1, number)


def is_chunk_folder(folder: str) -> bool:
    """Whether a folder looks like one of these queues."""
    try:
        return bool(_chunks(folder))
    except StorageError:
        return False


def _chunks(folder: str) -> dict[int, str]:
    try:
        names = os.listdir(folder)
    except OSError as exc:
        raise StorageError(f"cannot list {folder!r}: {exc.strerror}") from exc
    found = {name: match for name in names if (match := _CHUNK.fullmatch(name)) is not None}
    return {int(match[1]): os.path.join(folder, name) for name, match in found.items()}


# --- info -------------------------------------------------------------------------------------


def _decode_info(raw: bytes) -> tuple[str, Any]:
    """The content type that the serializer stands for, and the value."""
    if raw[:1] == b"\x80":
        return PICKLE, plain_value(raw)
    if raw[:1] == b"{":
        return "application/json", json.loads(raw)
    said = int.from_bytes(raw[:_LENGTH_BYTES], "little")
    if not said or said != len(raw) - _LENGTH_BYTES:
        raise ValueError("expected a pickle, JSON or msgpack")
    if raw[_LENGTH_BYTES] == _CBOR_MAP:
        raise UsageError("a queue with the serializer cbor2 cannot be imported: drain it instead")
    return "application/msgpack", msgpack.unpackb(raw[_LENGTH_BYTES:])


def _ends_of(info: Any) -> _Ends:
    ends = []
    for name in ("tail", "head"):
        number, _, offset = info[name]
        if type(number) is not int or type(offset) is not int or number < 0 or offset < 0:
            raise ValueError(f"{name} is not a position in a file")
        ends.append((number, offset))
    if ends[0] > ends[1]:
        raise ValueError("tail lies behind head")
    return _Ends(*ends)


# --- items ------------------------------------------------------------------------------------


def _pickled(data: bytes, at: int) -> tuple[int, int, int]:
    end = end_of_pickle(data, at)
    return at, end, end


def _line(data: bytes, at: int) -> tuple[int, int, int]:
    end = data.find(b"\n", at)
    if end < 0:
        raise SegmentCorruptError("a line without an end", offset=at, reason="a line without end")
    return at, end, end + 1


def _sized(data: bytes, at: int) -> tuple[int, int, int]:
    first = at + _LENGTH_BYTES
    end = first + int.from_bytes(data[at:first], "little")
    if end > len(data) or first > len(data):
        raise SegmentCorruptError("not whole", offset=at, reason="the item is not whole")
    return first, end, end


_FRAMINGS: Final[dict[str, Framing]] = {
    PICKLE: _pickled,
    "application/json": _line,
    "application/msgpack": _sized,
}
