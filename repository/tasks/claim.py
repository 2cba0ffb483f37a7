"""Claim: pick rows, read their bodies, grant leases, in one batch a shard.

An index row names the size of its record, so a claim knows what it is about to read: bodies
come from memory where the task was enqueued a moment ago, else from the store (``record_fetch``)
before the rows are queued, and a claim stops early at 4 MiB of them rather than block the loop.
A large claim takes its tasks in several turns of the loop, each an atomic section of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from ...coalescer.group import Group
from ...engine.records.attempts import REASON_BYTES_MAX
from ...engine.records.events import CLAIMED
from ...engine.records.keyspace import ORDER_AT, READY, TASK, check_name
from ...engine.records.policy import decode_policy
from ...engine.records.queues.key_waits import NO_KEY
from ...engine.records.result import Status
from ...engine.records.rows import MOVED_ROW, IndexRow
from ...engine.records.task import decode_task
from ...engine.runtime.event_loop import Future
from ...engine.runtime.task_id import TaskId
from ...errors import CorruptionError, LodeqError, UsageError
from ..model.arguments import check_functions
from ..state.caches.ready_cache import EXPIRES_MS, TASK_ID, Row
from ..state.engine_state import EngineState
from ..state.events import emit_leases
from ..state.lease_state import LeaseState
from ..state.long_polls import NO_FUNCTIONS, ClaimBound, ClaimRequest, LongPoll
from ..state.queue_state import Shard, ShardQueue
from ..state.rows.task_location import TaskLocation, end_at
from . import claim_order
from .claim_order import Picked, pick, put_back_picked, uncount
from .key_waits import admits, set_aside
from .lease_grant import grant, take_one
from .passed_over import pass_over
from .record_fetch import records_of
from .task_end import DAMAGED, bury_row, give_back, step_behind

__all__ = [
    "bounded",
    "claim",
    "committed",
    "drop",
    "expire_row",
    "granted",
    "ready",
    "serve_waiter",
    "skipping",
    "take",
]

EXPIRED_ROUNDS_MAX = 16
ASIDE_ROWS: Final = 128  # that one round may set aside, to find the next task whose key has room
LOOK_ROWS: Final = 64  # that a claim looks at which skips functions
LOOK_BYTES_MAX: Final = 512 << 10
TURN_TASKS = 1024  # of one claim in one turn of the loop


def _groups(picked: list[Picked]) -> dict[Shard, Group]:
    groups = {}
    for shard in {shard_queue.shard: None for shard_queue, _ in picked}:
        group = groups[shard] = shard.coalescer.begin(0)
        group.bytes += 460 * len(picked)
    return groups


def take(state: EngineState, request: ClaimRequest) -> tuple[list[LeaseState], dict[Shard, Group]]:
    """Atomic section of a claim: pick rows, read bodies, queue the batch.

    No leases and no groups: there is nothing ready. No leases but groups: what was ready had
    expired, and there may be more behind it; commit, then look again.
    """
    groups: dict[Shard, Group] = {}
    looks = request
    for _ in range(EXPIRED_ROUNDS_MAX):
        for shard in state.shards:  # picking counts down: not in a group that is full already
            shard.coalescer.seal_full()
        picked = pick(state, looks)
        try:
            records = records_of(state, picked) if picked else []
        except BaseException:
            put_back_picked(state, picked, request)
            raise
        if picked and request.skipped_functions:
            picked, records, looks = _pass_over(state, request, looks, picked, records)
        if not picked:  # a shard that was poisoned meanwhile has failed everybody already
            return [], {s: g for s, g in groups.items() if s.coalescer.takes_writes}
        try:
            groups = _groups(picked)
        except BaseException:
            put_back_picked(state, picked, request)
            raise
        leases = _deliver(state, request, picked, records, groups)
        state.totals.claimed += len(leases)
        if request.bound is not None:
            request.bound.took(sum(claim_order.claim_cost(one.record_bytes) for one in leases))
        if leases or looks is not request:
            break
        if state.key_limits.by_queue and request.limit < ASIDE_ROWS:
            looks = _part(request, 0, 0, ASIDE_ROWS)
    return leases, groups


def _pass_over(
    state: EngineState,
    request: ClaimRequest,
    looks: ClaimRequest,
    picked: list[Picked],
    records: list[bytes | None],
) -> tuple[list[Picked], list[bytes | None], ClaimRequest]:
    """Rows that a claim takes which skips functions, their records, and how far it has looked."""
    most = looks.limit if state.key_limits.by_queue else request.limit
    is_last = looks.limit >= LOOK_ROWS
    picked, records = pass_over(state, request, picked, records, most=most, is_last=is_last)
    if picked or is_last:
        return picked, records, looks
    looks = _part(request, 0, 0, LOOK_ROWS)
    looks.bytes_max = LOOK_BYTES_MAX
    picked = pick(state, looks)
    try:
        records = records_of(state, picked)
    except BaseException:
        put_back_picked(state, picked, request)
        raise
    if picked:
        most = looks.limit if state.key_limits.by_queue else request.limit
        picked, records = pass_over(state, request, picked, records, most=most, is_last=True)
    return picked, records, looks


def _deliver(
    state: EngineState,
    request: ClaimRequest,
    picked: list[Picked],
    records: list[bytes | None],
    groups: dict[Shard, Group],
) -> list[LeaseState]:
    """Grant what can be granted; what has expired or is damaged ends here."""
    now_us, now_mono = state.clock.wall_us(), state.clock.mono()
    now_ms = now_us // 1000
    leases: list[LeaseState] = []
    ended = at = 0
    try:
        while at < len(picked):
            if len(leases) >= request.limit:  # more was picked, to look behind what is set aside
                put_back_picked(state, picked[at:], request)
                break
            shard_queue, row = picked[at]
            most = request.limit - len(leases)
            run, shard_queues = _run(state, picked, records, at, now_ms, most)
            group = groups[shard_queue.shard]
            if run:
                granted = len(leases)
                try:
                    grant(
                        state,
                        request,
                        group,
                        shard_queue,
                        run,
                        now_us,
                        now_mono,
                        leases,
                        shard_queues,
                    )
                finally:  # also of those before what is raised: they are leased
                    if len(leases) - granted < len(run):
                        _uncount_keys(state, picked[at + len(leases) - granted : at + len(run)])
                    emit_leases(group, CLAIMED, leases[granted:], now_us)
                    if state.has_limits:
                        state.queue_limits.granted(leases[granted:], now_mono)
                at += len(run)
                continue
            record = records[at]
            with group:
                if row[EXPIRES_MS] and row[EXPIRES_MS] <= now_ms:
                    expire_row(state, group, shard_queue, row)
                elif record is not None:
                    set_aside(state, group, shard_queue, row, record)
                else:
                    _end_undeliverable(state, group, shard_queue, row)
            uncount(state, request, shard_queue.tenant_queue)
            ended += 1
            at += 1
    except BaseException:  # a row changes nothing before its last read: it is still to be had
        # First, for giving back may seal, counters and all.
        put_back_picked(state, picked[ended + len(leases) :], request)
        give_back(state, leases)
        drop([lease for lease in leases if lease.is_live])  # their shard is poisoned
        raise
    return leases


def _uncount_keys(state: EngineState, picked: list[Picked]) -> None:
    """Rows that were to be leased are not: their keys have room again, which is theirs."""
    for shard_queue, row in picked:
        limit = shard_queue.tenant_queue.queue_state.key_limit
        key = limit.leave(row[TASK_ID]) if limit is not None else NO_KEY
        if key:
            state.key_limits.woken[row[TASK_ID]] = shard_queue.tenant_queue, key


def _run(
    state: EngineState,
    picked: list[Picked],
    records: list[bytes | None],
    at: int,
    now_ms: int,
    most: int,
) -> tuple[list[tuple[Row, bytes]], list[ShardQueue]]:
    """The rows from ``at`` on that one shard can deliver, and their shard queues if they differ.

    They are counted by their keys already, where these have a limit; at most ``most``.
    """
    has_keys = bool(state.key_limits.by_queue)
    first = picked[at][0]
    run: list[tuple[Row, bytes]] = []
    shard_queues: list[ShardQueue] = []
    is_mixed = False
    for i in range(at, min(len(picked), at + most)):
        (shard_queue, row), record = picked[i], records[i]
        if record is None or (row[EXPIRES_MS] and row[EXPIRES_MS] <= now_ms):
            break
        if shard_queue is not first:
            if shard_queue.shard is not first.shard:
                break
            is_mixed = True
        if has_keys and not admits(state, shard_queue, row, record):
            break
        run.append((row, record))
        shard_queues.append(shard_queue)
    return run, shard_queues if is_mixed else []


def _location(shard_queue: ShardQueue, row: Row) -> TaskLocation:
    key, raw_id, attempts, flags, expires_ms, size, _ = row
    value = IndexRow(flags, 9 - key[ORDER_AT], attempts, size, expires_ms, b"")
    return TaskLocation(raw_id, shard_queue, READY, key, value, bool(flags & MOVED_ROW))


def expire_row(state: EngineState, group: Group, shard_queue: ShardQueue, row: Row) -> None:
    """A popped row turned out to be past its TTL: it ends here instead of being delivered.

    Args:
        group: of the task's shard; gets the rows.
        shard_queue: of the row; its ready counter has been taken down for it.
        row: as it was popped.
    """
    try:
        task = decode_task(shard_queue.shard.overlay.get(TASK + row[TASK_ID]) or b"")
        retention_ms = decode_policy(task.policy).retention_ms
        shard_queue.ready += 1  # end_at takes it down again
        try:
            end_at(
                state,
                group,
                _location(shard_queue, row),
                task,
                Status.EXPIRED,
                error="ttl",
                retention_ms=retention_ms,
            )
        except BaseException:  # it raises before it changes anything
            shard_queue.ready -= 1
            raise
    except CorruptionError:
        _bury_damaged(state, group, shard_queue, row)
        return
    state.totals.expired += 1


def _end_undeliverable(state: EngineState, group: Group, shard_queue: ShardQueue, row: Row) -> None:
    """Bury a row whose record or payload is lost; one whose payload's file is away waits."""
    bodies = shard_queue.shard.bodies
    problem = "" if bodies is None else bodies.waits_for(shard_queue.shard.overlay, row[TASK_ID])
    if problem:
        step_behind(
            state, group, shard_queue, row, f"payload file {problem}".encode()[:REASON_BYTES_MAX]
        )
    else:
        _bury_damaged(state, group, shard_queue, row)


def _bury_damaged(state: EngineState, group: Group, shard_queue: ShardQueue, row: Row) -> None:
    """A row whose body is missing or fails its checksum never blocks the head of the queue."""
    state.anomaly(
        f"shard {shard_queue.shard.index}: task {TaskId(row[TASK_ID])}: record missing or damaged; "
        "moved to the dead letters"
    )
    bodies = shard_queue.shard.bodies
    place = "" if bodies is None else bodies.place(shard_queue.shard.overlay, row[TASK_ID])
    reason = DAMAGED + f": payload in {place}".encode() if place else DAMAGED
    bury_row(state, group, shard_queue, row, reason)


def skipping(
    request: ClaimRequest, tenants: Collection[str], functions: Collection[str] = ()
) -> ClaimRequest:
    """The same claim, passing over these tenants, and tasks for these functions where it can."""
    what = "skip_functions" if functions else "skip_tenants"
    if any(tenant is not None for _, tenant in request.keys):
        raise UsageError(f"{what} needs a queue of ALL_TENANTS")
    if isinstance(tenants, str):
        raise UsageError("skip_tenants must be a collection of names, not one name")
    return ClaimRequest(
        request.keys,
        limit=request.limit,
        lease_s=request.lease_s,
        worker=request.worker,
        boosts=request.boosts,
        is_exported=request.is_exported,
        skipped=frozenset(b"" if name == "" else check_name(name, "tenant") for name in tenants),
        skipped_functions=check_functions(functions) if functions else NO_FUNCTIONS,
    )


def bounded(request: ClaimRequest, bound: ClaimBound) -> ClaimRequest:
    """The same claim, of which ``bound`` says how many bytes it may take."""
    return ClaimRequest(
        request.keys,
        limit=request.limit,
        lease_s=request.lease_s,
        worker=request.worker,
        boosts=request.boosts,
        is_exported=request.is_exported,
        skipped=request.skipped,
        skipped_functions=request.skipped_functions,
        claim_set=request.claim_set,
        bound=bound,
    )


async def claim(
    state: EngineState, request: ClaimRequest, wait_s: float, *, is_admitted: bool = False
) -> list[Any]:
    """See ``Queue.claim``.

    Args:
        request: the leases are of ``state.lease_type``.
        wait_s: seconds for the first task.
        is_admitted: the caller has stood in the line of the only shard.
    """
    shards = state.shards
    has_waited = False
    for shard in () if is_admitted else shards:
        if not shard.coalescer.has_capacity and (shard.coalescer.takes_writes or len(shards) == 1):
            await state.backpressure(shard)
            has_waited = True
    one = take_one(state, request) if has_waited and request.is_plain else None
    if one is not None:  # who has not waited has tried the fast way already
        state.totals.claimed += 1
        return await granted(state, one[0][0].shard_queue.shard.coalescer.wait(one[1]), one[0])
    while True:
        leases, groups = take(state, _part(request, 0, 0))
        if leases or not groups:
            break
        await committed(state, [], _futures(groups))
        state.check()
    if not leases:
        state.check_healthy() if wait_s > 0 else state.check_empty()
    if leases or wait_s <= 0:
        if leases and (request.limit > TURN_TASKS or request.is_cut):
            return await _take_on(state, request, leases, _futures(groups))
        if len(groups) == 1:
            ((shard, group),) = groups.items()
            return await granted(state, shard.coalescer.wait(group), leases)
        return await committed(state, leases, _futures(groups))
    return await _wait(state, request, wait_s)


def _part(request: ClaimRequest, n_taken: int, bytes_taken: int, least: int = 0) -> ClaimRequest:
    """The part of a claim that one turn may take; ``least``: to look at so many tasks at least."""
    if request.limit <= TURN_TASKS and not least and not n_taken:
        return request
    return ClaimRequest(
        request.keys,
        limit=max(least, min(TURN_TASKS, request.limit - n_taken)),
        lease_s=request.lease_s,
        worker=request.worker,
        boosts=request.boosts,
        is_exported=request.is_exported,
        skipped=request.skipped,
        skipped_functions=request.skipped_functions,
        claim_set=request.claim_set,
        bytes_max=claim_order.CLAIM_BYTES_MAX - bytes_taken,
        bound=None if least else request.bound,
    )


async def _take_on(
    state: EngineState,
    request: ClaimRequest,
    leases: list[LeaseState],
    futures: list[tuple[Shard, Future]],
) -> list[LeaseState]:
    """The rest of a large claim, turn by turn; less where the engine has too much queued now."""
    size = sum(claim_order.claim_cost(lease.record_bytes) for lease in leases)
    try:
        while len(leases) < request.limit and size < claim_order.CLAIM_BYTES_MAX:
            await state.spawner.checkpoint()
            shards = [shard for shard in state.shards if shard.coalescer.takes_writes]
            if state.is_closed or not all(shard.coalescer.has_capacity for shard in shards):
                break
            more, groups = take(state, _part(request, len(leases), size))
            futures += _futures(groups)
            if not more:
                break
            leases += more
            size += sum(claim_order.claim_cost(lease.record_bytes) for lease in more)
    except BaseException:  # cancelled, or a row could not be read: the tasks go back
        give_back(state, leases)
        drop([lease for lease in leases if lease.is_live])  # their shard is poisoned
        raise
    return await committed(state, leases, futures)


def drop(leases: Sequence[LeaseState]) -> None:
    """Their commit failed, the shard is poisoned: they are nobody's until it is reopened."""
    for lease in leases:
        if lease.state.leases.get(lease.task_id) is lease:
            lease.state.end_lease(lease)
        else:  # a replica may have restored a newer one
            lease.is_live = False


def _futures(groups: dict[Shard, Group]) -> list[tuple[Shard, Future]]:
    """Made in the atomic section, not when they are first awaited: the groups may be gone then."""
    return [(shard, shard.coalescer.wait(group)) for shard, group in groups.items()]


async def committed(
    state: EngineState, leases: list[LeaseState], futures: list[tuple[Shard, Future]]
) -> list[LeaseState]:
    """Wait for several shards; where one fails, the leases of the others are still good.

    Args:
        state: the engine's state.
        leases: just granted; given back where the wait is cancelled.
        futures: of their groups, by shard.
    """
    failed: set[Shard] = set()
    failure: LodeqError | None = None
    try:
        for shard, future in futures:
            try:
                await future
            except LodeqError as error:
                failed.add(shard)
                failure = error
    except BaseException:
        give_back(state, leases)
        raise
    drop([x for x in leases if x.shard_queue.shard in failed])
    good = [x for x in leases if x.shard_queue.shard not in failed]
    if failure is not None and not good:
        raise failure
    return good


async def granted(state: EngineState, future: Future, leases: list[Any]) -> list[Any]:
    """Wait for the one commit of a claim; the leases, unless it fails or is cancelled."""
    try:
        await future
    except LodeqError:
        drop(leases)
        raise
    except BaseException:  # cancelled: the tasks go back by themselves
        give_back(state, leases)
        raise
    return leases


async def _wait(state: EngineState, request: ClaimRequest, wait_s: float) -> list[LeaseState]:
    waiter = state.waiters.add(request, wait_s)
    try:
        leases: list[LeaseState] = await waiter.future
    except LodeqError:
        drop(waiter.leases)
        raise
    except BaseException:
        state.waiters.remove(waiter)
        give_back(state, waiter.leases)
        raise
    return leases


def serve_waiter(state: EngineState, waiter: LongPoll) -> bool:
    """Give a waiter what is ready. Returns whether it took anything (or was gone already)."""
    if waiter.future.done():  # cancelled in this very tick: the next one is served instead
        state.waiters.remove(waiter)
        return True
    if waiter.request.is_look:
        return _told(state, waiter)
    one = take_one(state, waiter.request) if waiter.request.is_plain else None
    if one is not None:
        state.totals.claimed += 1
        state.waiters.remove(waiter)
        waiter.leases = one[0]
        one[1].waiters.append((waiter.future, waiter.leases))
        return True
    leases, groups = take(state, _part(waiter.request, 0, 0))
    if not leases:
        if groups:  # only expired tasks so far: look again in the next tick
            _note_again(state, waiter.request)
        return False
    state.waiters.remove(waiter)
    waiter.leases = leases
    if len(groups) == 1:
        (group,) = groups.values()
        group.waiters.append((waiter.future, leases))
    else:
        _serve_many(state, waiter, leases, groups)
    return True


# -- readiness -------------------------------------------------------------------------


async def ready(state: EngineState, request: ClaimRequest, wait_s: float) -> bool:
    """Whether a claim like this would get something now; waits until one would.

    Nothing is taken, and nobody who claims is held up. Everybody who waits for the same queue is
    told of the same task, so a claim that follows may come too late.

    Args:
        state: the engine's state.
        request: with ``is_look``, for one task.
        wait_s: seconds.

    Raises:
        LodeqError: no shard takes writes here (``NotLeaderError``: others lead them all).
    """
    state.check()
    state.check_healthy()
    if _has_ready(state, request):
        return True
    if wait_s <= 0:
        return False
    waiter = state.waiters.add(request, wait_s)
    try:
        found: list[bool] = await waiter.future
    except BaseException:
        state.waiters.remove(waiter)
        raise
    return bool(found)


def _has_ready(state: EngineState, request: ClaimRequest) -> bool:
    """Whether there is something to pick: the queue may be paused, or at its limit."""
    # atomic section
    picked = pick(state, request)
    put_back_picked(state, picked, request)
    return bool(picked)


def _told(state: EngineState, waiter: LongPoll) -> bool:
    """Tell a waiter that there is something; the next in line is still to be served."""
    if not _has_ready(state, waiter.request):
        return False
    state.waiters.remove(waiter)
    waiter.future.set_result([True])
    return True


def _note_again(state: EngineState, request: ClaimRequest) -> None:
    for queue, tenant in request.keys:
        queue_state = state.queue_states.get(queue)
        if queue_state is None:
            continue
        for tenant_queue in (
            queue_state.tenant_queues.values()
            if tenant is None
            else (queue_state.tenant_queues.get(tenant),)
        ):
            if tenant_queue is not None and tenant_queue.ready:
                state.waiters.note(tenant_queue)


def _serve_many(
    state: EngineState, waiter: LongPoll, leases: list[LeaseState], groups: dict[Shard, Group]
) -> None:
    """A waiter whose tasks came from several shards: answered when the last commit is in."""
    futures = _futures(groups)

    async def finish() -> None:
        try:
            good = await committed(state, leases, futures)
        except LodeqError as error:
            if not waiter.future.done():
                waiter.future.set_exception(error)
            return
        if not waiter.future.done():
            waiter.future.set_result(good)

    state.spawner.spawn(finish, "lodeq-claim")
