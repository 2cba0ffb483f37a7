"""What a kill and a power cut leave: which states each task can be in when it is next seen.

After a kill everything that was answered is there, and of what was under way each part is or is
not. After a power cut in nosync mode any subset of the batches since the last sync is there, not
a prefix, and repair takes the newest row that is left of each task. Every batch writes its task's
whole place, so that is always some state the task has been in since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .states import ABSENT, ENDED, LIVE, TTL, State, States, reachable, restarted
from .task_model import FOREVER_US, Call, Known

if TYPE_CHECKING:
    from .checker import History

__all__ = ["base", "cut", "killed"]

_ONE_CLAIM = (1, 0, 0, 0)


def killed(h: History) -> None:
    """Whatever was under way has happened or not; nothing more will."""
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


def cut(h: History) -> None:
    """The power failed. In fsync mode what was answered is durable, so it is as a kill.

    But for one thing: an end that was under way may be lost, and what came of it be there, if that
    was not answered either.
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
    h.rumoured |= h.owed  # may be there, and need not
    h.owed.clear()
    h.is_cut = True
    h.cut_at = h.at
    _begin(h)


def _doubt(task: Known, states: States) -> None:
    """Its end may be gone, and another have its key."""
    kinds = {s[0] for s in states}
    if kinds & LIVE and kinds - LIVE - {"absent"}:
        task.is_doubtful = True


def base(h: History, task: Known) -> States:
    """Every state that the disk may hold of a task after a power cut in nosync mode."""
    h.forget(task)
    possible = h.possible(task)
    if len(task.trail) == 1 and task.trail[0][1] == possible:
        return possible
    states: set[State] = set(possible)
    for _, some in task.trail:
        states |= some
    upto = max(h.durable[task.shard] if task.shard >= 0 else 0, task.solid_at)
    if task.lane.loose_at > upto:  # a claim nobody heard of, whose undoing is lost
        states |= reachable(frozenset(states), (), _ONE_CLAIM, task.attempts_max, 0)
    if ABSENT in states:  # an end whose enqueue is lost leaves its result
        states |= {("gone", s[1], 0, 0) for s in states if s[0] == "dead"}
    return frozenset(states)


def _until_open(h: History, task: Known) -> int:
    """What time may do until the next open, whenever that is; a look knows when it was."""
    return h.time(task) | (TTL if task.ttl_us is not None else 0)


def _is_open(task: Known) -> bool:
    return any(s[0] not in ENDED and s[0] != "absent" for s in task.states)


def _note_growth(h: History, task: Known, states: States) -> None:
    """Only a claim nobody heard of can raise the attempts of a task that is pending for sure."""
    if len(states) == 1:
        (state,) = states
        if state[0] == "pending":
            h.grown.setdefault(task.number, state[1])


def _note_calls(h: History) -> None:
    for call in h.calls.values():
        if call.kind == "claim":
            h.claimable += call.params["limit"]
        elif call.kind == "complete":
            _note_sure(h, call, call.tasks[-1], call.params["epoch"])
        elif call.kind == "complete_many":
            for task, (_, epoch) in zip(call.tasks, call.params["pairs"], strict=True):
                _note_sure(h, call, task, epoch)


def _note_sure(h: History, call: Call, task: Known, epoch: int) -> None:
    """Nothing but this call can have ended the lease."""
    ops = [op for some in task.doing.values() for op in some]
    if len(task.states) == len(ops) == 1 and task.until_us > h.mono_us:
        (state,) = task.states
        if state[0] == "leased" and state[2] == epoch and not state[3]:
            call.sure.append(task)


def _begin(h: History) -> None:
    """The next life: nothing is under way, and monotonic time starts anew."""
    for task in h.tasks.values():
        if task.doing:
            task.doing.clear()
        if task.assumed:
            task.assumed.clear()
        task.until_us = FOREVER_US
    for lane in h.lanes.values():
        lane.open.clear()
        lane.ranges.clear()
        lane.loose = [0, 0, 0, 0]
        lane.order.clear()
    h.interrupted += h.calls.values()
    h.calls.clear()
    h.every_tenant.clear()
    h.replacing.clear()
    h.disturbed.clear()
    h.syncing.clear()
    h.unplaced.clear()
    h.life_at = h.at
    h.mono_us = 0
