"""Recount after a load: counters against rows, both of one moment, in slices, off the event loop.

A slice is a turn of the shard's own thread: fsyncs come in between, and closing the store waits for
one turn at most. A turn holds the GIL for about a millisecond.

If rows cannot be read, the counters stay as the manifest said: the load is in, and concludes.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from ...engine.bulk.manifest import Manifest
from ...engine.records.frame import attempt
from ...engine.records.keyspace import (
    DELAYED,
    READY,
    counters_key,
    prefix_end,
    shard_queue_prefix,
)
from ...engine.records.rows import Counters, decode_counters
from ...engine.recovery.pending_counts import uncounted_rows
from ...engine.store.port import StoreView
from ...engine.store.walk import Walk, find_splits
from ...errors import CorruptionError
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from ..state.turns import in_slices
from ..state.waits import on_shard_thread

__all__ = ["recount", "recount_load"]

SLICES: Final = 16  # per turn: a thousand rows


async def recount_load(state: EngineState, manifest: Manifest) -> None:
    """Recount each queue and tenant of a load; a wrong manifest's counts are corrected."""
    for one in manifest.shard_queues:
        shard = state.shards[one.shard]
        queue, tenant = one.queue.encode(), one.tenant.encode()
        try:
            ready, delayed = await _recounted(state, shard, queue, tenant)
        except CorruptionError as error:  # the load must be able to conclude
            state.anomaly(
                f"shard {shard.index}: the counters of {one.queue!r} cannot be compared with its "
                f"rows after load {manifest.job!r} ({error}): close, and open with "
                'recovery="salvage", which counts them'
            )
            continue
        if ready or delayed:
            state.anomaly(
                f"shard {shard.index}: {one.queue}: load {manifest.job!r} brought {ready:+} ready "
                f"and {delayed:+} delayed tasks beyond what it said: counted"
            )
            _correct(state, shard, queue, tenant, ready, delayed)


async def _recounted(
    state: EngineState, shard: Shard, queue: bytes, tenant: bytes
) -> tuple[int, int]:
    found: list[tuple[int, int]] = []
    prefix = shard_queue_prefix(queue, tenant)
    splits = await in_slices(state, find_splits(shard.store, prefix, prefix_end(prefix)))
    view = shard.store.snapshot(splits)
    slices = recount(view, queue, tenant)

    def turn() -> None:
        for _ in range(SLICES):
            try:
                next(slices)
            except StopIteration as end:
                found.append(end.value)
                return

    try:
        while not found:
            await on_shard_thread(state.spawner, shard, turn)
            state.check()
    finally:
        view.close()
    return found[0]


def recount(view: StoreView, queue: bytes, tenant: bytes) -> Generator[None, None, tuple[int, int]]:
    """Count (ready, delayed) rows of one queue and tenant beyond what its counters say.

    ``view`` is a snapshot of the shard, so counters and rows are of one moment. Yields after each
    slice of a few dozen rows.
    """
    said = attempt(decode_counters, view.get(counters_key(queue, tenant))) or Counters()
    ready, delayed = -said.ready, -said.delayed
    for one in uncounted_rows(view):
        if (one.queue, one.tenant) == (queue, tenant):
            ready, delayed = ready - one.ready, delayed - one.delayed
    prefix = shard_queue_prefix(queue, tenant)
    walk = Walk(view)
    for rows in walk.pages(prefix + READY, prefix_end(prefix + READY)):
        ready += len(rows)
        yield
    for rows in walk.pages(prefix + DELAYED, prefix_end(prefix + DELAYED)):
        delayed += len(rows)
        yield
    if walk.unreadable:
        raise CorruptionError(walk.unreadable[0].error)
    return ready, delayed


def _correct(
    state: EngineState, shard: Shard, queue: bytes, tenant: bytes, ready: int, delayed: int
) -> None:
    """Correct the counter row, and rebuild the state in memory as open would; atomic section."""
    shard.coalescer.seal_full(always=True)
    group = shard.coalescer.begin()
    tenant_queue = state.tenant_queue(queue, tenant)
    b = tenant_queue.shard_queue(shard)
    state.let_go(b)
    ready, delayed = max(0, b.ready + ready), max(0, b.delayed + delayed)
    b.load(ready, delayed, b.leased, b.dead, b.results, b.waiting)
    b.delayed_head = b.prefix + DELAYED
    if b.delayed:  # the reaper finds the first, past any number of deleted rows
        state.deadlines.note_due(b, state.clock.wall_us() // 1000)
    group.dirty[b] = None
    state.claim_sets.touch(tenant_queue)
    if b.ready:
        tenant_queue.queue_state.turns.setdefault(tenant)
