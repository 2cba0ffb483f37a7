"""Forgetting loads: deletes what a store remembers of ended loads, and abandoned staging files.

A job that is forgotten could come in again, so nothing is forgotten automatically. The rows are
deleted first, and durably, then the file that names the job. After a crash in between the file is
still there, and the next call does it again.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Final

from ...engine.bulk.inbox_past import (
    abandoned_jobs,
    drop_abandoned,
    drop_done,
    drop_refused,
    ended_jobs,
)
from ...engine.records.keyspace import INGESTED
from ..model.arguments import age_s
from ..model.reports import ForgottenLoads
from ..model.values import Duration
from ..state.engine_state import EngineState

__all__ = ["forget_loads"]

SLICE: Final = 256


async def forget_loads(state: EngineState, root: str, older_than: Duration) -> ForgottenLoads:
    """See ``Engine.forget_loads``. The caller makes sure that no load comes in meanwhile."""
    before_us = state.clock.wall_us() - round(age_s(older_than) * 1e6)
    thread = state.spawner.run_in_thread
    done = await thread(partial(ended_jobs, root, "done", before_us))
    for at in range(0, len(done), SLICE):
        state.check()
        await _forget_rows(state, done[at : at + SLICE])
        await thread(partial(drop_done, root, done[at : at + SLICE]))
    freed, refused, gone = 0, 0, 0
    for job in await thread(partial(ended_jobs, root, "refused", before_us)):
        state.check()
        size = await thread(partial(drop_refused, root, job, before_us))
        if size is not None:
            freed, refused = freed + size, refused + 1
    for job in await thread(partial(abandoned_jobs, root, before_us)):
        state.check()
        size = await thread(partial(drop_abandoned, root, job, before_us))
        if size is not None:
            freed, gone = freed + size, gone + 1
    return ForgottenLoads(len(done), refused, gone, freed)


async def _forget_rows(state: EngineState, jobs: list[str]) -> None:
    """Delete the rows by which shards know that they have these loads. Durable on return."""
    keys = [INGESTED + os.fsencode(job) for job in jobs]
    for shard in state.shards:
        await state.backpressure(shard)
        held = [key for key in keys if shard.overlay.has(key)]  # also if it cannot be read
        if held:
            group = shard.coalescer.begin(64 * len(held))
            group.ops += [(key, None) for key in held]
        await state.commit_barrier(shard, is_durable=True)
        state.check()
