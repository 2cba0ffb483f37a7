"""``functions``, ``workers`` and ``cron``: what workers can run, who they are, and their ticks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from typing import Any

import click

from ....errors import UsageError
from ....repository.api.engine import Engine
from ....repository.model.calls.functions import PublishedFunction, function_doc, unknown_function
from ....repository.model.workers import (
    QUEUES_MAX,
    WorkerReport,
    notes_on_versions,
    worker_doc,
)
from ...shared.schedule import schedule_of, zone_text
from ..connection import Silent, asked, reading, run, store_argument, writing
from ..display import as_json_option, duration, print_json, print_line, print_rows
from ..output import Column, shown

__all__ = ["cron", "functions", "workers"]

_NOTHING = 1
_NAMES_MAX = 10
_SILENT_S = 15.0  # three beats
_FUNCTIONS = (
    Column("queue", 5, 24),
    Column("function", 8, 60),
    Column("attempts", 8, 8, is_number=True),
    Column("retry", 5, 24),
    Column("kept", 4, 8),
    Column("published", 19, 19),
    Column("about", 5, 60),
)
_WORKERS = (
    Column("worker", 6, 40),
    Column("queues", 6, 32),
    Column("functions", 9, 9, is_number=True),
    Column("version", 7, 20),
    Column("started", 19, 19),
    Column("beat", 6, 12),
    Column("runs", 4, 6, is_number=True),
    Column("now", 3, 60),
)
_CRON = (
    Column("queue", 5, 24),
    Column("function", 8, 32),
    Column("schedule", 8, 32),
    Column("zone", 4, 24),
    Column("next", 19, 30),
    Column("local", 5, 24),
    Column("last", 19, 19),
    Column("task", 4, 36),
)


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


@click.command()
@store_argument
@click.argument("queue", required=False)
@click.option("--forget", metavar="FUNCTION", help="Forget this function of QUEUE.")
@as_json_option
def functions(store: str, queue: str | None, forget: str | None, as_json: bool) -> None:
    """List the functions that workers have published, with their policies.

    Args:
        store: a store's folder, or the address of a service.
        queue: list those of this queue only.
        forget: forget this function of the queue instead.
        as_json: print JSON lines instead of a table.
    """
    if forget is not None:
        _forget(store, queue, forget)
        return

    async def look() -> list[PublishedFunction]:
        async with reading(store) as engine:
            return await engine.functions(queue)

    found = run(look)
    if as_json:
        print_json(function_doc(one) for one in found)
    else:
        print_rows(_FUNCTIONS, map(_function_row, found))


def _forget(store: str, queue: str | None, name: str) -> None:
    if queue is None:
        raise click.UsageError("--forget needs the QUEUE of the function")

    async def act() -> None:
        async with writing(store) as engine:
            if not await engine.forget_function(queue, name):
                raise unknown_function(queue, name, await engine.functions())

    run(act)


def _function_row(one: PublishedFunction) -> dict[str, str]:
    retry = one.retry
    kind = f"{retry.kind} {duration(retry.base)}"
    return {
        "queue": one.queue,
        "function": shown(one.call),
        "attempts": str(one.max_attempts),
        "retry": kind if retry.kind == "fixed" else f"{kind}..{duration(retry.cap)}",
        "kept": duration(one.retention),
        "published": _moment(one.published_at),
        "about": shown(one.doc),
    }


async def _workers_of(engine: Engine) -> list[WorkerReport]:
    return await engine.workers()


def _workers(store: str) -> list[WorkerReport] | Silent:
    async def look() -> list[WorkerReport] | Silent:
        return await asked(store, _workers_of)

    return run(look)


@click.command()
@store_argument
@as_json_option
def workers(store: str, as_json: bool) -> None:
    """List live workers: what they serve, when they last beat, what they run now.

    Exit code 1: there is none. A version marked with '*' is not that of the newest start: new
    tasks have the policies of the newest.

    Args:
        store: a store's folder, or the address of a service.
        as_json: print JSON lines instead of a table.
    """

    async def ask(engine: Engine) -> tuple[list[WorkerReport], list[str], list[str]]:
        reports = await engine.workers()
        published = {
            (f.queue, f.name): (f.signature, f.published_at) for f in await _named(engine, reports)
        }
        return reports, await _unserved(engine, reports), notes_on_versions(reports, published)

    answer = run(lambda: asked(store, ask))
    if isinstance(answer, Silent):
        why = answer.why or (
            "no service serves it: lodeq serve, lodeq.open(…, serve=True) or App(…, serve=True)"
        )
        raise UsageError(f"workers are known to the service that has {store!r} open: {why}")
    found, unserved, notes = answer
    if as_json:
        print_json(worker_doc(one) for one in found)
    else:
        print_rows(_WORKERS, map(_worker_row, found))
    for note in notes:
        click.echo(f"note: {shown(note)}", err=True)
    if unserved:
        more = ", …" if len(unserved) > _NAMES_MAX else ""
        named = shown(", ".join(unserved[:_NAMES_MAX])) + more
        click.echo(f"note: tasks wait, and no worker listed serves the queue: {named}", err=True)
    if not found:
        raise click.exceptions.Exit(_NOTHING)


async def _named(engine: Engine, reports: list[WorkerReport]) -> list[PublishedFunction]:
    """Published functions of the queues whose tasks some worker could not run."""
    queues = {one.queue for report in reports for one in report.unknown}
    return [one for queue in sorted(queues) for one in await engine.functions(queue)]


async def _unserved(engine: Engine, reports: list[WorkerReport]) -> list[str]:
    """Queues that have ready tasks, and that no report names."""
    if any(len(one.queues) >= QUEUES_MAX for one in reports):
        return []  # its report does not name all of them
    served = {queue for one in reports for queue in one.queues}
    stats = await engine.queues()
    return sorted({queue for (queue, _), one in stats.items() if one.ready} - served)


def _worker_row(one: WorkerReport) -> dict[str, str]:
    runs = ", ".join(f"{run.function} {duration(run.seconds)}" for run in one.running[:4])
    late = " late" if one.beat_age > _SILENT_S else ""
    return {
        "worker": shown(one.name),
        "queues": ", ".join(one.queues),
        "functions": str(one.functions),
        "version": f"{one.version}{'' if one.is_newest else ' *'}",
        "started": _moment(one.started_at),
        "beat": f"{duration(one.beat_age)}{late}",
        "runs": str(one.running_count),
        "now": shown(runs),
    }


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[run] STORE [NAME]")
@click.option("--queue", "-q", help="The queue of NAME, if several have it.")
@as_json_option
def cron(words: tuple[str, ...], queue: str | None, as_json: bool) -> None:
    """List cron functions with their next and last ticks; 'cron run STORE NAME' runs one now.

    Ticks are those of live workers: without one nothing is enqueued. The next five are listed, in
    UTC and as the clocks of the function's own zone show them ("local").

    Args:
        words: the store; or ``run``, the store and the name of a function.
        queue: of the function to run.
        as_json: print JSON lines instead of a table.
    """
    if words[0] == "run" and len(words) == 3:
        _run_now(words[1], words[2], queue)
        return
    if len(words) != 1:
        raise click.UsageError("expected 'lodeq cron STORE' or 'lodeq cron run STORE NAME'")
    (store,) = words

    async def look() -> list[PublishedFunction]:
        async with reading(store) as engine:
            return [one for one in await engine.functions(queue) if one.cron]

    found, live = run(look), _workers(store)
    reports = [] if isinstance(live, Silent) else live
    docs = [_tick_doc(one, reports) for one in found]
    if as_json:
        print_json(docs)
    else:
        print_rows(_CRON, chain.from_iterable(map(_cron_rows, docs)))


def _tick_doc(one: PublishedFunction, reports: list[WorkerReport]) -> dict[str, Any]:
    upcoming, last_at, task_id = schedule_of(one, reports)
    return {
        "queue": one.queue,
        "function": one.name,
        "cron": one.cron,
        "tz": one.tz,
        "next_at": upcoming[0] if upcoming else None,
        "upcoming": upcoming,
        "last_at": last_at,
        "task_id": task_id,
    }


def _cron_rows(doc: dict[str, Any]) -> Iterator[dict[str, str]]:
    """A row of the schedule with its next tick, and one of each further tick."""
    names = {"queue": doc["queue"], "function": shown(doc["function"])}
    yield names | {
        "schedule": shown(doc["cron"]),
        "zone": shown(doc["tz"]),
        "next": _moment(doc["next_at"]) or "no worker is live",
        "local": "" if doc["next_at"] is None else zone_text(doc["next_at"], doc["tz"]),
        "last": _moment(doc["last_at"]),
        "task": doc["task_id"],
    }
    for at in doc["upcoming"][1:]:
        rest = dict.fromkeys(("schedule", "zone", "last", "task"), "")
        yield names | rest | {"next": _moment(at), "local": zone_text(at, doc["tz"])}


def _run_now(store: str, name: str, queue: str | None) -> None:
    async def act() -> str:
        async with writing(store) as engine:
            known = [one for one in await engine.functions(queue) if one.cron]
            found = [one for one in known if one.name == name]
            if not found:
                raise unknown_function(queue or "cron", name, known)
            if len(found) > 1:
                queues = ", ".join(one.queue for one in found)
                raise UsageError(f"{name!r} is a function of {queues}: give --queue")
            receipt = await engine.enqueue_function(found[0].queue, name)
            return str(receipt.id)

    print_line(run(act))
    live = _workers(store)
    if not isinstance(live, Silent) and not live:
        click.echo("note: no worker is live: it runs once one is started", err=True)
