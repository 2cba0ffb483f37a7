"""The sweep over the expiry range: ends what has expired, and deletes results beyond the limit.

An ``e/`` row lists what one commit group wants examined in one second. Most entries are hints: the
row they name says itself whether it has expired. The result of a *completed* task is different: it
is written once, and only time removes it, so its entry (kind ``c``, behind a ``B`` entry that names
the shard queue whose counter includes it) is acted on without reading the result. Behind a ``b``
entry, of format 1, the result is read, because anybody could make two shard queues with the same
name there. So a store at ``Limits.results_max`` stays fast: one delete for each completion, and no
read.

Kinds ``v`` and ``h`` stand behind a ``B`` entry as well, and are read. The row of a ``v`` has a
value that goes first: it is written again without it, and filed for the end of its history. That of
an ``h`` has none, but attempts beside it, or is perhaps that of a later end of the same task.

A hint whose row cannot be read stays for the next pass, behind the others of its row: a damaged
block must not hold up everything that is due after it.
"""

from __future__ import annotations

from collections.abc import Callable

from ...coalescer.group import Group
from ...engine.records.keyspace import (
    DEAD,
    EXPIRY_END,
    GHOST,
    RESULT,
    decode_expiry_key,
    expiry_key,
)
from ...engine.records.result import (
    HAS_ATTEMPTS,
    HAS_VALUE,
    ResultRecord,
    Status,
    decode_result,
    encode_result,
    result_due_ms,
    without_value,
)
from ...engine.records.rows import (
    decode_expiry,
    decode_ghost,
    encode_expiry,
    encode_index_row,
)
from ...engine.records.workflow import MEMBER_RESULT, MEMBER_ROW
from ...errors import LodeqError, RecordCorruptError
from ..state.engine_state import GOES, LOSES_VALUE, READ, EngineState
from ..state.queue_state import Shard, ShardQueue
from ..state.rows.dedup_entries import drop_ghost
from ..state.rows.expiry_entries import (
    FINAL_KIND,
    IN_SHARD_QUEUE_KINDS,
    RESULT_KIND,
    RESULT_KINDS,
    SHARD_QUEUE_KIND,
    SHARD_QUEUE_KINDS,
    VALUE_KIND,
    Entry,
)
from ..state.rows.task_location import drop_result, forget_result, is_alive, task_location
from ..state.turns import Turns
from ..tasks.task_end import end_task

__all__ = ["SLICE_FINAL", "next_expiry_ms", "sweep"]

SLICE = 128  # hints per slice, each a read or two
SLICE_FINAL = 1024  # results of completed tasks per slice, each one delete
GHOST_KIND, DEAD_KIND = b"gx"
JOIN_KIND = ord("w")  # a join that is over
BYTES_OF_ONE = 4096  # read of a result: as much work as one of ``SLICE_FINAL``
PIN_MS = 3_600_000  # at least, until the pinned result of a member is looked at again


def sweep(
    state: EngineState,
    shard: Shard,
    group: Group,
    lower: bytes,
    over: int,
    failed: Callable[[LodeqError], None],
) -> bytes | None:
    """Act on one slice of expiry rows from ``lower`` on.

    Args:
        state: the engine's state.
        shard: the shard to sweep.
        group: takes the deletes.
        lower: the key to start at.
        over: number of results beyond the limit; that many go before their time.
        failed: called with the error for each hint whose row cannot be read.

    Returns: the key to go on at; None at the end.
    """
    now_us = state.clock.wall_us()
    now_ms = now_us // 1000
    rows, resume = shard.overlay.scan_readable(lower, EXPIRY_END, 8)
    state.next_seq(now_us)  # in the batch: the next process knows how far this one has swept
    is_front = lower <= shard.expiry_head + b"\0"
    if not rows:
        shard.raise_expiry_head(lower, resume)
    cost = 0
    for key, raw in rows:
        is_due = decode_expiry_key(key)[0] <= now_ms
        if not is_due and over <= 0:
            return None
        try:
            entries = decode_expiry(raw)
        except RecordCorruptError as error:
            state.anomaly(f"shard {shard.index}: expiry row {key!r}: {error}")
            entries = []
        with group:
            keep, unread, gone, spent = _sweep_row(
                state, shard, group, entries, now_ms, is_due, over, failed
            )
            over -= gone
            cost += spent
            keep += unread
            if keep != entries or not keep:
                value = encode_expiry(bytes((k,)) + ref for k, ref in keep) if keep else None
                group.ops.append((key, value))
        is_front = is_front and not keep
        shard.swept_ms = max(shard.swept_ms, now_ms)
        if is_front:
            # The open group may hold an earlier one, which is not a row yet.
            shard.expiry_head = min(key, expiry_key(shard.coalescer.open_expiry_ms(), 0))
        if cost >= SLICE_FINAL:
            return key + b"\0" if unread else key  # else it would be read again and again
    return resume


def _sweep_row(
    state: EngineState,
    shard: Shard,
    group: Group,
    entries: list[Entry],
    now_ms: int,
    is_due: bool,
    over: int,
    failed: Callable[[LodeqError], None],
) -> tuple[list[Entry], list[Entry], int, int]:
    """Sweep one row; returns (entries to keep, unreadable entries, results deleted, cost)."""
    keep: list[Entry] = []
    unread: list[Entry] = []
    gone = cost = 0
    header: Entry | None = None
    kept_header: Entry | None = None
    shard_queue: ShardQueue | None = None
    for kind, ref in entries:
        if kind in SHARD_QUEUE_KINDS:
            header = (kind, ref)
            shard_queue = shard.shard_queues_by_hash.get(ref) if kind == SHARD_QUEUE_KIND else None
            continue
        is_result = kind in RESULT_KINDS
        if cost >= SLICE_FINAL or not (is_due or (is_result and over > gone)):
            if kind in IN_SHARD_QUEUE_KINDS and header is not None and kept_header != header:
                keep.append(header)
                kept_header = header
            keep.append((kind, ref))
        elif kind == FINAL_KIND and shard_queue is not None:
            group.ops.append((RESULT + ref, None))
            group.dirty[shard_queue] = None
            shard_queue.results -= 1
            shard.results -= 1
            gone += 1
            cost += 1
        else:
            cost += SLICE_FINAL // SLICE
            try:
                with group:
                    if is_result:
                        ended, size = _expire_result(
                            state,
                            shard,
                            group,
                            kind,
                            ref,
                            shard_queue,
                            now_ms,
                            is_forced=not is_due,
                        )
                        gone += max(ended, 0)
                        cost += size // BYTES_OF_ONE
                        if ended < 0:  # pinned, and not due: it stays in this row
                            if kind in IN_SHARD_QUEUE_KINDS and header and kept_header != header:
                                keep.append(header)
                                kept_header = header
                            keep.append((kind, ref))
                    else:
                        _expire(state, shard, group, kind, ref, now_ms)
            except LodeqError as error:
                failed(error)
                unread.append((RESULT_KIND if is_result else kind, ref))
    return keep, unread, gone, cost


def next_expiry_ms(state: EngineState, shard: Shard) -> int:
    """Time of the earliest expiry row, queued or on disk, in ms since 1970.

    If passing deleted rows takes more than a turn, it is now: the next pass goes on behind them.
    """
    soonest, turns = shard.coalescer.open_expiry_ms(), Turns(state)
    at: bytes | None = shard.expiry_head
    while at is not None:
        rows, following = shard.overlay.scan_readable(at, EXPIRY_END, 1)
        if rows:
            return min(soonest, decode_expiry_key(rows[0][0])[0])
        shard.raise_expiry_head(at, following)
        at = following
        if at is not None and turns.is_over:
            return min(soonest, state.clock.wall_us() // 1000)
    return soonest


def _expire(
    state: EngineState, shard: Shard, group: Group, kind: int, ref: bytes, now_ms: int
) -> None:
    """Act on one hint if the row it names agrees."""
    try:
        if kind == JOIN_KIND:
            state.flows.sweep(shard, group, ref)
        elif kind == GHOST_KIND:
            _expire_ghost(state, shard, group, ref, now_ms)
        else:
            _expire_task(state, shard, group, ref, now_ms, is_dead=kind == DEAD_KIND)
    except RecordCorruptError as error:
        state.anomaly(f"shard {shard.index}: {ref.hex()}: {error}")


def _expire_result(
    state: EngineState,
    shard: Shard,
    group: Group,
    kind: int,
    task_id: bytes,
    shard_queue: ShardQueue | None,
    now_ms: int,
    *,
    is_forced: bool,
) -> tuple[int, int]:
    """Drop a result that is due, or its value alone.

    Returns how many results it deleted, -1 where the entry has to stay, and the bytes read.

    Args:
        kind: of the entry.
        task_id: whose result it is.
        shard_queue: whose counter has the result, if the entry is of one of ``IN_BUCKET_KINDS``.
        now_ms: wall milliseconds.
        is_forced: it goes before its time, with its history.
    """
    raw = shard.overlay.get(RESULT + task_id)
    if raw is None:
        return 0, 0
    try:
        record = decode_result(raw)
    except RecordCorruptError as error:
        state.anomaly(f"shard {shard.index}: {task_id.hex()}: {error}")
        if kind != VALUE_KIND or shard_queue is None:
            return 0, len(raw)
        # Nothing of it can be written again. Whose it was the entry says, and there is but one.
        tenant_queue = shard_queue.tenant_queue
        drop_result(state, shard, group, task_id, tenant_queue.queue, tenant_queue.tenant)
        return 1, len(raw)
    due_ms = result_due_ms(record)
    if not is_forced and due_ms > now_ms:
        _file_again(state, shard, group, task_id, record, due_ms)
        return 0, len(raw)
    if record.flags & MEMBER_RESULT and state.flows.pins(shard, task_id):
        if is_forced:
            return -1, len(raw)
        record = _kept_longer(record, now_ms)
        group.ops.append((RESULT + task_id, encode_result(record)))
        _file_again(state, shard, group, task_id, record, result_due_ms(record))
        return 0, len(raw)
    if not is_forced and record.flags & HAS_VALUE and record.history_s:
        left = without_value(record)
        until_ms = result_due_ms(left)
        if until_ms > now_ms:
            group.ops.append((RESULT + task_id, encode_result(left)))
            _file_again(state, shard, group, task_id, left, until_ms)
            return 0, len(raw)
    forget_result(state, shard, group, task_id, record)
    return 1, len(raw)


def _kept_longer(record: ResultRecord, now_ms: int) -> ResultRecord:
    """A pinned result, due later: it says itself when, so whoever reads it finds its entry.

    By half of its age, so that one that is pinned for long is not written again and again.
    """
    age_ms = max(0, now_ms - record.finished_us // 1000)
    kept_ms = age_ms + max(PIN_MS, age_ms // 2)
    if record.flags & HAS_VALUE or not record.history_s:
        return record._replace(retention_ms=kept_ms)
    return record._replace(history_s=-(-kept_ms // 1000))


def _file_again(
    state: EngineState, shard: Shard, group: Group, task_id: bytes, record: ResultRecord, at_ms: int
) -> None:
    """File a result that is not due yet, or not any more.

    Args:
        group: of the task's shard; gets the rows.
        task_id: whose result it is.
        record: the result as it is now.
        at_ms: when it is due, wall milliseconds.
    """
    if not record.history_s:
        state.file_expiry(shard, group, at_ms, b"r" + task_id)
        return
    kind = READ
    if record.status == Status.COMPLETED and not record.flags & (HAS_ATTEMPTS | MEMBER_RESULT):
        kind = LOSES_VALUE if record.flags & HAS_VALUE else GOES
    shard_queue = state.tenant_queue(record.queue, record.tenant).shard_queue(shard)
    group.dirty[shard_queue] = None  # it names its shard queue, whose counter row must be there
    state.final_rows(shard, group, at_ms, shard_queue, kind).append(task_id)


def _expire_ghost(state: EngineState, shard: Shard, group: Group, ref: bytes, now_ms: int) -> None:
    raw = shard.overlay.get(GHOST + ref)
    if raw is None:
        return
    ghost = decode_ghost(raw)
    if ghost.expires_ms > now_ms:
        state.file_expiry(shard, group, ghost.expires_ms, b"g" + ref)
    elif ghost.expires_ms and not is_alive(state, shard, ghost.task_id):
        drop_ghost(shard, group, ref)
    # else its task lives: the end of the task deletes the ghost


def _expire_task(
    state: EngineState, shard: Shard, group: Group, task_id: bytes, now_ms: int, *, is_dead: bool
) -> None:
    """End a task by its TTL, or a dead letter by its retention. A leased task is left alone."""
    location = task_location(state, shard, task_id)
    if location is None or (location.kind == DEAD) is not is_dead:
        return
    expires_ms = location.row.expires_ms
    if not expires_ms:
        return
    if expires_ms > now_ms:
        state.file_expiry(shard, group, expires_ms, (b"x" if is_dead else b"t") + task_id)
        return
    if is_dead:
        if location.row.flags & MEMBER_ROW and state.flows.awaits(shard, task_id):
            row = location.row._replace(expires_ms=now_ms + PIN_MS)
            group.ops.append((location.key, encode_index_row(row)))
            state.file_expiry(shard, group, row.expires_ms, b"x" + task_id)
            return
        end_task(state, group, location, None, "retention")
        return
    end_task(state, group, location, Status.EXPIRED, "ttl")
    state.totals.expired += 1
