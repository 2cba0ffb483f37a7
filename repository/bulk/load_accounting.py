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
from ...engine.bulk.manifest import ShardQueueRows
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
    state: EngineState,
    shard: Shard,
    job: str,
    *,
    digest: bytes,
    shard_queues: Sequence[ShardQueueRows],
    rows: Sequence[LoadedRows],
    expiry_ms: int | None,
    seq_max: int,
) -> Group:
    """Account for a load, in the atomic section that took it in. The shard has no open group.

    Args:
        state: the engine's state.
        shard: the shard whose files have come in.
        job: the load's name.
        digest: the digest of its manifest.
        shard_queues: heads and due times of its rows, by queue and tenant.
        rows: numbers of its rows, by queue and tenant, without those that were dropped.
        expiry_ms: the time of its first expiry row, in ms since 1970; None without one.
        seq_max: its greatest seq.

    Returns: the group that counts it.
    """
    state.seq = max(state.seq, seq_max)
    group = shard.coalescer.begin(128 + 160 * len(rows))
    _count(state, shard, group, job, digest, rows)
    for one in shard_queues:
        tenant_queue = state.tenant_queue(one.queue.encode(), one.tenant.encode())
        shard_queue = tenant_queue.shard_queue(shard)
        for priority, _, seq in one.ready:
            _cut_ready_cache(state, shard_queue, 9 - priority, seq)
        if one.delayed:
            head = shard_queue.prefix + DELAYED + one.due_ms.to_bytes(8, "big")
            shard_queue.delayed_head = min(shard_queue.delayed_head, head)
            state.cut_delayed(shard_queue, head)
            if one.due_ms < shard_queue.next_due_ms:
                state.deadlines.note_due(shard_queue, one.due_ms)
        if shard_queue.ready:
            tenant_queue.queue_state.turns.setdefault(tenant_queue.tenant)
            state.waiters.note(tenant_queue)
    if expiry_ms is not None:
        state.note_expiry(shard, expiry_ms)
    return group


def _cut_ready_cache(state: EngineState, shard_queue: ShardQueue, index: int, seq: int) -> None:
    """Cut a ready cache at ``seq``: from there on rows are only on disk."""
    edge = shard_queue.ready_prefixes[index] + (seq - 1).to_bytes(8, "big") + _LAST_ID
    cache = shard_queue.ready_caches[index]
    if cache is None:
        shard_queue.ready_caches[index] = ReadyCache(is_complete=False, edge=edge)
    else:
        cache.cut(edge)
        state.held_bytes -= cache.lost_bytes
        cache.lost_bytes = 0
    shard_queue.occupied |= 1 << index


def _count(
    state: EngineState,
    shard: Shard,
    group: Group,
    job: str,
    digest: bytes,
    rows: Sequence[LoadedRows],
) -> None:
    """Queue the counters and the event, and delete the *uncounted* row."""
    now_us = state.clock.wall_us()
    counted = [(one, state.tenant_queue(one.queue, one.tenant).shard_queue(shard)) for one in rows]
    with group:
        for one, shard_queue in counted:
            if group.events is not None and (one.ready or one.delayed):
                text = json.dumps({"job": job, "ready": one.ready, "delayed": one.delayed}).encode()
                names = [_name_of(digest, shard.index, len(state.shards))]
                group.events.append(
                    pack_run(INGESTED, 0, 0, now_us, shard_queue.tenant_queue.tag, text, names)
                )
        group.ops.append((UNCOUNTED + job.encode(), None))
        for one, shard_queue in counted:
            shard_queue.ready += one.ready
            shard_queue.delayed += one.delayed
            group.dirty[shard_queue] = None


def _name_of(digest: bytes, shard: int, shards: int) -> bytes:
    """An id for the load's event, made of its digest, with a slot of this shard."""
    slot = 0x7000 | first_slot_of(shard, shards)
    return digest[:6] + slot.to_bytes(2, "big") + bytes((0x80 | digest[8] & 0x3F,)) + digest[9:]


async def count_at_open(state: EngineState, shard: Shard) -> None:
    """Count loads that came in just before the previous process ended. After ``counter_slices``."""
    for found in list(pages(shard.store, UNCOUNTED, UNCOUNTED_END)):
        for key, raw in found:
            load = decode_uncounted(raw)
            state.seq = max(state.seq, load.seq_max)
            job = key[len(UNCOUNTED) :].decode()
            group = shard.coalescer.begin(128 + 160 * len(load.rows))
            raw_mark = shard.store.get(INGESTED_ROW + job.encode())
            digest = decode_ingested(raw_mark).digest if raw_mark is not None else bytes(16)
            _count(state, shard, group, job, digest, load.rows)
            for one in load.rows:
                tenant_queue = state.tenant_queue(one.queue, one.tenant)
                b = tenant_queue.shard_queue(shard)
                b.load(b.ready, b.delayed, b.leased, b.dead, b.results, b.waiting)
                if b.ready:
                    tenant_queue.queue_state.turns.setdefault(tenant_queue.tenant)
            await shard.coalescer.wait(group)
