"""Rule 23, of stores with a history: how long the row of an end is kept, and how long its value."""

from __future__ import annotations

from typing import Any, Final

from .inference import Inference
from .rules import broken

__all__ = ["check_kept"]

GRACE_US: Final = 60_000_000  # of the sweep, in a process that has lived for so long
ATTEMPTS_MAX: Final = 10
_SLACK_US: Final = 1000


def check_kept(h: Inference, found: dict[str, Any]) -> None:
    """Check the rows of ended tasks against what was asked for."""
    ends: dict[str, list[int]] = found.get("ends", {})
    status_of = {task_id: status for task_id, status, _ in found["results"]}
    if missing := status_of.keys() - ends.keys():
        raise broken(23, f"no history is kept of {sorted(missing)[:5]}")
    is_swept = h.mono_us - h.life_us >= GRACE_US
    for task_id, (has_value, finished_us, kept_us, history_us, attempts) in ends.items():
        if history_us != h.history_us:
            raise broken(23, f"{task_id} is kept for {history_us} µs, not {h.history_us}")
        if attempts > ATTEMPTS_MAX:
            raise broken(23, f"{attempts} attempts of {task_id} are kept")
        until_us = finished_us + (kept_us if has_value else max(kept_us, history_us))
        if is_swept and until_us + GRACE_US < h.wall_us:
            what = "value" if has_value else "row"
            raise broken(23, f"the {what} of {task_id} is kept {h.wall_us - until_us} µs too long")
        task = h.by_id.get(task_id)
        if task is None or status_of[task_id] != "completed" or task.drops_value or has_value:
            continue
        if task.retention_us and task.since_us + task.retention_us > h.wall_max_us + _SLACK_US:
            raise broken(23, f"the value of {task_id} has gone before its time")
