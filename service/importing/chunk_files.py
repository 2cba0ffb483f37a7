"""persist-queue's ``Queue``: chunks of items one behind the other, and where its two ends are.

::

    info               {chunksize, size, tail: [file, items, offset], head: [file, items, offset]}
    q00000, q00001 …   items, as its serializer frames them

``tail`` is the first item that is not over (what was got without a ``task_done`` is not), ``head``
is where the next one goes: what lies behind was never finished. Which serializer it was, ``info``
tells: pickles (the default) say where they end, JSON has lines, msgpack a length before each item.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from ...errors import SegmentCorruptError, StorageError, UsageError
from ...segments.formats.item import Damage
from ...segments.source import FileSource
from .entries import CONTENT_TYPE, PICKLE, Entry, Mark, Told, Unreadable, digest
from .pickled import end_of_pickle, plain_value

__all__ = ["ChunkFiles", "is_chunk_folder"]

_CHUNK: Final = re.compile(r"q(\d{5,})", re.ASCII)
_INFO: Final = "info"
_INFO_BYTES_MAX: Final = 4096
_CHUNK_BYTES_MAX: Final = 256 << 20
_LENGTH_BYTES: Final = 4
_CBOR_MAP: Final = 0xA4
# The offsets of an item and behind it, and behind its frame, from an offset on.
Framing = Callable[[bytes, int], tuple[int, int, int]]


class _Ends(NamedTuple):
    """File and offset of the first item, and of where the next one goes."""

    tail: tuple[int, int]
    head: tuple[int, int]


class ChunkFiles:
    """The source."""

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
        except (SegmentCorruptError, ValueError, KeyError, TypeError) as exc:
            reason = f"the position cannot be read ({exc}): all items there are count as waiting"
            self._problem = Unreadable(_INFO, Damage(0, len(raw), reason))

    def holds(self, mark: Mark) -> bool:
        """See ``Foreign``: a queue of files is soon read again."""
        return False

    def entries(self, after: Mark | None = None) -> Iterator[Told]:
        """See ``Foreign``; ``after`` is not looked at."""
        if self._problem is not None:
            yield self._problem
        numbers = sorted(self._chunks)
        ends = self._ends
        if ends is not None:
            numbers = [n for n in numbers if ends.tail[0] <= n <= ends.head[0]]
            for gone in sorted(set(range(ends.tail[0], ends.head[0])) - set(numbers))[:1000]:
                yield Unreadable(f"q{gone:05}", Damage(0, 0, "the file is gone, and its items"))
        for number in numbers:
            yield from self._chunk(number)

    def _chunk(self, number: int) -> Iterator[Told]:
        name = os.path.basename(self._chunks[number])
        with FileSource(self._chunks[number]) as source:
            if source.size > _CHUNK_BYTES_MAX:
                yield Unreadable(name, Damage(0, source.size, "larger than 256 MiB"))
                return
            data = source.read(0, source.size)
        at, end = 0, len(data)
        if self._ends is not None:
            tail, head = self._ends
            at = tail[1] if number == tail[0] else 0
            if number == head[0]:
                if head[1] > end:
                    reason = f"the file ends before {head[1]}, where its last item does"
                    yield Unreadable(name, Damage(end, head[1] - end, reason))
                end = min(end, head[1])
        yield from self._items(name, data[:end], at)

    def _items(self, name: str, data: bytes, at: int) -> Iterator[Told]:
        framing = _FRAMINGS[self._content_type]
        while at < len(data):
            try:
                first, last, following = framing(data, at)
            except SegmentCorruptError as exc:
                reason = f"{exc.reason}; where the next item begins cannot be told"
                yield Unreadable(name, Damage(at, len(data) - at, reason))
                return
            item = data[first:last]
            yield Entry(
                name, at, following, f"{name}:{at}:{digest(item)}", item,
                headers={CONTENT_TYPE: self._content_type},
            )  # fmt: skip
            at = following


def is_chunk_folder(folder: str) -> bool:
    """Whether a folder looks like such a queue's."""
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
    """Which serializer has written it, and what it says."""
    if raw[:1] == b"\x80":
        return PICKLE, plain_value(raw)
    if raw[:1] == b"{":
        return "application/json", json.loads(raw)
    if int.from_bytes(raw[:_LENGTH_BYTES], "little") != len(raw) - _LENGTH_BYTES:
        raise ValueError("it is neither a pickle, nor JSON, nor msgpack")
    if raw[_LENGTH_BYTES] == _CBOR_MAP:
        raise UsageError("a queue with the serializer cbor2 cannot be imported: drain it instead")
    return "application/msgpack", msgpack.unpackb(raw[_LENGTH_BYTES:])


def _ends_of(info: Any) -> _Ends:
    ends = []
    for name in ("tail", "head"):
        number, _, offset = info[name]
        if type(number) is not int or type(offset) is not int or number < 0 or offset < 0:
            raise ValueError(f"{name} is {info[name]!r}")
        ends.append((number, offset))
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
