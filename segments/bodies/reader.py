"""Records out of body files, at a known place: of format 1 or 2, by the file's number."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from ...engine.records.rows import BodyRow
from ...engine.records.task import WHOLE_BYTES_MAX
from ...errors import SegmentCorruptError, StorageError
from ..formats.rdq import Rdq
from .layout import Location, examine_folder, file_name
from .sqs import Sqs
from .streams import StreamReader

__all__ = ["BodyReader"]

READERS_MAX: Final = 64
_HEAD_BYTES: Final = 32  # of a record of either format: its id is within
_v1, _v2 = Rdq(), Sqs()


class BodyReader:
    """Reads the bodies of one folder. The files read last stay open."""

    def __init__(self, folder: str, last_v1_file: int) -> None:
        self.folder = folder
        self.last_v1_file = last_v1_file
        self._open: OrderedDict[int, int] = OrderedDict()

    @classmethod
    def of(cls, folder: str) -> BodyReader:
        """A reader of a folder that nobody writes to: a snapshot's, say.

        Raises:
            OpenError: it has files that this release does not read.
            StorageError: it cannot be read.
        """
        return cls(folder, examine_folder(folder).last_v1_file)

    def path(self, number: int) -> str:
        """Path of a body file."""
        return os.path.join(self.folder, file_name(number, self.last_v1_file))

    def codec(self, number: int) -> Rdq | Sqs:
        """Codec of a body file."""
        return _v1 if number <= self.last_v1_file else _v2

    def read(self, location: Location, id: bytes) -> bytes | None:
        """See ``BodyFiles.read``."""
        number, offset, size = location
        if size > WHOLE_BYTES_MAX and number > self.last_v1_file:
            streamed = self.open_stream(location, id)
            return None if streamed is None else _all_of(streamed, id)
        try:
            fd = self._file(number)
            if fd < 0:
                return None
            # First: a row may say anything, and what it says would be allocated.
            is_there = offset + size <= os.fstat(fd).st_size
            raw = os.pread(fd, size, offset) if is_there else b""
        except OSError as exc:
            raise StorageError(f"cannot read {self.path(number)!r}: {exc.strerror}") from exc
        try:
            if not is_there:
                raise SegmentCorruptError("beyond the end", offset=offset, reason="torn_tail")
            record = self.codec(number).decode(raw, offset)
            if record.size != size or record.id != id:
                raise SegmentCorruptError("another record", offset=offset, reason="another_record")
        except SegmentCorruptError as exc:
            raise SegmentCorruptError(
                f"{self.path(number)!r} at {offset}: body {id.hex()}: {exc.reason}",
                offset=offset,
                reason=exc.reason,
            ) from exc
        return record.payload

    def open_stream(self, location: Location, id: bytes) -> StreamReader | None:
        """A reader of one body of format 2, in slices. None: the file is not there (any more).

        Raises:
            SegmentCorruptError: there is no such record at that place.
            StorageError: the disk failed.
        """
        try:
            return StreamReader(self.path(location.file), location, id)
        except FileNotFoundError:
            return None
        except SegmentCorruptError as exc:
            raise _named(exc, id) from exc

    def has_row(self, row: BodyRow) -> bool:
        """Whether the body that a row leads to is there, whole; a streamed one is not kept.

        Raises as ``read`` does.
        """
        if row.size <= WHOLE_BYTES_MAX or row.file <= self.last_v1_file:
            return self.read_row(row) is not None
        streamed = self.open_stream(Location(row.file, row.offset, row.size), row.record_id)
        if streamed is None:
            return False
        try:
            streamed.check()
        except SegmentCorruptError as exc:
            raise _named(exc, row.record_id) from exc
        finally:
            streamed.close()
        return True

    def read_row(self, row: BodyRow) -> bytes | None:
        """The body that a ``b/`` row leads to; see ``read``."""
        return self.read(Location(row.file, row.offset, row.size), row.record_id)

    def problem(self, number: int, rows: Sequence[BodyRow]) -> str:
        """Why a file is not the one that these rows of it were written with; empty: it is.

        A record bears an id that was drawn for it, so no other file, no older copy and none of
        another shard has it at the same place. One that does is enough: damage beside it is that
        of records. The file is looked at anew, by its name.

        Raises:
            StorageError: the disk failed.
        """
        path = self.path(number)
        self.forget(number)
        try:
            fd = self._file(number)
            if fd < 0:
                return f"{path!r} is missing"
            size, end = os.fstat(fd).st_size, max(row.offset + row.size for row in rows)
            if end > size:
                return f"{path!r} is cut short: {size:,} bytes, its payloads end at {end:,}"
            if any(row.record_id in os.pread(fd, _HEAD_BYTES, row.offset) for row in rows):
                return ""
        except OSError as exc:
            raise StorageError(f"cannot read {path!r}: {exc.strerror}") from exc
        return f"{path!r} holds other payloads than those of this shard"

    def _file(self, number: int) -> int:
        """An open file, or -1."""
        fd = self._open.get(number)
        if fd is not None:
            self._open.move_to_end(number)
            return fd
        try:
            fd = os.open(self.path(number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return -1
        self._open[number] = fd
        if len(self._open) > READERS_MAX:
            os.close(self._open.popitem(last=False)[1])
        return fd

    def forget(self, number: int) -> None:
        """Let go of a file that is to be removed."""
        fd = self._open.pop(number, -1)
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Let go of all files. Idempotent."""
        while self._open:
            os.close(self._open.popitem()[1])


def _all_of(streamed: StreamReader, id: bytes) -> bytes:
    try:
        return streamed.read(streamed.size)
    except SegmentCorruptError as exc:
        raise _named(exc, id) from exc
    finally:
        streamed.close()


def _named(exc: SegmentCorruptError, id: bytes) -> SegmentCorruptError:
    where = str(exc).removesuffix(exc.reason)
    return SegmentCorruptError(
        f"{where}body {id.hex()}: {exc.reason}", offset=exc.offset, reason=exc.reason
    )
