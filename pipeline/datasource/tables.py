"""The tables of a store, read from a snapshot (or from its folder) by many tasks at once.

A snapshot does not change, so big shards are cut into pieces of about ``splitBytes``. A store's
own folder may be live, and each piece would be of another moment: there, a shard is one piece.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from ...engine.bulk.arrow.columns import read_columns
from ...engine.bulk.arrow.page import Bodies
from ...engine.bulk.ranges import Filters, KeyRange, cut, key_ranges
from ...engine.bulk.reader import open_shard
from ...engine.bulk.snapshots import find_snapshot, read_snapshot
from ...engine.store.paths import bodies_path, is_rocksdb, normal_path, shard_path
from ...errors import StorePathError
from ...segments.bodies.layout import Location, examine_folder
from ...segments.bodies.reader import BodyReader
from .filters import narrowed
from .options import Options
from .schemas import arrow_schema

__all__ = ["PushingTableReader", "RangesPartition", "TableReader"]

BATCH_ROWS: Final = 16_384
SPLIT_BYTES: Final = 64 << 20
PARTS_MAX: Final = 4096


@dataclass
class RangesPartition(InputPartition):
    """One task's share of a shard. None: nothing."""

    value: tuple[int, tuple[KeyRange, ...]] | None


class TableReader(DataSourceReader):
    """``spark.read``. It travels to Spark's workers, so it holds plain values only."""

    def __init__(self, table: str, options: Options, schema: StructType) -> None:
        store = normal_path(options.needed("path", "the folder of a store or of a snapshot"))
        name = options.text("snapshot")
        self._root = store if name is None else find_snapshot(store, name).path
        self._is_still = os.path.exists(os.path.join(self._root, "snapshot.json"))
        if self._is_still:
            read_snapshot(self._root)  # whether it is whole
        elif not is_rocksdb(shard_path(self._root, 0)):
            raise StorePathError(f"{self._root} is no folder of a store or of a snapshot")
        self._table = table
        self._schema = schema
        self._batch_rows = options.count("batchRows", BATCH_ROWS) or BATCH_ROWS
        self._split_bytes = options.count("splitBytes", SPLIT_BYTES) or SPLIT_BYTES
        self._filters = Filters()

    def partitions(self) -> list[InputPartition]:
        """Pieces of shards, none without a row that may be wanted."""
        found: list[InputPartition] = []
        shards, shard = 1, 0
        while shard < shards:
            with open_shard(self._root, shard) as reader:
                shards = reader.shards
                ranges = key_ranges(reader, self._table, self._filters)
                files = reader.files()
            parts = 1
            if self._is_still and ranges:
                size = sum(file.bytes for file in files)
                parts = min(PARTS_MAX, 1 + size // self._split_bytes)
            found += [RangesPartition((shard, tuple(part))) for part in cut(ranges, files, parts)]
            shard += 1
        return found or [RangesPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a worker."""
        if not isinstance(partition, RangesPartition) or partition.value is None:
            return
        shard, ranges = partition.value
        wanted = arrow_schema(self._schema)
        with ExitStack() as stack:
            reader = stack.enter_context(open_shard(self._root, shard))
            bodies = _bodies(self._root, shard, stack) if "payload" in wanted.names else None
            for one in ranges:
                yield from read_columns(
                    reader, one, self._table, wanted.names, rows=self._batch_rows, bodies=bodies
                )


def _bodies(root: str, shard: int, stack: ExitStack) -> Bodies:
    """Reads payloads that lie outside the rows."""
    folder = bodies_path(root, shard)
    if not os.path.isdir(folder):
        return lambda shard, row: None
    reader = BodyReader(folder, examine_folder(folder).last_v1_file)
    stack.callback(reader.close)
    return lambda shard, row: reader.read(Location(row.file, row.offset, row.size), row.record_id)


class PushingTableReader(TableReader):
    """The same, where Spark hands filters down; it refuses a reader that takes them elsewhere."""

    def pushFilters(self, filters: list[Filter]) -> Sequence[Filter]:  # noqa: N802 - Spark's name
        """All of them are for Spark to apply, too."""
        self._filters = narrowed(self._table, filters)
        return filters
