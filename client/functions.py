"""Requests about published functions and workers, and how their answers are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from ..repository.model.calls.previews import preview_of
from ..repository.model.faces import redacted_labels
from ..repository.model.workers import WorkerReport, check_report, report_of_worker, worker_doc
from .calls import FORM, Call, Session

__all__ = [
    "beat",
    "enqueue_function",
    "forget_function",
    "functions",
    "functions_of",
    "publish",
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
        options: those of ``Engine.enqueue_function``; None is left out.
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
        if isinstance(options["labels"], Mapping):
            options["labels"] = redacted_labels(options["labels"], redaction)
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
