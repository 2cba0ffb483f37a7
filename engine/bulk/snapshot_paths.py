"""How snapshots are called, and where they lie; what is there is not opened."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from ...errors import SnapshotNotFoundError
from ..files.disk_errors import disk_error
from ..files.paths import snapshots_path
from ..values import spelled

__all__ = [
    "ID",
    "PARTIAL",
    "REMOVING",
    "id_of",
    "ms_of",
    "names_in",
    "names_of",
    "place_of",
]

PARTIAL, REMOVING = ".partial", ".removing"
ID: Final = re.compile(r"[0-9]{8}T[0-9]{9}Z")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def names_in(root: str) -> list[str]:
    """Names of all that lies in the folder of snapshots, in order. Raises ``StorageError``."""
    try:
        return sorted(os.listdir(snapshots_path(root)))
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise disk_error(exc, root) from exc


def place_of(root: str, id: str) -> str:
    """Where the snapshot of that id lies; ``SnapshotNotFoundError`` if it does not."""
    is_id = isinstance(id, str) and ID.fullmatch(id) is not None
    path = os.path.join(snapshots_path(root), id if is_id else "")
    if not is_id or not os.path.isdir(path):
        known = [name for name in names_in(root) if ID.fullmatch(name)]
        raise SnapshotNotFoundError(
            f"{root} has no snapshot {spelled(id)}, it may have lapsed; there are: "
            f"{known or 'none'}"
        )
    return path


def names_of(work: str) -> tuple[str, ...]:
    """Every name that what is taken at ``work`` will have."""
    path = work.removesuffix(PARTIAL)
    return path, work, path + REMOVING


def id_of(now_ms: int) -> str:
    """Id of a snapshot that is begun at ``now_ms``."""
    at = _EPOCH + timedelta(milliseconds=now_ms)
    return f"{at:%Y%m%dT%H%M%S}{now_ms % 1000:03d}Z"


def ms_of(id: str) -> int:
    """When the snapshot of that id was begun."""
    at = datetime.fromisoformat(id[:15] + "+0000")
    return (at - _EPOCH) // timedelta(milliseconds=1) + int(id[15:18])
