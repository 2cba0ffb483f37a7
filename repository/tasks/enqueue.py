"""Enqueue: one task or many, plain, delayed or deduplicated.

A ghost and its task always share a shard (the dedup key alone routes), so looking a key up and
taking it are one atomic section on one shard: of two enqueues of one key in one tick, the
second sees the first through the overlay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from operator import itemgetter
from typing import Final

from xxhash import xxh3_64, xxh3_64_digest

from ...coalescer.group import Group
from ...engine.records.events import ENQUEUED, pack_one
from ...engine.records.keyspace import ID_AT, TASK, delayed_key
from ...engine.records.result import Status
from ...engine.records.rows import (
    BODY_ROW,
    Ghost,
    IndexRow,
    decode_ghost,
    encode_ghost,
    encode_index_row,
    ready_value,
)
from ...engine.records.task import BODY_FLAG, FIRST_DELAYED, FIRST_READY, NO_GHOST, pack_task_times
from ...engine.records.workflow import MEMBER_ROW
from ...engine.runtime.event_loop import Future
from ...engine.runtime.task_id import TaskId, as_task_id
from ...engine.values import spelled
from ...errors import (
    CorruptionError,
    DuplicateTaskError,
    InvariantError,
    LodeqError,
    QueueFullError,
    RecordCorruptError,
    UsageError,
)
from ..model.encoded_tasks import EncodedTask
from ..model.values import Receipt
from ..state.engine_state import EngineState
from ..state.queue_state import Shard, TenantQueue
from ..state.rows.dedup_entries import drop_old_entry, old_entry, old_entry_of
from ..state.rows.task_location import TaskLocation, is_alive, task_location
from .batches import check_atomic, chunks
from .streamed_payloads import write_streamed
from .task_end import end_task, sound_task

__all__ = [
    "check_durable",
    "check_one",
    "check_pending",
    "enqueue",
    "enqueue_many",
    "enqueue_on",
    "ghost_owner",
    "holder",
    "place",
    "place_keyed",
    "replaceable",
    "route",
]

_receipt: Final = tuple.__new__  # what Receipt(…) does, without its Python frame
LONE_BODY_MAX: Final = 128 << 10  # of a lone caller, who writes several in one turn of the loop


def check_pending(state: EngineState, tenant_queue: TenantQueue | None, more: int) -> None:
    """``Limits.pending_max``, the only source of ``QueueFullError``."""
    bound = state.limits.pending_max
    if (
        bound is not None
        and (tenant_queue.pending if tenant_queue is not None else 0) + more > bound
    ):
        raise QueueFullError(
            f"pending_max is {bound} and the queue holds "
            f"{tenant_queue.pending if tenant_queue else 0}: retry "
            "when tasks have been claimed"
        )


def check_one(state: EngineState, encoded: EncodedTask) -> None:
    """``check_pending`` for one task, in the atomic section that queues it."""
    if state.limits.pending_max is not None:
        check_pending(state, state.find_tenant_queue(encoded.queue, encoded.tenant), 1)


def _check_many(state: EngineState, encoded_tasks: Iterable[EncodedTask]) -> None:
    """Refuse all of ``encoded_tasks`` if they do not fit."""
    if state.limits.pending_max is None:
        return
    now_ms = state.clock.wall_us() // 1000
    wanted: dict[tuple[bytes, bytes], int] = {}
    seen: set[bytes] = set()
    for encoded in encoded_tasks:
        if encoded.ghost is not NO_GHOST:
            shard = state.shard_of_slot(encoded.slot or 0)
            if encoded.ghost in seen or not _adds_one(state, shard, encoded, now_ms):
                continue
            seen.add(encoded.ghost)
        wanted[encoded.queue, encoded.tenant] = wanted.get((encoded.queue, encoded.tenant), 0) + 1
    for (queue, tenant), n in wanted.items():
        check_pending(state, state.find_tenant_queue(queue, tenant), n)


def _adds_one(state: EngineState, shard: Shard, encoded: EncodedTask, now_ms: int) -> bool:
    """Whether a keyed task adds a pending task: no duplicate does, nor what replaces one."""
    held_by = holder(state, shard, encoded, now_ms)
    if held_by is None:
        return True
    if encoded.on_conflict != "replace" or held_by in state.leases:
        return False
    found = replaceable(state, shard, held_by)
    return found is None or found.state == "dead"


def place(
    state: EngineState,
    shard: Shard,
    group: Group,
    encoded: EncodedTask,
    task_id: bytes,
    now_us: int,
) -> None:
    """Queue a new task's rows: the heart of every enqueue, ``+t +q`` (and ``+g``, ``+b +o``).

    Args:
        group: of the task's shard; gets the rows.
        encoded: its payload is written first if it goes to a body file.
        task_id: new, of a slot of ``shard``.
        now_us: wall microseconds.
    """
    if encoded.body is not None:  # first: this can fail
        if encoded.is_streamed and encoded.body_row is None:
            raise InvariantError("a streamed payload is to be written before its task is queued")
        shard.write_bodies(state.ids, (encoded,))
    seq = state.seq = now_us if now_us > state.seq else state.seq + 1
    queue_state = state.queue_states.get(encoded.queue)
    tenant_queue = (
        queue_state.tenant_queues.get(encoded.tenant) if queue_state is not None else None
    )
    if tenant_queue is None:
        tenant_queue = state.tenant_queue(encoded.queue, encoded.tenant)
    shard_queue = tenant_queue.shard_queues[shard.index]
    if shard_queue is None:
        shard_queue = tenant_queue.shard_queue(shard)
    due_ms = encoded.due_ms
    expires_ms = encoded.expires_ms
    priority = encoded.priority
    is_ready = due_ms == 0
    kind = FIRST_READY if is_ready else FIRST_DELAYED
    times = pack_task_times(now_us, seq, due_ms, expires_ms)
    whole: bytes | None = None
    record = encoded.shared.head(encoded.flags, priority, kind) + times + encoded.tail
    size = encoded.record_bytes
    ops = group.ops
    flags = encoded.flags >> 4 & MEMBER_ROW
    if encoded.body is None:
        whole = stored = record + xxh3_64_digest(record)
    elif encoded.body_row is None or shard.bodies is None:
        whole = stored = _with_body(record, encoded.body)
    else:
        flags |= BODY_ROW
        head = encoded.shared.head(encoded.flags | BODY_FLAG, priority, kind)
        slim = head + times + encoded.slim_tail + encoded.body_row.record_id
        stored = slim + xxh3_64_digest(slim)
        if (
            is_ready
            and state.held_bytes < state.held_bytes_max
            and encoded.body
            and not encoded.is_streamed
        ):
            whole = _with_body(record, encoded.body)  # for the claim that is likely to come
    index = 9 - priority
    if is_ready:
        key = shard_queue.ready_key(shard_queue.ready_prefixes[index], seq, task_id)
    else:
        key = delayed_key(shard_queue.prefix, due_ms, seq, task_id)
    if is_ready and not expires_ms and not flags:
        value = ready_value(size, priority)
    else:
        value = encode_index_row(IndexRow(flags, priority, 0, size, expires_ms, b""))
    ghost, old_ghost = b"", None
    if encoded.ghost is not NO_GHOST:
        ghost = encode_ghost(Ghost(task_id, encoded.ghost_expires_ms))
        old_ghost = old_entry_of(shard, encoded.routing) if shard.old_ghosts else None
    event = b""
    if group.events is not None:
        event = pack_one(ENQUEUED, priority, 0, 1, 0, now_us, task_id) + tenant_queue.tag
    # All is encoded: from here on rows are queued.
    if encoded.body_row is not None and shard.bodies is not None:
        shard.bodies.refer(group, task_id, encoded.body_row)
    if expires_ms:
        state.file_expiry(shard, group, expires_ms, b"t" + task_id)
    if ghost and encoded.ghost_expires_ms:
        state.file_expiry(shard, group, encoded.ghost_expires_ms, b"g" + encoded.ghost)
    ops.append((TASK + task_id, stored))
    if is_ready:
        group.fresh[key] = len(ops)
        ops.append((key, value))
        state.note_ready(
            group, shard_queue, index, (key, key[ID_AT:], 0, flags, expires_ms, size, whole)
        )
    else:
        state.put_delayed(group, shard_queue, key, due_ms, value)
    if ghost:
        if old_ghost is not None:
            drop_old_entry(shard, group, old_ghost)
        shard.put_dedup(group, encoded.ghost, ghost)
    if group.events is not None:
        group.events.append(event)
    state.totals.enqueued += 1
    shard_queue.tenant_queue.flow.enqueued += 1


def _with_body(record: bytes, body: bytes) -> bytes:
    """The whole record: one copy of what is large, not three."""
    check = xxh3_64(record)
    check.update(body)
    return b"".join((record, body, check.digest()))


def holder(state: EngineState, shard: Shard, encoded: EncodedTask, now_ms: int) -> bytes | None:
    """Task id that holds the task's dedup key, or None. A ghost whose task lives never expires.

    Without a window a ghost goes with its task; where the task's record was damaged nobody knew
    which ghost that was, so the ghost of a task that is over or dead does not count here.

    Args:
        shard: the one the key routes to.
        encoded: with a dedup key.
        now_ms: wall milliseconds.
    """
    raw = shard.dedup_row(encoded.ghost)
    held_by = None if raw is None else ghost_owner(state, shard, decode_ghost(raw), now_ms)
    if held_by is None and shard.old_ghosts:
        old = old_entry(shard, encoded.routing)
        return None if old is None else ghost_owner(state, shard, old, now_ms)
    return held_by


def ghost_owner(state: EngineState, shard: Shard, ghost: Ghost, now_ms: int) -> bytes | None:
    """Task id that owns this dedup entry, or None if the entry has lapsed.

    Args:
        shard: of the entry.
        ghost: the dedup entry.
        now_ms: wall milliseconds.
    """
    if ghost.expires_ms > now_ms:
        return ghost.task_id
    try:
        return ghost.task_id if is_alive(state, shard, ghost.task_id) else None
    except CorruptionError:  # still in line: the claim that meets it will bury it
        return ghost.task_id


def place_keyed(
    state: EngineState,
    shard: Shard,
    group: Group,
    encoded: EncodedTask,
    task_id: bytes,
    now_us: int,
) -> Receipt:
    """Take the dedup key, or find who holds it.

    Raises ``DuplicateTaskError`` or ``QueueFullError``; then nothing was queued.

    Args:
        shard: the one the key routes to.
        group: of the task's shard; gets the rows.
        encoded: with a dedup key.
        task_id: new; not used where the key is held.
        now_us: wall microseconds.
    """
    held_by = holder(state, shard, encoded, now_us // 1000)
    if held_by is None:
        check_one(state, encoded)
        place(state, shard, group, encoded, task_id, now_us)
        return Receipt(TaskId(task_id))
    state.totals.duplicates += 1
    if encoded.on_conflict == "return":
        return Receipt(TaskId(held_by), duplicate=True)
    if encoded.on_conflict == "raise":
        raise DuplicateTaskError(f"the dedup key is held by {TaskId(held_by)}", task_id=held_by)
    if held_by in state.leases:
        raise DuplicateTaskError(
            f"the dedup key is held by {TaskId(held_by)}, which is leased: it cannot be replaced",
            task_id=held_by,
        )
    found = replaceable(state, shard, held_by)
    if found is None or found.state == "dead":
        check_one(state, encoded)  # what goes was not pending
    shard.write_bodies(
        state.ids, (encoded,)
    )  # what can fail for want of space, before anything changes
    if found is not None:
        end_task(
            state,
            group,
            found,
            None if found.state == "dead" else Status.CANCELLED,
            f"replaced by {TaskId(task_id)}",
        )
    place(state, shard, group, encoded, task_id, now_us)
    return Receipt(TaskId(task_id), replaced=TaskId(held_by) if found is not None else None)


def replaceable(state: EngineState, shard: Shard, held_by: bytes) -> TaskLocation | None:
    """Location of a key's holder, if it still exists and can be read."""
    try:
        return (
            task_location(state, shard, held_by) if sound_task(shard, held_by) is not None else None
        )
    except RecordCorruptError:
        return None


def route(state: EngineState, encoded: EncodedTask, now_ms: int) -> tuple[Shard, bytes]:
    """Shard and new id. A key decides the shard; tasks without one avoid poisoned shards."""
    task_id = (
        state.healthy_id(now_ms) if encoded.slot is None else state.ids.new(now_ms, encoded.slot)
    )
    return state.shard_of(task_id), task_id


async def enqueue(state: EngineState, encoded: EncodedTask, durable: bool | None) -> Receipt:
    """One task. See ``Queue.enqueue``."""
    state.check_intake()
    if encoded.ghost is NO_GHOST:  # else it may be a duplicate, which adds nothing
        check_one(state, encoded)
    now_us = state.clock.wall_us()
    shard, task_id = route(state, encoded, now_us // 1000)
    if not encoded.is_streamed:
        return await enqueue_on(state, shard, encoded, task_id, now_us, durable)
    with ExitStack() as stack:
        is_durable = state.is_fsync or bool(durable)
        await write_streamed(state, shard, (encoded,), stack, is_durable=is_durable)
        state.check_intake()
        return await enqueue_on(state, shard, encoded, task_id, state.clock.wall_us(), durable)


async def enqueue_on(
    state: EngineState,
    shard: Shard,
    encoded: EncodedTask,
    task_id: bytes,
    now_us: int,
    durable: bool | None,
) -> Receipt:
    """The rest of ``enqueue``, where the shard is chosen and a streamed payload is written.

    Args:
        shard: of the task.
        encoded: what to enqueue.
        task_id: new, of a slot of ``shard``.
        now_us: wall microseconds.
        durable: True waits for an fsync, whatever the engine's mode.
    """
    coalescer = shard.coalescer
    if not coalescer.has_capacity:
        await state.backpressure(shard)
        now_us = state.clock.wall_us()
    # atomic section
    if encoded.ghost is NO_GHOST:
        check_one(state, encoded)  # again: others may have enqueued meanwhile
        group = coalescer.begin(encoded.row_bytes + 128)
        with group:
            place(state, shard, group, encoded, task_id, now_us)
        receipt = _receipt(Receipt, (as_task_id(task_id), False, None))
        is_light = encoded.body_row is not None and encoded.body_row.size <= LONE_BODY_MAX
        if is_light and not durable and coalescer.inline_left and coalescer.commit_now(group):
            return receipt
        await coalescer.wait(group, None, is_durable=bool(durable))
        return receipt
    group = coalescer.begin(encoded.row_bytes + 256)
    try:
        with group:
            receipt = place_keyed(state, shard, group, encoded, task_id, now_us)
    except (DuplicateTaskError, QueueFullError):
        # The answer rests on whoever queued the holder: it is true once that is committed.
        await coalescer.wait(group, None, is_durable=bool(durable))
        raise
    await coalescer.wait(group, None, is_durable=bool(durable))
    return receipt


async def enqueue_many(
    state: EngineState,
    encoded_tasks: Sequence[EncodedTask],
    durable: bool | None,
    *,
    is_atomic: bool = False,
) -> list[Receipt]:
    """Many tasks; all of a chunk's rows for one shard in one batch. See ``Queue.enqueue_many``.

    Args:
        encoded_tasks: what to enqueue.
        durable: True waits for an fsync, whatever the engine's mode.
        is_atomic: all in one batch, or none.
    """
    receipts: list[Receipt | None] = [None] * len(encoded_tasks)
    try:
        state.check_intake()
        _check_many(state, encoded_tasks)
        if is_atomic:
            check_atomic(state, encoded_tasks)
        runs = (
            [list(enumerate(encoded_tasks))]
            if is_atomic
            else chunks(encoded_tasks, state.submission_bytes_max)
        )
        for number, run in enumerate(runs):
            if number:
                await state.spawner.checkpoint()
                state.check()
            await _enqueue_run(state, run, receipts, durable, is_atomic=is_atomic)
    except LodeqError as error:
        # What was committed stays committed: the caller can see which by the receipts.
        error.receipts = receipts
        raise
    return [r for r in receipts if r is not None]


def _check_keys(
    state: EngineState, plan: dict[Shard, list[tuple[int, EncodedTask, int]]], now_ms: int
) -> None:
    """An atomic call with a key it may not take over is refused whole, with nothing queued."""
    seen: set[bytes] = set()
    for shard, entries in plan.items():
        for _, encoded, _ in entries:
            if encoded.ghost is NO_GHOST:
                continue
            held_by = holder(state, shard, encoded, now_ms)
            if encoded.on_conflict == "raise" and (held_by is not None or encoded.ghost in seen):
                raise DuplicateTaskError(
                    "a dedup key of the atomic call is held, or given twice", task_id=held_by or b""
                )
            if encoded.on_conflict == "replace" and held_by is not None:
                if held_by in state.leases:
                    raise DuplicateTaskError(
                        "a dedup key of the atomic call is held by a leased task", task_id=held_by
                    )
                replaceable(state, shard, held_by)  # what cannot be read is met here
            seen.add(encoded.ghost)


async def _enqueue_run(
    state: EngineState,
    run: list[tuple[int, EncodedTask]],
    receipts: list[Receipt | None],
    durable: bool | None,
    *,
    is_atomic: bool,
) -> None:
    unkeyed = sum([encoded.slot is None for _, encoded in run])
    slot = state.healthy_slot(unkeyed)  # one for all unkeyed tasks, so that they commit together
    home = state.shard_of_slot(slot)
    plan: dict[Shard, list[tuple[int, EncodedTask, int]]] = {}
    for i, encoded in run:
        use = slot if encoded.slot is None else encoded.slot
        shard = home if encoded.slot is None else state.shard_of_slot(use)
        plan.setdefault(shard, []).append((i, encoded, use))
    if any(encoded.is_streamed for _, encoded in run):
        with ExitStack() as stack:
            is_durable = state.is_fsync or bool(durable)
            for shard, entries in plan.items():
                all_items = [encoded for _, encoded, _ in entries]
                await write_streamed(state, shard, all_items, stack, is_durable=is_durable)
            state.check_intake()
            await _queue_run(state, run, plan, slot, receipts, durable, is_atomic=is_atomic)
        return
    await _queue_run(state, run, plan, slot, receipts, durable, is_atomic=is_atomic)


async def _queue_run(
    state: EngineState,
    run: list[tuple[int, EncodedTask]],
    plan: dict[Shard, list[tuple[int, EncodedTask, int]]],
    slot: int,
    receipts: list[Receipt | None],
    durable: bool | None,
    *,
    is_atomic: bool,
) -> None:
    """Queue the rows of a run and wait for them; streamed payloads are written.

    Args:
        state: the engine's state.
        run: the tasks, with their positions in the call.
        plan: the same by shard, with their slots.
        slot: of those without a key.
        receipts: filled in.
        durable: True waits for an fsync, whatever the engine's mode.
        is_atomic: all in one batch, or none.
    """
    unkeyed = sum([encoded.slot is None for _, encoded in run])
    for shard in plan:
        if not shard.coalescer.has_capacity:
            await state.backpressure(shard)
    # atomic section: every shard's rows are queued before anybody waits
    now_us = state.clock.wall_us()
    _check_many(state, (encoded for _, encoded in run))  # again: others may have enqueued meanwhile
    if is_atomic:
        _check_keys(state, plan, now_us // 1000)
    for shard, entries in plan.items():  # what can fail for want of space, before anything changes
        shard.write_bodies(state.ids, [encoded for _, encoded, _ in entries])
    failure: Exception | None = None
    done: list[tuple[Future, list[tuple[int, Receipt]]]] = []
    rows: list[tuple[int, EncodedTask, int, Shard, Group, list[tuple[int, Receipt]]]] = []
    for shard, entries in plan.items():
        try:
            group = shard.coalescer.begin(sum(encoded.row_bytes + 128 for _, encoded, _ in entries))
        except LodeqError as error:
            failure = failure or error
            continue
        placed: list[tuple[int, Receipt]] = []
        rows += [(i, encoded, use, shard, group, placed) for i, encoded, use in entries]
        done.append((shard.coalescer.wait(group, None, is_durable=bool(durable)), placed))
    if len(done) > 1:  # seq is drawn in the caller's order, so that it is the order of claims
        rows.sort(key=itemgetter(0))
    fresh = iter(state.ids.run(now_us // 1000, slot, unkeyed))
    for i, encoded, use, shard, group, placed in rows:
        task_id = next(fresh) if encoded.slot is None else state.ids.new(now_us // 1000, use)
        try:
            with group:
                if encoded.ghost is NO_GHOST:
                    place(state, shard, group, encoded, task_id, now_us)
                    receipt: Receipt = _receipt(Receipt, (as_task_id(task_id), False, None))
                else:
                    receipt = place_keyed(state, shard, group, encoded, task_id, now_us)
        except Exception as error:  # noqa: BLE001 - the others are answered nevertheless
            failure = failure or error
            if is_atomic:  # all or nothing
                group.torn = error if placed else group.torn
                break
        else:
            placed.append((i, receipt))
    for future, placed in done:
        try:
            await future
        except LodeqError as error:
            failure = failure or error
            continue
        for i, receipt in placed:
            receipts[i] = receipt
    if failure is not None:
        raise failure


def check_durable(state: EngineState, durable: object) -> None:
    """``durable=False`` in fsync mode would promise less than the store does."""
    if durable is None or durable is True:
        return
    if durable is False and not state.is_fsync:
        return
    if durable is False:
        raise UsageError("durable=False is not possible in fsync mode: open with 'nosync'")
    raise UsageError(f"durable must be True, False or None, not {spelled(durable)}")
