"""The files of one shard, for whoever places shards: what is to go when it is not hosted any more.

A shard that is removed goes in two steps, of which a kill may leave the first done. Then the store
does not open with it until this is called again, for what lies there is neither a shard nor none.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from .disk_errors import disk_error
from .paths import (
    accepted_path,
    before_path,
    bodies_path,
    copy_path,
    fresh_path,
    fsync_dir,
    shard_path,
    watermark_path,
)

__all__ = ["remove_shard"]


def remove_shard(root: str, shard: int) -> None:
    """Remove what lies of a shard that is not open. Blocks. Idempotent; call it again after a kill.

    What a recovery has replaced and kept as evidence stays.

    Raises:
        StorageError: the disk failed.

    Durability: on return the shard stays removed.
    """
    try:
        shutil.rmtree(copy_path(root, shard), ignore_errors=True)
        with suppress(FileNotFoundError):
            os.rename(shard_path(root, shard), copy_path(root, shard))
        fsync_dir(root)
        with suppress(FileNotFoundError):
            os.unlink(watermark_path(root, shard))
        fsync_dir(root)
    except OSError as exc:
        raise disk_error(exc, root) from exc
    for path in (copy_path, fresh_path, before_path, accepted_path, bodies_path):
        shutil.rmtree(path(root, shard), ignore_errors=True)
