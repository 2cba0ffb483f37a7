"""Opening a journal for writing: where to go on, and what is wrong.

Only the newest file is read, by its heads, and frame by frame behind the position: what is older
was complete before it was left. Only a *torn tail* is cut off: bytes that no whole frame follows,
behind all that is known to be durable. Nothing else is ever cut, or skipped without a report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ...errors import SegmentCorruptError, StorageError
from ..source import FileSource
from .layout import LogFile, position_path
from .log_format import HEADER_BYTES, Head, check_frame, decode_frame, decode_header
from .log_walk import Walk, frame_behind
from .small_files import POSITION_BYTES, IndexEntry, Position, decode_position

__all__ = ["Found", "LogFinding", "examine", "read_position"]

INDEX_EVERY: Final = 256


@dataclass(frozen=True, slots=True)
class LogFinding:
    """Bytes, or with ``size`` 0 records, that are not there as they were written."""

    path: str
    offset: int
    size: int
    reason: str


@dataclass(slots=True)
class Found:
    """The newest file, as it is. ``ends_at``: where the next frame goes; 0: it has no header."""

    following: int
    ends_at: int = 0
    records: int = 0
    time_us: int = 0
    created_us: int = 0  # 0: not known
    torn_bytes: int = 0
    is_complete: bool = False  # no frame may follow in this file
    entries: list[IndexEntry] = field(default_factory=list)
    findings: list[LogFinding] = field(default_factory=list)


def read_position(root: str) -> Position | None:
    """The position known to be durable; None: nothing is."""
    try:
        with FileSource(position_path(root)) as source:
            return decode_position(source.read(0, POSITION_BYTES))
    except StorageError as exc:
        if isinstance(exc.__cause__, FileNotFoundError):
            return None
        raise


def examine(file: LogFile, position: Position | None) -> Found:
    """Read the newest file.

    Raises:
        StorageError: the disk failed; nothing is concluded.
    """
    found = Found(file.first)
    is_here = position is not None and position.file == file.first
    durable_at = position.offset if position is not None and is_here else 0
    with FileSource(file.path) as source:
        header = source.read(0, HEADER_BYTES)
        try:
            first, found.created_us = decode_header(header)
            found.time_us = found.created_us
            if first != file.first:
                reason = f"its header says record {first}"
                found.findings.append(LogFinding(file.path, 0, HEADER_BYTES, reason))
        except SegmentCorruptError as exc:
            if source.size <= HEADER_BYTES and not durable_at:  # it was being made
                found.torn_bytes = source.size
                return found
            found.findings.append(LogFinding(file.path, 0, len(header), exc.reason))
        found.ends_at = min(HEADER_BYTES, source.size)
        _frames(file.path, Walk(source), found, durable_at)
    return found


def _frames(path: str, walk: Walk, found: Found, durable_at: int) -> None:
    while True:
        reason, head = "a frame that is not whole", None
        try:
            head = walk.head()
            if head is not None and walk.at >= durable_at:
                check_frame(head, walk.frame(head), walk.at)
                _look_into(path, walk, found, head)
        except SegmentCorruptError as exc:
            reason = exc.reason
        else:
            if head is not None:
                _take(found, walk, head)
                continue
            if walk.at == walk.source.size:
                return
        if not _pass(path, walk, found, durable_at, head, reason):
            return


def _look_into(path: str, walk: Walk, found: Found, head: Head) -> None:
    """Note a frame of the durable part that cannot be read: it stays and counts."""
    try:
        decode_frame(head, walk.frame(head), walk.at)
    except SegmentCorruptError as exc:
        found.findings.append(LogFinding(path, walk.at, head.size, exc.reason))


def _take(found: Found, walk: Walk, head: Head) -> None:
    if head.is_end:
        found.is_complete = True
    else:
        entries = found.entries
        if not entries or head.first >= entries[-1].sequence + INDEX_EVERY:
            entries.append(IndexEntry(head.first, head.time_us, walk.at))
        found.records += head.records
    found.following = head.first + head.records
    found.time_us = max(found.time_us, head.time_us)
    walk.at += head.size
    found.ends_at = walk.at


def _pass(
    path: str, walk: Walk, found: Found, durable_at: int, head: Head | None, reason: str
) -> bool:
    """Go on behind what is wrong; False if nothing is there any more."""
    at, size = walk.at, walk.source.size
    behind = frame_behind(walk.source, at, head)
    if behind is None and at >= durable_at:
        found.torn_bytes = size - at
        return False
    found.findings.append(LogFinding(path, at, (behind or size) - at, reason))
    if behind is None:
        found.is_complete = True  # what is durable but damaged stays as it is
        return False
    walk.at = behind
    return True
