"""Bounds of the history: the rows of ended tasks that a queue keeps beyond their retention.

``Limits.results_max`` bounds all results of the store, ``HistoryBounds`` those of a queue, by rows
and bytes. What goes first is history, oldest first; a result within its retention is never dropped
here. The rows are found where they are filed: a walk along the expiry range passes entries of
other queues, and of results that still have a value, unread, and reads those that it may drop. It
goes on where it ended, so what is kept is not looked at again and again; once an hour it begins
anew, for rows may be filed behind it (a value that was kept for longer, a clock that stepped back).

Bytes are estimated: rows times the size of those that were read last. A row that is damaged, or
lies in a damaged block, is passed over, and stays until its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...coalescer.group import Group
from ...engine.records.frame import attempt
from ...engine.records.keyspace import EXPIRY_END, RESULT, decode_expiry_key
from ...engine.records.result import HAS_VALUE, decode_result, result_due_ms, result_until_ms
from ...engine.records.rows import decode_expiry, encode_expiry
from ...engine.records.workflow import MEMBER_RESULT
from ...engine.recovery.verify import bucket_of
from ..state.engine_state import EngineState
from ..state.queue_state import NEVER_MS, QueueState, Shard, ShardQueue
from ..state.rows.expiry_entries import (
    FINAL_KIND,
    IN_SHARD_QUEUE_KINDS,
    READ_KIND,
    SHARD_QUEUE_KIND,
    SHARD_QUEUE_KINDS,
    Entry,
)
from ..state.rows.task_location import forget_result

__all__ = ["HistoryTrim"]

SLICE: Final = 128  # results read in one slice
SCANNED: Final = 16  # expiry rows read in one go
TENANT_QUEUES: Final = 1024  # counted in one turn
AGAIN_MS: Final = 3_600_000
MET_MS: Final = 60_000  # at least, until a queue whose retention ended a search is looked at again
ROW_BYTES: Final = 256  # of a row of the history, until one was read
ROW_BYTES_MAX: Final = 4096
SAMPLE: Final = 8
Slices = Iterator[dict[Shard, Group]]


class HistoryTrim:
    """Keeps the history of one engine within its bounds, a slice at a time."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._counted: dict[int, int] = {}  # results of a shard when its queues were counted last
        self._positions: dict[tuple[int, bytes], bytes] = {}  # by shard and queue; b"": any queue
        self._again_ms: dict[int, int] = {}  # of a shard: when a retention that was met is over
        self._led: dict[int, int] = {}  # by shard: since which epoch all that is known of it holds
        self._begun_ms = 0
        self._rules_seen = -1
        self._is_off = True
        self._least = 0
        self._row_bytes: dict[bytes, int] = {}

    def forget(self, shard: Shard) -> None:
        """The shard is not here, or not led here, any more: all of it may be another's by then."""
        self._led.pop(shard.index, None)
        self._counted.pop(shard.index, None)
        self._again_ms.pop(shard.index, None)
        for at in [one for one in self._positions if one[0] == shard.index]:
            del self._positions[at]

    def _look_at_rules(self) -> None:
        """After a change: whether any queue keeps history, and the least bound of all."""
        state = self._state
        if self._rules_seen == state.rules_set:
            return
        self._rules_seen = state.rules_set
        each = [state.history, *map(state.history_of, state.rules.values())]
        self._is_off = not any(bounds.ms for bounds in each)
        self._least = min(min(one.rows, one.bytes_max // ROW_BYTES_MAX) for one in each)
        self._counted.clear()

    def slices(self, shard: Shard, over: int) -> Slices:
        """Drop what is too much.

        Args:
            shard: the shard to work on.
            over: results beyond ``Limits.results_max``; that much history goes, of any queue.
        """
        state = self._state
        self._look_at_rules()
        if self._is_off or not shard.coalescer.is_tended:
            return
        led = shard.first_epoch
        if self._led.get(shard.index) != led:
            self.forget(shard)
            self._led[shard.index] = led
        now_ms = state.clock.wall_us() // 1000
        if now_ms - self._begun_ms > AGAIN_MS or now_ms < self._begun_ms:
            self._begun_ms = now_ms
            self._positions.clear()
            if len(self._row_bytes) > TENANT_QUEUES:  # of queues that may be gone
                self._row_bytes.clear()
        if over > 0:
            yield from self._walk(shard, {}, over)
        least = self._least
        if now_ms >= self._again_ms.get(shard.index, NEVER_MS):
            del self._again_ms[shard.index]
            self._counted.pop(shard.index, None)
        grown = shard.results - self._counted.get(shard.index, 0)
        if shard.results * len(state.shards) <= least or 0 <= grown < max(1, least // 64):
            return
        self._counted[shard.index] = shard.results
        wanted: dict[bytes, int] = {}
        for queue_state in list(state.queue_states.values()):
            yield from self._count(shard, queue_state, wanted)
            if not _is_led(shard, led):
                break
        else:
            if wanted:
                yield from self._walk(shard, wanted, 0)
                self._counted[shard.index] = shard.results
        if not _is_led(shard, led):  # lost meanwhile, or its session is: counted anew
            self._counted.pop(shard.index, None)

    def _count(self, shard: Shard, queue_state: QueueState, wanted: dict[bytes, int]) -> Slices:
        """How many rows of a queue are too many here; 0: some are to be read, for their size."""
        total = 0
        for looked, tenant_queue in enumerate(list(queue_state.tenant_queues.values()), 1):
            shard_queue = tenant_queue.shard_queues[shard.index]
            total += shard_queue.results if shard_queue is not None else 0
            if looked % TENANT_QUEUES == 0:
                yield {}
        shards, bounds = len(self._state.shards), queue_state.history
        size = self._row_bytes.get(queue_state.queue)
        most = min(bounds.rows, bounds.bytes_max // (size or ROW_BYTES))
        over = total + most // -shards  # its share, rounded up
        if over > 0:
            wanted[queue_state.queue] = over
        elif size is None and total * shards > bounds.bytes_max // ROW_BYTES_MAX:
            wanted[queue_state.queue] = 0

    def _walk(self, shard: Shard, wanted: dict[bytes, int], any_queue: int) -> Slices:
        """Along the expiry range, until what is wanted is dropped or the rest is to be kept."""
        names = list(wanted) or [b""]
        default = shard.expiry_head
        at: bytes | None = min(self._positions.get((shard.index, name), default) for name in names)
        run = _Walk(self._state, shard, self._row_bytes, wanted, any_queue)
        last, led = b"", shard.first_epoch
        while at is not None and not run.is_over and _is_led(shard, led):
            rows, resume = shard.overlay.scan_readable(
                max(at, shard.expiry_head), EXPIRY_END, SCANNED
            )
            group = shard.coalescer.begin(SLICE * 64)
            queued = len(group.ops)
            run.left = SLICE
            for key, raw in rows:
                last = key
                run.row(group, key, raw)
                if run.left <= 0 or run.is_over:
                    break
            at = resume
            if run.left <= 0 or run.is_over:
                at = last if run.has_dropped else last + b"\0"
            if len(group.ops) > queued or rows:
                yield {shard: group}
        if not _is_led(shard, led):  # the rest is another's; it may have been let go
            return
        if run.until_ms < NEVER_MS:
            self._again_ms[shard.index] = max(run.until_ms, run.now_ms + MET_MS)
        for name in names:
            if last:
                self._positions[shard.index, name] = last


def _is_led(shard: Shard, led: int) -> bool:
    """Whether the shard is led here, and has been since a walk began under this first epoch."""
    return shard.coalescer.is_tended and shard.first_epoch == led


class _Walk:
    """One walk: what it still wants to drop."""

    def __init__(
        self,
        state: EngineState,
        shard: Shard,
        sizes: dict[bytes, int],
        wanted: dict[bytes, int],
        any_queue: int,
    ) -> None:
        self._state = state
        self._shard = shard
        self._sizes = sizes
        self._wanted = dict(wanted)
        self._any = any_queue
        self.now_ms = state.clock.wall_us() // 1000
        self.until_ms = NEVER_MS  # when the first retention that ended a search is over
        self._read: dict[bytes, int] = {}
        self.left = 0  # results that may be read in this slice
        self.has_dropped = False  # anything of the last row

    @property
    def is_over(self) -> bool:
        """Whether nothing is wanted any more."""
        return not self._wanted and self._any <= 0

    def row(self, group: Group, key: bytes, raw: bytes) -> None:
        """Drop what may go of one expiry row."""
        shard = self._shard
        entries = attempt(decode_expiry, raw) or []
        due_ms = decode_expiry_key(key)[0]
        keep: list[Entry] = []
        header: Entry | None = None
        is_named = self.has_dropped = False
        shard_queue: ShardQueue | None = None
        with group:
            for kind, ref in entries:
                if kind in SHARD_QUEUE_KINDS:
                    header, is_named = (kind, ref), False
                    shard_queue = (
                        shard.shard_queues_by_hash.get(ref) if kind == SHARD_QUEUE_KIND else None
                    )
                    continue
                if (
                    shard_queue is not None
                    and kind in (FINAL_KIND, READ_KIND)
                    and self.left > 0
                    and self._is_wanted(shard_queue)
                    and self._drop(group, shard_queue, ref, due_ms)
                ):
                    self.has_dropped = True
                    continue
                if kind in IN_SHARD_QUEUE_KINDS and header is not None and not is_named:
                    keep.append(header)
                    is_named = True
                keep.append((kind, ref))
            if self.has_dropped:
                value = encode_expiry(bytes((k,)) + ref for k, ref in keep) if keep else None
                group.ops.append((key, value))

    def _is_wanted(self, shard_queue: ShardQueue) -> bool:
        return self._any > 0 or shard_queue.tenant_queue.queue in self._wanted

    def _drop(self, group: Group, shard_queue: ShardQueue, task_id: bytes, due_ms: int) -> bool:
        """Drop one result if it is history; one within its retention ends the search."""
        state, shard, queue = self._state, self._shard, shard_queue.tenant_queue.queue
        self.left -= 1
        raw = shard.overlay.get_sound(RESULT + task_id)
        record = attempt(decode_result, raw)
        if raw is None or record is None or bucket_of(result_due_ms(record)) != due_ms:
            return False  # damaged, or an older end of the task
        known = self._sizes.get(queue, len(raw))
        self._sizes[queue] = (7 * known + len(raw)) // 8
        until_ms = result_until_ms(record)
        if until_ms > self.now_ms:
            is_before = record.flags & HAS_VALUE and record.history_s * 1000 > record.retention_ms
            if is_before or record.flags & MEMBER_RESULT:
                return False  # filed for the end of its retention: history may lie behind it
            self._wanted.pop(queue, None)
            self._any = 0
            self.until_ms = min(self.until_ms, until_ms)
            return False
        if record.flags & MEMBER_RESULT and state.flows.pins(shard, task_id):
            return False
        if self._any > 0:
            self._any -= 1
        elif self._wanted[queue] > 0:
            self._wanted[queue] -= 1
            if not self._wanted[queue]:
                del self._wanted[queue]
        else:  # only to know the size of its rows
            self._read[queue] = self._read.get(queue, 0) + 1
            if self._read[queue] >= SAMPLE:
                del self._wanted[queue]
            return False
        forget_result(state, shard, group, task_id, record)
        return True
