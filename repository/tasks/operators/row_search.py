"""Go through the rows of waiting and dead tasks, off the loop where the store allows it.

A search has ranges of rows, one for each state of a tenant's queue, and takes them in order: a page
of rows of every shard, the records of those that may be meant, and a test of each. All of it
happens in a thread, in slices; only what passes comes back.

What a thread reads is what was applied: callers wait for what was queued before they began, and
look at each row again before they change it or show it. A store in memory, or one with damage,
whose ranges are kept on the loop, is read there, in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final, NamedTuple

from ....engine.records.frame import attempt
from ....engine.records.keyspace import ID_AT, TASK
from ....engine.records.rows import IndexRow, decode_index_row
from ....engine.records.task import TaskRecord, decode_task
from ....errors import CorruptionError
from ...model.values import Task
from ...state.engine_state import EngineState
from ...state.queue_state import Shard
from ...state.turns import in_slices
from ..task_list import UNREADABLE

__all__ = [
    "FOUND_MAX",
    "STEP",
    "STEP_BYTES",
    "Place",
    "RowRange",
    "RowSearch",
    "RowTest",
    "is_beside",
]

FOUND_MAX: Final = 256  # tasks that one go comes back with
_LOOKS_A_GO: Final = 4096
_PAGE: Final = 64  # rows of one shard
_EMPTY: Final = 64  # looks that a read of deleted rows counts as
STEP: Final = 16  # records that are read without a break
STEP_BYTES: Final = 256 << 10

_Row = tuple[bytes, bytes, Shard]


class Place(NamedTuple):
    """How far a search has come: the position of the last task of a queue that was looked at.

    An empty one is before the first.
    """

    queue: str
    state: str
    position: bytes


class RowRange(NamedTuple):
    """The rows of one state of one tenant's queue.

    ``sources``: the shards that may have some, each with a key below which it has none.
    """

    queue: str
    state: str
    lower: bytes
    upper: bytes
    sources: Sequence[tuple[Shard, bytes]]


class RowTest(NamedTuple):
    """Tests of a row. All of them are called in the thread that reads.

    ``of_key``: whether the record is worth reading. ``of_record``: whether it is worth decoding.
    ``task``: the task of a row and its record (None: it is damaged), if it is meant.
    """

    of_key: Callable[[RowRange, bytes], bool]
    of_record: Callable[[bytes], bool]
    task: Callable[[RowRange, bytes, IndexRow, TaskRecord | None], Task | None]


def is_beside(shard: Shard) -> bool:
    """Whether a thread may read the shard's store."""
    return shard.store.reads_beside and shard.overlay.unreadable is None


class RowSearch:
    """Some ranges of rows, from the lower bound of the first to the end of the last."""

    def __init__(
        self,
        state: EngineState,
        ranges: Sequence[RowRange],
        test: RowTest,
        place: Place,
        *,
        found_max: int = FOUND_MAX,
    ) -> None:
        """A search.

        Args:
            state: of the engine.
            ranges: in order; at least one.
            test: of each row.
            place: up to which all was looked at before.
            found_max: tasks after which a go ends.
        """
        self._state = state
        self._ranges = ranges
        self._test = test
        self._found_max = min(FOUND_MAX, found_max)
        self._found: list[Task] = []
        self.looks = 0  # rows looked at; deleted ones in part
        self._is_beside = all(is_beside(shard) for one in ranges for shard, _ in one.sources)
        self.place = place  # up to which all was looked at
        self._n = -1
        self._begin_next()

    @property
    def is_over(self) -> bool:
        """Whether all of it was looked at."""
        return self._n >= len(self._ranges)

    async def window(self) -> list[Task]:
        """Look at the next rows. Returns what passes: maybe nothing."""
        if self._is_beside:
            try:
                await self._state.thread_reads.run(self._go(), self._state.check)
            except CorruptionError:  # what was found before it stays found
                self._is_beside = False
        if not self._is_beside:
            await in_slices(self._state, self._go())
        found, self._found = self._found, []
        return found

    def _begin_next(self) -> None:
        self._n += 1
        if not self.is_over:
            here = self._ranges[self._n]
            self._lower = here.lower
            self._floors = [floor for _, floor in here.sources]

    def _go(self) -> Generator[None, None, None]:
        most = self.looks + _LOOKS_A_GO
        while not self.is_over and self.looks < most and len(self._found) < self._found_max:
            yield from self._page()

    def _page(self) -> Generator[None, None, None]:
        """Every shard's next rows, up to the least bound to which all of them are complete."""
        here = self._ranges[self._n]
        rows: list[_Row] = []
        bound = here.upper
        self.looks += 1
        for n, (shard, _) in enumerate(here.sources):
            scan = shard.store.scan_part if self._is_beside else shard.overlay.scan_readable
            lower = max(self._lower, self._floors[n])
            found, resume = scan(lower, here.upper, _PAGE) if lower < bound else ([], None)
            yield
            rows += [(key, raw, shard) for key, raw in found]
            if resume is None:
                continue
            bound = min(bound, resume)
            if not found:  # deleted rows only, which took a while; or none that can be read
                self.looks += _EMPTY
                self._floors[n] = resume
                if min(self._floors) > self._lower:
                    self._pass(min(self._floors))
                return
        size = 0
        for n, row in enumerate(sorted(row for row in rows if row[0] < bound), 1):
            size += self._look_at(here, *row)
            if len(self._found) >= self._found_max:
                return
            if n % STEP == 0 or size >= STEP_BYTES:
                size = 0
                yield
        if bound == here.upper:
            self.place = Place(here.queue, here.state, here.upper)
            self._begin_next()
        else:
            self._pass(bound)

    def _pass(self, lower: bytes) -> None:
        """No row below ``lower`` is still to be looked at."""
        self._lower = lower
        if lower.endswith(b"\0"):  # else it is the end of what cannot be read
            here = self._ranges[self._n]
            self.place = Place(here.queue, here.state, lower[:-1])

    def _look_at(self, here: RowRange, key: bytes, raw: bytes, shard: Shard) -> int:
        """Test one row; how many bytes of its record were read."""
        self.looks += 1
        record = task = None
        if self._test.of_key(here, key):
            name = TASK + key[ID_AT:]
            record = shard.store.get(name) if self._is_beside else shard.overlay.get_sound(name)
            # Without a record it is damaged, unless it has ended since its row was read.
            is_there = record is not None or self._has_row(shard, key)
            if is_there and (record is None or self._test.of_record(record)):
                row = attempt(decode_index_row, raw) or UNREADABLE
                task = self._test.task(here, key, row, attempt(decode_task, record))
        if task is not None:
            self._found.append(task)
        self._pass(key + b"\0")
        return 0 if record is None else len(record)

    def _has_row(self, shard: Shard, key: bytes) -> bool:
        return shard.store.get(key) is not None if self._is_beside else shard.overlay.has(key)
