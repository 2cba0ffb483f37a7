"""Tables of a store, read by many Spark tasks from a snapshot or from the store's folder.

A snapshot does not change, so large shards are cut into pieces of about ``splitBytes``. The folder
of a store may be live, and its pieces would be read at different moments: there a shard is one
piece.
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
from ...engine.files.paths import bodies_path, is_rocksdb, normal_path, shard_path
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
    """The part of a shard that one Spark task reads. None: no rows."""

    value: tuple[int, tuple[KeyRange, ...]] | None


class TableReader(DataSourceReader):
    """``spark.read``. It is sent to Spark's workers, so it has plain values only."""

    def __init__(self, table: str, options: Options, schema: StructType) -> None:
        store = normal_path(options.needed("path", "the folder of a store or of a snapshot"))
        name = options.text("snapshot")
        self._root = store if name is None else find_snapshot(store, name).path
        self._is_still = os.path.exists(os.path.join(self._root, "snapshot.json"))
        if self._is_still:
            read_snapshot(self._root)  # raises if it is damaged
        elif not is_rocksdb(shard_path(self._root, 0)):
            raise StorePathError(f"{self._root} is not the folder of a store or of a snapshot")
        self._table = table
        self._schema = schema
        self._batch_rows = options.count("batchRows", BATCH_ROWS) or BATCH_ROWS
        self._split_bytes = options.count("splitBytes", SPLIT_BYTES) or SPLIT_BYTES
        self._filters = Filters()

    def partitions(self) -> list[InputPartition]:
        """Return pieces of shards, leaving out those that no filter matches."""
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
        """Read one piece, in a worker."""
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
    """Return a reader of payloads that are stored outside the rows."""
    folder = bodies_path(root, shard)
    if not os.path.isdir(folder):
        return lambda shard, row: None
    reader = BodyReader(folder, examine_folder(folder).last_v1_file)
    stack.callback(reader.close)
    return lambda shard, row: reader.read(Location(row.file, row.offset, row.size), row.record_id)


class PushingTableReader(TableReader):
    """A reader that takes filters. Spark refuses one in sessions that do not push filters down."""

    def pushFilters(self, filters: list[Filter]) -> Sequence[Filter]:  # noqa: N802 - Spark's name
        """Use the filters to read less, and return all of them: Spark applies them again."""
        self._filters = narrowed(self._table, filters)
        return filters
