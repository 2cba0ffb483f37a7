"""The lifecycle journal as a stream, and as a table.

Spark asks one reader, in a process of its own, how far the journal can be read, writes that to the
query's checkpoint, and only then reads. After a crash it reads the same stretch again; with a sink
that knows its batches, such as files, every event arrives exactly once.

A committed offset becomes the position of a named tailer in the journal's folder, so retention
keeps the records that the query has not read.
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
from ...segments.journal.positions import read_place, store_place
from ...segments.journal.small_files import TailerPosition
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
    """The stretch of one Spark task. None: no rows (Spark needs at least one partition)."""

    value: Stretch | None


class _Journal:
    """The part that both readers share. It is sent to Spark's workers, so it has plain values."""

    def __init__(self, options: Options, schema: StructType) -> None:
        store = options.needed("path", "the folder of a store")
        self.root = find_journal(store, options.text("journal"))
        self.schema = schema
        self.batch_rows = options.count("batchRows", BATCH_ROWS) or BATCH_ROWS
        self.every = options.count("rowsPerPartition", ROWS_PER_PARTITION)
        self.is_strict = options.flag("failOnDataLoss", default=True)
        self.begins = options.choice("startingOffset", ("earliest", "latest"), "earliest")

    def start(self) -> Point:
        """Return the point of a reader that has read nothing."""
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
        """Return the points where the parts of a stretch begin, and where the last one ends.

        Args:
            view: of the journal's folder.
            start: begin of the stretch.
            end: number of the record behind it; 0 takes all that may be read now.
            most: rows at most.
            stop: end before this record; 0 does not.
        """
        stretch = Stretch(self.root, start, end, self.is_strict)
        found = scan(stretch, view, most=most, every=self.every, stop=stop)
        points = [start, *(point for point, _ in found)]
        return points if points[-1].next > start.next else [start]

    def split(self, points: list[Point], view: FolderView) -> list[InputPartition]:
        """Return the stretches between the points."""
        return [
            StretchPartition(
                Stretch(self.root, start, end.next, self.is_strict, hint_at(view, start.next))
            )
            for start, end in pairwise(points)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of one stretch."""
        if isinstance(partition, StretchPartition) and partition.value is not None:
            yield from event_batches(partition.value, arrow_schema(self.schema), self.batch_rows)


class JournalReader(DataSourceReader):
    """``spark.read``: the events that the journal has now."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._journal = _Journal(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each ``rowsPerPartition`` rows."""
        journal = self._journal
        view = FolderView(journal.root)
        parts = journal.split(journal.points(view, journal.start()), view)
        return parts or [StretchPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a worker."""
        return self._journal.read(partition)


class JournalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``: one object plans all batches of a query, copies of it read them."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._journal = _Journal(options, schema)
        self._most = options.count("maxRowsPerTrigger")
        self._tailer = options.text("tailer")
        if self._tailer is not None:
            read_place(self._journal.root, self._tailer)  # raises if the name or the file is wrong
        self._target = 0
        self._view: FolderView | None = None
        self._planned: tuple[Point, ...] = ()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset at which a query without a checkpoint begins."""
        start = self._journal.start()
        self._hold(start)
        return start.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit that the option ``maxRowsPerTrigger`` sets."""
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read up to the present end of the journal, in as many batches as needed, then stop."""
        self._target = end_of(self._folder())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset at which the next batch ends."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        begin, view = Point.from_json(start), self._folder()
        self._hold(begin)
        points = self._journal.points(view, begin, most=most, stop=self._target)
        if len(points) == 1 and begin.next > (end := end_of(view)):
            raise UsageError(
                f"the checkpoint has read up to record {begin.next - 1} of "
                f"{self._journal.root!r}, which ends at {end - 1}: that was another journal; give "
                "the query another checkpointLocation"
            )
        self._planned = tuple(points)
        return points[-1].to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of a batch: the same for the same offsets at any time."""
        begin, finish, view = Point.from_json(start), Point.from_json(end), self._folder()
        points = list(self._planned)
        if not points or points[0] != begin or points[-1] != finish:  # begun before a crash
            points = self._journal.points(view, begin, finish.next)
        return self._journal.split(points, view)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a worker."""
        return self._journal.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Note that the batch is written for good: retention may delete records before its end."""
        if self._tailer is not None:
            self._store(self._tailer, Point.from_json(end))

    def _hold(self, at: Point) -> None:
        """Make retention keep, from the first batch on, the records the query has not read."""
        if self._tailer is not None and read_place(self._journal.root, self._tailer) is None:
            self._store(self._tailer, at)

    def _store(self, tailer: str, at: Point) -> None:
        store_place(self._journal.root, tailer, TailerPosition(at.next, SystemClock().wall_us()))

    def _folder(self) -> FolderView:
        """Return the one view of the folder, which remembers the frames of the newest file."""
        if self._view is None:
            self._view = FolderView(self._journal.root)
        return self._view
