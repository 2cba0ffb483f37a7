"""The head of a ready list in memory; the backlog itself lives on disk.

One per (shard, queue, tenant, priority). It knows an *edge*: every ready row with a key
at or below the edge that exists is in it; rows above it are on disk only. One that
holds everything there is has no edge and is *complete*.

- A new row is appended while it is complete and below its cap; past that it stays on
  disk and completeness is given up. The cap grows while records are held for all rows (``grow``):
  their bytes are bounded, for all of them together.
- A row that comes back at or below the edge (a release to its old place) is inserted where it
  belongs, so nothing is ever behind the scan.
- Only an empty, incomplete one is refilled, from the edge on, through the overlay. So a scan
  never walks the tombstones of what was consumed before, however long the history.

A row may have its task record with it: of a task enqueued a moment ago, or *read ahead* by a claim
that had to read anyway (``record_fetch``). How many rows a claim reads ahead grows from claim to
claim, so that one claim alone costs little, and a drain of a backlog one read for many tasks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final, TypeAlias

__all__ = [
    "EXPIRES_MS",
    "READY_ROWS",
    "RECORD",
    "SIZE",
    "TASK_ID",
    "ReadyCache",
    "Row",
    "RowFacts",
]

READY_ROWS = 1024
GROWN_ROWS_MAX: Final = 1 << 16
AHEAD_ROWS_MIN: Final = 16
AHEAD_ROWS_MAX: Final = READY_ROWS // 2

# (ready key, id, attempts so far, flags, expires_ms, record bytes, task record or None).
# A tuple, not a class: it is built once per enqueue, and the key in front makes rows sortable. The
# id is plain bytes: the garbage collector walks over tuples that hold a ``TaskId``, each time.
Row: TypeAlias = tuple[bytes, bytes, int, int, int, int, bytes | None]
TASK_ID: Final = 1  # where the id stands in a row
EXPIRES_MS: Final = 4  # where the end of its TTL stands; 0: none
SIZE: Final = 5  # where the bytes of its record stand in a row
RECORD: Final = 6  # where the record stands, if it is in memory
RowFacts: TypeAlias = tuple[int, int, int, int]  # what its index row says of it


class ReadyCache:
    """See the module's essay."""

    __slots__ = ("ahead_rows", "cap", "edge", "is_complete", "lost_bytes", "rows")

    def __init__(self, *, is_complete: bool, edge: bytes, cap: int | None = None) -> None:
        self.rows: deque[Row] = deque()
        self.is_complete = is_complete
        self.edge = edge
        self.cap = READY_ROWS if cap is None else cap
        self.lost_bytes = 0  # of records that went when it was cut back to its cap
        self.ahead_rows = AHEAD_ROWS_MIN  # so many the next claim that has to read reads ahead

    def put(self, row: Row) -> bool:
        """Take a row in if it belongs here. Returns whether it is in memory now."""
        rows = self.rows
        if self.is_complete:
            if len(rows) < (self.cap if row[RECORD] is not None else min(self.cap, READY_ROWS)):
                if not rows or row[0] > rows[-1][0]:
                    rows.append(row)
                else:
                    self._insert(row)
                return True
            self.is_complete = False
            self.edge = rows[-1][0]
        if row[0] > self.edge:
            return False
        self._insert(row)
        return row[0] <= self.edge

    def grow(self) -> None:
        """Double the cap: a burst stays in memory whole."""
        self.cap = min(2 * self.cap, GROWN_ROWS_MAX)

    def _insert(self, row: Row) -> None:
        rows = self.rows
        if rows and row[0] < rows[0][0]:  # it was taken from there, as a rule
            rows.appendleft(row)
        else:
            rows.insert(bisect_left(rows, row), row)
        if len(rows) > 2 * self.cap:
            while len(rows) > self.cap:
                lost = rows.pop()
                if lost[RECORD] is not None:
                    self.lost_bytes += lost[SIZE]
            self.is_complete = False
            self.edge = rows[-1][0]

    def cut(self, edge: bytes) -> None:
        """Rows above ``edge`` have come to the disk by another way: hold none above it."""
        if not self.is_complete and self.edge <= edge:
            return
        rows = self.rows
        while rows and rows[-1][0] > edge:
            lost = rows.pop()
            if lost[RECORD] is not None:
                self.lost_bytes += lost[SIZE]
        self.is_complete = False
        self.edge = edge

    def discard(self, key: bytes) -> Row | None:
        """Take out the row with this key, if it is in memory."""
        rows = self.rows
        at = bisect_left(rows, (key,))
        if at < len(rows) and rows[at][0] == key:
            row = rows[at]
            del rows[at]
            return row
        return None

    def refill(self, rows: list[Row], edge: bytes | None) -> None:
        """Rows found on disk above the edge; ``edge`` None: there are no more."""
        self.rows.extend(rows)
        if edge is None:
            self.is_complete = True
        else:
            self.edge = edge

    # -- records ---------------------------------------------------------------------------

    def without_record(self, bytes_max: int) -> list[Row]:
        """The first rows whose records may be read ahead: up to one that has its record.

        ``bytes_max``: of all their records together.
        """
        found: list[Row] = []
        rows_left = self.ahead_rows
        for row in self.rows:
            bytes_max -= row[SIZE]
            if row[RECORD] is not None or rows_left <= 0 or bytes_max < 0:
                break
            rows_left -= 1
            found.append(row)
        return found

    def add_records(self, records: Sequence[bytes | None]) -> int:
        """Add the records of the first rows, None where there is none; returns bytes now held."""
        rows, held = self.rows, 0
        filled: list[Row] = []
        for record in records:
            row = rows.popleft()
            if record is not None:
                held += row[SIZE]
                key, task_id, attempts, flags, expires_ms, size, _ = row
                row = (key, task_id, attempts, flags, expires_ms, size, record)
            filled.append(row)
        rows.extendleft(reversed(filled))
        self.ahead_rows = min(4 * self.ahead_rows, AHEAD_ROWS_MAX)
        return held

    def drop_records(self, kept: int) -> int:
        """Drop all records but those of the first ``kept`` rows; returns the bytes they had."""
        self.ahead_rows = AHEAD_ROWS_MIN
        freed, rows = 0, deque(islice(self.rows, kept))
        for row in islice(self.rows, kept, None):
            if row[RECORD] is not None:
                freed += row[SIZE]
                key, task_id, attempts, flags, expires_ms, size, _ = row
                row = (key, task_id, attempts, flags, expires_ms, size, None)
            rows.append(row)
        self.rows = rows
        return freed
