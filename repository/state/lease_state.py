"""The fields of a lease, apart from its methods.

Apart, because the compiled build compiles this class and leaves ``Lease`` to the interpreter: the
functions that grant and end leases then set plain struct fields (ADR compiled-modules).
"""

from __future__ import annotations

from typing import Any, Protocol

from ...engine.runtime.mypyc_compat import mypyc_attr
from ...engine.runtime.task_id import TaskId
from ..model.values import Codec
from .function_counts import FunctionTally
from .queue_state import ShardQueue

__all__ = ["LeaseHolder", "LeaseState", "LeasedRun"]


@mypyc_attr(allow_interpreted_subclasses=True)
class LeaseState:
    """The fields of a ``Lease``. All are set where it is granted, but for the last two."""

    __slots__ = (
        "attempt",
        "codec",
        "dead_row",
        "deadline_mono",
        "epoch",
        "expires_ms",
        "face",
        "flags",
        "ghost",
        "ghost_expires_ms",
        "granted_mono",
        "is_live",
        "key",
        "lease_s",
        "leased_us",
        "packed_policy",
        "priority",
        "record",
        "record_bytes",
        "runs",
        "shard_queue",
        "state",
        "stored_s",
        "task_id",
        "times",
        "token",
        "worker",
    )

    state: Any  # its ``EngineState``, which imports this module
    shard_queue: ShardQueue
    task_id: TaskId
    key: bytes  # the ready or dead key it was claimed from: where a release puts it back
    record: bytes | None  # None after a restart, and once it was handed out over HTTP
    attempt: int
    priority: int
    epoch: int
    token: bytes
    lease_s: float
    granted_mono: float
    deadline_mono: float
    is_live: bool
    codec: Codec | None
    worker: bytes
    flags: int
    leased_us: int
    expires_ms: int
    times: bytes  # created_us and seq, packed as all records have them
    packed_policy: bytes
    ghost: bytes
    ghost_expires_ms: int
    record_bytes: int
    runs: FunctionTally | None  # of its task's function
    face: bytes  # as in the task record: its end writes it into the result
    stored_s: float  # the length that its row has; not set while that is ``lease_s``
    dead_row: bytes  # the row that a dead letter goes back as; not set where it was none


class LeaseHolder(Protocol):
    """Who keeps leases alive inside this process: a ``LeaseKeepalive``."""

    def beat(self) -> None:
        """Extend every lease that is held and still live."""

    def forget(self, lease: Any) -> None:
        """Stop holding ``lease``: it has ended."""


class LeasedRun:
    """The next leases of a listing, in its order: a page need not go through all leases."""

    __slots__ = ("is_last", "keys", "lower")

    def __init__(self, lower: bytes, keys: list[bytes], *, is_last: bool) -> None:
        self.lower = lower  # the position that ``keys`` follow
        self.keys = keys
        self.is_last = is_last  # there were no more

    def holds(self, position: bytes) -> bool:
        """Whether ``keys`` go on behind ``position``."""
        return bool(self.keys) and self.lower <= position < self.keys[-1]
