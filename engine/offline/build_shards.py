"""A new store out of files of rows: made beside where it is to be, and whole before it is there.

``Blueprint`` is what all shards share. A shard gets its stamp, its incarnation, the ring row that
says how far ``seq`` has come, whatever else is given, and the files, by move. Its watermark then
promises exactly that, so an open finds nothing to mend.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from ..files.paths import fsync_dir, fsync_file, shard_path, watermark_path
from ..records import keyspace as ks
from ..records.rows import Stamp, encode_open, encode_ring
from ..recovery.decide import NUMBER_BITS
from ..recovery.dedup_secret import stamp_ops
from ..recovery.watermark import Watermark
from ..store.port import Op, write_patiently
from ..store.rocks import RocksStore
from ..store.rocks_options import SharedMemory

__all__ = ["Blueprint", "build_shard"]

_CACHE_BYTES: Final = 64 << 20


class Blueprint(NamedTuple):
    """``incarnation``: above all that rows speak of. ``seq``: none of them has a greater one.

    ``secret``: what the dedup hashes of all rows are keyed with.
    """

    store_id: bytes
    shards: int
    durability: int
    incarnation: int
    seq: int
    secret: bytes = b""

    def __repr__(self) -> str:  # the secret is not shown
        return f"<Blueprint of {self.shards} shards of store {self.store_id.hex()}>"


def build_shard(
    root: str, shard: int, plan: Blueprint, meta: Sequence[Op], files: Sequence[str]
) -> None:
    """Make ``shard<i>`` and its watermark in ``root``, a folder that nobody uses. Blocks.

    Args:
        root: where.
        shard: which.
        plan: of the store.
        meta: rows of ``m/`` beside those that every shard has.
        files: paths of SST files on the same file system; they are moved.

    Raises:
        StorageFullError, StorageError, CommitUnknownError: the disk; remove ``root``.

    Durability: on return it survives a power cut.
    """
    path, number = shard_path(root, shard), plan.incarnation << NUMBER_BITS | 1
    shared = SharedMemory(_CACHE_BYTES)
    store = RocksStore.open(path, shared=shared, shards=plan.shards, create=True)
    try:
        stamp = Stamp(shard, plan.shards, plan.durability, plan.store_id)
        write_patiently(
            store,
            [
                *stamp_ops(stamp, plan.secret),
                (ks.OPEN, encode_open(plan.incarnation)),
                (ks.ring_key(number), encode_ring(number, plan.seq)),
                *meta,
            ],
        )
        store.flush()
        if files:
            store.ingest(files, may_flush=True)
    finally:
        store.close()
    for name in os.listdir(path):
        fsync_file(os.path.join(path, name))
    fsync_dir(path)
    Watermark.create(
        watermark_path(root, shard),
        shard=shard,
        store_id=plan.store_id,
        incarnation=plan.incarnation,
        commit_seq=number,
    ).close()
