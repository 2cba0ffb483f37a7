"""Repair of our own files, in place, while no writer has them open.

Nothing is thrown away: bytes that are cut off, or become a hole, are first copied durably to a file
beside. A step begins only after what it depends on is on disk, so a repair that is cut short can be
repeated, and a second one finds nothing to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final

from ....engine.files.durable_files import create_file, replace_file, sync_file
from ....engine.files.lockfile import LockFile
from ....engine.files.paths import fsync_dir
from ....errors import LockedError, SegmentCorruptError, StorageError, UsageError
from ....segments.bodies.sqs import HEADER, HEADER_BYTES, Sqs
from ....segments.detect import DetectedPath, is_ours
from ....segments.item import Damage, Hole, Torn
from ....segments.journal.layout import TEMPORARY, LogFile, index_path, list_files
from ....segments.journal.log_format import END_BYTES, decode_header
from ....segments.journal.log_format import HEADER_BYTES as LOG_HEADER_BYTES
from ....segments.journal.recovery import INDEX_EVERY, Found, examine, read_position
from ....segments.journal.small_files import LogIndex, Position, encode_index
from ....segments.source import FileSource
from ...shared.file_check import index_fault
from ...shared.file_reader import bytes_of, is_written, journal_of, lock_of, parts_of

__all__ = ["Step", "repair"]

At = Callable[[str, int], None]

_COPY_BYTES: Final = 1 << 20
_SMALL_HOLES_MAX: Final = 4  # in a row


@dataclass(frozen=True, slots=True)
class Step:
    """Something that was done, or would be. ``is_left``: nothing can be done about it here."""

    path: str
    offset: int
    size: int
    what: str
    is_left: bool = False


def repair(detected: DetectedPath, at: At, *, is_dry: bool) -> Generator[Step, None, None]:
    """Repair a journal, or ``.sqs`` files of ours. Yields each step once it is done.

    Args:
        detected: a folder, or one file.
        at: called with the progress: a file, and an offset in it, in bytes.
        is_dry: only yield the steps; change nothing.

    Raises:
        UsageError: it is not ours.
        LockedError: a writer is at work there.
        StorageError: a file cannot be read or written.
    """
    _check(detected)
    with _locked(detected, is_dry=is_dry):
        if detected.format == "journal":
            yield from _repair_journal(detected, at, is_dry=is_dry)
        else:
            for part in parts_of(detected):
                yield from _repair_sqs(part.path, is_dry=is_dry)
                at(part.path, os.stat(part.path).st_size)


def _check(detected: DetectedPath) -> None:
    refusal = f"is not ours to change: `lodeq segments salvage {detected.path} --out …` saves it"
    if detected.format not in ("sqs", "journal"):
        raise UsageError(f"{detected.path!r} is of format {detected.format}, which {refusal}")
    for part in parts_of(detected) if detected.format == "sqs" else ():
        if bytes_of(DetectedPath(part.path, "sqs", is_folder=False)) and not is_ours(part.path):
            raise UsageError(f"{part.path!r} does not begin like a file of ours, and {refusal}")


@contextmanager
def _locked(detected: DetectedPath, *, is_dry: bool) -> Iterator[None]:
    """No writer is at work, and none begins."""
    path = lock_of(detected)
    if path is not None and is_dry:
        if is_written(detected):
            raise LockedError(f"{os.path.dirname(path)} is open: close it first")
        path = None
    lock = LockFile.acquire(path) if path is not None else None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


# --- .sqs -------------------------------------------------------------------------------------


def _repair_sqs(path: str, *, is_dry: bool) -> Iterator[Step]:
    """Ranges first, in order; then the tail, so that offsets hold."""
    codec = Sqs(is_current=True)  # zeros at the end were never written
    with FileSource(path) as source:
        steps = list(_sqs_steps(path, codec, source))
    for step in steps:
        if not is_dry and not step.is_left:
            if step.what.startswith("hole"):
                _punch(codec, step)
            elif step.what.startswith("header"):
                _overwrite(path, step, HEADER)
            else:
                _cut(path, step)
        yield step


def _sqs_steps(path: str, codec: Sqs, source: FileSource) -> Iterator[Step]:
    """The steps of a repair. Neighbouring holes and damaged ranges become one hole."""
    run: list[Hole | Damage] = []
    for item in codec.salvage(source):
        if isinstance(item, Damage) and item.reason == "bad_header":
            yield Step(path, 0, HEADER_BYTES, "header written anew")
            continue
        is_gap = isinstance(item, Hole | Damage)
        if isinstance(item, Damage) and item.reason == "duplicate_id":
            # Which of the two is referred to, only the index of the store knows.
            yield Step(path, item.offset, item.size, "duplicate_id", is_left=True)
            is_gap = False
        if isinstance(item, Hole | Damage) and is_gap:
            run.append(item)
            continue
        yield from _hole_step(path, source, run)
        run = []
        if isinstance(item, Torn):
            yield Step(path, item.offset, item.size, "torn tail cut off")
    yield from _hole_step(path, source, run)


def _hole_step(path: str, source: FileSource, run: list[Hole | Damage]) -> Iterator[Step]:
    if not run:
        return
    offset = run[0].offset
    size = run[-1].offset + run[-1].size - offset
    reasons = [item.reason for item in run if isinstance(item, Damage)]
    is_run_of_small = size > _SMALL_HOLES_MAX and source.read(offset, 1) == b"\x01"
    if reasons:
        yield Step(path, offset, size, f"hole instead of damage: {', '.join(reasons[:3])}")
    elif is_run_of_small or len(run) > len(Sqs().split(size)):
        yield Step(path, offset, size, "hole instead of several")


def _punch(codec: Sqs, step: Step) -> None:
    """Copy the range if it is damaged, and write a hole's frame over it; its inside stays."""
    if "damage" in step.what:
        _keep(step)
    holes, at = [], step.offset
    for gap in codec.split(step.size):
        holes.append((at, codec.holes(gap)))
        at += gap
    # The last one first: until the first one is there, what was there is what is found.
    for at, raw in reversed(holes):
        _write(step.path, at, raw)


def _overwrite(path: str, step: Step, raw: bytes) -> None:
    _keep(step)
    _write(path, step.offset, raw)


def _write(path: str, offset: int, raw: bytes) -> None:
    with _changed(path) as fd:
        if os.pwrite(fd, raw, offset) != len(raw):
            raise StorageError(f"{path!r}: a write was cut short")


def _cut(path: str, step: Step) -> None:
    _keep(step)
    with _changed(path) as fd:
        os.ftruncate(fd, step.offset)


@contextmanager
def _changed(path: str) -> Iterator[int]:
    """Open for writing, synced at the end."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield fd
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as exc:
        raise StorageError(f"cannot write {path!r}: {exc.strerror}") from exc


def _keep(step: Step) -> None:
    """Copy the bytes to ``PATH.damaged-OFFSET``, unless they are zeros."""
    with FileSource(step.path) as source:
        blocks = range(step.offset, step.offset + step.size, _COPY_BYTES)
        end = step.offset + step.size
        if not any(any(source.read(at, min(_COPY_BYTES, end - at))) for at in blocks):
            return
        try:
            with _fresh(f"{step.path}.damaged-{step.offset}") as file:
                for at in blocks:
                    file.write(source.read(at, min(_COPY_BYTES, end - at)))
                sync_file(file)
            fsync_dir(os.path.dirname(step.path))
        except OSError as exc:
            raise StorageError(f"cannot copy from {step.path!r}: {exc.strerror}") from exc


def _fresh(path: str) -> BinaryIO:
    """Create a file; add a number if the name is in use, by a repair that was cut short."""
    again = 0
    while True:
        try:
            return create_file(f"{path}.{again}" if again else path)
        except FileExistsError:
            again += 1


# --- journals ---------------------------------------------------------------------------------


def _repair_journal(detected: DetectedPath, at: At, *, is_dry: bool) -> Iterator[Step]:
    root = journal_of(detected)
    position = read_position(root) if root is not None else None
    files = [_alone(detected.path)] if root is None else list_files(root)
    for file in files:
        if detected.is_folder or file.path == detected.path:
            yield from _repair_log(file, position, is_newest=file is files[-1], is_dry=is_dry)
            at(file.path, os.stat(file.path).st_size)


def _alone(path: str) -> LogFile:
    """A log file that is in no journal, whatever its name."""
    with FileSource(path) as source:
        try:
            return LogFile(decode_header(source.read(0, LOG_HEADER_BYTES)).first, path, "")
        except SegmentCorruptError:
            return LogFile(0, path, "")


def _repair_log(
    file: LogFile, position: Position | None, *, is_newest: bool, is_dry: bool
) -> Iterator[Step]:
    """As the writer would at its next opening, and no more; damage is reported, not repaired."""
    found = examine(file, None)
    is_here = position is not None and position.file == file.first
    durable_at = position.offset if position is not None and is_here else 0
    for finding in found.findings:
        yield Step(file.path, finding.offset, finding.size, finding.reason, is_left=True)
    if found.torn_bytes:
        is_torn = is_newest and found.ends_at >= durable_at
        what = "torn tail cut off" if is_torn else "a frame that is not whole"
        step = Step(file.path, found.ends_at, found.torn_bytes, what, is_left=not is_torn)
        if is_torn and not is_dry:
            _cut(file.path, step)
        yield step
    if found.ends_at and (found.is_complete or not is_newest):
        yield from _repair_index(file, found, is_dry=is_dry)


def _repair_index(file: LogFile, found: Found, *, is_dry: bool) -> Iterator[Step]:
    path = index_path(file.path)
    with FileSource(file.path) as source:
        fault = "index: it is missing"
        if os.path.lexists(path):
            is_damaged = bool(found.findings or found.torn_bytes)
            fault = index_fault(path, file.first, source, is_damaged=is_damaged)
    if not fault:
        return
    log_bytes = found.ends_at - (END_BYTES if found.is_complete else 0)
    if not is_dry:
        index = LogIndex(file.first, INDEX_EVERY, log_bytes, found.entries)
        try:
            replace_file(path, encode_index(index), suffix=TEMPORARY)
        except OSError as exc:
            raise StorageError(f"cannot write {path!r}: {exc.strerror}") from exc
    yield Step(path, 0, 0, f"rebuilt: {fault}")
