"""Events of a shard's groups on their way to the lifecycle journal.

When a group is sealed, its events become a row of its batch. The buffer keeps these rows in memory
as well, up to a bound, so that the publisher need not read back what was written a moment ago. A
replica keeps them when an entry has been applied, its own or another's: what was proposed may never
happen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ..engine.records.events import encode_event_row
from ..engine.records.keyspace import EVENTS, events_key
from .group import Group

__all__ = ["EventBuffer"]

HELD_BYTES_MAX: Final = 16 << 20


class EventBuffer:
    """Event rows of one shard that are not in the journal yet.

    They are in ``rows``; those from ``edge`` on that ``rows`` had no space for are in the store
    alone, and ``is_complete`` is False.

    Args:
        shard: its index.
        shards: of the store, which share the space.
        is_replica: rows come by ``applied``, not by ``take``.
    """

    __slots__ = (
        "edge",
        "held_bytes",
        "held_bytes_max",
        "is_complete",
        "is_replica",
        "rows",
        "shard",
        "wake",
    )

    def __init__(self, shard: int, shards: int = 1, *, is_replica: bool = False) -> None:
        self.shard = shard
        self.rows: deque[tuple[bytes, bytes]] = deque()
        self.held_bytes = 0
        self.held_bytes_max = HELD_BYTES_MAX // shards
        self.is_complete = False
        self.is_replica = is_replica
        self.edge = EVENTS  # from this key on rows may be in the store alone
        self.wake: Callable[[], None] | None = None  # called when there is a row

    def take(self, group: Group) -> None:
        """Queue the row with the events of a group that is about to be sealed."""
        events = group.events
        if not events:
            return
        number = group.number
        row = (events_key(number), encode_event_row(self.shard, number, events))
        group.ops.append(row)
        if not self.is_replica:
            self._keep(row)

    def applied(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Take the rows of entries that were applied, in the order of their commits."""
        for row in rows:
            self._keep(row)

    def _keep(self, row: tuple[bytes, bytes]) -> None:
        if self.is_complete:
            if self.held_bytes < self.held_bytes_max:
                self.rows.append(row)
                self.held_bytes += len(row[1])
            else:
                self.is_complete = False
                self.edge = row[0]
        if self.wake is not None:
            self.wake()
