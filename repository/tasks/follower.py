"""Memory of a shard that another replica leads: counts, and nothing that acts.

Reads are local. Most go to the rows anyway; the counts are kept by the counter rows in the entries
as they are applied, leases are read from their rows when somebody asks. There are no windows, no
lease table, no deadlines: nothing here may decide anything, and what might would be stale after
the next entry. A leader's memory is therefore never *converted* into a follower's or back; both
ways it is dropped and built from the rows (the mistake to avoid: a new leader that claims from
memory it had as a follower).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import islice

from ...engine.records.frame import attempt
from ...engine.records.keyspace import (
    ALL_TENANTS_MARK,
    COUNTERS,
    EXPIRY,
    LEASE,
    LEASE_END,
    OLD_GHOSTS,
    PAUSE,
    QUEUE_SETTINGS,
    READY,
    RESULT,
    SECRET,
    counters_key,
    decode_counters_key,
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


def reload_counts(core: EngineState, shard: Shard) -> Generator[None, None, None]:
    """Count anew from the rows, after ``drop_counts``; in slices.

    Entries that are applied meanwhile are followed: what a slice reads is no older than they are.
    Pauses and settings hold all the time; one that never became a row goes at the end.
    """
    yield from counter_slices(core, shard)
    if shard.index == 0:  # where the rows of pauses and settings live
        for queue, topic in list(core.topics.items()):
            if topic.is_paused and shard.overlay.get(pause_key(queue, ALL_TENANTS_MARK)) is None:
                core.set_pause(queue, None, is_paused=False)
            for n, (tenant, lane) in enumerate(list(topic.lanes.items())):
                if lane.is_paused and shard.overlay.get(pause_key(queue, tenant)) is None:
                    core.set_pause(queue, tenant, is_paused=False)
                if n % SLICE == 0:
                    yield
        for n, queue in enumerate(list(core.rules)):
            key = queue_settings_key(queue)
            load_rules(core, shard, key, shard.overlay.get(key))
            if n % SLICE == 0:
                yield


def drop_counts(core: EngineState, shard: Shard) -> None:
    """Drop all memory of the shard but for pauses: other shards' tasks are held by them, too."""
    for lease in list(core.leases.values()):
        if lease.bucket.shard is shard:
            core.end_lease(lease)  # its next call raises LeaseLostError
    for topic in core.topics.values():
        for lane in topic.lanes.values():
            bucket = lane.buckets[shard.index]
            if bucket is not None:
                bucket.next_due_ms = NEVER_MS  # whatever is filed of it is stale now
                core.let_go(bucket)
                lane.buckets[shard.index] = None
    core.claim_sets.forget_all()
    shard.buckets_by_hash.clear()
    shard.results = shard.swept_ms = 0
    shard.next_expiry_ms = NEVER_MS
    shard.expiry_head = EXPIRY


def note_rows(core: EngineState, shard: Shard, ops: Sequence[Op]) -> None:
    """The rows of an entry were applied: follow counts, pauses, settings; wake waits for results.

    A malformed row is reported as an anomaly: it is in the log, and so in every replica.
    """
    for key, value in ops:
        if key.startswith((COUNTERS, PAUSE, QUEUE_SETTINGS)):
            try:
                _note_row(core, shard, key, value)
            except RecordCorruptError as error:
                core.anomaly(f"shard {shard.index}: an entry of its log: {error}")
        elif key in (SECRET, OLD_GHOSTS):
            load_dedup(shard)
        elif core.result_waiters and value is not None and key.startswith(RESULT):
            for future in core.result_waiters.pop(key[len(RESULT) :], ()):
                if not future.done():
                    future.set_result(True)


def _note_row(core: EngineState, shard: Shard, key: bytes, value: bytes | None) -> None:
    if key.startswith(QUEUE_SETTINGS):
        load_rules(core, shard, key, value)
        return
    if key.startswith(PAUSE):
        queue, tenant = decode_pause_key(key)
        whom = None if tenant == ALL_TENANTS_MARK else tenant
        core.set_pause(queue, whom, is_paused=value is not None)
        return
    queue, tenant = decode_counters_key(key)
    counts = Counters() if value is None else decode_counters(value)
    bucket = core.lane(queue, tenant).bucket(shard)
    shard.results += counts.results - bucket.results
    bucket.ready, bucket.delayed, bucket.leased = counts[:3]
    bucket.dead, bucket.results, bucket.waiting = counts[3:]


def foreign_head_seq(lane: TenantQueue) -> int | None:
    """The least seq of the ready rows on shards led elsewhere: a seek for each priority."""
    found: list[int] = []
    for bucket in lane.buckets:
        if bucket is None or not bucket.ready:
            continue
        if bucket.shard.co.is_following:
            rows: Rows = []
            for prefix in bucket.ready_prefixes:
                part, following = bucket.shard.overlay.scan_readable(prefix, prefix_end(prefix), 1)
                rows += part
                if not part and following is not None:  # behind many deleted ones
                    prefix = bucket.prefix + READY
                    scan_back = bucket.shard.overlay.scan_back
                    if bucket.ready <= SLICE:
                        rows += scan_back(prefix, prefix_end(prefix), bucket.ready)
                    break
            found += [int.from_bytes(key[-24:-16], "big") for key, _ in rows]
    return min(found, default=None)


def foreign_lease(shard: Shard, task_id: bytes) -> LeaseRecord | None:
    """The row of a lease that is not in the lease table: on a shard led elsewhere, or poisoned."""
    if shard.co.takes_writes:
        return None
    raw = shard.store.get(LEASE + task_id)
    return None if raw is None else decode_lease(raw)


def foreign_leases(core: EngineState) -> list[tuple[Shard, bytes, LeaseRecord]]:
    """(shard, id, lease) of every lease that was granted by another replica; blocks."""
    found: list[tuple[Shard, bytes, LeaseRecord]] = []
    for shard in core.hosted:
        if shard.co.is_following:
            found += [(shard, *one) for one in _all_of(foreign_lease_parts(core, shard))]
    return found


def foreign_lease_parts(core: EngineState, shard: Shard) -> Generator[None, None, _Leases]:
    """Read (id, lease) of every lease of a shard led elsewhere: a part a step, in any thread.

    One whose row is damaged does not say whose it is, and is left to ``verify``.
    """
    counted = _counted_leases(core, shard)
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


def _counted_leases(core: EngineState, shard: Shard) -> Rows | None:
    """All lease rows, found from the end: as many as the counter rows say; None: not known.

    So the deleted ones in front of them, nearly always far more, are not met.
    """
    lanes = (lane for topic in core.topics.values() for lane in topic.lanes.values())
    keys = [counters_key(lane.queue, lane.tenant) for lane in islice(lanes, SLICE + 1)]
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
