"""The next delayed tasks in memory, so that promoting them reads nothing.

One per (shard, queue, tenant) that has delayed tasks. It knows an *edge*: every delayed row with a
key below the edge that exists is in memory; what is at or above the edge is on disk only. No edge:
all delayed rows of the shard queue are in memory.

Who puts a delayed row below the edge either gives it to the cache as well, or moves the edge down
to it; who deletes one discards it. So nothing is promoted twice and nothing is passed over, and a
cache that knows nothing (its edge before every row) costs a scan and nothing else.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final, TypeAlias

__all__ = ["CACHE_ROWS", "DelayedCache", "DelayedRow", "held_bytes_of"]

CACHE_ROWS = 8192  # on average; cut back to so many when there are twice as many
ROW_BYTES: Final = 512  # about what a row costs without its record

# (delayed key, id, priority, attempts so far, flags, expires_ms, record bytes, task record or None,
# value of the ready row it becomes). The key in front makes rows sortable.
DelayedRow: TypeAlias = tuple[bytes, bytes, int, int, int, int, int, bytes | None, bytes]
SIZE: Final = 6  # where the bytes of its record stand in a row
RECORD: Final = 7  # where the record stands, if it is in memory


def held_bytes_of(row: DelayedRow) -> int:
    """How much of the engine's bound on bytes in memory a row takes."""
    return ROW_BYTES if row[RECORD] is None else ROW_BYTES + row[SIZE]


class DelayedCache:
    """See the module's essay."""

    __slots__ = ("edge", "lost_bytes", "rows")

    def __init__(self, edge: bytes | None) -> None:
        self.edge = edge
        self.rows: list[DelayedRow] = []  # by key
        self.lost_bytes = 0  # of rows that went when the edge moved down, not yet accounted for

    def put(self, row: DelayedRow) -> bool:
        """Take a row in if it is below the edge. Returns whether it is in memory now."""
        rows = self.rows
        if self.edge is not None and row[0] >= self.edge:
            return False
        if not rows or row[0] > rows[-1][0]:
            rows.append(row)
        else:
            insort(rows, row)
        if len(rows) > 2 * CACHE_ROWS:
            self.cut(rows[CACHE_ROWS][0])
        return True

    def cut(self, key: bytes) -> None:
        """From ``key`` on rows are on disk only."""
        if self.edge is not None and self.edge <= key:
            return
        self.edge = key
        rows = self.rows
        at = bisect_left(rows, (key,))
        if at < len(rows):
            self.lost_bytes += sum([held_bytes_of(row) for row in rows[at:]])
            del rows[at:]

    def discard(self, key: bytes) -> DelayedRow | None:
        """Take out the row with this key, if it is in memory."""
        rows = self.rows
        at = bisect_left(rows, (key,))
        if at < len(rows) and rows[at][0] == key:
            return rows.pop(at)
        return None

    def take_below(self, key: bytes, limit: int) -> list[DelayedRow]:
        """Take out the first rows with keys below ``key``, ``limit`` at most."""
        rows = self.rows
        at = min(limit, bisect_left(rows, (key,)))
        taken = rows[:at]
        del rows[:at]
        return taken
