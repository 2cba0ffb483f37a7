"""``find`` and ``act``: tasks by a filter, and what is done to all of them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from ....engine.files.disk_errors import disk_error
from ....engine.files.durable_files import replaced_file
from ....errors import LodeqError, UsageError
from ....repository.api.engine import Engine
from ....repository.model.filters import ACTS, FILTER_STATES, FOUND_MAX, FoundCount, TaskFilter
from ....repository.model.values import REDRIVE_POLICIES, Task
from ...shared.found_files import FOUND_FORMATS, check_found_format, found_chunks
from ...transfer.export import check_apart
from ..connection import is_url, reading, run, store_argument, writing
from ..display import (
    as_json_option,
    call_text,
    labels_text,
    print_json,
    print_rows,
    progress_text,
    reason_text,
    task_json,
)
from ..missing_queue import (
    LEAVE_OUT,
    note_cut_previews,
    note_misspelt_arguments,
    note_misspelt_filter,
    note_nothing_found,
    note_stars,
    refuse_misspelt_queue,
)
from ..output import Column, shown
from ..progress import Steps
from ..values import StateChoice, duration

__all__ = ["act", "find"]

_GROUP_ROWS: Final = 16_384  # of a row group of Parquet
F = TypeVar("F", bound=Callable[..., Any])
_COLUMNS: Final = (
    Column("id", 36, 36),
    Column("state", 9, 9),
    Column("queue", 5, 24),
    Column("tenant", 6, 16),
    Column("call", 4, 50),
    Column("labels", 6, 40),
    Column("progress", 8, 30, may_be_cut=True),
    Column("attempts", 8, 8),
    Column("reason", 6, 60),
)


class _Seconds(click.ParamType[Any]):
    """A duration such as 90s, 12h or 7d, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See ``click.ParamType``."""
        return value if isinstance(value, float) else float(duration(value))


def _filter_options(command: F) -> F:
    """Add the options of a filter."""
    for option in reversed(
        (
            click.option("--queue", help="Of this queue only."),
            click.option("--tenant", help="Of this tenant only; '' for the default one."),
            click.option(
                "--state",
                multiple=True,
                type=StateChoice(FILTER_STATES),
                help="In this state; may be repeated. Failed jobs are dead.",
            ),
            click.option("--function", help="Calls of this task function."),
            click.option("--label", multiple=True, metavar="KEY=VALUE", help="With this label."),
            click.option(
                "--arg",
                multiple=True,
                metavar="NAME=PATTERN",
                help="With this argument, in any case; * stands for any characters.",
            ),
            click.option("--older-than", type=_Seconds(), help="Enqueued so long ago: 90s, 12h."),
            click.option("--newer-than", type=_Seconds(), help="Enqueued since then: 90s, 12h."),
            click.option("--finished-older-than", type=_Seconds(), help="Ended so long ago: 2h."),
            click.option("--finished-newer-than", type=_Seconds(), help="Ended since then: 14h."),
            click.option(
                "--reason", help="Part of why it failed, in any case; * stands for any characters."
            ),
            click.option("--id-prefix", help="First hex digits of the id."),
            click.option("--id", "ids", multiple=True, help="With this id; may be repeated."),
            click.option("--text", help="Part of the call, a label or the reason, in any case."),
        )
    ):
        command = option(command)
    return command


def _filter(options: dict[str, Any]) -> TaskFilter:
    labels = _pairs(options.pop("label"), "--label KEY=VALUE")
    arguments = _pairs(options.pop("arg"), "--arg NAME=PATTERN")
    state, ids = options.pop("state") or None, options.pop("ids") or None
    return TaskFilter(state=state, ids=ids, labels=labels, arguments=arguments, **options)


def _pairs(given: Iterable[str], form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"expected {form}, got {text!r}")
        if pairs.setdefault(key, value) != value:
            raise UsageError(f"{key!r} cannot be both {pairs[key]!r} and {value!r}: no task is")
    return pairs


@click.command()
@store_argument
@_filter_options
@click.option("--count", "is_count", is_flag=True, help="Only say how many there are.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True)
@click.option("--cursor", help="Go on where an earlier page ended, with the same options.")
@click.option(
    "--oldest-first", is_flag=True, help="Ended tasks by rising ids: as they were enqueued."
)
@click.option("--after", metavar="ID", help="With --oldest-first: only what is behind this id.")
@click.option(
    "--export",
    "out",
    type=click.Path(dir_okay=False),
    help="Write all of them to a new FILE.jsonl, .csv or .parquet.",
)
@click.option("--payload", is_flag=True, help="Export payloads, too: redact= does not reach them.")
@as_json_option
@click.pass_context
def find(
    context: click.Context,
    /,
    store: str,
    limit: int,
    cursor: str | None,
    is_count: bool,
    out: str | None,
    payload: bool,
    oldest_first: bool,
    after: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """List the tasks for which all that is given holds, or export them.

    For example: ``lodeq find jobs --state dead --arg 'to=*@example.org'``.

    Args:
        store: a store's folder, or the address of a service.
        limit: tasks, 1 to 100,000.
        cursor: of an earlier page; None begins.
        is_count: print their number only.
        out: a file for all of them that does not exist.
        payload: with payloads, in the file.
        oldest_first: ended tasks, by rising ids.
        after: an id, with ``oldest_first``.
        as_json: print JSON lines instead of a table.
        options: of the filter.
    """
    meant = _filter(options)
    if after is not None and not oldest_first:
        raise UsageError("--after goes with --oldest-first: what was enqueued after a task")
    if oldest_first and is_count:
        raise UsageError("--count has no order: leave --oldest-first out")
    order: dict[str, Any] = {"oldest_first": oldest_first, "after": after}
    if out is not None:
        others = ("limit", "cursor", "is_count", "as_json")
        for name in others:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                text = name.removeprefix("is_").removeprefix("as_")
                raise UsageError(f"--export writes all that is found: leave --{text} out")
        n = run(lambda: _export(store, meant, out, payload, order))
        click.echo(f"{n:,} tasks exported to {shown(out)}")
        return
    if payload:
        raise UsageError("--payload is for --export: 'lodeq show' prints the payload of a task")

    async def look() -> tuple[FoundCount | None, list[Task], str | None]:
        async with reading(store) as engine:
            if is_count:
                number = await engine.count(meant)
                note_cut_previews(number.has_cut_previews)
                if not number.count:
                    await note_misspelt_filter(engine, meant.queue, meant.tenant, meant.function)
                    await note_misspelt_arguments(engine, meant)
                    note_stars(meant.text)
                return number, [], None
            found: list[Task] = []
            has_cut_previews = False
            at = cursor
            while len(found) < limit:
                most = min(FOUND_MAX, limit - len(found))
                page = await engine.find(meant, limit=most, cursor=at, **order)
                has_cut_previews |= page.has_cut_previews
                found += page
                at = page.cursor
                if at is None:
                    break
            if at is not None:
                more = await engine.find(meant, limit=1, cursor=at, **order)
                at = None if not more.tasks and more.cursor is None else at
            if not found:
                await note_nothing_found(engine, meant.queue, meant.tenant, meant.function)
                await note_misspelt_arguments(engine, meant)
                note_stars(meant.text)
            note_cut_previews(has_cut_previews)
            return None, found, at

    number, found, at = run(look)
    if number is not None:
        if as_json:
            print_json([{"count": number.count, "is_exact": number.is_exact}])
        else:
            click.echo(str(number))
    elif as_json:
        print_json(map(task_json, found))
    else:
        print_rows(_COLUMNS, map(_row, found))
    if at is not None:
        click.echo(f"there may be more: --cursor {at}", err=True)


def _format_of(store: str, out: str) -> str:
    """The format that a file's name says; refused where the file cannot be made."""
    suffix = os.path.splitext(out)[1].removeprefix(".")
    if suffix not in FOUND_FORMATS:
        raise UsageError(f"expected a file called .{', .'.join(FOUND_FORMATS)}, got {out!r}")
    check_found_format(suffix)
    if not is_url(store):
        check_apart(store, out, "--export")
    folder = os.path.dirname(os.path.abspath(out))
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder!r}: make it, or give another --export")
    _check_free(out)
    return suffix


def _check_free(out: str) -> None:
    if os.path.lexists(out):
        raise UsageError(f"{out!r} exists: give another --export, or move it away")


async def _export(
    store: str, meant: TaskFilter, out: str, payloads: bool, order: dict[str, Any]
) -> int:
    """Write all that is found to a file that is there only when it is whole; return how many."""
    suffix = _format_of(store, out)
    n = 0

    async def counted(engine: Engine, steps: Steps) -> AsyncIterator[Task]:
        nonlocal n
        async for task in engine.find_all(meant, payloads=payloads, **order):
            n += 1
            yield task
            steps.step()

    async with reading(store) as engine:
        try:
            mine = f".{os.getpid()}.unfinished"  # another may export to the same name
            with replaced_file(out, suffix=mine) as file, Steps("export", None) as steps:
                tasks = counted(engine, steps)
                chunks = found_chunks(tasks, suffix, payloads=payloads, group_rows=_GROUP_ROWS)
                async for chunk in chunks:
                    file.write(chunk)
                _check_free(out)
        except OSError as exc:
            raise disk_error(exc, out) from exc
    return n


def _row(task: Task) -> dict[str, str]:
    return {
        "id": str(task.id),
        "state": task.state,
        "queue": task.queue,
        "tenant": task.tenant,
        "call": call_text(task.function, task.preview),
        "labels": labels_text(task.labels),
        "attempts": str(task.attempts),
        "progress": shown(progress_text(task)),
        "reason": reason_text(task.reason),
    }


@click.command()
@store_argument
@click.argument("name", metavar="|".join(ACTS), type=click.Choice(list(ACTS)))
@_filter_options
@click.option("--priority", type=click.IntRange(0, 9), help="The new one, for reprioritise.")
@click.option(
    "--policy",
    type=click.Choice(REDRIVE_POLICIES),
    default="stored",
    show_default=True,
    help="For redrive: that of each task, or that of its function today.",
)
@click.option("--yes", is_flag=True, help="Do it; without this the tasks are counted only.")
@as_json_option
def act(
    store: str,
    name: Any,
    priority: int | None,
    policy: Any,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Act on all tasks for which all that is given holds; without --yes count them.

    For example: ``lodeq act jobs redrive --reason timeout --yes``.

    Args:
        store: a store's folder, or the address of a service.
        name: of the act.
        priority: 0 to 9, for ``reprioritise``.
        policy: ``stored`` or ``current``, for ``redrive``.
        yes: do it.
        as_json: print a JSON object.
        options: of the filter.
    """
    given = _filter(options)
    states = [state for state in given.states if state in ACTS[name]]
    if given.state is not None and len(states) < len(given.states):
        wrong = ", ".join(state for state in given.states if state not in ACTS[name])
        raise UsageError(f"{name} applies to tasks that are {', '.join(ACTS[name])}, not {wrong}")
    if (priority is not None) is not (name == "reprioritise"):
        raise UsageError("--priority is for reprioritise, which needs it")
    if policy != "stored" and name != "redrive":
        raise UsageError("--policy is for redrive")
    meant = replace(given, state=states)

    async def do() -> dict[str, Any]:
        async with (writing if yes else reading)(store) as engine:
            number = await engine.count(meant)
            note_cut_previews(number.has_cut_previews)
            if not number.count:
                named = meant.queue
                if yes and named is not None:
                    is_all, whose = meant.tenant is None, meant.tenant or ""
                    if await refuse_misspelt_queue(
                        engine, named, whose, is_all=is_all, cure=LEAVE_OUT
                    ):
                        named = None  # it is said
                await note_misspelt_filter(engine, named, meant.tenant, meant.function)
                await note_misspelt_arguments(engine, meant)
                note_stars(meant.text)
            if not yes:
                return {"count": number.count, "is_exact": number.is_exact}
            done = skipped = 0
            refused: dict[str, str] = {}
            cursor = None
            try:
                with Steps(name, number.count) as steps:
                    while True:
                        report = await engine.act(
                            name, meant, priority=priority, policy=policy, cursor=cursor
                        )
                        done, skipped = done + report.done, skipped + report.skipped
                        refused.update(report.refused)
                        cursor = report.cursor
                        steps.step(n=report.done + report.skipped + len(report.refused))
                        if cursor is None:
                            break
            except LodeqError as error:
                done += error.done or 0
                error.done = done or None
                if done or skipped or refused:
                    _print_done(name, done, skipped, refused, as_json)
                raise
            return {"done": done, "skipped": skipped, "refused": refused}

    outcome = run(do)
    if yes:
        _print_done(name, **outcome, as_json=as_json)
    elif as_json:
        print_json([outcome])
    else:
        found = FoundCount(outcome["count"], outcome["is_exact"])
        advice = ": add --yes to do it" if found.count else ""
        click.echo(f"{name} would mean {found} tasks{advice}")


def _print_done(name: str, done: int, skipped: int, refused: dict[str, str], as_json: bool) -> None:
    """Print what an act came to; of one that broke off, as far as it came."""
    if as_json:
        print_json([{"done": done, "skipped": skipped, "refused": refused}])
        return
    click.echo(f"{name}: {done} tasks; {skipped} had changed meanwhile")
    for task_id, why in refused.items():
        click.echo(f"refused {task_id}: {shown(why)}", err=True)
