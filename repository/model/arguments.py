"""Checks of a call's arguments, shared by the engine and its remote client.

Each returns the argument in the form the engine works with, or raises ``UsageError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from ...engine.records.keyspace import check_name
from ...engine.records.task import ATTEMPTS_MAX
from ...errors import UsageError
from .task_options import DURATION_S_MAX, KEY_BYTES_MAX, PRIORITY_MAX, WORKER_BYTES_MAX
from .values import AllTenants, Duration, NewTask

__all__ = [
    "LEASE_S_MAX",
    "LIMIT_MAX",
    "OLDER_THAN_S_MIN",
    "SNAPSHOT_S",
    "TIME_MS_MAX",
    "age_s",
    "check_attempts",
    "check_limit",
    "check_priority",
    "check_worker",
    "duration_s",
    "length_s",
    "listed",
    "names_of",
    "shard_key_bytes",
    "when_ms",
]

TIME_MS_MAX: Final = (1 << 47) - 1  # in the year 6429: every time that is kept can be shown
LEASE_S_MAX: Final = 4_294_967  # the lease record has 32 bits for the milliseconds
LIMIT_MAX: Final = 4096
SNAPSHOT_S: Final = 3600.0  # how long a snapshot is kept unless asked otherwise
OLDER_THAN_S_MIN: Final = 3600.0  # a stager writes a file far more often


def duration_s(value: Duration, what: str, *, least: float = 0.0) -> float:
    """Seconds, finite and within ten years."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise UsageError(f"{what} must be seconds or a timedelta, not {type(value).__name__}")
    if not least <= seconds <= DURATION_S_MAX:  # refuses NaN as well
        raise UsageError(f"{what} {value!r} is not between {least:g} seconds and ten years")
    return float(seconds)


def length_s(value: Duration) -> float:
    """The length of a lease in seconds."""
    seconds = duration_s(value, "lease", least=0.001)
    if seconds > LEASE_S_MAX:
        raise UsageError(f"lease {value!r} is longer than 49 days: claim it for less, heartbeat")
    return seconds


def age_s(older_than: Duration) -> float:
    """The age in seconds from which loads are forgotten, an hour at least."""
    return duration_s(older_than, "older_than", least=OLDER_THAN_S_MIN)


def when_ms(value: object, what: str) -> int:
    """An aware datetime as wall milliseconds."""
    if not isinstance(value, datetime):
        raise UsageError(f"{what} must be an aware datetime, not {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise UsageError(f"{what} has no time zone: use datetime.now(UTC) or give it a tzinfo")
    ms = round(value.timestamp() * 1000)
    if not 0 <= ms <= TIME_MS_MAX:
        raise UsageError(f"{what} {value!r} is out of range")
    return ms


def check_attempts(value: object) -> int:
    """1 to 65,535."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= ATTEMPTS_MAX:
        raise UsageError(f"max_attempts {value!r} is not between 1 and {ATTEMPTS_MAX}")
    return value


def check_priority(value: object) -> int:
    """0 to 9."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= PRIORITY_MAX:
        raise UsageError(
            f"priority {value!r} is not between 0 and {PRIORITY_MAX} "
            f"({PRIORITY_MAX} is claimed first)"
        )
    return value


def check_limit(limit: object) -> int:
    """1 to 4,096."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LIMIT_MAX:
        raise UsageError(f"limit {limit!r} is not between 1 and {LIMIT_MAX}")
    return limit


def check_worker(worker: object) -> bytes:
    """A worker's name, of at most 256 bytes."""
    if (
        not isinstance(worker, str)
        or len(raw := worker.encode("utf-8", "replace")) > WORKER_BYTES_MAX
    ):
        raise UsageError(f"worker must be a str of at most {WORKER_BYTES_MAX} bytes")
    return raw


def shard_key_bytes(key: object, what: str) -> bytes:
    """A dedup or shard key as 1 to 4,096 bytes."""
    try:
        raw = key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError as exc:
        raise UsageError(f"{what} is not valid Unicode: {exc}") from exc
    if not isinstance(raw, bytes) or not 1 <= len(raw) <= KEY_BYTES_MAX:
        raise UsageError(f"{what} must be 1 to {KEY_BYTES_MAX} bytes of str or bytes")
    return raw


def listed(tasks: Iterable[NewTask]) -> Sequence[NewTask]:
    """The tasks of one call as a sequence, since they are read more than once."""
    if type(tasks) is list or type(tasks) is tuple:
        return tasks
    if isinstance(tasks, NewTask) or not isinstance(tasks, Iterable):
        raise UsageError(f"tasks must be an iterable of NewTask, not {type(tasks).__name__}")
    return list(tasks)


def names_of(queue: object, tenant: object) -> tuple[bytes, bytes]:
    """The names of a queue and tenant; an empty tenant is the default tenant."""
    if tenant is None:
        raise UsageError('tenant=None: use tenant="" for the default, or lodeq.ALL_TENANTS')
    if isinstance(tenant, AllTenants):
        raise UsageError("lodeq.ALL_TENANTS names no tenant here: give one")
    return check_name(queue, "queue"), check_name(tenant, "tenant") if tenant != "" else b""
