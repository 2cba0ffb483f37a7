"""``stats`` and ``top``: what a store does, once or live.

The service is asked if there is one, as only it knows rates and latencies; else the rows are read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import anyio
import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ....engine.runtime.clock import SystemClock
from ....engine.values import LatencySummary
from ....repository.api.engine import Engine
from ....repository.api.read_only import oldest_lease_age
from ....repository.model.values import EngineStats, QueueStats
from ..connection import Silent, asked, reading, run, store_argument
from ..display import (
    as_json_option,
    call_text,
    duration,
    engine_json,
    print_json,
    print_line,
    print_rows,
    progress_text,
    queue_json,
    queue_row,
)
from ..output import PIPE_COLUMNS, flush, shown
from ..values import duration as seconds
from .queues import QUEUES

__all__ = ["Overview", "overview", "stats", "top"]

_TOTALS: Final = ("enqueued", "claimed", "completed", "nacked", "reaped", "dead", "expired")
_ROWS_MAX: Final = 40
_CALLS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Overview:
    """A moment of a store. ``is_served``: the service answered, with totals and latencies.

    ``silent``: why the service that should have answered did not.
    """

    mono: float
    is_served: bool
    stats: EngineStats
    queues: Mapping[tuple[str, str], QueueStats]
    oldest_lease_age: float | None
    silent: str = ""
    calls: Sequence[str] = ()  # what some of the leased tasks are, in words


async def overview(store: str, *, calls: bool = False) -> Overview:
    """Ask the service for its figures, or read the rows. ``calls``: of some leased tasks, too."""

    async def ask(engine: Engine) -> Overview:
        found = await engine.stats()
        seen = await _overview(engine, found, found.oldest_lease_age, is_served=True)
        return replace(seen, calls=await _calls(engine, seen.queues)) if calls else seen

    answer = await asked(store, ask)
    if not isinstance(answer, Silent):
        return answer
    async with reading(store) as looking:
        age = oldest_lease_age(looking)
        seen = await _overview(looking, await looking.stats(), age, is_served=False)
        leased = await _calls(looking, seen.queues) if calls else ()
        return replace(seen, silent=answer.why, calls=leased)


async def _calls(engine: Engine, queues: Mapping[tuple[str, str], QueueStats]) -> list[str]:
    """Some leased tasks that have a face, those of the queues with most leases first."""
    leased = [(one.leased, key) for key, one in queues.items() if one.leased]
    busy = [key for _, key in sorted(leased, reverse=True)]
    lines: list[str] = []
    for queue, tenant in busy[:_CALLS_MAX]:
        for task in await engine.queue(queue, tenant=tenant).list("leased", limit=_CALLS_MAX):
            if len(lines) == _CALLS_MAX:
                return lines
            if task.function or task.preview:
                by = f" by {shown(task.worker)}" if task.worker else ""
                call = call_text(task.function, task.preview)
                far = f": {shown(progress_text(task))}" if task.progress is not None else ""
                lines.append(f"working on {call} of {queue}, attempt {task.attempts}{by}{far}")
    return lines


async def _overview(
    engine: Engine, found: EngineStats, lease_age: float | None, *, is_served: bool
) -> Overview:
    queues = await engine.queues()
    return Overview(SystemClock().mono(), is_served, found, queues, lease_age)


@click.command()
@store_argument
@as_json_option
def stats(store: str, as_json: bool) -> None:
    """Print counts by queue; of a running service also totals, commits and latencies."""
    found = run(lambda: overview(store))
    if found.silent:
        click.echo(f"{found.silent}: looking at the folder", err=True)
    if as_json:
        print_json([_json(found)])
        return
    print_rows(QUEUES, (queue_row(key, one) for key, one in found.queues.items()))
    for line in _lines(found, None):
        click.echo(line)


def _json(found: Overview) -> dict[str, Any]:
    document = {
        "served": found.is_served,
        "oldest_lease_age": found.oldest_lease_age,
        "queues": [queue_json(key, one) for key, one in found.queues.items()],
    }
    # Who only looks has no totals: zeros would look like facts.
    return {**document, "engine": engine_json(found.stats)} if found.is_served else document


def _lines(now: Overview, before: Overview | None) -> list[str]:
    """The lines of text below the table of queues."""
    lines, s = [], now.stats
    age = now.oldest_lease_age
    leases = "" if age is None else f", the oldest for {duration(age)}"
    lines.append(f"{s.leased:,} leased{leases}; {len(s.shards)} shards")
    lines += now.calls
    if not now.is_served:
        lines.append(now.silent or "no service runs here: totals and latencies are unknown")
        return lines
    lines.append(
        "since open: " + ", ".join(f"{getattr(s, f'{name}_total'):,} {name}" for name in _TOTALS)
    )
    if before is not None and before.is_served and now.mono > before.mono:
        span = now.mono - before.mono
        rates = {
            name: (getattr(s, f"{name}_total") - getattr(before.stats, f"{name}_total")) / span
            for name in _TOTALS
        }
        lines.append("per second: " + ", ".join(f"{rate:,.1f} {n}" for n, rate in rates.items()))
    for shard in s.shards:
        share = shard.submissions / shard.commits if shard.commits else 0
        lines.append(
            f"shard {shard.shard}: {shard.commits:,} commits of {share:.1f}; "
            f"commit {_latency(shard.commit)}; fsync {_latency(shard.fsync)}; "
            f"{shard.waiting} waiting, {shard.stalls} stalls"
        )
    lines.append(f"the reaper is {s.reaper_lag:.1f} s late")
    lines += [f"anomaly: {text}" for text in s.anomalies]
    return lines


def _latency(found: LatencySummary) -> str:
    return f"p50 {found.p50_us / 1000:.2f} ms, p99 {found.p99_us / 1000:.2f} ms"


# -- live ------------------------------------------------------------------------------


@click.command()
@store_argument
@click.option("--interval", type=seconds, default="1s", show_default=True)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many looks.")
@as_json_option
def top(store: str, interval: float, count: int | None, as_json: bool) -> None:
    """Show queues and rates live, until Ctrl-C. Without a terminal, print each look.

    Args:
        store: a store's folder, or the address of a service.
        interval: seconds between two looks, 0.05 to 3600.
        count: stop after this many looks; None: go on.
        as_json: print each look as one line of JSON.
    """
    if not 0.05 <= interval <= 3600:
        raise click.BadParameter("expected an interval from 50ms to 1h")
    try:
        if as_json:
            run(lambda: _watch(store, interval, count, _print_line))
        elif sys.stdout.isatty():
            console = Console(highlight=False, markup=False, emoji=False)
            with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:

                def update(now: Overview, before: Overview | None) -> None:
                    live.update(_screen(store, now, before), refresh=True)

                run(lambda: _watch(store, interval, count, update))
        else:
            run(lambda: _watch(store, interval, count, partial(_print_look, store)))
    except KeyboardInterrupt:
        pass  # that is how one leaves it


async def _watch(
    store: str,
    interval: float,
    count: int | None,
    show: Callable[[Overview, Overview | None], None],
) -> None:
    before: Overview | None = None
    seen = 0
    while True:
        now = await overview(store, calls=True)
        show(now, before)
        before, seen = now, seen + 1
        if seen == count:
            return
        await anyio.sleep(interval)


def _print_line(now: Overview, before: Overview | None) -> None:
    print_json([_json(now)])
    flush()


def _print_look(store: str, now: Overview, before: Overview | None) -> None:
    """Print to a pipe, uncut: there is no terminal whose width would matter."""
    console = Console(width=PIPE_COLUMNS, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:  # rich would end the process on a closed pipe
        console.print(_screen(store, now, before))
    print_line("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))
    flush()


def _screen(store: str, now: Overview, before: Overview | None) -> Group:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in QUEUES:
        table.add_column(column.title, justify="right" if column.is_number else "left")
    # What is stuck comes first.
    keys = sorted(now.queues, key=lambda key: (-(now.queues[key].oldest_ready_age or 0.0), key))
    for key in keys[:_ROWS_MAX]:
        row = queue_row(key, now.queues[key])
        cells = [Text(row[column.title]) for column in QUEUES]
        if now.queues[key].dead:
            cells[5].stylize("red")
        if now.queues[key].is_paused:
            cells[-1].stylize("yellow")
        table.add_row(*cells)
    rest = len(keys) - _ROWS_MAX
    more = [Text(f"and {rest:,} queues more")] if rest > 0 else []
    title = Text(f"lodeq top  {store}", style="bold")
    return Group(title, Text(""), table, *more, Text(""), *map(Text, _lines(now, before)))
