"""Make a plain store of a replica: its log is left behind, its rows stay.

A store that holds entries of a replicated log is not opened without its replicator: what it would
write there no other replica knows, and it could not go on with the log afterwards. Whoever wants
that (the cluster is given up; a checkpoint of a replica is to be looked into) says so first.
"""

from __future__ import annotations

import os
from typing import Literal

from ...engine.files.disk_errors import disk_error
from ...engine.files.paths import check_root, fsync_dir, normal_path
from ...engine.recovery.incarnation import sync_all
from ...engine.recovery.open_shard import open_store
from ...errors import StorePathError
from ...segments.bodies.find import BodyFolder
from .body_flags import flag_bodies

__all__ = ["detach"]

REPLICA_NOTE = "replica.json"  # of the replication layer, see replication/replica_note.py


def detach(
    path: str | os.PathLike[str], *, recovery: Literal["strict", "salvage"] = "strict"
) -> None:
    """Make the replica at ``path`` a store of its own, which opens without a replicator. Blocks.

    It cannot go on with its log afterwards: another replica is made from a checkpoint of one that
    can. A store that is no replica stays as it is.

    Raises:
        OpenError: there is no store, it is open, or it has a format that is not read.
        RecoveryRefusedError: durable commits are missing; nothing was changed. With
            ``recovery="salvage"`` it goes on with what is left, as ``open`` does.
        StorageFullError, StorageError: the disk failed. Call it again.

    Durability: on return it survives a power cut. Killed meanwhile, it is called again.
    """
    root = normal_path(path)
    if not check_root(root):
        raise StorePathError(f"{root} does not exist")
    opened = open_store(root, recovery=recovery, bodies=BodyFolder, is_detached=True)
    try:
        stores = [shard.store for shard in opened.shards]
        for store in stores:
            flag_bodies(store, is_flagged=True)
        sync_all(stores)
    finally:
        opened.close()
    note = os.path.join(root, REPLICA_NOTE)
    if os.path.exists(note):
        try:
            os.unlink(note)  # else a node would take the store for a replica that begins anew
        except OSError as error:
            raise disk_error(error, note) from error
        fsync_dir(root)
