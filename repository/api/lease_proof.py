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


def find(core: EngineState, proof: LeaseProof) -> Lease | None:
    """The live lease that this proves, or None."""
    lease: Any = core.leases.get(proof.task_id)  # a ``Lease``, as all that are in use
    if (
        lease is None
        or lease.epoch != proof.epoch
        or not hmac.compare_digest(lease.token, proof.token)
    ):
        return None
    found: Lease = lease
    return found


async def require(core: EngineState, proof: LeaseProof) -> Lease:
    """The live lease that this proves.

    Raises:
        LeaseLostError: it has ended, and what ended it is committed.
        NotLeaderError: another replica leads its shard.
    """
    core.check()
    lease = find(core, proof)
    if lease is None:
        await _ended(core, proof)
        raise _lost(proof)
    return lease


async def complete(
    core: EngineState,
    proof: LeaseProof,
    result: Any,
    *,
    then: Sequence[NewTask],
    keep: bool,
    durable: bool | None,
) -> None:
    """Complete a lease; a repeated call succeeds, too.

    Args:
        core: the engine's state.
        proof: the worker's lease.
        result: the task's result, as for ``Lease.complete``.
        then: follow-up tasks, enqueued in the same batch.
        keep: whether to keep the result for its retention.
        durable: True waits for an fsync; None follows the engine's mode.

    Raises: as ``Lease.complete``.
    """
    core.check()
    lease = find(core, proof)
    if lease is not None:
        await lease.complete(result, then=then, keep=keep, durable=durable)
    elif not await lease_operations.was_completed(core, *proof, durable):
        await require(core, proof)


async def complete_many(
    core: EngineState, pairs: Sequence[tuple[LeaseProof, Any]], durable: bool | None
) -> list[LeaseLostError | None]:
    """Complete many leases as ``Engine.complete_many`` does; repeated ones succeed, too.

    Raises:
        NotLeaderError: another replica leads the shard of one; none was completed.
    """
    core.check()
    found = [(find(core, proof), result) for proof, result in pairs]
    for (lease, _), (proof, _) in zip(found, pairs, strict=True):
        shard = core.shard_of(proof.task_id)
        if lease is None and shard.co.is_following:  # before anything is done
            raise shard.co.refusal()
    live = [(lease, result) for lease, result in found if lease is not None]
    ended = iter(await lease_operations.complete_many(core, live, durable) if live else ())
    out: list[LeaseLostError | None] = []
    for (lease, _), (proof, _) in zip(found, pairs, strict=True):
        if lease is not None:
            out.append(next(ended))
        elif await lease_operations.was_completed(core, *proof, durable):
            out.append(None)
        else:
            await _ended(core, proof)
            out.append(_lost(proof))
    return out


async def _ended(core: EngineState, proof: LeaseProof) -> None:
    """Wait until what ended a lease is committed.

    Raises:
        NotLeaderError: the shard is led elsewhere, or its leases are still being read: whether this
            one has ended is not for this replica to say.
    """
    shard = core.shard_of(proof.task_id)
    if shard.co.is_following:
        raise shard.co.refusal()
    await core.commit_barrier(shard)


def _lost(proof: LeaseProof) -> LeaseLostError:
    return LeaseLostError(
        f"the lease on {proof.task_id} (epoch {proof.epoch}) is no longer valid: it expired, was "
        "revoked, or has ended; drop the task",
        task_id=proof.task_id,
    )
