"""``lodeq ingest`` and ``lodeq forget-loads``: take staged loads in now, and forget old ones."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import click

from ....engine.bulk.inbox import store_info
from ....repository.model.ingest_report import IngestReport
from ....repository.model.reports import ForgottenLoads
from ..commands.queues import yes_option
from ..connection import confirm, is_url, run, store_argument, writing
from ..display import as_json_option, print_json, print_line, size
from ..output import json_line, shown
from ..values import duration

__all__ = ["forget_loads", "ingest"]

_REFUSED: Final = 1


@click.command("ingest")
@store_argument
@click.option("--job", help="Only this load; default: all that wait.")
@click.option("--json", "as_json", is_flag=True, help="The report as one object.")
def ingest(store: str, job: str | None, as_json: bool) -> None:
    """Take in the loads that wait in the inbox of STORE.

    A load that cannot be taken in is refused as a whole, with the reason; its files stay. A service
    that has the store open takes loads in by itself; this command makes it do so at once.
    """
    if not is_url(store):
        store_info(store)  # reports a wrong path before anything is made there

    async def take() -> IngestReport:
        async with writing(store, is_quiet=True) as engine:
            return await engine.ingest(job)

    report = run(take)
    if as_json:
        jobs = [asdict(one) for one in report.jobs]
        print_line(json_line({"ok": report.ok, "tasks": report.tasks, "jobs": jobs}))
    else:
        _print(report)
    if not report.ok:
        click.get_current_context().exit(_REFUSED)


def _print(report: IngestReport) -> None:
    for one in report.jobs:
        if one.state == "refused":
            print_line(f"{shown(one.job)}: refused: {shown(one.reason)}")
            continue
        known = ", taken in before" if one.state == "known" else ""
        print_line(
            f"{shown(one.job)}: {one.tasks:,} tasks{known}; {one.skipped:,} skipped, "
            f"{one.replaced:,} replaced"
        )
    if not report.jobs:
        print_line("no loads are waiting")


@click.command("forget-loads")
@store_argument
@click.option(
    "--older-than", type=duration, required=True, metavar="TIME", help="At least an hour: 90d, 12h."
)
@yes_option
@as_json_option
def forget_loads(store: str, older_than: float, is_sure: bool, as_json: bool) -> None:
    """Forget loads that ended long ago, and staged files that no load came of.

    A job that STORE has forgotten comes in again if it is staged again.

    Args:
        store: a store's folder, or the address of a service.
        older_than: seconds since the load ended, 3600 or more.
        is_sure: do not ask first.
        as_json: print JSON instead of a line.
    """
    if not is_url(store):
        store_info(store)
    confirm("Forget these loads? Staged again, they come in again.", is_sure=is_sure)

    async def forget() -> ForgottenLoads:
        async with writing(store, is_quiet=True) as engine:
            return await engine.forget_loads(older_than)

    report = run(forget)
    if as_json:
        print_json([asdict(report)])
        return
    print_line(
        f"forgotten: {report.done:,} taken in, {report.refused:,} refused, "
        f"{report.abandoned:,} never published; {size(report.freed_bytes)} freed"
    )
