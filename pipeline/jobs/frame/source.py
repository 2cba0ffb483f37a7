"""What a job reads: a snapshot, pinned while the job is at it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ....engine.bulk.snapshot_lease import pin_snapshot
from ....engine.bulk.snapshots import LATEST, find_snapshot
from ....engine.bulk.tables import columns_of
from ....engine.runtime.clock import Clock, SystemClock
from ....engine.store.paths import is_rocksdb, normal_path, only_journal, shard_path
from ....engine.values import Snapshot
from ....errors import SnapshotNotFoundError, StorePathError
from ....repository.api.open import open_engine
from .config import StoreConfig, option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["NEW", "PIN_S", "SnapshotConfig", "Source", "open_source"]

NEW: Final = "new"
PIN_S: Final = 6 * 3600


@dataclass(frozen=True, kw_only=True)
class SnapshotConfig(StoreConfig):
    """What every job that reads a store is told."""

    snapshot: str = option(
        "which one: an id, 'latest', or 'new' to take one of a store that nobody has open",
        default=LATEST,
    )


class Source:
    """A snapshot of a store, as frames."""

    def __init__(self, spark: SparkSession, root: str, snapshot: Snapshot) -> None:
        self.spark = spark
        self.root = root
        self.snapshot = snapshot

    @property
    def id(self) -> str:
        """Of the snapshot."""
        return self.snapshot.id

    @property
    def shards(self) -> int:
        """Of the store."""
        return len(self.snapshot.shards)

    def table(self, name: str, columns: Sequence[str] | None = None) -> DataFrame:
        """A table of it (docs/snapshots.md); only ``columns`` are read."""
        wanted = ",".join(columns_of(name, columns))
        read = self.spark.read.format("lodeq").option("table", name).option("columns", wanted)
        return read.load(self.snapshot.path)


def open_source(
    spark: SparkSession, store: str, snapshot: str = LATEST, clock: Clock | None = None
) -> Source:
    """Find the snapshot, or take it, and pin it for six hours.

    Raises:
        StorePathError: no store is there.
        SnapshotNotFoundError: it has no such snapshot; the message says how one is taken.
        LockedError: ``new``, and the store is open.
        StorageError: the disk.
    """
    root = normal_path(store)
    if not is_rocksdb(shard_path(root, 0)):
        raise StorePathError(f"{root} is no folder of a store")
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
    return Source(spark, root, pin_snapshot(root, found.id, now_ms + PIN_S * 1000))


async def _take(root: str) -> str:
    async with open_engine(root, reaper=False, inbox=False, journal=only_journal(root)) as engine:
        return (await engine.snapshot()).id
