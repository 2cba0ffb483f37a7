"""Answers of several nodes to one call, put together in the order that one node would give.

A page ends where the first of the pages that it is made of ends: what a node has behind that may
belong before what another has there. Positions and cursors are places in one order over all
shards, so every node goes on from the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ...engine.runtime.task_id import TaskId
from ...repository.model.filters import FILTER_STATES, FINAL, Cursor, start_of
from ..calls import Call

__all__ = [
    "counted",
    "findings",
    "found",
    "health",
    "history",
    "listed",
    "n_done",
    "nothing",
    "of_first",
    "queue_stats",
    "queues",
    "released",
    "stats",
    "summed",
    "with_done",
    "workflows",
]

Docs = Sequence[Mapping[str, Any]]
Doc = dict[str, Any]
_OLDEST: Final = ("oldest_ready_age", "oldest_lease_age", "reaper_lag")  # the greatest counts
_LISTS: Final = ("recoveries", "anomalies", "unreadable", "shards")


def _sum(docs: Iterable[Mapping[str, Any]]) -> Doc:
    """Numbers summed, ages by the greatest, lists behind one another, flags if any has them."""
    out: Doc = {}
    for doc in docs:
        for name, value in doc.items():
            had = out.get(name)
            if had is None:
                out[name] = list(value) if name in _LISTS else value
            elif value is None or isinstance(value, str):
                continue
            elif name in _OLDEST:
                out[name] = max(had, value)
            elif isinstance(value, bool):
                out[name] = had or value
            else:
                out[name] = had + list(value) if name in _LISTS else had + value
    return out


def summed(call: Call, docs: Docs) -> Doc:
    """Counts of what was done."""
    return _sum(docs)


def n_done(call: Call, docs: Docs) -> int:
    """How many tasks were changed, where the answers to such a call say so."""
    name = call.counts
    return 0 if name is None else sum(doc[name] for doc in docs if name in doc)


def with_done(call: Call, doc: Mapping[str, Any], done: int) -> Mapping[str, Any]:
    """The answer to a call, with what it had done before it was sent once more."""
    name = call.counts
    return doc if name is None or name not in doc else {**doc, name: doc[name] + done}


def nothing(call: Call, docs: Docs) -> Doc:
    """Answers without members."""
    return {}


def of_first(call: Call, docs: Docs) -> Doc:
    """The answer of one of them, where all have done the same."""
    return dict(docs[0])


def released(call: Call, docs: Docs) -> Doc:
    """Leases of a claim that was taken back."""
    return {"released": sum(doc["released"] for doc in docs)}


def stats(call: Call, docs: Docs) -> Doc:
    """Statistics of the engine. Totals are of the nodes that lead, since each was opened."""
    out = _sum(docs)
    out["shards"].sort(key=lambda one: one["shard"])
    return out


def queue_stats(call: Call, docs: Docs) -> Doc:
    """Counts of a queue."""
    out = _sum(docs)
    if call.query.get("all_tenants") == "true" and not out["is_queue_paused"]:
        out["is_paused"] = all(doc["is_paused"] for doc in docs)  # of the tenants of each node
    return out


def health(call: Call, docs: Docs) -> Doc:
    """Whether all are well."""
    reasons = [reason for doc in docs for reason in doc["reasons"]]
    return {"ok": all(doc["ok"] for doc in docs), "reasons": list(dict.fromkeys(reasons))}


def findings(call: Call, docs: Docs) -> Doc:
    """What ``verify`` found."""
    listed = [one for doc in docs for one in doc["findings"]]
    return {"ok": all(doc["ok"] for doc in docs), "findings": listed}


def counted(call: Call, docs: Docs) -> Doc:
    """The number of tasks that a filter means."""
    return {
        "count": sum(doc["count"] for doc in docs),
        "is_exact": all(doc["is_exact"] for doc in docs),
        "has_cut_previews": any(doc.get("has_cut_previews", False) for doc in docs),
    }


def queues(call: Call, docs: Docs) -> Doc:
    """A page of queues with their counts."""

    def name_of(one: Mapping[str, Any]) -> tuple[str, str]:
        return one["queue"], one["tenant"]

    ends: list[tuple[str, str]] = []
    by_name: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for doc in docs:
        if doc["next"] is not None:
            queue, _, tenant = doc["next"].partition("/")
            ends.append((queue, tenant))
        for one in doc["queues"]:
            by_name.setdefault(name_of(one), []).append(one)
    bound = min(ends, default=None)
    names = sorted(name for name in by_name if bound is None or name <= bound)
    rows = [_sum(by_name[name]) for name in names]
    return {"queues": rows, "next": None if bound is None else "/".join(bound)}


def listed(call: Call, docs: Docs) -> Doc:
    """A page of a queue's tasks, in the order of their positions."""
    limit = int(call.query["limit"])
    ends = [
        doc["tasks"][-1]["position"]
        for doc in docs
        if doc["tasks"] and (doc["more"] or len(doc["tasks"]) >= limit)
    ]
    bound = min(ends, default=None)
    tasks = sorted((one for doc in docs for one in doc["tasks"]), key=lambda one: one["position"])
    if bound is not None:
        tasks = [one for one in tasks if one["position"] <= bound]
    kept = tasks[:limit]
    return {"tasks": kept, "more": bound is not None and len(kept) < limit}


def _by_id(
    docs: Docs,
    name: str,
    id_name: str,
    limit: int,
    place: Callable[[str], int],
    *,
    is_rising: bool = False,
) -> tuple[list[Any], int | None, bool]:
    """Rows of pages in the order of their ids; where the next page begins, or None; if it is short.

    Args:
        docs: the pages.
        name: of their rows.
        id_name: of the id of a row.
        limit: rows at most.
        place: the number in a cursor: rows up to it have been looked at, and that with it.
        is_rising: from the oldest id up, else from the newest down.
    """
    sign = 1 if is_rising else -1

    def order(row: Mapping[str, Any]) -> int:
        return sign * int.from_bytes(TaskId(row[id_name]), "big")

    ends = [sign * place(doc["cursor"]) for doc in docs if doc["cursor"] is not None]
    bound = min(ends, default=None)
    rows = sorted((row for doc in docs for row in doc[name]), key=order)
    rows = [row for row in rows if bound is None or order(row) <= bound]
    if len(rows) > limit:
        return rows[:limit], sign * order(rows[limit - 1]), False
    return rows, None if bound is None else sign * bound, bound is not None and len(rows) < limit


def history(call: Call, docs: Docs) -> Doc:
    """A page of ended tasks in the order of their ids."""
    limit = int(call.query["limit"])
    is_rising = "oldest_first" in call.query
    rows, at, is_short = _by_id(
        docs, "results", "task_id", limit, lambda text: int(text[-32:], 16), is_rising=is_rising
    )
    start = start_of(call.query.get("after"), is_rising)
    return {
        "results": rows,
        "cursor": None if at is None else f"{start.hex()}.{at:032x}".removeprefix("."),
        "is_short": is_short,
        "has_cut_previews": any(doc.get("has_cut_previews", False) for doc in docs),
    }


def workflows(call: Call, docs: Docs) -> Doc:
    """A page of workflows, the newest first."""

    def place(text: str) -> int:
        return int.from_bytes(TaskId(text), "big")

    limit = int(call.query["limit"])
    rows, at, is_short = _by_id(docs, "workflows", "id", limit, place)
    cursor = None if at is None else str(TaskId(at.to_bytes(16, "big")))
    return {"workflows": rows, "cursor": cursor, "is_short": is_short}


# -- search ------------------------------------------------------------------------------


def _place(
    queue: str, state: str, position: bytes, *, is_rising: bool = False
) -> tuple[bool, str, int, Any]:
    """Where a task, or a cursor, stands in the order of a search: ended tasks by their ids."""
    if state in FINAL:
        number = int.from_bytes(position, "big")
        return True, "", 0, number if is_rising else -number
    return False, queue, FILTER_STATES.index(state), position


def found(call: Call, docs: Docs) -> Doc:
    """A page of a search, all of whose requests had a cursor."""
    limit = call.doc["limit"]
    are_named = bool(call.doc["filter"].get("ids"))  # then they are in the order of their ids
    start = Cursor.of(call.doc["cursor"])
    place_of = partial(_place, is_rising=bool(start.start))
    cursors = [Cursor.of(doc["cursor"]) for doc in docs if doc["cursor"] is not None]
    end = min(cursors, key=lambda one: place_of(one.queue, one.state, one.position), default=None)

    def place(task: Mapping[str, Any]) -> tuple[bool, str, int, Any]:
        if are_named:
            return place_of("", FINAL[0], TaskId(task["id"]))
        return place_of(task["queue"], task["state"], task["position"])

    tasks = sorted((task for doc in docs for task in doc["tasks"]), key=place)
    if end is not None:
        bound = place_of(end.queue, end.state, end.position)
        tasks = [task for task in tasks if place(task) <= bound]
    is_cut = len(tasks) > limit
    tasks = tasks[:limit]
    if is_cut:
        last = tasks[-1]
        end = replace(start, queue=last["queue"], state=last["state"], position=last["position"])
        if are_named:
            position = b"\0" + TaskId(last["id"])
            end = replace(start, queue="", state=FINAL[0], position=position)
    return {
        "tasks": tasks,
        "cursor": None if end is None else end.text(),
        "is_short": end is not None and len(tasks) < limit,
        "has_cut_previews": any(doc.get("has_cut_previews", False) for doc in docs),
    }
