"""Contents of an open store, read row by row and not from the engine's memory.

The read has no ``await``, so nothing changes meanwhile. A task is recognised by the number that
``Recorder`` gave it, in a header or in front of the payload.
"""

from __future__ import annotations

import re
from typing import Any

from ....engine.records import keyspace as ks
from ....engine.records.attempts import decode_attempts
from ....engine.records.lease import DEAD_LEASE, decode_lease
from ....engine.records.result import HAS_VALUE, ResultRecord, Status, decode_result
from ....engine.records.rows import decode_index_row
from ....engine.records.task import TaskRecord, decode_task
from ....engine.records.workflow import HELD_MS
from ....engine.store.port import Rows, StoreView
from ....errors import RecordCorruptError
from ....repository.api.engine import Engine
from ....repository.api.view import view_of
from ....repository.model.codec import decode_headers, decode_value

__all__ = ["HEADER", "at_rest", "contents", "number_in"]

HEADER = "history"  # the recorder's header
_NUMBER = re.compile(rb"(\d+):")
_KINDS = {ks.READY: "ready", ks.DELAYED: "delayed", ks.DEAD: "dead"}
_Location = tuple[str, int, int]  # kind, attempts, epoch of the lease


def number_in(headers: Any, payload: object) -> int | None:
    """Return the number of a task; None if it has none."""
    number = headers.get(HEADER)
    if isinstance(number, int):
        return number
    found = _NUMBER.match(payload) if isinstance(payload, bytes) else None
    return int(found[1]) if found else None


async def at_rest(engine: Engine) -> None:
    """Wait until nothing is queued, so that memory and disk agree.

    In fsync mode also wait until all of it is durable, as for any other answer.
    """
    await view_of(engine).quiesce()


def contents(engine: Engine) -> dict[str, Any]:
    """Return tasks (id, number, locations), results (id, status, attempts) and counters.

    ``rows`` are counted from the rows, ``counted`` are the engine's counters. ``lost`` has the
    numbers of tasks whose payload cannot be read. ``ends``: of results with a history, whether they
    have a value, when they ended, for how long value and row are kept (microseconds), and how many
    attempts are kept with them.
    """
    view = view_of(engine)
    tasks: list[list[Any]] = []
    lost: list[int | None] = []
    results: list[list[Any]] = []
    rows: dict[str, dict[str, int]] = {}
    ends: dict[str, list[int]] = {}
    for shard, store in view.stores():
        where = _locations(store)
        for key, raw in _all(store, ks.TASK, ks.TASK_END):
            task = decode_task(raw)
            at = where.pop(key[2:], [])
            try:
                number = _number_of(view.with_body(shard, key[2:], task))
            except RecordCorruptError:  # its payload is lost; its headers are in the record
                number = number_in(decode_headers(task.headers), None)
                lost.append(number)
            tasks.append([key[2:].hex(), number, at])
            for kind, _, _ in at:
                _count(rows, task.queue, task.tenant, "leased" if kind == "held" else kind)
        _count_waiting(rows, store)
        for task_id, at in where.items():  # no task: its number is unknown
            tasks.append([task_id.hex(), None, at])
        for key, raw in _all(store, ks.RESULT, ks.RESULT_END):
            result = decode_result(raw)
            status = Status(result.status).name.lower()
            results.append([key[2:].hex(), status, result.attempts])
            if result.history_s:
                ends[key[2:].hex()] = _end(store, key[2:], result)
            _count(rows, result.queue, result.tenant, "results")
    counted: dict[str, dict[str, int]] = {}
    for queue, tenant, sums in view.counters():
        counts = {name: n for name, n in sums._asdict().items() if n}
        if counts:
            counted[_name(queue, tenant)] = counts
    kept = {"ends": ends} if ends else {}
    return kept | {
        "tasks": tasks,
        "lost": lost,
        "results": results,
        "rows": rows,
        "counted": counted,
        "anomalies": view.anomalies,
    }


def _end(view: StoreView, task_id: bytes, result: ResultRecord) -> list[int]:
    raw = view.get(ks.ATTEMPTS + task_id)
    attempts = len(decode_attempts(raw)) if raw is not None else 0
    has_value = int(bool(result.flags & HAS_VALUE))
    kept_us = result.retention_ms * 1000, result.history_s * 1_000_000
    return [has_value, result.finished_us, *kept_us, attempts]


def _all(view: StoreView, lower: bytes, upper: bytes) -> Rows:
    return view.scan(lower, upper, 1 << 20)


def _locations(view: StoreView) -> dict[bytes, list[_Location]]:
    """Return the locations of every task by id, from the rows of ``q/`` and ``l/``."""
    found: dict[bytes, list[_Location]] = {}
    for key, raw in _all(view, ks.INDEX, ks.INDEX_END):
        at, row = ks.decode_index_key(key), decode_index_row(raw)
        found.setdefault(at.task_id, []).append((_KINDS[at.kind], row.attempts, 0))
    for key, raw in _all(view, ks.LEASE, ks.LEASE_END):
        lease = decode_lease(raw)
        kind = "held" if lease.flags & DEAD_LEASE else "leased"
        found.setdefault(key[2:], []).append((kind, lease.attempts, lease.epoch))
    return found


def _count_waiting(rows: dict[str, dict[str, int]], view: StoreView) -> None:
    """Tasks that wait for others lie behind the delayed ones of their queue, and are counted twice.

    Args:
        rows: takes the counts, by the name of a queue.
        view: of a shard.
    """
    for key, _ in _all(view, ks.INDEX, ks.INDEX_END):
        at = ks.decode_index_key(key)
        if at.kind == ks.DELAYED and at.at >= HELD_MS:
            _count(rows, at.queue, at.tenant, "waiting")


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
