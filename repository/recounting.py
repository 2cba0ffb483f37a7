"""Counters against rows, after a load: of one moment, in slices, and not on the loop.

A slice is a turn of the shard's own thread: what is synced there comes in between, and a store that
closes waits for one turn at most. In it the GIL is held, for a millisecond.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from ..engine.bulk.manifest import Manifest
from ..engine.keyspace import (
    DELAYED,
    READY,
    bucket_prefix,
    counters_key,
    decode_index_key,
    prefix_end,
)
from ..engine.records.frame import attempt
from ..engine.records.rows import Counters, decode_counters
from ..engine.store import StoreView, pages
from ..engine.uncounted import uncounted_rows
from .core import Core
from .patience import on_shard_thread
from .state import Shard

__all__ = ["recount", "recount_load"]

SLICES: Final = 4  # in a turn


async def recount_load(core: Core, manifest: Manifest) -> None:
    """Every (queue, tenant) of a load. What is off, by a manifest that was wrong, is set right."""
    for one in manifest.buckets:
        shard = core.shards[one.shard]
        queue, tenant = one.queue.encode(), one.tenant.encode()
        ready, delayed = await _recounted(core, shard, queue, tenant)
        if ready or delayed:
            core.anomaly(
                f"shard {shard.index}: {one.queue}: load {manifest.job!r} brought {ready:+} ready "
                f"and {delayed:+} delayed tasks beyond what it said: counted"
            )
            _set_right(core, shard, queue, tenant, ready, delayed)


async def _recounted(core: Core, shard: Shard, queue: bytes, tenant: bytes) -> tuple[int, int]:
    found: list[tuple[int, int]] = []
    view = shard.store.snapshot()
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
    slice of at most 512 rows.
    """
    said = attempt(decode_counters, view.get(counters_key(queue, tenant))) or Counters()
    ready, delayed = -said.ready, -said.delayed
    for one in uncounted_rows(view):
        if (one.queue, one.tenant) == (queue, tenant):
            ready, delayed = ready - one.ready, delayed - one.delayed
    prefix = bucket_prefix(queue, tenant)
    for rows in pages(view, prefix + READY, prefix_end(prefix + READY)):
        ready += len(rows)
        yield
    for rows in pages(view, prefix + DELAYED, prefix_end(prefix + DELAYED)):
        delayed += len(rows)
        yield
    return ready, delayed


def _set_right(
    core: Core, shard: Shard, queue: bytes, tenant: bytes, ready: int, delayed: int
) -> None:
    """An atomic section: the counter row, and memory as an open would build it."""
    shard.co.seal_full(always=True)
    group = shard.co.begin()
    lane = core.lane(queue, tenant)
    b = lane.bucket(shard)
    delayed_head = b.prefix + DELAYED
    found, _ = shard.overlay.scan(delayed_head, prefix_end(delayed_head), 1)  # may raise: first
    for window in b.windows:
        if window is not None:
            core.held_bytes -= sum(row[5] for row in window.rows if row[6] is not None)
    b.load(max(0, b.ready + ready), max(0, b.delayed + delayed), b.leased, b.dead, b.results)
    b.delayed_head = delayed_head
    if found:
        core.deadlines.note_due(b, decode_index_key(found[0][0]).at)
    group.dirty[b] = None
    if b.ready:
        lane.topic.turns.setdefault(tenant)
