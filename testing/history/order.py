"""Rule 7: within a queue (and a shard) the higher priority first, then first in, first out.

Judged for a task A that was ready from its acknowledgement to its first delivery: nobody else had
it, nothing put it back. Had some B that ranks behind it been delivered by a claim that was invoked
when A was acknowledged and answered before the claim that got A was invoked, A was passed over.

Whether there is such a B takes one look a priority: of all claims answered before some moment the
latest invocation is kept, and, for tasks of one priority, the latest that also came after B's
enqueue. So nothing is compared pair by pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .task_model import Call, Deliveries, Known

if TYPE_CHECKING:
    from .checker import History

__all__ = ["delivered"]

_PRIORITIES = 10


def delivered(h: History, task: Known, call: Call, attempt: int) -> None:
    """A task was delivered: was it passed over, and whom does it pass?"""
    shard = -1 if h.order_across_shards else task.shard
    order = task.lane.order.get(shard)
    if order is None:
        order = task.lane.order[shard] = [Deliveries() for _ in range(_PRIORITIES)]
    is_first = task.deliveries == 0 and attempt == 1
    is_pristine = is_first and task.acked_at > h.cut_at and not task.has_waited()
    if is_pristine and not task.is_redriven:
        _judge(h, task, call, order)
    if call.params.get("starvation"):  # it may serve the oldest first
        return
    if is_first:
        task.first = (call.at, h.at)
    order[task.priority].add(call.at, h.at, task.call.at)


def _judge(h: History, task: Known, call: Call, order: list[Deliveries]) -> None:
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


def _is_disturbed(h: History, task: Known, began: int, ended: int) -> bool:
    """Whether a claim that was cancelled or failed may have had the task meanwhile."""
    return any(
        first < ended and last > began and task.lane in lanes for first, last, lanes in h.disturbed
    )
