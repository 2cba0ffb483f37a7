"""Requests about published functions and workers, and how their answers are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ..engine.records.keyspace import check_name
from ..errors import UsageError
from ..repository.model.arguments import duration_s, shard_key_bytes
from ..repository.model.calls.functions import (
    PublishedFunction,
    check_functions,
    function_doc,
    function_of,
)
from ..repository.model.calls.limit_keys import label_of_arguments
from ..repository.model.calls.previews import preview_of
from ..repository.model.faces import redacted_labels
from ..repository.model.redaction import Redaction
from ..repository.model.workers import WorkerReport, check_report, report_of_worker, worker_doc
from .calls import FORM, Call, Session

__all__ = [
    "beat",
    "enqueue_function",
    "forget_function",
    "functions",
    "functions_of",
    "publish",
    "stored_labels",
    "workers",
    "workers_of",
]

SLICE: Final = 128  # functions of one request: 512 KiB at most


def _check(session: Session) -> None:
    if not session.takes_policies:
        raise UsageError(
            "this server is older than the client: it knows no functions and workers; upgrade it"
        )


def functions(session: Session, queue: str | None, after: str | None) -> Call:
    """Ask for a page of functions."""
    _check(session)
    if queue is not None:
        check_name(queue, "queue")
    given = {"queue": queue, "after": after}
    query = {name: text for name, text in given.items() if text is not None}
    return Call("GET", "/functions", query=query, is_repeatable=True)


def functions_of(doc: Mapping[str, Any]) -> list[PublishedFunction]:
    """Read a page of functions."""
    return [function_of(one) for one in doc["functions"]]


def publish(session: Session, given: Sequence[PublishedFunction]) -> Iterator[Call]:
    """Publish functions: as many requests as it takes, each of 128."""
    _check(session)
    docs = [function_doc(one) for one in check_functions(given)]
    for start in range(0, len(docs), SLICE):
        part = {"functions": docs[start : start + SLICE]}
        yield Call("POST", "/functions/publish", part, is_write=True, is_repeatable=True)


def forget_function(session: Session, queue: str, name: str) -> Call:
    """Forget a published function."""
    _check(session)
    doc = {"queue": queue, "function": name}
    return Call("POST", "/functions/forget", doc, is_write=True)


def stored_labels(
    redaction: Redaction,
    found: Iterable[PublishedFunction],
    name: str,
    arguments: object,
    labels: Mapping[str, str] | None,
) -> Mapping[str, str] | None:
    """The labels of a call by name that may be stored, that of its function's limit among them.

    The server would make that one of the arguments, and has no hook of ours. So it is always given:
    empty where the hook lets nothing pass.

    Args:
        redaction: the client's.
        found: the functions of the queue.
        name: of the function; the server refuses one that is unknown, or what it cannot take.
        arguments: by name, as they were given.
        labels: that were given.
    """
    limit_by = next((one.limit_by for one in found if one.name == name), ())
    given, limit = dict(labels or {}), {}
    if limit_by and limit_by[0] in given:
        limit = {limit_by[0]: given[limit_by[0]]}
    elif limit_by and isinstance(arguments, Mapping):
        with suppress(UsageError):
            limit = label_of_arguments(name, limit_by, arguments)
    kept = redacted_labels({**given, **limit}, redaction)
    return {**dict.fromkeys(limit, ""), **kept} or None


def enqueue_function(
    session: Session,
    queue: str,
    name: str,
    arguments: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> Call:
    """Enqueue a call of a published function.

    Args:
        session: of the server.
        queue: of the function.
        name: of the function.
        arguments: by name.
        options: those of ``Engine.enqueue_function``, labels from ``stored_labels``; None is left
            out.
    """
    _check(session)
    doc: dict[str, Any] = {"queue": queue, "function": name}
    if arguments is not None:
        if not isinstance(arguments, Mapping):
            raise UsageError(f"arguments of {name!r} must be a mapping of names to values")
        doc["arguments"] = dict(arguments)
    redaction = session.redaction
    if redaction is not None:  # the server has none of ours, so it gets what may be stored
        options = dict(options)
        if options["preview"] is None:
            options["preview"] = preview_of(arguments or {})
        options["preview"] = redaction(options["preview"])
    for option, value in options.items():
        if value is None:
            continue
        if option in ("delay", "ttl"):
            doc[option] = duration_s(value, option)
        elif option in ("headers", "labels"):
            if not isinstance(value, Mapping):
                raise UsageError(f"{option} must be a mapping with str keys")
            doc[option] = dict(value)
        elif option == "dedup_key":
            shard_key_bytes(value, option)
            FORM.put_key(doc, option, value)
        elif value != "" or option == "preview":  # an empty one: the hook let nothing pass
            doc[option] = value
    return Call("POST", "/functions/enqueue", doc, is_write=True)


def workers(session: Session) -> Call:
    """Ask for the live workers."""
    _check(session)
    return Call("GET", "/workers", is_repeatable=True)


def workers_of(doc: Mapping[str, Any]) -> list[WorkerReport]:
    """Read the live workers."""
    return [report_of_worker(one) for one in doc["workers"]]


def beat(session: Session, report: WorkerReport) -> Call:
    """Report a worker."""
    _check(session)
    doc = {"report": worker_doc(check_report(report))}
    return Call("POST", "/workers/beat", doc, is_write=True, is_repeatable=True)
