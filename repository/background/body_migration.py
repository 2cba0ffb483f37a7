"""Migration of body files from the older format: live payloads are copied to the newer one.

Compaction does that to files that are mostly dead; a migration does it to the others as well, with
the same rules and at the same pace. It can be stopped at any point, and started again.
"""

from __future__ import annotations

from ..model.reports import MigrationReport
from ..state.engine_state import EngineState
from .body_gc import LOOK_S, BodyGC

__all__ = ["migrate_bodies"]


async def migrate_bodies(state: EngineState, body_gc: BodyGC) -> MigrationReport:
    """See ``Engine.migrate_bodies``."""
    files = records = size = left = 0
    for shard in state.hosted:
        old = shard.bodies.files.v1 if shard.bodies is not None else {}
        for number in sorted(old):
            is_stuck = False
            while shard.bodies is not None and number in old and not is_stuck:
                state.check()
                if shard.coalescer.failure is not None:
                    raise shard.coalescer.refusal()
                if not shard.bodies.is_busy(number):
                    done = await body_gc.copy_out(shard, shard.bodies, number)
                    records += done.records
                    size += done.bytes
                    is_stuck = done.is_stuck
                if number in old and not is_stuck:  # a checkpoint or a compaction holds it
                    await body_gc.pause(LOOK_S)
            files += not is_stuck
            left += is_stuck
    state.check()
    return MigrationReport(files, records, size, left)
