"""``doctor``: is this machine fit for a store, and which settings follow from what it is."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any, Final

import click

from ....engine.files.ballast import free_space_of
from ....engine.files.disk_errors import is_full
from ....engine.files.paths import is_rocksdb, list_layout, normal_path, shard_path
from ....engine.files.served_note import Note, find_served
from ....engine.recovery.health import has_inodes
from ....errors import LodeqError, OpenError, StorageFullError
from ..connection import Folder, Silent, asked, reading, run
from ..display import as_json_option, print_json, print_rows
from ..fitness import BAD, OK, WARN, Check, Fsync, checks, time_fsync
from ..output import Column, shown

__all__ = ["doctor"]

_NOT_FIT: Final = 1
_COLUMNS: Final = (
    Column("check", 11, 14), Column("verdict", 7, 7), Column("found", 20, 60),
    Column("advice", 10, 100),
)  # fmt: skip


@click.command()
@click.argument("path", type=Folder(), default=".")
@as_json_option
def doctor(path: str, as_json: bool) -> None:
    """Check whether PATH, and this machine, are fit for a store, and what an fsync costs here.

    PATH is a store, or where one is to be. Tries a few things in a folder of its own there, and
    removes it. Exit code 1: something is not fit.
    """
    root = normal_path(path)
    folder = root
    in_the_way = None
    while not os.path.isdir(folder):
        in_the_way = folder if os.path.lexists(folder) else in_the_way
        folder = os.path.dirname(folder)  # where it would be made
    # Beside a store, not in it: nothing of ours is left there, whatever happens.
    is_store = is_rocksdb(shard_path(root, 0))
    beside = os.path.dirname(folder) if is_store and _is_same_disk(folder) else folder
    work, cost = "", None
    try:
        work = tempfile.mkdtemp(prefix="lodeq-doctor-", dir=beside)
        cost = time_fsync(work)
        found = [*_of_path(in_the_way), *checks(folder, work, cost)]
    except OSError as exc:
        if is_full(exc):
            if not has_inodes(beside):
                raise StorageFullError(
                    f"{beside} has no inodes left for the checks: remove some files"
                ) from exc
            raise StorageFullError(
                f"{beside} has no space for the checks, {free_space_of(beside).free:,} bytes are "
                "free: free some disk space"
            ) from exc
        if work:
            raise
        found = [*_of_path(in_the_way), _of_refusal(beside, exc), *checks(folder, "", None)]
    finally:
        if work:
            shutil.rmtree(work, ignore_errors=True)
    if is_store:
        found += _of_store(root)
    advice = None if cost is None else _settings(cost)
    _print(root, found, cost, advice, as_json=as_json)
    if any(check.verdict == BAD for check in found):
        raise click.exceptions.Exit(_NOT_FIT)


def _is_same_disk(folder: str) -> bool:
    parent = os.path.dirname(folder)
    return os.stat(folder).st_dev == os.stat(parent).st_dev and os.access(parent, os.W_OK)


def _of_path(in_the_way: str | None) -> list[Check]:
    if in_the_way is None:
        return []
    found = f"{shown(in_the_way)} is not a folder"
    return [Check("path", BAD, found, "a store is a folder: choose another path")]


def _of_refusal(folder: str, exc: OSError) -> Check:
    """A folder that cannot be written: it is read-only, or another user's."""
    found = f"user {os.geteuid()} cannot write to {shown(folder)}: {exc.strerror}"
    advice = "run as the owner of the store, or choose another path"
    return Check("folder", BAD, found, f"{advice}; disk and fsync were not tried")


def _of_store(root: str) -> list[Check]:
    found = []
    try:
        shards = len(list_layout(root).shards)
        found.append(Check("store", OK, f"{shards} shards"))

        async def look() -> str:
            async with reading(root) as engine:
                stats = await engine.stats()
                pending = stats.ready + stats.delayed + stats.waiting
                return f"{pending:,} tasks wait, {stats.dead:,} dead letters"

        found.append(Check("contents", OK, run(look)))
    except LodeqError as exc:
        is_damage = not isinstance(exc, OpenError)  # else the error says itself what to do
        advice = "'lodeq verify' it, or restore a backup" if is_damage else ""
        found.append(Check("store", BAD, shown(str(exc)), advice))
    note = find_served(root)
    if note is not None:
        verdict, advice = _of_service(root, note)
        found.append(Check("served", verdict, f"{note.url} by process {note.pid}", advice))
    return found


def _of_service(root: str, note: Note) -> tuple[str, str]:
    """Verdict and advice. A process that is there need not be one that answers."""
    try:
        answer = run(lambda: asked(root, lambda engine: engine.health()))
    except LodeqError as exc:  # it answers, but not us
        return WARN, shown(str(exc))
    if not isinstance(answer, Silent):
        return (OK, "") if answer.ok else (WARN, shown("; ".join(answer.reasons)))
    return WARN, "it does not answer: it is stopped, or its event loop is blocked"


def _settings(cost: Fsync) -> dict[str, Any]:
    """Recommended settings, with the best rates that one caller and many callers can get."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    cores = os.cpu_count() or 1 if affinity is None else len(affinity(0))
    per_s = 1e6 / max(1.0, cost.p50_us)
    return {
        # Shards share one event loop: they buy parallel fsyncs and compactions, no more CPU.
        "shards": 1 if cost.p50_us < 2000 or cores < 4 else 2,
        "durability": "fsync" if cost.p99_us < 50_000 else "nosync",
        "fsync_commits_per_s": round(per_s),
        "fsync_submissions_per_s": round(per_s * 64),
        "cores": cores,
    }


def _print(
    root: str,
    found: Sequence[Check],
    cost: Fsync | None,
    advice: dict[str, Any] | None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        checked = [check._asdict() for check in found]
        fsync = None if cost is None else cost._asdict()
        print_json([{"path": root, "checks": checked, "fsync": fsync, "settings": advice}])
        return
    print_rows(
        _COLUMNS,
        (
            {"check": c.name, "verdict": c.verdict, "found": c.found, "advice": c.advice}
            for c in found
        ),
    )
    if cost is None or advice is None:
        return
    click.echo(
        f"\nsettings: shards={advice['shards']}; durability {advice['durability']!r} costs a "
        f"caller {cost.p50_us / 1000:.2f} ms and allows {advice['fsync_commits_per_s']:,} commits "
        f"a second, of up to 64 submissions each"
        if advice["durability"] == "fsync"
        else f"\nsettings: shards={advice['shards']}; durability 'nosync', and durable=True where "
        f"it matters: an fsync takes up to {cost.p99_us / 1000:.0f} ms here"
    )
