"""Tables of a snapshot, which is pinned while a job reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ....engine.bulk.snapshot_lease import pin_snapshot
from ....engine.bulk.snapshots import LATEST, find_snapshot
from ....engine.bulk.tables import columns_of
from ....engine.files.paths import is_rocksdb, normal_path, only_journal, shard_path
from ....engine.runtime.clock import Clock, SystemClock
from ....engine.values import Snapshot
from ....errors import SnapshotNotFoundError, StorePathError
from ....repository.api.open import open_engine
from .config import StoreConfig, option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["NEW", "PIN_S", "SnapshotConfig", "SnapshotTables", "open_tables"]

NEW: Final = "new"
PIN_S: Final = 6 * 3600  # a job may read a snapshot for so long


@dataclass(frozen=True, kw_only=True)
class SnapshotConfig(StoreConfig):
    """Options of every job that reads a store."""

    snapshot: str = option(
        "which one: an id, 'latest', or 'new' to take one of a store that nobody has open",
        default=LATEST,
    )


class SnapshotTables:
    """The tables of one snapshot as frames.

    Args:
        spark: the session.
        root: folder of the store.
        snapshot: the pinned snapshot.
    """

    def __init__(self, spark: SparkSession, root: str, snapshot: Snapshot) -> None:
        self.spark = spark
        self.root = root
        self.snapshot = snapshot

    @property
    def id(self) -> str:
        """Id of the snapshot."""
        return self.snapshot.id

    @property
    def shards(self) -> int:
        """Number of shards of the store."""
        return len(self.snapshot.shards)

    def table(self, name: str, columns: Sequence[str] | None = None) -> DataFrame:
        """Return a table (docs/snapshots.md); only ``columns`` are read."""
        wanted = ",".join(columns_of(name, columns))
        read = self.spark.read.format("lodeq").option("table", name).option("columns", wanted)
        return read.load(self.snapshot.path)


def open_tables(
    spark: SparkSession, store: str, snapshot: str = LATEST, clock: Clock | None = None
) -> SnapshotTables:
    """Find or take a snapshot, and pin it for six hours.

    Args:
        spark: the session.
        store: folder of the store.
        snapshot: an id, ``latest``, or ``new`` to take one.
        clock: for the end of the pin; the machine's by default.

    Raises:
        StorePathError: there is no store.
        SnapshotNotFoundError: it has no such snapshot; the message says how to take one.
        LockedError: ``new``, and the store is open.
        StorageError: the disk.
    """
    root = normal_path(store)
    if not is_rocksdb(shard_path(root, 0)):
        raise StorePathError(f"{root} is not the folder of a store")
    if snapshot == NEW:
        snapshot = asyncio.run(_take(root))
    try:
        found = find_snapshot(root, snapshot)
    except SnapshotNotFoundError as exc:
        raise SnapshotNotFoundError(
            f"{exc}: take one with `await engine.snapshot()` where the store is open, or with "
            f"--snapshot {NEW} where it is not"
        ) from exc
    now_ms = (clock or SystemClock()).wall_us() // 1000
    return SnapshotTables(spark, root, pin_snapshot(root, found.id, now_ms + PIN_S * 1000))


async def _take(root: str) -> str:
    async with open_engine(root, reaper=False, inbox=False, journal=only_journal(root)) as engine:
        return (await engine.snapshot()).id
