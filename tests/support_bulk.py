"""Shards to read in bulk: on disk, in memory, damaged."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from lodeq.engine.bulk.reader import open_shard
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records.rows import Stamp, encode_stamp
from lodeq.engine.store.port import Rows, write_patiently
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory

__all__ = ["MemoryReader", "all_rows", "flip", "tree", "write_shard"]

STORE_ID = bytes(range(16))


class MemoryReader:
    """What columns and ranges need of a ``ShardReader``, over a dict."""

    def __init__(self, rows: Mapping[bytes, bytes], *, shard: int = 0, shards: int = 1) -> None:
        self.rows = sorted(rows.items())
        self.shard, self.shards = shard, shards

    def batches(
        self, lower: bytes, upper: bytes, *, rows: int = 1 << 20, bytes_max: int = 0
    ) -> Iterator[Rows]:
        found = [row for row in self.rows if lower <= row[0] < upper]
        for at in range(0, len(found), rows):
            yield found[at : at + rows]

    def scan(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        return [row for row in self.rows if lower <= row[0] < upper][:limit]

    def get(self, key: bytes) -> bytes | None:
        return dict(self.rows).get(key)


def write_shard(
    root: Path, rows: Mapping[bytes, bytes], *, shard: int = 0, shards: int = 1, flush: bool = True
) -> None:
    """A shard of a store with these rows and its stamp, closed again."""
    path = root / f"shard{shard}"
    path.parent.mkdir(parents=True, exist_ok=True)
    store = RocksStore.open(path, shared=SharedMemory(8 << 20), create=True)
    store.write([(ks.STAMP, encode_stamp(Stamp(shard, shards, 0, STORE_ID)))])
    items = sorted(rows.items())
    for at in range(0, len(items), 1000):
        write_patiently(store, items[at : at + 1000])
    if flush:
        store.flush()
    store.close()


def all_rows(root: Path | str, shard: int = 0) -> dict[bytes, bytes]:
    with open_shard(str(root), shard) as reader:
        return {k: v for batch in reader.batches(b"", b"\xff") for k, v in batch}


def tree(root: Path | str) -> dict[str, tuple[object, ...]]:
    """All there is below: names, modes, times, contents."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, _, names in os.walk(root):
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            info = os.lstat(path)
            data = b"" if path == folder else Path(path).read_bytes()
            found[path] = (info.st_mode, info.st_mtime_ns, hashlib.sha256(data).hexdigest())
    return found


def flip(path: Path, at: int) -> None:
    """One bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
