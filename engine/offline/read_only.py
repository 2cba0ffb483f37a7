"""Look into a store that somebody else has open: nothing is written there, and no lock taken.

Every shard is opened over links (``bulk/reader.py``); what its owner has written to its log so far
is replayed in memory. So what is seen of a shard is what it was at a moment, a few milliseconds
ago. Shards are opened one after the other: they are of different moments.

A folder that does not open this way (damage, a hole) is for its owner to recover.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from typing import Final, get_args

from ...errors import (
    CorruptionError,
    FormatTooNewError,
    FormatTooOldError,
    OpenError,
    RecordCorruptError,
    RecoveryRefusedError,
    StorePathError,
)
from ..bulk.reader import open_over
from ..files.disk_errors import path_error
from ..files.lockfile import LockFile
from ..files.paths import is_rocksdb, normal_path, shard_path
from ..records.keyspace import OPEN, STAMP
from ..records.rows import Stamp, decode_open, decode_stamp
from ..recovery.open_shard import Durability, OpenShard, OpenStore
from ..store.rocks import RocksStore
from ..store.rocks_options import SharedMemory

__all__ = ["LookedAt", "look_at"]

_PREFIX: Final = "lodeq-look-"
_MARK: Final = "lock"
_LEFT_MAX: Final = 64  # folders of killed readers removed at once
CACHE_BYTES: Final = 32 << 20
DURABILITIES: Final[tuple[Durability, ...]] = get_args(Durability)  # by their number in the stamp


@dataclass(slots=True)
class LookedAt(OpenStore):
    """A store opened to be read. ``overlay``: the folder of links, removed by ``close``."""

    overlay: str = ""
    mark: LockFile | None = None  # says that the folder is in use

    def close(self) -> None:
        """Close the shards, remove the links. Idempotent. Blocks."""
        for shard in self.shards:
            shard.store.close()
        shutil.rmtree(self.overlay, ignore_errors=True)
        if self.mark is not None:
            self.mark.release()


def look_at(path: str | os.PathLike[str]) -> LookedAt:
    """Open the store (or checkpoint) at ``path`` to be read. Blocks; leaves nothing on failure.

    Raises:
        StorePathError: there is no store, or it cannot be read.
        RecoveryRefusedError: it cannot be read as it is: its owner has to open it first.
        FormatTooNewError, FormatTooOldError: its format is not read.
    """
    root = normal_path(path)
    if not is_rocksdb(shard_path(root, 0)):
        raise StorePathError(f"{root} holds no store: give the folder of one, or of a checkpoint")
    memory = SharedMemory(CACHE_BYTES)
    work, mark = _work_folder(root)
    opened: list[RocksStore] = []
    try:
        opened.append(_open_shard(root, 0, work, memory))
        stamp = _stamp_of(opened[0], root)
        # One by one, so that those before a failure are closed.
        opened += (_open_shard(root, index, work, memory) for index in range(1, stamp.shards))
        shards = [
            OpenShard(index, store, None, _incarnation_of(store), 0, shard_path(root, index))
            for index, store in enumerate(opened)
        ]
        durability = DURABILITIES[stamp.durability]
        return LookedAt(root, stamp.store_id, shards, durability, overlay=work, mark=mark)
    except BaseException as exc:
        for store in opened:
            store.close()
        shutil.rmtree(work, ignore_errors=True)
        mark.release()
        if isinstance(exc, OSError):
            raise path_error(exc, f"{exc.filename or root}: {exc.strerror}") from exc
        if isinstance(exc, CorruptionError) and not isinstance(exc, RecoveryRefusedError):
            raise RecoveryRefusedError(
                f"{root}: what every open reads cannot be read ({exc}): open it with its service, "
                "or 'lodeq repair'"
            ) from exc
        raise


def _work_folder(root: str) -> tuple[str, LockFile]:
    """A folder for links, and the lock that says that it is in use; removes what is left of others.

    Where there is no folder for temporary files, it is in the user's own, in memory, or beside the
    store.
    """
    own = os.environ.get("XDG_RUNTIME_DIR")
    others = [own] if own else []
    for parent in (None, *others, "/dev/shm", os.path.dirname(root)):  # noqa: S108 - as mkdtemp does
        try:
            work = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        except OSError:
            continue
        _remove_left(os.path.dirname(work))
        return work, LockFile.acquire(os.path.join(work, _MARK))
    raise StorePathError(
        "no folder can be written for the links through which a store is read: set TMPDIR to one"
    )


def _remove_left(parent: str) -> None:
    """Remove folders of readers that were killed. One that is at work holds its mark."""
    try:
        names = [name for name in os.listdir(parent) if name.startswith(_PREFIX)]
    except OSError:
        return
    for name in names[:_LEFT_MAX]:
        left = os.path.join(parent, name)
        mark = os.path.join(left, _MARK)
        try:
            if os.lstat(left).st_uid != os.geteuid() or not os.path.isfile(mark):
                continue
            taken = LockFile.acquire(mark)
        except (OSError, OpenError):  # at work, or gone meanwhile
            continue
        shutil.rmtree(left, ignore_errors=True)
        taken.release()


def _open_shard(root: str, index: int, work: str, memory: SharedMemory) -> RocksStore:
    path, folder = shard_path(root, index), os.path.join(work, f"shard{index}")
    os.mkdir(folder, 0o700)
    try:
        db = open_over(path, folder, memory)
    except (FormatTooNewError, FormatTooOldError):
        raise
    except (OpenError, CorruptionError) as exc:
        raise RecoveryRefusedError(
            f"{path} cannot be read as it is ({exc}): open it with its service, or 'lodeq repair'",
            shard=index,
        ) from exc
    return RocksStore(db, folder)


def _stamp_of(store: RocksStore, root: str) -> Stamp:
    raw = store.get(STAMP)
    try:
        stamp = None if raw is None else decode_stamp(raw)
    except RecordCorruptError as exc:
        raise RecoveryRefusedError(f"{root}: its stamp is damaged ({exc})", shard=0) from exc
    if stamp is None or stamp.durability >= len(DURABILITIES):
        raise RecoveryRefusedError(f"{root}: was never opened, or has lost its stamp", shard=0)
    return stamp


def _incarnation_of(store: RocksStore) -> int:
    raw = store.get(OPEN)
    return 0 if raw is None else decode_open(raw)
