"""Requests that search for tasks by a filter, and act on what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engine.runtime.task_id import TaskId
from ..errors import UsageError
from ..repository.model.arguments import check_redrive_policy
from ..repository.model.filters import (
    ActReport,
    FoundCount,
    FoundTasks,
    TaskFilter,
    check_found,
    check_looks,
    filter_doc,
    start_of,
)
from ..repository.model.values import AnyId
from .calls import FORM, Call, Session, check_rising
from .documents.records import task_of

__all__ = ["act", "act_of", "count", "count_of", "find", "found_of"]


def find(
    session: Session,
    meant: TaskFilter,
    limit: int,
    cursor: str | None,
    *,
    payloads: bool = True,
    oldest_first: bool = False,
    after: AnyId | None = None,
) -> Call:
    """Ask for a page of tasks.

    Args:
        session: of the client.
        meant: which tasks.
        limit: tasks, 1 to 1,000.
        cursor: of the page before; None begins.
        payloads: whether their payloads and headers are sent.
        oldest_first: ended tasks by rising ids.
        after: with ``oldest_first``, only what is behind this id.
    """
    doc: dict[str, Any] = {"filter": _filter(session, meant), "limit": check_found(limit)}
    doc |= {"cursor": cursor, "payloads": bool(payloads)}
    if start_of(after, oldest_first):
        check_rising(session)
        doc["oldest_first"] = True
    if after is not None:
        doc["after"] = TaskId(after)
    return Call("POST", "/tasks/find", doc, is_repeatable=True)


def found_of(session: Session, doc: Mapping[str, Any]) -> FoundTasks:
    """Read a page of tasks."""
    tasks = tuple([task_of(FORM, one, session.codecs) for one in doc["tasks"]])
    return FoundTasks(tasks, doc["cursor"], doc["is_short"], doc.get("has_cut_previews", False))


def count(session: Session, meant: TaskFilter, looks: int) -> Call:
    """Ask how many there are; ``looks``: rows that are looked at."""
    doc = {"filter": _filter(session, meant), "looks": check_looks(looks)}
    return Call("POST", "/tasks/count", doc, is_repeatable=True)


def count_of(doc: Mapping[str, Any]) -> FoundCount:
    """Read a number of tasks."""
    return FoundCount(doc["count"], doc["is_exact"], doc.get("has_cut_previews", False))


def act(
    session: Session,
    name: str,
    meant: TaskFilter,
    *,
    priority: int | None,
    policy: str,
    limit: int,
    cursor: str | None,
) -> Call:
    """Ask for one slice of an act.

    Not one to be sent twice: a slice that is repeated does no harm, but does not count either what
    the first one has done.

    Args:
        session: of the client.
        name: of the act.
        meant: which tasks.
        priority: 0 to 9, for ``reprioritise``.
        policy: ``stored`` or ``current``, for ``redrive``.
        limit: tasks of this slice.
        cursor: of the slice before.
    """
    doc = {
        "act": name,
        "filter": _filter(session, meant),
        "priority": priority,
        "policy": check_redrive_policy(policy),
        "limit": check_found(limit),
        "cursor": cursor,
    }
    return Call("POST", "/tasks/act", doc, is_write=True)


def act_of(doc: Mapping[str, Any]) -> ActReport:
    """Read the report of a slice."""
    return ActReport(doc["done"], doc["skipped"], doc["refused"], doc["cursor"])


def _filter(session: Session, meant: object) -> dict[str, Any]:
    if not session.takes_filters:
        raise UsageError("this server is older than the client: it takes no filters; upgrade it")
    if not isinstance(meant, TaskFilter):
        raise UsageError(f"expected a lodeq.TaskFilter, not {type(meant).__name__}")
    return filter_doc(meant)
