"""What a reopened store holds, against the history that led to it.

``found`` is what ``contents.py`` read, row by row, and what ``verify()`` had to say.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from crash.states import ABSENT, LIVE, BrokenError, leased

from lodeq.engine.ids import shard_of

if TYPE_CHECKING:
    from crash.history import History, Known

RESULTS = {"completed": "completed", "cancelled": "cancelled", "dead": "gone"}


def look(history: History, found: dict) -> None:
    """Hold what was found in a reopened store against the history."""
    if found["findings"] or found["anomalies"]:
        raise BrokenError(f"verify: {found['findings'][:20]}; anomalies: {found['anomalies'][:5]}")
    if found["rows"] != found["counted"]:
        raise BrokenError(f"counters {found['counted']}, rows {found['rows']}")
    there: dict[int, list] = {}
    for task_id, number, places in found["tasks"]:
        task = history.tasks.get(number)
        if task is None or len(places) != 1 or number in there:
            raise BrokenError(f"task {task_id} of number {number} is at {places}")
        history.named(task, task_id)
        there[number] = places[0]
    results = {task_id: (status, attempts) for task_id, status, attempts in found["results"]}
    _check_results(history, results)
    for task in history.tasks.values():
        _see(history, task, there.get(task.number), results.get(task.id))
    if lost := history.owed - set(results):
        raise BrokenError(f"named by the engine, and missing: {lost}")
    _check_keys(history)
    _check_batches(history)
    _check_claims(history, there)
    history.interrupted.clear()


def _check_results(history: History, results: dict[str, tuple[str, int]]) -> None:
    replaces = sum(
        call.kind == "enqueue" and call.params["conflict"] == "replace"
        for call in history.interrupted
    )  # only these may have ended a task whose id was never told
    strangers = {i: r for i, r in results.items() if i not in history.by_id}
    if any(status == "completed" for status, _ in strangers.values()):
        raise BrokenError(f"completed, and never delivered: {strangers}")
    if len(strangers.keys() - history.strangers) > len(history.owed) + replaces:
        raise BrokenError(f"results of unknown tasks: {strangers}")
    history.strangers.update(strangers)


def _see(history: History, task: Known, place: list | None, result: tuple[str, int] | None) -> None:
    states = history.possible(task, 0)
    if place is not None:
        kind, attempts, epoch = place
        name = "pending" if kind in {"ready", "delayed"} else kind
        seen = {s for s in states if s[:2] == (name, attempts)}
        if kind == "leased" and any(s[3] for s in seen):  # exported: it outlives its process
            seen = {leased(attempts, epoch, is_short=True)}
            task.epoch = max(task.epoch, epoch)
    elif result is not None:
        name, attempts = RESULTS[result[0]], result[1]
        seen = {s for s in states if s[:2] == (name, attempts) or s[0] == name == "cancelled"}
    elif task.id:
        seen = states & {ABSENT}
    else:  # replaced, perhaps, before we heard of its id
        seen = {s for s in states if s[0] in {"absent", "cancelled", "gone"}}
    if seen != task.states:
        task.log.append(f"{history.at}: found {place or result}")
        if not seen:
            history.fail(task, f"found {place or result}")
        history.settle(task, frozenset(seen))


def _check_keys(history: History) -> None:
    for key, tasks in history.by_key.items():
        live = [t.number for t in tasks if all(s[0] in LIVE for s in t.states)]
        if len(live) > 1:
            raise BrokenError(f"the dedup key {key} is held by {live}")


def _check_batches(history: History) -> None:
    """Of what kills interrupted, each batch is there as a whole or not at all."""
    for call in history.interrupted:
        parts: dict[int, set[bool]] = defaultdict(set)
        if call.kind == "enqueue":
            parts[0] = {t.states != {ABSENT} for t in call.tasks if not t.key}
        elif call.kind == "complete":
            parts[0] = {t.states != {ABSENT} for t in call.tasks[:-1]}
            # Absent follow-ups prove that this call did nothing; then another may have completed
            # the task, unless nothing could have ended the lease but this call.
            if True in parts[0] or call.tasks[-1] in call.sure:
                parts[0].add(any(s[0] == "completed" for s in call.tasks[-1].states))
        for task in call.sure if call.kind == "complete_many" else ():
            shard = shard_of(bytes.fromhex(task.id), history.shards)
            parts[shard].add(any(s[0] == "completed" for s in task.states))
        if any(len(part) > 1 for part in parts.values()):
            told = "\n".join(
                f"{t.number} ({t.id}): {sorted(t.states)}\n  " + "\n  ".join(t.log[-9:])
                for t in call.tasks
            )
            raise BrokenError(f"torn: {call.kind} {call.params} left {dict(parts)}\n{told}")


def _check_claims(history: History, there: dict[int, list]) -> None:
    """No more tasks have been run once more than interrupted claims asked for."""
    grown = {n for n, attempts in history.grown.items() if n in there and there[n][1] > attempts}
    if len(grown) > history.claimable:
        raise BrokenError(f"claims for {history.claimable} tasks took {sorted(grown)}")
    history.grown.clear()
    history.claimable = 0
