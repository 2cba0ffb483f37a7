"""Leases by what their holder in another process knows of them: id, epoch and token.

The lease table is keyed by id, also for leases that a restart has restored, so nothing has to be
kept for a worker that lives elsewhere.
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
    """What a worker shows to prove that a lease is its own."""

    task_id: TaskId
    epoch: int
    token: bytes

    def __repr__(self) -> str:
        return f"<Held {self.task_id} epoch={self.epoch}>"  # not the token


def find(core: EngineState, held: LeaseProof) -> Lease | None:
    """The live lease, if it is this one."""
    lease: Any = core.leases.get(held.task_id)  # a ``Lease``, as all that are in use
    if (
        lease is None
        or lease.epoch != held.epoch
        or not hmac.compare_digest(lease.token, held.token)
    ):
        return None
    found: Lease = lease
    return found


async def require(core: EngineState, held: LeaseProof) -> Lease:
    """The live lease, or ``LeaseLostError`` once what ended it is committed."""
    core.check()
    lease = find(core, held)
    if lease is None:
        await core.settled(core.shard_of(held.task_id))
        raise _lost(held)
    return lease


async def complete(
    core: EngineState,
    held: LeaseProof,
    result: Any,
    *,
    then: Sequence[NewTask],
    keep: bool,
    durable: bool | None,
) -> None:
    """As ``Lease.complete``, a repeated one included."""
    core.check()
    lease = find(core, held)
    if lease is not None:
        await lease.complete(result, then=then, keep=keep, durable=durable)
    elif not await lease_operations.was_completed(core, *held, durable):
        await require(core, held)


async def complete_many(
    core: EngineState, pairs: Sequence[tuple[LeaseProof, Any]], durable: bool | None
) -> list[LeaseLostError | None]:
    """As ``Engine.complete_many``, repeated ones included."""
    core.check()
    found = [(find(core, held), result) for held, result in pairs]
    live = [(lease, result) for lease, result in found if lease is not None]
    ended = iter(await lease_operations.complete_many(core, live, durable) if live else ())
    out: list[LeaseLostError | None] = []
    for (lease, _), (held, _) in zip(found, pairs, strict=True):
        if lease is not None:
            out.append(next(ended))
        elif await lease_operations.was_completed(core, *held, durable):
            out.append(None)
        else:
            await core.settled(core.shard_of(held.task_id))
            out.append(_lost(held))
    return out


def _lost(held: LeaseProof) -> LeaseLostError:
    return LeaseLostError(
        f"the lease on {held.task_id} (epoch {held.epoch}) is no longer valid: it expired, was "
        "revoked, or has ended; drop the task",
        task_id=held.task_id,
    )
