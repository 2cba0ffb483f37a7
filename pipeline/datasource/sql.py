"""Keys, slots and shards as Spark expressions, so that Spark computes them in bulk.

Each is equal, byte for byte, to the function of the same name in ``engine/runtime/ids.py`` or
``engine/records/keyspace.py``. Spark compares bytes as RocksDB does, so ``orderBy`` of a key gives
the order of the store.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql.functions import (
    concat,
    conv,
    hex,
    length,
    lit,
    lpad,
    pmod,
    shiftright,
    substring,
    unhex,
    when,
    xxhash64,
)

from ...engine.records.keyspace import DEAD, DELAYED, INDEX, LEASE, MOVED, READY, RESULT, TASK
from ...engine.runtime.ids import SLOT_BITS, SLOTS
from ...errors import UsageError

__all__ = [
    "dead_key",
    "delayed_key",
    "lease_key",
    "moved_key",
    "ready_key",
    "result_key",
    "routing_key",
    "shard_of",
    "shard_of_slot",
    "shard_queue_prefix",
    "slot_of",
    "slot_of_id",
    "task_key",
]

_NUL = b"\0"


def _bytes(value: Column) -> Column:
    """Return text as UTF-8, and bytes unchanged."""
    return value.cast("binary")


def _fixed(value: Column, size: int) -> Column:
    """Return a whole number as ``size`` bytes, big-endian."""
    return unhex(lpad(hex(value.cast("bigint")), 2 * size, "0"))


def slot_of(routing: Column) -> Column:
    """Return the slot of a routing key: a shard key, or ``routing_key`` of a dedup key."""
    return pmod(xxhash64(_bytes(routing)), lit(SLOTS)).cast("int")


def routing_key(queue: Column, tenant: Column, dedup_key: Column) -> Column:
    """Return the routing key of a dedup key."""
    nul = lit(_NUL)
    return concat(_bytes(queue), nul, _bytes(tenant), nul, _bytes(dedup_key))


def shard_of_slot(slot: Column, shards: int) -> Column:
    """Return the shard of a slot, out of ``shards``.

    Raises ``UsageError`` where there cannot be so many.
    """
    if not 1 <= shards <= SLOTS:
        raise UsageError(f"{shards} shards: there are 1 to {SLOTS}")
    return shiftright(slot.cast("int") * lit(shards), SLOT_BITS).cast("int")


def slot_of_id(task_id: Column) -> Column:
    """Return the slot in an id of 16 bytes."""
    pair = conv(hex(substring(task_id, 7, 2)), 16, 10).cast("int")
    return when(length(task_id) == 16, pair.bitwiseAND(lit(SLOTS - 1)))


def shard_of(task_id: Column, shards: int) -> Column:
    """Return the shard of a task, out of ``shards``. Raises as ``shard_of_slot``."""
    return shard_of_slot(slot_of_id(task_id), shards)


def shard_queue_prefix(queue: Column, tenant: Column) -> Column:
    """Return the prefix of every index key of a queue and tenant."""
    nul = lit(_NUL)
    return concat(lit(INDEX), _bytes(queue), nul, _bytes(tenant), nul)


def ready_key(prefix: Column, priority: Column, seq: Column, task_id: Column) -> Column:
    """Return the index key of a ready task.

    Args:
        prefix: from ``shard_queue_prefix``.
        priority: 0 to 9.
        seq: its sequence number.
        task_id: 16 bytes.
    """
    return concat(prefix, lit(READY), _fixed(lit(9) - priority, 1), _fixed(seq, 8), task_id)


def delayed_key(prefix: Column, due_ms: Column, seq: Column, task_id: Column) -> Column:
    """Return the index key of a delayed task.

    Args:
        prefix: from ``shard_queue_prefix``.
        due_ms: milliseconds since 1970.
        seq: its sequence number.
        task_id: 16 bytes.
    """
    return concat(prefix, lit(DELAYED), _fixed(due_ms, 8), _fixed(seq, 8), task_id)


def dead_key(prefix: Column, died_ms: Column, task_id: Column) -> Column:
    """Return the index key of a dead letter."""
    return concat(prefix, lit(DEAD), _fixed(died_ms, 8), task_id)


def task_key(task_id: Column) -> Column:
    """Return the key of a task's record."""
    return concat(lit(TASK), task_id)


def moved_key(task_id: Column) -> Column:
    """Return the key of the row that says where a task is."""
    return concat(lit(MOVED), task_id)


def lease_key(task_id: Column) -> Column:
    """Return the key of a lease."""
    return concat(lit(LEASE), task_id)


def result_key(task_id: Column) -> Column:
    """Return the key of a result."""
    return concat(lit(RESULT), task_id)
