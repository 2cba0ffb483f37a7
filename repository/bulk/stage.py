"""Staging tasks by the million as files beside the engine, published in one step.

``Stage`` does in one process what Spark does in many: it encodes tasks exactly as an enqueue would,
draws their ids, sorts them by shard and family into files, and publishes a manifest. No engine is
needed; one that has the store open is not disturbed, and takes the load in (``ingest``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Final

from xxhash import xxh3_64_digest

from ...engine.bulk.inbox import (
    discard,
    is_published,
    publish,
    staging_folder,
    store_info,
    was_published,
)
from ...engine.bulk.manifest import Manifest, check_conflict, check_job
from ...engine.bulk.rows import TaskRows, rows_of
from ...engine.bulk.shard_writer import RUN_BYTES, ShardStage, merge_shard_queues
from ...engine.records.compression import Compressor
from ...engine.records.frame import checksum
from ...engine.records.keyspace import TASK, ready_prefix, shard_queue_prefix
from ...engine.records.task import (
    BODY_FLAG,
    FIRST_DELAYED,
    FIRST_READY,
    NO_GHOST,
    pack_task_times,
)
from ...engine.recovery.dedup_secret import Secrets, read_secrets
from ...engine.runtime.clock import Clock, SystemClock
from ...engine.runtime.ids import IdSource, Rng, SystemRng, first_slot_of
from ...engine.runtime.task_id import TaskId
from ...errors import ClosedError, DuplicateTaskError, UsageError
from ..model.arguments import check_on_conflict, is_plain, listed, names_of
from ..model.encoded_tasks import (
    EncodedTask,
    TaskTemplate,
    encoded_task,
    plain_values,
    simple_item,
)
from ..model.redaction import Redaction
from ..model.task_options import CONFLICT_DEFAULT
from ..model.values import Backoff, Codec, Duration, Limits, NewTask, OnStageConflict
from ..state.engine_state import NO_BODIES
from .staged_bodies import stage_body

__all__ = ["Stage", "StageEncoding", "encoded", "staged_rows"]

SIDE_BY_SIDE: Final = 256  # unkeyed tasks in a row that go to the same shard


class StageEncoding:
    """Limits, compressor, clock and secrets for encoding tasks without an engine."""

    def __init__(
        self, limits: Limits, compressor: Compressor, clock: Clock, secrets: Secrets
    ) -> None:
        self.clock = clock
        self.ghost_of = secrets.ghost_of
        self.limits = limits
        self.compressor = compressor
        self.redaction: Redaction | None = None  # what is staged was redacted by who made it
        self.body_bytes_min = NO_BODIES  # but for those that are streamed

    def keeps_faces(self, queue: bytes) -> bool:
        """Whether a task keeps its face: always, the settings of queues are the engine's own."""
        return True


def encoded(
    encoding: StageEncoding, shared: TaskTemplate, task: NewTask, now_us: int
) -> EncodedTask:
    """Encode a task, with the short path for one without options.

    Args:
        encoding: what an engine would provide.
        shared: queue, tenant and defaults.
        task: the task.
        now_us: the current wall time in microseconds.

    Raises as ``encoded_task``.
    """
    if is_plain(task):
        return simple_item(encoding, shared, task.payload)
    return encoded_task(encoding, shared, task, now_us)


def staged_rows(
    encoded: EncodedTask, task_id: bytes, now_us: int, seq: int, shards: int
) -> TaskRows:
    """The rows of a staged task.

    Args:
        encoded: the task, from ``encoded``.
        task_id: its id, drawn in the task's slot.
        now_us: the time of its enqueue, in microseconds.
        seq: its place in the order of ready tasks.
        shards: the store's number of shards.
    """
    kind = FIRST_DELAYED if encoded.due_ms else FIRST_READY
    times = pack_task_times(now_us, seq, encoded.due_ms, encoded.expires_ms)
    flags, tail, streamed_bytes = encoded.flags, encoded.tail, 0
    if encoded.is_streamed:
        flags, tail = flags | BODY_FLAG, encoded.slim_tail + task_id
        streamed_bytes = encoded.record_bytes
    record = encoded.shared.head(flags, encoded.priority, kind) + times + tail
    return rows_of(
        task_id,
        record + xxh3_64_digest(record),
        shards,
        encoded.queue,
        encoded.tenant,
        encoded.priority,
        seq,
        encoded.due_ms,
        encoded.expires_ms,
        encoded.ghost,
        encoded.ghost_expires_ms,
        encoded.routing,
        streamed_bytes,
    )


class Stage:
    """A load that is being staged. It blocks: in a service give it a thread of its own.

    ::

        with lodeq.Stage("var/jobs", "backfill-1") as stage:
            stage.add([lodeq.NewTask(b"…", queue="mail")])
            stage.publish()

    Args:
        path: a store that exists; it may be open meanwhile, here or elsewhere.
        job: the load's name: 1 to 128 of ``A-Za-z0-9._-``. A job is published only once.
        on_conflict: what to do if a task's dedup key is held when the load comes in. ``error``:
            the whole load is refused. ``skip``: the task is left out. ``replace``: the holder is
            cancelled, unless it is leased. A task whose id the store has is never replaced, but
            left out.
        limits: those of payloads and headers; ``pending_max`` has no effect.
        compression: as ``lodeq.open``.
        run_bytes: bytes of tasks gathered in memory for each shard.
        snapshot: commit number by shard of the snapshot that the tasks are made from.
        clock: another clock, for tests.
        rng: another source of randomness, for tests.

    Raises:
        StorePathError: there is no store at ``path``.
        UsageError: an argument is wrong, or this release has never opened the store.
        CorruptionError, StorageError: the store cannot be read.

    Durability: none before ``publish``. Cancellation: it does not wait.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        job: str,
        *,
        on_conflict: OnStageConflict = "error",
        limits: Limits | None = None,
        compression: str | None = None,
        run_bytes: int = RUN_BYTES,
        snapshot: Mapping[int, int] | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
    ) -> None:
        self._job = check_job(job)
        self._conflict = check_conflict(on_conflict)
        self._info = store_info(path)
        self._clock = clock if clock is not None else SystemClock()
        self._ids = IdSource(rng if rng is not None else SystemRng())
        secrets = read_secrets(self._info.path, self._info.store_id)
        self._fingerprint = secrets.fingerprint
        self._encoding = StageEncoding(
            limits or Limits(), Compressor(compression), self._clock, secrets
        )
        self._snapshot = tuple(sorted((snapshot or {}).items()))
        self._attempt = self._ids.token().hex()
        self._folder = staging_folder(self._info.path, job)
        self._shards = [
            ShardStage(self._folder, self._attempt, job=job, shard=shard, run_bytes=run_bytes)
            for shard in range(self._info.shards)
        ]
        self._fresh: Iterator[TaskId] = iter(())
        self._turn = self._ids.slot() % self._info.shards
        self._seq = 0
        self._defaults: dict[tuple[str, str], TaskTemplate] = {}
        self._is_over = False
        self.tasks = 0  # added
        self.skipped = 0  # left out: another task of the load has their dedup key

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()

    @property
    def job(self) -> str:
        """The load's name."""
        return self._job

    @property
    def is_published(self) -> bool:
        """Whether the job has been published, by this stage or another."""
        return is_published(self._info.path, self._job)

    def add(
        self,
        tasks: Iterable[NewTask],
        *,
        queue: str | None = None,
        tenant: str = "",
        max_attempts: int = 5,
        retention: Duration = 3600.0,
        dead_retention: Duration = 604_800.0,
        backoff: Backoff | None = None,
        codec: Codec | None = None,
    ) -> list[TaskId | None]:
        """Stage tasks; delays, TTLs and windows count from now.

        Args:
            tasks: as for ``Engine.enqueue_many``; their ``on_conflict`` must be the default.
            queue: the queue of tasks that name none. The other options are those of
                ``Engine.queue``, and hold for tasks of this queue and tenant only.

        Returns: their ids in order; None for a task that was left out with ``on_conflict="skip"``,
        because an earlier one has the same dedup key.

        Raises:
            UsageError, InvalidNameError, PayloadTooLargeError: none of the call is staged.
            DuplicateTaskError: two tasks have one dedup key; those before it are staged.
            StorageFullError, StorageError: the disk failed; leave the stage.

        Durability: none before ``publish``. Cancellation: it does not wait.
        """
        self._check()
        names = None if queue is None else names_of(queue, tenant)
        base = (
            None
            if names is None
            else TaskTemplate(
                *names,
                max_attempts=max_attempts,
                retention=retention,
                dead_retention=dead_retention,
                backoff=backoff,
                codec=codec,
            )
        )
        now_us = self._clock.wall_us()
        given = listed(tasks)
        if base is not None and not self._encoding.compressor.code:
            limits = self._encoding.limits
            plain = plain_values(base, given, limits.payload_bytes_max, limits.value_bytes_max)
            if plain is not None:
                return self._place_plain(base, plain[0], now_us)
        encoded_tasks = [self._item(task, base, now_us) for task in given]
        return [self._place(encoded) for encoded in encoded_tasks]

    def _check(self) -> None:
        if self._is_over:
            raise ClosedError("the stage is published or discarded: make another, with another job")

    def _item(self, task: NewTask, base: TaskTemplate | None, now_us: int) -> EncodedTask:
        if not isinstance(task, NewTask):
            raise UsageError(f"tasks must be lodeq.NewTask, not {type(task).__name__}")
        if check_on_conflict(task.on_conflict) != CONFLICT_DEFAULT:
            raise UsageError("on_conflict holds for the whole load: use Stage(on_conflict=…)")
        if base is not None and task.queue is None and task.tenant is None:
            return encoded(self._encoding, base, task, now_us)
        if task.queue is None and base is None:
            raise UsageError("a staged task needs a queue: NewTask(queue=…) or add(queue=…)")
        queue: Any = task.queue
        if queue is None and base is not None:
            queue = base.queue.decode()
        tenant = task.tenant if task.tenant is not None else ""
        if task.tenant is None and base is not None:
            tenant = base.tenant.decode()
        if not (isinstance(queue, str) and isinstance(tenant, str)):
            names_of(queue, tenant)  # raises: what is no text may not even be a key
        defaults = self._defaults.get((queue, tenant))
        if defaults is None:
            defaults = self._defaults[queue, tenant] = TaskTemplate(*names_of(queue, tenant))
        return encoded(self._encoding, defaults, task, now_us)

    def _id(self, encoded: EncodedTask, now_ms: int) -> bytes:
        if encoded.slot is not None:
            return self._ids.new(now_ms, encoded.slot)
        return self._unkeyed(now_ms, 1)[0]

    def _unkeyed(self, now_ms: int, count: int) -> list[TaskId]:
        """Up to ``count`` ids, at least one, of the shard whose turn it is."""
        ids = list(islice(self._fresh, count))
        if not ids:
            shards = self._info.shards
            self._turn = (self._turn + 1) % shards
            first = first_slot_of(self._turn, shards)
            slots = first_slot_of(self._turn + 1, shards) - first
            slot = first + self._ids.slot() % slots
            self._fresh = iter(self._ids.run(now_ms, slot, SIDE_BY_SIDE))
            ids = list(islice(self._fresh, count))
        return ids

    def _place_plain(
        self, shared: TaskTemplate, values: Sequence[tuple[int, bytes]], now_us: int
    ) -> list[TaskId | None]:
        """``_place`` for tasks without options, in one tight loop; see ``fast_path``."""
        plain, heads = shared.plain, shared.plain_heads
        prefix = ready_prefix(shard_queue_prefix(shared.queue, shared.tenant), 5)
        placed: list[TaskId | None] = []
        while len(placed) < len(values):
            ids = self._unkeyed(now_us // 1000, len(values) - len(placed))
            first = max(now_us, self._seq + 1)
            seqs = range(first, first + len(ids))
            part = values[len(placed) : len(placed) + len(ids)]
            records, index = [], []
            for task_id, seq, (kind, data) in zip(ids, seqs, part, strict=True):
                size = len(data)
                pack, middle, value = plain.get(size) or shared.plain_parts(size)
                body = pack(heads[kind], now_us, seq, middle, data)
                records.append((TASK + task_id, body + checksum(body)))
                index.append((prefix + seq.to_bytes(8, "big") + task_id, value))
            self._seq = seqs[-1]
            shard = self._shards[self._turn]
            shard.add_ready(shared.queue, shared.tenant, 5, records, index, seqs)
            self.tasks += len(ids)
            placed += ids
        return placed

    def _place(self, encoded: EncodedTask) -> TaskId | None:
        now_us = self._clock.wall_us()
        seq = self._seq = now_us if now_us > self._seq else self._seq + 1
        task_id = self._id(encoded, now_us // 1000)
        rows = staged_rows(encoded, task_id, now_us, seq, self._info.shards)
        shard = self._shards[rows.shard]
        if rows.ghost != NO_GHOST and shard.holds(rows.ghost):
            if self._conflict != "skip":
                raise DuplicateTaskError(
                    f"two tasks of queue {rows.queue.decode()!r} have one dedup key: give each key "
                    "once, or use on_conflict='skip'"
                )
            self.skipped += 1
            return None
        body = None
        if encoded.is_streamed and encoded.body is not None:
            body = stage_body(self._folder, self._attempt, rows.shard, task_id, encoded.body)
        shard.add(rows, body)
        self.tasks += 1
        return TaskId(task_id)

    def publish(self) -> bool:
        """Publish the load: from now on an engine takes in all of it.

        Returns: False if the job is published already; then what was staged here is removed.

        Raises:
            ClosedError: it has been published or discarded.
            StorageFullError, StorageError: the disk failed; it is not published: try again.

        Durability: on return it survives a power cut. Cancellation: it does not wait.
        """
        self._check()
        if was_published(self._info.path, self._job):  # and its folder may be removed just now
            self.discard()
            return False
        parts = [shard.finish() for shard in self._shards]
        manifest = Manifest(
            self._job,
            self._info.store_id,
            self._info.shards,
            self._conflict,
            self._clock.wall_us(),
            max(part.seq_max for part in parts),
            tuple(mark for part in parts for mark in part.files),
            merge_shard_queues(parts),
            self._snapshot,
            secret=self._fingerprint,
        )
        is_new = publish(self._info.path, manifest, self._attempt)
        if is_new:
            self._is_over = True
        else:
            self.discard()
        return is_new

    def discard(self) -> None:
        """Remove what was staged, unless it was published. Idempotent."""
        if not self._is_over:
            self._is_over = True
            try:
                found = os.listdir(self._folder)
            except FileNotFoundError:
                return  # the job came in meanwhile, by another stage
            names = [name for name in found if name.startswith(self._attempt)]
            discard(self._info.path, self._job, names)
