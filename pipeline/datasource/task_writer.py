"""``df.write``: Spark's tasks stage files of tasks, and one manifest publishes them as a load.

Each of Spark's tasks stages files of its own; nobody reads them before a manifest names them. The
manifest is published as the very last step, by a link that never replaces another. So a load is
there as a whole or not at all, and is published once. An abort removes no file that a published
manifest names, not even when Spark aborts because something failed *after* the commit.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ...engine.bulk.ids import IdTable, merged_ids
from ...engine.bulk.inbox import (
    StoreInfo,
    discard,
    publish,
    staged_path,
    staging_folder,
    store_info,
)
from ...engine.bulk.keys import KeyTable
from ...engine.bulk.manifest import IDS, KEYS, Conflict, Manifest, check_conflict, check_job
from ...engine.bulk.shard_writer import RUN_BYTES, ShardPart, ShardStage, merge_shard_queues
from ...engine.recovery.dedup_secret import read_secrets
from ...engine.runtime.clock import SystemClock
from ...engine.runtime.ids import IdSource, SystemRng
from ...errors import DuplicateTaskError, UsageError
from ...repository.bulk.staged_bodies import stage_body
from .encoder import TASK_COLUMNS, Policy, TaskEncoder, rows_of
from .options import Options
from .routing import check_batches
from .schemas import check_payload

__all__ = ["Staged", "TaskStreamWriter", "TaskWriter"]

IDS_AT_ONCE: Final = 4096


@dataclass
class Staged(WriterCommitMessage):
    """Commit message of one Spark task: the files it has staged."""

    job: str
    attempt: str
    parts: tuple[ShardPart, ...]


class _Loader:
    """The part that both writers share. It is sent to the workers, so it has plain values."""

    def __init__(
        self, options: Options, schema: StructType, *, overwrite: bool, conflict: str = "error"
    ) -> None:
        if overwrite:
            raise UsageError('a store takes appends only: .mode("append")')
        table = options.choice("table", ("tasks",), "tasks")
        _check_columns(table, schema, options)
        self.info: StoreInfo = store_info(options.needed("path", "the folder of a store"))
        self.fingerprint = read_secrets(self.info.path, self.info.store_id).fingerprint
        self.conflict: Conflict = check_conflict(options.text("onConflict", conflict))
        self.run_bytes = options.count("runBytes", RUN_BYTES) or RUN_BYTES
        usual = Policy()
        self.policy = Policy(
            options.text("queue"),
            options.text("tenant", "") or "",
            options.count("maxAttempts") or usual.max_attempts,
            options.seconds("retention", usual.retention),
            options.seconds("deadRetention", usual.dead_retention),
        )
        self.policy.check()
        self.attempt = IdSource(SystemRng()).token().hex()

    def stage(self, batches: Iterable[pa.RecordBatch], job: str, base_us: int) -> Staged:
        """Stage the rows of one partition, in a worker."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        attempt = context.taskAttemptId() if context is not None else 0
        folder = staging_folder(self.info.path, job)
        secrets = read_secrets(self.info.path, self.info.store_id)
        if secrets.fingerprint != self.fingerprint:
            raise UsageError(
                "the store was created anew since the load began: start the load again"
            )
        encoder = TaskEncoder(job, partition, base_us, self.info.shards, self.policy, secrets)
        stem = f"{self.attempt}-p{partition}-a{attempt}"
        stages: dict[int, ShardStage] = {}
        given: set[bytes] = set()  # ids that rows bring
        for batch in batches:
            for row in rows_of(batch):
                task, body = encoder.task(row)
                if not isinstance(row, UsageError) and row.get("id") is not None:
                    if self.conflict == "skip" and task.task_id in given:
                        continue
                    given.add(task.task_id)
                stage = stages.get(task.shard)
                if stage is None:
                    stage = stages[task.shard] = ShardStage(
                        folder, stem, job=job, shard=task.shard, run_bytes=self.run_bytes
                    )
                if self.conflict != "skip" or not stage.holds(task.ghost):
                    mark = None
                    if body is not None:
                        mark = stage_body(folder, stem, task.shard, task.task_id, body)
                    stage.add(task, mark)
        return Staged(job, self.attempt, tuple(stage.finish() for stage in stages.values()))

    def publish(self, messages: Iterable[Any], base_us: int) -> None:
        """Publish all staged files once, in the planner."""
        staged = [message for message in messages if isinstance(message, Staged)]
        parts = [part for message in staged for part in message.parts]
        if not parts:
            return
        job = staged[0].job
        folder = staged_path(self.info.path, job)
        _check_keys(folder, parts)
        _check_ids(folder, parts)
        manifest = Manifest(
            job,
            self.info.store_id,
            self.info.shards,
            self.conflict,
            base_us,
            max(part.seq_max for part in parts),
            tuple(mark for part in parts for mark in part.files),
            merge_shard_queues(parts),
            secret=self.fingerprint,
        )
        is_new = publish(self.info.path, manifest, self.attempt)
        # From here on nothing may fail: the load is published, by this attempt or an earlier one.
        keep = {mark.name for mark in manifest.files} if is_new else set()
        with suppress(OSError):
            self.discard(job, keep)

    def abort(self, messages: Iterable[Any], job: str | None = None) -> None:
        """Remove files that no published manifest names, also those of tasks that failed."""
        jobs = {message.job for message in messages if isinstance(message, Staged)}
        for each in jobs | ({job} if job is not None else set()):
            self.discard(each)

    def discard(self, job: str, keep: Collection[str] = ()) -> None:
        """Remove files that this writer staged and no published manifest names."""
        with suppress(FileNotFoundError):
            names = os.listdir(staged_path(self.info.path, job))
            own = [name for name in names if name.startswith(self.attempt)]
            discard(self.info.path, job, set(own).difference(keep))


def _check_columns(table: str, schema: StructType, options: Options) -> None:
    for field in schema:
        if field.name not in TASK_COLUMNS:
            raise UsageError(
                f"tasks have no column {field.name!r}; their columns: {', '.join(TASK_COLUMNS)}"
            )
        if field.name == "payload":
            check_payload(field.dataType)
        kinds, kind = TASK_COLUMNS[field.name], field.dataType.simpleString()
        if kinds and kind not in kinds:
            raise UsageError(f"column {field.name!r} is {kind}, not {' or '.join(kinds)}")
    if "payload" not in schema.names:
        raise UsageError("tasks need a column 'payload'")
    if "queue" not in schema.names and options.text("queue") is None:
        raise UsageError("tasks need a column 'queue', or the option 'queue'")


def _check_keys(folder: str, parts: Iterable[ShardPart]) -> None:
    """Raise if a dedup key is twice in the load: each partition has checked its own rows only."""
    for paths in _files_of(folder, parts, KEYS):
        for one, other in pairwise(heapq.merge(*map(_ghosts, paths))):
            if one == other:
                raise DuplicateTaskError(
                    "two rows of the load have one dedup key: drop one of them, or use "
                    'lodeq.pipeline.load_tasks(…, on_conflict="skip")'
                )


def _check_ids(folder: str, parts: Iterable[ShardPart]) -> None:
    """Raise if an id is twice in the load. Whether the store has it, only an engine can say."""
    for paths in _files_of(folder, parts, IDS):
        try:
            for _ in merged_ids([IdTable.read(path) for path in paths], IDS_AT_ONCE):
                pass
        except DuplicateTaskError as error:
            raise DuplicateTaskError(
                f"{error}: drop one of the rows, or use "
                'lodeq.pipeline.load_tasks(…, on_conflict="skip")'
            ) from error


def _files_of(folder: str, parts: Iterable[ShardPart], family: str) -> list[list[str]]:
    """The files of a family, of each shard that has more than one."""
    files: dict[int, list[str]] = {}
    for part in parts:
        for mark in part.files:
            if mark.family == family:
                files.setdefault(mark.shard, []).append(os.path.join(folder, mark.name))
    return [paths for paths in files.values() if len(paths) > 1]


def _ghosts(path: str) -> Iterator[bytes]:
    for some in KeyTable.read(path).slices(4096):
        yield from (task.ghost for task in some)


class TaskWriter(DataSourceArrowWriter):
    """``df.write``. The option ``commitId`` names the load; without it the name is random."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        self._loader = _Loader(options, schema, overwrite=overwrite)
        self._job = check_job(options.text("commitId") or f"spark-{self._loader.attempt}")
        self._base_us = SystemClock().wall_us()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage one partition, in a worker."""
        return self._loader.stage(iterator, self._job, self._base_us)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the load after all its tasks."""
        self._loader.publish(messages, self._base_us)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Clean up after a task failed, or something after the commit."""
        self._loader.abort(messages, self._job)


class TaskStreamWriter(DataSourceStreamArrowWriter):
    """``writeStream``: each batch is a load, named by the query (``appId``) and its number.

    The query cannot write a refused batch again, because it has committed it. So rows whose dedup
    key is taken are left out, unless ``onConflict`` says otherwise, and after a refusal no batch
    is committed.
    """

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        self._loader = _Loader(options, schema, overwrite=overwrite, conflict="skip")
        self._app = check_job(options.needed("appId", "it names this query's loads for good"))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage one partition, in a worker. Times count from the task: the writer outlives it."""
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        if batch is None:
            raise UsageError("Spark does not say which batch this is: use foreachBatch")
        job = check_job(f"{self._app}-{batch}")
        return self._loader.stage(iterator, job, SystemClock().wall_us())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the load of a batch after all its tasks."""
        check_batches(self._loader.info.path, self._app, batchId)
        self._loader.publish(messages, SystemClock().wall_us())

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Clean up after a task failed, or something after the commit."""
        self._loader.abort(messages, f"{self._app}-{batchId}")
