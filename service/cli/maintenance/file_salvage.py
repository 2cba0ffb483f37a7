"""Saving the readable part of damaged files into a new file, or folder, of the same format.

It is written under a temporary name, synced, and renamed: a file that has the name is whole. The
source is not changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from ....engine.files.disk_errors import error_class
from ....engine.files.durable_files import new_file
from ....engine.files.paths import fsync_dir
from ....errors import (
    PayloadTooLargeError,
    SegmentCorruptError,
    StorageError,
    UsageError,
)
from ....segments.bodies.sqs import HEADER, Sqs
from ....segments.detect import DetectedPath
from ....segments.formats.registry import foreign_format
from ....segments.item import Damage, Record
from ....segments.journal.log_format import HEADER_BYTES, decode_head, decode_header, encode_header
from ....segments.source import FileSource
from ...shared.file_reader import FoundItem, items, name_in, parts_of, salvage_part, vanished

__all__ = ["Summary", "salvage"]

_DAMAGE_MAX: Final = 1000  # that a summary lists

OnDamage = Callable[[str, Damage], None]
At = Callable[[str, int], None]


@dataclass(slots=True)
class Summary:
    """Counts of a salvage. ``damage`` has the first 1,000 ranges; ``damaged_bytes`` counts all."""

    records: int = 0
    payload_bytes: int = 0
    damaged_bytes: int = 0
    damages: int = 0
    damage: list[tuple[str, Damage]] = field(default_factory=list)


class _Watch:
    """Counts what is saved, and reports what is lost: see ``Saving``."""

    def __init__(self, detected: DetectedPath, on_damage: OnDamage, at: At) -> None:
        self.path = detected.path
        self.is_folder = detected.is_folder
        self.summary = Summary()
        self._detected = detected
        self._on_damage = on_damage
        self._at = at

    def records(self) -> Iterator[tuple[str, Record]]:
        for found in items(self._detected):
            if (record := self.take(found)) is not None:
                yield found.file, record

    def take(self, found: FoundItem) -> Record | None:
        """The record, if it is one."""
        file, item = found
        self._at(file, item.offset + item.size)
        if isinstance(item, Damage):
            self.lost(file, item)
        return item if isinstance(item, Record) else None

    def lost(self, file: str, damage: Damage) -> None:
        file = name_in(self._detected, file)
        summary = self.summary
        summary.damages += 1
        summary.damaged_bytes += damage.size
        if summary.damages <= _DAMAGE_MAX:
            summary.damage.append((file, damage))
        self._on_damage(file, damage)

    def skipped(self, file: str, record: Record, reason: str) -> None:
        """It was read, and the format that is written cannot hold it."""
        self.lost(file, Damage(record.offset, record.size, f"not saved: {reason}"))

    def saved(self, record: Record) -> None:
        self.summary.records += 1
        self.summary.payload_bytes += len(record.payload)


def salvage(detected: DetectedPath, out: str, on_damage: OnDamage, at: At) -> Summary:
    """Save the readable part as ``out``: a file, or a folder where the format has folders.

    Args:
        detected: what to read.
        out: a name that is not in use.
        on_damage: called with each range that is lost, as it is met.
        at: called with the progress: a file, and an offset in it, in bytes.

    Raises:
        UsageError: ``out`` is there already, or would lie within the source.
        StorageError: something cannot be read or written. ``out`` is not there.
    """
    out = os.path.abspath(out)
    fresh = f"{out}.unfinished"
    for path in (out, fresh):
        if os.path.lexists(path):
            raise UsageError(f"{path!r} exists: give another --out, or move it away")
    if detected.is_folder and os.path.realpath(out).startswith(os.path.join(detected.path, "")):
        raise UsageError(f"{out!r} lies within what is saved: give another --out")
    foreign = foreign_format(detected.format)
    watch = _Watch(detected, on_damage, at)
    try:
        if foreign is not None and foreign.save is not None:
            foreign.save(watch, fresh)
        else:
            with new_file(fresh) as file:
                if detected.format == "journal":
                    _save_journal(detected, file, watch)
                else:
                    _save_sqs(file, watch)
        os.rename(fresh, out)
        fsync_dir(os.path.dirname(out))
    except OSError as exc:
        _remove(fresh)
        raise error_class(exc)(f"cannot write {out!r}: {exc.strerror}") from exc
    except BaseException:
        _remove(fresh)
        raise
    return watch.summary


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)


def _save_sqs(file: BinaryIO, watch: _Watch) -> None:
    """Save all messages with a checksum in one file; of an id that comes twice, the first."""
    codec = Sqs()
    file.write(HEADER)
    seen: set[bytes] = set()
    for name, record in watch.records():
        if record.id in seen:
            watch.skipped(name, record, "its id has come before")
            continue
        try:
            head = codec.encode_head(record.id, record.payload)
        except PayloadTooLargeError as exc:  # of an .rdq, which has larger ones
            watch.skipped(name, record, str(exc))
            continue
        seen.add(record.id)
        file.write(head)
        file.write(record.payload)
        watch.saved(record)


def _save_journal(detected: DetectedPath, file: BinaryIO, watch: _Watch) -> None:
    """Frames as they are: compression, times and numbers stay."""
    header: bytes | None = None
    for part in parts_of(detected):
        try:
            with FileSource(part.path) as source:
                begun = source.read(0, HEADER_BYTES)
                last = -1
                for item in salvage_part(part, source):
                    record = watch.take(FoundItem(part.name, item))
                    if record is None:
                        continue
                    if record.offset != last:
                        last = record.offset
                        frame = source.read(last, record.size)
                        if header is None:
                            header = _log_header(begun, frame)
                            file.write(header)
                        file.write(frame)
                    watch.saved(record)
        except StorageError as exc:
            if not (detected.is_folder and vanished(exc)):
                raise
    if header is None:
        file.write(encode_header(1, 0))


def _log_header(begun: bytes, frame: bytes) -> bytes:
    """A header for a file that begins with this frame; ``begun`` is the header it had."""
    head = decode_head(frame)
    try:
        created_us = decode_header(begun).created_us
    except SegmentCorruptError:
        created_us = head.time_us
    return encode_header(head.first, created_us)
