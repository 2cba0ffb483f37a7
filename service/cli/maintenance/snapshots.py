"""``snapshot``, ``snapshots``, ``release-snapshot``: copies of a store for those who read it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import anyio.to_thread
import click

from ....engine.bulk.snapshots import list_snapshots
from ....engine.values import Snapshot
from ..commands.queues import yes_option
from ..connection import check_store, confirm, is_url, reading, run, store_argument, writing
from ..display import as_json_option, print_json, print_line, print_rows
from ..output import Column, shown
from ..values import duration

__all__ = ["release_snapshot", "snapshot", "snapshots"]

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MS_MAX: Final = 253_402_300_799_000  # the end of the year 9999: a pin may say more
_COLUMNS: Final = (
    Column("id", 19, 19), Column("kept until", 20, 20), Column("shards", 6, 6, is_number=True),
    Column("path", 4, 200),
)  # fmt: skip


@click.command()
@store_argument
@click.option("--keep", type=duration, default="1h", show_default=True, help="How long to keep it.")
@as_json_option
def snapshot(store: str, keep: float, as_json: bool) -> None:
    """Take a copy of every shard for others to read, and print its id.

    It lies in the store's folder and shares its files: it takes disk space once the store has moved
    on. For a backup use 'backup'.
    """

    async def take() -> Snapshot:
        async with writing(store) as engine:
            return await engine.snapshot(keep=keep)

    taken = run(take)
    if as_json:
        print_json([_json(taken)])
    else:
        print_line(taken.id)


@click.command()
@store_argument
@as_json_option
def snapshots(store: str, as_json: bool) -> None:
    """List the snapshots that are whole, oldest first; the last is the latest."""

    async def look() -> list[Snapshot]:
        if is_url(store):
            async with reading(store) as engine:
                return await engine.snapshots()
        return await anyio.to_thread.run_sync(partial(list_snapshots, check_store(store)))

    found = run(look)
    if as_json:
        print_json(map(_json, found))
    else:
        print_rows(_COLUMNS, map(_row, found))


@click.command("release-snapshot")
@store_argument
@click.argument("id")
@yes_option
@as_json_option
def release_snapshot(store: str, id: str, is_sure: bool, as_json: bool) -> None:
    """Remove a snapshot, even one that is to be kept for longer. Its readers get an error.

    Args:
        store: a store's folder, or the address of a service.
        id: of the snapshot.
        is_sure: do not ask first.
        as_json: print JSON lines instead of a table.
    """
    confirm(f"Remove the snapshot {shown(id)}? Who reads it meets an error.", is_sure=is_sure)

    async def release() -> None:
        async with writing(store) as engine:
            await engine.release_snapshot(id)

    run(release)
    if as_json:
        print_json([{"id": id, "released": True}])
    else:
        print_line(f"{shown(id)} released")


def _json(one: Snapshot) -> dict[str, Any]:
    document = {name: value for name, value in asdict(one).items() if not name.endswith("_ms")}
    return {
        **document,
        "store_id": one.store_id.hex(),
        "created_at": _moment(one.created_ms),
        "expires_at": _moment(one.expires_ms),
    }


def _row(one: Snapshot) -> dict[str, str]:
    return {
        "id": one.id,
        "kept until": f"{_moment(one.expires_ms):%Y-%m-%dT%H:%M:%SZ}",
        "shards": str(len(one.shards)),
        "path": shown(one.path),
    }


def _moment(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(ms, _MS_MAX))
