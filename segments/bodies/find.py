"""Looking through body files for records whose place nobody knows any more: for a salvage."""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from typing import Final

from ...engine.files.durable_files import sync_data
from ...engine.files.paths import fsync_dir
from ...engine.records.rows import BodyRow
from ...errors import CorruptionError, SegmentCorruptError, StorageError
from ..formats.rdq import Rdq, Verdict
from ..item import Record
from ..source import FileSource
from .layout import examine_folder, file_name, list_numbers
from .reader import BodyReader
from .sqs import Sqs
from .sqs_search import CHECKED

__all__ = ["BodyFolder"]

_TRUSTED: Final = {Rdq: 0, Sqs: CHECKED}  # by its kind: what a writer of ours makes


class BodyFolder:
    """Searches a shard's body files for an open. Nothing is written to them; calls block."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._last_v1: int | None = None  # unknown

    def examine(self, *, was_left: bool) -> None:
        """See the protocol: ``engine.recovery.row_checks.body_rows``."""
        last_v1 = examine_folder(self.folder).last_v1_file
        if not was_left:
            return
        try:
            for number in list_numbers(self.folder):
                if number > last_v1:  # others are never written to
                    _sync(os.path.join(self.folder, file_name(number, last_v1)))
            fsync_dir(self.folder)
        except OSError as exc:
            raise StorageError(f"cannot sync {self.folder!r}: {exc.strerror}") from exc

    def numbers(self) -> frozenset[int]:
        """Numbers of the files that are there."""
        return frozenset(list_numbers(self.folder))

    def whole(self, rows: Sequence[BodyRow]) -> list[bool]:
        """Whether each of these records can be read. If the disk fails, nobody knows: then so."""
        reader = BodyReader.of(self.folder)
        try:
            return [_is_whole(reader, row) for row in rows]
        finally:
            reader.close()

    def problem(self, number: int, rows: Sequence[BodyRow]) -> str:
        """See the protocol."""
        if self._last_v1 is None:
            self._last_v1 = examine_folder(self.folder).last_v1_file
        reader = BodyReader(self.folder, self._last_v1)
        try:
            return reader.problem(number, rows)
        except StorageError:
            return ""
        finally:
            reader.close()

    def find(self, wanted: Set[bytes]) -> dict[bytes, BodyRow]:
        """Where the records of these ids lie. Reads every byte.

        An id may be there twice, after a crash in the middle of a copy. Both hold the same: that in
        the newest file is taken, for the other one's file may be about to go.

        Raises:
            StorageError: the disk failed.
        """
        found: dict[bytes, BodyRow] = {}

        def verdict(id: bytes, offset: int, size: int) -> Verdict:
            # Format 1 only guesses what is a record. An id that is looked for is no coincidence.
            return Verdict.VALID if id in wanted else Verdict.INVALID

        last_v1 = examine_folder(self.folder).last_v1_file
        for number in list_numbers(self.folder):
            codec = Rdq(verdict) if number <= last_v1 else Sqs(is_current=True)
            path = os.path.join(self.folder, file_name(number, last_v1))
            try:
                with FileSource(path) as source:
                    for item in codec.salvage(source):
                        if (
                            isinstance(item, Record)
                            and item.id in wanted
                            and item.kind == _TRUSTED[type(codec)]
                        ):
                            found[item.id] = BodyRow(item.size, number, item.offset, item.id)
            except CorruptionError:  # no file, or cut short meanwhile: nothing more in it
                continue
        return found


def _is_whole(reader: BodyReader, row: BodyRow) -> bool:
    try:
        return reader.has_row(row)
    except SegmentCorruptError:
        return False
    except StorageError:
        return True


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        sync_data(fd)
    finally:
        os.close(fd)
