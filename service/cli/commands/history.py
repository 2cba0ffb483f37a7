"""``history``: tasks that have ended, by queue, function, state and time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from ....engine.runtime.clock import SystemClock
from ....errors import UsageError
from ....repository.model.values import Result
from ....repository.tasks.operators.history import HISTORY_STATES, PAGE_MAX
from ..connection import reading, run, store_argument
from ..display import (
    as_json_option,
    call_text,
    labels_text,
    print_json,
    print_rows,
    reason_text,
    result_json,
    seconds_text,
)
from ..missing_queue import note_cut_previews, note_nothing_found, note_stars
from ..output import Column, shown
from ..values import StateChoice, duration

__all__ = ["history"]

_TIME_OF_DAY: Final = re.compile(r"T?\d{1,2}:\d\d(:\d\d.*|Z|[+-].*)?")
_COLUMNS: Final = (
    Column("id", 36, 36),
    Column("state", 9, 9),
    Column("queue", 5, 24),
    Column("tenant", 6, 16),
    Column("call", 4, 50),
    Column("labels", 6, 40, may_be_cut=True),
    Column("attempts", 8, 8),
    Column("ended", 20, 20),
    Column("waited", 6, 10),
    Column("ran", 3, 10),
    Column("worker", 6, 20),
    Column("reason", 6, 60),
)


def _moment(text: str) -> datetime:
    """A moment from ``12h`` (so long ago) or ISO 8601 text; without a zone it is UTC."""
    now = datetime.fromtimestamp(SystemClock().wall_us() / 1e6, UTC)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    try:
        return now - timedelta(seconds=duration(text))
    except (click.BadParameter, OverflowError) as exc:
        if _TIME_OF_DAY.fullmatch(text):
            raise click.BadParameter(
                f"{text!r} has no date: write {now:%Y-%m-%dT%H:%M} (UTC), or how long ago: 12h"
            ) from exc
        raise click.BadParameter(
            f"expected a time like 12h (ago), 7d or 2026-11-23T08:00, got {text!r}"
        ) from exc


@click.command()
@store_argument
@click.argument("queue", required=False)
@click.option("--tenant", help="Of this tenant only; '' for the default one.")
@click.option("--function", help="Of this task function only.")
@click.option(
    "--state", type=StateChoice(list(HISTORY_STATES)), help="That ended so. Failed jobs are dead."
)
@click.option(
    "--since",
    type=_moment,
    metavar="MOMENT",
    help="Ended since then: 12h (ago), 7d, or 2026-11-23T08:00 (UTC without an offset).",
)
@click.option("--until", type=_moment, metavar="MOMENT", help="Ended before then, as --since.")
@click.option("--text", help="Part of the call, a label or the reason, in any case.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True)
@click.option("--cursor", help="Go on where an earlier page ended, with the same options.")
@click.option("--oldest-first", is_flag=True, help="By rising ids: as they were enqueued.")
@click.option("--after", metavar="ID", help="With --oldest-first: only what is behind this id.")
@as_json_option
def history(
    store: str,
    queue: str | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """List tasks that have ended, those that were enqueued last first.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name; None for all.
        limit: tasks, 1 to 100,000.
        cursor: of an earlier page; None begins.
        as_json: print JSON lines instead of a table.
        options: what is meant, as ``Engine.history`` takes it.
    """
    if options["since"] and options["until"] and options["until"] <= options["since"]:
        raise UsageError("--until must be after --since: nothing ended between them")
    if options["after"] is not None and not options["oldest_first"]:
        raise UsageError("--after goes with --oldest-first: what was enqueued after a task")

    async def look() -> tuple[list[Result], str | None]:
        found: list[Result] = []
        at = cursor
        has_cut_previews = False
        async with reading(store) as engine:
            while len(found) < limit:
                page = await engine.history(
                    queue, limit=min(PAGE_MAX, limit - len(found)), cursor=at, **options
                )
                has_cut_previews |= page.has_cut_previews
                found += page
                at = page.cursor
                if at is None:
                    break
            if at is not None:
                more = await engine.history(queue, limit=1, cursor=at, **options)
                at = None if not more.results and more.cursor is None else at
            if not found:
                await note_nothing_found(engine, queue, options["tenant"], options["function"])
                note_stars(options["text"], instead="find STORE --arg NAME=PATTERN")
        note_cut_previews(has_cut_previews)
        return found, at

    found, at = run(look)
    if as_json:
        print_json({"id": str(one.task_id), **result_json(one)} for one in found)
    else:
        print_rows(_COLUMNS, map(_row, found))
    if at is not None:
        click.echo(f"there may be more: --cursor {at}", err=True)


def _row(one: Result) -> dict[str, str]:
    return {
        "id": str(one.task_id),
        "state": one.status,
        "queue": one.queue,
        "tenant": one.tenant,
        "call": call_text(one.function, one.preview),
        "labels": labels_text(one.labels),
        "attempts": str(one.attempts),
        "ended": f"{one.finished_at:%Y-%m-%dT%H:%M:%SZ}",
        "waited": seconds_text(one.waited),
        "ran": seconds_text(one.ran),
        "worker": shown(one.worker),
        "reason": reason_text(one.error),
    }
