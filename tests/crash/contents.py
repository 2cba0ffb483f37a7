"""What is in an open store, read row by row, past everything the engine keeps in memory.

Taken in one go without an ``await``: nothing moves meanwhile. Payloads start with ``b"<number>:"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lodeq.engine import keyspace as ks
from lodeq.engine.records.lease import decode_lease
from lodeq.engine.records.result import Status, decode_result
from lodeq.engine.records.rows import decode_index_row
from lodeq.engine.records.task import decode_task

if TYPE_CHECKING:
    import lodeq
    from lodeq.engine.store import Rows, StoreView

KINDS = {ks.READY: "ready", ks.DELAYED: "delayed", ks.DEAD: "dead"}
COUNTED = ("ready", "delayed", "leased", "dead", "results")
Place = tuple[str, int, int]  # kind, attempts, epoch of the lease


def everything(view: StoreView, lower: bytes, upper: bytes) -> Rows:
    return view.scan(lower, upper, 1 << 20)


def places(view: StoreView) -> dict[bytes, list[Place]]:
    """Where every task is: the rows of ``q/`` and ``l/`` by id."""
    found: dict[bytes, list[Place]] = {}
    for key, raw in everything(view, ks.INDEX, ks.INDEX_END):
        at, row = ks.decode_index_key(key), decode_index_row(raw)
        found.setdefault(at.task_id, []).append((KINDS[at.kind], row.attempts, 0))
    for key, raw in everything(view, ks.LEASE, ks.LEASE_END):
        lease = decode_lease(raw)
        found.setdefault(key[2:], []).append(("leased", lease.attempts, lease.epoch))
    return found


async def at_rest(engine: lodeq.Engine) -> None:
    """Until nothing is queued: memory and disk agree at this moment."""
    shards = engine._core.shards
    while any(shard.co.pending() for shard in shards):
        for shard in shards:
            await engine._core.settled(shard)


def contents(engine: lodeq.Engine) -> dict:
    """Tasks (id, number, places), results (id, status, attempts), and both sums of the counters."""
    core = engine._core
    tasks: list = []
    results: list = []
    rows: dict[str, dict[str, int]] = {}
    for shard in core.shards:
        where = places(shard.store)
        for key, raw in everything(shard.store, ks.TASK, ks.TASK_END):
            task = decode_task(raw)
            number = int(task.payload.partition(b":")[0])
            at = where.pop(key[2:], [])
            tasks.append([key[2:].hex(), number, at])
            for kind, _, _ in at:
                _count(rows, task.queue, kind)
        for task_id, at in where.items():  # no task: its number is unknown
            tasks.append([task_id.hex(), None, at])
        for key, raw in everything(shard.store, ks.RESULT, ks.RESULT_END):
            result = decode_result(raw)
            status = Status(result.status).name.lower()
            results.append([key[2:].hex(), status, result.attempts])
            _count(rows, result.queue, "results")
    counted = {
        topic.queue.decode(): {
            name: n for name in COUNTED
            if (n := sum(getattr(b, name) for lane in topic.lanes.values() for b in lane.buckets
                         if b is not None))
        }
        for topic in core.topics.values()
    }  # fmt: skip
    return {
        "tasks": tasks,
        "results": results,
        "rows": rows,
        "counted": {name: counts for name, counts in counted.items() if counts},
        "anomalies": list(core.anomalies),
    }


def _count(rows: dict[str, dict[str, int]], queue: bytes, kind: str) -> None:
    counts = rows.setdefault(queue.decode(), {})
    counts[kind] = counts.get(kind, 0) + 1
