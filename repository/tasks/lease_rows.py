"""Rows of exported leases, which outlive the process: their length and their end.

A heartbeat moves a deadline in memory only. So the row of a lease that is extended again and again
says when it would have ended without that. Two writes close the gap: a heartbeat for longer than
the row knows stores the new length, and a close stores the end of each lease that has another one
than its row. The next process honours it. After an unclean end it cannot know how far the leases
were extended: then each starts again in full, once (``state_rebuild``), until a heartbeat shows
that its worker lives.
"""

from __future__ import annotations

from typing import Final

from ...engine.records.frame import attempt
from ...engine.records.keyspace import LEASE
from ...engine.records.lease import (
    DEAD_LEASE,
    EXPORTED,
    RESTARTED,
    LeaseRecord,
    decode_lease,
    encode_lease,
    ending_at,
    ends_us,
)
from ...engine.records.task import TIMES
from ..state.engine_state import EngineState
from ..state.lease_state import LeaseState

__all__ = ["save_ends", "store_length"]

SLICE: Final = 128
_SOONER_US: Final = 10_000  # the clocks are read one after the other, and one may be slewed
_LATER_US: Final = 125_000  # ends are rounded up to an eighth of a second


def store_length(lease: LeaseState, seconds: float) -> None:
    """Keep the longest length a lease was given, and that its worker lives; not waited for.

    Args:
        lease: live and exported.
        seconds: the length that a heartbeat gives it.
    """
    coalescer, tenant_queue = lease.shard_queue.shard.coalescer, lease.shard_queue.tenant_queue
    stored_s = getattr(lease, "stored_s", lease.lease_s)
    if not coalescer.takes_writes or (seconds <= stored_s and not lease.flags & RESTARTED):
        return
    lease.flags &= ~RESTARTED
    lease.stored_s = max(seconds, stored_s)
    created_us, seq = TIMES.unpack(lease.times)
    record = LeaseRecord(
        lease.flags,
        lease.attempt,
        lease.priority,
        lease.epoch,
        lease.token,
        lease.leased_us,
        round(lease.stored_s * 1000),
        lease.record_bytes,
        created_us,
        seq,
        lease.expires_ms,
        lease.packed_policy,
        lease.ghost,
        lease.ghost_expires_ms,
        tenant_queue.queue,
        tenant_queue.tenant,
        lease.worker,
        dead_row=lease.dead_row if lease.flags & DEAD_LEASE else b"",
    )
    coalescer.begin().ops.append((LEASE + lease.task_id, encode_lease(record)))


async def save_ends(state: EngineState) -> None:
    """At a close: write down when exported leases end, where their rows say something else.

    Raises:
        LodeqError: a shard has failed meanwhile. Its leases start again in full.

    Durability: queued; the shards are drained afterwards. Cancellation: call it again.
    """
    written = 0
    for lease in list(state.leases.values()):
        coalescer = lease.shard_queue.shard.coalescer
        if not (lease.flags & EXPORTED and lease.is_live and coalescer.takes_writes):
            continue
        until_us = state.clock.wall_us() + round((lease.deadline_mono - state.clock.mono()) * 1e6)
        is_as_granted = lease.deadline_mono == lease.granted_mono + lease.lease_s
        if is_as_granted and _is_near(lease.leased_us + lease.lease_s * 1e6, until_us):
            continue  # no row is read
        row = attempt(
            decode_lease, lease.shard_queue.shard.overlay.get_sound(LEASE + lease.task_id)
        )
        if row is None or _is_near(ends_us(row), until_us):
            continue
        ending = encode_lease(ending_at(row, until_us))
        coalescer.begin(len(ending) + 64).ops.append((LEASE + lease.task_id, ending))
        written += 1
        if written % SLICE == 0:
            await state.spawner.checkpoint()


def _is_near(stored_us: float, until_us: int) -> bool:
    return -_SOONER_US <= stored_us - until_us < _LATER_US
