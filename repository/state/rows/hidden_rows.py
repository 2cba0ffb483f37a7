"""Rows that a damaged block hides although they are not in it, found by their tasks.

A seek into a damaged block fails, so it also finds nothing of what other tables have in that
range: tasks that were enqueued later, above all. Their keys are known, though: by the task's
record, or by its moved row. A get of the key finds the row wherever it lies, unless it is in the
damaged block itself. So once a range is known, the tasks are walked through: a slice at once, which
finds what has just been enqueued, the rest by the reaper. What a load brings is looked through as
well. Rows in the block stay for a salvage.

Where more is hidden than the mirror holds, as where two damaged blocks were taken for one, the walk
waits until claims have made space in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from ....coalescer.unreadable import Unreadable
from ....engine.records.frame import attempt
from ....engine.records.keyspace import (
    DELAYED,
    INDEX,
    MOVED,
    MOVED_END,
    READY,
    ROW_ID,
    TASK,
    TASK_END,
    decode_index_key,
)
from ....engine.records.rows import decode_index_row, decode_moved
from ....engine.records.task import decode_task
from ....engine.store.port import Rows
from ....errors import CorruptionError
from ..queue_state import Shard
from .task_location import first_key

if TYPE_CHECKING:
    from ..engine_state import EngineState

__all__ = ["HiddenRows"]

PAGE_ROWS: Final = 64
PAGE_BYTES: Final = 1 << 20
FIRST_PAGES: Final = 16
SLACK_MS: Final = 5  # an id is of the moment of a call, its seq up to so much later


class HiddenRows:
    """Walks through the tasks of shards with damaged index ranges."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._positions: dict[Shard, bytes] = {}  # where each walk goes on
        self._page_rows = PAGE_ROWS
        self._bytes = 0  # read by the slice that is under way

    def __bool__(self) -> bool:
        return self._following() is not None or any(map(self._is_short, self._state.hosted))

    def _is_short(self, shard: Shard) -> bool:
        """Whether rows that the mirror had no space for are to be found by another walk: it has."""
        unreadable = shard.overlay.unreadable
        if unreadable is None or shard in self._positions:
            return False
        return unreadable.dropped > 0 and unreadable.mirror_left >= PAGE_ROWS

    def _begin_anew(self) -> None:
        for shard in filter(self._is_short, self._state.hosted):
            if shard.overlay.unreadable is not None:
                shard.overlay.unreadable.dropped = 0
            self._positions[shard] = TASK

    def _following(self) -> Shard | None:
        """The next shard to walk through: one whose mirror has space, others wait for claims."""
        for shard in self._positions:
            unreadable = shard.overlay.unreadable
            if unreadable is None or unreadable.mirror_left >= PAGE_ROWS:
                return shard
        return None

    def look(self, shard: Shard, lower: bytes) -> None:
        """A range that begins at ``lower`` is known from now on: find what it hides."""
        unreadable = shard.overlay.unreadable
        if unreadable is None or not lower.startswith(INDEX):
            return
        self._positions[shard] = TASK
        position = TASK + _ms_of(lower).to_bytes(6, "big")
        self._bytes = 0
        for _ in range(FIRST_PAGES):
            try:
                following = self._page(shard, unreadable, position, shard.overlay.scan)
            except CorruptionError:  # the reaper has probes for it, this call has few left
                break
            if following is None or following == MOVED or self._bytes > PAGE_BYTES:
                break
            position = following
        self._state.deadlines.wake_reaper()

    def came_in(self, shard: Shard, first: bytes) -> None:
        """A load came past the commit loop, which mirrors: its tasks begin at ``first``."""
        if shard.overlay.unreadable is None:
            return
        position = self._positions.get(shard, first)
        self._positions[shard] = min(position, first) if position >= TASK else first
        self._state.deadlines.wake_reaper()

    def forget(self, shard: Shard) -> None:
        """End the walk through a shard that is not here any more."""
        self._positions.pop(shard, None)

    def slices(self) -> Iterator[Shard]:
        """All that is left, a bounded step at a time; the shard it was about."""
        self._begin_anew()
        while (shard := self._following()) is not None:
            position = self._positions[shard]
            unreadable = shard.overlay.unreadable
            following = None
            if unreadable is not None and shard.coalescer.takes_writes:
                scan = shard.overlay.scan_readable
                following = self._page(shard, unreadable, position, scan)
            if following is None:
                del self._positions[shard]
            else:
                self._positions[shard] = following
            yield shard

    def _page(
        self,
        shard: Shard,
        unreadable: Unreadable,
        position: bytes,
        scan: Callable[[bytes, bytes, int], tuple[Rows, bytes | None]],
    ) -> bytes | None:
        """One page of tasks, or of moved rows; where the next one begins."""
        is_task = position < TASK_END and position >= TASK
        upper = TASK_END if is_task else MOVED_END
        rows, resume = scan(position, upper, self._page_rows)
        size = 0
        for row_key, raw in rows:
            size += len(raw)
            if is_task:
                task = attempt(decode_task, raw)
                key = first_key(row_key[ROW_ID], task) if task is not None else b""
            else:
                moved = attempt(decode_moved, raw)
                key = moved.key if moved is not None else b""
            if unreadable.hides(key):
                self._take(shard, unreadable, key)
        self._bytes += size
        if size > PAGE_BYTES:
            self._page_rows = max(1, self._page_rows // 2)
        elif size < PAGE_BYTES // 2:
            self._page_rows = min(PAGE_ROWS, 2 * self._page_rows)
        if resume is not None:
            return resume
        return MOVED if is_task else None

    def _take(self, shard: Shard, unreadable: Unreadable, key: bytes) -> None:
        """A row that can be read after all: from now on scans find it, and memory knows of it."""
        value = shard.overlay.get_sound(key)
        row = attempt(decode_index_row, value)
        if value is None or row is None:
            return
        unreadable.mirror(key, value)
        state, at = self._state, decode_index_key(key)
        tenant_queue = state.tenant_queue(at.queue, at.tenant)
        shard_queue = tenant_queue.shard_queue(shard)
        if at.kind == READY:
            index = 9 - at.priority
            ready_cache = shard_queue.ready_caches[index]
            held = ready_cache.rows if ready_cache is not None else ()
            nth = bisect_left(held, (key,))
            if nth == len(held) or held[nth][0] != key:
                facts = (row.attempts, row.flags, row.expires_ms, row.record_bytes)
                shard_queue.put(index, (key, at.task_id, *facts, None))
                shard_queue.occupied |= 1 << index
            tenant_queue.queue_state.turns.setdefault(tenant_queue.tenant)
            if state.claim_sets.is_noted:
                state.waiters.note(tenant_queue)
                shard.coalescer.poke()
        elif at.kind == DELAYED:
            shard_queue.delayed_head = min(shard_queue.delayed_head, key)
            state.cut_delayed(shard_queue, key)
            if at.at < shard_queue.next_due_ms:
                state.deadlines.note_due(shard_queue, at.at)


def _ms_of(lower: bytes) -> int:
    """The milliseconds of the least id that a ready row from ``lower`` on can have, as a rule."""
    at = lower.index(b"\0", lower.index(b"\0", len(INDEX)) + 1) + 1
    if lower[at : at + 1] != READY:
        return 0
    seq = int.from_bytes(lower[at + 2 : at + 10].ljust(8, b"\0"), "big")
    return max(0, min(seq // 1000 - SLACK_MS, (1 << 48) - 1))
