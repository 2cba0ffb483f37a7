"""Checks of a call's arguments, shared by the engine and its remote client.

Each returns the argument in the form the engine works with, or raises ``UsageError``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final, SupportsFloat, cast

from ...engine.records.keyspace import check_name
from ...engine.records.task import ATTEMPTS_MAX
from ...engine.runtime.task_id import TaskId
from ...engine.values import AFTER_MAX, NOTE_BYTES_MAX, spelled
from ...errors import LimitError, UsageError
from .flows.workflows import ON_FAILURES
from .task_options import DURATION_S_MAX, KEY_BYTES_MAX, PRIORITY_MAX, WORKER_BYTES_MAX
from .values import (
    CONFLICTS,
    REDRIVE_POLICIES,
    AllTenants,
    Backoff,
    Duration,
    NewTask,
    OnConflict,
)

__all__ = [
    "LEASE_S_MAX",
    "LIMIT_MAX",
    "OLDER_THAN_S_MIN",
    "SKIPPED_FUNCTIONS_MAX",
    "SNAPSHOT_S",
    "TIME_MS_MAX",
    "age_s",
    "check_after",
    "check_attempts",
    "check_functions",
    "check_limit",
    "check_on_conflict",
    "check_on_failure",
    "check_priority",
    "check_progress",
    "check_redrive_policy",
    "check_retry",
    "check_tenant",
    "check_unicode",
    "check_worker",
    "duration_s",
    "is_plain",
    "length_s",
    "listed",
    "moment_us",
    "names_of",
    "shard_key_bytes",
    "task_ids",
    "waits",
    "when_ms",
    "within",
]

TIME_MS_MAX: Final = (1 << 47) - 1  # in the year 6429: every time that is kept can be shown
LEASE_S_MAX: Final = 4_294_967  # the lease record has 32 bits for the milliseconds
LIMIT_MAX: Final = 4096
SKIPPED_FUNCTIONS_MAX: Final = 256  # names in one claim
ROUNDING: Final = 1e-6
SNAPSHOT_S: Final = 3600.0  # how long a snapshot is kept unless asked otherwise
OLDER_THAN_S_MIN: Final = 3600.0  # a stager writes a file far more often
_options: Final[Callable[[Any], Any]] = itemgetter(slice(1, None))
_NO_OPTIONS: Final = _options(NewTask(b""))


def duration_s(value: Duration, what: str, *, least: float = 0.0) -> float:
    """Seconds, finite and within ten years."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise UsageError(f"{what} must be seconds or a timedelta, not {type(value).__name__}")
    if not least <= seconds <= DURATION_S_MAX:  # refuses NaN as well
        raise UsageError(f"{what} {spelled(value)} is not between {least:g} seconds and ten years")
    return float(seconds)


def length_s(value: Duration) -> float:
    """The length of a lease in seconds."""
    seconds = duration_s(value, "lease", least=0.001)
    if seconds > LEASE_S_MAX:
        raise UsageError(
            f"lease {spelled(value)} is longer than 49 days: claim it for less, heartbeat"
        )
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
        raise UsageError(f"max_attempts {spelled(value)} is not between 1 and {ATTEMPTS_MAX}")
    return value


def check_priority(value: object) -> int:
    """0 to 9."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= PRIORITY_MAX:
        raise UsageError(
            f"priority {spelled(value)} is not between 0 and {PRIORITY_MAX} "
            f"({PRIORITY_MAX} is claimed first)"
        )
    return value


def check_on_conflict(value: object) -> OnConflict:
    """``return``, ``raise`` or ``replace``: what a held dedup key leads to."""
    if type(value) is not str or value not in CONFLICTS:
        raise UsageError(f"on_conflict {spelled(value)} is not one of {', '.join(CONFLICTS)}")
    return cast(OnConflict, value)


def check_redrive_policy(value: object) -> object:
    """``stored`` or ``current``."""
    if value not in REDRIVE_POLICIES:
        raise UsageError(f"policy {spelled(value)} is not one of {', '.join(REDRIVE_POLICIES)}")
    return value


def check_retry(value: object) -> Backoff:
    """A ``Backoff``, as ``retry`` of a task."""
    if not isinstance(value, Backoff):
        raise UsageError(f"retry must be a lodeq.Backoff, not {type(value).__name__}")
    return value


def check_limit(limit: object) -> int:
    """1 to 4,096."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LIMIT_MAX:
        raise UsageError(f"limit {spelled(limit)} is not between 1 and {LIMIT_MAX}")
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
    if isinstance(key, str):
        check_unicode(what, key)
    raw = key.encode() if isinstance(key, str) else key
    if not isinstance(raw, bytes) or not 1 <= len(raw) <= KEY_BYTES_MAX:
        raise UsageError(f"{what} must be 1 to {KEY_BYTES_MAX} bytes of str or bytes")
    return raw


def check_unicode(what: str, *texts: str) -> None:
    """Refuse text that has no UTF-8: half a surrogate pair, as arguments of commands may have."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise UsageError(f"{what} is not valid Unicode: {exc}") from exc


def listed(tasks: Iterable[NewTask]) -> Sequence[NewTask]:
    """The tasks of one call as a sequence, since they are read more than once."""
    if type(tasks) is list or type(tasks) is tuple:
        return tasks
    if isinstance(tasks, NewTask) or not isinstance(tasks, Iterable):
        raise UsageError(f"tasks must be an iterable of NewTask, not {type(tasks).__name__}")
    return list(tasks)


def task_ids(given: object, what: str) -> list[TaskId]:
    """Task ids of one call, in any of their forms."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(f"{what} takes a list of task ids, not {type(given).__name__}")
    return [TaskId(one) for one in given]


def moment_us(at: object, what: str) -> int:
    """Wall microseconds of a moment with a time zone; 0 for None."""
    if at is None:
        return 0
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise UsageError(f"{what} must be a datetime with a time zone, not {spelled(at)}")
    return round(at.timestamp() * 1e6)


def names_of(queue: object, tenant: object) -> tuple[bytes, bytes]:
    """The names of a queue and tenant; an empty tenant is the default tenant."""
    if tenant is None:
        raise UsageError('tenant=None: use tenant="" for the default, or lodeq.ALL_TENANTS')
    if isinstance(tenant, AllTenants):
        raise UsageError("lodeq.ALL_TENANTS names no tenant here: give one")
    return check_name(queue, "queue"), check_tenant(tenant)


def check_tenant(tenant: object) -> bytes:
    """The name of a tenant; empty for the default tenant's."""
    return b"" if isinstance(tenant, str) and not tenant else check_name(tenant, "tenant")


def within(value: Any, least: float, most: float) -> Any:
    """A number moved between two bounds; NaN and what is no number are as they were."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        return value
    try:
        number = float(value)
    except OverflowError:  # an int beyond all floats
        return least if cast("Any", value) < 0 else most
    return min(max(number, least), most)


def check_progress(fraction: object, note: object) -> tuple[float | None, bytes]:
    """Check a report of progress; return its fraction, and its note as bytes, cut.

    A sum of parts may miss 0 or 1 by what rounding adds up to.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float | None):
        raise UsageError(f"progress must be a number from 0 to 1, not {type(fraction).__name__}")
    if fraction is not None and not -ROUNDING <= fraction <= 1 + ROUNDING:
        raise UsageError(f"progress {spelled(fraction)} is not between 0 and 1")
    if not isinstance(note, str):
        raise UsageError(f"the note of a progress must be a str, not {type(note).__name__}")
    raw = note.encode("utf-8", "replace")[:NOTE_BYTES_MAX].decode("utf-8", "ignore").encode()
    return None if fraction is None else min(max(float(fraction), 0.0), 1.0), raw


def is_plain(task: NewTask) -> bool:
    """Whether it has a payload and no options: then it may go a shorter way.

    An option of another type may not even compare, as arrays do not: the longer way refuses it.
    """
    try:
        return _options(task) == _NO_OPTIONS and type(task.priority) is int  # no 5.0
    except Exception:  # noqa: BLE001 - whatever its ``__eq__`` raises
        return False


def waits(after: object, on_failure: object) -> bool:
    """Whether a task waits for others, or says what follows when one fails.

    Either may be of a type that has no truth, as an array: ``check_after`` says what is wrong.
    """
    try:
        return bool(after or on_failure != "run")
    except Exception:  # noqa: BLE001 - whatever it raises
        return True


def check_on_failure(on_failure: object) -> None:
    """``run``, ``wait`` or ``cancel``."""
    if type(on_failure) is not str or on_failure not in ON_FAILURES:
        raise UsageError(f"on_failure {spelled(on_failure)} is not one of {', '.join(ON_FAILURES)}")


def check_after(task: NewTask) -> list[TaskId]:
    """Check what a task waits for, together with what follows when one of these fails."""
    check_on_failure(task.on_failure)
    ids = list(dict.fromkeys(task_ids(task.after, "after=")))
    if len(ids) > AFTER_MAX:
        raise LimitError(
            f"a task waits for at most {AFTER_MAX} others, not {len(ids)}: a workflow's callback "
            "waits for any number"
        )
    return ids


def check_functions(names: Collection[str]) -> frozenset[bytes]:
    """Check what a claim gives as ``skip_functions``, and return it encoded."""
    if isinstance(names, str):
        raise UsageError("skip_functions must be a collection of names, not one name")
    if len(names) > SKIPPED_FUNCTIONS_MAX:
        raise UsageError(f"skip_functions has {len(names)} names; {SKIPPED_FUNCTIONS_MAX} at most")
    for name in names:
        if not isinstance(name, str) or not name:
            raise UsageError(f"skip_functions: {name!r} is no name of a function")
    return frozenset(name.encode("utf-8", "replace") for name in names)
