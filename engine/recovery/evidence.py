"""Evidence: files that recoveries have replaced, kept for a while for whoever looks into it.

A folder ``shard<i>.refused-…`` is a shard as an open found it. Its tables are hard links: beside a
store that lives on each such folder would soon pin a generation of tables of its own. So a table
that the shard still has is not kept a second time, and what is left is kept within three limits a
shard: in number, in bytes, in age. The newest of a shard is only given up for its age, and none in
the open that made it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from ..files.paths import shard_path

__all__ = ["AGE_MS_MAX", "BYTES_MAX", "GENERATIONS_MAX", "list_evidence", "prune"]

GENERATIONS_MAX: Final = 8
BYTES_MAX: Final = 64 << 20
AGE_MS_MAX: Final = 30 * 86_400_000

_NAME = re.compile(r"shard(0|[1-9][0-9]{0,3})\.refused-([0-9.]+)")
_log: Final = logging.getLogger(__name__)


class _Kept(NamedTuple):
    """One folder. Ordered by shard, then from the oldest to the newest."""

    shard: int
    number: tuple[int, ...]
    name: str


def list_evidence(root: str) -> list[str]:
    """Names of the folders, shard by shard, each from the oldest to the newest."""
    return [kept.name for kept in _list(root)]


def _list(root: str) -> list[_Kept]:
    found = []
    for name in os.listdir(root):
        if match := _NAME.fullmatch(name):
            number = tuple(int(part) for part in match[2].split(".") if part)
            found.append(_Kept(int(match[1]), number, name))
    return sorted(found)


def prune(
    root: str,
    *,
    before: Collection[str],
    now_ms: int,
    hosts: Callable[[int], bool] | None = None,
) -> None:
    """Give up what is beyond the limits, and say so in the log. Blocks.

    What cannot be removed stays, and is no reason not to open.

    Args:
        root: the folder of an open store.
        before: names of the evidence that was there when the open began.
        now_ms: wall time, milliseconds.
        hosts: whether a shard is looked at; None: all are.
    """
    shards: dict[int, list[_Kept]] = {}
    for kept in reversed(_list(root)):
        if hosts is not None and not hosts(kept.shard):
            continue
        shards.setdefault(kept.shard, []).append(kept)
    for shard, generations in shards.items():
        try:
            _prune_shard(root, shard, generations, before, now_ms)
        except OSError as exc:
            fields = {"event": "evidence_kept", "path": exc.filename, "detail": exc.strerror}
            _log.warning("%r cannot be removed: %r", exc.filename, exc.strerror, extra=fields)


def _prune_shard(
    root: str, shard: int, generations: Sequence[_Kept], before: Collection[str], now_ms: int
) -> None:
    """Those of one shard, the newest first."""
    held: dict[int, int] = {}  # bytes by inode: a link to the same table costs nothing
    for rank, kept in enumerate(generations):
        path = os.path.join(root, kept.name)
        if kept.name not in before:
            os.utime(path, ns=(now_ms * 1_000_000, now_ms * 1_000_000))
        _slim(path, shard_path(root, shard))
        held |= _sizes(path)
        why = ""
        if now_ms - os.stat(path).st_mtime_ns // 1_000_000 > AGE_MS_MAX:
            why = f"older than {AGE_MS_MAX // 86_400_000} days"
        elif rank >= GENERATIONS_MAX:
            why = f"more than {GENERATIONS_MAX} of a shard"
        elif rank and sum(held.values()) > BYTES_MAX:
            why = f"more than {BYTES_MAX >> 20} MiB of a shard"
        if why and kept.name in before:
            shutil.rmtree(path)
            fields = {"event": "evidence_removed", "path": path, "detail": why}
            _log.info("removed %r: %r", path, why, extra=fields)


def _slim(path: str, live: str) -> None:
    """Remove tables that the shard itself has, and old logs of RocksDB's own; the time stays."""
    info = os.stat(path)
    names = os.listdir(path)
    useless = sorted(name for name in names if name.startswith("LOG.old."))[:-1]
    useless += [
        name
        for name in names
        if name.endswith(".sst")
        and _inode(os.path.join(path, name)) == _inode(os.path.join(live, name))
    ]
    if useless:
        for name in useless:
            os.unlink(os.path.join(path, name))
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def _inode(path: str) -> tuple[int, int] | None:
    try:
        info = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return info.st_dev, info.st_ino


def _sizes(path: str) -> dict[int, int]:
    with os.scandir(path) as entries:
        infos = [entry.stat(follow_symlinks=False) for entry in entries]
    return {info.st_ino: info.st_size for info in infos}
