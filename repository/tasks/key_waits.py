"""Set aside what waits for room under the limit of its key, and let it go again.

Both are moves of one index row, in atomic sections: ``-q(r) +q(d) +s`` where a claim meets a task
whose key is full, and back, to the place it had, where a lease of the key has ended
(``state/limits/key_limits.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...coalescer.group import Group
from ...engine.records.frame import attempt
from ...engine.records.keyspace import (
    DELAYED,
    ID_AT,
    MOVED,
    ORDER_AT,
    SEQ_AT,
    TASK,
    delayed_key,
    prefix_end,
)
from ...engine.records.queues.key_waits import (
    KEY_WAIT_MS,
    NO_KEY,
    first_due,
    key_of_row,
    wait_due,
)
from ...engine.records.rows import (
    MOVED_ROW,
    IndexRow,
    Moved,
    decode_index_row,
    encode_index_row,
    encode_moved,
)
from ...engine.records.task import decode_task
from ...errors import LodeqError
from ..state.caches.ready_cache import TASK_ID, Row
from ..state.engine_state import EngineState
from ..state.limits.key_limit import face_of_record
from ..state.queue_state import Shard, ShardQueue, TenantQueue
from ..state.rows.task_location import first_key

__all__ = ["KeyWaits", "admits", "set_aside"]

SLICE: Final = 128  # rows that one step moves, and keys that it looks at
_NO_END: Final = 1 << 62


def admits(state: EngineState, shard_queue: ShardQueue, row: Row, record: bytes) -> bool:
    """Count a row that is about to be leased; False if its key is full, and it is to wait.

    What is not leased after all is uncounted with ``KeyLimit.leave``.

    Args:
        state: the engine's state.
        shard_queue: of the row; its queue has a limit of keys.
        row: popped.
        record: of the task.
    """
    tenant_queue = shard_queue.tenant_queue
    limit = tenant_queue.queue_state.key_limit
    key = limit.key_of(face_of_record(record)) if limit is not None else NO_KEY
    if limit is not None and key:
        one = tenant_queue.tenant, key
        if limit.free(one) <= 0:
            return False
        limit.enter(one, row[TASK_ID])
        state.key_limits.woken.pop(row[TASK_ID], None)
    return True


def set_aside(
    state: EngineState, group: Group, shard_queue: ShardQueue, row: Row, record: bytes
) -> None:
    """A ready row that was popped waits for its key: ``-q(r) +q(d) +s``, no run counted.

    Args:
        state: the engine's state.
        group: of the task's shard; gets the rows.
        shard_queue: of the row.
        row: one that ``admits`` has refused.
        record: of the task.
    """
    key, task_id, attempts, flags, expires_ms, size, _ = row
    limit, priority = shard_queue.tenant_queue.queue_state.key_limit, 9 - key[ORDER_AT]
    due_ms = wait_due(limit.key_of(face_of_record(record)) if limit else NO_KEY, priority)
    seq = int.from_bytes(key[SEQ_AT:ID_AT], "big")
    later = delayed_key(shard_queue.prefix, due_ms, seq, task_id)
    had = attempt(decode_index_row, shard_queue.shard.overlay.get_sound(key))
    reason = had.reason if had is not None else b""  # why it has failed before
    packed = encode_index_row(
        IndexRow(flags | MOVED_ROW, priority, attempts, size, expires_ms, reason)
    )
    state.key_limits.woken.pop(task_id, None)
    group.ops += ((key, None), (MOVED + task_id, encode_moved(Moved(attempts, later))))
    state.put_delayed(group, shard_queue, later, due_ms, packed)


class KeyWaits:
    """Lets go what waits for its key: at the end of a turn, and in passes of the reaper."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._limits = state.key_limits
        self._limits.serve, self._limits.slices = self.serve, self.slices

    def serve(self) -> None:
        """Let as many go as there have been ends, first come first served; at most a slice."""
        freed, state = self._limits.freed, self._state
        if state.is_closed:
            freed.clear()
            return
        for _ in range(min(len(freed), SLICE)):
            (tenant_queue, key), count = next(iter(freed.items()))
            del freed[tenant_queue, key]
            limit = tenant_queue.queue_state.key_limit
            if limit is None or tenant_queue.is_dropped:
                continue  # all of its rows are let go
            count = min(count, limit.free((tenant_queue.tenant, key)))
            for _ in range(count):
                try:
                    if not self._let_first_go(tenant_queue, key):
                        break
                except LodeqError as error:
                    state.anomaly(f"{tenant_queue.queue.decode()}: what waits for a key: {error}")
                    self._limits.unswept_queues[tenant_queue.queue] = None
                    break

    def _let_first_go(self, tenant_queue: TenantQueue, key: int) -> bool:
        """The first of all shards, by priority and seq."""
        first: tuple[bytes, bytes, ShardQueue, bytes] | None = None
        for shard_queue in tenant_queue.shard_queues:
            if shard_queue is None or not shard_queue.waiting:
                continue
            if not shard_queue.shard.coalescer.takes_writes:
                continue
            start = shard_queue.prefix + DELAYED
            lower, upper = (start + first_due(one).to_bytes(8, "big") for one in (key, key + 1))
            rows, _ = shard_queue.shard.overlay.scan_readable(lower, upper, 1)
            if rows:
                row_key, raw = rows[0]
                order = row_key[len(start) :]
                if first is None or order < first[0]:
                    first = order, row_key, shard_queue, raw
        if first is None:
            return False
        _, row_key, shard_queue, raw = first
        group = shard_queue.shard.coalescer.begin(256)
        return self._let_go(group, shard_queue, row_key, raw)

    def _let_go(self, group: Group, shard_queue: ShardQueue, row_key: bytes, raw: bytes) -> bool:
        """``-q(d) +q(r) +s``, to where it was before; False if the row cannot be read."""
        state, task_id = self._state, row_key[ID_AT:]
        row = attempt(decode_index_row, raw)
        if row is None:
            state.anomaly(f"shard {shard_queue.shard.index}: index row {row_key!r} is damaged")
            return False
        if any(take(group, shard_queue, row_key) for take in state.flows.takers):
            return True  # it is purged
        index, seq = 9 - row.priority, int.from_bytes(row_key[SEQ_AT:ID_AT], "big")
        key = shard_queue.ready_key(shard_queue.ready_prefixes[index], seq, task_id)
        task = attempt(decode_task, shard_queue.shard.overlay.get_sound(TASK + task_id))
        moved = None  # who stands where it was enqueued has no row that says so
        if task is None or key != first_key(task_id, task):
            moved = encode_moved(Moved(row.attempts, key))
        row = row._replace(flags=row.flags & ~MOVED_ROW | (MOVED_ROW if moved else 0))
        encode_index_row(row)  # first: nothing may fail between the two moves
        state.drop_delayed(group, shard_queue, row_key)
        state.put_ready(group, shard_queue, index, key, task_id, row)
        group.ops.append((MOVED + task_id, moved))
        if shard_queue.tenant_queue.queue_state.key_limit is not None:
            self._limits.woken[task_id] = shard_queue.tenant_queue, key_of_row(row_key)
        return True

    # -- all keys ------------------------------------------------------------------------

    def slices(self) -> Iterator[dict[Shard, Group]]:
        """Go through what is to be looked at: of each key as many rows go as there is room for.

        Yields after each slice; what is to be looked at meanwhile comes in the next pass.
        """
        limits, state = self._limits, self._state
        if limits.is_held:
            return
        queues, shards = list(limits.unswept_queues), set(limits.unswept_shards)
        limits.unswept_queues.clear()
        limits.unswept_shards.clear()
        todo = list(state.queue_states) if shards else queues
        for at, queue in enumerate(todo):
            queue_state = state.queue_states.get(queue)
            mark = object()  # who wants another look meanwhile puts something else there
            for tenant_queue in list(queue_state.tenant_queues.values()) if queue_state else ():
                for shard_queue in tenant_queue.shard_queues:
                    if shard_queue is None or not shard_queue.waiting:
                        continue
                    if queue in queues or shard_queue.shard in shards:
                        limits.unswept_queues.setdefault(queue, mark)  # until it is done
                        try:
                            yield from self._sweep(shard_queue)
                        except LodeqError as error:  # the others' keys do not wait for it
                            state.anomaly(f"{queue.decode()}: what waits for keys: {error}")
                        if limits.is_held:  # from the beginning, once that is over
                            limits.unswept_queues.update(dict.fromkeys(todo[at:]))
                            return
            if limits.unswept_queues.get(queue) is mark:
                del limits.unswept_queues[queue]

    def _sweep(self, shard_queue: ShardQueue) -> Iterator[dict[Shard, Group]]:
        start, shard = shard_queue.prefix + DELAYED, shard_queue.shard
        first, upper = start + KEY_WAIT_MS.to_bytes(8, "big"), prefix_end(start)
        lower: bytes | None = first
        key, room = NO_KEY, 0
        rows, resume = shard.overlay.scan_readable(first, upper, 1)
        if not rows and resume is None:  # all of them wait for other tasks
            yield {}
            return
        while lower is not None and shard.coalescer.takes_writes and not self._limits.is_held:
            group = shard.coalescer.begin(SLICE * 256)
            looked = 0
            while lower is not None and looked < SLICE:
                most = 1 if room <= 0 else min(room, SLICE - looked)
                rows, lower = shard.overlay.scan_readable(lower, upper, most)
                for row_key, raw in rows:
                    looked += 1
                    if key_of_row(row_key) != key:
                        key = key_of_row(row_key)
                        room = self._room(shard_queue, row_key, key)
                    if room <= 0:
                        break
                    self._let_go(group, shard_queue, row_key, raw)
                    room -= 1
                if rows and room <= 0:  # over what else waits for this key
                    lower = start + first_due(key + 1).to_bytes(8, "big")
                looked += not rows
            yield {shard: group}

    def _room(self, shard_queue: ShardQueue, row_key: bytes, key: int) -> int:
        """How many rows of a key may go; without end where another limit holds now, or none."""
        tenant_queue = shard_queue.tenant_queue
        limit = tenant_queue.queue_state.key_limit
        task = attempt(decode_task, shard_queue.shard.overlay.get_sound(TASK + row_key[ID_AT:]))
        if limit is None or (task is not None and limit.key_of(task.face) != key):
            return _NO_END
        return limit.free((tenant_queue.tenant, key))
