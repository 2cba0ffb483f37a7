"""Requests about workflows, and their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..engine.runtime.task_id import TaskId
from ..errors import UsageError
from ..repository.model.arguments import listed, shard_key_bytes, task_ids
from ..repository.model.flows.workflows import (
    WORKFLOW_STATES,
    FailedMember,
    MemberGroup,
    WorkflowGraph,
    WorkflowInfo,
    WorkflowPage,
)
from ..repository.model.values import AnyId, NewTask, Part
from .calls import FORM, Call, Session
from .documents.records import deferred, new_task_doc, when

__all__ = [
    "add_members",
    "change",
    "enqueue_after",
    "graph_of",
    "info_of",
    "page_of",
    "part_of",
    "parts",
    "read",
    "some",
    "workflow",
]


def workflow(
    session: Session, callback: NewTask | None, key: Any, name: str, on_failure: str
) -> Call:
    """Open a workflow.

    Args:
        session: the server's limits, and codecs.
        callback: runs when all members have ended.
        key: names the workflow for whoever opens it again; or None.
        name: shown to people.
        on_failure: ``run``, ``wait`` or ``cancel``.
    """
    doc: dict[str, Any] = {"name": name, "on_failure": on_failure}
    if callback is not None:
        doc["callback"] = _task_doc(session, callback)
    if key is not None:
        shard_key_bytes(key, "key")
        FORM.put_key(doc, "key", key)
    return Call("POST", "/workflows", doc, is_write=True, is_repeatable=key is not None)


def _task_doc(session: Session, task: NewTask) -> Any:
    if not isinstance(task, NewTask):
        raise UsageError(f"tasks must be lodeq.NewTask, not {type(task).__name__}")
    if task.queue is None:
        raise UsageError("every task of a workflow needs a queue: NewTask(queue=…)")
    return new_task_doc(FORM, task, session.codecs, "", session)


def add_members(
    session: Session,
    workflow: AnyId,
    tasks: Sequence[NewTask],
    first: int | None,
    after: Sequence[AnyId],
    chain: bool,
) -> Call:
    """Add a slice of members.

    Args:
        session: the server's limits, and codecs.
        workflow: its id.
        tasks: at most 256.
        first: number of the first; None: the next.
        after: members that they wait for.
        chain: each waits for the one before it.
    """
    doc: dict[str, Any] = {"tasks": [_task_doc(session, task) for task in listed(tasks)]}
    if first is not None:
        doc["first"] = first
    if waits_for := task_ids(after, "after="):
        doc["after"] = [bytes(one) for one in waits_for]
    if chain:
        doc["chain"] = True
    path = f"/workflows/{TaskId(workflow)}/members"
    return Call("POST", path, doc, is_write=True, is_repeatable=first is not None)


def enqueue_after(session: Session, task: NewTask, after: Sequence[AnyId], on_failure: str) -> Call:
    """Enqueue a task that waits for others.

    Args:
        session: the server's limits, and codecs.
        task: one that names its queue.
        after: ids of the others.
        on_failure: ``run``, ``wait`` or ``cancel``.
    """
    doc = {
        "task": _task_doc(session, task),
        "after": [bytes(one) for one in task_ids(after, "after=")],
        "on_failure": on_failure,
    }
    return Call("POST", "/tasks/after", doc, is_write=True)


def change(workflow: AnyId, verb: str) -> Call:
    """``seal``, ``cancel`` or ``redrive`` a workflow."""
    return Call("POST", f"/workflows/{TaskId(workflow)}/{verb}", {}, is_write=True)


def read(workflow: AnyId, what: str = "") -> Call:
    """A workflow in numbers, or its ``/graph``."""
    return Call("GET", f"/workflows/{TaskId(workflow)}{what}", is_repeatable=True)


def some(state: str | None, limit: int, cursor: str | None) -> Call:
    """A page of workflows.

    Args:
        state: one of ``WORKFLOW_STATES``, or None.
        limit: workflows at most.
        cursor: of the page before.
    """
    if state is not None and state not in WORKFLOW_STATES:
        raise UsageError(f"state {state!r} is not one of {', '.join(WORKFLOW_STATES)}")
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise UsageError(f"limit {limit!r} is not a number")
    query = {"limit": str(limit)}
    if state is not None:
        query["state"] = state
    if cursor is not None:
        query["cursor"] = str(TaskId(cursor))
    return Call("GET", "/workflows", None, query, is_repeatable=True)


def parts(id: AnyId, after: int, limit: int, failed: bool) -> Call:
    """A page of parts.

    Args:
        id: of a workflow, its callback, or a task that waits for others.
        after: the last number of the page before.
        limit: parts at most.
        failed: only those that did not complete.
    """
    for name, value in (("after", after), ("limit", limit)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"{name} {value!r} is not a number")
    query = {"after": str(after), "limit": str(limit)}
    if failed:
        query["failed"] = "true"
    return Call("GET", f"/workflows/{TaskId(id)}/parts", None, query, is_repeatable=True)


def info_of(doc: Mapping[str, Any]) -> WorkflowInfo:
    """Read a workflow."""
    callback, created_at = doc["callback"], when(doc["created_at"])
    if created_at is None:
        raise UsageError("the answer names no time")
    return WorkflowInfo(
        id=TaskId(doc["id"]),
        name=doc["name"],
        state=doc["state"],
        on_failure=doc["on_failure"],
        generation=doc["generation"],
        members=doc["members"],
        ended=doc["ended"],
        failed=doc["failed"],
        callback=None if callback is None else TaskId(callback),
        callback_state=doc["callback_state"],
        created_at=created_at,
        joined_at=when(doc["joined_at"]),
    )


def part_of(doc: Mapping[str, Any], codecs: Mapping[str, Any]) -> Part:
    """Read a part."""
    return Part(
        number=doc["number"],
        task_id=TaskId(doc["task_id"]),
        status=doc["status"],
        value=deferred(FORM.take(doc, "value"), codecs.get(doc["queue"])),
        error=doc["error"],
        queue=doc["queue"],
        ended_at=when(doc["ended_at"]),
    )


def page_of(doc: Mapping[str, Any]) -> WorkflowPage:
    """Read a page of workflows."""
    found = tuple(info_of(one) for one in doc["workflows"])
    return WorkflowPage(found, doc["cursor"], doc["is_short"])


def graph_of(doc: Mapping[str, Any]) -> WorkflowGraph:
    """Read a workflow's members in groups."""
    groups = tuple(
        MemberGroup(
            function=one["function"],
            queue=one["queue"],
            layer=one["layer"],
            states=dict(one["states"]),
            waits_for=dict(one["waits_for"]),
        )
        for one in doc["groups"]
    )
    failed = tuple(
        FailedMember(
            number=one["number"],
            task_id=TaskId(one["task_id"]),
            status=one["status"],
            queue=one["queue"],
            function=one["function"],
            preview=one["preview"],
            reason=one["reason"],
        )
        for one in doc["failed"]
    )
    return WorkflowGraph(info_of(doc["info"]), groups, failed, doc["looked"])
