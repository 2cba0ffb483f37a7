"""A journal's log file as a whole: walked frame by frame, scanned, saved and verified.

A frame that cannot be believed is passed over by its size if that leads to another, else by looking
for the next one whose checks hold. That search compares two bytes and computes a checksum only
where they fit. Of a file made for it many may fit, each as long as the file: ``Credit`` bounds what
all that fail may cover, so that no file takes longer than in proportion to its size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ...errors import SegmentCorruptError
from ..item import Damage, Item, Record, Torn
from ..source import Source
from .log_format import (
    CHECK_BYTES,
    HEAD_BYTES,
    HEADER_BYTES,
    Head,
    LogRecord,
    check_frame,
    decode_frame,
    decode_head,
    decode_header,
)

__all__ = ["Credit", "JournalLog", "Walk", "find_frame", "frame_behind"]

BLOCK_BYTES: Final = 256 << 10
_CREDIT_BYTES: Final = 64 << 20
_CREDIT_FILES: Final = 16
_starts: Final = re.compile(rb"[FE]\x01").finditer


class Credit:
    """Bytes of one file that may be covered by frames that turn out to be none."""

    __slots__ = ("left",)

    def __init__(self, source: Source) -> None:
        self.left = _CREDIT_BYTES + _CREDIT_FILES * source.size

    @property
    def is_spent(self) -> bool:
        """Only a file made for it has so many."""
        return self.left <= 0


class Walk:
    """From frame to frame of a source, whose bytes are read in blocks. ``at``: where it is."""

    __slots__ = ("_block", "_block_at", "at", "source")

    def __init__(self, source: Source, at: int = HEADER_BYTES) -> None:
        self.source = source
        self.at = at
        self._block = b""
        self._block_at = 0

    def head(self) -> Head | None:
        """Head of the frame at ``at``; None if not all of it is there, or nothing is.

        Raises:
            SegmentCorruptError: there is no frame.
        """
        left = self.source.size - self.at
        if left < HEAD_BYTES:
            return None
        begin = self.at - self._block_at
        if not 0 <= begin <= len(self._block) - HEAD_BYTES:
            self._load(HEAD_BYTES)
            begin = 0
        head = decode_head(self._block, begin, self.at)
        return head if head.size <= left else None

    def frame(self, head: Head) -> bytes:
        """All bytes of the frame at ``at``. It is not left."""
        begin = self.at - self._block_at
        if begin + head.size > len(self._block):
            self._load(head.size)
            begin = 0
        return self._block[begin : begin + head.size]

    def forget(self) -> None:
        """Read again what was read before: a writer may have been in the middle of it."""
        self._block = b""

    def _load(self, least: int) -> None:
        self._block_at = self.at
        self._block = self.source.read(self.at, max(least, BLOCK_BYTES))


def find_frame(source: Source, start: int, credit: Credit | None = None) -> int | None:
    """Where the first frame, or end, at or behind ``start`` lies that is whole and undamaged."""
    at = start
    credit = Credit(source) if credit is None else credit
    while at < source.size - HEAD_BYTES:
        block = source.read(at, BLOCK_BYTES)
        found = _candidate(source, block, at, credit)
        if found is not None:
            return found
        at += max(1, len(block) - HEAD_BYTES + 1)  # a head may lie across the border
    return None


def frame_behind(
    source: Source, at: int, head: Head | None, credit: Credit | None = None
) -> int | None:
    """Where the next whole frame lies behind a bad one at ``at``, of which ``head`` may be good.

    Its size is believed if a whole frame, or the end, follows there. To look within it first would
    bring up frames that its records hold: a journal may be kept in a journal.

    Args:
        source: the file.
        at: offset of the bad frame.
        head: its head, if that can be read.
        credit: how many bytes may be looked at; None: no limit.
    """
    if head is not None:
        behind = at + head.size
        if behind >= source.size:
            return None
        if _is_whole(source, behind):
            return behind
    return find_frame(source, at + 1, credit)


def _is_whole(source: Source, at: int) -> bool:
    walk = Walk(source, at)
    try:
        head = walk.head()
        if head is not None:
            check_frame(head, walk.frame(head), at)
    except SegmentCorruptError:
        return False
    return head is not None


def _candidate(source: Source, block: bytes, block_at: int, credit: Credit) -> int | None:
    for hit in _starts(block):
        begin = hit.start()
        if begin > len(block) - HEAD_BYTES or credit.is_spent:
            break
        try:
            head = decode_head(block, begin, block_at + begin)
            if head.size > source.size - block_at - begin:
                continue
            credit.left -= head.size
            frame = source.read(block_at + begin, head.size)
            if len(frame) == head.size:
                check_frame(head, frame)
                return block_at + begin
        except SegmentCorruptError:
            continue  # it only looked like one
    return None


def _record(record: LogRecord, head: Head, at: int) -> Record:
    return Record(
        at,
        head.size,
        record.payload,
        sequence=record.sequence,
        timestamp_ns=record.time_us * 1000,
        expires_ns=record.expires_us * 1000,
        headers=record.headers,
    )


class JournalLog:
    """See ``Format``. Offset and size of a record are those of its frame.

    Without bodies, a frame is returned as its first record.
    """

    name = "journal"
    suffix = ".log"
    data_offset = HEADER_BYTES

    def decode(self, raw: bytes, offset: int = 0) -> Record:
        """See ``Format.decode``: the first record of a frame."""
        if len(raw) < HEAD_BYTES:
            raise SegmentCorruptError("journal: not a whole head", offset=offset, reason="short")
        head = decode_head(raw, 0, offset)
        records = decode_frame(head, raw[: head.size], offset)
        if not records:
            raise SegmentCorruptError("journal: an end", offset=offset, reason="no record")
        return _record(records[0], head, offset)

    def scan(
        self, source: Source, start: int | None = None, *, bodies: bool = True
    ) -> Iterator[Item]:
        """See ``Format.scan``."""
        if start is None and source.size >= HEADER_BYTES:
            decode_header(source.read(0, HEADER_BYTES))
        walk = Walk(source, HEADER_BYTES if start is None else start)
        while (head := walk.head()) is not None:
            if bodies:
                for record in decode_frame(head, walk.frame(head), walk.at):
                    yield _record(record, head, walk.at)
            elif not head.is_end:
                yield _record(LogRecord(head.first, b"", head.time_us), head, walk.at)
            walk.at += head.size
        if walk.at < source.size:
            yield Torn(walk.at, source.size - walk.at)

    def salvage(self, source: Source) -> Iterator[Item]:
        """See ``Format.salvage``."""
        for item, _ in self._all(source):
            yield item

    def verify(self, source: Source) -> list[Damage]:
        """See ``Format.verify``. Records that are missing are damage of no bytes."""
        found: list[Damage] = []
        following: int | None = None
        try:
            following = decode_header(source.read(0, HEADER_BYTES)).first
        except SegmentCorruptError as exc:
            found.append(Damage(0, min(HEADER_BYTES, source.size), exc.reason))
        for item, head in self._all(source):
            if isinstance(item, Torn):
                found.append(Damage(item.offset, item.size, "torn tail"))
            elif isinstance(item, Damage):
                found.append(item)
            elif head is not None and isinstance(item, Record) and item.sequence == head.first:
                if following is not None and head.first != following:
                    text = f"record {head.first} where {following} should be"
                    found.append(Damage(item.offset, 0, text))
                following = head.first + head.records
        return found

    def _all(self, source: Source) -> Iterator[tuple[Item, Head | None]]:
        """Records that can be read, each with the head of its frame, and damage."""
        walk, credit = Walk(source), Credit(source)
        while walk.at < source.size:
            reason, head = "", None
            try:
                head = walk.head()
                records = [] if head is None else decode_frame(head, walk.frame(head), walk.at)
            except SegmentCorruptError as exc:
                reason, records = exc.reason, []
                credit.left -= head.size if head is not None else 0
            for record in records:
                if head is not None:
                    yield _record(record, head, walk.at), head
            if head is not None and not reason:
                walk.at += head.size
                continue
            yield from self._pass(walk, head, reason, credit)

    def _pass(
        self, walk: Walk, head: Head | None, reason: str, credit: Credit
    ) -> Iterator[tuple[Item, Head | None]]:
        """Go on behind what is wrong at ``walk.at``."""
        at, source = walk.at, walk.source
        behind = None if credit.is_spent else frame_behind(source, at, head, credit)
        if behind is None and (not reason or _ends_in_zeros(source)):
            walk.at = source.size
            yield Torn(at, source.size - at), None
            return
        walk.at = source.size if behind is None else behind
        yield Damage(at, walk.at - at, reason or "a frame that is not whole"), None


def _ends_in_zeros(source: Source) -> bool:
    """Where the last checksum should be: the file's length reached the disk before its bytes."""
    return not source.read(source.size - CHECK_BYTES, CHECK_BYTES).strip(b"\0")
