"""How long a snapshot is kept, and its end.

A snapshot leaves in one rename, and only then is anything in it removed. Whoever extends the lease
meanwhile either comes first, and the remover sees it and puts the folder back, or finds none. Files
are links: removing a snapshot frees what nothing else links, and the store never notices.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from ...errors import (
    CorruptionError,
    FormatTooNewError,
    SnapshotNotFoundError,
    StorageError,
    UsageError,
)
from ..files.disk_errors import disk_error
from ..files.paths import snapshots_path
from ..values import Snapshot
from .documents import write_document
from .snapshot_paths import ID, PARTIAL, REMOVING, names_in, place_of
from .snapshots import LEASE, LEASE_FORMAT, VERSION, find_snapshot, read_snapshot

__all__ = ["abandoned_snapshots", "pin_snapshot", "prune_snapshots", "release_snapshot"]


def pin_snapshot(root: str, id: str, until_ms: int) -> Snapshot:
    """Keep a snapshot until then, or for as long as it is kept already. Blocks.

    ``latest`` stands for the one that is the latest now. From any process that may write there.

    Raises:
        UsageError: ``until_ms`` is no time.
        SnapshotNotFoundError: it is not there, or has just lapsed.
        StorageError: the lease could not be written.
    """
    if type(until_ms) is not int or not 0 <= until_ms < 1 << 63:
        raise UsageError(f"until_ms is milliseconds since 1970-01-01 UTC, not {until_ms!r}")
    snapshot = find_snapshot(root, id)
    try:
        with _alone(snapshot.path):
            until_ms = max(until_ms, read_snapshot(snapshot.path).expires_ms)
            body = {"format": LEASE_FORMAT, "version": VERSION, "expires_ms": until_ms}
            write_document(os.path.join(snapshot.path, LEASE), body)
    except (FileNotFoundError, CorruptionError) as exc:
        if isinstance(exc, CorruptionError) and os.path.isdir(snapshot.path):
            raise
        raise SnapshotNotFoundError(f"snapshot {snapshot.id} has just been removed") from None
    except OSError as exc:
        raise disk_error(exc, snapshot.path) from exc
    if not os.path.isdir(snapshot.path):
        raise SnapshotNotFoundError(f"snapshot {snapshot.id} has just been removed")
    return read_snapshot(snapshot.path)


@contextmanager
def _alone(path: str) -> Iterator[None]:
    """One after another: of two who pin, the one who writes last must not shorten the other's."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def release_snapshot(root: str, id: str) -> None:
    """Remove a snapshot, whoever has it pinned. Blocks.

    Raises:
        SnapshotNotFoundError: it is not there.
        StorageError: it could not be removed.
    """
    path = place_of(root, id)
    gone = path + REMOVING
    try:
        os.rename(path, gone)
    except FileNotFoundError:
        raise SnapshotNotFoundError(f"snapshot {id} has just been removed") from None
    except OSError as exc:
        raise disk_error(exc, path) from exc
    shutil.rmtree(gone, ignore_errors=True)  # what is left goes at the engine's next look


def abandoned_snapshots(root: str) -> list[str]:
    """Remove snapshots that a dead process left half taken. The caller holds the store's lock."""
    return [
        name
        for name in names_in(root)
        if name.endswith(PARTIAL) and ID.fullmatch(name.removesuffix(PARTIAL))
    ]


def prune_snapshots(root: str, now_ms: int, *, abandoned: Collection[str] = ()) -> list[str]:
    """Remove those that have lapsed, and ``abandoned`` ones; returns the ids that lapsed. Blocks.

    For whoever has the store open. What cannot be removed is left for the next time.

    Raises ``StorageError`` if they cannot be listed.
    """
    lapsed = []
    for name in names_in(root):
        path = os.path.join(snapshots_path(root), name)
        if name in abandoned or _is_leaving(name):
            shutil.rmtree(path, ignore_errors=True)
        elif ID.fullmatch(name) and _has_lapsed(path, now_ms):
            gone = path + REMOVING
            try:
                os.rename(path, gone)
                if not _has_lapsed(gone, now_ms):  # pinned in this very moment
                    os.rename(gone, path)
                    continue
            except OSError:
                continue
            shutil.rmtree(gone, ignore_errors=True)
            lapsed.append(name)
    return lapsed


def _is_leaving(name: str) -> bool:
    return name.endswith(REMOVING) and bool(ID.fullmatch(name.removesuffix(REMOVING)))


def _has_lapsed(path: str, now_ms: int) -> bool:
    """One that is damaged, or newer than we know, is left for an operator to look at."""
    try:
        return read_snapshot(path).expires_ms <= now_ms
    except (CorruptionError, FormatTooNewError, StorageError):
        return False
