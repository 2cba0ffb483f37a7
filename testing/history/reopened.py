"""Looks: compare the contents of a store with the history that led to them.

``found`` holds the rows that ``contents`` read, and the findings of ``verify()``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from .crashes import base
from .inference import Inference
from .kept_ends import check_kept
from .rules import broken
from .states import (
    ABSENT,
    ENDED,
    EXPIRED,
    EXPORTED,
    HOLDS,
    LIVE,
    NO_CLAIMS,
    SHORT,
    TTL,
    State,
    States,
    reachable,
    restarted,
)
from .task_model import Call, TaskModel

__all__ = ["look"]

RESULTS = {"completed": "completed", "cancelled": "cancelled", "expired": "expired", "dead": "gone"}
_ANY_ATTEMPTS = frozenset({"cancelled", "expired"})
_SLACK_US = 1_001_000  # the engine checks for expired rows once a second

Location = tuple[str, int, int]
Outcome = tuple[str, int]


def look(h: Inference, found: dict[str, Any]) -> None:
    """Check the contents of a store at rest against the history."""
    findings, anomalies = found["findings"], found["anomalies"]
    if findings or anomalies:
        raise broken(11, f"verify: {findings[:20]}; anomalies: {anomalies[:5]}")
    if found["rows"] != found["counted"]:
        raise broken(10, f"counters {found['counted']}, rows {found['rows']}")
    there: dict[int, Location] = {}
    for task_id, number, locations in found["tasks"]:
        task = h.tasks.get(number)
        if task is None:
            raise broken(2, f"task {task_id} of number {number} was never enqueued: {locations}")
        if len(locations) != 1 or number in there:
            raise broken(11, f"task {task_id} of number {number} is at {locations}")
        h.named(task, task_id)
        there[number] = tuple(locations[0])
    results = {task_id: (status, attempts) for task_id, status, attempts in found["results"]}
    _check_results(h, results)
    for task in h.tasks.values():
        _see(h, task, there.get(task.number), results.get(task.id))
    if h.history_us:
        check_kept(h, found)
    _check_owed(h, results)
    _check_keys(h)
    _check_batches(h, there)
    _check_claims(h, there)
    h.interrupted.clear()
    h.is_cut = False


def _may_be_forgotten(h: Inference, task: TaskModel) -> bool:
    """Return whether the end of a task may have left no result, or none that is still kept."""
    if not h.keeps_results or (
        not h.history_us and (task.leaves_nothing or task.retention_us == 0)
    ):
        return True
    kept_us = task.retention_us
    if h.history_us:
        kept_us = max(h.history_us, 0 if task.drops_value else kept_us or 0)
    # After a power cut the result may be that of an earlier end, and expire with it.
    since_us = task.since_us
    if h.cuts and h.is_tracking:
        since_us = min(since_us, task.call.wall_us)
    return kept_us is not None and since_us + kept_us <= h.wall_max_us + _SLACK_US


def _check_results(h: Inference, results: dict[str, Outcome]) -> None:
    strangers = {i: r for i, r in results.items() if i not in h.by_id and i not in h.rumoured}
    if not strangers:
        return
    if any(status == "completed" for status, _ in strangers.values()):
        raise broken(2, f"completed, and never delivered: {strangers}")
    replaces = sum(
        fields.get("conflict") == "replace"
        for call in h.interrupted
        for fields in call.params.get("tasks", ())
    )  # each may have ended a task whose id the history does not have
    unnamed = sum(
        not task.id and any(s[0] in ENDED for s in h.possible(task)) for task in h.tasks.values()
    )
    if len(strangers.keys() - h.strangers) > len(h.owed) + replaces + unnamed:
        raise broken(2, f"results of unknown tasks: {strangers}")
    h.strangers.update(strangers)


def _see(h: Inference, task: TaskModel, location: Location | None, result: Outcome | None) -> None:
    if location is None and result is None and task.states == {ABSENT} and not task.doing:
        return
    seen: States = frozenset()
    for depth in range(3):
        states = h.possible(task, depth)
        if EXPIRED in states and not h.time(task) & TTL:
            states -= {EXPIRED}
        seen = _matching(h, task, states, location, result)
        if seen or not h.calls:
            break
    if not seen:
        what = location or result or "nothing"
        task.note(h.at, f"found {what}")
        raise h.fail(task, _rule(states, location, result), f"found {what}", states)
    if location is not None and location[0] in HOLDS:
        task.epoch = max(task.epoch, location[2])
    if h.is_cut and h.is_tracking:
        _narrow_base(h, task, seen)
        if location is None and result is None and any(s[0] == "gone" for s in seen):
            task.leaves_nothing = True  # a later look does not find what the cut took, either
    if seen != task.states:
        task.note(h.at, f"found {location or result}")
        h.settle(task, seen)


def _matching(
    h: Inference, task: TaskModel, states: States, location: Location | None, result: Outcome | None
) -> States:
    """Return the possible states that fit what was found.

    Args:
        h: the history so far.
        task: the task.
        states: the states it can be in.
        location: its kind, attempts and epoch in the store; None if there is no such task.
        result: status and attempts of its result; None if there is none.
    """
    if location is not None:
        kind, attempts, epoch = location
        if kind not in HOLDS:
            name = "pending" if kind in {"ready", "delayed"} else kind
            return frozenset(s for s in states if s[:2] == (name, attempts))
        return frozenset(
            (kind, attempts, epoch, s[3] | SHORT) if s[3] & EXPORTED else s
            for s in states
            if s[:2] == (kind, attempts) and s[2] in {0, epoch}
        )
    if result is not None:
        name, attempts = RESULTS[result[0]], result[1]
        if name in _ANY_ATTEMPTS:
            return frozenset(s for s in states if s[0] == name)
        if name == "gone" and task.leaves_nothing and h.cuts and h.is_tracking:
            # A power cut may have taken the redrive that removed this result, but not the
            # complete, which was asked to keep no result.
            return frozenset(s for s in states if s[:2] == (name, attempts) or s[0] == "completed")
        return frozenset(s for s in states if s[:2] == (name, attempts))
    kinds = {"absent"}
    if _may_be_forgotten(h, task):
        kinds |= ENDED
    elif not task.id:  # perhaps replaced before any record had its id
        kinds |= {"cancelled", "gone", "expired"}
    elif h.is_cut and h.is_tracking and any(s[0] in LIVE for _, some in task.trail for s in some):
        kinds |= {"gone"}  # the cut took its death, and not what removed the dead letter
    return frozenset(s for s in states if s[0] in kinds)


def _narrow_base(h: Inference, task: TaskModel, seen: States) -> None:
    """Narrow the states on the disk to those from which open and reaper lead to what was seen."""
    most, time = task.attempts_max, h.time(task)

    def after(s: State) -> States:
        return reachable(restarted(frozenset([s]), most, time), (), NO_CLAIMS, most, time)

    kept = {s for s in base(h, task) if seen & after(s)}
    task.trail = [(h.at - 1, frozenset(kept | seen))]
    task.solid_at = h.at - 1


def _rule(states: States, location: Location | None, result: Outcome | None) -> int:
    """Return the rule that forbids what was found."""
    kinds = {s[0] for s in states}
    if location is None and result is None:
        return 1
    if kinds == {"absent"}:
        return 2
    if location is None:
        return 6 if result and RESULTS[result[0]] in kinds else 3
    name = "pending" if location[0] in {"ready", "delayed"} else location[0]
    if name in kinds:
        return 5 if name in HOLDS and any(s[1] == location[1] for s in states) else 6
    if not kinds - ENDED:
        return 4
    return 5 if name in HOLDS else 3


def _check_owed(h: Inference, results: dict[str, Outcome]) -> None:
    lost = h.owed - set(results)
    if lost:
        # An id without a known task is that of a task that was never acknowledged.
        free = sum(not task.id and _may_be_forgotten(h, task) for task in h.tasks.values())
        if len(lost) > free:
            raise broken(1, f"named by the engine, and missing: {sorted(lost)}")


def _check_keys(h: Inference) -> None:
    for (queue_model, key), tasks in h.by_key.items():
        if len(tasks) < 2:
            continue
        live = [t for t in tasks if all(s[0] in LIVE for s in t.states)]
        if len(live) > 1 and sum(not t.is_doubtful for t in live) > 1:
            numbers = [t.number for t in live]
            raise broken(8, f"the dedup key {key} of {queue_model.name} is held by {numbers}")


def _check_batches(h: Inference, there: dict[int, Location]) -> None:
    """Check that each interrupted batch is there as a whole or not at all."""
    for call in h.interrupted:
        parts: dict[int, set[bool | None]] = defaultdict(set)
        if call.kind in {"enqueue", "enqueue_many"} and not call.is_split:
            parts[0] = {
                _is_there(h, t, there) for t in call.tasks if t.key is None and not t.is_alone
            }
        elif call.kind == "complete":
            _part_of_complete(h, call, parts, there)
        elif call.kind == "complete_many":
            for task in call.sure:
                if not call.is_done or task.completes == 1:
                    parts[task.shard].add(_is_completed(task))
        if any(len(part - {None}) > 1 for part in parts.values()):
            stories = "\n".join(
                f"{t.number} ({t.id}): {sorted(t.states)}\n{t.story()}" for t in call.tasks
            )
            raise broken(3, f"torn: {call.kind} {call.params} left {dict(parts)}\n{stories}")


def _is_there(h: Inference, task: TaskModel, there: dict[int, Location]) -> bool | None:
    """Return whether its enqueue has happened; None where the store does not show it."""
    if task.number in there:
        return True
    if task.states == {ABSENT}:
        return False
    # After a power cut an end may have survived the enqueue before it.
    return None if h.is_cut or ABSENT in task.states else True


def _part_of_complete(
    h: Inference, call: Call, parts: dict[int, set[bool | None]], there: dict[int, Location]
) -> None:
    *then, task = call.tasks
    followed = {_is_there(h, t, there) for t in then}
    parts[0] |= followed
    # Absent follow-ups prove that this call did nothing; then another may have completed the
    # task, unless nothing could have ended the lease but this call.
    is_only = task in call.sure or (call.is_done and task.completes == 1)
    if True in followed or (followed and is_only):
        parts[0].add(_is_completed(task))


def _is_completed(task: TaskModel) -> bool | None:
    completed = {s[0] == "completed" for s in task.states}
    return completed.pop() if len(completed) == 1 else None


def _check_claims(h: Inference, there: dict[int, Location]) -> None:
    """Check that interrupted claims raised the attempts of no more tasks than they asked for."""
    grown = {n for n, attempts in h.grown.items() if n in there and there[n][1] > attempts}
    if len(grown) > h.claimable:
        raise broken(6, f"claims for {h.claimable} tasks took {sorted(grown)}")
    h.grown.clear()
    h.claimable = 0
