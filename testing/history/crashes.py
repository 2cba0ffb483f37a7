"""Crashes: the states each task can be in after a kill or a power cut.

After a kill everything that was answered is there; each operation under way has happened or not.
After a power cut in nosync mode any subset of the batches since the last sync is there, not only a
prefix, and repair keeps the newest row that is left of each task. Every batch writes the whole
location of its task, so a task is then always in some state it has been in since.
"""

from __future__ import annotations

from .inference import Inference
from .states import ABSENT, ENDED, HOLDS, LIVE, TTL, State, States, reachable, restarted
from .task_model import FOREVER_US, Call, TaskModel

__all__ = ["base", "cut", "killed"]

_ONE_CLAIM = (1, 0, 0, 0)


def killed(h: Inference) -> None:
    """Apply a kill: operations under way have happened or not, and never will."""
    h.kills += 1
    _note_calls(h)
    for task in h.tasks.values():
        if task.doing or _is_open(task):
            _note_growth(h, task, task.states)
            states = restarted(h.possible(task), task.attempts_max, _until_open(h, task))
            if h.is_tracking:
                h.trace(task, h.possible(task))
            task.note(h.at, "killed")
            h.settle(task, states)
    _begin(h)


def cut(h: Inference) -> None:
    """Apply a power cut. In fsync mode every answer is durable, so it is almost a kill.

    With one difference: if neither was answered, the end of a task may be lost while an operation
    that followed from it is there.
    """
    h.cuts += 1
    if h.is_fsync:
        for task in h.tasks.values():
            if task.doing:
                _doubt(task, h.possible(task))
        killed(h)
        return
    _note_calls(h)
    for task in h.tasks.values():
        states = base(h, task)
        _doubt(task, states)
        _note_growth(h, task, states)
        task.due_us = 0
        task.trail = [(h.at - 1, states)]
        task.solid_at = h.at - 1
        new = restarted(states, task.attempts_max, _until_open(h, task))
        if new != task.states:
            task.note(h.at, f"power cut: {sorted(new)}")
            h.settle(task, new)
    upto = min(h.durable)
    h.interrupted += [call for call in h.recent if call.at > upto]
    h.recent.clear()
    h.rumoured |= h.owed  # now they may be missing
    h.owed.clear()
    h.is_cut = True
    h.cut_at = h.at
    _begin(h)


def _doubt(task: TaskModel, states: States) -> None:
    """Mark the task if its end may be lost, so that another task may hold its key."""
    kinds = {s[0] for s in states}
    if kinds & LIVE and kinds - LIVE - {"absent"}:
        task.is_doubtful = True


def base(h: Inference, task: TaskModel) -> States:
    """Return every state the disk may hold of a task after a power cut in nosync mode."""
    h.forget(task)
    possible = h.possible(task)
    if len(task.trail) == 1 and task.trail[0][1] == possible:
        return possible
    states: set[State] = set(possible)
    for _, some in task.trail:
        states |= some
    upto = max(h.durable[task.shard] if task.shard >= 0 else 0, task.solid_at)
    if task.queue_model.loose_at > upto:  # an unanswered claim whose undoing is lost
        states |= reachable(frozenset(states), (), _ONE_CLAIM, task.attempts_max, 0)
    if ABSENT in states:  # the enqueue is lost, and the result of the end is left
        states |= {("gone", s[1], 0, 0) for s in states if s[0] == "dead"}
    return frozenset(states)


def _until_open(h: Inference, task: TaskModel) -> int:
    """Return the flags of what time may do until the next open, whenever that is."""
    return h.time(task) | (TTL if task.ttl_us is not None else 0)


def _is_open(task: TaskModel) -> bool:
    return any(s[0] not in ENDED and s[0] != "absent" for s in task.states)


def _note_growth(h: Inference, task: TaskModel, states: States) -> None:
    """Note the attempts of a task that is certainly pending: only a lost claim can raise them."""
    if len(states) == 1:
        (state,) = states
        if state[0] == "pending":
            h.grown.setdefault(task.number, state[1])


def _note_calls(h: Inference) -> None:
    for call in h.calls.values():
        if call.kind == "claim":
            h.claimable += call.params["limit"]
        elif call.kind == "complete":
            _note_sure(h, call, call.tasks[-1], call.params["epoch"])
        elif call.kind == "complete_many":
            for task, (_, epoch) in zip(call.tasks, call.params["pairs"], strict=True):
                _note_sure(h, call, task, epoch)


def _note_sure(h: Inference, call: Call, task: TaskModel, epoch: int) -> None:
    """Note the task with the call if nothing else can have ended its lease."""
    ops = [op for some in task.doing.values() for op in some]
    if len(task.states) == len(ops) == 1 and task.until_us > h.mono_us:
        (state,) = task.states
        if state[0] in HOLDS and state[2] == epoch and not state[3]:
            call.sure.append(task)


def _begin(h: Inference) -> None:
    """Begin the next life: nothing is under way, and monotonic time starts anew."""
    for task in h.tasks.values():
        if task.doing:
            task.doing.clear()
        if task.assumed:
            task.assumed.clear()
        task.until_us = FOREVER_US
    for queue_model in h.queue_models.values():
        queue_model.open.clear()
        queue_model.ranges.clear()
        queue_model.loose = [0, 0, 0, 0]
        queue_model.order.clear()
    h.interrupted += h.calls.values()
    h.calls.clear()
    h.every_tenant.clear()
    h.replacing.clear()
    h.disturbed.clear()
    h.syncing.clear()
    h.unplaced.clear()
    h.life_at = h.at
    h.mono_us = 0
