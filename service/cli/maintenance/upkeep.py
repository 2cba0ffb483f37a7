"""``init``, ``verify``, ``repair``, ``backup``, ``restore``, ``compact``: the store as a whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import click

from ....engine.files.lockfile import LockFile, without_cure
from ....engine.files.paths import (
    SHARDS_MAX,
    is_rocksdb,
    lock_path,
    normal_path,
    only_journal,
    shard_path,
)
from ....engine.recovery.checkpoint import MANIFEST, check_files, read_manifest
from ....engine.recovery.checkpoint import restore as restore_checkpoint
from ....engine.recovery.open_shard import open_store
from ....engine.runtime.task_id import TaskId
from ....engine.store.upkeep import compact as compact_shard
from ....engine.store.upkeep import figures_of
from ....engine.values import Finding
from ....errors import CorruptionError, LockedError, StorePathError
from ....repository.api.open import open_engine
from ....repository.api.view import view_of
from ..commands.queues import yes_option
from ..connection import (
    LIMITS,
    Folder,
    check_store,
    confirm,
    folder_argument,
    is_url,
    reading,
    run,
    store_argument,
    writing,
)
from ..display import as_json_option, print_json, print_line, print_rows, size
from ..output import Column, shown
from ..progress import Steps
from .repair import repair_by_plan

__all__ = ["backup", "compact", "init", "repair", "restore", "verify"]

_DAMAGED: Final = 1
_FINDINGS: Final = (
    Column("shard", 5, 5, is_number=True), Column("kind", 8, 20), Column("task", 4, 36),
    Column("detail", 20, 120),
)  # fmt: skip


@click.command()
@folder_argument
@click.option("--shards", type=click.IntRange(1, SHARDS_MAX), default=1, show_default=True)
@click.option(
    "--durability",
    type=click.Choice(["nosync", "fsync"]),
    default="nosync",
    show_default=True,
    help="nosync: what is acknowledged survives the process; fsync: a power cut, too.",
)
@as_json_option
def init(store: str, shards: int, durability: Any, as_json: bool) -> None:
    """Create a store. STORE must not exist or be empty; the number of shards is fixed from then on.

    Args:
        store: the folder to create.
        shards: 1 to 4096.
        durability: ``nosync`` or ``fsync``.
        as_json: print one object instead of a line.
    """
    root = normal_path(store)
    if is_rocksdb(shard_path(root, 0)):
        raise StorePathError(f"{store!r} is a store already: choose another path")

    async def make() -> None:
        async with open_engine(root, shards=shards, durability=durability):
            pass

    run(make)
    if as_json:
        print_json([{"path": root, "shards": shards, "durability": durability}])
    else:
        print_line(f"created {shown(root)}: shards {shards}, durability {durability}")


# -- checking --------------------------------------------------------------------------


@click.command()
@store_argument
@as_json_option
def verify(store: str, as_json: bool) -> None:
    """Check every row against every rule, and read every payload. Writes nothing.

    It works on a store that a service holds, and on a checkpoint, whose files are also checked
    against its manifest. Exit code 1: something is wrong.
    """
    with Steps("verify", None):
        findings = [*_files_of(store), *run(partial(_look, store))]
    _print_findings(findings, as_json=as_json)
    if findings:
        raise click.exceptions.Exit(_DAMAGED)


def _files_of(store: str) -> list[Finding]:
    """Findings in the files of a checkpoint; none for a store or a service."""
    if is_url(store) or not os.path.isfile(os.path.join(store, MANIFEST)):
        return []
    return [Finding(shard, "file", what) for shard, what in check_files(store)]


async def _look(store: str) -> Sequence[Finding]:
    """Verify a store and return the findings.

    The owner of a folder may move a payload, or end its task, after its row was read. So a finding
    of a payload counts only if a second look finds it as well.
    """
    async with reading(store) as engine:
        found = (await engine.verify()).findings
    if is_url(store) or not any(one.kind == "body" for one in found):
        return found
    async with reading(store) as engine:
        again = set((await engine.verify()).findings)
    return [one for one in found if one.kind != "body" or one in again]


def _print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        print_json(_finding_json(finding) for finding in findings)
    elif findings:
        print_rows(_FINDINGS, map(_finding_row, findings))
    else:
        print_line("nothing is wrong")


def _finding_json(finding: Finding) -> dict[str, Any]:
    task_id = finding.task_id
    return {
        "shard": finding.shard,
        "kind": finding.kind,
        "detail": finding.detail,
        "task_id": _id(task_id),
    }


def _finding_row(finding: Finding) -> dict[str, str]:
    return {
        "shard": str(finding.shard),
        "kind": finding.kind,
        "task": _id(finding.task_id) or "",
        "detail": shown(finding.detail),
    }


def _id(task_id: bytes | None) -> str | None:
    if task_id is None:
        return None
    return str(TaskId(task_id)) if len(task_id) == 16 else task_id.hex()


@click.command()
@folder_argument
@click.option("--dry-run", is_flag=True, help="Only print what is wrong.")
@click.option("--plan", type=click.Path(), help="Do what a plan of 'lodeq-spark audit' proposes.")
@yes_option
@as_json_option
def repair(store: str, dry_run: bool, plan: str | None, is_sure: bool, as_json: bool) -> None:
    """Make the rows of a store agree again. Rows that cannot be read are dropped, and reported.

    Nobody may have the store open. Copy its folder first (cp -a): what is dropped is gone.
    With --plan, do only what an audit has proposed.
    Exit code 1: something is still wrong, or (with --dry-run) is wrong.

    Args:
        store: its folder.
        dry_run: only print the findings.
        plan: path of a plan of ``lodeq-spark audit``; None: find out what is wrong.
        is_sure: do not ask first.
        as_json: print JSON.
    """
    if plan is not None and dry_run:
        raise click.UsageError("give --plan or --dry-run, not both: a plan lists what is wrong")
    root = check_store(store)
    if plan is not None:
        if not repair_by_plan(root, plan, is_sure=is_sure, as_json=as_json):
            raise click.exceptions.Exit(_DAMAGED)
        return
    if not dry_run:
        LockFile.check(lock_path(root))  # before anything is said of a store that is at work
    findings = _findings_in(root)
    if dry_run:
        _print_dry_run(findings, as_json=as_json)
        return
    if not findings:
        _print_repair([], [], as_json=as_json)
        return
    for finding in findings[:20]:
        click.echo(f"shard {finding.shard}: {finding.kind}: {shown(finding.detail)}", err=True)
    confirm(f"Repair {len(findings)} findings? What cannot be read is dropped.", is_sure=is_sure)

    async def mend() -> tuple[str, ...]:
        async with open_engine(root, recovery="salvage", reaper=False, limits=LIMITS) as engine:
            return tuple((await engine.stats()).recoveries)

    with Steps("repair", None):
        recoveries = run(mend)
        left = _findings_in(root)
    _print_repair(recoveries, left, as_json=as_json)
    if left:
        raise click.exceptions.Exit(_DAMAGED)


def _print_dry_run(findings: Sequence[Finding], *, as_json: bool) -> None:
    if findings or as_json:
        _print_findings(findings, as_json=as_json)
    else:
        print_line("nothing to repair")
    if findings:
        raise click.exceptions.Exit(_DAMAGED)


def _findings_in(root: str) -> Sequence[Finding]:
    """Findings of a whole store; a shard that cannot be opened for reading is one."""
    try:
        return run(partial(_look, root))
    except CorruptionError as exc:
        return [Finding(getattr(exc, "shard", None) or 0, "unreadable", str(exc))]


def _print_repair(done: Sequence[str], left: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        print_json([{"done": list(done), "left": [_finding_json(one) for one in left]}])
        return
    for text in done:
        print_line(shown(text))
    if left:
        _print_findings(left, as_json=False)
    elif not done:
        print_line("nothing to repair")


# -- copies ----------------------------------------------------------------------------


@click.command()
@store_argument
@click.argument("dest", type=Folder())
@as_json_option
def backup(store: str, dest: str, as_json: bool) -> None:
    """Make a checkpoint of a store at DEST, which must not exist; see 'restore'.

    On the file system of the store it takes no space at first: tables are linked, not copied.
    """
    target = normal_path(dest)

    async def copy() -> None:
        async with writing(store) as engine:
            await engine.checkpoint(target)

    with Steps("backup", None):
        run(copy)
    _print_copy(target, target, "backed up to", as_json=as_json)


@click.command()
@click.argument("checkpoint", type=Folder(exists=True, file_okay=False))
@folder_argument
@as_json_option
def restore(checkpoint: str, store: str, as_json: bool) -> None:
    """Create a store from a checkpoint, and verify every file. Nothing is overwritten."""
    with Steps("restore", None):
        restore_checkpoint(checkpoint, store)
    _print_copy(checkpoint, normal_path(store), "restored to", as_json=as_json)


def _print_copy(checkpoint: str, path: str, done: str, *, as_json: bool) -> None:
    manifest = read_manifest(checkpoint)
    total = sum(file.size_bytes for file in manifest.files)
    summary = {
        "path": path,
        "shards": len(manifest.shards),
        "files": len(manifest.files),
        "bytes": total,
    }
    if as_json:
        print_json([summary])
    else:
        print_line(f"{done} {shown(path)}: {len(manifest.files):,} files, {size(total)}")


@click.command()
@folder_argument
@as_json_option
def compact(store: str, as_json: bool) -> None:
    """Do all upkeep of a store, and rewrite its tables. Nobody may have it open.

    What has expired goes, then body files that nothing needs, then what is deleted in tables. A
    service does so by itself; this is for a store that was just emptied, is to be archived, or is
    only ever opened for moments.
    """
    root = check_store(store)
    before = _bytes_in(root)

    async def tidy() -> None:
        async with open_engine(
            root, limits=LIMITS, journal=only_journal(root), inbox=False
        ) as engine:
            await view_of(engine).upkeep()

    try:
        run(tidy)
        opened = open_store(root)
    except LockedError as exc:
        advice = "a running service compacts by itself"
        raise LockedError(f"{without_cure(str(exc))}; {advice}", pid=exc.pid) from exc
    try:
        with Steps("compact", len(opened.shards)) as steps:
            for shard in opened.shards:
                compact_shard(shard.store)
                steps.step()
        tables = [
            figures.table_bytes
            for shard in opened.shards
            if (figures := figures_of(shard.store)) is not None
        ]
    finally:
        opened.close()
    after = _bytes_in(root)
    if as_json:
        print_json([{"bytes_before": before, "bytes_after": after, "table_bytes": sum(tables)}])
    else:
        print_line(f"{size(before)} before, {size(after)} now")


def _bytes_in(root: str) -> int:
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total
