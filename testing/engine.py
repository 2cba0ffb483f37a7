"""An engine in memory: all of lodeq except the disk."""

from __future__ import annotations

from typing import Literal

from ..engine.runtime.clock import Clock, SystemClock
from ..engine.runtime.ids import SeededRng
from ..repository.api.open import OpenHandle, open_in_memory
from ..repository.model.redaction import Redact
from ..repository.model.values import Limits

__all__ = ["open"]


def open(
    *,
    clock: Clock | None = None,
    shards: int = 1,
    durability: Literal["nosync", "fsync"] = "nosync",
    commit_batch_max: int = 64,
    submit_queue_max: int = 1024,
    limits: Limits | None = None,
    reaper: bool = True,
    compression: Literal["zlib", "zstd"] | None = None,
    seed: int | None = None,
    redact: Redact | None = None,
) -> OpenHandle:
    """Open an engine over empty stores in memory, on the running event loop.

    ::

        clock = ManualClock()
        async with lodeq.testing.open(clock=clock) as engine:
            ...
            clock.advance(60)

    API and code are the same as with a disk, except that ``Engine.checkpoint`` raises
    ``UsageError``: there are no files to copy.

    Args:
        clock: a ``ManualClock``; None uses the machine's.
        shards: 1 to 4,096.
        durability: ``fsync`` runs the same code; there is nothing to sync.
        commit_batch_max: as ``lodeq.open``.
        submit_queue_max: as ``lodeq.open``.
        limits: as ``lodeq.open``.
        reaper: as ``lodeq.open``; without it a ``ManualClock`` moves timers only.
        compression: as ``lodeq.open``.
        seed: None draws ids, tokens and jitter from the system; a number repeats them.
        redact: as ``lodeq.open``.

    Durability: none; closing forgets everything.
    Cancellation: opening does not wait.
    """
    return open_in_memory(
        clock=clock if clock is not None else SystemClock(),
        shards=shards,
        durability=durability,
        commit_batch_max=commit_batch_max,
        submit_queue_max=submit_queue_max,
        limits=limits,
        reaper=reaper,
        compression=compression,
        rng=None if seed is None else SeededRng(seed),
        redact=redact,
    )
