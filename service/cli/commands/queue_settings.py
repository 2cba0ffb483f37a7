"""`queue set` and `queue show`: what is durable of a queue: rate, concurrency, history, faces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from ....errors import UsageError
from ....repository.model.queue_settings import SETTING_NAMES, QueueSettings
from ..connection import reading, run, store_argument, writing
from ..display import as_json_option, print_line, print_rows
from ..output import Column, shown
from ..values import duration

__all__ = ["queue"]

_COLUMNS: Final = (
    Column("setting", 8, 16),
    Column("value", 5, 24),
    Column("set by", 6, 64),
)
_NONE: Final = ("none", "default")
_SWITCH: Final = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


@click.group()
def queue() -> None:
    """Settings of a queue that are stored with it."""


@queue.command("set")
@store_argument
@click.argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="SETTING=VALUE…")
@click.option("--by", default="operator", show_default=True, help="Who sets it; kept with it.")
@as_json_option
def _set(store: str, name: str, settings: Sequence[str], by: str, as_json: bool) -> None:
    """Set what is durable of a queue, for all its tenants: it holds at once.

    rate=10/s (or 100/m, 3/10s), concurrency=8, key_concurrency=2/customer (leases at once for each
    value of the label customer), history=7d, history_rows=N, history_bytes=N, dead_max=N,
    dead_bytes=N, faces=off. VALUE 'none' takes a setting back.
    """
    changes = dict(map(_change, settings))
    if len(changes) < len(settings):
        raise UsageError("a setting is named twice")

    async def main() -> QueueSettings:
        async with writing(store) as engine:
            return await engine.configure(name, by=by, **changes)

    _print(run(main), as_json=as_json)


@queue.command("show")
@store_argument
@click.argument("name")
@as_json_option
def _show(store: str, name: str, as_json: bool) -> None:
    """Show what is set for a queue, and who has set it."""

    async def main() -> QueueSettings:
        async with reading(store) as engine:
            return await engine.settings(name)

    _print(run(main), as_json=as_json)


def _change(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if name not in SETTING_NAMES or not sign:
        raise UsageError(
            f"expected NAME=VALUE with one of {', '.join(SETTING_NAMES)}, got {text!r}"
        )
    if value in _NONE or name in ("rate", "key_concurrency"):
        return name, None if value in _NONE else value
    if name == "history":
        return name, duration(value)
    if name == "faces":
        if value not in _SWITCH:
            raise UsageError(f"expected faces=on or faces=off, got {text!r}")
        return name, _SWITCH[value]
    try:
        return name, int(value)
    except ValueError as exc:
        raise UsageError(f"expected {name}=N with a whole number, got {text!r}") from exc


def _print(found: QueueSettings, *, as_json: bool) -> None:
    if as_json:
        print_line(json.dumps(asdict(found)))
        return
    rows = [
        {"setting": name, "value": _text(name, value), "set by": shown(found.by.get(name, ""))}
        for name in SETTING_NAMES
        if (value := getattr(found, name)) is not None
    ]
    if rows:
        print_rows(_COLUMNS, rows)
    else:
        print_line(f"{found.queue}: nothing is set, defaults hold")


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}s" if name == "history" and isinstance(value, float) else str(value)
