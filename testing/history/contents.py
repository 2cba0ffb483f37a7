"""What is in an open store, read row by row, past everything the engine keeps in memory.

Taken in one go without an ``await``: nothing moves meanwhile. A task is recognised by the number
that ``Recorder`` gave it: in its headers, or in front of its payload.
"""

from __future__ import annotations

import re
from typing import Any

from ...engine.records import keyspace as ks
from ...engine.records.lease import decode_lease
from ...engine.records.result import Status, decode_result
from ...engine.records.rows import decode_index_row
from ...engine.records.task import TaskRecord, decode_task
from ...engine.store.port import Rows, StoreView
from ...errors import RecordCorruptError
from ...repository.api.engine import Engine
from ...repository.model.codec import decode_headers, decode_value
from ...repository.state.queue_state import Shard

__all__ = ["HEADER", "at_rest", "contents", "number_in"]

HEADER = "history"  # the reserved header
_NUMBER = re.compile(rb"(\d+):")
_KINDS = {ks.READY: "ready", ks.DELAYED: "delayed", ks.DEAD: "dead"}
_COUNTED = ("ready", "delayed", "leased", "dead", "results")
_Place = tuple[str, int, int]  # kind, attempts, epoch of the lease


def number_in(headers: Any, payload: object) -> int | None:
    """The number of a task; None if it has none."""
    number = headers.get(HEADER)
    if isinstance(number, int):
        return number
    found = _NUMBER.match(payload) if isinstance(payload, bytes) else None
    return int(found[1]) if found else None


async def at_rest(engine: Engine) -> None:
    """Until nothing is queued: memory and disk agree at this moment.

    In fsync mode also until all of it is durable, as any answer is: a look is one.
    """
    core = engine._core

    def is_busy(shard: Shard) -> bool:
        co = shard.co
        is_loose = core.is_fsync and co.durable_number < co.applied_number
        return co.poison is None and (bool(co.pending()) or is_loose)

    while any(is_busy(shard) for shard in core.shards):
        for shard in core.shards:
            if shard.co.poison is None:
                await core.settled(shard, is_durable=core.is_fsync)


def contents(engine: Engine) -> dict[str, Any]:
    """Tasks (id, number, places), results (id, status, attempts), and both sums of the counters.

    ``lost``: the numbers of those tasks whose payload cannot be read.
    """
    core = engine._core
    tasks: list[list[Any]] = []
    lost: list[int | None] = []
    results: list[list[Any]] = []
    rows: dict[str, dict[str, int]] = {}
    for shard in core.shards:
        where = _places(shard.store)
        for key, raw in _all(shard.store, ks.TASK, ks.TASK_END):
            task = decode_task(raw)
            at = where.pop(key[2:], [])
            try:
                number = _number_of(shard.whole_task(key[2:], task))
            except RecordCorruptError:  # its payload is lost; its headers are in the record
                number = number_in(decode_headers(task.headers), None)
                lost.append(number)
            tasks.append([key[2:].hex(), number, at])
            for kind, _, _ in at:
                _count(rows, task.queue, task.tenant, kind)
        for task_id, at in where.items():  # no task: its number is unknown
            tasks.append([task_id.hex(), None, at])
        for key, raw in _all(shard.store, ks.RESULT, ks.RESULT_END):
            result = decode_result(raw)
            status = Status(result.status).name.lower()
            results.append([key[2:].hex(), status, result.attempts])
            _count(rows, result.queue, result.tenant, "results")
    counted: dict[str, dict[str, int]] = {}
    for topic in core.topics.values():
        for lane in topic.lanes.values():
            counts = {
                name: n
                for name in _COUNTED
                if (n := sum(getattr(b, name) for b in lane.buckets if b is not None))
            }
            if counts:
                counted[_name(topic.queue, lane.tenant)] = counts
    return {
        "tasks": tasks,
        "lost": lost,
        "results": results,
        "rows": rows,
        "counted": counted,
        "anomalies": list(core.anomalies),
    }


def _all(view: StoreView, lower: bytes, upper: bytes) -> Rows:
    return view.scan(lower, upper, 1 << 20)


def _places(view: StoreView) -> dict[bytes, list[_Place]]:
    """Where every task is: the rows of ``q/`` and ``l/`` by id."""
    found: dict[bytes, list[_Place]] = {}
    for key, raw in _all(view, ks.INDEX, ks.INDEX_END):
        at, row = ks.decode_index_key(key), decode_index_row(raw)
        found.setdefault(at.task_id, []).append((_KINDS[at.kind], row.attempts, 0))
    for key, raw in _all(view, ks.LEASE, ks.LEASE_END):
        lease = decode_lease(raw)
        found.setdefault(key[2:], []).append(("leased", lease.attempts, lease.epoch))
    return found


def _number_of(task: TaskRecord) -> int | None:
    flags = task.flags
    payload: object = task.payload
    if not flags & 3:
        payload = decode_value(0, flags >> 2 & 3, task.payload, task.raw_bytes, None)
    return number_in(decode_headers(task.headers), payload)


def _name(queue: bytes, tenant: bytes) -> str:
    return f"{queue.decode()}/{tenant.decode()}" if tenant else queue.decode()


def _count(rows: dict[str, dict[str, int]], queue: bytes, tenant: bytes, kind: str) -> None:
    counts = rows.setdefault(_name(queue, tenant), {})
    counts[kind] = counts.get(kind, 0) + 1
