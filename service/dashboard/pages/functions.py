"""Pages of functions, workers and cron: what can run, who runs it, when the next tick is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from ....errors import LodeqError, TaskNotFoundError, UsageError
from ....repository.model.calls.functions import PublishedFunction, argument_of_text
from ....repository.model.json_values import loads
from ....repository.model.workers import notes_on_versions
from ...shared.schedule import Schedule, schedule_of, zone_text
from ..source import AnyEngine

__all__ = [
    "arguments_of",
    "cron_page",
    "enqueue_from",
    "find_function",
    "functions_page",
    "workers_page",
]

SHOWN_MAX: Final = 500
LATE_S: Final = 15.0  # three beats


async def functions_page(engine: AnyEngine, part: str) -> dict[str, Any]:
    """The context of the page of functions; ``part`` is in the queue's or function's name."""
    found = [
        one for one in await engine.functions() if part in one.queue or part in one.name or not part
    ]
    rows = [(one, _path(one)) for one in found[:SHOWN_MAX]]
    return {"functions": rows, "left_out": max(0, len(found) - SHOWN_MAX), "part": part}


def _path(one: PublishedFunction) -> str:
    return f"{one.queue}?{_named(one.name)}"


def _named(name: str) -> str:
    return f"name={quote(name, safe='')}"


async def workers_page(engine: AnyEngine) -> dict[str, Any]:
    """The context of the page of workers."""
    found = await engine.workers()
    queues = {one.queue for report in found for one in report.unknown}
    published = {
        (one.queue, one.name): (one.signature, one.published_at)
        for queue in sorted(queues)
        for one in await engine.functions(queue)
    }
    notes = notes_on_versions(found, published)[:SHOWN_MAX]
    return {"workers": found[:SHOWN_MAX], "late_s": LATE_S, "notes": notes}


async def cron_page(engine: AnyEngine) -> dict[str, Any]:
    """The context of the page of cron functions, with the ticks of live workers."""
    live = await engine.workers()
    found = [one for one in await engine.functions() if one.cron]
    rows = [(one, _path(one), *_moments(one, schedule_of(one, live))) for one in found[:SHOWN_MAX]]
    return {"schedules": rows}


def _moments(
    one: PublishedFunction, schedule: Schedule
) -> tuple[list[tuple[str, datetime]], datetime | None, str]:
    """Next ticks in the function's zone and UTC, the last tick, and its task."""
    ahead = [(zone_text(at, one.tz), at) for at in schedule.upcoming]
    return ahead, schedule.last_at, schedule.task_id


async def find_function(engine: AnyEngine, queue: str, name: str) -> PublishedFunction:
    """A published function, or ``TaskNotFoundError``."""
    for one in await engine.functions(queue):
        if one.name == name:
            return one
    raise TaskNotFoundError(f"no function {name!r} is published for queue {queue!r}")


def arguments_of(one: PublishedFunction, form: Mapping[str, str]) -> dict[str, Any]:
    """The arguments that a form gives: text for text, else JSON if it is; empty ones are left out.

    Raises:
        UsageError: the field for further arguments is no JSON object.
    """
    found: dict[str, Any] = {}
    for parameter in one.parameters or ():
        text = form.get(f"arg.{parameter.name}", "")
        if parameter.kind == "rest" or (not text and parameter.kind == "optional"):
            continue
        found[parameter.name] = argument_of_text(parameter, text)
    more = form.get("more", "").strip()
    if more:
        given = _json(more)
        if not isinstance(given, dict):
            raise UsageError("further arguments are a JSON object, by name")
        found |= given
    return found


def _json(text: str) -> Any:
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return None


async def enqueue_from(
    engine: AnyEngine, one: PublishedFunction, form: Mapping[str, str]
) -> tuple[str, str]:
    """Enqueue a call as a form gives it; return the task's id and an error, one of them empty."""
    try:
        receipt = await engine.enqueue_function(one.queue, one.name, arguments_of(one, form))
    except UsageError as error:
        return "", str(error)
    except LodeqError:
        raise
    return str(receipt.id), ""
