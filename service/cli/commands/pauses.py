"""``pause`` and ``resume``: whether the tasks of a queue are handed out."""

from __future__ import annotations

from typing import Final

import click

from ..connection import run, store_argument, writing
from ..display import as_json_option, print_json, print_line
from ..missing_queue import note_missing_queue, refuse_misspelt_queue, seen_queues
from ..other_tenants import NOBODY, LeftOut, left_out
from ..output import shown
from .queues import queue_of, tenant_options

__all__ = ["pause", "resume"]

_STILL_PAUSED: Final = 1
_NAMES_MAX: Final = 10


@click.command()
@store_argument
@click.argument("queue")
@tenant_options
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Also a queue that looks misspelt.")
@as_json_option
def pause(
    store: str, queue: str, tenant: str, all_tenants: bool, is_sure: bool, as_json: bool
) -> None:
    """Hand out no tasks of a queue until 'resume', restarts included. Enqueues go on.

    Without --tenant it is the default tenant's, and the others go on. With --all-tenants it is one
    switch for the whole queue, whatever the tenant.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name.
        tenant: whose queue; "" for none.
        all_tenants: the queues of this name of all tenants.
        is_sure: also a queue whose name is nearly that of another one.
        as_json: print JSON lines instead of a table.
    """

    async def do() -> LeftOut:
        async with writing(store) as engine:
            others = await left_out(
                engine, queue, tenant, lambda one: not one.is_paused, is_all=all_tenants
            )
            if others == NOBODY:
                note = note_missing_queue if is_sure else refuse_misspelt_queue
                await note(engine, queue, tenant, is_all=all_tenants)
            await queue_of(engine, queue, tenant, all_tenants).pause()
            return others

    others = run(do)
    rest = ""
    if others.tenants:
        go = "goes" if others.tenants == 1 else "go"
        rest = f"; {others} {go} on (--all-tenants pauses {others.them})"
    if as_json:
        print_json([{"queue": queue, "paused": True, **others.json}])
    else:
        print_line(f"{queue} paused{_whom(tenant, all_tenants)}{rest}")


@click.command()
@store_argument
@click.argument("queue")
@tenant_options
@as_json_option
def resume(store: str, queue: str, tenant: str, all_tenants: bool, as_json: bool) -> None:
    """Undo 'pause'; waiting claims are served at once.

    Without a tenant it also undoes a pause of the whole queue, as of the dashboard or by
    'pause --all-tenants'. With --all-tenants it also undoes those of single tenants.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name.
        tenant: whose queue; "" for none.
        all_tenants: the queues of this name of all tenants.
        as_json: print JSON lines instead of a table.
    """

    async def do() -> LeftOut | None:
        async with writing(store) as engine:
            await refuse_misspelt_queue(engine, queue, tenant, is_all=all_tenants)
            if not await queue_of(engine, queue, tenant, all_tenants).resume():
                return None
            found = await seen_queues(engine) or {}
            rest = [f"{t!r}" for (q, t), one in found.items() if q == queue and one.is_paused]
            if tenant or not rest:
                return NOBODY
            named = ", ".join(rest[:_NAMES_MAX]) + (", …" if len(rest) > _NAMES_MAX else "")
            click.echo(
                f"note: tenants paused one by one stay paused: {shown(named)}; to resume them "
                f"as well: lodeq resume {shown(store)} {queue} --all-tenants",
                err=True,
            )
            return LeftOut(len(rest))

    others = run(do)
    if others is None:
        click.echo(
            f"error: {queue} is still paused, for all tenants; to resume it: "
            f"lodeq resume {shown(store)} {queue} --all-tenants",
            err=True,
        )
        raise SystemExit(_STILL_PAUSED)
    if as_json:
        print_json([{"queue": queue, "resumed": True, **others.json}])
    else:
        print_line(f"{queue} resumed{_whom(tenant, all_tenants)}")


def _whom(tenant: str, all_tenants: bool) -> str:
    if all_tenants:
        return " for all tenants"
    return f" for tenant {shown(repr(tenant))}" if tenant else ""
