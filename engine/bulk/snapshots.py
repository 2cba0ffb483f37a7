"""Snapshots of a store: what lies in ``<store>/snapshots/`` (docs/snapshots.md).

The engine that has the store open takes and removes them; anybody who may read the folder can list
and read them, and who may write it, pin them (``snapshot_lease``). A snapshot appears in one
rename, with all that is in it, and never changes afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Mapping
from typing import Final

from ...errors import CorruptionError, FormatTooNewError, SnapshotNotFoundError, StorePathError
from ..files.disk_errors import disk_error
from ..files.paths import SHARDS_MAX, fsync_dir, fsync_file, is_rocksdb, shard_path, snapshots_path
from ..values import ShardMark, Snapshot
from .documents import natural, read_document, write_document
from .snapshot_paths import ID, PARTIAL, id_of, ms_of, names_in, names_of, place_of

__all__ = [
    "LATEST",
    "LEASE",
    "LEASE_FORMAT",
    "VERSION",
    "abandon_snapshot",
    "begin_snapshot",
    "find_snapshot",
    "finish_snapshot",
    "list_snapshots",
    "read_snapshot",
]

LATEST: Final = "latest"
MANIFEST: Final = "snapshot.json"
LEASE: Final = "lease.json"
VERSION: Final = 1
LEASE_FORMAT: Final = "lodeq-lease"
_FORMAT: Final = "lodeq-snapshot"
_HEX: Final = re.compile(r"[0-9a-f]{32}")


# -- taking -----------------------------------------------------------------------------------


def begin_snapshot(root: str, now_ms: int) -> str:
    """Make the folder in which a snapshot is put together; returns its path. Blocks.

    Raises:
        StorePathError: what is at ``<root>/snapshots`` is no folder.
        StorageError: the disk failed or is full.
    """
    home = snapshots_path(root)
    try:
        if not os.path.lexists(home):
            os.mkdir(home, 0o700)
            fsync_dir(root)
        elif not stat.S_ISDIR(os.lstat(home).st_mode):
            raise StorePathError(f"{home} is not a folder: remove it")
        while True:  # never the same twice, whatever the clock says
            work = os.path.join(home, id_of(now_ms) + PARTIAL)
            if not any(map(os.path.lexists, names_of(work))):
                os.mkdir(work, 0o700)
                return work
            now_ms += 1
    except OSError as exc:
        raise disk_error(exc, home) from exc


def finish_snapshot(
    work: str,
    *,
    store_id: bytes,
    store_format: int,
    expires_ms: int,
    shards: tuple[ShardMark, ...],
    journals: Mapping[str, int],
) -> Snapshot:
    """Make what ``begin_snapshot`` began whole: sync it, write the manifest, rename. Blocks.

    Args:
        work: the folder that ``begin_snapshot`` made.
        store_id: 16 bytes.
        store_format: the store's format number.
        expires_ms: Unix milliseconds until which the snapshot is kept.
        shards: marks of all shards, ascending.
        journals: each journal's name, with the first number that may be newer than the snapshot.

    Raises:
        StorageError: the disk failed or is full; nothing is there under the snapshot's name.
    """
    path = work.removesuffix(PARTIAL)
    name = os.path.basename(path)
    bodies = tuple(_count(os.path.join(work, f"bodies{mark.shard}")) for mark in shards)
    body = {
        "format": _FORMAT,
        "version": VERSION,
        "id": name,
        "store_id": store_id.hex(),
        "store_format": store_format,
        "created_ms": ms_of(name),
        "expires_ms": expires_ms,
        "shards": [list(mark) for mark in shards],
        "journals": dict(journals),
        "bodies": list(bodies),
    }
    try:
        for name in os.listdir(work):
            _sync(os.path.join(work, name))
        write_document(os.path.join(work, MANIFEST), body)
        os.rename(work, path)
        try:
            fsync_dir(os.path.dirname(path))
        except OSError:
            os.rename(path, work)
            raise
    except OSError as exc:
        raise disk_error(exc, path) from exc
    return _read(path, body)


def abandon_snapshot(work: str) -> None:
    """Remove what ``begin_snapshot`` made, after a failure. Blocks."""
    shutil.rmtree(work, ignore_errors=True)


def _sync(folder: str) -> None:
    """All but the tables: RocksDB has synced those when it wrote them."""
    for name in os.listdir(folder):
        if not name.endswith(".sst"):
            fsync_file(os.path.join(folder, name))
    fsync_dir(folder)


def _count(folder: str) -> int:
    return len(os.listdir(folder)) if os.path.isdir(folder) else 0


# -- reading ----------------------------------------------------------------------------------


def read_snapshot(path: str) -> Snapshot:
    """The snapshot at ``path``.

    Raises:
        CorruptionError: it is not whole, or its manifest is damaged.
        FormatTooNewError: a newer lodeq has taken it.
    """
    body = read_document(os.path.join(path, MANIFEST), _FORMAT, VERSION)
    try:
        snapshot = _read(path, body)
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise CorruptionError(f"{path}: its manifest is damaged ({exc}): take another") from exc
    missing = [m.shard for m in snapshot.shards if not is_rocksdb(shard_path(path, m.shard))]
    if missing:
        raise CorruptionError(f"{path}: shard {missing[0]} is missing: take another snapshot")
    return snapshot


def _read(path: str, body: dict[str, object]) -> Snapshot:
    """Raises whatever: the caller reports that it is damaged."""
    shards = tuple(ShardMark(*map(natural, mark)) for mark in _list(body["shards"]))
    if [mark.shard for mark in shards] != list(range(len(shards))) or not shards:
        raise ValueError("shards are missing")
    journals, store_id = body["journals"], body["store_id"]
    if len(shards) > SHARDS_MAX or not isinstance(journals, dict):
        raise ValueError("too many shards, or no journals")
    if not isinstance(store_id, str) or not _HEX.fullmatch(store_id):
        raise ValueError("not the id of a store")
    bodies = tuple(map(natural, _list(body["bodies"])))
    if len(bodies) != len(shards):
        raise ValueError("body files of another number of shards")
    return Snapshot(
        id=str(body["id"]),
        path=path,
        store_id=bytes.fromhex(store_id),
        store_format=natural(body["store_format"]),
        created_ms=natural(body["created_ms"]),
        expires_ms=_lease_ms(path, natural(body["expires_ms"])),
        shards=shards,
        journals={str(name): natural(at) for name, at in journals.items()},
        bodies=bodies,
    )


def _list(value: object) -> list[list[object]]:
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value


def _lease_ms(path: str, first_ms: int) -> int:
    """A damaged lease is none: what it extended is then kept for as long as was first asked."""
    file = os.path.join(path, LEASE)
    if not os.path.lexists(file):
        return first_ms
    try:
        return natural(read_document(file, LEASE_FORMAT, VERSION)["expires_ms"])
    except (CorruptionError, KeyError, ValueError):
        return first_ms


def list_snapshots(root: str) -> list[Snapshot]:
    """Those of the store at ``root`` that are whole and can be read, oldest first. Blocks.

    Raises ``StorageError`` if they cannot be listed.
    """
    return _look(root)[0]


def _look(root: str) -> tuple[list[Snapshot], FormatTooNewError | None]:
    """Those that can be read, oldest first, and why the newest that a newer lodeq took cannot."""
    found = []
    too_new: FormatTooNewError | None = None
    for name in names_in(root):
        if ID.fullmatch(name):
            try:
                found.append(read_snapshot(os.path.join(snapshots_path(root), name)))
            except CorruptionError:
                continue  # not whole, or removed meanwhile
            except FormatTooNewError as exc:
                too_new = exc
    return found, too_new


def find_snapshot(root: str, id: str = LATEST) -> Snapshot:
    """The snapshot of that id, or the ``latest`` that can be read. Blocks.

    Raises:
        SnapshotNotFoundError: there is none of that id, or none at all.
        CorruptionError: it is damaged.
        FormatTooNewError: a newer lodeq has taken it, or all that are whole.
    """
    if id == LATEST:
        whole, too_new = _look(root)
        if whole:
            return whole[-1]
        if too_new is not None:
            raise too_new
        raise SnapshotNotFoundError(f"{root} has no snapshot: take one with engine.snapshot()")
    return read_snapshot(place_of(root, id))
