"""A worker's calls on its lease: heartbeat, complete, nack, release, bury.

Each waits for its turn, queues one batch (``task_end``) and waits for its commit. Only a *repeated*
complete reads the disk, to find its own result.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from ...coalescer.commit_loop import GROUP_BYTES_MAX, SUBMISSION_BYTES_MAX
from ...engine.records.attempts import Outcome
from ...engine.records.keyspace import DEAD, PROGRESS, RESULT
from ...engine.records.lease import DEAD_LEASE, EXPORTED, RESTARTED
from ...engine.records.policy import decode_policy
from ...engine.records.progress import ProgressRecord, encode_progress
from ...engine.records.result import HAS_VALUE, Status, decode_result, is_history
from ...engine.records.rows import BODY_ROW, MOVED_ROW, decode_index_row
from ...engine.records.workflow import MEMBER_ROW
from ...engine.runtime.event_loop import Future
from ...errors import (
    LeaseLostError,
    LimitError,
    LodeqError,
    RecordCorruptError,
    UsageError,
)
from ..model.arguments import LEASE_S_MAX, check_progress, duration_s, listed, names_of
from ..model.backoff import delay_ms_of
from ..model.codec import encode_value
from ..model.encoded_tasks import EncodedTask, TaskTemplate, encoded_task
from ..model.task_options import FOLLOW_UPS_MAX
from ..model.values import Duration, NewTask
from ..state.engine_state import EngineState
from ..state.lease_state import LeaseState
from ..state.queue_state import Shard
from ..state.rows.task_location import TaskLocation
from ..state.turns import Turns
from .enqueue import place
from .lease_rows import store_length
from .operators.admin import redrive_one
from .task_end import (
    End,
    die,
    end_if_past_ttl,
    finish,
    finish_all,
    finish_one,
    leave_lease,
    put_back,
)

__all__ = [
    "bury",
    "cancel",
    "check_lease",
    "complete",
    "complete_many",
    "encode_result",
    "heartbeat",
    "lost",
    "nack",
    "reason_bytes",
    "redrive",
    "release",
    "report_loss",
    "report_progress",
    "was_completed",
]

ENDS_MAX: Final = 1024  # of one batch: some four milliseconds of a turn

# -- is it still ours? -----------------------------------------------------------------


def lost(lease: LeaseState) -> LeaseLostError:
    """The error for a lease that is no longer valid."""
    return LeaseLostError(
        f"the lease on {lease.task_id} (epoch {lease.epoch}) is no longer valid: it expired, was "
        "revoked, or has ended; drop the task",
        task_id=lease.task_id,
    )


def check_lease(engine_state: EngineState, lease: object) -> LeaseState:
    """A live lease of this engine, or ``LeaseLostError``."""
    if not isinstance(lease, engine_state.lease_type):
        raise UsageError(f"not a lease: {type(lease).__name__}")
    if lease.state is not engine_state:
        raise LeaseLostError(
            f"the lease on {lease.task_id} was granted by another engine", task_id=lease.task_id
        )
    if not lease.is_live or engine_state.leases.get(lease.task_id) is not lease:
        raise lost(lease)
    state: LeaseState = lease
    return state


def heartbeat(lease: LeaseState, seconds: float) -> None:
    """Move the deadline to now + seconds."""
    state: EngineState = lease.state
    check_lease(state, lease)
    lease.shard_queue.shard.coalescer.check_session()
    if lease.flags & EXPORTED and (seconds > lease.lease_s or lease.flags & RESTARTED):
        store_length(lease, min(seconds, LEASE_S_MAX))
    deadline = state.clock.mono() + seconds
    sooner = deadline < lease.deadline_mono
    lease.deadline_mono = deadline
    if sooner:  # a later deadline is found when the old one comes up
        state.deadlines.rewatch(lease)


def report_progress(lease: LeaseState, fraction: object, note: object) -> None:
    """Keep how far a run has come: in memory, and queued to be written, for as long as it runs.

    Args:
        fraction: from 0 to 1, or None.
        note: text; cut to 256 bytes.
    """
    state: EngineState = lease.state
    checked, text = check_progress(fraction, note)
    check_lease(state, lease)
    lease.shard_queue.shard.coalescer.check_session()
    record = ProgressRecord(state.clock.wall_us(), checked, text)
    state.progress[lease.task_id] = record
    coalescer = lease.shard_queue.shard.coalescer
    if coalescer.takes_writes:
        coalescer.begin().ops.append((PROGRESS + lease.task_id, encode_progress(record)))


# -- the calls -------------------------------------------------------------------------


async def _shard_of_live(state: EngineState, lease: LeaseState) -> Shard:
    state.check()
    shard = lease.shard_queue.shard
    try:
        check_lease(state, lease)
        if not shard.coalescer.has_capacity:
            await state.backpressure(shard)
            check_lease(state, lease)
    except LeaseLostError:
        await report_loss(state, lease)
        raise
    return shard


async def report_loss(state: EngineState, lease: LeaseState) -> None:
    """Before a loss is reported: wait until the batch that ended the lease is committed."""
    if lease.state is state and not state.is_closed:
        await state.commit_barrier(lease.shard_queue.shard)


def reason_bytes(state: EngineState, reason: object) -> bytes:
    """UTF-8, cut to the limit at a character's edge."""
    if not isinstance(reason, str):
        raise UsageError(f"reason must be a str, not {type(reason).__name__}")
    raw = reason.encode("utf-8", "replace")[: state.limits.reason_bytes_max]
    return raw.decode("utf-8", "ignore").encode()


def _follow_ups(
    state: EngineState, lease: LeaseState, then: Sequence[NewTask]
) -> list[EncodedTask]:
    if len(then) > FOLLOW_UPS_MAX:
        raise UsageError(f"at most {FOLLOW_UPS_MAX} follow-ups: they share one atomic batch")
    encoded_tasks = []
    now_us, tenant_queue = state.clock.wall_us(), lease.shard_queue.tenant_queue
    for task in then:
        if not isinstance(task, NewTask):
            raise UsageError(f"then= takes lodeq.NewTask, not {type(task).__name__}")
        if task.dedup_key is not None or task.shard_key is not None:
            raise UsageError(
                "a follow-up lives on its parent's shard: it takes no dedup_key or shard_key"
            )
        queue, tenant = names_of(
            tenant_queue.queue.decode() if task.queue is None else task.queue,
            tenant_queue.tenant.decode() if task.tenant is None else task.tenant,
        )
        shared = TaskTemplate(queue, tenant, codec=state.codecs.get(queue))
        encoded_tasks.append(encoded_task(state, shared, task, now_us))
    if sum(encoded.record_bytes for encoded in encoded_tasks) > 3 << 20:
        raise UsageError("follow-ups of more than 3 MiB do not fit one atomic batch")
    return encoded_tasks


async def complete(
    lease: LeaseState,
    result: Any,
    then: Sequence[NewTask],
    keep: bool,
    durable: bool | None,
    *,
    is_admitted: bool = False,
) -> None:
    """See ``Lease.complete``.

    Args:
        lease: live or lost.
        result: as ``Lease.complete`` takes it.
        then: at most 256 follow-ups, 4 MiB with the result.
        keep: False stores no result.
        durable: True waits for an fsync, whatever the engine's mode.
        is_admitted: the caller has stood in line.
    """
    state: EngineState = lease.state
    flags, value, raw_bytes = encode_result(state, lease, result)
    encoded_tasks: Sequence[EncodedTask] = ()
    cost = 300 + len(value)
    if then:
        encoded_tasks = _follow_ups(state, lease, listed(then))
        cost += sum(encoded.row_bytes + 128 for encoded in encoded_tasks)
        if cost > SUBMISSION_BYTES_MAX:
            raise LimitError(
                f"result and follow-ups are {cost} bytes: more than 4 MiB do not fit one atomic "
                "batch"
            )
    shard = lease.shard_queue.shard
    if not is_admitted and not shard.coalescer.has_capacity:
        await state.backpressure(shard)
    if not lease.is_live or state.leases.get(lease.task_id) is not lease:
        await _completed_before(state, lease, durable)
        return
    # atomic section
    shard.write_bodies(
        state.ids, encoded_tasks
    )  # what can fail for want of space, before anything changes
    group = shard.coalescer.begin(cost)
    with group:
        finish_one(state, group, lease, flags, value, raw_bytes, keep)
        state.totals.completed += 1
        if encoded_tasks:
            now_us = state.clock.wall_us()
            slot = lease.task_id.slot
            for encoded in encoded_tasks:
                place(state, shard, group, encoded, state.ids.new(now_us // 1000, slot), now_us)
    await shard.coalescer.wait(group, None, is_durable=bool(durable))


def encode_result(state: EngineState, lease: LeaseState, result: Any) -> tuple[int, bytes, int]:
    """(flags, bytes to store, bytes before compression), or a typed error."""
    if result is None:
        return 0, b"", 0
    if type(result) is bytes and state.stores_plain:
        size = len(result)
        if size <= state.limits.result_bytes_max:
            return HAS_VALUE, result, size
    kind, data = encode_value(result, lease.codec, state.limits.result_bytes_max, "result")
    code, stored = state.compressor.pack(data)
    return HAS_VALUE | kind | code << 2, stored, len(data)


async def _completed_before(state: EngineState, lease: LeaseState, durable: bool | None) -> None:
    """A repeated complete of the same lease succeeds; any other lost lease does not."""
    if lease.state is state and await was_completed(
        state, lease.task_id, lease.epoch, lease.token, durable
    ):
        return
    await report_loss(state, lease)
    raise lost(lease)


async def was_completed(
    state: EngineState, task_id: bytes, epoch: int, token: bytes, durable: bool | None
) -> bool:
    """Whether this very lease has completed the task; as durable as asked for on return.

    Args:
        epoch: of the lease.
        token: of the lease, compared in constant time.
        durable: True waits until that is durable.
    """
    shard = state.shard_of(task_id)
    raw = shard.overlay.get(RESULT + task_id)
    if raw is None:
        return False
    try:
        record = decode_result(raw)
    except RecordCorruptError:
        return False
    same = hmac.compare_digest(
        record.token_hash.to_bytes(8, "big"), xxh3_64_intdigest(token).to_bytes(8, "big")
    )
    if record.status != Status.COMPLETED or record.epoch != epoch or not same:
        return False
    if is_history(record, state.clock.wall_us() // 1000):
        return False
    # Nothing to wait for any more: the sync that would have covered it has failed.
    if (
        shard.coalescer.failure is not None
        and (state.is_fsync or durable)
        and shard.coalescer.durable_number < shard.coalescer.applied_number
    ):
        raise shard.coalescer.refusal()
    await state.commit_barrier(shard, is_durable=bool(durable))
    return True


async def complete_many(
    state: EngineState, pairs: Sequence[tuple[LeaseState, Any]], durable: bool | None
) -> list[LeaseLostError | None]:
    """See ``Engine.complete_many``."""
    turns = Turns(state)
    encoded: list[End] = []
    for lease, result in list(pairs):  # of now: others have turns
        if lease.__class__ is not state.lease_type:
            raise UsageError(f"not a lease: {type(lease).__name__}")
        encoded.append((lease, *encode_result(state, lease, result)))
        if not len(encoded) % ENDS_MAX:
            await turns.give()
    mine: dict[Shard, list[int]] = {}
    for i, end in enumerate(encoded):
        mine.setdefault(end[0].shard_queue.shard, []).append(i)
    out: list[LeaseLostError | None] = [None] * len(encoded)
    again: list[int] = []
    failure: Exception | None = None
    futures: list[Future] = []
    for shard in [one for one in mine if not one.coalescer.has_capacity]:
        if encoded[mine[shard][0]][0].state is state:
            await state.backpressure(shard)
    for shard, chosen in mine.items():
        try:
            most = min(GROUP_BYTES_MAX, shard.coalescer.submission_bytes_max)
            for cost, run in _chunks(encoded, chosen, most):
                # atomic section, but for the last lines
                ends = _live_ends(state, encoded, run, again)
                if ends:
                    group = shard.coalescer.begin(cost)
                    futures.append(shard.coalescer.wait(group, None, is_durable=bool(durable)))
                    with group:
                        finish_all(state, group, ends, Status.COMPLETED)
                    state.totals.completed += len(ends)
                if len(run) == ENDS_MAX:  # of fewer all are queued in one section
                    await turns.give()
        except Exception as error:  # noqa: BLE001 - of this shard: the others' leases end
            failure = failure or error
    await _all(futures, failure)
    for i in again:
        await turns.give()
        try:
            await _completed_before(state, encoded[i][0], durable)
        except LeaseLostError as error:
            out[i] = error
    return out


def _live_ends(
    state: EngineState, encoded: Sequence[End], run: Iterable[int], again: list[int]
) -> list[End]:
    """The ends of leases that live, each once; the others are added to ``again``."""
    live = state.leases
    ends: dict[LeaseState, End] = {}
    for i in run:
        lease = encoded[i][0]
        if not lease.is_live or live.get(lease.task_id) is not lease or lease in ends:
            again.append(i)
        else:
            ends[lease] = encoded[i]
    return list(ends.values())


def _chunks(
    encoded: Sequence[End], chosen: Iterable[int], bytes_max: int
) -> Iterator[tuple[int, list[int]]]:
    """Runs that fit one group and one turn of the loop, with what they cost."""
    run: list[int] = []
    total = 0
    for i in chosen:
        cost = 300 + len(encoded[i][2])
        if run and (total + cost > bytes_max or len(run) >= ENDS_MAX):
            yield total, run
            run, total = [], 0
        run.append(i)
        total += cost
    if run:
        yield total, run


async def _all(futures: Iterable[Future], failure: Exception | None) -> None:
    """Wait for every commit, then raise the last failure, if there was any."""
    for future in futures:
        try:
            await future
        except LodeqError as error:
            failure = error
    if failure is not None:
        raise failure


def _check_delay(lease: LeaseState, delay_s: float | None) -> None:
    if delay_s and lease.flags & DEAD_LEASE:
        raise UsageError(
            f"{lease.task_id} goes back to the dead letters, which know no delay: leave it out, or "
            "redrive the task"
        )


async def nack(lease: LeaseState, delay: Duration | None, reason: str) -> None:
    """See ``Lease.nack``."""
    state: EngineState = lease.state
    text = reason_bytes(state, reason)
    delay_s = None if delay is None else duration_s(delay, "delay")
    _check_delay(lease, delay_s)
    shard = await _shard_of_live(state, lease)
    group = shard.coalescer.begin()
    policy = decode_policy(lease.packed_policy)
    state.totals.nacked += 1
    with group:
        if lease.attempt >= policy.max_attempts:
            if not end_if_past_ttl(state, group, lease):
                die(state, group, lease, text or b"nacked")
        else:
            ms = (
                delay_ms_of(policy, lease.attempt, state.ids) if delay_s is None else delay_s * 1000
            )
            put_back(state, group, lease, delay_ms=round(ms), reason=text, is_counted=True)
    await shard.coalescer.wait(group)


async def release(lease: LeaseState, delay: Duration | None) -> None:
    """See ``Lease.release``."""
    state: EngineState = lease.state
    delay_s = 0.0 if delay is None else duration_s(delay, "delay")
    _check_delay(lease, delay_s)
    delay_ms = round(delay_s * 1000)
    shard = await _shard_of_live(state, lease)
    group = shard.coalescer.begin()
    with group:
        put_back(state, group, lease, delay_ms=delay_ms, reason=b"", is_counted=False)
    await shard.coalescer.wait(group)


async def cancel(lease: LeaseState) -> None:
    """See ``Lease.cancel``."""
    state: EngineState = lease.state
    shard = await _shard_of_live(state, lease)
    group = shard.coalescer.begin()
    with group:
        finish(state, group, lease, Status.CANCELLED, error=b"cancelled")
    await shard.coalescer.wait(group)


async def bury(lease: LeaseState, reason: str) -> None:
    """See ``Lease.bury``."""
    state: EngineState = lease.state
    text = reason_bytes(state, reason)
    shard = await _shard_of_live(state, lease)
    group = shard.coalescer.begin()
    with group:
        die(state, group, lease, text or b"buried", Outcome.BURIED)
    await shard.coalescer.wait(group)


async def redrive(lease: LeaseState) -> None:
    """See ``Lease.redrive``."""
    state: EngineState = lease.state
    if not lease.flags & DEAD_LEASE:
        raise UsageError(
            f"{lease.task_id} is no dead letter: nack it to have it run again, or claim dead "
            "letters with dead=True"
        )
    shard = await _shard_of_live(state, lease)
    group = shard.coalescer.begin(1024)
    with group:
        shard_queue, row = lease.shard_queue, decode_index_row(lease.dead_row)
        flags = MOVED_ROW | lease.flags >> 1 & (BODY_ROW | MEMBER_ROW)
        row = row._replace(flags=flags)
        location = TaskLocation(lease.task_id, shard_queue, DEAD, lease.key, row, True)
        problem = redrive_one(state, group, location)
        if problem is None:
            shard_queue.dead += 1  # it was not counted there
            leave_lease(state, group, lease)
    await shard.coalescer.wait(group)
    if problem is not None:
        raise problem
