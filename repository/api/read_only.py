"""An engine that only looks: at a store somebody else has open, at a closed one, at a checkpoint.

It is an engine whose shards are led elsewhere: reads go to the rows, counts are those of the
counter rows, nothing runs in the background, and what would write is refused. What it shows is
the moment it was opened at; open it again for the next one.
"""

from __future__ import annotations

import os

from ...engine.offline.read_only import LookedAt, look_at
from ...engine.records.compression import Compressor
from ...engine.runtime.clock import SystemClock
from ...engine.runtime.event_loop import current_spawner
from ...engine.runtime.ids import SystemRng
from ...engine.runtime.shielded import obtain
from ...errors import NotLeaderError
from ..tasks.follower import foreign_leases
from .engine import Engine, state_of
from .open import OpenHandle, build

__all__ = ["oldest_lease_age", "open_read_only"]

REFUSAL = "this engine only looks: open the store itself, or ask the service that has it open"


def open_read_only(path: str | os.PathLike[str]) -> OpenHandle:
    """Open the store or checkpoint at ``path`` to be read, whoever holds it. Writes nothing there.

    ``get``, ``result``, ``list``, ``peek``, ``dead_letters``, ``stats``, ``queues`` and ``verify``
    work; everything else raises. ``stats`` knows no totals: nothing has happened here.

    Raises:
        StorePathError: there is no store, or it cannot be read.
        RecoveryRefusedError: it has to be opened by its service first.

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
            looking=NotLeaderError(REFUSAL),
        )

    return OpenHandle(start)


def oldest_lease_age(engine: Engine) -> float | None:
    """Seconds since the oldest lease was granted, from the lease rows; None if there is none."""
    granted = [record.leased_us for _, _, record in foreign_leases(state_of(engine))]
    return (SystemClock().wall_us() - min(granted)) / 1e6 if granted else None
