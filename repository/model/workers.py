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
    "KNOWN_MAX",
    "RUNS_MAX",
    "UNKNOWN_MAX",
    "UPCOMING_MAX",
    "CronTick",
    "KnownFunction",
    "RunningTask",
    "UnknownFunction",
    "WorkerReport",
    "check_report",
    "notes_on_versions",
    "report_of_worker",
    "worker_doc",
]

RUNS_MAX: Final = 64  # of a report
_SHOWN_MAX: Final = 4
KNOWN_MAX: Final = 256
UNKNOWN_MAX: Final = 64
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
class KnownFunction:
    """A function that a worker has; ``signature`` is a hash of its name and parameters."""

    queue: str
    function: str
    signature: str = ""


@dataclass(frozen=True, slots=True)
class UnknownFunction:
    """A function, or a version of one, that a worker has been offered and does not have.

    ``tasks`` that it has given back lately, of which ``stranded`` for more than ten minutes; the
    oldest was enqueued at ``oldest_at``.
    """

    queue: str
    function: str
    tasks: int = 0
    stranded: int = 0
    oldest_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A live worker: what it serves, and what it runs now.

    ``version`` is a hash of its functions and their policies: two deployed versions differ in it,
    and the newest start (``is_newest``) wins for new tasks. ``running`` has the first 64 of
    ``running_count`` runs. ``beat_age`` is in seconds, since the store heard of it last. ``known``
    has the first 256 of its functions, ``unknown`` those that it was asked for and does not have.
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
    known: Sequence[KnownFunction] = ()
    unknown: Sequence[UnknownFunction] = ()


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
        ("known", given.known, KnownFunction, KNOWN_MAX),
        ("unknown", given.unknown, UnknownFunction, UNKNOWN_MAX),
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
    for one in (given, *given.running, *given.ticks, *given.known, *given.unknown):
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
    KnownFunction: {"queue": _TEXT, "function": _TEXT, "signature": _TEXT},
    UnknownFunction: {
        "queue": _TEXT,
        "function": _TEXT,
        "tasks": _WHOLE,
        "stranded": _WHOLE,
        "oldest_at": _TIME,
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


def notes_on_versions(
    reports: Sequence[WorkerReport],
    published: Mapping[tuple[str, str], tuple[str, datetime | None]],
) -> list[str]:
    """Say which tasks no worker takes that has been offered them, and where versions differ.

    Args:
        reports: of live workers.
        published: signature of each function and when it was published, by queue and name.
    """
    has: dict[tuple[str, str], dict[str, list[str]]] = {}  # workers by signature
    lacks: dict[tuple[str, str], list[tuple[UnknownFunction, str]]] = {}
    for report in reports:
        for known in report.known:
            workers = has.setdefault((known.queue, known.function), {})
            workers.setdefault(known.signature, []).append(report.name)
        for unknown in report.unknown:
            lacks.setdefault((unknown.queue, unknown.function), []).append((unknown, report.name))
    notes = []
    for (queue, function), several in sorted(lacks.items()):
        tasks, stranded = (max(getattr(u, f) for u, _ in several) for f in ("tasks", "stranded"))
        by = has.get((queue, function), {})
        who = "; ".join(f"version {one} is in {_some(names)}" for one, names in sorted(by.items()))
        signature, at = published.get((queue, function), ("", None))
        if not who and at is not None:
            who = f"version {signature} was published {at:%Y-%m-%d %H:%M:%S}, by no worker listed"
        what = f"{stranded} stranded of {tasks}" if stranded else str(tasks)
        notes.append(
            f"{what} task{'' if tasks == 1 else 's'} of queue {queue!r} for {function!r}, which "
            f"{_some([name for _, name in several])} cannot run: "
            f"{who or 'no worker listed has it, and it is not published'}"
        )
    for (queue, function), by in sorted(has.items()):
        if len(by) > 1:
            versions = "; ".join(f"{one} in {_some(names)}" for one, names in sorted(by.items()))
            notes.append(f"{function!r} of queue {queue!r} has several versions: {versions}")
    return notes


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN_MAX]) + (", …" if len(names) > _SHOWN_MAX else "")


def worker_doc(report: WorkerReport) -> dict[str, Any]:
    """Write a report."""
    doc = _plain(report)
    doc["queues"] = list(report.queues)
    doc["running"] = [_plain(one) for one in report.running]
    doc["ticks"] = [
        _plain(one) | {"upcoming": [at.isoformat() for at in one.upcoming]} for one in report.ticks
    ]
    doc["known"] = [_plain(one) for one in report.known]
    doc["unknown"] = [_plain(one) for one in report.unknown]
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
        given["known"] = tuple(
            KnownFunction(**_known(KnownFunction, one)) for one in given.get("known", ())
        )
        given["unknown"] = tuple(
            UnknownFunction(**_known(UnknownFunction, one)) for one in given.get("unknown", ())
        )
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
