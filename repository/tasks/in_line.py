"""The three calls a queue lives by, where their callers have to stand in line.

Each leaves its submission in the line of the shard and awaits one future, which the commit
answers. No outcome: nothing has happened, one submission is reserved for this caller until its
next ``await``, and it submits in the general way.
"""

from __future__ import annotations

from typing import Any

from ...coalescer.backpressure import ADMITTED
from ...coalescer.commit_loop import Coalescer
from ...engine.runtime.task_id import TaskId
from ...errors import LodeqError
from ..model.encoded_tasks import TaskTemplate
from ..model.values import Receipt
from ..state.engine_state import EngineState
from ..state.lease_state import LeaseState
from ..state.long_polls import ClaimRequest
from .claim import drop
from .fast_path import claim_in_turn, submit_complete, submit_plain
from .task_end import give_back

__all__ = ["claim_in_line", "complete_in_line", "enqueue_in_line"]


async def enqueue_in_line(
    state: EngineState, coalescer: Coalescer, shared: TaskTemplate, payload: bytes, task_id: TaskId
) -> Receipt | None:
    """The receipt of a plain enqueue; None: its caller is admitted.

    Args:
        coalescer: of the task's shard.
        shared: of the queue.
        payload: at most ``plain_bytes_max`` bytes.
        task_id: as ``line_of`` gave it.

    Cancellation: in the line nothing has happened; once it is submitted it happens.
    """
    future, line = state.future(), coalescer.submit_line
    call = (state, shared, payload, None, future, task_id)
    line.enter(future, len(payload) + 300, submit_plain, call)
    try:
        outcome = await future
    except BaseException:
        line.leave(future)
        raise
    if outcome is not ADMITTED:
        receipt: Receipt = outcome
        return receipt
    line.leave(future)
    state.check()
    return None


async def claim_in_line(
    state: EngineState, coalescer: Coalescer, request: ClaimRequest
) -> list[Any] | None:
    """The leases of a plain claim; None: its caller is admitted, also where nothing is ready.

    Cancellation: the task it took, if any, goes back by itself.
    """
    future, line = state.future(), coalescer.submit_line
    taken: list[Any] = []
    line.enter(future, 500, claim_in_turn, (state, request, future, taken))
    try:
        leases = await future
    except LodeqError:
        drop(taken)
        raise
    except BaseException:
        line.leave(future)
        give_back(state, taken)
        raise
    if leases is not ADMITTED:
        return taken
    line.leave(future)
    state.check()
    return None


async def complete_in_line(
    lease: LeaseState, coalescer: Coalescer, result: bytes | None, *, keep: bool
) -> bool:
    """Whether the end of a live lease is committed; else its caller is admitted.

    Args:
        lease: in the engine's lease table.
        coalescer: of its shard.
        result: at most ``Limits.result_bytes_max`` bytes.
        keep: False stores no result.

    Cancellation: in the line nothing has happened; once it is submitted it happens.
    """
    state: Any = lease.state
    future, line = state.future(), coalescer.submit_line
    cost = 300 if result is None else 300 + len(result)
    line.enter(future, cost, submit_complete, (lease, result, keep, None, future, True))
    try:
        answer = await future
    except BaseException:
        line.leave(future)
        raise
    if answer is not ADMITTED:
        return True
    line.leave(future)
    state.check()
    return False
