"""A read-only engine over a store that another process has open, a closed store, or a checkpoint.

It works like a replica that leads no shard: reads go to the rows, counts are those of the counter
rows, nothing runs in the background, and writes are refused. It shows the moment at which it was
opened; open it again for a newer one.
"""

from __future__ import annotations

import os

from ...engine.offline.read_only import LookedAt, look_at
from ...engine.records.compression import Compressor
from ...engine.runtime.clock import SystemClock
from ...engine.runtime.current_loop import current_spawner
from ...engine.runtime.ids import SystemRng
from ...engine.runtime.shielded import obtain
from ...errors import NotLeaderError
from ..tasks.follower import foreign_leases
from .engine import Engine, runtime_of
from .open import OpenHandle, build

__all__ = ["oldest_lease_age", "open_read_only"]

REFUSAL = "this engine is read-only: open the store itself, or ask the service that has it open"


def open_read_only(path: str | os.PathLike[str]) -> OpenHandle:
    """Open the store or checkpoint at ``path`` read-only, whoever has it open. Writes nothing.

    ``get``, ``result``, ``list``, ``peek``, ``dead_letters``, ``stats``, ``queues`` and ``verify``
    work; everything else raises ``NotLeaderError``. The totals of ``stats`` are 0: they count from
    open.

    Raises:
        StorePathError: there is no store, or it cannot be read.
        RecoveryRefusedError: its service has to open it first, to recover it.

    Durability: what it shows is committed, not necessarily durable.
    """

    async def start() -> Engine:
        spawner = current_spawner()
        try:
            opened = await obtain(spawner, lambda: look_at(path), LookedAt.close)
        except BaseException:
            await spawner.aclose()
            raise
        return await build(
            opened,
            clock=None,
            rng=SystemRng(),
            limits=None,
            compressor=Compressor(None),
            interval_s=1.0,
            commit_batch_max=64,
            submit_queue_max=1024,
            reaper=False,
            spawner=spawner,
            refusal=NotLeaderError(REFUSAL),
        )

    return OpenHandle(start)


def oldest_lease_age(engine: Engine) -> float | None:
    """Seconds since the oldest lease was granted, from the lease rows; None if there is none."""
    granted = [record.leased_us for _, _, record in foreign_leases(runtime_of(engine).state)]
    return max(0.0, (SystemClock().wall_us() - min(granted)) / 1e6) if granted else None
