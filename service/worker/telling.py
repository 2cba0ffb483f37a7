"""What the log records of a worker carry, for formatters that sort by fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import Context

__all__ = ["fields"]


def fields(event: str, context: Context) -> dict[str, Any]:
    """``extra`` of a record that is about a run."""
    return {
        "event": event, "task_id": str(context.task_id), "queue": context.queue,
        "attempt": context.attempt,
    }  # fmt: skip
