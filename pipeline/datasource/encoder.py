"""Encode rows of a data frame as rows of tasks: checked, and with the same result every time.

A Spark task that runs again must stage the same rows as before. So nothing here is random: the
random part of an id is a hash of the load's name, the partition and the number of the row, and
times count from one moment of the load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from xxhash import xxh3_128_digest

from ...engine.bulk.rows import TaskRows
from ...engine.records.compression import Compressor
from ...engine.recovery.dedup_secret import Secrets
from ...engine.runtime.clock import SystemClock
from ...engine.runtime.ids import SLOTS, is_task_id
from ...engine.runtime.task_id import TaskId
from ...errors import LodeqError, RecordCorruptError, UsageError
from ...repository.bulk.stage import StageEncoding, encoded, staged_rows
from ...repository.model.arguments import names_of
from ...repository.model.codec import MSGPACK, PackedBytes, decode_value
from ...repository.model.encoded_tasks import EncodedTask, TaskTemplate
from ...repository.model.json_values import loads
from ...repository.model.values import PAYLOAD_BYTES_MAX, Limits, NewTask

__all__ = ["TASK_COLUMNS", "Policy", "TaskEncoder", "rows_of"]

TASK_COLUMNS: Final = {  # name → Spark's types it may have; payload takes any
    "queue": ("string",),
    "tenant": ("string",),
    "payload": (),
    "payload_kind": ("string",),
    "priority": ("tinyint", "smallint", "int", "bigint"),
    "run_at": ("timestamp",),
    "delay": ("int", "bigint", "float", "double"),
    "ttl": ("int", "bigint", "float", "double"),
    "expires_at": ("timestamp",),
    "max_attempts": ("tinyint", "smallint", "int", "bigint"),
    "dedup_key": ("string", "binary"),
    "dedup_window": ("int", "bigint", "float", "double"),
    "shard_key": ("string", "binary"),
    "headers": ("map<string,string>",),
    "function": ("string",),
    "preview": ("string",),
    "labels": ("map<string,string>",),
    "id": ("binary",),
    "slot": ("int",),
    "position": ("int", "bigint"),
}
POSITION_MAX: Final = (1 << 33) - 1  # a task of it is in line as one of more than two hours later
_KIND_BITS, _CODEC = 3, 2  # of a record's flags: the kind of its payload
_VARIANT: Final = 1 << 63
_RAND: Final = (1 << 62) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LIMITS: Final = Limits(payload_bytes_max=PAYLOAD_BYTES_MAX)  # what some store has may come again


@dataclass(frozen=True, slots=True)
class Policy:
    """Defaults for columns that a row does not have; times in seconds."""

    queue: str | None = None
    tenant: str = ""
    max_attempts: int = 5
    retention: float = 3600.0
    dead_retention: float = 604_800.0

    def check(self) -> None:
        """Raise ``UsageError`` if no task can have this policy."""
        self.defaults(self.queue if self.queue is not None else "any", self.tenant)

    def defaults(self, queue: object, tenant: object) -> TaskTemplate:
        """Return the template for tasks of one queue and tenant. Raises as ``check``."""
        return TaskTemplate(
            *names_of(queue, tenant),
            max_attempts=self.max_attempts,
            retention=self.retention,
            dead_retention=self.dead_retention,
        )


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | UsageError]:
    """Yield rows as Python values; for a row that Python cannot represent, the error."""
    try:
        rows = batch.to_pylist(maps_as_pydicts="strict")
    except (ValueError, OverflowError):  # a time beyond the year 9999, somewhere
        yield from (_row_of(batch, number) for number in range(batch.num_rows))
    else:
        yield from rows


def _row_of(batch: pa.RecordBatch, number: int) -> dict[str, Any] | UsageError:
    row = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            row[name] = column[number].as_py(maps_as_pydicts="strict")
        except (ValueError, OverflowError) as exc:
            return UsageError(f"{name} cannot be read: {exc}")
    return row


class TaskEncoder:
    """Encodes the rows of one partition of one load.

    Args:
        job: name of the load.
        partition: its number.
        base_us: the moment that times count from.
        shards: of the store.
        policy: defaults for the rows.
        secrets: of the store, read in the worker: Spark's plans must not contain them.
    """

    def __init__(
        self, job: str, partition: int, base_us: int, shards: int, policy: Policy, secrets: Secrets
    ) -> None:
        self._stem = f"{job}/{partition}/"
        self._partition = partition
        self._base_us = base_us
        self._shards = shards
        self._policy = policy
        self._encoding = StageEncoding(_LIMITS, Compressor(None), SystemClock(), secrets)
        self._defaults: dict[tuple[object, object], TaskTemplate] = {}
        self._row = 0

    def task(self, row: Mapping[str, Any] | UsageError) -> tuple[TaskRows, bytes | None]:
        """Encode the next row of the partition, as ``rows_of`` yields it.

        Returns: the rows of the task, and its payload if that is a streamed one.

        Raises:
            UsageError, InvalidNameError, PayloadTooLargeError: it cannot be a task; the message
                names the row and the reason.
        """
        number = self._row
        self._row += 1
        try:
            if isinstance(row, UsageError):
                raise row
            return self._task(row, number)
        except LodeqError as exc:
            exc.args = (f"row {number} of partition {self._partition}: {exc}", *exc.args[1:])
            raise

    def _task(self, row: Mapping[str, Any], number: int) -> tuple[TaskRows, bytes | None]:
        given = {name: value for name, value in row.items() if value is not None}
        item = self._item(given)
        task_id = self._id(item, given, number)
        position = given.get("position", number)
        if not 0 <= position <= POSITION_MAX:
            raise UsageError(f"expected a position of 0 to {POSITION_MAX:,}, got {position:,}")
        seq = self._base_us + position  # another row may have the same: then the id decides
        rows = staged_rows(item, task_id, self._base_us, seq, self._shards)
        return rows, item.body

    def _item(self, given: dict[str, Any]) -> EncodedTask:
        task = NewTask(
            _payload(given),
            priority=given.get("priority", 5),
            delay=given.get("delay"),
            run_at=_aware(given.get("run_at")),
            ttl=given.get("ttl"),
            dedup_key=given.get("dedup_key"),
            dedup_window=given.get("dedup_window"),
            headers=None if "headers" not in given else dict(given["headers"]),
            max_attempts=given.get("max_attempts"),
            shard_key=given.get("shard_key"),
            labels=None if "labels" not in given else dict(given["labels"]),
            function=given.get("function"),
            preview=given.get("preview"),
        )
        item = encoded(self._encoding, self._shared(given), task, self._base_us)
        if given.get("payload_kind") == "codec":
            item.flags = item.flags & ~_KIND_BITS | _CODEC
        if expires_at := _aware(given.get("expires_at")):
            if task.ttl is not None:
                raise UsageError("give ttl or expires_at, not both")
            item.expires_ms = (expires_at - _EPOCH) // timedelta(milliseconds=1)
        return item

    def _shared(self, given: Mapping[str, Any]) -> TaskTemplate:
        policy = self._policy
        names = given.get("queue", policy.queue), given.get("tenant", policy.tenant)
        shared = self._defaults.get(names)
        if shared is None:
            if names[0] is None:
                raise UsageError("a task needs a queue: a column 'queue', or the option")
            shared = self._defaults[names] = policy.defaults(*names)
        return shared

    def _id(self, item: EncodedTask, given: Mapping[str, Any], number: int) -> bytes:
        slot = item.slot
        if (asked := given.get("slot")) is not None:
            if not 0 <= asked < SLOTS or slot not in (None, asked):
                raise UsageError(f"slot {asked} is not that of its key, {slot}")
            slot = asked
        if (carried := given.get("id")) is not None:
            task_id = TaskId(bytes(carried))
            if not is_task_id(task_id):
                raise UsageError(f"{task_id} is no id of a task, which is a UUID of version 7")
            if slot is not None and task_id.slot != slot:
                raise UsageError(f"id {task_id} has slot {task_id.slot}, its key {slot}")
            return task_id
        drawn = xxh3_128_digest(f"{self._stem}{number}".encode())
        low = int.from_bytes(drawn[:8], "big")
        if slot is None:
            slot = int.from_bytes(drawn[8:10], "big") % SLOTS
        high = (self._base_us // 1000) << 16 | 0x7000 | slot
        return (high << 64 | _VARIANT | low & _RAND).to_bytes(16, "big")


def _payload(given: Mapping[str, Any]) -> Any:
    if "payload" not in given:
        raise UsageError("a task needs a payload; it may be empty")
    payload, kind = given["payload"], given.get("payload_kind")
    if kind is None or (kind in ("raw", "codec") and isinstance(payload, bytes)):
        return payload
    if kind == "json" and isinstance(payload, str):
        try:
            return loads(payload)
        except (ValueError, RecursionError) as exc:
            raise UsageError(f"the payload is not JSON: {exc}") from exc
    if kind != "msgpack" or not isinstance(payload, bytes):
        raise UsageError(
            f"payload_kind {kind!r} must be raw, msgpack or codec with a binary payload, or json "
            "with a text"
        )
    try:
        decode_value(MSGPACK, 0, payload, len(payload), None)
    except RecordCorruptError as exc:
        raise UsageError(f"the {exc}") from exc
    return PackedBytes(payload)


def _aware(value: datetime | None) -> datetime | None:
    """Add UTC to a naive datetime: Spark's timestamps are instants."""
    return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value
