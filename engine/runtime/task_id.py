"""Task ids as users see them: bytes that print as a UUID."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial

from ...errors import UsageError

__all__ = ["UUID", "TaskId", "as_task_id"]

UUID = uuid.UUID


class TaskId(bytes):
    """A task's id: sixteen bytes that print as a UUID (version 7).

    Every call that takes an id takes a ``TaskId``, a ``uuid.UUID``, its string, or the bytes.
    """

    __slots__ = ()

    def __new__(cls, value: bytes | str | uuid.UUID) -> TaskId:
        """Make one of sixteen bytes, a UUID or its string; anything else raises ``UsageError``."""
        if isinstance(value, bytes):
            raw = value
        elif isinstance(value, uuid.UUID):
            raw = value.bytes
        elif isinstance(value, str):
            try:
                raw = uuid.UUID(value).bytes
            except ValueError:
                raise UsageError(f"not a task id: {value!r} is not a UUID") from None
        else:
            raise UsageError(f"not a task id: {type(value).__name__}; give a TaskId, UUID or str")
        if len(raw) != 16:
            raise UsageError(f"not a task id: {len(raw)} bytes, not 16")
        return bytes.__new__(cls, raw)

    def __str__(self) -> str:
        return str(uuid.UUID(bytes=bytes(self)))

    def __repr__(self) -> str:
        return f"TaskId('{self}')"

    @property
    def uuid(self) -> uuid.UUID:
        """The same id as a ``uuid.UUID``."""
        return uuid.UUID(bytes=bytes(self))

    @property
    def slot(self) -> int:
        """The routing slot, 0 to 4095."""
        return int.from_bytes(self[6:8], "big") & 0xFFF

    @property
    def created_ms(self) -> int:
        """Wall milliseconds at which the id was drawn."""
        return int.from_bytes(self[:6], "big")


# ``TaskId(raw)`` for sixteen bytes already known to be an id: no checks, no Python frame.
as_task_id: Callable[[bytes], TaskId] = partial(bytes.__new__, TaskId)
