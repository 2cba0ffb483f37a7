"""Events of a shard's groups on their way to the lifecycle journal.

When a group is sealed, its events become a row of its batch. The buffer keeps these rows in memory
as well, up to a bound, so that the publisher need not read back what was written a moment ago.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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
    """

    __slots__ = ("edge", "held_bytes", "held_bytes_max", "is_complete", "rows", "shard", "wake")

    def __init__(self, shard: int, shards: int = 1) -> None:
        self.shard = shard
        self.rows: deque[tuple[bytes, bytes]] = deque()
        self.held_bytes = 0
        self.held_bytes_max = HELD_BYTES_MAX // shards
        self.is_complete = False
        self.edge = EVENTS  # from this key on rows may be in the store alone
        self.wake: Callable[[], None] | None = None  # called when there is a row

    def take(self, group: Group) -> None:
        """Queue the row with the events of a group that is about to be sealed."""
        events = group.events
        if not events:
            return
        number = group.number
        value = encode_event_row(self.shard, number, events)
        row = (events_key(number), value)
        group.ops.append(row)
        if self.is_complete:
            if self.held_bytes < self.held_bytes_max:
                self.rows.append(row)
                self.held_bytes += len(value)
            else:
                self.is_complete = False
                self.edge = row[0]
        if self.wake is not None:
            self.wake()
