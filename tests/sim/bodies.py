"""Body files on a simulated disk: a power cut takes records that were not synced.

``BodyDisk`` outlives the processes that open it, one for each shard of a node; ``SimBodyFiles`` has
the interface of ``segments.bodies.files.BodyFiles`` as far as an engine uses it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lodeq.engine.records.keyspace import BODY_AT, BODY_AT_END, BODY_FILES, decode_body_at_key
from lodeq.engine.records.rows import BodyRow, decode_files
from lodeq.errors import SegmentCorruptError
from lodeq.segments.bodies.layout import NO_FILE, BodyFile, Location

HEAD = 32  # of a file, and of a record


@dataclass(slots=True)
class _Record:
    id: bytes
    body: bytes
    is_durable: bool = False


@dataclass(slots=True)
class BodyDisk:
    """The body files of one shard: records by offset, by file."""

    files: dict[int, dict[int, _Record]] = field(default_factory=dict)

    def copy(self) -> BodyDisk:
        """A copy as a checkpoint has it: all of it, durable."""
        found = copy.deepcopy(self)
        found.harden()
        return found

    def harden(self) -> None:
        for records in self.files.values():
            for record in records.values():
                record.is_durable = True

    def cut_power(self, draw: random.Random) -> None:
        """Any part of what was not synced is gone."""
        likely = draw.choice((0.0, 0.5, 1.0))
        for records in self.files.values():
            for at in [at for at, record in records.items() if not record.is_durable]:
                if draw.random() >= likely:
                    del records[at]
        self.harden()


class SimBodyFiles:
    """See the module. Files are full at ``file_bytes``."""

    folder = "simulated bodies"

    def __init__(self, disk: BodyDisk, store: Any, *, file_bytes: int) -> None:
        self._disk = disk
        self._file_bytes = file_bytes
        self._offset = HEAD
        self._leaving: set[int] = set()
        self.current = NO_FILE
        self.v1: dict[int, int] = {}
        self.left_parts: list[int] = []  # nothing is streamed here
        last = store.scan_last(BODY_AT, BODY_AT_END)
        noted = store.get(BODY_FILES)
        self.first_number = self.next_number = max(
            1,
            *(number + 1 for number in disk.files),
            0 if last is None else decode_body_at_key(last[0])[0] + 1,
            0 if noted is None else decode_files(noted),
        )

    def append(self, id: bytes, body: bytes) -> Location:
        return self.append_all([(id, body)])[0]

    def append_all(self, records: Iterable[tuple[bytes, bytes]]) -> list[Location]:
        found = []
        for id, body in records:
            size = HEAD + len(body)
            if self.current == NO_FILE or self._offset + size > self._file_bytes:
                self.current, self._offset = self.next_number, HEAD
                self.next_number += 1
                self._disk.files[self.current] = {}
            self._disk.files[self.current][self._offset] = _Record(id, body)
            found.append(Location(self.current, self._offset, size))
            self._offset += size
        return found

    def seal(self) -> None:
        self.current = NO_FILE

    def sync(self) -> None:
        self._disk.harden()

    def read(self, location: Location, id: bytes) -> bytes | None:
        records = self._disk.files.get(location.file)
        if records is None:
            return None
        record = records.get(location.offset)
        if record is None or record.id != id or location.size != HEAD + len(record.body):
            raise SegmentCorruptError("simulated: lost", offset=location.offset, reason="torn_tail")
        return record.body

    def read_row(self, row: BodyRow) -> bytes | None:
        return self.read(Location(row.file, row.offset, row.size), row.record_id)

    def has_row(self, row: BodyRow) -> bool:
        return self.read_row(row) is not None

    def problem(self, number: int, rows: Sequence[BodyRow]) -> str:
        records = self._disk.files.get(number)
        if records is None:
            return f"{number}.sim is missing"
        if any(at.id == row.record_id for row in rows if (at := records.get(row.offset))):
            return ""
        return f"{number}.sim is cut short, or holds other payloads"

    def gone(self) -> list[int]:
        return []

    def another_reader(self) -> SimBodyFiles:
        return self

    def path(self, number: int) -> str:
        return f"{number}.sim"

    def data_offset(self, number: int) -> int:
        return HEAD

    def numbers(self) -> list[int]:
        return sorted(self._disk.files.keys() - self._leaving)

    def is_known(self, number: int) -> bool:
        return number in self._disk.files

    def file(self, number: int) -> BodyFile | None:
        records = self._disk.files.get(number)
        if records is None or number in self._leaving:
            return None
        size = HEAD + sum(HEAD + len(record.body) for record in records.values())
        return BodyFile(number, size)

    def files(self) -> list[BodyFile]:
        return [file for number in self.numbers() if (file := self.file(number)) is not None]

    def forget(self, number: int) -> None:
        self._leaving.add(number)

    def unlink(self, number: int) -> None:
        self._disk.files.pop(number, None)
        self._leaving.discard(number)

    def punch(self, number: int, offset: int, size: int) -> int:
        return 0

    def close(self) -> None:
        self.seal()
