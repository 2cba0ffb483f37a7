"""The sweep over the expiry range: ends what has expired, and deletes results beyond the limit.

An ``e/`` row lists what one commit group wants examined in one second. Most entries are hints: the
row they name says itself whether it has expired. The result of a *completed* task is different: it
is written once, and only time removes it, so its entry (kind ``c``, behind a ``B`` entry that names
the bucket whose counter includes it) is acted on without reading the result. Behind a ``b`` entry,
of format 1, the result is read, because anybody could make two buckets with the same name there.
So a store at ``Limits.results_max`` stays fast: one delete for each completion, and no read.

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
from ...engine.records.result import Status, decode_result
from ...engine.records.rows import decode_expiry, decode_ghost, encode_expiry
from ...errors import LodeqError, RecordCorruptError
from ..state.dedup_entries import drop_ghost
from ..state.engine_state import EngineState
from ..state.queue_state import Shard, ShardQueue
from ..state.task_location import drop_result, is_alive, task_location
from ..state.turns import Turns
from ..tasks.task_end import end_task

__all__ = ["next_expiry_ms", "sweep"]

SLICE = 128  # hints per slice, each a read or two
SLICE_FINAL = 1024  # results of completed tasks per slice, each one delete
TTL_KIND, RESULT_KIND, GHOST_KIND, DEAD_KIND, OLD_BUCKET_KIND, FINAL_KIND, BUCKET_KIND = b"trgxbcB"
BUCKET_KINDS = (BUCKET_KIND, OLD_BUCKET_KIND)
Entry = tuple[int, bytes]


def sweep(
    core: EngineState,
    shard: Shard,
    group: Group,
    lower: bytes,
    over: int,
    failed: Callable[[LodeqError], None],
) -> bytes | None:
    """Act on one slice of expiry rows from ``lower`` on.

    Args:
        core: the engine's state.
        shard: the shard to sweep.
        group: takes the deletes.
        lower: the key to start at.
        over: number of results beyond the limit; that many go before their time.
        failed: called with the error for each hint whose row cannot be read.

    Returns: the key to go on at; None at the end.
    """
    now_us = core.clock.wall_us()
    now_ms = now_us // 1000
    rows, resume = shard.overlay.scan_readable(lower, EXPIRY_END, 8)
    core.next_seq(now_us)  # in the batch: the next process knows how far this one has swept
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
            core.anomaly(f"shard {shard.index}: expiry row {key!r}: {error}")
            entries = []
        with group:
            keep, unread, gone, spent = _sweep_row(
                core, shard, group, entries, now_ms, is_due, over, failed
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
            shard.expiry_head = min(key, expiry_key(shard.co.open_expiry_ms(), 0))
        if cost >= SLICE_FINAL:
            return key + b"\0" if unread else key  # else it would be read again and again
    return resume


def _sweep_row(
    core: EngineState,
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
    bucket: ShardQueue | None = None
    for kind, ref in entries:
        if kind in BUCKET_KINDS:
            header = (kind, ref)
            bucket = shard.buckets_by_hash.get(ref) if kind == BUCKET_KIND else None
            continue
        is_result = kind in (FINAL_KIND, RESULT_KIND)
        if cost >= SLICE_FINAL or not (is_due or (is_result and over > gone)):
            if kind == FINAL_KIND and header is not None and kept_header != header:
                keep.append(header)
                kept_header = header
            keep.append((kind, ref))
        elif kind == FINAL_KIND and bucket is not None:
            group.ops.append((RESULT + ref, None))
            group.dirty[bucket] = None
            bucket.results -= 1
            shard.results -= 1
            gone += 1
            cost += 1
        else:
            cost += SLICE_FINAL // SLICE
            try:
                with group:
                    gone += _expire(core, shard, group, kind, ref, now_ms, is_forced=not is_due)
            except LodeqError as error:
                failed(error)
                unread.append((RESULT_KIND if is_result else kind, ref))
    return keep, unread, gone, cost


def next_expiry_ms(core: EngineState, shard: Shard) -> int:
    """Time of the earliest expiry row, queued or on disk, in ms since 1970.

    If passing deleted rows takes more than a turn, it is now: the next pass goes on behind them.
    """
    soonest, turns = shard.co.open_expiry_ms(), Turns(core)
    at: bytes | None = shard.expiry_head
    while at is not None:
        rows, following = shard.overlay.scan_readable(at, EXPIRY_END, 1)
        if rows:
            return min(soonest, decode_expiry_key(rows[0][0])[0])
        shard.raise_expiry_head(at, following)
        at = following
        if at is not None and turns.is_over:
            return min(soonest, core.clock.wall_us() // 1000)
    return soonest


def _expire(
    core: EngineState,
    shard: Shard,
    group: Group,
    kind: int,
    ref: bytes,
    now_ms: int,
    *,
    is_forced: bool,
) -> int:
    """Act on one hint if the row it names agrees; returns the number of results deleted."""
    try:
        if kind in (RESULT_KIND, FINAL_KIND):
            return _expire_result(core, shard, group, ref, now_ms, is_forced=is_forced)
        if kind == GHOST_KIND:
            _expire_ghost(core, shard, group, ref, now_ms)
        else:
            _expire_task(core, shard, group, ref, now_ms, is_dead=kind == DEAD_KIND)
    except RecordCorruptError as error:
        core.anomaly(f"shard {shard.index}: {ref.hex()}: {error}")
    return 0


def _expire_result(
    core: EngineState, shard: Shard, group: Group, task_id: bytes, now_ms: int, *, is_forced: bool
) -> int:
    raw = shard.overlay.get(RESULT + task_id)
    if raw is None:
        return 0
    record = decode_result(raw)
    expires_ms = record.finished_us // 1000 + record.retention_ms
    if not is_forced and expires_ms > now_ms:
        core.file_expiry(shard, group, expires_ms, b"r" + task_id)
        return 0
    drop_result(core, shard, group, task_id, record.queue, record.tenant)
    return 1


def _expire_ghost(core: EngineState, shard: Shard, group: Group, ref: bytes, now_ms: int) -> None:
    raw = shard.overlay.get(GHOST + ref)
    if raw is None:
        return
    ghost = decode_ghost(raw)
    if ghost.expires_ms > now_ms:
        core.file_expiry(shard, group, ghost.expires_ms, b"g" + ref)
    elif ghost.expires_ms and not is_alive(core, shard, ghost.task_id):
        drop_ghost(shard, group, ref)
    # else its task lives: the end of the task deletes the ghost


def _expire_task(
    core: EngineState, shard: Shard, group: Group, task_id: bytes, now_ms: int, *, is_dead: bool
) -> None:
    """End a task by its TTL, or a dead letter by its retention. A leased task is left alone."""
    location = task_location(core, shard, task_id)
    if location is None or (location.kind == DEAD) is not is_dead:
        return
    expires_ms = location.row.expires_ms
    if not expires_ms:
        return
    if expires_ms > now_ms:
        core.file_expiry(shard, group, expires_ms, (b"x" if is_dead else b"t") + task_id)
        return
    if is_dead:
        end_task(core, group, location, None, "retention")
        return
    end_task(core, group, location, Status.EXPIRED, "ttl")
    core.totals.expired += 1
