"""``lodeq reshard``: another number of shards for a store that nobody has open."""

from __future__ import annotations

import anyio
import click

from ....engine.files.paths import SHARDS_MAX
from ....repository.api.in_place_reshard import recover_and_close
from ....repository.api.in_place_reshard import reshard as reshard_store
from ..connection import folder_argument
from ..display import as_json_option, print_json, print_line
from ..output import shown

__all__ = ["reshard"]


@click.command()
@folder_argument
@click.option(
    "--shards", type=click.IntRange(1, SHARDS_MAX), required=True, help="How many from now on."
)
@as_json_option
def reshard(store: str, shards: int, as_json: bool) -> None:
    """Change the number of shards of a STORE. Nobody may have it open.

    Every row is copied and compared; the new store then takes the place of the old one in one step,
    and the old one is kept beside it. This takes the disk space of the store once more.
    """
    anyio.run(recover_and_close, store)
    report, old = reshard_store(store, shards)
    if as_json:
        print_json(
            [
                {
                    "path": report.path,
                    "old_shards": report.old_shards,
                    "shards": report.shards,
                    "tasks": report.rows["t"],
                    "results": report.rows["r"],
                    "old": old,
                }
            ]
        )
        return
    print_line(
        f"{shown(report.path)}: {report.old_shards} shards before, {report.shards} now, "
        f"{report.rows['t']} tasks, {report.rows['r']} results"
    )
    print_line(f"the old store is kept at {shown(old)}; remove it when you no longer need it")
