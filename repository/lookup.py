"""Reading: one task, its result, a queue's tasks by state.

Everything goes through the overlay and then waits until what it saw is committed: an answer
never rests on somebody else's unfinished commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from operator import itemgetter
from typing import TypeVar

from ..engine.ids import TaskId
from ..engine.keyspace import (
    DEAD,
    DELAYED,
    EXPIRY,
    EXPIRY_END,
    READY,
    RESULT,
    TASK,
    decode_index_key,
    prefix_end,
)
from ..engine.records.lease import LeaseRecord
from ..engine.records.policy import decode_policy
from ..engine.records.result import HAS_VALUE, ResultRecord, Status, decode_result
from ..engine.records.rows import decode_expiry, decode_index_row
from ..engine.records.task import TaskRecord, decode_task
from ..engine.verify import bucket_of, result_due_ms
from ..errors import LodeqError, TaskNotFoundError, UsageError
from .codec import decode_headers, decode_value
from .core import Core
from .following import foreign_lease, foreign_leases
from .lease import Lease
from .places import STATES, is_alive, locate, read_task
from .state import Lane, Shard
from .values import Result, Task

__all__ = [
    "LIST_STATES",
    "finished_task",
    "get",
    "leased_task",
    "list_tasks",
    "result",
    "task_of",
    "to_datetime",
]

_KINDS = {"ready": READY, "delayed": DELAYED, "dead": DEAD}
_STATUSES = {"completed": Status.COMPLETED, "expired": Status.EXPIRED,
             "cancelled": Status.CANCELLED}  # fmt: skip
LIST_STATES = (*_KINDS, "leased", *_STATUSES)
_PAGE = 64
T = TypeVar("T")


def to_datetime(us: int) -> datetime:
    """Stored microseconds as an aware datetime."""
    return datetime.fromtimestamp(us / 1e6, UTC)


def _ms(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1e3, UTC) if ms else None


def task_of(
    core: Core, task_id: bytes, task: TaskRecord, state: str, *, attempts: int,
    due_ms: int = 0, expires_ms: int = 0, worker: bytes = b"", reason: bytes = b"",
    finished_us: int = 0, position: bytes = b"",
) -> Task:  # fmt: skip
    """What the user sees of a task that still has its record."""
    return Task(
        id=TaskId(task_id), state=state, queue=task.queue.decode(), tenant=task.tenant.decode(),
        priority=task.priority, attempts=attempts, enqueued_at=to_datetime(task.created_us),
        payload=decode_value(
            task.flags & 3, task.flags >> 2 & 3, task.payload, task.raw_bytes,
            core.codecs.get(task.queue),
        ),
        headers=decode_headers(task.headers), due_at=_ms(due_ms), expires_at=_ms(expires_ms),
        finished_at=to_datetime(finished_us) if finished_us else None,
        max_attempts=decode_policy(task.policy).max_attempts, worker=worker.decode(),
        reason=reason.decode("utf-8", "replace"), position=position,
    )  # fmt: skip


def finished_task(task_id: bytes, r: ResultRecord, position: bytes = b"") -> Task:
    """What is left of a task that has ended."""
    return Task(
        id=TaskId(task_id), state=Status(r.status).name.lower(), queue=r.queue.decode(),
        tenant=r.tenant.decode(), priority=r.priority, attempts=r.attempts,
        enqueued_at=to_datetime(r.created_us), finished_at=to_datetime(r.finished_us),
        worker=r.worker.decode(), reason=r.error.decode("utf-8", "replace"), position=position,
    )  # fmt: skip


def leased_task(core: Core, lease: Lease, task: TaskRecord) -> Task:
    """A task somebody works on."""
    return task_of(
        core, lease.task_id, task, "leased", attempts=lease.attempt, expires_ms=lease.expires_ms,
        worker=lease.worker, position=lease.leased_us.to_bytes(8, "big") + lease.task_id,
    )  # fmt: skip


def _foreign_task(core: Core, task_id: bytes, task: TaskRecord, lease: LeaseRecord) -> Task:
    """A task that somebody works on under a lease of the replica that leads its shard."""
    return task_of(
        core, task_id, task, "leased", attempts=lease.attempts, expires_ms=lease.expires_ms,
        worker=lease.worker, position=lease.leased_us.to_bytes(8, "big") + task_id,
    )  # fmt: skip


# -- one task --------------------------------------------------------------------------


async def get(core: Core, task_id: TaskId) -> Task | None:
    """See ``Engine.get``."""
    shard = core.shard_of(task_id)
    found = _find(core, shard, task_id)
    await core.settled(shard)
    return found


def _find(core: Core, shard: Shard, task_id: bytes) -> Task | None:
    lease = core.leases.get(task_id)
    task = read_task(shard, task_id)
    if lease is not None and task is not None:
        return leased_task(core, lease, task)
    if task is not None:
        place = locate(core, shard, task_id)
        if place is not None:
            at = decode_index_key(place.key).at
            return task_of(
                core, task_id, task, place.state, attempts=place.row.attempts,
                due_ms=at if place.kind == DELAYED else 0, expires_ms=place.row.expires_ms,
                reason=place.row.reason, finished_us=at * 1000 if place.kind == DEAD else 0,
                position=place.key,
            )  # fmt: skip
        foreign = foreign_lease(shard, task_id)
        if foreign is not None:
            return _foreign_task(core, task_id, task, foreign)
    raw = shard.overlay.get(RESULT + task_id)
    return finished_task(task_id, decode_result(raw)) if raw is not None else None


async def result(core: Core, task_id: TaskId, wait_s: float) -> Result | None:
    """See ``Engine.result``."""
    shard = core.shard_of(task_id)
    raw = shard.overlay.get(RESULT + task_id)
    if raw is None:
        exists = is_alive(core, shard, task_id)
        if exists and wait_s > 0:
            await _wait_result(core, task_id, wait_s)
            core.check()
            raw = shard.overlay.get(RESULT + task_id)
            exists = is_alive(core, shard, task_id)
        await core.settled(shard)
        if raw is None:
            if exists:
                return None
            raise TaskNotFoundError(
                f"no task and no result {task_id}: it never existed, or was forgotten after "
                "its retention",
                task_id=task_id,
            )
    else:
        await core.settled(shard)
    record = decode_result(raw)
    value = None
    if record.flags & HAS_VALUE:
        value = decode_value(
            record.flags & 3, record.flags >> 2 & 3, record.value, record.raw_bytes,
            core.codecs.get(record.queue),
        )  # fmt: skip
    return Result(
        task_id=task_id, status=Status(record.status).name.lower(), value=value,
        error=record.error.decode("utf-8", "replace"), attempts=record.attempts,
        queue=record.queue.decode(), tenant=record.tenant.decode(),
        worker=record.worker.decode(), priority=record.priority,
        enqueued_at=to_datetime(record.created_us),
        ready_at=to_datetime(record.ready_us) if record.ready_us else None,
        leased_at=to_datetime(record.leased_us) if record.leased_us else None,
        finished_at=to_datetime(record.finished_us),
    )  # fmt: skip


async def _wait_result(core: Core, task_id: bytes, wait_s: float) -> None:
    future = core.spawner.future()
    waiting = core.result_waiters.setdefault(task_id, [])
    waiting.append(future)

    def time_out() -> None:
        if not future.done():
            future.set_result(False)

    timer = core.clock.call_at(core.spawner, core.clock.mono() + wait_s, time_out)
    try:
        await future
    except LodeqError:
        raise
    finally:
        timer.cancel()
        if future in waiting:
            waiting.remove(future)
        if not waiting and core.result_waiters.get(task_id) is waiting:
            del core.result_waiters[task_id]


# -- many ------------------------------------------------------------------------------


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
        found = _list_leased(core, queue, tenant, limit, position)
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


def _list_leased(
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
    for at, shard, found in mine:
        if at <= position or len(out) >= limit:
            continue
        task = read_task(shard, at[8:])
        if task is None:
            continue
        if isinstance(found, LeaseRecord):
            out.append(_foreign_task(core, at[8:], task, found))
        else:
            out.append(leased_task(core, found, task))
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
        while len(out) < limit:
            # Every shard's next rows; the least bound up to which all of them are complete.
            rows, bound = [], upper
            for bucket in buckets:
                found, resume = bucket.shard.overlay.scan(lower, upper, _PAGE)
                rows += [(key, value, bucket.shard) for key, value in found]
                if resume is not None:
                    bound = min(bound, resume)
            for key, value, shard in sorted(r for r in rows if r[0] < bound)[: limit - len(out)]:
                task = _row_task(core, shard, kind, key, value)
                if task is not None:
                    out.append(task)
            if bound == upper:
                break
            lower = bound
            await core.spawner.checkpoint()
        if len(out) >= limit:
            break
    return out


def _row_task(core: Core, shard: Shard, kind: bytes, key: bytes, value: bytes) -> Task | None:
    raw = shard.overlay.get(TASK + key[-16:])
    if raw is None:
        return None
    row = decode_index_row(value)
    at = decode_index_key(key).at
    return task_of(
        core, key[-16:], decode_task(raw), STATES[kind], attempts=row.attempts,
        due_ms=at if kind == DELAYED else 0, expires_ms=row.expires_ms, reason=row.reason,
        finished_us=at * 1000 if kind == DEAD else 0, position=key,
    )  # fmt: skip


async def _list_finished(
    core: Core, queue: bytes, tenant: bytes | None, status: int, limit: int, position: bytes
) -> list[Task]:
    """By the expiry range: its order is the order of finishing (of one retention, one shard)."""
    out: list[Task] = []
    seen: set[bytes] = set()  # a task that was redriven has left a hint behind for each end
    start = int.from_bytes(position[:2], "big")
    for shard in core.shards[start:]:
        here = position[2:] if position and shard.index == start else b""
        await core.settled(shard)
        lower: bytes | None = here[:18] if here else EXPIRY
        skip_to = int.from_bytes(here[18:], "big") if here else -1
        while lower is not None and len(out) < limit:
            rows, lower = shard.overlay.scan(lower, EXPIRY_END, _PAGE)
            for key, raw in rows:
                for n, task_id in _result_ids(raw):
                    if key == here[:18] and n <= skip_to:
                        continue
                    at = shard.index.to_bytes(2, "big") + key + n.to_bytes(4, "big")
                    task = _match(shard, task_id, queue, tenant, status, at)
                    if task is not None and len(out) < limit and task_id not in seen:
                        seen.add(task_id)
                        out.append(task)
            await core.spawner.checkpoint()
        if len(out) >= limit:
            break
    return out


def _result_ids(raw: bytes) -> Iterator[tuple[int, bytes]]:
    for n, (kind, ref) in enumerate(decode_expiry(raw)):
        if kind in RESULT_KINDS:
            yield n, ref


RESULT_KINDS = b"rc"


def _match(
    shard: Shard, task_id: bytes, queue: bytes, tenant: bytes | None, status: int, at: bytes
) -> Task | None:
    raw = shard.overlay.get(RESULT + task_id)
    if raw is None:
        return None
    record = decode_result(raw)
    # A task that was redriven has left a hint behind for its earlier end.
    if result_due_ms(record) and int.from_bytes(at[4:12], "big") != bucket_of(
        result_due_ms(record)
    ):
        return None
    if record.queue != queue or record.status != status or tenant not in (None, record.tenant):
        return None
    return finished_task(task_id, record, at)
