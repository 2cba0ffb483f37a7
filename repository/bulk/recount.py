"""Counters against rows, after a load: of one moment, in slices, and not on the loop.

A slice is a turn of the shard's own thread: what is synced there comes in between, and a store that
closes waits for one turn at most. In it the GIL is held, for a millisecond.

Rows that cannot be read leave the counters as the manifest said: the load is in, and ends.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from ...engine.bulk.manifest import Manifest
from ...engine.records.frame import attempt
from ...engine.records.keyspace import (
    DELAYED,
    READY,
    bucket_prefix,
    counters_key,
    prefix_end,
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

SLICES: Final = 16  # in a turn: a thousand rows


async def recount_load(core: EngineState, manifest: Manifest) -> None:
    """Every (queue, tenant) of a load. What is off, by a manifest that was wrong, is set right."""
    for one in manifest.buckets:
        shard = core.shards[one.shard]
        queue, tenant = one.queue.encode(), one.tenant.encode()
        try:
            ready, delayed = await _recounted(core, shard, queue, tenant)
        except CorruptionError as error:  # at each try: it must not keep the load from its end
            core.anomaly(
                f"shard {shard.index}: the counters of {one.queue!r} cannot be held against its "
                f"rows after load {manifest.job!r} ({error}): close, and open with "
                'recovery="salvage", which counts them'
            )
            continue
        if ready or delayed:
            core.anomaly(
                f"shard {shard.index}: {one.queue}: load {manifest.job!r} brought {ready:+} ready "
                f"and {delayed:+} delayed tasks beyond what it said: counted"
            )
            _set_right(core, shard, queue, tenant, ready, delayed)


async def _recounted(
    core: EngineState, shard: Shard, queue: bytes, tenant: bytes
) -> tuple[int, int]:
    found: list[tuple[int, int]] = []
    prefix = bucket_prefix(queue, tenant)
    splits = await in_slices(core, find_splits(shard.store, prefix, prefix_end(prefix)))
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
            await on_shard_thread(core.spawner, shard, turn)
            core.check()
    finally:
        view.close()
    return found[0]


def recount(view: StoreView, queue: bytes, tenant: bytes) -> Generator[None, None, tuple[int, int]]:
    """How many (ready, delayed) rows one (queue, tenant) has beyond what its counters say.

    ``view`` is a snapshot of the shard: counters and rows are of one moment. Yields after each
    slice of a few dozen rows.
    """
    said = attempt(decode_counters, view.get(counters_key(queue, tenant))) or Counters()
    ready, delayed = -said.ready, -said.delayed
    for one in uncounted_rows(view):
        if (one.queue, one.tenant) == (queue, tenant):
            ready, delayed = ready - one.ready, delayed - one.delayed
    prefix = bucket_prefix(queue, tenant)
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


def _set_right(
    core: EngineState, shard: Shard, queue: bytes, tenant: bytes, ready: int, delayed: int
) -> None:
    """An atomic section: the counter row, and memory as an open would build it."""
    shard.co.seal_full(always=True)
    group = shard.co.begin()
    lane = core.lane(queue, tenant)
    b = lane.bucket(shard)
    for window in b.windows:
        if window is not None:
            core.held_bytes -= sum(row[5] for row in window.rows if row[6] is not None)
    b.load(max(0, b.ready + ready), max(0, b.delayed + delayed), b.leased, b.dead, b.results)
    b.delayed_head = b.prefix + DELAYED
    if b.delayed:  # the reaper finds the first of them, however many deleted rows are before it
        core.deadlines.note_due(b, core.clock.wall_us() // 1000)
    group.dirty[b] = None
    if b.ready:
        lane.topic.turns.setdefault(tenant)
