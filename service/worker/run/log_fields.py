"""Structured fields of a worker's log records, for formatters that filter by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ....repository.tasks.lease import Lease
    from .context import Context

__all__ = ["fields"]


def fields(event: str, run: Context | Lease) -> dict[str, Any]:
    """Return the ``extra`` of a log record about a run, with the face of its task."""
    lease: Any = getattr(run, "lease", run)
    return {
        "event": event,
        "task_id": str(run.task_id),
        "queue": run.queue,
        "attempt": run.attempt,
        "function": getattr(run, "name", "") or lease.function,
        "preview": lease.preview,
        "labels": dict(lease.labels),
    }
