"""One shard of a checkpoint becomes the shard of another store, which may be open without it.

As ``checkpoint.restore``, nothing is believed: files are checksummed while they are copied beside
the store, and the shard appears there by renames, its watermark first and the rows last. Who is
killed in between finds files of a shard that nobody has noted, and removes them.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from ...errors import CorruptionError
from ..files.disk_errors import disk_error
from ..files.paths import (
    bodies_path,
    fsync_dir,
    make_root,
    normal_path,
    shard_path,
    watermark_path,
)
from ..files.shard_files import remove_shard
from .checkpoint import copy_verified, read_manifest
from .watermark import Watermark

__all__ = ["copy_shard", "restore_shard"]


def copy_shard(checkpoint: str | os.PathLike[str], work: str, shard: int) -> None:
    """Copy one shard of a checkpoint into the folder ``work``, which must not exist. Blocks.

    Raises:
        CorruptionError: the checkpoint is damaged, or does not have this shard.
        StorageError: the disk failed or is full.
    """
    source = normal_path(checkpoint)
    manifest = read_manifest(source)
    mark = next((one for one in manifest.shards if one.shard == shard), None)
    if mark is None:
        raise CorruptionError(f"{source} has no shard {shard}: use another checkpoint")
    try:
        make_root(work)
        os.mkdir(shard_path(work, shard), 0o700)
        folders = {os.path.basename(shard_path(work, shard))}
        for file in manifest.files:
            folder = os.path.dirname(file.name)
            if folder not in {f"shard{shard}", f"bodies{shard}"}:
                continue
            if folder not in folders:
                folders.add(folder)
                os.mkdir(os.path.join(work, folder), 0o700)
            copy_verified(os.path.join(source, file.name), os.path.join(work, file.name), file)
        for folder in folders:
            fsync_dir(os.path.join(work, folder))
        Watermark.create(
            watermark_path(work, shard),
            shard=shard,
            store_id=manifest.store_id,
            incarnation=mark.incarnation,
            commit_seq=0,
        ).close()
        fsync_dir(work)
    except OSError as exc:
        raise disk_error(exc, work) from exc


def restore_shard(work: str, root: str, shard: int) -> None:
    """Put the shard that lies in ``work`` into the store at ``root``, in place of what is there.

    Blocks. Nobody may have that shard open.
    """
    remove_shard(root, shard)
    try:
        for place in (watermark_path, bodies_path, shard_path):
            with suppress(FileNotFoundError):
                os.rename(place(work, shard), place(root, shard))
        fsync_dir(root)
    except OSError as exc:
        raise disk_error(exc, root) from exc
    shutil.rmtree(work, ignore_errors=True)
