"""The report of a worker with each beat, and how it is written and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from types import NoneType
from typing import Any, Final

from ...errors import UsageError
from .arguments import check_worker

__all__ = [
    "RUNS_MAX",
    "UPCOMING_MAX",
    "CronTick",
    "RunningTask",
    "WorkerReport",
    "check_report",
    "report_of_worker",
    "worker_doc",
]

RUNS_MAX: Final = 64  # of a report
QUEUES_MAX: Final = 1024
TICKS_MAX: Final = 256
UPCOMING_MAX: Final = 5  # next ticks of a schedule
TEXT_BYTES_MAX: Final = 256
NUMBER_MAX: Final = (1 << 53) - 1  # JSON and every language can hold it


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task that a worker runs now; ``seconds`` since the run began, ``progress`` from 0 to 1."""

    task_id: str
    function: str
    queue: str
    tenant: str = ""
    attempt: int = 1
    seconds: float = 0.0
    progress: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class CronTick:
    """The schedule of a cron function in one worker; ``task_id`` is the last tick's.

    ``upcoming`` has the next ticks, at most 5, soonest first: ``next_at`` and those after it.
    """

    queue: str
    function: str
    next_at: datetime | None = None
    last_at: datetime | None = None
    task_id: str = ""
    upcoming: Sequence[datetime] = ()


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A live worker: what it serves, and what it runs now.

    ``version`` is a hash of its functions and their policies: two deployed versions differ in it,
    and the newest start (``is_newest``) wins for new tasks. ``running`` has the first 64 of
    ``running_count`` runs. ``beat_age`` is in seconds, since the store heard of it last.
    """

    name: str
    queues: Sequence[str] = ()
    version: str = ""
    pid: int = 0
    started_at: datetime | None = None
    functions: int = 0
    running_count: int = 0
    running: Sequence[RunningTask] = ()
    ticks: Sequence[CronTick] = ()
    is_over: bool = False
    beat_age: float = 0.0
    is_newest: bool = True


def check_report(given: WorkerReport) -> WorkerReport:
    """A report that may be kept: bounded, and each field of its type.

    It is shown beside those of others: one that is wrong would take all of them from sight.
    """
    if not isinstance(given, WorkerReport):
        raise UsageError(f"expected a lodeq.WorkerReport, not {type(given).__name__}")
    if not check_worker(given.name):
        raise UsageError("a report names its worker")
    for what, several, kind, most in (
        ("queues", given.queues, str, QUEUES_MAX),
        ("running", given.running, RunningTask, RUNS_MAX),
        ("ticks", given.ticks, CronTick, TICKS_MAX),
    ):
        is_list = isinstance(several, list | tuple) and len(several) <= most
        if not is_list or not all(isinstance(one, kind) for one in several):
            raise UsageError(f"{what} of a worker must be at most {most} {kind.__name__}")
    for queue in given.queues:
        _check_field("queues", queue, str)
    for tick in given.ticks:
        if not isinstance(tick.upcoming, list | tuple) or len(tick.upcoming) > UPCOMING_MAX:
            raise UsageError(f"upcoming of a tick must be at most {UPCOMING_MAX} datetimes")
        for at in tick.upcoming:
            _check_field("upcoming", at, datetime)
    for one in (given, *given.running, *given.ticks):
        for name, kinds in _FIELDS[type(one)].items():
            _check_field(name, getattr(one, name), *kinds)
    return given


_TEXT, _WHOLE, _SECONDS, _FLAG, _TIME = (str,), (int,), (int, float), (bool,), (datetime, NoneType)
_FIELDS: Final[dict[type[Any], dict[str, tuple[type[Any], ...]]]] = {
    WorkerReport: {
        "name": _TEXT,
        "version": _TEXT,
        "pid": _WHOLE,
        "started_at": _TIME,
        "functions": _WHOLE,
        "running_count": _WHOLE,
        "is_over": _FLAG,
        "beat_age": _SECONDS,
        "is_newest": _FLAG,
    },
    RunningTask: {
        "task_id": _TEXT,
        "function": _TEXT,
        "queue": _TEXT,
        "tenant": _TEXT,
        "attempt": _WHOLE,
        "seconds": _SECONDS,
        "progress": (int, float, NoneType),
        "note": _TEXT,
    },
    CronTick: {
        "queue": _TEXT,
        "function": _TEXT,
        "next_at": _TIME,
        "last_at": _TIME,
        "task_id": _TEXT,
    },
}


def _check_field(name: str, value: object, *kinds: type[Any]) -> None:
    """UsageError where a field of a report is of another type, or out of bounds."""
    is_fine = type(value) in kinds or (isinstance(value, datetime) and datetime in kinds)
    if is_fine and isinstance(value, str):
        try:
            is_fine = len(value.encode()) <= TEXT_BYTES_MAX
        except UnicodeEncodeError:
            is_fine = False
    elif is_fine and isinstance(value, datetime):
        is_fine = value.tzinfo is not None
    elif is_fine and isinstance(value, int | float):
        is_fine = 0 <= value <= NUMBER_MAX  # nor NaN
    if not is_fine:
        raise UsageError(
            f"{name} of a worker's report must be {_WORDS[kinds[0]]}, got {value!r:.80}"
        )


_WORDS: Final = {
    str: f"text of at most {TEXT_BYTES_MAX} bytes",
    int: "a number that is not negative",
    float: "a number that is not negative",
    bool: "True or False",
    datetime: "a datetime with a time zone, or None",
}


def worker_doc(report: WorkerReport) -> dict[str, Any]:
    """Write a report."""
    doc = _plain(report)
    doc["queues"] = list(report.queues)
    doc["running"] = [_plain(one) for one in report.running]
    doc["ticks"] = [
        _plain(one) | {"upcoming": [at.isoformat() for at in one.upcoming]} for one in report.ticks
    ]
    return doc


def _plain(one: Any) -> dict[str, Any]:
    values = {field.name: getattr(one, field.name) for field in fields(one)}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in values.items()
    }


def report_of_worker(doc: Mapping[str, Any]) -> WorkerReport:
    """Read a report; members that this release does not know are passed over."""
    try:
        given = _known(WorkerReport, doc)
        given["queues"] = tuple(given.get("queues", ()))
        given["running"] = tuple(
            RunningTask(**_known(RunningTask, one)) for one in given.get("running", ())
        )
        given["ticks"] = tuple(CronTick(**_known(CronTick, one)) for one in given.get("ticks", ()))
        return WorkerReport(**given)
    except (AttributeError, TypeError, ValueError) as exc:
        raise UsageError(f"no report of a worker: {exc}") from exc


def _known(kind: type[Any], doc: Mapping[str, Any]) -> dict[str, Any]:
    given = {field.name: doc[field.name] for field in fields(kind) if field.name in doc}
    for name in given:
        if name.endswith("_at") and given[name] is not None:
            given[name] = datetime.fromisoformat(given[name])
    if "upcoming" in given:
        given["upcoming"] = tuple(datetime.fromisoformat(at) for at in given["upcoming"])
    return given
