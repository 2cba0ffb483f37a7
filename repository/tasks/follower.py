"""Memory of a shard that another replica leads: counts, and nothing that acts.

Reads are local. Most go to the rows anyway; the counts are kept by the counter rows in the entries
as they are applied, leases are read from their rows when somebody asks. There are no ready caches,
no lease table, no deadlines: nothing here may decide anything, and what might would be stale after
the next entry. A leader's memory is therefore never *converted* into a follower's or back; both
ways it is dropped and built from the rows (the mistake to avoid: a new leader that claims from
memory it had as a follower).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import islice
from typing import Final

from ...engine.records.frame import attempt
from ...engine.records.keyspace import (
    ALL_TENANTS_MARK,
    COUNTERS,
    DEAD,
    EXPIRY,
    ID_AT,
    INDEX,
    LEASE,
    LEASE_END,
    OLD_GHOSTS,
    PAUSE,
    QUEUE_SETTINGS,
    READY,
    RESULT,
    SECRET,
    SEQ_AT,
    TASK,
    counters_key,
    decode_counters_key,
    decode_index_key,
    decode_pause_key,
    pause_key,
    prefix_end,
    queue_settings_key,
)
from ...engine.records.lease import LeaseRecord, decode_lease
from ...engine.records.rows import Counters, decode_counters
from ...engine.store.port import Op, Rows
from ...errors import CorruptionError, RecordCorruptError
from ..state.engine_state import EngineState
from ..state.pages import SLICE, counter_slices, load_rules
from ..state.queue_state import NEVER_MS, Shard, TenantQueue
from ..state.rows.dedup_entries import load_dedup

__all__ = [
    "drop_counts",
    "foreign_head_seq",
    "foreign_lease",
    "foreign_lease_parts",
    "foreign_leases",
    "note_rows",
    "reload_counts",
]

_Leases = list[tuple[bytes, LeaseRecord]]

_NOTED: Final = (COUNTERS, PAUSE, QUEUE_SETTINGS, SECRET, OLD_GHOSTS)
_FIRST: Final = {key[:1] for key in _NOTED}  # most rows begin otherwise


def reload_counts(state: EngineState, shard: Shard) -> Generator[None, None, None]:
    """Count anew from the rows, after ``drop_counts``; in slices.

    Entries that are applied meanwhile are followed: what a slice reads is no older than they are.
    Pauses and settings hold all the time; one that never became a row goes at the end.
    """
    yield from counter_slices(state, shard)
    if shard.index == 0:  # where the rows of pauses and settings live
        for queue, queue_state in list(state.queue_states.items()):
            if (
                queue_state.is_paused
                and shard.overlay.get(pause_key(queue, ALL_TENANTS_MARK)) is None
            ):
                state.set_pause(queue, None, is_paused=False)
            for n, (tenant, tenant_queue) in enumerate(list(queue_state.tenant_queues.items())):
                if tenant_queue.is_paused and shard.overlay.get(pause_key(queue, tenant)) is None:
                    state.set_pause(queue, tenant, is_paused=False)
                if n % SLICE == 0:
                    yield
        for n, queue in enumerate(list(state.rules)):
            key = queue_settings_key(queue)
            load_rules(state, shard, key, shard.overlay.get(key))
            if n % SLICE == 0:
                yield


def drop_counts(state: EngineState, shard: Shard) -> None:
    """Drop all memory of the shard but for pauses: other shards' tasks are held by them, too."""
    for lease in list(state.leases.values()):
        if lease.shard_queue.shard is shard:
            state.end_lease(lease)  # its next call raises LeaseLostError
    for queue_state in state.queue_states.values():
        for tenant_queue in queue_state.tenant_queues.values():
            shard_queue = tenant_queue.shard_queues[shard.index]
            if shard_queue is not None:
                shard_queue.next_due_ms = NEVER_MS  # whatever is filed of it is stale now
                state.let_go(shard_queue)
                tenant_queue.shard_queues[shard.index] = None
    state.claim_sets.forget_all()
    state.key_limits.forget(shard)
    shard.shard_queues_by_hash.clear()
    shard.results = shard.swept_ms = 0
    shard.next_expiry_ms = NEVER_MS
    shard.expiry_head = EXPIRY


def note_rows(state: EngineState, shard: Shard, ops: Sequence[Op]) -> None:
    """Rows of entries were applied: follow counts, pauses, settings; wake waits for results.

    A malformed row is reported as an anomaly: it is in the log, and so in every replica.
    """
    for key, value in [op for op in ops if op[0][:1] in _FIRST]:
        if key.startswith(_NOTED):
            try:
                _note_row(state, shard, key, value)
            except RecordCorruptError as error:
                state.anomaly(f"shard {shard.index}: an entry of its log: {error}")
    if state.result_waiters:
        for key, value in ops:
            if key[ID_AT:] in state.result_waiters and _ends_task(key, value):
                for future in state.result_waiters.pop(key[ID_AT:]):
                    if not future.done():
                        future.set_result(True)


def _ends_task(key: bytes, value: bytes | None) -> bool:
    """Whether this row comes or goes with the end of its task, whose result may not be kept."""
    if key.startswith(TASK):
        return value is None
    if key.startswith(INDEX):
        at = attempt(decode_index_key, key)
        return at is not None and at.kind == DEAD
    return key.startswith(RESULT)  # also one that is gone again


def _note_row(state: EngineState, shard: Shard, key: bytes, value: bytes | None) -> None:
    if key in (SECRET, OLD_GHOSTS):
        load_dedup(shard)
        return
    if key.startswith(QUEUE_SETTINGS):
        load_rules(state, shard, key, value)
        return
    if key.startswith(PAUSE):
        queue, tenant = decode_pause_key(key)
        whom = None if tenant == ALL_TENANTS_MARK else tenant
        state.set_pause(queue, whom, is_paused=value is not None)
        return
    queue, tenant = decode_counters_key(key)
    counts = Counters() if value is None else decode_counters(value)
    shard_queue = state.tenant_queue(queue, tenant).shard_queue(shard)
    shard.results += counts.results - shard_queue.results
    shard_queue.ready, shard_queue.delayed, shard_queue.leased = counts[:3]
    shard_queue.dead, shard_queue.results, shard_queue.waiting = counts[3:]


def foreign_head_seq(tenant_queue: TenantQueue) -> int | None:
    """The least seq of the ready rows on shards led elsewhere: a seek for each priority."""
    found: list[int] = []
    for shard_queue in tenant_queue.shard_queues:
        if shard_queue is None or not shard_queue.ready:
            continue
        if shard_queue.shard.coalescer.is_following:
            rows: Rows = []
            for prefix in shard_queue.ready_prefixes:
                part, following = shard_queue.shard.overlay.scan_readable(
                    prefix, prefix_end(prefix), 1
                )
                rows += part
                if not part and following is not None:  # behind many deleted ones
                    prefix = shard_queue.prefix + READY
                    scan_back = shard_queue.shard.overlay.scan_back
                    if shard_queue.ready <= SLICE:
                        rows += scan_back(prefix, prefix_end(prefix), shard_queue.ready)
                    break
            found += [int.from_bytes(key[SEQ_AT:ID_AT], "big") for key, _ in rows]
    return min(found, default=None)


def foreign_lease(shard: Shard, task_id: bytes) -> LeaseRecord | None:
    """The row of a lease that is not in the lease table: on a shard led elsewhere, or poisoned."""
    if shard.coalescer.takes_writes:
        return None
    raw = shard.store.get(LEASE + task_id)
    return None if raw is None else decode_lease(raw)


def foreign_leases(state: EngineState) -> list[tuple[Shard, bytes, LeaseRecord]]:
    """(shard, id, lease) of every lease that was granted by another replica; blocks."""
    found: list[tuple[Shard, bytes, LeaseRecord]] = []
    for shard in state.hosted:
        if shard.coalescer.is_following:
            found += [(shard, *one) for one in _all_of(foreign_lease_parts(state, shard))]
    return found


def foreign_lease_parts(state: EngineState, shard: Shard) -> Generator[None, None, _Leases]:
    """Read (id, lease) of every lease of a shard led elsewhere: a part a step, in any thread.

    One whose row is damaged does not say whose it is, and is left to ``verify``.
    """
    counted = _counted_leases(state, shard)
    return _lease_parts(shard, counted or [], LEASE if counted is None else None)


def _all_of(parts: Generator[None, None, _Leases]) -> _Leases:
    while True:
        try:
            next(parts)
        except StopIteration as end:
            found: _Leases = end.value
            return found


def _lease_parts(shard: Shard, rows: Rows, at: bytes | None) -> Generator[None, None, _Leases]:
    found: _Leases = []
    while True:
        for key, raw in rows:
            record = attempt(decode_lease, raw)
            if record is not None:
                found.append((key[len(LEASE) :], record))
        yield
        if at is None:
            return found
        rows, at = shard.store.scan_part(at, LEASE_END, SLICE)


def _counted_leases(state: EngineState, shard: Shard) -> Rows | None:
    """All lease rows, found from the end: as many as the counter rows say; None: not known.

    So the deleted ones in front of them, nearly always far more, are not met.
    """
    tenant_queues = (
        tenant_queue
        for queue_state in state.queue_states.values()
        for tenant_queue in queue_state.tenant_queues.values()
    )
    keys = [
        counters_key(tenant_queue.queue, tenant_queue.tenant)
        for tenant_queue in islice(tenant_queues, SLICE + 1)
    ]
    if len(keys) > SLICE:
        return None
    try:
        counts = [
            attempt(decode_counters, raw) for raw in shard.store.multi_get(keys) if raw is not None
        ]
    except CorruptionError:
        return None
    count = sum(one.leased for one in counts if one is not None)
    if None in counts or count > SLICE:
        return None
    rows = shard.store.scan_back(LEASE, LEASE_END, count)
    return None if len(rows) < count else rows[::-1]
