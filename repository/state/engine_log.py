"""Log records for operators: the life of an engine, not of tasks (docs/metrics.md).

Records of stdlib logging with fields (``extra``): whoever formats them as JSON sorts by ``event``.
"""

from __future__ import annotations

import logging
from typing import Final

__all__ = [
    "anomaly",
    "ballast_failed",
    "closed",
    "disk_has_room",
    "disk_low",
    "opened",
    "poisoned",
    "recovered",
]

_log: Final = logging.getLogger("lodeq.engine")


def opened(path: str, shards: int, durability: str) -> None:
    """An engine is about to take calls."""
    fields = {"event": "opened", "path": path, "shards": shards, "durability": durability}
    _log.info("opened %r: shards %d, durability %r", path, shards, durability, extra=fields)


def recovered(path: str, detail: str) -> None:
    """Open had to mend something."""
    fields = {"event": "recovered", "path": path, "detail": detail}
    _log.warning("recovered %r: %r", path, detail, extra=fields)


def anomaly(detail: str) -> None:
    """Something does not fit together, and was settled."""
    _log.warning("anomaly: %r", detail, extra={"event": "anomaly", "detail": detail})


def ballast_failed(path: str, detail: str) -> None:
    """No ballast is kept for the next open, or no larger one."""
    fields = {"event": "ballast_failed", "path": path, "detail": detail}
    _log.warning("no ballast is kept in %r: %r", path, detail, extra=fields)


def disk_low(path: str, detail: str, free: int | None) -> None:
    """Enqueues are refused from now on; ``free`` bytes, None where nobody can tell."""
    fields = {"event": "disk_low", "path": path, "detail": detail, "bytes": free}
    _log.warning(
        "enqueues into %r are refused, and the rest may wait (%r); free bytes: %r",
        path,
        detail,
        free,
        extra=fields,
    )


def disk_has_room(path: str, free: int | None) -> None:
    """Enqueues are taken again."""
    fields = {"event": "disk_has_room", "path": path, "bytes": free}
    _log.warning("the disk of %r has room again: enqueues are taken", path, extra=fields)


def poisoned(shard: int, detail: str) -> None:
    """A shard takes no more writes."""
    fields = {"event": "poisoned", "shard": shard, "detail": detail}
    _log.error("shard %d is poisoned: %r", shard, detail, extra=fields)


def closed(path: str) -> None:
    """The stores are closed."""
    _log.info("closed %r", path, extra={"event": "closed", "path": path})
