"""Reading a journal, forward and backward, while it is written or not.

A cursor opens the files itself and shares nothing. It never calls the end of the newest file
damaged: what is not whole there is not there yet. It is damage once something whole follows: a
frame, or another file. Damage, and records that are missing for any other reason, are never passed
over silently: they become a ``Gap``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...errors import SegmentCorruptError, StorageError
from ..source import FileSource
from .layout import LogFile
from .log_format import HEADER_BYTES, Head, LogRecord, decode_frame
from .log_walk import Walk, frame_behind
from .recovery import LogFinding
from .view import View, entry_before, entry_earlier, file_at, file_before

__all__ = ["Gap", "LogCursor"]

VANISHED_MAX: Final = 8  # files that retention removes between a listing and an open


@dataclass(frozen=True, slots=True)
class Gap:
    """Records ``first`` to ``last`` are not there (none, if ``last`` is less), and why."""

    first: int
    last: int
    findings: tuple[LogFinding, ...]


class LogCursor:
    """``following`` is the record it returns next, if it is there."""

    def __init__(self, view: View, on_gap: Callable[[Gap], None]) -> None:
        self.following = 1
        self._view = view
        self._on_gap = on_gap
        self._file: LogFile | None = None
        self._source: FileSource | None = None
        self._walk: Walk | None = None
        self._expected = 1  # the record of the next frame; ``_left`` lies before it
        self._left: list[LogRecord] = []
        self._damage: list[LogFinding] = []

    # -- where it is -----------------------------------------------------------------------

    def seek(self, sequence: int) -> None:
        """Go on with that record, or the first one behind it that is there."""
        self._leave()
        self._damage.clear()
        self._left = []
        self.following = self._expected = max(1, sequence)

    def seek_start(self) -> None:
        """Go on with the oldest record."""
        files = self._view.files()
        self.seek(files[0].first if files else 1)

    def seek_end(self) -> None:
        """Go on with the next record that is appended."""
        files = self._view.files()
        self.seek(files[-1].first if files else 1)
        if files and (source := self._open(files[-1])) is not None:
            entries = self._view.entries(files[-1], source)
            if entries:
                self._enter(entries[-1].offset, entries[-1].sequence)
        while self._next_frame() is not None:
            pass
        self.following = self._expected

    def seek_time(self, time_us: int) -> None:
        """Go on with the first record that was appended then or later."""
        files = self._view.files()
        if not files:
            self.seek(1)
            return
        file = files[max(0, file_before(files, time_us) - 1)]
        self.seek(file.first)
        if (source := self._open(file)) is not None:
            entry = entry_earlier(self._view.entries(file, source), time_us)
            if entry is not None:
                self._enter(entry.offset, entry.sequence)
        while (frame := self._next_frame()) is not None:
            head, records = frame
            if head.time_us >= time_us:
                self._left = records
                break
        self.following = self._left[0].sequence if self._left else self._expected

    def close(self) -> None:
        """Idempotent. It may be used again."""
        self._leave()

    # -- reading ---------------------------------------------------------------------------

    def read(self, most: int = 1024) -> list[LogRecord]:
        """Up to ``most`` records from ``following`` on; none: they are not there yet.

        Raises:
            StorageError: the disk failed. The cursor is where it was.
        """
        out = self._left  # what is read is kept there, whatever the next frame meets
        while len(out) < most and (frame := self._next_frame()) is not None:
            out += frame[1]
        self._left = out[most:]
        if self._left:
            out = out[:most]
        if out:
            self.following = out[-1].sequence + 1
        return out

    def put_back(self, records: list[LogRecord]) -> None:
        """The last that ``read`` returned, to be returned next, if it has not moved since."""
        self._left = records + self._left
        self.following = records[0].sequence

    def read_back(self, most: int = 1024) -> list[LogRecord]:
        """Up to ``most`` records before ``following``, the latest first; none: there are none.

        The cursor is then at the last of them.
        """
        end = self.following
        out: list[LogRecord] = []
        while len(out) < most and end > 1:
            file = file_at(self._view.files(), end - 1)
            if file is None:
                break
            begin = max(file.first, end - (most - len(out)))
            self.seek(begin)
            found: list[LogRecord] = []
            while self._expected < end and (frame := self._next_frame()) is not None:
                found += [record for record in frame[1] if record.sequence < end]
            out += reversed(found)
            end = begin
        self.seek(end)
        return out

    def _next_frame(self) -> tuple[Head, list[LogRecord]] | None:
        """The next frame with records from ``_expected`` on; None: it is not there yet."""
        is_again = False
        while (walk := self._walk) is not None or (walk := self._find()) is not None:
            reason, head, is_bad = "a frame that is not whole", None, False
            try:
                head = walk.head()
                if head is not None and 0 < head.records <= self._expected - head.first:
                    walk.at += head.size  # all before: its head is enough
                    is_again = False
                    continue
                records = [] if head is None else decode_frame(head, walk.frame(head), walk.at)
            except SegmentCorruptError as exc:
                reason = exc.reason
                is_bad = True
            if head is not None and not is_bad:
                if head.is_end:
                    newer = self._newer()
                    if newer is None:
                        return None
                    self._switch(newer)
                    continue
                walk.at += head.size
                if records[-1].sequence < self._expected:
                    continue
                return head, self._take(records)
            if not is_again:  # its bytes may have been read before they were all there
                walk.forget()
            elif not self._wait_or_pass(walk, head, reason):
                return None
            is_again = not is_again
        return None

    def _take(self, records: list[LogRecord]) -> list[LogRecord]:
        first = records[0].sequence
        if first < self._expected:
            records = records[self._expected - first :]
        elif first > self._expected or self._damage:
            self._report_gap(first - 1)
        self._expected = records[-1].sequence + 1
        return records

    def _report_gap(self, last: int) -> None:
        """Report a gap: all records from ``_expected`` to ``last``, and the bytes passed over."""
        gap = Gap(self._expected, last, tuple(self._damage))
        self._damage.clear()
        self._expected = last + 1
        self._on_gap(gap)

    # -- from file to file -----------------------------------------------------------------

    def _find(self) -> Walk | None:
        """Open the file that has ``_expected``, near it."""
        for _ in range(VANISHED_MAX):
            files = self._view.files()
            file = file_at(files, self._expected)
            if file is None:
                if not files:
                    return None
                self._report_gap(files[0].first - 1)  # removed since
                continue
            source = self._open(file)
            if source is not None:
                entry = entry_before(self._view.entries(file, source), self._expected)
                return self._enter(HEADER_BYTES if entry is None else entry.offset)
        raise StorageError("the files of the journal keep vanishing")

    def _open(self, file: LogFile) -> FileSource | None:
        """None: it was removed meanwhile."""
        self._leave()
        try:
            self._source = FileSource(file.path)
        except StorageError as exc:
            if isinstance(exc.__cause__, FileNotFoundError):
                return None
            raise
        self._file = file
        return self._source

    def _enter(self, offset: int, expected: int | None = None) -> Walk:
        if self._source is None:
            raise StorageError("no file of the journal is open")
        if expected is not None:
            self._expected = expected
        self._walk = Walk(self._source, offset)
        return self._walk

    def _leave(self) -> None:
        self._file = self._walk = None
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _newer(self) -> LogFile | None:
        """The file that follows the one that is open."""
        file = self._file
        if file is None:
            return None
        return next((f for f in self._view.files(file.day) if f.first > file.first), None)

    def _switch(self, file: LogFile) -> None:
        if self._open(file) is not None:
            self._enter(HEADER_BYTES)

    def _wait_or_pass(self, walk: Walk, head: Head | None, reason: str) -> bool:
        """Nothing whole is at ``walk.at``. False: wait for more; else go on behind it."""
        source, file = self._source, self._file
        if source is None or file is None or source.grow():
            return True
        behind = None if walk.at >= source.size else frame_behind(source, walk.at, head)
        newer = None
        if behind is None:
            newer = self._newer()
            if newer is None:
                return False
            if source.grow():  # it was written before the newer file was begun
                return True
        upto = source.size if behind is None else behind
        if upto > walk.at:
            self._damage.append(LogFinding(file.path, walk.at, upto - walk.at, reason))
        walk.at = upto
        if newer is not None:
            self._switch(newer)
        return True
