"""Errors as problem documents (RFC 9457), one type for each class of ``errors``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from ... import errors
from ...engine.runtime.task_id import TaskId
from ...errors import LodeqError
from ...repository.model.values import Receipt

__all__ = ["CONTENT_TYPE", "PREFIX", "STATUSES", "error_of", "problem_of", "slug_of", "status_of"]

CONTENT_TYPE: Final = "application/problem+json"
PREFIX: Final = "urn:lodeq:problem:"
# The status of an error class: its own, or that of its nearest base listed here.
STATUSES: Final[Mapping[str, int]] = {
    "PayloadTooLargeError": 413,
    "UsageError": 422,
    "LeaseLostError": 409,
    "TaskNotFoundError": 404,
    "SnapshotNotFoundError": 404,
    "UnknownDependencyError": 404,
    "DuplicateTaskError": 409,
    "QueueFullError": 429,
    "BusyError": 503,
    "StorageFullError": 507,
    "StoragePoisonedError": 503,
    "ClosedError": 503,
    "AccessDeniedError": 401,
    "NotLeaderError": 421,
    "LogRolledBackError": 503,
    "LodeqError": 500,
}
_CLASSES: Final[Mapping[str, type[LodeqError]]] = {
    name: getattr(errors, name) for name in errors.__all__
}
_ATTRIBUTES: Final = (
    "task_id",
    "size_bytes",
    "limit_bytes",
    "retry_after_ms",
    "not_begun",
    "leader",
    "shard",
    "missing",
    "offset",
    "reason",
    "state",
    "finished_at",
    "scope",
    "done",
)


def slug_of(name: str) -> str:
    """``LeaseLostError`` → ``lease-lost``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name.removesuffix("Error")).lower()


_BY_SLUG: Final = {slug_of(name): cls for name, cls in _CLASSES.items()}


def status_of(error: LodeqError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, errors.AccessDeniedError) and error.scope:
        return 403  # the token is known, and may not do this
    return next(STATUSES[cls.__name__] for cls in type(error).__mro__ if cls.__name__ in STATUSES)


def problem_of(error: LodeqError, status: int | None = None) -> dict[str, Any]:
    """The problem document of an error."""
    known = next(cls for cls in type(error).__mro__ if cls.__name__ in _CLASSES)
    the_status = status_of(error) if status is None else status
    doc: dict[str, Any] = {
        "type": PREFIX + slug_of(known.__name__),
        "title": HTTPStatus(the_status).phrase,
        "status": the_status,
        "detail": str(error),
    }
    for name in _ATTRIBUTES:
        value = getattr(error, name, None)
        if value is None or value in (b"", "") or value is False:
            continue
        if name == "task_id":
            value = str(TaskId(value))
        doc[name] = value.isoformat() if isinstance(value, datetime) else value
    if error.receipts:
        doc["receipts"] = [None if one is None else _receipt_doc(one) for one in error.receipts]
    return doc


def _receipt_doc(receipt: Receipt) -> dict[str, Any]:
    """A receipt inside a problem document, which is always JSON."""
    replaced = receipt.replaced
    return {
        "id": str(receipt.id),
        "duplicate": receipt.duplicate,
        "replaced": None if replaced is None else str(replaced),
    }


def error_of(doc: object, status: int) -> LodeqError:
    """The error in a problem document, or one with the status for any other answer."""
    if not isinstance(doc, dict) or not str(doc.get("type", "")).startswith(PREFIX):
        return _foreign(status, str(doc)[:200])
    cls = _BY_SLUG.get(str(doc["type"]).removeprefix(PREFIX))
    detail = str(doc.get("detail", ""))
    if cls is None:
        return _foreign(status, detail)
    error = cls(detail)
    for name in _ATTRIBUTES:
        if name in doc and hasattr(error, name):
            value = doc[name]
            if name == "missing":
                value = tuple(value)
            elif name == "finished_at":
                value = _moment(value)
            setattr(error, name, TaskId(value) if name == "task_id" else value)
    receipts = doc.get("receipts")
    if isinstance(receipts, list):
        error.receipts = [None if one is None else _receipt(one) for one in receipts]
    return error


def _moment(text: object) -> datetime | None:
    """A moment that a server has written; None: it is none."""
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _receipt(doc: Mapping[str, Any]) -> Receipt:
    replaced = doc.get("replaced")
    return Receipt(
        TaskId(doc["id"]), bool(doc["duplicate"]), None if replaced is None else TaskId(replaced)
    )


def _foreign(status: int, detail: str) -> LodeqError:
    """The error for an answer that is not our server's: a proxy's, say."""
    text = f"the server answered {status}: {detail}"
    if status in (401, 403):
        return errors.AccessDeniedError(text)
    if status in (429, 502, 503, 504):
        return errors.BusyError(text)
    if status == 404:
        text += (
            "; a lodeq service is not there: give the address that 'lodeq serve' or serve= names"
        )
    return errors.UsageError(text) if 400 <= status < 500 else LodeqError(text)
