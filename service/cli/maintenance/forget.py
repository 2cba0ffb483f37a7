"""``lodeq forget``: remove rows that are archived."""

from __future__ import annotations

from dataclasses import asdict

import click

from ....repository.model.reports import PurgeReport
from ..commands.queues import yes_option
from ..connection import confirm, run, store_argument, writing
from ..display import as_json_option, print_json, print_line

__all__ = ["forget"]


@click.command()
@store_argument
@click.argument("plan", type=click.Path(exists=True))
@yes_option
@as_json_option
def forget(store: str, plan: str, is_sure: bool, as_json: bool) -> None:
    """Remove from STORE the results and dead letters that PLAN names.

    PLAN is a file that `lodeq-spark archive --purge` has written. Only rows that are in the archive
    go, and none that ended after its snapshot.

    Args:
        store: a store's folder, or the address of a service.
        plan: its path.
        is_sure: do not ask first.
        as_json: print JSON instead of a line.
    """
    confirm("Delete the results and dead letters that the plan names?", is_sure=is_sure)
    report = run(lambda: _forget(store, plan))
    if as_json:
        print_json([asdict(report)])
        return
    print_line(
        f"{report.results:,} results and {report.dead:,} dead letters removed; "
        f"{report.absent:,} were gone already, or have changed"
    )


async def _forget(store: str, plan: str) -> PurgeReport:
    async with writing(store, is_quiet=True) as engine:
        report = await engine.purge_archived(plan)
        await engine.fsync()
        return report
