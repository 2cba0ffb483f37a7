"""Lease operations for workers in other processes, which prove a lease by its id, epoch and token.

The lease table is keyed by task id, also for leases restored after a restart, so nothing more is
kept for a worker elsewhere.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...engine.runtime.task_id import TaskId
from ...errors import LeaseLostError
from ..model.values import NewTask
from ..state.engine_state import EngineState
from ..tasks import lease_operations
from ..tasks.lease import Lease

__all__ = ["LeaseProof", "complete", "complete_many", "find", "require"]


class LeaseProof(NamedTuple):
    """Id, epoch and token, by which a worker proves that a lease is its own."""

    task_id: TaskId
    epoch: int
    token: bytes

    def __repr__(self) -> str:
        return f"<LeaseProof {self.task_id} epoch={self.epoch}>"  # not the token


def find(state: EngineState, proof: LeaseProof) -> Lease | None:
    """The live lease that this proves, or None."""
    lease: Any = state.leases.get(proof.task_id)  # a ``Lease``, as all that are in use
    if (
        lease is None
        or lease.epoch != proof.epoch
        or not hmac.compare_digest(lease.token, proof.token)
    ):
        return None
    found: Lease = lease
    return found


async def require(state: EngineState, proof: LeaseProof) -> Lease:
    """The live lease that this proves.

    Raises:
        LeaseLostError: it has ended, and what ended it is committed.
        NotLeaderError: another replica leads its shard.
        StoragePoisonedError: nothing says whether it has ended until its shard is reopened.
    """
    state.check()
    lease = find(state, proof)
    if lease is None:
        await _ended(state, proof)
        raise _lost(proof)
    return lease


async def complete(
    state: EngineState,
    proof: LeaseProof,
    result: Any,
    *,
    then: Sequence[NewTask],
    keep: bool,
    durable: bool | None,
) -> None:
    """Complete a lease; a repeated call succeeds, too.

    Args:
        state: the engine's state.
        proof: the worker's lease.
        result: the task's result, as for ``Lease.complete``.
        then: follow-up tasks, enqueued in the same batch.
        keep: whether to keep the result for its retention.
        durable: True waits for an fsync; None follows the engine's mode.

    Raises: as ``Lease.complete``.
    """
    state.check()
    lease = find(state, proof)
    if lease is not None:
        await lease.complete(result, then=then, keep=keep, durable=durable)
    elif not await lease_operations.was_completed(state, *proof, durable):
        await require(state, proof)


async def complete_many(
    state: EngineState, pairs: Sequence[tuple[LeaseProof, Any]], durable: bool | None
) -> list[LeaseLostError | None]:
    """Complete many leases as ``Engine.complete_many`` does; repeated ones succeed, too.

    Raises:
        NotLeaderError: another replica leads the shard of one; none was completed.
        StoragePoisonedError: the shard of one is poisoned; repeat the call once it is reopened.
    """
    state.check()
    found = [(find(state, proof), result) for proof, result in pairs]
    for (lease, _), (proof, _) in zip(found, pairs, strict=True):
        shard = state.shard_of(proof.task_id)
        if lease is None and shard.coalescer.is_following:  # before anything is done
            raise shard.coalescer.refusal()
    live = [(lease, result) for lease, result in found if lease is not None]
    ended = iter(await lease_operations.complete_many(state, live, durable) if live else ())
    out: list[LeaseLostError | None] = []
    for (lease, _), (proof, _) in zip(found, pairs, strict=True):
        if lease is not None:
            out.append(next(ended))
        elif await lease_operations.was_completed(state, *proof, durable):
            out.append(None)
        else:
            await _ended(state, proof)
            out.append(_lost(proof))
    return out


async def _ended(state: EngineState, proof: LeaseProof) -> None:
    """Wait until what ended a lease is committed.

    Raises:
        NotLeaderError: the shard is led elsewhere, or its leases are still being read: whether this
            one has ended is not for this replica to say.
        StoragePoisonedError: what ended it may be the very write that has failed. Then it is live
            again once the shard is reopened.
    """
    shard = state.shard_of(proof.task_id)
    if not shard.coalescer.takes_writes:
        raise shard.coalescer.refusal()
    await state.commit_barrier(shard)


def _lost(proof: LeaseProof) -> LeaseLostError:
    return LeaseLostError(
        f"the lease on {proof.task_id} (epoch {proof.epoch}) is no longer valid: it expired, was "
        "revoked, or has ended; drop the task",
        task_id=proof.task_id,
    )
