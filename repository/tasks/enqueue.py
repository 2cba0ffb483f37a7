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
from ...engine.records.keyspace import TASK, delayed_key
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


def check_pending(core: EngineState, lane: TenantQueue | None, more: int) -> None:
    """``Limits.pending_max``, the only source of ``QueueFullError``."""
    bound = core.limits.pending_max
    if bound is not None and (lane.pending if lane is not None else 0) + more > bound:
        raise QueueFullError(
            f"pending_max is {bound} and the queue holds {lane.pending if lane else 0}: retry "
            "when tasks have been claimed"
        )


def check_one(core: EngineState, item: EncodedTask) -> None:
    """``check_pending`` for one task, in the atomic section that queues it."""
    if core.limits.pending_max is not None:
        check_pending(core, core.find_lane(item.queue, item.tenant), 1)


def _check_many(core: EngineState, items: Iterable[EncodedTask]) -> None:
    """Refuse all of ``items`` if they do not fit."""
    if core.limits.pending_max is None:
        return
    now_ms = core.clock.wall_us() // 1000
    wanted: dict[tuple[bytes, bytes], int] = {}
    seen: set[bytes] = set()
    for item in items:
        if item.ghost is not NO_GHOST:
            shard = core.shard_of_slot(item.slot or 0)
            if item.ghost in seen or not _adds_one(core, shard, item, now_ms):
                continue
            seen.add(item.ghost)
        wanted[item.queue, item.tenant] = wanted.get((item.queue, item.tenant), 0) + 1
    for (queue, tenant), n in wanted.items():
        check_pending(core, core.find_lane(queue, tenant), n)


def _adds_one(core: EngineState, shard: Shard, item: EncodedTask, now_ms: int) -> bool:
    """Whether a keyed item adds a pending task: no duplicate does, nor what replaces one."""
    held_by = holder(core, shard, item, now_ms)
    if held_by is None:
        return True
    if item.on_conflict != "replace" or held_by in core.leases:
        return False
    found = replaceable(core, shard, held_by)
    return found is None or found.state == "dead"


def place(
    core: EngineState, shard: Shard, group: Group, item: EncodedTask, task_id: bytes, now_us: int
) -> None:
    """Queue a new task's rows: the heart of every enqueue, ``+t +q`` (and ``+g``, ``+b +o``).

    Args:
        group: the open group of the task's shard; the rows go into it.
        item: encoded; its payload is written first if it goes to a body file.
        task_id: new, of a slot of ``shard``.
        now_us: wall microseconds.
    """
    if item.body is not None:  # first: this can fail
        if item.is_streamed and item.body_row is None:
            raise InvariantError("a streamed payload is to be written before its task is queued")
        shard.write_bodies(core.ids, (item,))
    seq = core.seq = now_us if now_us > core.seq else core.seq + 1
    topic = core.topics.get(item.queue)
    lane = topic.lanes.get(item.tenant) if topic is not None else None
    if lane is None:
        lane = core.lane(item.queue, item.tenant)
    bucket = lane.buckets[shard.index]
    if bucket is None:
        bucket = lane.bucket(shard)
    due_ms = item.due_ms
    expires_ms = item.expires_ms
    priority = item.priority
    is_ready = due_ms == 0
    kind = FIRST_READY if is_ready else FIRST_DELAYED
    times = pack_task_times(now_us, seq, due_ms, expires_ms)
    whole: bytes | None = None
    record = item.shared.head(item.flags, priority, kind) + times + item.tail
    size = item.record_bytes
    ops = group.ops
    flags = item.flags >> 4 & MEMBER_ROW
    if item.body is None:
        whole = stored = record + xxh3_64_digest(record)
    elif item.body_row is None or shard.bodies is None:
        whole = stored = _with_body(record, item.body)
    else:
        flags |= BODY_ROW
        head = item.shared.head(item.flags | BODY_FLAG, priority, kind)
        slim = head + times + item.slim_tail + item.body_row.record_id
        stored = slim + xxh3_64_digest(slim)
        if (
            is_ready
            and core.held_bytes < core.held_bytes_max
            and item.body
            and not item.is_streamed
        ):
            whole = _with_body(record, item.body)  # for the claim that is likely to come
    index = 9 - priority
    if is_ready:
        key = bucket.ready_key(bucket.ready_prefixes[index], seq, task_id)
    else:
        key = delayed_key(bucket.prefix, due_ms, seq, task_id)
    if is_ready and not expires_ms and not flags:
        value = ready_value(size, priority)
    else:
        value = encode_index_row(IndexRow(flags, priority, 0, size, expires_ms, b""))
    ghost, old_ghost = b"", None
    if item.ghost is not NO_GHOST:
        ghost = encode_ghost(Ghost(task_id, item.ghost_expires_ms))
        old_ghost = old_entry_of(shard, item.routing) if shard.old_ghosts else None
    event = b""
    if group.events is not None:
        event = pack_one(ENQUEUED, priority, 0, 1, 0, now_us, task_id) + lane.tag
    # All is encoded: from here on rows are queued.
    if item.body_row is not None and shard.bodies is not None:
        shard.bodies.refer(group, task_id, item.body_row)
    if expires_ms:
        core.file_expiry(shard, group, expires_ms, b"t" + task_id)
    if ghost and item.ghost_expires_ms:
        core.file_expiry(shard, group, item.ghost_expires_ms, b"g" + item.ghost)
    ops.append((TASK + task_id, stored))
    if is_ready:
        group.fresh[key] = len(ops)
        ops.append((key, value))
        core.note_ready(group, bucket, index, (key, key[-16:], 0, flags, expires_ms, size, whole))
    else:
        core.put_delayed(group, bucket, key, due_ms, value)
    if ghost:
        if old_ghost is not None:
            drop_old_entry(shard, group, old_ghost)
        shard.put_dedup(group, item.ghost, ghost)
    if group.events is not None:
        group.events.append(event)
    core.totals.enqueued += 1
    bucket.lane.flow.enqueued += 1


def _with_body(record: bytes, body: bytes) -> bytes:
    """The whole record: one copy of what is large, not three."""
    check = xxh3_64(record)
    check.update(body)
    return b"".join((record, body, check.digest()))


def holder(core: EngineState, shard: Shard, item: EncodedTask, now_ms: int) -> bytes | None:
    """Task id that holds the item's dedup key, or None. A ghost whose task lives never expires.

    Without a window a ghost goes with its task; where the task's record was damaged nobody knew
    which ghost that was, so the ghost of a task that is over or dead does not count here.

    Args:
        shard: the one the key routes to.
        item: with a dedup key.
        now_ms: wall milliseconds.
    """
    raw = shard.dedup_row(item.ghost)
    held_by = None if raw is None else ghost_owner(core, shard, decode_ghost(raw), now_ms)
    if held_by is None and shard.old_ghosts:
        old = old_entry(shard, item.routing)
        return None if old is None else ghost_owner(core, shard, old, now_ms)
    return held_by


def ghost_owner(core: EngineState, shard: Shard, ghost: Ghost, now_ms: int) -> bytes | None:
    """Task id that owns this dedup entry, or None if the entry has lapsed.

    Args:
        shard: of the entry.
        ghost: the dedup entry.
        now_ms: wall milliseconds.
    """
    if ghost.expires_ms > now_ms:
        return ghost.task_id
    try:
        return ghost.task_id if is_alive(core, shard, ghost.task_id) else None
    except CorruptionError:  # still in line: the claim that meets it will bury it
        return ghost.task_id


def place_keyed(
    core: EngineState, shard: Shard, group: Group, item: EncodedTask, task_id: bytes, now_us: int
) -> Receipt:
    """Take the dedup key, or find who holds it.

    Raises ``DuplicateTaskError`` or ``QueueFullError``; then nothing was queued.

    Args:
        shard: the one the key routes to.
        group: the open group of the task's shard; the rows go into it.
        item: with a dedup key.
        task_id: new; not used where the key is held.
        now_us: wall microseconds.
    """
    held_by = holder(core, shard, item, now_us // 1000)
    if held_by is None:
        check_one(core, item)
        place(core, shard, group, item, task_id, now_us)
        return Receipt(TaskId(task_id))
    core.totals.duplicates += 1
    if item.on_conflict == "return":
        return Receipt(TaskId(held_by), duplicate=True)
    if item.on_conflict == "raise":
        raise DuplicateTaskError(f"the dedup key is held by {TaskId(held_by)}", task_id=held_by)
    if held_by in core.leases:
        raise DuplicateTaskError(
            f"the dedup key is held by {TaskId(held_by)}, which is leased: it cannot be replaced",
            task_id=held_by,
        )
    found = replaceable(core, shard, held_by)
    if found is None or found.state == "dead":
        check_one(core, item)  # what goes was not pending
    shard.write_bodies(
        core.ids, (item,)
    )  # what can fail for want of space, before anything changes
    if found is not None:
        end_task(
            core,
            group,
            found,
            None if found.state == "dead" else Status.CANCELLED,
            f"replaced by {TaskId(task_id)}",
        )
    place(core, shard, group, item, task_id, now_us)
    return Receipt(TaskId(task_id), replaced=TaskId(held_by) if found is not None else None)


def replaceable(core: EngineState, shard: Shard, held_by: bytes) -> TaskLocation | None:
    """Location of a key's holder, if it still exists and can be read."""
    try:
        return (
            task_location(core, shard, held_by) if sound_task(shard, held_by) is not None else None
        )
    except RecordCorruptError:
        return None


def route(core: EngineState, item: EncodedTask, now_ms: int) -> tuple[Shard, bytes]:
    """Shard and new id. A key decides the shard; tasks without one avoid poisoned shards."""
    task_id = core.healthy_id(now_ms) if item.slot is None else core.ids.new(now_ms, item.slot)
    return core.shard_of(task_id), task_id


async def enqueue(core: EngineState, item: EncodedTask, durable: bool | None) -> Receipt:
    """One task. See ``Queue.enqueue``."""
    core.check_intake()
    if item.ghost is NO_GHOST:  # else it may be a duplicate, which adds nothing
        check_one(core, item)
    now_us = core.clock.wall_us()
    shard, task_id = route(core, item, now_us // 1000)
    if not item.is_streamed:
        return await enqueue_on(core, shard, item, task_id, now_us, durable)
    with ExitStack() as stack:
        is_durable = core.is_fsync or bool(durable)
        await write_streamed(core, shard, (item,), stack, is_durable=is_durable)
        core.check_intake()
        return await enqueue_on(core, shard, item, task_id, core.clock.wall_us(), durable)


async def enqueue_on(
    core: EngineState,
    shard: Shard,
    item: EncodedTask,
    task_id: bytes,
    now_us: int,
    durable: bool | None,
) -> Receipt:
    """The rest of ``enqueue``, where the shard is chosen and a streamed payload is written.

    Args:
        shard: of the task.
        item: encoded.
        task_id: new, of a slot of ``shard``.
        now_us: wall microseconds.
        durable: True waits for an fsync, whatever the engine's mode.
    """
    co = shard.co
    if not co.has_capacity:
        await core.backpressure(shard)
        now_us = core.clock.wall_us()
    # atomic section
    if item.ghost is NO_GHOST:
        check_one(core, item)  # again: others may have enqueued meanwhile
        group = co.begin(item.row_bytes + 128)
        with group:
            place(core, shard, group, item, task_id, now_us)
        receipt = _receipt(Receipt, (as_task_id(task_id), False, None))
        is_light = item.body_row is not None and item.body_row.size <= LONE_BODY_MAX
        if is_light and not durable and co.inline_left and co.commit_now(group):
            return receipt
        await co.wait(group, None, is_durable=bool(durable))
        return receipt
    return await _enqueue_keyed(core, shard, item, task_id, now_us, durable)


async def _enqueue_keyed(
    core: EngineState,
    shard: Shard,
    item: EncodedTask,
    task_id: bytes,
    now_us: int,
    durable: bool | None,
) -> Receipt:
    group = shard.co.begin(item.row_bytes + 256)
    try:
        with group:
            receipt = place_keyed(core, shard, group, item, task_id, now_us)
    except (DuplicateTaskError, QueueFullError):
        # The answer rests on whoever queued the holder: it is true once that is committed.
        await shard.co.wait(group, None, is_durable=bool(durable))
        raise
    await shard.co.wait(group, None, is_durable=bool(durable))
    return receipt


async def enqueue_many(
    core: EngineState,
    items: Sequence[EncodedTask],
    durable: bool | None,
    *,
    is_atomic: bool = False,
) -> list[Receipt]:
    """Many tasks; all of a chunk's rows for one shard in one batch. See ``Queue.enqueue_many``.

    Args:
        items: encoded.
        durable: True waits for an fsync, whatever the engine's mode.
        is_atomic: all in one batch, or none.
    """
    receipts: list[Receipt | None] = [None] * len(items)
    try:
        core.check_intake()
        _check_many(core, items)
        if is_atomic:
            check_atomic(core, items)
        runs = [list(enumerate(items))] if is_atomic else chunks(items, core.submission_bytes_max)
        for number, run in enumerate(runs):
            if number:
                await core.spawner.checkpoint()
                core.check()
            await _enqueue_run(core, run, receipts, durable, is_atomic=is_atomic)
    except LodeqError as error:
        # What was committed stays committed: the caller can see which by the receipts.
        error.receipts = receipts
        raise
    return [r for r in receipts if r is not None]


def _check_keys(
    core: EngineState, plan: dict[Shard, list[tuple[int, EncodedTask, int]]], now_ms: int
) -> None:
    """An atomic call with a key it may not take over is refused whole, with nothing queued."""
    seen: set[bytes] = set()
    for shard, entries in plan.items():
        for _, item, _ in entries:
            if item.ghost is NO_GHOST:
                continue
            held_by = holder(core, shard, item, now_ms)
            if item.on_conflict == "raise" and (held_by is not None or item.ghost in seen):
                raise DuplicateTaskError(
                    "a dedup key of the atomic call is held, or given twice", task_id=held_by or b""
                )
            if item.on_conflict == "replace" and held_by is not None:
                if held_by in core.leases:
                    raise DuplicateTaskError(
                        "a dedup key of the atomic call is held by a leased task", task_id=held_by
                    )
                replaceable(core, shard, held_by)  # what cannot be read is met here
            seen.add(item.ghost)


async def _enqueue_run(
    core: EngineState,
    run: list[tuple[int, EncodedTask]],
    receipts: list[Receipt | None],
    durable: bool | None,
    *,
    is_atomic: bool,
) -> None:
    unkeyed = sum([item.slot is None for _, item in run])
    slot = core.healthy_slot(unkeyed)  # one for all unkeyed tasks, so that they commit together
    home = core.shard_of_slot(slot)
    plan: dict[Shard, list[tuple[int, EncodedTask, int]]] = {}
    for i, item in run:
        use = slot if item.slot is None else item.slot
        shard = home if item.slot is None else core.shard_of_slot(use)
        plan.setdefault(shard, []).append((i, item, use))
    if any(item.is_streamed for _, item in run):
        with ExitStack() as stack:
            is_durable = core.is_fsync or bool(durable)
            for shard, entries in plan.items():
                all_items = [item for _, item, _ in entries]
                await write_streamed(core, shard, all_items, stack, is_durable=is_durable)
            core.check_intake()
            await _queue_run(core, run, plan, slot, receipts, durable, is_atomic=is_atomic)
        return
    await _queue_run(core, run, plan, slot, receipts, durable, is_atomic=is_atomic)


async def _queue_run(
    core: EngineState,
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
        core: the engine's state.
        run: the tasks, with their positions in the call.
        plan: the same by shard, with their slots.
        slot: of those without a key.
        receipts: filled in.
        durable: True waits for an fsync, whatever the engine's mode.
        is_atomic: all in one batch, or none.
    """
    unkeyed = sum([item.slot is None for _, item in run])
    for shard in plan:
        if not shard.co.has_capacity:
            await core.backpressure(shard)
    # atomic section: every shard's rows are queued before anybody waits
    now_us = core.clock.wall_us()
    _check_many(core, (item for _, item in run))  # again: others may have enqueued meanwhile
    if is_atomic:
        _check_keys(core, plan, now_us // 1000)
    for shard, entries in plan.items():  # what can fail for want of space, before anything changes
        shard.write_bodies(core.ids, [item for _, item, _ in entries])
    failure: Exception | None = None
    done: list[tuple[Future, list[tuple[int, Receipt]]]] = []
    rows: list[tuple[int, EncodedTask, int, Shard, Group, list[tuple[int, Receipt]]]] = []
    for shard, entries in plan.items():
        try:
            group = shard.co.begin(sum(item.row_bytes + 128 for _, item, _ in entries))
        except LodeqError as error:
            failure = failure or error
            continue
        placed: list[tuple[int, Receipt]] = []
        rows += [(i, item, use, shard, group, placed) for i, item, use in entries]
        done.append((shard.co.wait(group, None, is_durable=bool(durable)), placed))
    if len(done) > 1:  # seq is drawn in the caller's order, so that it is the order of claims
        rows.sort(key=itemgetter(0))
    fresh = iter(core.ids.run(now_us // 1000, slot, unkeyed))
    for i, item, use, shard, group, placed in rows:
        task_id = next(fresh) if item.slot is None else core.ids.new(now_us // 1000, use)
        try:
            with group:
                if item.ghost is NO_GHOST:
                    place(core, shard, group, item, task_id, now_us)
                    receipt: Receipt = _receipt(Receipt, (as_task_id(task_id), False, None))
                else:
                    receipt = place_keyed(core, shard, group, item, task_id, now_us)
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


def check_durable(core: EngineState, durable: object) -> None:
    """``durable=False`` in fsync mode would promise less than the store does."""
    if durable is None or durable is True:
        return
    if durable is False and not core.is_fsync:
        return
    if durable is False:
        raise UsageError("durable=False is not possible in fsync mode: open with 'nosync'")
    raise UsageError(f"durable must be True, False or None, not {durable!r}")
