"""Answers: how each kind of answer narrows the states of the tasks it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import order
from .inference import Inference
from .rules import broken
from .states import (
    CANCELLABLE,
    ENDED,
    HOLDS,
    LIVE,
    SHORT,
    State,
    States,
    held,
    leased,
    outcomes,
    pending,
)
from .task_model import Call, TaskModel

__all__ = ["answered", "invoked", "partly", "refused", "start_late"]

_SLACK_US = 1000  # due times are whole milliseconds
_LEASE_KINDS = frozenset(
    {"complete", "nack", "release", "bury", "cancel_lease", "heartbeat", "redrive_lease"}
)


def invoked(h: Inference, call: Call) -> None:
    """Start an operation: find the queues and the tasks, named by id or range, that it acts on."""
    params = call.params
    if call.kind == "claim":
        call.keys = {(queue, tenant) for queue, tenant in params["queues"]}
        for queue, tenant in call.keys:
            if tenant is None:
                h.every_tenant[queue][call.op] = call
                call.queue_models += [
                    queue_model
                    for queue_model in h.queue_models.values()
                    if queue_model.name[0] == queue
                ]
            else:
                call.queue_models.append(h.queue_model(queue, tenant))
        for queue_model in call.queue_models:
            queue_model.open[call.op] = call
            queue_model.claimed_at = call.at
    elif call.kind == "cancel":
        h.start_id(call, params["id"], ("cancel", 0))
    elif call.kind == "redrive" and params.get("ids") is not None:
        for task_id in params["ids"]:
            h.start_id(call, task_id, ("redrive", 0))
    elif call.kind in {"purge", "redrive", "claim_dead"}:
        _invoke_range(h, call)


def _invoke_range(h: Inference, call: Call) -> None:
    """Start what is about all tasks of a queue that are in some state, and may take any of them."""
    kinds = {"dead"} if call.kind != "purge" else _purged(call.params.get("state"))
    tenant = call.params.get("tenant")
    if call.kind == "claim_dead":  # it may wait for the first task of its queue
        h.queue_model(call.params["queue"], tenant or "")
    for queue_model in list(h.queue_models.values()):
        if queue_model.name[0] != call.params["queue"] or tenant not in {None, queue_model.name[1]}:
            continue
        call.queue_models.append(queue_model)
        if "dead" in kinds:
            queue_model.ranges[call.op] = call
        for task in queue_model.tasks:
            if task.doing or any(s[0] not in ENDED for s in task.states):
                _start_range(h, call, task, kinds)


def _start_range(h: Inference, call: Call, task: TaskModel, kinds: set[str]) -> None:
    states = {s[0] for s in h.possible(task)}
    # A task that is leased now may go back into the range before the operation gets there.
    if not states & (kinds | LIVE if "pending" in kinds else kinds):
        if "dead" in kinds:
            start_late(h, call, task)
        return
    # A claim, or another operation under way, may come first; and a task that falls due meanwhile
    # moves behind the range.
    queue_model = task.queue_model
    is_alone = not (task.doing or queue_model.open or any(queue_model.loose) or task.has_waited())
    if is_alone and states <= kinds and len(kinds) == 2:
        call.sure.append(task)
    h.start(call, task, (call.kind, _flags_of(h, call)))


def _flags_of(h: Inference, call: Call) -> int:
    """Return the flags of the leases that a claim of dead letters grants."""
    return call.flags(h.mono_us) | SHORT if call.kind == "claim_dead" else 0


def start_late(h: Inference, call: Call, task: TaskModel) -> None:
    """Start it on a dead letter that may have died in the millisecond of the call."""
    kind = "purge dead" if call.kind == "purge" else call.kind
    h.start(call, task, (kind, _flags_of(h, call)))


def _purged(state: str | None) -> set[str]:
    """Return the kinds of state to purge. The model has one kind for ready and delayed."""
    if state is None:
        return {"pending", "dead"}
    return {"dead"} if state == "dead" else {"pending"}


# -- answers -------------------------------------------------------------------------------


def answered(h: Inference, call: Call, answer: Any) -> None:
    """Handle the answer of an operation that returned."""
    kind = call.kind
    if kind == "claim":
        _claimed(h, call, answer)
    elif kind == "claim_dead":
        _held(h, call, answer)
    elif kind in {"enqueue", "enqueue_many"}:
        _enqueued(h, call, answer)
    elif kind in _LEASE_KINDS:
        _lease_call(h, call)
    elif kind == "complete_many":
        _completed_many(h, call, answer)
    elif kind == "cancel":
        _cancelled(h, call, answer)
    elif kind in {"purge", "redrive"}:
        _range_answered(h, call, answer)
    elif kind == "fsync":
        for shard in range(h.shards):
            h.solid(shard, call.at)
    if h.is_tracking and len(call.tasks) > 1 and kind not in {"purge", "redrive", "claim_dead"}:
        h.recent.append(call)
        if len(h.recent) >= 256:
            upto = min(h.durable)
            h.recent = [c for c in h.recent if c.at > upto]


def _enqueued(h: Inference, call: Call, receipts: Sequence[Any]) -> None:
    _receive(h, call, zip(call.tasks, receipts, strict=True))
    _stop_replacing(h, call)


def partly(h: Inference, call: Call, receipts: Sequence[Any]) -> None:
    """Handle a failed call whose error names the tasks that were enqueued nevertheless."""
    got = [(t, r) for t, r in zip(call.tasks, receipts, strict=True) if r is not None]
    call.is_split = True
    for task, _ in got:
        task.doing.pop(call.op, None)
    _receive(h, call, got)


def _stop_replacing(h: Inference, call: Call) -> None:
    for task in call.tasks:
        if task.key is not None and h.replacing:
            h.replacing.get((task.queue_model, task.key), {}).pop(call.op, None)


def _receive(h: Inference, call: Call, pairs: Any) -> None:
    for task, (task_id, is_duplicate, replaced) in pairs:
        if is_duplicate:
            _duplicate(h, call, task, task_id)
            continue
        h.named(task, task_id)
        h.enqueued(call, task)
        if task_id in h.replaced:  # by a call that was answered before its own enqueue
            _check_replaced(h, task)
        if replaced:
            h.replaced.add(replaced)
            if replaced in h.by_id:
                _check_replaced(h, h.by_id[replaced])
            else:
                h.owed.add(replaced)
        if task.key is not None and all(s[0] in LIVE for s in h.possible(task)):
            _check_rivals(h, task)


def _check_replaced(h: Inference, task: TaskModel) -> None:
    def seen(s: State) -> Sequence[State]:
        return (s,) if s[0] in {"cancelled", "gone"} else outcomes(s, ("replace", 0), 1)

    h.narrow(task, seen, 8, "it was replaced", is_wide=bool(task.doing))


def _check_rivals(h: Inference, task: TaskModel) -> None:
    for other in h.by_key[task.queue_model, task.key or ""]:
        if other is task or other.is_doubtful or task.is_doubtful:
            continue
        if other.ended_at == 0 and all(s[0] in LIVE for s in h.possible(other)):
            raise h.fail(task, 8, f"the dedup key is held by {other.number}, which is live")


def _duplicate(h: Inference, call: Call, task: TaskModel, holder_id: str) -> None:
    """Handle a duplicate: it is absent, and the holder of its key is acknowledged as well."""
    h.absent(task, "a duplicate was enqueued")
    holder = h.by_id.get(holder_id)
    if holder is None:
        h.owed.add(holder_id)
        return
    if holder.key != task.key or holder.queue_model is not task.queue_model:
        raise h.fail(task, 8, f"{holder.number} has another key")
    h.exists(holder)
    is_live = any(s[0] in LIVE for s in h.possible(holder, 1))  # redriven, perhaps
    if 0 < holder.ended_at < call.at and not holder.is_windowed and not is_live:
        raise h.fail(holder, 8, f"it had ended and still held the key of {task.number}")


def _claimed(h: Inference, call: Call, delivered: Sequence[Any]) -> None:
    flags = call.flags(h.mono_us)
    until_us = call.until_us()
    for number, task_id, attempt, epoch in delivered:
        task = h.tasks.get(number)
        if task is None:
            raise broken(2, f"task {number} ({task_id}) was delivered and never enqueued")
        is_new = not task.id
        h.named(task, task_id)
        if is_new and task_id in h.replaced:  # its lease expired before this answer
            _check_replaced(h, task)
        h.delivered += 1
        task.log.append((h.at, f"{call.op} claim -> attempt {attempt} epoch {epoch}"))
        queue, tenant = task.queue_model.name
        if (queue, tenant) not in call.keys and (queue, None) not in call.keys:
            raise h.fail(task, 2, "delivered from a queue it is not in")
        if _is_late(call, task, epoch):
            continue
        before = pending(attempt - 1)
        if before not in task.states:
            states = h.possible(task)
            overtaken = call.at < task.ended_at or epoch < task.epoch
            if before not in states and overtaken:
                continue  # its lease was revoked before this answer could be given
            if before not in states:
                raise h.fail(
                    task,
                    _rule_of_delivery(states),
                    f"it cannot have been delivered as attempt {attempt}",
                    states,
                )
        if epoch <= task.epoch:
            raise h.fail(task, 5, f"epoch {epoch} after {task.epoch}")
        if 0 < h.wall_max_us < task.not_before_us() - _SLACK_US:
            early_us = task.not_before_us() - h.wall_max_us
            raise h.fail(task, 9, f"delivered {early_us} µs before its time")
        task.epoch, task.granted_at = epoch, h.at
        new = (leased(attempt, epoch, flags),)
        h.narrow(
            task,
            lambda s, before=before, new=new: new if s == before else (),  # type: ignore[misc]
            6,
            "delivered",
        )
        order.delivered(h, task, call, attempt)
        task.until_us = until_us
        task.since_us = call.wall_us
        task.due_us = 0
        task.deliveries += 1


def _is_late(call: Call, task: TaskModel, epoch: int) -> bool:
    """Return whether a later claim was answered before this one, whose lease was over by then."""
    return epoch < task.epoch and call.at < task.granted_at


def _held(h: Inference, call: Call, delivered: Sequence[Any]) -> None:
    """Handle dead letters that were claimed: each was one, and nobody else had it."""
    flags = call.flags(h.mono_us)
    for number, task_id, attempt, epoch in delivered:
        task = h.tasks.get(number)
        if task is None:
            raise broken(2, f"task {number} ({task_id}) was delivered and never enqueued")
        h.named(task, task_id)
        task.log.append((h.at, f"{call.op} claim_dead -> attempt {attempt} epoch {epoch}"))
        if task.queue_model not in call.queue_models:
            raise h.fail(task, 2, "delivered from a queue it is not in")
        before = {("dead", attempt, 0, 0), held(attempt, 0, flags), held(attempt, 0, flags | SHORT)}
        states = h.possible(task)
        if _is_late(call, task, epoch) or (not before & states and epoch < task.epoch):
            continue  # its lease was over before this answer could be given
        if epoch <= task.epoch:
            raise h.fail(task, 5, f"epoch {epoch} after {task.epoch}")
        task.epoch, task.granted_at, task.held_at = epoch, h.at, h.at
        new = (held(attempt, epoch, flags),)
        h.narrow(
            task,
            lambda s, before=before, new=new: new if s in before else (),  # type: ignore[misc]
            5,
            "delivered as a dead letter",
            is_wide=bool(task.doing),
        )
        task.until_us = call.until_us()
        task.since_us = call.wall_us


def _rule_of_delivery(states: States) -> int:
    kinds = {s[0] for s in states}
    if "pending" in kinds:
        return 6
    if "leased" in kinds:
        return 5
    return 2 if kinds == {"absent"} else 4


def _lease_call(h: Inference, call: Call) -> None:
    *then, task = call.tasks
    op = (call.kind, call.params["epoch"])
    before = task.states
    h.succeed(call, task, op)
    if call.kind == "heartbeat" and task.epoch == op[1]:
        seconds_us = call.params.get("seconds_us")
        if seconds_us is not None:  # not reaped so far, nor until then
            task.until_us = call.mono_us + seconds_us - 1000
            task.states = frozenset(
                (s[0], s[1], s[2], s[3] & ~SHORT) if s[0] in HOLDS and s[2] == op[1] else s
                for s in task.states
            )
    delay_us = call.params.get("delay_us")
    is_its_own = task.redriven_at < call.at  # or it died of this call and was redriven since
    if delay_us and is_its_own and all(s[0] == "pending" for s in task.states):
        task.due_us = call.wall_us + delay_us
    if call.params.get("durable") and h.is_tracking:
        new = {n for s in before for n in outcomes(s, op, task.attempts_max)}
        h.solidify(call, task, new or task.states)
    for other in then:
        h.enqueued(call, other)


def _completed_many(h: Inference, call: Call, outcome: Sequence[bool]) -> None:
    pairs = zip(call.tasks, call.params["pairs"], outcome, strict=True)
    for task, (_, epoch), is_completed in pairs:
        if not is_completed:
            _lost(h, task, epoch)
            continue
        before = task.states
        h.succeed(call, task, ("complete", epoch))
        call.sure.append(task)
        if call.params.get("durable") and h.is_tracking:
            op = ("complete", epoch)
            new = {n for s in before for n in outcomes(s, op, task.attempts_max)}
            h.solidify(call, task, new or task.states)


def _cancelled(h: Inference, call: Call, was_there: bool) -> None:
    for task in call.tasks:
        if was_there:
            h.succeed(call, task, ("cancel", 0))
        elif task.held_at < call.at:  # else it was dead when the call looked, maybe
            h.narrow(
                task, lambda s: () if s[0] in CANCELLABLE else (s,), 1, "cancel did not find it"
            )
    if was_there:
        h.owed.update(task_id for task_id in call.ids if task_id not in h.by_id)


def _range_answered(h: Inference, call: Call, count: int) -> None:
    if count > len(call.tasks) + len(call.ids):
        raise broken(2, f"{call.kind} {call.params} says {count} of {len(call.tasks)} tasks")
    is_named = call.params.get("ids") is not None  # then it raises unless each could be
    if not count and not is_named:
        return
    sure = {task.number for task in call.sure}
    for task in call.tasks:
        is_alone = not (task.doing or h.time(task)) and task.queue_model.claimed_at < call.at
        if is_named or (task.number in sure and is_alone):
            h.succeed(call, task, (call.kind, 0))
        else:
            _keep_both(h, call, task)


def _keep_both(h: Inference, call: Call, task: TaskModel) -> None:
    """Keep both: the operation has happened to this task, or has not."""
    op = (call.kind, 0)
    new = {n for s in h.possible(task) for n in outcomes(s, op, task.attempts_max)}
    if new:
        task.assumed.update(task.doing)  # another operation under way may have come first
        h.settle(task, task.states | new)


def refused(h: Inference, call: Call, error: str, holder: str | None) -> None:
    """Handle an operation that raised, with an error that means it changed nothing.

    Args:
        h: the history so far.
        call: the operation.
        error: name of the exception.
        holder: id of the task that holds the dedup key, of a ``DuplicateTaskError``.
    """
    _stop_replacing(h, call)
    if error == "LeaseLostError" and call.kind in _LEASE_KINDS:
        *then, task = call.tasks
        _lost(h, task, call.params["epoch"])
        for other in then:
            h.absent(other, "it follows a task that was not completed")
    elif error == "DuplicateTaskError" and call.kind == "enqueue":
        _duplicate(h, call, call.tasks[0], holder or "")
    elif call.kind in {"enqueue", "enqueue_many", "complete"}:
        for task in call.tasks:
            if task.call is call:
                h.absent(task, f"its enqueue was refused with {error}")
    elif call.kind == "redrive" and len(call.tasks) + len(call.ids) > 1:
        for task in call.tasks:  # "after redriving the others"
            _keep_both(h, call, task)


def _lost(h: Inference, task: TaskModel, epoch: int) -> None:
    """Check that something can have ended the lease, perhaps not yet written to disk."""
    states = h.possible(task)
    if all(s[0] in HOLDS and s[2] == epoch and not s[3] & SHORT for s in states):
        raise h.fail(task, 5, f"the lease of epoch {epoch} was lost without a reason", states)
