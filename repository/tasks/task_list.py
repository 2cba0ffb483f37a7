"""A queue's tasks by state, page by page, and its counts.

Reads as ``lookup`` does; bounded work between yields.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice

from ...engine.records.frame import attempt
from ...engine.records.keyspace import (
    DEAD,
    DELAYED,
    EXPIRY,
    EXPIRY_BUCKET,
    EXPIRY_END,
    READY,
    RESULT,
    prefix_end,
)
from ...engine.records.lease import LeaseRecord
from ...engine.records.result import ResultRecord, Status, decode_result, result_due_ms
from ...engine.records.rows import MOVED_ROW, IndexRow, decode_expiry, decode_index_row
from ...engine.records.workflow import HELD_MS
from ...engine.recovery.verify import bucket_of
from ...engine.values import spelled
from ...errors import CorruptionError, NotLeaderError, UsageError
from ..model.filters import position_of
from ..model.values import QueueStats, Task, payload_bytes
from ..state.engine_state import EngineState
from ..state.lease_state import LeasedRun
from ..state.pages import counts_of, find_floor, row_count
from ..state.queue_state import Shard, TenantQueue
from ..state.shard_scope import is_meant, is_scoped, shard_queues_meant, shards_meant
from ..state.turns import Turns, in_slices
from .claim_order import head_seq
from .follower import foreign_head_seq, foreign_lease, foreign_lease_parts
from .lookup import (
    Payloads,
    finished_task,
    foreign_or_damaged,
    indexed_task,
    leased_or_damaged,
)
from .task_end import DAMAGED

__all__ = [
    "LIST_STATES",
    "UNREADABLE",
    "keep_run",
    "leased_now",
    "leased_run",
    "list_page",
    "list_tasks",
    "queue_stats",
    "queue_stats_in_turns",
]

_KINDS = {"ready": READY, "delayed": DELAYED, "waiting": DELAYED, "dead": DEAD}
_HELD = HELD_MS.to_bytes(8, "big")  # behind all that wait for a time are those that wait for tasks
_STATUSES = {
    "completed": Status.COMPLETED,
    "expired": Status.EXPIRED,
    "cancelled": Status.CANCELLED,
}
LIST_STATES = (*_KINDS, "leased", *_STATUSES)
_PAGE = 64
RUN = 8192  # leases that are put in order at once
RUNS_MAX = 4  # listings of leases that go on where they were
# Stored bytes between two turns of the loop: of small tasks, and where they are only passed on.
_DECODED_BYTES = 64 << 10
_COPIED_BYTES = 1 << 20
_FEW = 64  # results that are sooner looked for from the end
_COUNTED_BACK = 512  # where many deleted rows are in front of them
_TRIES = 8  # of two milliseconds at most: a turn of the loop
PAGE_MAX = 10_000  # tasks
_TENANT_QUEUES = 256  # whose counters are asked in one go
_STATS = 32  # tenants whose heads are looked at between two looks at the clock
_LOOKS = 256  # reads of results between two turns of the loop
_RESULT_KINDS = b"rcvh"
UNREADABLE = IndexRow(MOVED_ROW, 0, 0, 0, 0, DAMAGED)  # stands in for a damaged index row


async def list_tasks(
    engine_state: EngineState,
    queue: bytes,
    tenant: bytes | None,
    state: str,
    limit: int,
    after: Task | None,
) -> list[Task]:
    """See ``Queue.list``.

    Args:
        tenant: None for all.
        state: one of ``LIST_STATES``.
        limit: tasks, 1 to 10,000.
        after: the last task of the page before, or None.
    """
    return (await list_page(engine_state, queue, tenant, state, limit, after))[0]


async def list_page(
    engine_state: EngineState,
    queue: bytes,
    tenant: bytes | None,
    state: str,
    limit: int,
    after: Task | None,
    *,
    payloads: Payloads = "decoded",
    bytes_max: int | None = None,
) -> tuple[list[Task], bool]:
    """As ``Queue.list``; also whether it was ``bytes_max`` that ended the page.

    Args:
        state: of the engine.
        queue: its name.
        tenant: None for all.
        state: one of ``LIST_STATES``.
        limit: tasks, 1 to 10,000.
        after: the last task of the page before, or None.
        payloads: what is shown of payloads and headers.
        bytes_max: the page ends with the task that makes its records so many stored bytes.
    """
    if state not in LIST_STATES:
        raise UsageError(f"state {spelled(state)} is not one of {', '.join(LIST_STATES)}")
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise UsageError(f"limit {spelled(limit)} is not between 1 and {PAGE_MAX}")
    position = position_of(after)
    taken = _Taken(engine_state, payloads, bytes_max)
    if state in _STATUSES:
        found = await _list_finished(engine_state, queue, tenant, _STATUSES[state], limit, position)
    elif state == "leased":
        found = await _list_leased(engine_state, queue, tenant, limit, position, taken)
    else:
        found = await _list_rows(engine_state, queue, tenant, state, limit, position, taken)
    for shard in shards_meant(engine_state.hosted):
        await engine_state.commit_barrier(shard)
    return found, taken.is_full


class _Taken:
    """Stored bytes read for one page: they decide when others get a turn and when the page ends."""

    __slots__ = ("_bytes_left", "_left", "_slice", "_state", "payloads")

    def __init__(self, state: EngineState, payloads: Payloads, bytes_max: int | None) -> None:
        self._state = state
        self.payloads: Payloads = payloads
        self._slice = _DECODED_BYTES if payloads == "decoded" else _COPIED_BYTES
        self._left = self._slice
        self._bytes_left = bytes_max

    @property
    def is_full(self) -> bool:
        """Whether the page ends here."""
        return self._bytes_left is not None and self._bytes_left <= 0

    async def turn_for(self, n_bytes: int) -> bool:
        """Before a record of ``n_bytes`` is read; whether others had their turn meanwhile."""
        if self.payloads == "none":
            n_bytes = 0
        if self._bytes_left is not None:
            self._bytes_left -= n_bytes
        self._left -= n_bytes
        if self._left >= 0 or self._left + n_bytes == self._slice:  # the first of a slice
            return False
        self._left = self._slice - n_bytes
        await self._state.spawner.checkpoint()
        return True

    def inflated(self, task: Task, n_bytes: int) -> None:
        """A payload that was compressed counts with all its bytes."""
        more = payload_bytes(task) - n_bytes
        if more > 0:
            self._left -= more
            if self._bytes_left is not None:
                self._bytes_left -= more


def _tenant_queues(state: EngineState, queue: bytes, tenant: bytes | None) -> list[TenantQueue]:
    queue_state = state.queue_states.get(queue)
    if queue_state is None:
        return []
    names = sorted(queue_state.tenant_queues) if tenant is None else [tenant]
    return [queue_state.tenant_queues[name] for name in names if name in queue_state.tenant_queues]


async def leased_run(
    state: EngineState, queue: bytes, tenant: bytes | None, position: bytes
) -> tuple[LeasedRun, bool]:
    """The next leases behind ``position``, and whether they were looked for just now.

    Else they are what a page before has left (``keep_run``).
    """
    # A run is of all shards.
    run = state.leased_runs.get((queue, tenant)) if position and not is_scoped() else None
    if run is not None and run.holds(position):
        return run, False
    return await _make_run(state, queue, tenant, position), True


def keep_run(
    state: EngineState, queue: bytes, tenant: bytes | None, position: bytes, run: LeasedRun
) -> None:
    """Leave the rest of a run to the next page, if there is any; it becomes the newest of few.

    Args:
        state: of the engine.
        queue: its name.
        tenant: None for all.
        position: of the last lease of the page.
        run: from ``leased_run``.
    """
    state.leased_runs.pop((queue, tenant), None)
    if run.holds(position) and not is_scoped():
        state.leased_runs[queue, tenant] = run
        if len(state.leased_runs) > RUNS_MAX:
            del state.leased_runs[next(iter(state.leased_runs))]


async def _make_run(
    state: EngineState, queue: bytes, tenant: bytes | None, position: bytes
) -> LeasedRun:
    """The first ``RUN`` behind ``position``: one look at all leases, in turns."""
    keys: list[bytes] = []
    is_cut = False
    turns = Turns(state)
    for n, lease in enumerate(list(state.leases.values())):
        if n % _LOOKS == 0:
            await turns.give()
        tenant_queue = lease.shard_queue.tenant_queue
        if (
            tenant_queue.queue == queue
            and tenant in (None, tenant_queue.tenant)
            and is_meant(lease.shard_queue.shard)
        ):
            keys.append(lease.leased_us.to_bytes(8, "big") + lease.task_id)
            if keys[-1] <= position:
                del keys[-1]
        if len(keys) >= 2 * RUN:
            keys = sorted(keys)[:RUN]
            is_cut = True
    for shard in shards_meant(state.hosted):
        if not shard.coalescer.is_following:
            continue
        for task_id, record in await _leases_of(state, shard):
            key = record.leased_us.to_bytes(8, "big") + task_id
            if record.queue == queue and tenant in (None, record.tenant) and key > position:
                keys.append(key)
    keys.sort()
    is_cut |= len(keys) > RUN
    return LeasedRun(position, keys[:RUN], is_last=not is_cut)


async def _leases_of(state: EngineState, shard: Shard) -> list[tuple[bytes, LeaseRecord]]:
    """The leases of a shard that is led elsewhere: read in a thread where that can be."""
    parts = foreign_lease_parts(state, shard)
    if shard.store.reads_beside:
        return await state.thread_reads.run(parts, state.check)
    return await in_slices(state, parts)


async def _list_leased(
    state: EngineState,
    queue: bytes,
    tenant: bytes | None,
    limit: int,
    position: bytes,
    taken: _Taken,
) -> list[Task]:
    out: list[Task] = []
    while True:
        run, is_new = await leased_run(state, queue, tenant, position)
        for n in range(bisect_right(run.keys, position), len(run.keys)):
            if n % _PAGE == 0:
                await state.spawner.checkpoint()
            position = run.keys[n]
            task = await _leased_task(state, queue, position, taken)
            if task is not None:
                out.append(task)
            if len(out) >= limit or taken.is_full:
                keep_run(state, queue, tenant, position, run)
                return out
        if is_new and run.is_last:
            state.leased_runs.pop((queue, tenant), None)
            return out


def leased_now(
    state: EngineState, queue: bytes, position: bytes, payloads: Payloads = "decoded"
) -> Task | None:
    """The task that a position among leases names, unless its lease has ended since.

    Args:
        state: of the engine.
        queue: its name.
        position: of a task in a list of leased ones.
        payloads: what is shown of payloads and headers.
    """
    task_id, leased_us = position[8:], int.from_bytes(position[:8], "big")
    lease = state.leases.get(task_id)
    if lease is not None:
        if not lease.is_live or lease.leased_us != leased_us:
            return None
        return leased_or_damaged(state, lease.shard_queue.shard, lease, payloads)
    shard = state.shard_of(task_id)
    record = _foreign_record(shard, queue, position) if shard.coalescer.is_following else None
    return None if record is None else foreign_or_damaged(state, shard, task_id, record, payloads)


def _foreign_record(shard: Shard, queue: bytes, position: bytes) -> LeaseRecord | None:
    """The lease that a position names, on a shard that is led elsewhere."""
    try:
        record = foreign_lease(shard, position[8:])
    except (CorruptionError, NotLeaderError):  # it does not say whose it is: left to ``verify``
        return None
    if record is None or record.leased_us != int.from_bytes(position[:8], "big"):
        return None
    return record if record.queue == queue else None


async def _leased_task(
    state: EngineState, queue: bytes, position: bytes, taken: _Taken
) -> Task | None:
    """``leased_now``, with a turn for the others before it if it is time."""
    lease = state.leases.get(position[8:])
    if lease is not None:
        n_bytes = lease.record_bytes
    else:
        shard = state.shard_of(position[8:])
        record = _foreign_record(shard, queue, position) if shard.coalescer.is_following else None
        if record is None:
            return None
        n_bytes = record.record_bytes
    await taken.turn_for(n_bytes)
    task = leased_now(state, queue, position, taken.payloads)
    if task is not None:
        taken.inflated(task, n_bytes)
    return task


async def _list_rows(
    engine_state: EngineState,
    queue: bytes,
    tenant: bytes | None,
    state: str,
    limit: int,
    position: bytes,
    taken: _Taken,
) -> list[Task]:
    out: list[Task] = []
    kind = _KINDS[state]
    state = state if kind == DELAYED else ""
    turns = Turns(engine_state)
    for tenant_queue in _tenant_queues(engine_state, queue, tenant):
        await turns.give()  # of a hundred thousand tenants none may have any rows
        shard_queues = shard_queues_meant(tenant_queue.shard_queues)
        if not shard_queues:
            continue
        prefix = shard_queues[0].prefix + kind
        upper = prefix_end(prefix)
        if state == "waiting":
            prefix += _HELD
        elif state:
            upper = prefix + _HELD
        if position >= upper:
            continue
        lower = max(prefix, position + b"\0") if position else prefix
        floors = [
            await find_floor(engine_state, shard_queue, kind) for shard_queue in shard_queues
        ]  # no row is below it
        while len(out) < limit:
            # Every shard's next rows; the least bound up to which all of them are complete.
            rows, bound = [], upper
            is_empty = False
            for i, shard_queue in enumerate(shard_queues):
                scan = shard_queue.shard.overlay.scan_readable
                count = row_count(shard_queue, kind, state=state) if lower == prefix else None
                if count is not None and 0 <= count < _PAGE:  # nothing behind them is looked at
                    found, resume = (
                        scan(max(lower, floors[i]), upper, count) if count else ([], None)
                    )
                    if len(found) == count:
                        resume = None
                else:
                    found, resume = scan(max(lower, floors[i]), upper, _PAGE)
                rows += [(key, value, shard_queue.shard) for key, value in found]
                if resume is not None:
                    bound = min(bound, resume)
                    if not found:  # deleted rows only: that took a turn
                        floors[i], is_empty = resume, True
                        break
            if is_empty:
                await engine_state.spawner.checkpoint()
                continue
            is_old = False  # the rows: others had their turn since they were read
            for key, value, shard in sorted(r for r in rows if r[0] < bound)[: limit - len(out)]:
                row = attempt(decode_index_row, value)
                n_bytes = row.record_bytes if row else 0
                is_old |= await taken.turn_for(n_bytes)
                if is_old and not shard.overlay.has(key):
                    continue
                out.append(
                    indexed_task(engine_state, shard, key, row or UNREADABLE, taken.payloads)
                )
                taken.inflated(out[-1], n_bytes)
                if taken.is_full:
                    return out
            if bound == upper:
                break
            lower = bound
            await engine_state.spawner.checkpoint()
        if len(out) >= limit:
            break
    return out


async def _list_finished(
    state: EngineState, queue: bytes, tenant: bytes | None, status: int, limit: int, position: bytes
) -> list[Task]:
    """By the expiry range: its order is the order of finishing (of one retention, one shard)."""
    out: list[Task] = []
    seen: set[bytes] = set()  # a task that was redriven has left a hint behind for each end
    start = int.from_bytes(position[:2], "big")
    looks = 0
    for shard in shards_meant(state.hosted):
        if shard.index < start:
            continue
        here = position[2:] if position and shard.index == start else b""
        await state.commit_barrier(shard)
        if not _has_results(state, shard, queue, tenant):
            continue
        start_key = shard.expiry_head if shard.coalescer.takes_writes else EXPIRY
        lower: bytes | None = here[:18] if here else start_key
        is_first = not here and not shard.coalescer.takes_writes  # else the head is remembered
        if is_first:
            lower = _first_results(state, shard, EXPIRY, _FEW)
        while lower is not None:
            at, (rows, lower) = lower, shard.overlay.scan_readable(lower, EXPIRY_END, _PAGE)
            if shard.coalescer.takes_writes and not (rows and shard.overlay.unreadable):
                shard.raise_expiry_head(at, rows[0][0] + b"\0" if rows else lower)
            if is_first and not rows and lower is not None:
                lower = max(lower, _first_results(state, shard, lower, _COUNTED_BACK))
            is_first = False
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
                        await state.spawner.checkpoint()
            await state.spawner.checkpoint()
    return out


def _has_results(state: EngineState, shard: Shard, queue: bytes, tenant: bytes | None) -> bool:
    """Whether there may be a result of the queue on a shard."""
    queue_state = state.queue_states.get(queue)
    if queue_state is None:
        return False
    named = queue_state.tenant_queues.get(tenant) if tenant is not None else None
    if tenant is not None and named is None:
        return False
    tenant_queues = (
        [named]
        if named is not None
        else islice(queue_state.tenant_queues.values(), _TENANT_QUEUES + 1)
    )
    for n, tenant_queue in enumerate(tenant_queues):
        shard_queue = tenant_queue.shard_queues[shard.index]
        counts = counts_of(shard_queue) if shard_queue is not None else None
        if n == _TENANT_QUEUES or (shard_queue is not None and (counts is None or counts.results)):
            return True
    return False


def _first_results(state: EngineState, shard: Shard, lower: bytes, most: int) -> bytes:
    """An expiry row before which none names a result, or ``lower``: found from the end.

    It is done where no more than ``most`` results are kept: as soon as all of them were met,
    deleted rows in front of them need not be.
    """
    total = looks = 0
    for n, shard_queue in enumerate(shard.shard_queues_by_hash.values()):
        counts = counts_of(shard_queue)
        if counts is None or n == _TENANT_QUEUES:
            return lower
        total += counts.results
    if not 0 < total <= most:
        return lower
    met: set[bytes] = set()
    done, step = 0, 1
    for _ in range(_TRIES):
        rows = shard.overlay.scan_back(lower, EXPIRY_END, step)
        for key, raw in rows[done:]:
            ids = _result_ids(raw, b"")
            looks += len(ids)
            if looks > 2 * most:  # hints of what has gone since: no turn is in between
                return lower
            met |= {task_id for task_id in ids if _record_of(shard, task_id, key) is not None}
            if len(met) >= total:
                return key
        if len(rows) == done:  # the way back ends among deleted rows
            return lower
        step = 4 * step if len(rows) == step else step
        done = len(rows)
    return lower


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
    record = _record_of(shard, task_id, at[2:])
    if record is None:
        return None
    if record.queue != queue or record.status != status or tenant not in (None, record.tenant):
        return None
    return finished_task(task_id, record, at)


def _record_of(shard: Shard, task_id: bytes, key: bytes) -> ResultRecord | None:
    """The result that the expiry row at ``key`` names, if that is where it belongs."""
    record = attempt(decode_result, shard.overlay.get_sound(RESULT + task_id))
    if record is None:  # gone; or damaged: nobody knows whose it was, it must not hide the others
        return None
    # A task that was redriven has left a hint behind for its earlier end.
    due_ms = result_due_ms(record)
    if due_ms and int.from_bytes(key[EXPIRY_BUCKET], "big") != bucket_of(due_ms):
        return None
    return record


def queue_stats(
    state: EngineState, queue: bytes, tenant_queues: Sequence[TenantQueue]
) -> QueueStats:
    """See ``Queue.stats``."""
    shard_queues = [
        shard_queue
        for tenant_queue in tenant_queues
        for shard_queue in shard_queues_meant(tenant_queue.shard_queues)
    ]
    heads = [head_seq(state, tenant_queue) for tenant_queue in tenant_queues]
    if not is_scoped():  # else what is led elsewhere is not meant
        heads += map(foreign_head_seq, tenant_queues)
    seqs = [seq for seq in heads if seq is not None]
    queue_state = state.queue_states.get(queue)
    age = max(0.0, (state.clock.wall_us() - min(seqs)) / 1e6) if seqs else None
    return QueueStats(
        ready=sum(b.ready for b in shard_queues),
        delayed=sum(b.delayed - b.waiting for b in shard_queues),
        leased=sum(b.leased for b in shard_queues),
        dead=sum(b.dead for b in shard_queues),
        results=sum(b.results for b in shard_queues),
        oldest_ready_age=age,
        is_paused=(queue_state is not None and queue_state.is_paused)
        or (bool(tenant_queues) and all(tenant_queue.is_paused for tenant_queue in tenant_queues)),
        waiting=sum(b.waiting for b in shard_queues),
        is_queue_paused=queue_state is not None and queue_state.is_paused,
    )


async def queue_stats_in_turns(
    state: EngineState, queue: bytes, tenant_queues: Sequence[TenantQueue]
) -> QueueStats:
    """``queue_stats`` of many tenants: the head of each may have to be read."""
    turns = Turns(state)
    found = queue_stats(state, queue, tenant_queues[:_STATS])
    for at in range(_STATS, len(tenant_queues), _STATS):
        await turns.give()
        more = queue_stats(state, queue, tenant_queues[at : at + _STATS])
        ages = [age for age in (found.oldest_ready_age, more.oldest_ready_age) if age is not None]
        found = QueueStats(
            ready=found.ready + more.ready,
            delayed=found.delayed + more.delayed,
            leased=found.leased + more.leased,
            dead=found.dead + more.dead,
            results=found.results + more.results,
            oldest_ready_age=max(ages, default=None),
            is_paused=more.is_queue_paused or (found.is_paused and more.is_paused),
            waiting=found.waiting + more.waiting,
            is_queue_paused=more.is_queue_paused,
        )
    return found
