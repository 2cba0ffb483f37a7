"""RocksDB for operators: how much it has written and read, and compaction on demand.

Figures are RocksDB's own, read when somebody asks. Its statistics (tickers) would be exact to the
byte and take half as long again for every write, so they stay off: what compaction moves comes from
the report RocksDB keeps anyway, in units of 10 MB.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from .port import Store
from .rocks import RocksStore

__all__ = ["Figures", "compact", "figures_of"]

_GB: Final = 1 << 30
_COMPACTED: Final = re.compile(
    r"^Cumulative compaction: ([\d.]+) GB write, .* ([\d.]+) GB read,", re.MULTILINE
)
_FLUSHED: Final = re.compile(r"^Flush\(GB\): cumulative ([\d.]+),", re.MULTILINE)
_WAL: Final = re.compile(r"^Cumulative WAL: .* written: ([\d.]+) GB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Figures:
    """RocksDB's figures of one shard, in bytes; ``_total`` is since open, in steps of 10 MB."""

    wal_bytes: int  # of the logs that are there
    wal_bytes_total: int
    flush_bytes_total: int
    compaction_read_bytes_total: int
    compaction_write_bytes_total: int
    compaction_pending_bytes: int
    table_bytes: int
    memtable_bytes: int
    tables_level0: int


def figures_of(store: Store) -> Figures | None:
    """RocksDB's figures of a shard, without a look at its rows; None in memory.

    Raises:
        ClosedError: the store is closed.
        StorageError: it cannot be read.
    """
    if not isinstance(store, RocksStore):
        return None
    text = store.property_text("rocksdb.cfstats-no-file-histogram")
    rows = store.property_text("rocksdb.dbstats")
    flushed = _bytes(_FLUSHED.search(text), 1)
    compacted = _COMPACTED.search(text)
    return Figures(
        wal_bytes=_wal_bytes(store.path),
        wal_bytes_total=_bytes(_WAL.search(rows), 1),
        flush_bytes_total=flushed,
        compaction_read_bytes_total=_bytes(compacted, 2),
        # RocksDB counts flushes as compactions into level 0.
        compaction_write_bytes_total=max(0, _bytes(compacted, 1) - flushed),
        compaction_pending_bytes=_number(store, "rocksdb.estimate-pending-compaction-bytes"),
        table_bytes=_number(store, "rocksdb.total-sst-files-size"),
        memtable_bytes=_number(store, "rocksdb.cur-size-all-mem-tables"),
        tables_level0=int(store.property_text("rocksdb.num-files-at-level0") or 0),
    )


def compact(store: Store) -> None:
    """Rewrite a shard without what is deleted. Blocks, without the GIL; does nothing in memory.

    Raises:
        StorageError: the disk failed or is full; nothing is lost.
    """
    if not isinstance(store, RocksStore):
        return
    store.flush()
    store.compact()


def _number(store: RocksStore, name: str) -> int:
    return store.property_int(name) or 0


def _bytes(found: re.Match[str] | None, group: int) -> int:
    return int(float(found[group]) * _GB) if found is not None else 0


def _wal_bytes(path: str) -> int:
    total = 0
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.endswith(".log"):
                try:
                    total += entry.stat().st_size
                except FileNotFoundError:
                    continue  # it has become a table meanwhile
    return total
