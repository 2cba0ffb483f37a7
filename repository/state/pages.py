"""A range of rows, page by page, for whoever gives the loop turns in between.

An empty page is not the end of a range: a pending group may have deleted its rows, or there may be
many that were deleted long ago, or a range that cannot be read, which ``health()`` names. ``Pages``
goes on by itself, with a turn of the loop after each.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Final

from ...engine.records.frame import attempt
from ...engine.records.keyspace import (
    ALL_TENANTS_MARK,
    COUNTERS,
    COUNTERS_END,
    DEAD,
    DELAYED,
    PAUSE,
    PAUSE_END,
    QUEUE_SETTINGS,
    QUEUE_SETTINGS_END,
    READY,
    decode_counters_key,
    decode_pause_key,
    decode_queue_settings_key,
    prefix_end,
)
from ...engine.records.queues.queue_settings import STARTS, decode_queue_settings
from ...engine.records.rows import Counters, decode_counters
from ...engine.recovery.pending_counts import uncounted_rows
from ...engine.store.port import Rows
from ...errors import CorruptionError, RecordCorruptError
from .engine_state import EngineState
from .limits.queue_rules import UNSET, QueueRules
from .queue_state import Shard, ShardQueue
from .rows.dedup_entries import load_dedup

__all__ = [
    "SLICE",
    "Pages",
    "counter_slices",
    "counts_of",
    "find_floor",
    "load_rules",
    "row_count",
    "row_parts",
]

SLICE: Final = 256  # rows that are read in one go
_RAISED = (DELAYED, DEAD)  # of the ready rows the caches know
_FEW: Final = 128  # rows that are stepped over sooner than deleted ones are looked for
_MANY: Final = 2048
_SLICE: Final = 512
_TRIES: Final = _MANY // _SLICE + 4  # of two milliseconds at most: a turn of the loop


class Pages:
    """The rows in ``[lower, upper)`` of a shard, queued ones too.

    Args:
        state: for turns of the loop.
        shard: whose rows.
        lower: where to begin.
        upper: where to end.
        limit: rows a page.
        for_writing: wait for a turn on the shard (back-pressure) before each page.
    """

    __slots__ = ("_at", "_for_writing", "_is_first", "_limit", "_shard", "_state", "_upper")

    def __init__(
        self,
        state: EngineState,
        shard: Shard,
        lower: bytes,
        upper: bytes,
        limit: int,
        *,
        for_writing: bool = False,
    ) -> None:
        self._state = state
        self._shard = shard
        self._at: bytes | None = lower
        self._upper = upper
        self._limit = limit
        self._for_writing = for_writing
        self._is_first = True

    async def following(self) -> Rows:
        """The next rows; none: that was all. No wait is between its read and its return."""
        state, shard = self._state, self._shard
        while self._at is not None:
            if not self._is_first:
                await state.spawner.checkpoint()
                state.check()
            self._is_first = False
            if self._for_writing and not shard.coalescer.has_capacity:
                await state.backpressure(shard)
            rows, self._at = shard.overlay.scan_readable(self._at, self._upper, self._limit)
            if rows:
                return rows
        return []


async def find_floor(state: EngineState, shard_queue: ShardQueue, kind: bytes) -> bytes:
    """Where the rows of one kind begin; remembered, so that deleted rows are passed over once.

    What is filed below the floor meanwhile lowers it. So each part is remembered before the wait.

    Where it is known how many rows there are, they are counted from the end, and no deleted row in
    front of them is met.
    """
    upper, floor = prefix_end(shard_queue.prefix + kind), shard_queue.floor(kind)
    if kind in _RAISED:
        is_known = floor != shard_queue.prefix + kind
    else:  # nothing is remembered: a claim does that, and until then each call would pass them over
        is_known = shard_queue.shard.overlay.has(floor)
    if not is_known or row_count(shard_queue, kind) == 0:
        counted = _count_back(shard_queue, kind, _FEW)
        if counted is not None:
            return counted
    is_first = True
    while True:
        try:
            rows, following = shard_queue.shard.overlay.scan(shard_queue.floor(kind), upper, 1)
        except CorruptionError:  # rows may come back in what cannot be read: no floor is above it
            return shard_queue.floor(kind)
        if rows:
            shard_queue.raise_floor(kind, rows[0][0])
        if is_first and not rows and following is not None:
            is_first = False
            counted = _count_back(shard_queue, kind, _MANY)
            if counted is not None:
                return counted
        if rows or following is None or not shard_queue.shard.coalescer.takes_writes:
            return shard_queue.floor(kind)
        shard_queue.raise_floor(kind, following)
        if kind not in _RAISED:
            return shard_queue.floor(kind)
        await state.spawner.checkpoint()
        state.check()


def counts_of(shard_queue: ShardQueue) -> Counters | None:
    """Counters of a shard queue, queued rows included; None where they are not known.

    On a shard that is led elsewhere the counter row says it: it is of the moment of the other rows.
    """
    shard = shard_queue.shard
    if shard.coalescer.takes_writes:
        b = shard_queue
        return Counters(b.ready, b.delayed, b.leased, b.dead, b.results, b.waiting)
    if not shard.coalescer.is_following:
        return None
    try:
        raw = shard.store.get(shard_queue.counters_key)
    except CorruptionError:
        return None
    return Counters() if raw is None else attempt(decode_counters, raw)


def row_count(shard_queue: ShardQueue, kind: bytes, *, state: str = "") -> int | None:
    """How many ready, delayed or dead rows there are, queued ones too; None: not known.

    Args:
        shard_queue: whose rows.
        kind: of the rows.
        state: ``delayed`` or ``waiting`` for those of the delayed rows alone.
    """
    counts, shard = counts_of(shard_queue), shard_queue.shard
    if counts is None:
        return None
    if kind == DEAD:
        return counts.dead
    try:  # memory counts a load as it comes in; the rows say it later
        if not shard.coalescer.takes_writes and next(uncounted_rows(shard.store), None) is not None:
            return None
    except CorruptionError:
        return None
    if kind == READY:
        return counts.ready
    if state == "waiting":
        return counts.waiting
    return counts.delayed - counts.waiting if state else counts.delayed


def _count_back(shard_queue: ShardQueue, kind: bytes, most: int) -> bytes | None:
    """The first row of a kind, found from the end; behind all where there is none; None: unknown.

    ``most``: what may be stepped over.
    """
    lower, count = shard_queue.floor(kind), row_count(shard_queue, kind)
    upper = prefix_end(shard_queue.prefix + kind)
    if count is None or count > most:
        return None
    if count <= 0:
        return upper
    first = upper
    for _ in range(_TRIES):
        rows = shard_queue.shard.overlay.scan_back(lower, first, min(count, _SLICE))
        if not rows:
            return None
        count, first = count - len(rows), rows[-1][0]
        if not count:
            break
    else:
        return None
    shard_queue.raise_floor(kind, first)
    return first


def counter_slices(state: EngineState, shard: Shard) -> Generator[None, None, None]:
    """Read counters of a shard, and pauses and settings of the first, into memory; in slices."""
    load_dedup(shard)
    shard.dedup_filter.step(shard.overlay)  # in a new store it is complete with this
    for rows in row_parts(shard, COUNTERS, COUNTERS_END):
        for key, raw in rows:
            queue, tenant = decode_counters_key(key)
            tenant_queue = state.tenant_queue(queue, tenant)
            counts = decode_counters(raw)
            shard_queue = tenant_queue.shard_queue(shard)
            shard.results += counts.results - shard_queue.results  # a follower may know it already
            shard_queue.load(*counts)
            if counts.ready:
                tenant_queue.queue_state.turns[tenant] = None
        yield
    if shard is not state.first:  # of another it has copies, from when several processes had it
        return
    for rows in row_parts(shard, PAUSE, PAUSE_END):
        for key, _ in rows:
            queue, tenant = decode_pause_key(key)
            state.set_pause(queue, None if tenant == ALL_TENANTS_MARK else tenant, is_paused=True)
        yield
    for rows in row_parts(shard, QUEUE_SETTINGS, QUEUE_SETTINGS_END):
        for key, raw in rows:
            load_rules(state, shard, key, raw, is_past_known=False)
        yield


def load_rules(
    state: EngineState, shard: Shard, key: bytes, raw: bytes | None, *, is_past_known: bool = True
) -> None:
    """Read a row of settings into memory.

    A damaged one is an anomaly, and its queue is as if nothing were set: the others must open.

    Args:
        state: the engine's state.
        shard: where the row lies.
        key: of the row.
        raw: its value; None: it was deleted.
        is_past_known: False after a restart: see ``QueueLimits.set``.
    """
    queue = decode_queue_settings_key(key)
    try:
        stored = decode_queue_settings(raw) if raw is not None else {}
        left = stored.pop(STARTS, None)
        starts: Sequence[int] | None = None
        # Only from the process before: else somebody has had the store open since.
        is_last = left is not None and left.set_us == (shard.next_epoch >> 40) - 1
        if left is not None and isinstance(left.value, tuple) and is_last and not is_past_known:
            starts = left.value
        rules = QueueRules(stored) if stored else UNSET
        state.set_rules(queue, rules, is_past_known=is_past_known, starts=starts)
    except RecordCorruptError as error:
        state.set_rules(queue, UNSET)
        state.anomaly(
            f"shard {shard.index}: {queue.decode()}: {error}; nothing is set for this queue now: "
            "set it again"
        )


def row_parts(shard: Shard, lower: bytes, upper: bytes) -> Iterator[Rows]:
    """All rows of a range, as they are written. A part that is empty is time that has passed."""
    at: bytes | None = lower
    while at is not None:
        rows, at = shard.store.scan_part(at, upper, SLICE)
        yield rows
