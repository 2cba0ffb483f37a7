"""Tells whose a table is: of this shard, of another one, or of another store.

A table says so by its rows: a stamp names its store and shard, every id has the slot of its shard,
and the row that each commit leaves in the ring says whose it is. So a table with another stamp is
foreign, one whose commits are all somebody else's, and one whose ids are all of other shards; and
with one that is of another store, all that the same database has written. What says none of this is
taken for ours.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Final, NamedTuple

from ...errors import CorruptionError, OpenError, StorageError
from ..records import keyspace as ks
from ..records.frame import attempt
from ..records.rows import RING_BYTES, Stamp, decode_ring, decode_stamp, owner_of, ring_owner
from ..runtime.ids import shard_of_slot, slot_of_id
from ..store.rocks import RocksStore
from ..store.rocks_options import SharedMemory
from .table_blocks import properties_of

__all__ = ["foreign_tables"]

_ROWS_MAX: Final = 512  # of a family: no table has rows of two shards
_MAKER: Final = b"rocksdb.creating.db.identity"
_LOADED: Final = b"SST Writer"  # the maker of what has come in as a load, whatever the store
_FAMILIES: Final = (
    (ks.TASK, ks.TASK_END),
    (ks.RESULT, ks.RESULT_END),
    (ks.LEASE, ks.LEASE_END),
    (ks.MOVED, ks.MOVED_END),
)


class _Evidence(NamedTuple):
    """Claims of a table about itself. ``owners``: whose commits it has, by their ring rows."""

    stamp: Stamp | None
    slots: frozenset[int]
    owners: frozenset[int]
    maker: bytes


def foreign_tables(
    folder: str, index: int, store_id: bytes | None, scratch: str, shared: SharedMemory
) -> dict[str, str]:
    """Find the tables of a folder that are not of this shard.

    Args:
        folder: the tables, each whole or without its damage.
        index: the shard.
        store_id: the store's; None: nobody knows.
        scratch: a folder that does not exist; it does not afterwards either.
        shared: a cache for reading.

    Returns: by name, whose it is, in words.

    Raises:
        OSError: the disk.
    """
    found: dict[str, _Evidence] = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".sst"):
            try:
                found[name] = _evidence(os.path.join(folder, name), scratch, shared)
            except (CorruptionError, OpenError, StorageError):
                continue  # it cannot be read, and brings nothing
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return _judge(found, index, store_id)


def _evidence(path: str, scratch: str, shared: SharedMemory) -> _Evidence:
    os.mkdir(scratch)
    os.link(path, os.path.join(scratch, os.path.basename(path)))
    RocksStore.repair(scratch, shared=shared)
    store = RocksStore.open(scratch, shared=shared, create=False, is_compacted=False)
    try:
        raw = store.get(ks.STAMP)
        slots = frozenset(
            slot_of_id(key[ks.FIRST_ID])
            for lower, upper in _FAMILIES
            for key, _ in store.scan(lower, upper, _ROWS_MAX)
        )
        owners = frozenset(
            owner_of(value)
            for _, value in store.scan(ks.RING, ks.prefix_end(ks.RING), _ROWS_MAX)
            if len(value) == RING_BYTES and attempt(decode_ring, value) is not None
        )
        maker = properties_of(path).get(_MAKER, b"")
        return _Evidence(attempt(decode_stamp, raw), slots, owners - {0}, maker)
    finally:
        store.close()


def _judge(found: Mapping[str, _Evidence], index: int, store_id: bytes | None) -> dict[str, str]:
    foreign: dict[str, str] = {}
    makers: dict[bytes, str] = {}  # of tables of other stores
    shards = 0
    for name, one in found.items():
        stamp = one.stamp
        if stamp is None:
            continue
        if store_id is not None and stamp.store_id != store_id:
            foreign[name] = makers[one.maker] = f"store {stamp.store_id.hex()}"
        elif stamp.shard != index:
            foreign[name] = f"shard {stamp.shard}"
        else:
            shards = stamp.shards
    if store_id is not None:  # else the shard may have come from another store: a replica
        ours = ring_owner(store_id, index)
        for name, one in found.items():
            if one.owners and ours not in one.owners:
                foreign.setdefault(name, _other(one.owners, store_id, shards))
    for maker in (b"", _LOADED):
        makers.pop(maker, None)
    for name, one in found.items():
        if one.maker in makers and one.stamp is None:
            foreign[name] = makers[one.maker]
        # Without a stamp of ours nobody knows which slots are ours.
        owners = {shard_of_slot(slot, shards) for slot in one.slots} if shards else set()
        if name not in foreign and owners and index not in owners:
            foreign[name] = f"shard {', '.join(map(str, sorted(owners)))}"
    return foreign


def _other(owners: frozenset[int], store_id: bytes, shards: int) -> str:
    """Whose those commits are: of another shard of this store, or of another store."""
    known = [shard for shard in range(shards) if ring_owner(store_id, shard) in owners]
    return f"shard {', '.join(map(str, known))}" if known else "another shard or store"
