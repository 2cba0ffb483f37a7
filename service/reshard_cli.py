"""``lodeq reshard``: another number of shards for a store that nobody has open."""

from __future__ import annotations

import anyio
import click

from ..repository.replacing import reshard as reshard_store
from ..repository.replacing import settle
from .commands.reaching import folder_argument
from .telling import shown

__all__ = ["reshard"]


@click.command()
@folder_argument
@click.option("--shards", type=click.IntRange(1, 4096), required=True, help="How many from now on.")
def reshard(store: str, shards: int) -> None:
    """Give a STORE another number of shards. Nobody may have it open.

    Every row is copied and compared; the new store then takes the place of the old in one step,
    and the old one is kept beside it. It takes the disk space of the store once more.
    """
    anyio.run(settle, store)
    report, old = reshard_store(store, shards)
    click.echo(
        f"{shown(report.path)}: {report.old_shards} shards before, {report.shards} now, "
        f"{report.rows['t']} tasks, {report.rows['r']} results"
    )
    click.echo(f"the store as it was: {shown(old)}; remove it when you need it no more")
