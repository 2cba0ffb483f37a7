"""Messages between zeros: version 1 of RabbitMQ's shared message store, read for import.

::

    message := size:8 id:16 body:(size - 16) 255:1     big-endian; size + 9 bytes in all

There is no header, no checksum and no mark for a hole: holes are zeros, or what was there before.
Whether bytes are a message is a guess (``_framed``) that the store's index can correct, as a
``Verdict``. ``docs/formats/rdq.md`` has the rules.

What is no message is passed over byte by byte. A size that fits into the file begins with a few
zeros, though, so the places where one can begin are found by a search for runs of zeros, and of a
run only the last places count. ``_candidates`` has all of this; its callers see places.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, TypeAlias

from ...errors import SegmentCorruptError, UsageError
from ..item import Damage, Hole, Item, Record, Torn
from ..source import Source
from ..window import ReadAhead
from .foreign import ForeignFormat

__all__ = ["FORMAT", "Judge", "Rdq", "Verdict", "store_files"]

_ID_BYTES: Final = 16
_SIZE_BYTES: Final = 8
_HEAD_BYTES: Final = _SIZE_BYTES + _ID_BYTES
_FRAME_BYTES: Final = _SIZE_BYTES + 1  # what size does not count: itself and the end byte
_LEAST_BYTES: Final = _ID_BYTES + _FRAME_BYTES
_END: Final = b"\xff"
_ZERO: Final = b"\0"


class Verdict(Enum):
    """An entry of the index: a message at an offset."""

    VALID = 1  # it is there
    PREVIOUSLY_VALID = 2  # it is there, and nobody refers to it any more
    INVALID = 3  # there is no such message, or it is elsewhere


Judge: TypeAlias = Callable[[bytes, int, int], Verdict]  # of an id, an offset and a size


@dataclass(frozen=True, slots=True)
class Rdq:
    """The codec. With ``verdict`` only what it calls valid is a record.

    It is asked about an id, the offset of its message and the size of the whole record.
    """

    verdict: Judge | None = None

    name: ClassVar[str] = "rdq"
    suffix: ClassVar[str] = ".rdq"
    data_offset: ClassVar[int] = 0

    def encode(self, id: bytes, body: bytes) -> bytes:
        """The message's bytes."""
        if len(id) != _ID_BYTES:
            raise UsageError(f"a message's id has {_ID_BYTES} bytes, not {len(id)}")
        size = _ID_BYTES + len(body)
        return b"".join((size.to_bytes(_SIZE_BYTES, "big"), id, body, _END))

    def decode(self, raw: bytes, offset: int = 0) -> Record:
        """See ``Format``."""
        size = int.from_bytes(raw[:_SIZE_BYTES], "big")
        total = size + _FRAME_BYTES
        if size < _ID_BYTES:
            raise _corrupt(offset, "invalid_size")
        if total > len(raw):
            raise _corrupt(offset, "torn_tail")
        if raw[total - 1] != _END[0]:
            raise _corrupt(offset, "bad_trailer")
        id = raw[_SIZE_BYTES:_HEAD_BYTES]
        return Record(offset, total, raw[_HEAD_BYTES : total - 1], id=id)

    def scan(
        self, source: Source, start: int | None = None, *, bodies: bool = True
    ) -> Iterator[Item]:
        """See ``Format``. Zeros are holes, and so is what is previously valid."""
        window = ReadAhead(source)
        done = start or 0
        while done < window.size:
            item = self._next(window, done, bodies)
            if item is None:
                yield from self._last(window, done)
                return
            if item.offset > done:
                yield Hole(done, item.offset - done)
            yield item
            done = item.offset + item.size

    def salvage(self, source: Source) -> Iterator[Item]:
        """See ``Format``. Each byte between messages is tried."""
        window = ReadAhead(source)
        seen: set[bytes] = set()
        done = 0
        while (item := self._search(window, done, seen)) is not None:
            if item.offset > done:
                yield _gap(window, done, item.offset, seen)
            if isinstance(item, Record):
                seen.add(item.id)
            yield item
            done = item.offset + item.size
        if done < window.size:
            yield from _tail(window, done) or [_gap(window, done, window.size, seen)]

    def verify(self, source: Source) -> list[Damage]:
        """See ``Format``."""
        return [
            Damage(item.offset, item.size, "torn_tail") if isinstance(item, Torn) else item
            for item in self.salvage(source)
            if isinstance(item, Damage | Torn)
        ]

    def _next(self, window: ReadAhead, done: int, bodies: bool) -> Record | Hole | None:
        """The message at ``done``, or behind the zeros there."""
        item = self._accept(window, done, frozenset(), bodies)
        if item is not None:
            return item
        first, behind = _edge(window, done)
        for at in range(max(first, done + 1), behind):
            item = self._accept(window, at, frozenset(), bodies)
            if item is not None:
                return item
        return None

    def _last(self, window: ReadAhead, done: int) -> Iterator[Item]:
        """The end of a scan: no message follows at once. If one does later, this is damage."""
        tail = _tail(window, done)
        if tail and self._search(window, done, frozenset()) is None:
            yield from tail
            return
        first, _ = _edge(window, done)
        if first > done:
            yield Hole(done, first - done)
        raise _corrupt(first, "no_record")

    def _search(self, window: ReadAhead, start: int, seen: Set[bytes]) -> Record | Hole | None:
        """The first that is accepted at ``start`` or later."""
        for at in _candidates(window, start):
            item = self._accept(window, at, seen, bodies=True)
            if item is not None:
                return item
        return None

    def _accept(
        self, window: ReadAhead, at: int, seen: Set[bytes], bodies: bool
    ) -> Record | Hole | None:
        size = _framed(window, at)
        if not size:
            return None
        id = _id(window, at)
        if id in seen:
            return None
        verdict = Verdict.VALID if self.verdict is None else self.verdict(id, at, size)
        if verdict is Verdict.INVALID:
            return None
        if verdict is Verdict.PREVIOUSLY_VALID:
            return Hole(at, size)
        return self.decode(window.read(at, size), at) if bodies else Record(at, size, b"", id=id)


def _framed(window: ReadAhead, at: int) -> int:
    """The size of the message at ``at``; 0 if there cannot be one."""
    size = _total(window, at)
    if not size or at + size > window.size or window.peek(at + size - 1) != _END:
        return 0
    return size


def _total(window: ReadAhead, at: int) -> int:
    """Size of the message at ``at``; 0 if there is none."""
    size = int.from_bytes(window.read(at, _HEAD_BYTES)[:_SIZE_BYTES], "big")
    return size + _FRAME_BYTES if size >= _ID_BYTES else 0


def _id(window: ReadAhead, at: int) -> bytes:
    return window.read(at, _HEAD_BYTES)[_SIZE_BYTES:]


def _candidates(window: ReadAhead, start: int) -> Iterator[int]:
    """All places from ``start`` on where a size can begin, in order.

    Its first bytes are zeros, as many as the size of the file leaves, and its eight bytes are not
    all zeros: so it begins in one of the last places of a run of zeros.
    """
    zeros = _SIZE_BYTES - (window.size.bit_length() + 7) // 8
    runs = re.compile(rb"\0{%d,}" % zeros)
    for block_at, block in window.blocks(start, _SIZE_BYTES - 1):
        for run in runs.finditer(block):
            first = max(run.start(), run.end() - _SIZE_BYTES + 1)
            # What does not end within the block begins the next one.
            last = min(run.end() - zeros, len(block) - _SIZE_BYTES)
            yield from range(block_at + first, block_at + last + 1)


def _edge(window: ReadAhead, done: int) -> tuple[int, int]:
    """Where a size that begins in the zeros at ``done`` can begin, and where the zeros end."""
    behind = done + window.run(done, _ZERO)
    return max(done, behind - _SIZE_BYTES + 1), behind


def _tail(window: ReadAhead, done: int) -> list[Item]:
    """The rest of the file as zeros or a torn message; nothing if it is neither.

    Directly behind a message there is one place where the torn one can begin. Behind a hole the
    first that has a size is taken for it: each later one has a larger size.
    """
    first, behind = _edge(window, done)
    is_hole = behind - done >= _SIZE_BYTES  # fewer zeros are the beginning of a size
    if behind == window.size:
        return [Hole(done, behind - done) if is_hole else Torn(done, behind - done)]
    for at in range(first, behind if is_hole else min(behind, done + 1)):
        size = _total(window, at)
        if at + max(size, _SIZE_BYTES) > window.size:
            hole = [Hole(done, at - done)] if at > done else []
            return [*hole, Torn(at, window.size - at)]
        if size:
            break
    return []


def _gap(window: ReadAhead, start: int, end: int, seen: Set[bytes]) -> Hole | Damage:
    """Items that lie between two messages."""
    if start + window.run(start, _ZERO) >= end:
        return Hole(start, end - start)
    reason = "no_record"
    if _framed(window, start):
        reason = "duplicate_id" if _id(window, start) in seen else "not_in_index"
    return Damage(start, end - start, reason)


def _corrupt(offset: int, reason: str) -> SegmentCorruptError:
    return SegmentCorruptError(f"no message at {offset}: {reason}", offset=offset, reason=reason)


def store_files(folder: str) -> list[tuple[str, str]]:
    """Path and name of the files of a message store, by their numbers: of this version or the next.

    A store that was converted has files of both.
    """

    def number(name: str) -> tuple[bool, int, str]:
        stem = name[:-4]
        is_number = stem.isascii() and stem.isdecimal()
        return not is_number, int(stem[:40]) if is_number else 0, name

    names = sorted(
        (name for name in os.listdir(folder) if name.endswith((".sqs", ".rdq"))), key=number
    )
    return [(os.path.join(folder, name), name) for name in names]


def _is_sign(name: str) -> bool:
    return name.endswith(Rdq.suffix)


FORMAT: Final = ForeignFormat(
    name=Rdq.name,
    codec=Rdq,
    files_in=store_files,
    suffix=Rdq.suffix,
    is_sign=_is_sign,
    has_numbers=False,
)
