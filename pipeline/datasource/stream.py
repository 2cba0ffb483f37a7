"""The lifecycle journal as a stream, and as a table.

Spark asks one reader, in a process of its own, how far there is something to read, writes that down
in the query's checkpoint, and only then reads it. After a crash it reads the same stretch again;
with a sink that knows its batches (files do) every event arrives exactly once.

What is committed becomes the place of a named tailer in the journal's folder, so retention keeps
what the query has not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ...engine.runtime.clock import SystemClock
from ...errors import UsageError
from ...segments.formats.journal_small import TailerPosition
from ...segments.journal.positions import read_place, store_place
from ...segments.journal.view import FolderView
from .events import event_batches
from .options import Options
from .points import (
    Point,
    Stretch,
    end_of,
    find_journal,
    first_point,
    hint_at,
    last_point,
    scan,
)
from .schemas import arrow_schema

__all__ = ["JournalReader", "JournalStream", "StretchPartition"]

BATCH_ROWS: Final = 16_384
ROWS_PER_PARTITION: Final = 250_000


@dataclass
class StretchPartition(InputPartition):
    """One task's share. None: nothing (Spark makes one where a list of partitions is empty)."""

    value: Stretch | None


class _Journal:
    """What both readers share. It travels to Spark's workers, so it holds plain values only."""

    def __init__(self, options: Options, schema: StructType) -> None:
        store = options.needed("path", "the folder of a store")
        self.root = find_journal(store, options.text("journal"))
        self.schema = schema
        self.batch_rows = options.count("batchRows", BATCH_ROWS) or BATCH_ROWS
        self.every = options.count("rowsPerPartition", ROWS_PER_PARTITION)
        self.is_strict = options.flag("failOnDataLoss", default=True)
        self.begins = options.choice("startingOffset", ("earliest", "latest"), "earliest")

    def start(self) -> Point:
        """Where one begins who has read nothing."""
        if self.begins == "earliest":
            return first_point(self.root)
        return last_point(self.root, FolderView(self.root))

    def points(
        self,
        view: FolderView,
        start: Point,
        end: int = 0,
        *,
        most: int | None = None,
        stop: int = 0,
    ) -> list[Point]:
        """Where the parts of a stretch begin, and where the last one ends. See ``scan``."""
        stretch = Stretch(self.root, start, end, self.is_strict)
        found = scan(stretch, view, most=most, every=self.every, stop=stop)
        points = [start, *(point for point, _ in found)]
        return points if points[-1].next > start.next else [start]

    def split(self, points: list[Point], view: FolderView) -> list[InputPartition]:
        """The stretches between the points."""
        return [
            StretchPartition(
                Stretch(self.root, start, end.next, self.is_strict, hint_at(view, start.next))
            )
            for start, end in pairwise(points)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of one stretch."""
        if isinstance(partition, StretchPartition) and partition.value is not None:
            yield from event_batches(partition.value, arrow_schema(self.schema), self.batch_rows)


class JournalReader(DataSourceReader):
    """``spark.read``: what the journal has now."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._journal = _Journal(options, schema)

    def partitions(self) -> list[InputPartition]:
        """One for each ``rowsPerPartition``."""
        journal = self._journal
        view = FolderView(journal.root)
        parts = journal.split(journal.points(view, journal.start()), view)
        return parts or [StretchPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a worker."""
        return self._journal.read(partition)


class JournalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``. One object plans all batches of a query; copies of it read them."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._journal = _Journal(options, schema)
        self._most = options.count("maxRowsPerTrigger")
        self._tailer = options.text("tailer")
        if self._tailer is not None:
            read_place(self._journal.root, self._tailer)  # whether it is a name, and whole
        self._target = 0
        self._view: FolderView | None = None
        self._planned: tuple[Point, ...] = ()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Of a query without a checkpoint."""
        start = self._journal.start()
        self._hold(start)
        return start.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The option ``maxRowsPerTrigger``."""
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read what is there now, in as many batches as it takes, and stop."""
        self._target = end_of(self._folder())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        begin, view = Point.from_json(start), self._folder()
        self._hold(begin)
        points = self._journal.points(view, begin, most=most, stop=self._target)
        if len(points) == 1 and begin.next > (end := end_of(view)):
            raise UsageError(
                f"the checkpoint has read up to record {begin.next - 1} of "
                f"{self._journal.root!r}, which ends at {end - 1}: it is another journal; give "
                "the query another checkpointLocation"
            )
        self._planned = tuple(points)
        return points[-1].to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The same for the same offsets, whenever it is asked."""
        begin, finish, view = Point.from_json(start), Point.from_json(end), self._folder()
        points = list(self._planned)
        if not points or points[0] != begin or points[-1] != finish:  # a batch begun before a crash
            points = self._journal.points(view, begin, finish.next)
        return self._journal.split(points, view)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a worker."""
        return self._journal.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """The batch is written for good: retention may delete what lies before it."""
        if self._tailer is not None:
            self._store(self._tailer, Point.from_json(end))

    def _hold(self, at: Point) -> None:
        """From the first batch on, retention keeps what this query has not read."""
        if self._tailer is not None and read_place(self._journal.root, self._tailer) is None:
            self._store(self._tailer, at)

    def _store(self, tailer: str, at: Point) -> None:
        store_place(self._journal.root, tailer, TailerPosition(at.next, SystemClock().wall_us()))

    def _folder(self) -> FolderView:
        """Kept, because it remembers the frames of the file that is being written."""
        if self._view is None:
            self._view = FolderView(self._journal.root)
        return self._view
