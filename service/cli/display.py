"""How tasks, queues and results are printed: as rows of a table, and as JSON."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any, Final

import click

from ...engine.runtime.task_id import TaskId
from ...errors import RecordCorruptError
from ...repository.model.values import EngineStats, QueueStats, Result, Task
from ...repository.tasks.task_end import DAMAGED
from .output import Bar, Column, Rows, shown

__all__ = [
    "OutputError",
    "as_json_option",
    "brief",
    "discard_output",
    "duration",
    "engine_json",
    "flush",
    "json_text",
    "print_json",
    "print_line",
    "print_rows",
    "print_tasks",
    "queue_json",
    "queue_row",
    "result_json",
    "size",
    "task_json",
    "value_json",
]

as_json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="JSON instead: one object on each line."
)
_BRIEF_CHARS: Final = 60
_TASKS: Final = (
    Column("id", 36, 36), Column("state", 5, 9), Column("queue", 5, 24), Column("tenant", 6, 24),
    Column("pri", 3, 3, is_number=True), Column("attempts", 8, 11, is_number=True),
    Column("enqueued", 20, 20), Column("due", 3, 20), Column("reason", 6, 40, may_be_cut=True),
    Column("payload", 7, 60, may_be_cut=True),
)  # fmt: skip


class OutputError(OSError):
    """Stdout cannot be written any more. What the command did until then stays done."""


def json_text(value: Any) -> str:
    """A value as one line of ASCII JSON. Bytes become base64, times ISO 8601, the rest text."""
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, TaskId):
        return str(value)
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


def value_json(name: str, value: Any) -> dict[str, Any]:
    """A value under a name; bytes under ``NAME_base64``, so that no object is mistaken for them."""
    if isinstance(value, bytes):
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}
    return {name: value}


def _readable(task: Task) -> Task:
    """The task without parts that cannot be decoded: they must not hide the rest of a list."""
    try:
        task.payload, task.headers  # noqa: B018 - reading them decodes them
    except RecordCorruptError:
        return replace(task, payload=None, headers={}, reason=task.reason or DAMAGED.decode())
    return task


def task_json(task: Task) -> dict[str, Any]:
    """A task as a JSON object."""
    task = _readable(task)
    document = {f.name: getattr(task, f.name) for f in fields(task)}
    del document["position"], document["payload"]
    document["headers"] = dict(task.headers)
    return {**document, "id": str(task.id), **value_json("payload", task.payload)}


def result_json(result: Result) -> dict[str, Any]:
    """A result as a JSON object."""
    document = {f.name: getattr(result, f.name) for f in fields(result)}
    del document["value"], document["task_id"]
    return {**document, **value_json("value", result.value)}


def queue_json(key: tuple[str, str], stats: QueueStats) -> dict[str, Any]:
    """Counts of a queue as a JSON object."""
    return {"queue": key[0], "tenant": key[1], **asdict(stats)}


def engine_json(stats: EngineStats) -> dict[str, Any]:
    """Counts of an engine as a JSON object."""
    return asdict(stats)


def discard_output() -> None:
    """Throw away buffered output that cannot be written, so that the interpreter ends quietly.

    A stdout that is not a file has nothing to lose.
    """
    null = os.open(os.devnull, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with suppress(io.UnsupportedOperation):
            os.dup2(null, sys.stdout.fileno())
    finally:
        os.close(null)


def print_json(values: Iterable[Any]) -> None:
    """Print each value on a line of its own."""
    for value in values:
        print_line(json_text(value))


def print_line(text: str) -> None:
    """Print a line to stdout; unlike ``click.echo``, flush it only at the end, or by ``flush``."""
    with _stdout_errors():
        sys.stdout.write(text + "\n")


def flush() -> None:
    """Write out everything printed so far."""
    with _stdout_errors():
        sys.stdout.flush()


@contextmanager
def _stdout_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # nobody reads on: that is no error
    except OSError as exc:
        discard_output()
        raise OutputError(exc.errno, exc.strerror) from exc


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
        "reason": shown(task.reason),
        "payload": brief(task.payload),
    }


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"


def brief(value: Any) -> str:
    """The beginning of a payload: text as text, other values as JSON."""
    if value is None:
        return ""
    text = shown(value[:200]) if isinstance(value, bytes) else json_text(value)[:200]
    return text if len(text) <= _BRIEF_CHARS else text[:_BRIEF_CHARS] + "…"


def queue_row(key: tuple[str, str], stats: QueueStats) -> dict[str, str]:
    """A queue's cells, by the title of their column."""
    age = stats.oldest_ready_age
    return {
        "queue": key[0],
        "tenant": key[1],
        "ready": f"{stats.ready:,}",
        "delayed": f"{stats.delayed:,}",
        "leased": f"{stats.leased:,}",
        "dead": f"{stats.dead:,}",
        "results": f"{stats.results:,}",
        "oldest": "" if age is None else duration(age),
        "": "paused" if stats.is_paused else "",
    }


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
