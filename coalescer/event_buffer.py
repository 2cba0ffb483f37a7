"""The events of a shard's groups on their way to the lifecycle journal.

A group's events become a row of it when it is sealed. The tail keeps those rows in memory as well,
up to a bound, so that what moves them need not read back what was written a moment ago.
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
    """What of one shard has not been moved: ``rows``, then (unless complete) the store."""

    __slots__ = ("edge", "held_bytes", "held_bytes_max", "is_complete", "rows", "shard", "wake")

    def __init__(self, shard: int, shards: int = 1) -> None:
        self.shard = shard
        self.rows: deque[tuple[bytes, bytes]] = deque()
        self.held_bytes = 0
        self.held_bytes_max = HELD_BYTES_MAX // shards
        self.is_complete = False
        self.edge = EVENTS  # where the store has rows that are not in ``rows``, unless complete
        self.wake: Callable[[], None] | None = None  # of somebody who waits for the first

    def take(self, group: Group) -> None:
        """Queue the row of a group that is about to be sealed."""
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
