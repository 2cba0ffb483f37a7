"""Rule 7: within a queue (and a shard) the higher priority first, then first in, first out.

Checked for a task A that was ready from its acknowledgement to its first delivery: no claim had it,
nothing put it back. A was passed over if some task B that ranks behind it was delivered by a claim
that was invoked after A's acknowledgement and answered before the claim that got A was invoked.

To find such a B takes one look-up for each priority: ``Deliveries`` keeps the latest invocation
among all claims answered before any moment and, for tasks of A's own priority, the latest one that
also came after B's enqueue. No pairs of tasks are compared.
"""

from __future__ import annotations

from .inference import Inference
from .task_model import Call, Deliveries, TaskModel

__all__ = ["delivered"]

_PRIORITIES = 10


def delivered(h: Inference, task: TaskModel, call: Call, attempt: int) -> None:
    """Check that a delivered task was not passed over, and note the delivery.

    Args:
        h: the history so far.
        task: the task.
        call: the claim that delivered it.
        attempt: number of the attempt.
    """
    shard = -1 if h.order_across_shards else task.shard
    order = task.queue_model.order.get(shard)
    if order is None:
        order = task.queue_model.order[shard] = [Deliveries() for _ in range(_PRIORITIES)]
    is_first = task.deliveries == 0 and attempt == 1
    is_pristine = is_first and task.acked_at > h.cut_at and not task.has_waited()
    may_wait = task.labels and h.limits.may_wait(task.queue_model.name[0], task.labels)
    if is_pristine and not task.is_redriven and not may_wait:
        _check_order(h, task, call, order)
    if call.params.get("starvation"):  # it may serve the oldest first
        return
    if is_first:
        task.first = (call.at, h.at)
    order[task.priority].add(call.at, h.at, task.call.at)


def _check_order(h: Inference, task: TaskModel, call: Call, order: list[Deliveries]) -> None:
    floor = max(task.acked_at, h.life_at)
    for priority in range(task.priority + 1):
        others = order[priority]
        i = others.before(call.at)
        if i < 0:
            continue
        own = priority == task.priority
        began = others.newest[i] if own else others.latest[i]
        if began > floor and not _is_disturbed(h, task, began, call.at):
            raise h.fail(
                task,
                7,
                f"acknowledged at {task.acked_at} and delivered by a claim of {call.at}, after a "
                f"task {'enqueued later' if own else f'of priority {priority}'}, whose claim was "
                f"invoked not before {began}",
            )
    other = task.follower
    if other is None or (other.shard != task.shard and not h.order_across_shards):
        return
    began, ended = other.first
    if floor < began and ended < call.at and not _is_disturbed(h, task, began, call.at):
        raise h.fail(task, 7, f"delivered after {other.number}, which follows it in its call")


def _is_disturbed(h: Inference, task: TaskModel, began: int, ended: int) -> bool:
    """Return whether a claim that was cancelled or failed may have held the task meanwhile."""
    return any(
        first < ended and last > began and task.queue_model in queue_models
        for first, last, queue_models in h.disturbed
    )
