"""Bounds of task options, for the engine, the wire and the command line.

Names and choices are in ``values``: the fields of ``NewTask`` and ``Backoff``, and ``CONFLICTS``.
Attempts are bounded by their record (``engine.records.task.ATTEMPTS_MAX``).
"""

from __future__ import annotations

from typing import Final

from ...engine.records.policy import BackoffKind

__all__ = [
    "BACKOFF_FACTOR_MAX",
    "BACKOFF_KINDS",
    "BACKOFF_S_MAX",
    "CONFLICT_DEFAULT",
    "DURATION_S_MAX",
    "FOLLOW_UPS_MAX",
    "KEY_BYTES_MAX",
    "NO_IDS",
    "ON_FAILURE_DEFAULT",
    "PRIORITY_DEFAULT",
    "PRIORITY_MAX",
    "WORKER_BYTES_MAX",
]

PRIORITY_MAX: Final[int] = 9  # claimed first
PRIORITY_DEFAULT: Final[int] = 5
CONFLICT_DEFAULT: Final = "return"
NO_IDS: Final[tuple[()]] = ()  # what ``after`` is by default
ON_FAILURE_DEFAULT: Final = "run"
DURATION_S_MAX: Final[float] = 10 * 366 * 86_400.0  # delay, ttl, retention …: ten years
KEY_BYTES_MAX: Final[int] = 4096  # of a dedup or shard key, in UTF-8
WORKER_BYTES_MAX: Final[int] = 256  # of a worker's name, in UTF-8
FOLLOW_UPS_MAX: Final[int] = 256  # tasks in the ``then`` of one complete
BACKOFF_KINDS: Final[dict[str, BackoffKind]] = {kind.name.lower(): kind for kind in BackoffKind}
BACKOFF_S_MAX: Final[float] = 4e6  # base and cap
BACKOFF_FACTOR_MAX: Final[float] = 1e6
