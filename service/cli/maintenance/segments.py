"""``lodeq segments``: look into log files and segments, check, save and repair them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import Any, Final, TypeVar

import click

from ....engine.runtime.clock import SystemClock
from ....segments.detect import FORMATS, DetectedPath, detect
from ....segments.formats.registry import foreign_format
from ....segments.item import Damage, Record
from ...shared.file_check import Problem, verify
from ...shared.file_reader import bytes_of, items
from ..output import Column, json_line, shown
from ..records import damage_json, inflated, record_json, record_row, report_damage, rfc3339
from ..tables import Bar, Rows
from .file_repair import repair
from .file_salvage import Summary, salvage
from .migrate_bodies import migrate
from .tailer_lag import lags

__all__ = ["segments"]

F = TypeVar("F", bound=Callable[..., Any])

_DAMAGED: Final = 1
_FILE: Final = Column("file", 12, 60)
_OFFSET: Final = Column("offset", 10, 20, is_number=True)
_COLUMNS: Final = {
    column.title: column
    for column in (
        Column("timestamp", 20, 30),
        Column("priority", 8, 8, is_number=True),
        Column("expires", 7, 30),
        Column("headers", 7, 40, may_be_cut=True),
    )
}
_PAYLOAD: Final = Column("payload", 20, 80, may_be_cut=True)
_FINDING: Final = (
    _FILE,
    _OFFSET,
    Column("size", 10, 20, is_number=True),
    Column("reason", 20, 120),
)
_LAG: Final = (
    Column("tailer", 10, 64), Column("next", 10, 20, is_number=True),
    Column("behind", 10, 20, is_number=True), Column("age", 10, 20, is_number=True),
)  # fmt: skip


def _place_options(command: F) -> F:
    named = click.option(
        "--format",
        "name",
        type=click.Choice(FORMATS),
        help="Format of the files; else it is detected.",
    )
    return click.argument("path", type=click.Path(exists=True))(named(command))


_as_json: Final = click.option(
    "--json", "as_json", is_flag=True, help="One object on each line instead of a table."
)


@click.group()
def segments() -> None:
    """Look into log files and segments, ours and others', check, save and repair them.

    PATH is a file or a folder: .sqs, .rdq, LedgerQ, a Rust queue, or a journal. Exit codes: 0,
    nothing is wrong; 1, damage was found; 2, it was not done.
    """


segments.add_command(migrate)


@segments.command("dump")
@_place_options
@_as_json
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option(
    "--from", "start", type=click.IntRange(min=0), help="Begin with the record of this number."
)
@click.option("--headers-only", is_flag=True, help="Leave payloads out, and do not check them.")
def _dump(
    path: str,
    name: str | None,
    as_json: bool,
    limit: int | None,
    start: int | None,
    headers_only: bool,
) -> None:
    """List records, oldest first. Damage goes to stderr, and is passed over."""
    detected = detect(path, name)
    bodies = not headers_only
    is_damaged = False
    count = 0
    with (
        Bar("dump", bytes_of(detected)) as bar,
        closing(items(detected, start=start, bodies=bodies)) as found,
        Rows(_columns(detected, bodies=bodies), bar) if not as_json else nullcontext() as rows,
    ):
        for file, item in found:
            bar.at(file, item.offset + item.size)
            damage = item if isinstance(item, Damage) else None
            if isinstance(item, Record):
                count += 1
                payload, damage = inflated(item, detected.format) if bodies else (None, None)
                if rows is not None:
                    rows.add(record_row(file, item, payload))
                else:
                    bar.give_way()
                    sys.stdout.write(json_line(record_json(file, item, payload)) + "\n")
            if damage is not None:
                is_damaged = True
                report_damage(file, damage)
            if count == limit:
                break
    _leave(is_damaged)


def _columns(detected: DetectedPath, *, bodies: bool) -> list[Column]:
    """Those that the format has something for."""
    columns = [_FILE] if detected.is_folder else []
    columns += [Column("id", 6, 32), _OFFSET]
    foreign = foreign_format(detected.format)
    if foreign is not None:
        columns += [_COLUMNS[title] for title in foreign.columns]
    elif detected.format == "journal":
        columns += [_COLUMNS[title] for title in ("timestamp", "expires", "headers")]
    return [*columns, _PAYLOAD] if bodies else columns


@segments.command("verify")
@_place_options
@_as_json
def _verify(path: str, name: str | None, as_json: bool) -> None:
    """Read every byte, and list all that is wrong."""
    detected = detect(path, name)
    total = bytes_of(detected)
    is_damaged = False
    with (
        Bar("verify", total) as bar,
        Rows(_FINDING, bar) if not as_json else nullcontext() as rows,
    ):
        for file, damage in verify(detected, bar.at):
            is_damaged = True
            if rows is not None:
                rows.add(
                    {
                        "file": shown(file),
                        "offset": str(damage.offset),
                        "size": str(damage.size),
                        "reason": shown(damage.reason),
                    }
                )
            else:
                bar.give_way()
                sys.stdout.write(json_line(damage_json(file, damage)) + "\n")
    if not (is_damaged or as_json):
        click.echo(f"{detected.format}: {total:,} bytes, nothing is wrong")
    _leave(is_damaged)


@segments.command("salvage")
@_place_options
@click.option("--out", required=True, type=click.Path(), help="A new file, or folder.")
@click.option("--json", "as_json", is_flag=True, help="The summary as one object.")
def _salvage(path: str, name: str | None, out: str, as_json: bool) -> None:
    """Save all that can still be read into a new file or folder of the same format.

    .sqs and .rdq become one .sqs, a journal one log file, LedgerQ and Rust queues a folder.
    """
    detected = detect(path, name)
    with Bar("salvage", bytes_of(detected)) as bar:
        summary = salvage(detected, out, report_damage, bar.at)
    if as_json:
        click.echo(json_line(_summary_json(out, summary)))
    else:
        click.echo(
            f"{summary.records:,} records saved to {shown(out)}; "
            f"{summary.damaged_bytes:,} bytes of damage in {summary.damages:,} ranges"
        )
    _leave(summary.damages > 0)


def _summary_json(out: str, summary: Summary) -> dict[str, Any]:
    return {
        "out": out,
        "records": summary.records,
        "payload_bytes": summary.payload_bytes,
        "damaged_bytes": summary.damaged_bytes,
        "damages": summary.damages,
        "damage": [damage_json(file, damage) for file, damage in summary.damage],
    }


@segments.command("repair")
@_place_options
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
def _repair(path: str, name: str | None, dry_run: bool) -> None:
    """Make a journal, or .sqs files of ours, whole again. No writer may be at work.

    What is cut off, or becomes a hole, is first copied to PATH.damaged-OFFSET.
    """
    detected = detect(path, name)
    is_wrong = is_done = False
    with (
        Bar("repair", bytes_of(detected)) as bar,
        closing(repair(detected, bar.at, is_dry=dry_run)) as steps,
    ):
        for step in steps:
            bar.give_way()
            is_done = True
            is_wrong = is_wrong or step.is_left or dry_run
            where = f"{shown(step.path)} at {step.offset} ({step.size:,} bytes)"
            prefix = "left as it is: " if step.is_left else "would do: " if dry_run else ""
            click.echo(f"{where}: {prefix}{shown(step.what)}")
    if not is_done:
        click.echo("nothing to repair")
    _leave(is_wrong)


@segments.command("lag")
@click.argument("path", type=click.Path(exists=True))
@_as_json
def _lag(path: str, as_json: bool) -> None:
    """Print how far the named tailers of a journal are behind."""
    is_damaged = False
    with (
        Bar("lag", 0) as bar,
        Rows(_LAG, bar) if not as_json else nullcontext() as rows,
    ):
        for found in lags(detect(path), SystemClock()):
            if isinstance(found, Problem):
                is_damaged = True
                report_damage(*found)
            elif rows is not None:
                rows.add(
                    {
                        "tailer": found.tailer,
                        "next": str(found.following),
                        "behind": str(found.behind),
                        "age": "" if found.age_s is None else f"{found.age_s:,.1f} s",
                    }
                )
            else:
                value = {
                    "tailer": found.tailer,
                    "next": found.following,
                    "behind": found.behind,
                    "first_unread_at": rfc3339(found.first_unread_us * 1000),
                    "age_s": found.age_s,
                    "stored_at": rfc3339(found.stored_us * 1000),
                }
                sys.stdout.write(json_line(value) + "\n")
    _leave(is_damaged)


def _leave(is_damaged: bool) -> None:
    if is_damaged:
        raise click.exceptions.Exit(_DAMAGED)
