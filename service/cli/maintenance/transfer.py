"""``lodeq import`` and ``lodeq export``: tasks from other queues, and to them."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any, Final

import click

from ....engine.files.lockfile import without_cure
from ....engine.files.paths import SHARDS_MAX, check_root, list_layout, normal_path
from ....engine.recovery.checkpoint import MANIFEST, restore
from ....engine.runtime.clock import SystemClock
from ....errors import LockedError, StorePathError, UsageError
from ....repository.api.engine import Engine
from ....repository.api.open import open_engine
from ....repository.maintenance.detach import detach
from ....segments.item import Damage
from ...transfer.entries import Foreign
from ...transfer.export import EXPORT_FORMATS, ExportReport, check_apart, export_queue
from ...transfer.import_run import ImportReport, Targets, import_tasks, survey
from ...transfer.source_kinds import KINDS, open_source
from ..connection import LIMITS, Folder, folder_argument
from ..output import json_line, shown
from ..records import damage_json
from ..tables import Bar

__all__ = ["export", "import_"]

_INCOMPLETE: Final = 1

_as_json: Final = click.option("--json", "as_json", is_flag=True, help="The summary as one object.")
_tenant: Final = click.option("--tenant", default="", help="Tenant of the queue; none by default.")


@click.command("import")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("path", type=click.Path())
@click.option("--to", "store", required=True, type=Folder(), help="A store, created if need be.")
@click.option("--queue", help="One queue for all; else those of the source keep their names.")
@_tenant
@click.option(
    "--shards",
    type=click.IntRange(1, SHARDS_MAX),
    help="Number of shards of a store that is created.",
)
@click.option("--source-id", help="Who the source is, whatever its path; default: its path.")
@click.option("--dry-run", is_flag=True, help="Only read, and print what would be imported.")
@_as_json
def import_(
    kind: str,
    path: str,
    store: str,
    queue: str | None,
    tenant: str,
    shards: int | None,
    source_id: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take the tasks of another queue over. Stop its writers first; it is only read.

    PATH is its folder, or its database. A repeated import goes on where it was, and takes nothing
    over twice. What cannot be read is reported with its position, and skipped.

    Args:
        kind: of the source, one of ``KINDS``.
        path: the source.
        store: folder of the store, created if need be.
        queue: one queue for all tasks; None: those of the source keep their names.
        tenant: whose queue; "" for none.
        shards: of a store that is created.
        source_id: who the source is, whatever its path; None: its path.
        dry_run: only read, and print what would be imported.
        as_json: print the summary as one object.
    """
    source = open_source(kind, path, source_id=source_id)
    _check_apart(store, source)
    Targets(source, queue, tenant)  # reports a wrong name before a store is made
    bar = nullcontext() if as_json else Bar("import", source.total_bytes)

    def report_unreadable(file: str, damage: Damage) -> None:
        size = f" ({damage.size:,} bytes)" if damage.size else ""
        click.echo(f"{shown(file)} at {damage.offset}: {shown(damage.reason)}{size}", err=True)

    def at(file: str, end: int) -> None:
        if isinstance(bar, Bar):
            bar.at(file, end)

    async def run() -> ImportReport:
        async with open_engine(store, shards=shards, limits=LIMITS, reaper=False) as engine:
            return await import_tasks(
                engine, source, queue=queue, tenant=tenant, on_unreadable=report_unreadable, at=at
            )

    with bar:
        if dry_run:
            report = survey(source, SystemClock(), on_unreadable=report_unreadable, at=at)
        else:
            report = asyncio.run(run())
    if as_json:
        click.echo(json_line(_import_json(report)))
    else:
        _print_import(report, "would be imported" if dry_run else "imported")
    if report.already and source.source_id == source.path:
        click.echo(
            f"{shown(source.path)} is identified by its path: if another queue was created there "
            "since, repeat the import with a new --source-id",
            err=True,
        )
    _leave(report.unreadables > 0)


def _check_apart(store: str, source: Foreign) -> None:
    """Refuse a store within the source: an import would write there."""
    folder = source.path if os.path.isdir(source.path) else os.path.dirname(source.path)
    whole = os.path.realpath(store)
    if whole == folder or (source.path == folder and whole.startswith(os.path.join(folder, ""))):
        raise UsageError(f"{store!r} lies within the source: give another --to")


def _print_import(report: ImportReport, done: str) -> None:
    click.echo(f"{report.imported:,} tasks {done}, {report.dead:,} of them dead letters")
    for count, what in (
        (report.keys, "dedup keys of ended tasks whose windows are still open"),
        (report.already, "skipped: already imported"),
        *((count, f"left out: {why}") for why, count in sorted(report.left_out.items())),
        (report.unreadables, "not imported: unreadable, or too large for a task"),
    ):
        if count:
            click.echo(f"{count:,} {what}")


def _import_json(report: ImportReport) -> dict[str, Any]:
    return {
        "imported": report.imported,
        "dead": report.dead,
        "keys": report.keys,
        "already": report.already,
        "left_out": dict(report.left_out),
        "unreadables": report.unreadables,
        "unreadable": [damage_json(file, damage) for file, damage in report.unreadable],
    }


@click.command("export")
@folder_argument
@click.option("--queue", required=True, help="The queue to export.")
@click.option("--to", "out", required=True, type=Folder(), help="A new folder, or file.")
@click.option(
    "--format", "name", type=click.Choice(EXPORT_FORMATS), default="ledgerq", show_default=True
)
@_tenant
@click.option("--dead", is_flag=True, help="Dead letters as well; LedgerQ's in TO.dead.")
@_as_json
def export(
    store: str, queue: str, out: str, name: str, tenant: str, dead: bool, as_json: bool
) -> None:
    """Copy the waiting tasks of a queue, for others to read. The store keeps them.

    STORE is a store that nothing has open, or a checkpoint.

    Args:
        store: its folder.
        queue: its name.
        out: a folder, or for ``jsonl`` a file, that does not exist.
        name: of the format, one of ``EXPORT_FORMATS``.
        tenant: whose queue; "" for none.
        dead: copy dead letters as well.
        as_json: print the summary as one object.
    """
    check_apart(store, out)

    def report_lost(task_id: str, why: str) -> None:
        click.echo(f"{task_id}: {shown(why)}", err=True)

    async def run(path: str) -> ExportReport:
        async with _opened(path, store) as engine:
            return export_queue(
                engine, queue, out, tenant=tenant, format=name, dead=dead, on_lost=report_lost
            )

    if os.path.isfile(os.path.join(store, MANIFEST)):
        beside = os.path.dirname(os.path.abspath(out))
        with tempfile.TemporaryDirectory(prefix="lodeq-export-", dir=beside) as work:
            restored = os.path.join(work, "store")
            restore(store, restored)
            detach(restored)  # of a replica it may be a copy
            report = asyncio.run(run(restored))
    else:
        report = asyncio.run(run(store))
    if as_json:
        click.echo(json_line(_export_json(out, report)))
    else:
        _print_export(out, report)
    _leave(report.losses > 0)


@asynccontextmanager
async def _opened(path: str, given: str) -> AsyncIterator[Engine]:
    """Open an engine over a store that exists; looking for one never creates it."""
    root = normal_path(path)
    if not check_root(root) or not list_layout(root).shards:
        raise StorePathError(f"{given!r} holds no store, and no checkpoint: give another path")
    async with AsyncExitStack() as stack:
        opening = open_engine(root, limits=LIMITS, reaper=False)
        try:
            engine = await stack.enter_async_context(opening)
        except LockedError as exc:
            advice = "stop it, or export a checkpoint that it makes (engine.checkpoint)"
            raise LockedError(f"{without_cure(str(exc))}; {advice}", pid=exc.pid) from exc
        yield engine


def _print_export(out: str, report: ExportReport) -> None:
    click.echo(
        f"{report.exported:,} tasks exported to {shown(out)}, {report.dead:,} of them dead letters"
    )
    for what, count in sorted(report.loosened.items()):
        click.echo(f"{count:,} {what}")
    if report.losses:
        click.echo(f"{report.losses:,} not exported")


def _export_json(out: str, report: ExportReport) -> dict[str, Any]:
    return {
        "out": out,
        "exported": report.exported,
        "dead": report.dead,
        "loosened": report.loosened,
        "losses": report.losses,
        "lost": [{"id": task_id, "reason": why} for task_id, why in report.lost],
    }


def _leave(is_incomplete: bool) -> None:
    if is_incomplete:
        raise click.exceptions.Exit(_INCOMPLETE)
