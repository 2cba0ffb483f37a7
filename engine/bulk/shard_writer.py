"""Staging of one shard by one writer: tasks in any order in, sorted files out.

Tasks are gathered up to a bound, sorted by family, and written: a *run* has one file per family.
Files of two runs may overlap; the store takes that, and merges them when it compacts. Whoever sorts
by shard before (Spark) needs one writer for each, and no more memory than a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from ...errors import DuplicateTaskError, UsageError
from ..records.keyspace import GHOST, TASK
from ..records.rows import Ghost, encode_ghost
from ..records.task import NO_GHOST
from .ids import write_ids
from .keys import write_keys
from .manifest import FileMark, ShardQueueRows
from .rows import TaskRows, expiry_rows
from .sst import SstWriter

__all__ = ["RUN_BYTES", "ShardPart", "ShardStage", "merge_shard_queues"]

Row: TypeAlias = tuple[bytes, bytes]
RUN_BYTES: Final = 64 << 20
_ROW_OVERHEAD: Final = 512  # of a task in memory, beside its record


class ShardPart(NamedTuple):
    """Files and counts that a ``ShardStage`` has made; small enough to be sent to the publisher."""

    files: tuple[FileMark, ...]
    shard_queues: tuple[ShardQueueRows, ...]
    seq_max: int


class _Count:
    __slots__ = ("delayed", "due_ms", "ready")

    def __init__(self) -> None:
        self.ready: dict[int, tuple[int, int]] = {}  # priority: (rows, least seq)
        self.delayed = self.due_ms = 0

    def add_ready(self, priority: int, rows: int, seq: int) -> None:
        had, least = self.ready.get(priority, (0, seq))
        self.ready[priority] = (had + rows, min(least, seq))

    def add_delayed(self, rows: int, due_ms: int) -> None:
        if rows:
            self.due_ms = min(self.due_ms or due_ms, due_ms)
            self.delayed += rows


class _Counts:
    """Per (shard, queue, tenant)."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[int, str, str], _Count] = {}

    def of(self, shard: int, queue: str, tenant: str) -> _Count:
        return self._by_name.setdefault((shard, queue, tenant), _Count())

    def shard_queues(self) -> tuple[ShardQueueRows, ...]:
        return tuple(
            ShardQueueRows(
                *name,
                tuple((p, *count.ready[p]) for p in sorted(count.ready)),
                count.delayed,
                count.due_ms,
            )
            for name, count in sorted(self._by_name.items())
        )


def merge_shard_queues(parts: Iterable[ShardPart]) -> tuple[ShardQueueRows, ...]:
    """The counts of all parts, each (shard, queue, tenant) once."""
    counts = _Counts()
    for part in parts:
        for one in part.shard_queues:
            count = counts.of(one.shard, one.queue, one.tenant)
            for priority, rows, seq in one.ready:
                count.add_ready(priority, rows, seq)
            count.add_delayed(one.delayed, one.due_ms)
    return counts.shard_queues()


class ShardStage:
    """The files of one shard, by one writer. Blocks; for one thread.

    Args:
        folder: the staging folder of the job (``inbox.staging_folder``).
        stem: what file names begin with, unique in that folder: job attempt, partition, …
        job: makes the keys of expiry rows differ from those of other loads.
        shard: whose tasks these are.
        run_bytes: of records that are gathered in memory for a run.

    Durability: files are fsynced by ``finish``; names by whoever publishes.
    """

    def __init__(
        self, folder: str, stem: str, *, job: str, shard: int, run_bytes: int = RUN_BYTES
    ) -> None:
        self._folder = folder
        self._stem = f"{stem}-{shard}"
        self._job = job
        self._shard = shard
        self._run_bytes = run_bytes
        # Pairs of bytes, which the garbage collector does not follow: there are many.
        self._records: list[Row] = []
        self._index: list[Row] = []
        self._keyed: list[TaskRows] = []
        self._expiries: dict[int, list[bytes]] = {}
        self._bytes = 0
        self._runs = 0
        self._files: list[FileMark] = []
        self._counts = _Counts()
        self._by_name: dict[tuple[bytes, bytes], _Count] = {}
        self._ghosts: set[bytes] = set()
        self._seq_max = 0

    def holds(self, ghost: bytes) -> bool:
        """Whether a task that was added here takes that dedup key."""
        return ghost in self._ghosts

    def add(self, task: TaskRows, body: FileMark | None = None) -> None:
        """One task, from ``task_rows``.

        Args:
            task: its rows.
            body: the file of its payload, if that is a streamed one.

        Raises:
            UsageError: it is of another shard.
            DuplicateTaskError: another that was added has its dedup key.
            StorageFullError, StorageError: the disk; give the stage up.
        """
        if task.shard != self._shard:
            raise UsageError(f"a task of shard {task.shard} was given to shard {self._shard}")
        if task.ghost != NO_GHOST:
            if task.ghost in self._ghosts:
                raise DuplicateTaskError("two tasks of the load have one dedup key")
            self._ghosts.add(task.ghost)
            self._keyed.append(task)
        count = self._count(task.queue, task.tenant)
        if task.due_ms:
            count.add_delayed(1, task.due_ms)
        else:
            count.add_ready(task.priority, 1, task.seq)
        for bucket_ms, entry in task.expiries:
            self._expiries.setdefault(bucket_ms, []).append(entry)
        if body is not None:
            self._files.append(body)
        self._records.append((TASK + task.task_id, task.record))
        self._index.append((task.index_key, task.index_value))
        self._added(task.seq, len(task.record) + _ROW_OVERHEAD)

    def add_ready(
        self,
        queue: bytes,
        tenant: bytes,
        priority: int,
        records: Sequence[Row],
        index: Sequence[Row],
        seqs: range,
    ) -> None:
        """Tasks of one priority that are ready, and have no dedup key and no TTL: their rows.

        Raises as ``add``, which is for all others.

        Args:
            queue: its name, as stored.
            tenant: its name; empty for the default one.
            priority: 0 to 9.
            records: task rows.
            index: ready rows, one for each of ``records``.
            seqs: the seqs of ``index``.
        """
        self._count(queue, tenant).add_ready(priority, len(seqs), seqs[0])
        self._records += records
        self._index += index
        size = sum(len(record) for _, record in records)
        self._added(seqs[-1], size + _ROW_OVERHEAD * len(seqs))

    def _count(self, queue: bytes, tenant: bytes) -> _Count:
        count = self._by_name.get((queue, tenant))
        if count is None:
            count = self._counts.of(self._shard, queue.decode(), tenant.decode())
            self._by_name[queue, tenant] = count
        return count

    def _added(self, seq: int, size: int) -> None:
        if seq > self._seq_max:
            self._seq_max = seq
        self._bytes += size
        if self._bytes >= self._run_bytes:
            self.roll()

    def roll(self) -> None:
        """Write what has been gathered. Raises as ``add``; then it is gathered still."""
        if not self._records:
            return
        stem = f"{self._stem}-{self._runs:04d}"
        self._runs += 1
        before = len(self._files)
        try:
            self._write_run(stem)
        except BaseException:  # half a run must not be published
            del self._files[before:]
            self._remove(stem)
            raise
        self._records, self._index, self._keyed, self._expiries = [], [], [], {}
        self._bytes = 0

    def _write_run(self, stem: str) -> None:
        self._index.sort()
        index_keys = [key for key, _ in self._index]
        self._files.append(write_ids(self._folder, stem, self._shard, index_keys))
        self._records.sort()
        self._write(stem, "t", self._records)
        self._write(stem, "q", self._index)
        keyed = self._keyed
        if keyed:
            self._files.append(write_keys(self._folder, stem, self._shard, keyed))
            keyed.sort(key=attrgetter("ghost"))
            ghosts = (
                (GHOST + t.ghost, encode_ghost(Ghost(t.task_id, t.ghost_expires_ms))) for t in keyed
            )
            self._write(stem, "g", ghosts)
        if self._expiries:
            self._write(stem, "e", expiry_rows(f"{self._job}/{stem}", self._expiries))

    def _remove(self, stem: str) -> None:
        """The files of a run that failed; what cannot go is in nobody's way."""
        try:
            for name in os.listdir(self._folder):
                if name.startswith(f"{stem}-"):
                    os.unlink(os.path.join(self._folder, name))
        except OSError:
            pass

    def _write(self, stem: str, family: str, rows: Iterable[Row]) -> None:
        writer = SstWriter(self._folder, stem, shard=self._shard, family=family)
        writer.put_all(rows)
        self._files += writer.finish()

    def finish(self) -> ShardPart:
        """Write the rest, and return what was made. Raises as ``add``."""
        self.roll()
        return ShardPart(tuple(self._files), self._counts.shard_queues(), self._seq_max)
