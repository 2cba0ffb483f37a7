"""How tasks, queues and results are printed: as rows of a table, and as JSON."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any, Final

import click

from ...errors import PayloadNotLoadedError, RecordCorruptError
from ...repository.model.json_values import dumps, marked, rendered
from ...repository.model.values import Attempt, EngineStats, QueueStats, Result, Task
from ...repository.tasks.task_end import DAMAGED
from .output import Column, discard_output, flush, shown, stdout_errors
from .tables import Bar, Rows

__all__ = [
    "as_json_option",
    "attempt_json",
    "brief",
    "call_text",
    "duration",
    "engine_json",
    "json_text",
    "labels_text",
    "print_banner",
    "print_json",
    "print_line",
    "print_rows",
    "print_tasks",
    "progress_text",
    "queue_json",
    "queue_row",
    "reason_text",
    "result_json",
    "seconds_text",
    "size",
    "task_json",
]

as_json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="JSON instead: one object on each line."
)
_BRIEF_CHARS: Final = 60
_BREAK: Final = re.compile(r"\s*[\r\n]\s*")
_FRAME: Final = re.compile(r"\n  (?=\S+:\d+ in )")  # as a worker writes where it was raised
_TASKS: Final = (
    Column("id", 36, 36), Column("state", 5, 9), Column("queue", 5, 24), Column("tenant", 6, 24),
    Column("pri", 3, 3, is_number=True), Column("attempts", 8, 11, is_number=True),
    Column("enqueued", 20, 20), Column("due", 3, 20), Column("call", 4, 60, may_be_cut=True),
    Column("labels", 6, 40, may_be_cut=True), Column("progress", 8, 30, may_be_cut=True),
    Column("reason", 6, 40, may_be_cut=True), Column("payload", 7, 60, may_be_cut=True),
)  # fmt: skip


def json_text(value: Any) -> str:
    """A value as one line of ASCII JSON, whatever it is: see ``json_values``."""
    return dumps(value)


def _readable(task: Task) -> Task:
    """The task without parts that cannot be decoded: they must not hide the rest of a list."""
    try:
        task.payload, task.headers  # noqa: B018 - reading them decodes them
    except PayloadNotLoadedError as exc:
        return replace(task, payload=f"({exc.size_bytes} bytes)")
    except RecordCorruptError:
        return replace(task, payload=None, headers={}, reason=task.reason or DAMAGED.decode())
    return task


def task_json(task: Task) -> dict[str, Any]:
    """A task as a JSON object."""
    task = _readable(task)
    document = {f.name: getattr(task, f.name) for f in fields(task)}
    del document["position"], document["payload"]
    del document["headers"]
    document["labels"] = dict(task.labels)
    document["progress"] = None if task.progress is None else task.progress._asdict()
    values = {**marked("headers", dict(task.headers)), **marked("payload", task.payload)}
    return {**document, "id": str(task.id), **values}


def progress_text(task: Task) -> str:
    """How far a run has come, for people: ``40 % halfway``."""
    if task.progress is None:
        return ""
    fraction, note, _ = task.progress
    return f"{'' if fraction is None else f'{100 * fraction:.0f} %'} {note}".strip()


def result_json(result: Result) -> dict[str, Any]:
    """A result as a JSON object."""
    document = {f.name: getattr(result, f.name) for f in fields(result)}
    del document["value"], document["task_id"]
    document["labels"] = dict(result.labels)
    times = {"waited": result.waited, "ran": result.ran, "took": result.took}
    return {**document, **times, **marked("value", result.value)}


def queue_json(key: tuple[str, str], stats: QueueStats) -> dict[str, Any]:
    """Counts of a queue as a JSON object."""
    return {"queue": key[0], "tenant": key[1], **asdict(stats)}


def engine_json(stats: EngineStats) -> dict[str, Any]:
    """Counts of an engine as a JSON object."""
    return asdict(stats)


def print_json(values: Iterable[Any]) -> None:
    """Print each value on a line of its own."""
    for value in values:
        print_line(json_text(value))


def print_line(text: str) -> None:
    """Print a line to stdout; unlike ``click.echo``, flush it only at the end, or by ``flush``."""
    with stdout_errors():
        sys.stdout.write(text + "\n")


def print_banner(text: str) -> None:
    """Print and flush a line of a service, which goes on although nobody can see it."""
    try:
        print_line(text)
        flush()
    except OSError:
        discard_output()


def print_rows(columns: Sequence[Column], rows: Iterable[Mapping[str, str]]) -> None:
    """Print rows as a table."""
    with ExitStack() as stack:
        table = stack.enter_context(Rows(columns, stack.enter_context(Bar("", 0))))
        for row in rows:
            table.add(row)


def print_tasks(tasks: Iterable[Task], *, as_json: bool) -> None:
    """Print tasks as a table, or as JSON."""
    if as_json:
        print_json(map(task_json, tasks))
    else:
        print_rows(_TASKS, map(_task_row, tasks))


def _task_row(task: Task) -> dict[str, str]:
    task = _readable(task)
    most = "" if task.max_attempts is None else f"/{task.max_attempts}"
    return {
        "id": str(task.id),
        "state": task.state,
        "queue": task.queue,
        "tenant": task.tenant,
        "pri": str(task.priority),
        "attempts": f"{task.attempts}{most}",
        "enqueued": _moment(task.enqueued_at),
        "due": _moment(task.due_at),
        "call": call_text(task.function, task.preview),
        "labels": labels_text(task.labels),
        "progress": shown(progress_text(task)),
        "reason": reason_text(task.reason),
        "payload": brief(task.payload),
    }


def call_text(function: str, preview: str) -> str:
    """A call as people write it: ``send(to='a', n=3)``; empty without function and preview."""
    return shown(f"{function}({preview})" if function else preview)


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as people write them: ``customer=7 kind=new``."""
    return shown(" ".join(f"{key}={value}" for key, value in labels.items()))


def reason_text(reason: str) -> str:
    """A reason on one line: ``KeyError: 'CHF' at jobs.py:13 in charge, jobs.py:9 in run``."""
    first, *frames = _FRAME.split(reason)
    first = _BREAK.sub(" / ", first.strip())
    return shown(first + (" at " + ", ".join(frames) if frames else ""))


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"


def brief(value: Any) -> str:
    """The beginning of a payload: text as text, other values as JSON."""
    if value is None:
        return ""
    text = shown(value[:200]) if isinstance(value, bytes) else _brief_json(value)
    return text if len(text) <= _BRIEF_CHARS else text[:_BRIEF_CHARS] + "…"


def _brief_json(value: Any) -> str:
    """The beginning of a value's JSON; behind a ``~`` if JSON cannot hold the value itself."""
    found = rendered(value)
    return ("" if found.is_exact else "~") + dumps(found.value)[:200]


def _paused(stats: QueueStats) -> str:
    if stats.is_queue_paused:
        return "paused (all tenants)"
    return "paused" if stats.is_paused else ""


def queue_row(key: tuple[str, str], stats: QueueStats) -> dict[str, str]:
    """A queue's cells, by the title of their column."""
    age = stats.oldest_ready_age
    return {
        "queue": key[0],
        "tenant": key[1],
        "ready": f"{stats.ready:,}",
        "delayed": f"{stats.delayed:,}",
        "waiting": f"{stats.waiting:,}",
        "leased": f"{stats.leased:,}",
        "dead": f"{stats.dead:,}",
        "results": f"{stats.results:,}",
        "oldest": "" if age is None else duration(age),
        "": _paused(stats),
    }


def seconds_text(seconds: float | None) -> str:
    """How long something took, with milliseconds below a minute; nothing for None."""
    if seconds is None:
        return ""
    return f"{seconds:.3f}s" if seconds < 60 else duration(seconds)


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """An attempt as a JSON object."""
    return {**asdict(attempt), "ran": attempt.ran}


def duration(seconds: float) -> str:
    """A duration in at most two units."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for unit, parts, part in (("d", 86_400, "h"), ("h", 3600, "m"), ("m", 60, "s")):
        if whole >= parts:
            rest = whole % parts // (parts // (24 if unit == "d" else 60))
            return f"{whole // parts}{unit}{rest}{part}"
    return f"{whole}s"


def size(count: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
