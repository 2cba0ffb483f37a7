"""``lodeq segments migrate``: convert body files of an older format."""

from __future__ import annotations

import click

from ....engine.files.paths import is_rocksdb, normal_path, shard_path
from ....errors import UsageError
from ....sync import open as open_store
from ..display import print_line
from ..output import shown

__all__ = ["migrate"]


@click.command("migrate")
@click.argument("store", type=click.Path(exists=True, file_okay=False))
def migrate(store: str) -> None:
    """Copy what is left in .rdq body files of STORE to .sqs files, and remove them.

    No engine may have the store open (an engine has migrate_bodies for that). Interrupted and
    repeated, it goes on with the rest. Exit code 1: a payload cannot be read; its file is kept.
    """
    if not is_rocksdb(shard_path(normal_path(store), 0)):
        raise UsageError(f"{store!r} is not a lodeq store")
    with open_store(store, reaper=False) as engine:
        report = engine.migrate_bodies()
        anomalies = engine.stats().anomalies
    for text in anomalies:
        click.echo(shown(text), err=True)
    print_line(
        f"{report.records:,} payloads copied ({report.bytes:,} bytes); {report.files:,} files "
        f"removed, {report.files_left:,} kept"
    )
    if report.files_left:
        raise click.exceptions.Exit(1)
