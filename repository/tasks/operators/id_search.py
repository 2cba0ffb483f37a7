"""Go through the results of all queues by their ids, off the loop where the store allows it.

Results lie in the order of their ids, which are times, on every shard. A window of ids is read from
all shards; how wide it is follows from how many rows the one before had. Rows are held against a
test where they are read: only what passes comes back. ``IdSearch`` goes from the newest id down,
``RisingIdSearch`` from an id up.

What a thread reads is what was applied: callers wait for what was queued before they began, and
look at each row again before they change it. A store in memory, or one with damage, whose ranges
are kept on the loop, is read there, in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, Generic, TypeVar

from ....engine.records.keyspace import FIRST_ID, RESULT, RESULT_END
from ....engine.store.port import Rows
from ....errors import CorruptionError
from ...state.engine_state import EngineState
from ...state.queue_state import Shard
from ...state.shard_scope import shards_meant
from ...state.turns import in_slices

__all__ = ["IDS", "IdSearch", "RisingIdSearch"]

T = TypeVar("T")

IDS: Final = 1 << 128
_SCAN_ROWS: Final = 256
_SCAN_BYTES: Final = 1 << 20
_EMPTY: Final = 64  # looks that a read of deleted rows counts as
_EMPTY_MAX: Final = 8  # of them in one window
_WINDOW: Final = 60_000 << 80  # a minute of ids
_ROWS_A_STEP: Final = 16
_LOOKS_A_GO: Final = 4096
_FOUND_A_GO: Final = 256


class IdSearch(Generic[T]):
    """Windows of ids, downwards from ``at`` to ``low``, over all shards at once."""

    def __init__(
        self,
        state: EngineState,
        at: int,
        test: Callable[[bytes, bytes], T | None],
        *,
        bytes_max: int,
        looks_max: int,
        low: int = 0,
        found_max: int = _FOUND_A_GO,
    ) -> None:
        """A search.

        Args:
            state: of the engine.
            at: ids below it are looked at.
            test: called with key and record of each row, in a thread; what it makes of it, or None.
            bytes_max: of rows, after which the search should end.
            looks_max: rows after which it should.
            low: the least id that is looked at.
            found_max: as soon as so many pass, ``window`` returns them.
        """
        self._state = state
        self._shards = shards_meant(state.hosted)
        self._test = test
        self._low = low
        self._width = _WINDOW
        self._found: list[T] = []  # in the windows of this go
        self._overflows = 0  # windows in a row that had too many rows
        self._rows = 32  # read in one go: few, until their size is known
        self.looks = 0  # rows looked at; deleted ones in part
        self.bytes = 0
        self._bytes_max, self._looks_max = bytes_max, looks_max
        self._found_max = min(_FOUND_A_GO, found_max)
        self._is_beside = all(
            shard.store.reads_beside and shard.overlay.unreadable is None for shard in self._shards
        )
        self.at = self._begun_at = self._begin(at)

    def _begin(self, at: int) -> int:
        # Nothing has an id from the future, but of clocks that have stepped back.
        return min(at, max((self._newest(shard, 0, IDS) for shard in self._shards), default=0))

    @property
    def is_over(self) -> bool:
        """Whether there is nothing further on."""
        return self.at <= self._low

    @property
    def may_go_on(self) -> bool:
        """Whether the page may look at more."""
        if self.at == self._begun_at:  # each page gets on by one window at least
            return True
        return self.looks < self._looks_max and self.bytes < self._bytes_max

    async def window(self) -> list[T]:
        """Look at the next rows. Returns what passes, in order: maybe nothing."""
        if self._is_beside:
            try:
                await self._state.thread_reads.run(self._windows(), self._state.check)
            except CorruptionError:  # none of a window that could not be read whole
                self._is_beside = False
        if not self._is_beside:
            await in_slices(self._state, self._windows())
        found, self._found = self._found, []
        return found

    def _windows(self) -> Generator[None, None, None]:
        """Windows, until that was enough for one go."""
        most = min(self._looks_max, self.looks + _LOOKS_A_GO)
        is_first = True
        while is_first or not (
            self.is_over
            or self.looks >= most
            or self.bytes >= self._bytes_max
            or len(self._found) >= self._found_max
        ):
            is_first = False
            yield from self._window()

    def _window(self) -> Generator[None, None, None]:
        low = max(self._low, self.at - self._width)
        rows: Rows = []
        most = 0  # of one shard
        for shard in self._shards:
            some, above = yield from self._scan(shard, low)
            if above is not None:  # there is more than that
                self._narrow(low, above)
                return
            rows += some
            most = max(most, len(some))
        rows.sort(reverse=True)
        yield from self._pass(rows)
        self.at = low
        self._overflows = 0
        if not rows:  # as long as nothing came, nothing is looked for
            self.at = min(low, max(self._newest(shard, self._low, low) for shard in self._shards))
            self._width *= 2
        elif most < self._rows // 2:
            self._width *= 2

    def _pass(self, rows: Rows) -> Generator[None, None, None]:
        """Hold the rows of a window against the test. What passes counts once all were held."""
        found = []
        for n, (key, raw) in enumerate(rows, 1):
            one = self._test(key, raw)
            if one is not None:
                found.append(one)
            if n % _ROWS_A_STEP == 0:
                yield
        self._found += found

    def _narrow(self, low: int, above: int) -> None:
        """Below ``above`` were as many rows as are read in one go: next time less, from the top."""
        newest = max(self._newest(one, low, self.at) for one in self._shards)
        self.at = max(min(self.at, newest), above + 1)  # nothing is between
        self._overflows += 1
        width = min(self.at - above, (above - low) * 5 // 8)
        if self._overflows > 2:
            width = min(width, (self.at - above) // 2)
        self._width = max(1, width)

    def _scan(self, shard: Shard, low: int) -> Generator[None, None, tuple[Rows, int | None]]:
        """Rows of one shard. If there are too many for one go, up to where they were read."""
        lower: bytes | None = _key(low)
        upper = _key(self.at)
        rows: Rows = []
        empty = 0
        while lower is not None:
            page, resume = self._read(shard, lower, upper, self._rows)
            empty += not page and resume is not None
            rows += page
            if resume is not None and (page or empty > _EMPTY_MAX) and self.at - low > 1:
                return [], min(max(low, _id_of(resume)), self.at - 1)
            if resume is not None and resume <= lower:  # damage: its end is searched for
                resume = None
            lower = resume
            yield
        return rows, None

    def _read(
        self, shard: Shard, lower: bytes, upper: bytes, limit: int
    ) -> tuple[Rows, bytes | None]:
        """One part of a scan, and where to go on; it counts what was looked at."""
        scan = shard.store.scan_part if self._is_beside else shard.overlay.scan_readable
        page, resume = scan(lower, upper, limit)
        size = sum([len(raw) for _, raw in page])
        is_empty = not page and resume is not None  # deleted rows only: that took a while
        self.looks += _EMPTY if is_empty else 1 + len(page)
        self.bytes += size
        if size > _SCAN_BYTES:
            self._rows = max(1, self._rows // 2)
        elif size < _SCAN_BYTES // 4:
            self._rows = min(_SCAN_ROWS, 2 * self._rows)
        return page, resume

    def _newest(self, shard: Shard, low: int, high: int) -> int:
        """Above every id of a range that has a row; ``high`` where that cannot be read."""
        lower, upper = _key(low), _key(high)
        try:
            if self._is_beside:
                row = shard.store.scan_last(lower, upper)
                key = None if row is None else row[0]
            else:
                key = shard.overlay.last_key(lower, upper)
        except CorruptionError:
            return high
        return _id_of(key) + 1 if key is not None else 0


class RisingIdSearch(IdSearch[T]):
    """Windows of ids, upwards from ``at`` to below ``high``, over all shards at once.

    A scan goes the same way, so a window that has too many rows, or deleted ones only, ends where
    the first of its scans has ended: nothing is read again but by the shards before that one.
    """

    def __init__(
        self,
        state: EngineState,
        at: int,
        test: Callable[[bytes, bytes], T | None],
        *,
        bytes_max: int,
        looks_max: int,
        high: int = IDS,
        found_max: int = _FOUND_A_GO,
    ) -> None:
        """A search.

        Args:
            state: of the engine.
            at: the first id that is looked at.
            test: as ``IdSearch``.
            bytes_max: as ``IdSearch``.
            looks_max: as ``IdSearch``.
            high: above the last id that is looked at.
            found_max: as ``IdSearch``.
        """
        super().__init__(
            state, at, test, bytes_max=bytes_max, looks_max=looks_max, found_max=found_max
        )
        self._high = high

    def _begin(self, at: int) -> int:
        return at

    @property
    def is_over(self) -> bool:
        """Whether there is nothing further on."""
        return self.at >= self._high

    def _window(self) -> Generator[None, None, None]:
        end = widest = min(self._high, self.at + self._width)
        rows: Rows = []
        most = 0  # of one shard
        for shard in self._shards:
            some, end = yield from self._rise(shard, end)
            rows += some
            most = max(most, len(some))
        upper = _key(end)
        rows = sorted(row for row in rows if row[0] < upper)
        yield from self._pass(rows)
        if end < widest:
            self._width = max(1, end - self.at)
        elif most < self._rows // 2:
            self._width *= 2
        self.at = end
        if not rows and end == widest:  # as long as nothing came, nothing is looked for
            yield from self._skip()

    def _rise(self, shard: Shard, end: int) -> Generator[None, None, tuple[Rows, int]]:
        """Rows of one shard below ``end``, and the end up to which these are all."""
        lower, upper = _key(self.at), _key(end)
        rows: Rows = []
        for _ in range(_EMPTY_MAX):
            rows, resume = self._read(shard, lower, upper, self._rows)
            yield
            if resume is None:
                break
            if resume > lower:  # else damage: its end is searched for
                return rows, min(end, _id_behind(resume))
        return rows, end

    def _skip(self) -> Generator[None, None, None]:
        """Go on to the next row of any shard, or as far as deleted ones were passed over."""
        end = self._high
        for shard in self._shards:
            rows, resume = self._read(shard, _key(self.at), _key(end), 1)
            yield
            if rows:
                end = min(end, _id_of(rows[0][0]))
            elif resume is not None:
                end = min(end, max(self.at, _id_behind(resume)))
        self.at = end


def _key(task_id: int) -> bytes:
    """The key of the first result that has this id or a later one."""
    return RESULT_END if task_id >= IDS else RESULT + task_id.to_bytes(16, "big")


def _id_of(key: bytes) -> int:
    """The id in a key, or the first one behind a key that is cut."""
    return int.from_bytes(key[FIRST_ID].ljust(16, b"\0"), "big")


def _id_behind(resume: bytes) -> int:
    """The first id that is not looked at yet, where a scan goes on at ``resume``."""
    return _id_of(resume) + (len(resume) > 18)
