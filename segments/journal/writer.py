"""The writing end of a journal: one thread at a time, nothing awaited.

A record gets its number when it is framed, by the code that writes it: there is no moment in
which numbers and file order differ. Three steps follow, and an acknowledgement can wait for each:

- *buffered*: the frame is in this process;
- *flushed*: the kernel has it; it survives the process;
- *fsynced*: the disk has it; it survives the machine.

``flush`` is one ``write``. A sync is split: ``begin_sync`` says what to do, ``SyncJob.run`` blocks
and may run in a thread, ``end_sync`` takes note. A failed write is taken back by truncation: no
later frame lies behind a half one. A failed sync is never repeated: what became of the bytes is
unknown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...engine.files.disk_errors import is_full, short_write
from ...engine.files.durable_files import replace_file
from ...engine.files.lockfile import LockFile
from ...engine.files.paths import fsync_dir
from ...engine.records.compression import Compressor
from ...engine.runtime.clock import Clock
from ...errors import (
    ClosedError,
    StorageError,
    StorageFullError,
    StoragePoisonedError,
    StorePathError,
)
from .frames import Framer
from .fsync_thread import PositionFile, SyncJob
from .layout import (
    TEMPORARY,
    LogFile,
    day_for,
    index_path,
    list_files,
    lock_path,
    log_path,
    make_folders,
    tailer_path,
)
from .log_format import HEADER_BYTES, encode_end, encode_frame, encode_header
from .positions import put_back_places
from .recovery import INDEX_EVERY, Found, LogFinding, examine, read_position
from .roll import Roll
from .small_files import IndexEntry, LogIndex, encode_index

__all__ = ["LogWriter"]

SIZE_MAX: Final = (1 << 63) - 1
FRAMES_MAX: Final = 64  # of one writev
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class _Current:
    """The file that is being written."""

    file: LogFile
    fd: int
    offset: int  # of what the kernel has
    records: int
    began_mono: float
    entries: list[IndexEntry] = field(default_factory=list)


class LogWriter:
    """Made by ``open``. ``following`` is the number the next record gets."""

    def __init__(self, root: str, clock: Clock, roll: Roll, lock: LockFile, framer: Framer) -> None:
        self.root = root
        self.clock = clock
        self.roll_at = roll
        # It is asked from this size of a file on: always, if it has other bounds.
        is_by_size = roll.seconds is None and roll.records is None
        self._asks_at = (SIZE_MAX if roll.bytes is None else roll.bytes) if is_by_size else 0
        self.following = 1
        self.flushed = self.durable = 0  # the last record each is true of
        self.findings: list[LogFinding] = []
        self.files: list[LogFile] = []
        self._framer = framer
        self._is_plain = framer.is_plain
        self._lock = lock
        self._current: _Current | None = None
        self._buffer: list[bytes] = []
        self.buffered_bytes = 0
        self._time_us = 0
        self._sealed: list[int] = []
        self._folders: set[str] = set()
        self._note: PositionFile | None = None
        self.failure: str | None = None  # why nothing more is taken
        self._is_closed = False

    # -- opening ---------------------------------------------------------------------------

    @classmethod
    def open(
        cls, root: str, *, clock: Clock, roll: Roll, compressor: Compressor | None = None
    ) -> LogWriter:
        """Take the journal at ``root``, which is made if it is not there.

        Args:
            root: the journal's folder.
            clock: gives the times of records.
            roll: when a file is left for the next.
            compressor: compresses payloads; None: they stay as they are.

        Raises:
            LockedError: another writer has it.
            StorePathError: it is no folder, or not to be written.
            StorageError: the disk failed.
        """
        try:
            os.makedirs(root, mode=0o700, exist_ok=True)
        except OSError as exc:
            raise StorePathError(f"no folder for a journal: {root!r}: {exc.strerror}") from exc
        lock = LockFile.acquire(lock_path(root))
        writer = cls(root, clock, roll, lock, Framer(compressor))
        try:
            writer._recover()
        except OSError as exc:
            writer._let_go()
            raise writer._error(exc) from exc
        except BaseException:
            writer._let_go()
            raise
        return writer

    def _recover(self) -> None:
        position = read_position(self.root)
        self.files = list_files(self.root)
        if self.files:
            self._take_over(examine(self.files[-1], position))
        if position is not None:
            if position.durable >= self.following:
                text = f"records {self.following} to {position.durable} were durable and are gone"
                path = self.files[-1].path if self.files else self.root
                self.findings.append(LogFinding(path, 0, 0, text))
                self._leave()
            self.following = max(self.following, position.durable + 1)
            self.durable = position.durable
        for name, place in put_back_places(self.root, self.following, self.clock.wall_us()):
            text = (
                f"its tailer had read up to record {place.following - 1}, and the journal ends "
                f"before record {self.following}: it goes on there"
            )
            self.findings.append(LogFinding(tailer_path(self.root, name), 0, 0, text))
        self._note = PositionFile(self.root, position)
        self.flushed = self.following - 1

    def _take_over(self, found: Found) -> None:
        """Go on in the newest file, if nothing speaks against it."""
        file = self.files[-1]
        self.following, self._time_us = found.following, found.time_us
        self.findings += found.findings
        if not found.ends_at:  # it never had a header: it is made anew
            os.unlink(file.path)
            fsync_dir(os.path.dirname(file.path))
            self.files.pop()
            return
        if found.is_complete:
            return
        fd = os.open(file.path, _OLD)
        # Its age goes on: a process that is started every day leaves a file of a week, too.
        age_us = max(0, self.clock.wall_us() - found.created_us) if found.created_us else 0
        self._current = _Current(
            file, fd, found.ends_at, found.records, self.clock.mono() - age_us / 1e6, found.entries
        )
        if found.torn_bytes:
            os.ftruncate(fd, found.ends_at)
        # It could be read, but perhaps nobody has synced it.
        self._folders.add(os.path.dirname(file.path))

    # -- writing ---------------------------------------------------------------------------

    def append(
        self,
        payloads: Sequence[bytes],
        *,
        headers: Sequence[Mapping[str, str] | None] = (),
        times_us: Sequence[int] = (),
        expire_us: Sequence[int] = (),
    ) -> int:
        """Frame records, in order and together; returns the first one's number. Buffered only.

        The other arguments are empty or one per payload.

        Args:
            payloads: at least one; bytes.
            headers: strings for each payload.
            times_us: Unix microseconds; empty: now.
            expire_us: Unix microseconds after which a record is no longer read; 0: never.

        Raises:
            PayloadTooLargeError, UsageError: they are no frame. Nothing was changed, no number was
                used.
            StorageError, ClosedError: nothing is taken any more.
        """
        if self._is_closed or self.failure is not None or not self._lock.is_held:
            self.check()
        time_us = self.clock.wall_us()
        if time_us < self._time_us:
            time_us = self._time_us
        first, count = self.following, len(payloads)
        if self._is_plain and count and not (headers or times_us or expire_us):
            frame = encode_frame(first, time_us, payloads)  # what the framer does, at once
        else:
            frame = self._framer.frame(
                first, time_us, payloads, headers=headers, times_us=times_us, expire_us=expire_us
            )
        size = len(frame)
        current = self._current
        if current is None or current.offset + self.buffered_bytes + size > self._asks_at:
            current = self._file_for(size, count, time_us)
        entries = current.entries
        if not entries or first >= entries[-1].sequence + INDEX_EVERY:
            entries.append(IndexEntry(first, time_us, current.offset + self.buffered_bytes))
        current.records += count
        self._buffer.append(frame)
        self.buffered_bytes += size
        self._time_us = time_us
        self.following = first + count
        return first

    def flush(self) -> None:
        """Hand all that is buffered to the kernel.

        Raises:
            StorageFullError: nothing was written; it is still buffered, try again.
            StorageError: the disk failed; the journal takes nothing more.
        """
        self.check()
        current = self._current
        if not self._buffer or current is None:
            return
        frames = self._buffer
        try:  # many small ones are sooner copied than listed
            self._write(current, frames if len(frames) <= FRAMES_MAX else (b"".join(frames),))
        except OSError as exc:
            raise self._error(exc) from exc
        current.offset += self.buffered_bytes
        self._buffer.clear()
        self.buffered_bytes = 0
        self.flushed = self.following - 1

    def _write(self, current: _Current, parts: Sequence[bytes]) -> None:
        """All of it, or none: what follows must not lie behind a part of it."""
        done, size = 0, sum(map(len, parts))
        try:
            done = os.writev(current.fd, parts)
            if done < size:  # a signal, or a disk that is nearly full
                data = memoryview(b"".join(parts))
                while done < size:
                    done += os.write(current.fd, data[done:])
        except OSError:
            if done:
                os.ftruncate(current.fd, current.offset)
            raise

    def _file_for(self, more_bytes: int, more: int, time_us: int) -> _Current:
        """The file that takes so much more."""
        current = self._current
        if current is not None:
            size, age_s = (
                current.offset + self.buffered_bytes,
                self.clock.mono() - current.began_mono,
            )
            if self.roll_at.is_due(size, current.records, age_s, more_bytes, more):
                self.roll()
                current = None
        return current if current is not None else self._begin(time_us)

    def _begin(self, time_us: int) -> _Current:
        day = day_for(time_us, self.files[-1].day if self.files else "")
        path = log_path(self.root, self.following, day)
        try:
            make_folders(self.root, day)
            fd = os.open(path, _NEW, 0o600)
            try:
                header = encode_header(self.following, time_us)
                if os.write(fd, header) != len(header):
                    raise short_write("a header")
            except OSError:
                os.close(fd)
                os.unlink(path)
                raise
        except OSError as exc:
            raise self._error(exc) from exc
        file = LogFile(self.following, path, day)
        self.files.append(file)
        self._folders.add(os.path.dirname(path))
        self._current = _Current(file, fd, HEADER_BYTES, 0, self.clock.mono())
        return self._current

    def roll(self) -> None:
        """Complete the current file, if it has records: the next record begins another."""
        self.flush()
        current = self._current
        if current is None or not current.records:
            return
        try:
            self._write(current, (encode_end(self.following, self._time_us),))
        except OSError as exc:
            raise self._error(exc) from exc
        self._leave()
        index = LogIndex(current.file.first, INDEX_EVERY, current.offset, current.entries)
        try:
            path = index_path(current.file.path)
            replace_file(path, encode_index(index), suffix=TEMPORARY, is_durable=False)
        except OSError:  # it is rebuilt by whoever needs it
            pass

    def roll_idle(self, seconds: float) -> bool:
        """``roll`` if nothing was appended for so long, and begin the next file at once.

        So the file with the last records is not the newest one, and can go by its age: the next one
        says that it was made at their time, for nothing says better how old they are.
        """
        current, age_us = self._current, self.clock.wall_us() - self._time_us
        if current is None or not current.records or age_us < seconds * 1e6:
            return False
        self.roll()
        self._time_us += 1  # behind them
        self._begin(self._time_us)
        return True

    def _leave(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            self._sealed.append(current.fd)

    @property
    def has_sealed(self) -> bool:
        """Whether files that are left wait for a sync, to be closed by it."""
        return bool(self._sealed)

    def entries_of(self, file: LogFile) -> list[IndexEntry] | None:
        """Where the frames of the file that is being written lie; None: it is another one."""
        current = self._current
        return current.entries if current is not None and current.file == file else None

    # -- durability ------------------------------------------------------------------------

    def begin_sync(self, *, is_last: bool = False, is_flushed: bool = False) -> SyncJob:
        """Flush, and say what is to be done for all that is flushed. One job at a time.

        ``is_flushed``: do not flush; what is buffered has found the disk full.
        """
        self.check() if is_flushed else self.flush()
        if self._note is None:
            raise ClosedError("the journal is closed")
        current = self._current
        first, offset = self.following, 0
        if current is not None:
            first, offset = current.file.first, current.offset
        position = self._note.following(
            self.flushed, first, offset, self.clock.mono(), is_last=is_last
        )
        folders, self._folders = sorted(self._folders), set()
        fds = [] if current is None else [current.fd]
        return SyncJob(self.flushed, fds, list(self._sealed), folders, self._note, position)

    def give_back(self, job: SyncJob) -> None:
        """Take note that a job was not begun: the next one does its part."""
        self._folders.update(job.folders)

    def end_sync(self, job: SyncJob, error: BaseException | None) -> None:
        """Take note of what became of a job.

        Raises:
            StorageError: it failed. What is not durable yet may never be; nothing more is taken.
        """
        if error is not None:
            self.failure = f"a sync failed: {error}"
            raise StorageError(f"{self.root}: {self.failure}") from error
        for fd in job.sealed:
            os.close(fd)
        del self._sealed[: len(job.sealed)]
        self.durable = max(self.durable, job.durable)
        if job.position is not None:
            job.note.position = job.position

    def sync(self) -> None:
        """All that was appended is durable on return. Blocks."""
        job = self.begin_sync()
        try:
            job.run()
        except OSError as exc:
            self.end_sync(job, exc)
        self.end_sync(job, None)

    # -- the end ---------------------------------------------------------------------------

    def close(self) -> None:
        """Sync, and let go. Idempotent. A journal that failed is only let go."""
        if self._is_closed:
            return
        try:
            if self.failure is None:
                job = self.begin_sync(is_last=True)
                job.run()
                self.end_sync(job, None)
        except OSError as exc:
            raise self._error(exc) from exc
        finally:
            self._is_closed = True
            self._let_go()

    def _let_go(self) -> None:
        self._leave()
        for fd in self._sealed:
            os.close(fd)
        self._sealed.clear()
        if self._note is not None:
            self._note.close()
            self._note = None
        self._lock.release()

    @property
    def is_held(self) -> bool:
        """Whether this process has the journal: not once it is closed, nor in a forked child."""
        return not self._is_closed and self._lock.is_held

    def check(self) -> None:
        """Raise unless it takes records.

        Raises:
            ClosedError: it is closed, or belongs to the process this one was forked from.
            StoragePoisonedError: the disk failed.
        """
        if self._is_closed or not self._lock.is_held:
            raise ClosedError("the journal is closed")
        if self.failure is not None:
            raise StoragePoisonedError(f"{self.root}: {self.failure}: close it and open it again")

    def _error(self, exc: OSError) -> StorageError:
        text = f"{self.root}: {exc.strerror or exc}"
        if is_full(exc):
            return StorageFullError(text)
        self.failure = text
        return StorageError(text)
