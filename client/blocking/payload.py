# Generated from client/payload.py by make twins; do not edit.
"""The payload of a task of a served store, in slices."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, Self

from ...engine.runtime.task_id import TaskId
from ...errors import RecordCorruptError
from .. import calls
from ..calls import FORM, Call

if TYPE_CHECKING:
    from ..calls import Session

__all__ = ["PartSender", "SyncRemotePayloadReader", "open_remote_payload"]


class PartSender(Protocol):
    """The engine, as far as a payload needs it."""

    session: Session

    def send(self, call: Call) -> Any:
        """Send one request and return the document of its answer."""


class SyncRemotePayloadReader:
    """A payload of a served store, with the methods of ``lodeq.PayloadReader``.

    Each slice is a request of its own, so it ends with ``TaskNotFoundError`` when the task has
    ended meanwhile.
    """

    def __init__(
        self, engine: PartSender, task_id: TaskId, size: int, sum: int, slice_bytes: int
    ) -> None:
        self.size = size
        self.slice_bytes = slice_bytes
        self._engine = engine
        self._task_id = task_id
        self._sum = sum
        self._crc = 0
        self._at = 0

    def read(self, most: int | None = None) -> bytes:
        """See ``PayloadReader.read``, also for Durability and Cancellation."""
        left = self.size - self._at
        if most is not None and most >= 0:
            left = min(most, left)
        found: list[bytes] = []
        while left > 0:
            call = calls.payload_part(self._task_id, self._at, left)
            data = FORM.take_raw(self._engine.send(call), "data")
            if not data:
                raise RecordCorruptError(f"the payload of task {self._task_id} is cut short")
            self._crc = zlib.crc32(data, self._crc)
            self._at += len(data)
            left -= len(data)
            found.append(data)
            if self._at == self.size and self._crc != self._sum:
                raise RecordCorruptError(f"the payload of task {self._task_id} has changed")
        return found[0] if len(found) == 1 else b"".join(found)

    def close(self) -> None:
        """See ``PayloadReader.aclose``, also for Durability and Cancellation."""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        found = self.read(self.slice_bytes)
        if not found:
            raise StopIteration
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is held."""


def open_remote_payload(
    engine: PartSender, task_id: TaskId, slice_bytes: int
) -> SyncRemotePayloadReader:
    """A reader of a task's payload. Args: see ``Engine.open_payload``."""
    doc = engine.send(calls.payload_part(task_id, 0, 0))
    return SyncRemotePayloadReader(engine, task_id, doc["payload_bytes"], doc["crc32"], slice_bytes)
