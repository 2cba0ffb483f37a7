"""Make a replica of a plain store: the one that a replicated store begins with.

The rows stay as they are. To the log they are the outcome of entries up to an index that it never
had, so every other replica starts from a copy of this one. See ``detach`` for the way back.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ...engine.bulk.inbox import pending
from ...engine.files.paths import check_root, normal_path
from ...engine.records.keyspace import APPLIED
from ...engine.records.rows import Applied, encode_applied
from ...engine.recovery.incarnation import sync_all
from ...engine.recovery.open_shard import open_store
from ...engine.store.port import write_patiently
from ...errors import StorePathError, UsageError
from ...segments.bodies.find import BodyFolder
from .body_flags import flag_bodies

__all__ = ["attach"]


def attach(path: str | os.PathLike[str], index: int, *, note: Callable[[int], None]) -> int:
    """Have the closed store at ``path`` go on behind entry ``index`` of a log. Blocks.

    Args:
        path: the store's folder.
        index: of the last entry, in every shard; 1 or more.
        note: called with the number of shards once the store is open, before it is changed.

    Returns: the number of shards.

    Raises:
        OpenError: there is no store, it is open, or it is a replica already.
        UsageError: loads wait in its inbox; nothing was changed.
        RecoveryRefusedError: durable commits are missing; nothing was changed.
        StorageFullError, StorageError: the disk failed. Call ``detach``, then this again.

    Durability: on return it survives a power cut. Killed meanwhile, some of the shards are those
    of a replica: call ``detach``, then this again.
    """
    root = normal_path(path)
    if not check_root(root):
        raise StorePathError(f"{root} does not exist")
    loads = pending(root)
    if loads:
        raise UsageError(
            f"{len(loads)} loads wait in the inbox of {root}, the first is {loads[0]!r}: open the "
            "store once, which takes them in, or remove them"
        )
    opened = open_store(root, bodies=BodyFolder)
    try:
        stores = [shard.store for shard in opened.shards]
        note(len(stores))
        for store in stores:
            write_patiently(store, [(APPLIED, encode_applied(Applied(0, index)))])
        sync_all(stores)  # from here on it opens as a replica, or after a detach, which sets flags
        for store in stores:
            flag_bodies(store, is_flagged=False)
        sync_all(stores)
    finally:
        opened.close()
    return len(stores)
