"""A queue's tasks by state, page by page, and its counts.

Reads as ``lookup`` does; bounded work between yields.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from ..engine.keyspace import (
    DEAD,
    DELAYED,
    EXPIRY,
    EXPIRY_END,
    READY,
    RESULT,
    prefix_end,
)
from ..engine.records.frame import attempt
from ..engine.records.lease import LeaseRecord
from ..engine.records.result import Status, decode_result
from ..engine.records.rows import MOVED_ROW, IndexRow, decode_expiry, decode_index_row
from ..engine.verify import bucket_of, result_due_ms
from ..errors import UsageError
from .core import Core
from .ending import DAMAGED
from .following import foreign_head_seq, foreign_leases
from .lease import Lease
from .lookup import (
    finished_task,
    foreign_or_damaged,
    leased_or_damaged,
    placed_task,
)
from .paging import find_floor
from .picking import head_seq
from .state import Lane, Shard
from .sweep import note_deleted
from .values import QueueStats, Task

__all__ = ["LIST_STATES", "list_tasks", "queue_stats"]

_KINDS = {"ready": READY, "delayed": DELAYED, "dead": DEAD}
_STATUSES = {"completed": Status.COMPLETED, "expired": Status.EXPIRED,
             "cancelled": Status.CANCELLED}  # fmt: skip
LIST_STATES = (*_KINDS, "leased", *_STATUSES)
_PAGE = 64
_LOOKS = 256  # reads of results between two turns of the loop
_RESULT_KINDS = b"rc"
UNREADABLE = IndexRow(MOVED_ROW, 0, 0, 0, 0, DAMAGED)  # stands in for a damaged index row


async def list_tasks(
    core: Core, queue: bytes, tenant: bytes | None, state: str, limit: int, after: Task | None
) -> list[Task]:
    """See ``Queue.list``."""
    if state not in LIST_STATES:
        raise UsageError(f"state {state!r} is not one of {', '.join(LIST_STATES)}")
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 10_000:
        raise UsageError(f"limit {limit!r} is not between 1 and 10000")
    if after is not None and (not isinstance(after, Task) or not after.position):
        raise UsageError("after= takes the last Task of the previous page")
    position = after.position if after is not None else b""
    if state in _STATUSES:
        found = await _list_finished(core, queue, tenant, _STATUSES[state], limit, position)
    elif state == "leased":
        found = await _list_leased(core, queue, tenant, limit, position)
    else:
        found = await _list_rows(core, queue, tenant, _KINDS[state], limit, position)
    for shard in core.shards:
        await core.settled(shard)
    return found


def _lanes(core: Core, queue: bytes, tenant: bytes | None) -> list[Lane]:
    topic = core.topics.get(queue)
    if topic is None:
        return []
    names = sorted(topic.lanes) if tenant is None else [tenant]
    return [topic.lanes[name] for name in names if name in topic.lanes]


async def _list_leased(
    core: Core, queue: bytes, tenant: bytes | None, limit: int, position: bytes
) -> list[Task]:
    mine: list[tuple[bytes, Shard, Lease | LeaseRecord]] = [
        (lease.leased_us.to_bytes(8, "big") + lease.task_id, lease.bucket.shard, lease)
        for lease in core.leases.values()
        if lease.bucket.lane.queue == queue and tenant in (None, lease.bucket.lane.tenant)
    ]
    for shard, task_id, record in foreign_leases(core):
        if record.queue == queue and tenant in (None, record.tenant):
            mine.append((record.leased_us.to_bytes(8, "big") + task_id, shard, record))
    mine.sort(key=itemgetter(0))
    out: list[Task] = []
    looks = 0
    for at, shard, found in mine:
        if at <= position:
            continue
        if isinstance(found, LeaseRecord):
            out.append(foreign_or_damaged(core, shard, at[8:], found))
        elif found.is_live:  # it may have ended since it was noted
            out.append(leased_or_damaged(core, shard, found))
        if len(out) >= limit:
            break
        looks += 1
        if looks % _PAGE == 0:
            await core.spawner.checkpoint()
    return out


async def _list_rows(
    core: Core, queue: bytes, tenant: bytes | None, kind: bytes, limit: int, position: bytes
) -> list[Task]:
    out: list[Task] = []
    for lane in _lanes(core, queue, tenant):
        buckets = [b for b in lane.buckets if b is not None]
        if not buckets:
            continue
        prefix = buckets[0].prefix + kind
        upper = prefix_end(prefix)
        if position >= upper:
            continue
        lower = max(prefix, position + b"\0") if position else prefix
        floors = [await find_floor(core, bucket, kind) for bucket in buckets]  # no row is below it
        while len(out) < limit:
            # Every shard's next rows; the least bound up to which all of them are complete.
            rows, bound = [], upper
            is_empty = False
            for i, bucket in enumerate(buckets):
                found, resume = bucket.shard.overlay.scan(max(lower, floors[i]), upper, _PAGE)
                rows += [(key, value, bucket.shard) for key, value in found]
                if resume is not None:
                    bound = min(bound, resume)
                    if not found:  # deleted rows only: that took a turn
                        floors[i], is_empty = resume, True
                        break
            if is_empty:
                await core.spawner.checkpoint()
                continue
            for key, value, shard in sorted(r for r in rows if r[0] < bound)[: limit - len(out)]:
                row = attempt(decode_index_row, value)
                out.append(placed_task(core, shard, key, row or UNREADABLE))
            if bound == upper:
                break
            lower = bound
            await core.spawner.checkpoint()
        if len(out) >= limit:
            break
    return out


async def _list_finished(
    core: Core, queue: bytes, tenant: bytes | None, status: int, limit: int, position: bytes
) -> list[Task]:
    """By the expiry range: its order is the order of finishing (of one retention, one shard)."""
    out: list[Task] = []
    seen: set[bytes] = set()  # a task that was redriven has left a hint behind for each end
    start = int.from_bytes(position[:2], "big")
    looks = 0
    for shard in core.shards[start:]:
        here = position[2:] if position and shard.index == start else b""
        await core.settled(shard)
        start_key = shard.expiry_head if shard.co.poison is None else EXPIRY
        lower: bytes | None = here[:18] if here else start_key
        while lower is not None:
            at, (rows, lower) = lower, shard.overlay.scan(lower, EXPIRY_END, _PAGE)
            if not rows and shard.co.poison is None:
                note_deleted(shard, at, lower)
            for key, raw in rows:
                for task_id in _result_ids(raw, here[18:] if key == here[:18] else b""):
                    at = shard.index.to_bytes(2, "big") + key + task_id
                    task = _match(shard, task_id, queue, tenant, status, at)
                    if task is not None and task_id not in seen:
                        seen.add(task_id)
                        out.append(task)
                        if len(out) >= limit:
                            return out
                    looks += 1
                    if looks % _LOOKS == 0:  # a row may name thousands
                        await core.spawner.checkpoint()
            await core.spawner.checkpoint()
    return out


def _result_ids(raw: bytes, after: bytes) -> list[bytes]:
    """The results an expiry row names, behind ``after``: all where that one has gone meanwhile.

    They go from the front, so whatever stood before it has gone as well.
    """
    entries = attempt(decode_expiry, raw) or ()
    ids = [ref for kind, ref in entries if kind in _RESULT_KINDS]
    return ids[ids.index(after) + 1 :] if after in ids else ids


def _match(
    shard: Shard, task_id: bytes, queue: bytes, tenant: bytes | None, status: int, at: bytes
) -> Task | None:
    raw = shard.overlay.get(RESULT + task_id)
    if raw is None:
        return None
    record = attempt(decode_result, raw)
    if record is None:  # damaged: nobody can tell whose it was, and it must not hide the others
        return None
    # A task that was redriven has left a hint behind for its earlier end.
    if result_due_ms(record) and int.from_bytes(at[4:12], "big") != bucket_of(
        result_due_ms(record)
    ):
        return None
    if record.queue != queue or record.status != status or tenant not in (None, record.tenant):
        return None
    return finished_task(task_id, record, at)


def queue_stats(core: Core, queue: bytes, lanes: Sequence[Lane]) -> QueueStats:
    """See ``Queue.stats``."""
    buckets = [b for lane in lanes for b in lane.buckets if b is not None]
    heads = [head for lane in lanes for head in (head_seq(core, lane), foreign_head_seq(lane))]
    seqs = [seq for seq in heads if seq is not None]
    topic = core.topics.get(queue)
    age = max(0.0, (core.clock.wall_us() - min(seqs)) / 1e6) if seqs else None
    return QueueStats(
        ready=sum(b.ready for b in buckets),
        delayed=sum(b.delayed for b in buckets),
        leased=sum(b.leased for b in buckets),
        dead=sum(b.dead for b in buckets),
        results=sum(b.results for b in buckets),
        oldest_ready_age=age,
        is_paused=(topic is not None and topic.is_paused)
        or (bool(lanes) and all(lane.is_paused for lane in lanes)),
    )
