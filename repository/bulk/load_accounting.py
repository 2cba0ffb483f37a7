"""Accounting of loads: counters, heads, deadlines and waiting claims, when rows have come in.

A load's rows reach the disk in one step, past the commit loop. The same atomic section updates the
state in memory, and queues a group that adds the rows to the counters. If that group is lost, an
*uncounted* row, which came in with the rows, says so at the next open.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from ...coalescer.group import Group
from ...engine.bulk.manifest import BucketRows
from ...engine.records.events import INGESTED, pack_run
from ...engine.records.ingest import LoadedRows, decode_ingested, decode_uncounted
from ...engine.records.keyspace import (
    DELAYED,
    UNCOUNTED,
    UNCOUNTED_END,
)
from ...engine.records.keyspace import INGESTED as INGESTED_ROW
from ...engine.runtime.ids import first_slot_of
from ...engine.store.port import pages
from ..state.caches.ready_cache import ReadyCache
from ..state.engine_state import EngineState
from ..state.queue_state import Shard, ShardQueue

__all__ = ["count_at_open", "note_load"]

_LAST_ID: Final = b"\xff" * 16


def note_load(
    core: EngineState,
    shard: Shard,
    job: str,
    *,
    digest: bytes,
    buckets: Sequence[BucketRows],
    rows: Sequence[LoadedRows],
    expiry_ms: int | None,
    seq_max: int,
) -> Group:
    """Account for a load, in the atomic section that took it in. The shard has no open group.

    Args:
        core: the engine's state.
        shard: the shard whose files have come in.
        job: the load's name.
        digest: the digest of its manifest.
        buckets: heads and due times of its rows, by queue and tenant.
        rows: numbers of its rows, by queue and tenant, without those that were dropped.
        expiry_ms: the time of its first expiry row, in ms since 1970; None without one.
        seq_max: its greatest seq.

    Returns: the group that counts it.
    """
    core.seq = max(core.seq, seq_max)
    group = shard.co.begin(128 + 160 * len(rows))
    _count(core, shard, group, job, digest, rows)
    for one in buckets:
        lane = core.lane(one.queue.encode(), one.tenant.encode())
        bucket = lane.bucket(shard)
        for priority, _, seq in one.ready:
            _cut_ready_cache(core, bucket, 9 - priority, seq)
        if one.delayed:
            head = bucket.prefix + DELAYED + one.due_ms.to_bytes(8, "big")
            bucket.delayed_head = min(bucket.delayed_head, head)
            core.cut_delayed(bucket, head)
            if one.due_ms < bucket.next_due_ms:
                core.deadlines.note_due(bucket, one.due_ms)
        if bucket.ready:
            lane.topic.turns.setdefault(lane.tenant)
            core.waiters.note(lane)
    if expiry_ms is not None:
        core.note_expiry(shard, expiry_ms)
    return group


def _cut_ready_cache(core: EngineState, bucket: ShardQueue, index: int, seq: int) -> None:
    """Cut a ready cache at ``seq``: from there on rows are only on disk."""
    edge = bucket.ready_prefixes[index] + (seq - 1).to_bytes(8, "big") + _LAST_ID
    cache = bucket.windows[index]
    if cache is None:
        bucket.windows[index] = ReadyCache(is_complete=False, edge=edge)
    else:
        cache.cut(edge)
        core.held_bytes -= cache.lost_bytes
        cache.lost_bytes = 0
    bucket.occupied |= 1 << index


def _count(
    core: EngineState,
    shard: Shard,
    group: Group,
    job: str,
    digest: bytes,
    rows: Sequence[LoadedRows],
) -> None:
    """Queue the counters and the event, and delete the *uncounted* row."""
    now_us = core.clock.wall_us()
    counted = [(one, core.lane(one.queue, one.tenant).bucket(shard)) for one in rows]
    with group:
        for one, bucket in counted:
            if group.events is not None and (one.ready or one.delayed):
                text = json.dumps({"job": job, "ready": one.ready, "delayed": one.delayed}).encode()
                names = [_name_of(digest, shard.index, len(core.shards))]
                group.events.append(pack_run(INGESTED, 0, 0, now_us, bucket.lane.tag, text, names))
        group.ops.append((UNCOUNTED + job.encode(), None))
        for one, bucket in counted:
            bucket.ready += one.ready
            bucket.delayed += one.delayed
            group.dirty[bucket] = None


def _name_of(digest: bytes, shard: int, shards: int) -> bytes:
    """An id for the load's event, made of its digest, with a slot of this shard."""
    slot = 0x7000 | first_slot_of(shard, shards)
    return digest[:6] + slot.to_bytes(2, "big") + bytes((0x80 | digest[8] & 0x3F,)) + digest[9:]


async def count_at_open(core: EngineState, shard: Shard) -> None:
    """Count loads that came in just before the previous process ended. After ``counter_slices``."""
    for found in list(pages(shard.store, UNCOUNTED, UNCOUNTED_END)):
        for key, raw in found:
            load = decode_uncounted(raw)
            core.seq = max(core.seq, load.seq_max)
            job = key[len(UNCOUNTED) :].decode()
            group = shard.co.begin(128 + 160 * len(load.rows))
            raw_mark = shard.store.get(INGESTED_ROW + job.encode())
            digest = decode_ingested(raw_mark).digest if raw_mark is not None else bytes(16)
            _count(core, shard, group, job, digest, load.rows)
            for one in load.rows:
                lane = core.lane(one.queue, one.tenant)
                b = lane.bucket(shard)
                b.load(b.ready, b.delayed, b.leased, b.dead, b.results, b.waiting)
                if b.ready:
                    lane.topic.turns.setdefault(lane.tenant)
            await shard.co.wait(group)
