"""The three calls a queue lives by, flattened: a plain enqueue, a claim of one, a plain complete.

Every Python frame costs about as much as the RocksDB operation it queues, so here the layers
are folded into one function each. They queue exactly the rows the general code queues (a test
compares them byte for byte) and handle only the case that is nearly every call; for anything
else they return None, having changed nothing, and the caller goes the general way.

- ``submit_plain``: no options but headers and face, capacity on its shard: ``+t +q``.
- ``submit_claim``: one task of one queue and tenant, body in memory: ``-q +l``.
- ``submit_complete``: a live lease without follow-ups: ``-l -t +r``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ...coalescer.group import Group
from ...coalescer.shard_status import STALLED
from ...engine.records.events import ENQUEUED, pack_one, pack_run
from ...engine.records.frame import checksum
from ...engine.records.keyspace import TASK
from ...engine.records.result import HAS_VALUE
from ...engine.records.rows import ready_value
from ...engine.records.task import NO_GHOST, option_packer
from ...engine.runtime.event_loop import Future
from ...engine.runtime.task_id import TaskId, as_task_id
from ...engine.store.port import Op
from ...errors import LodeqError
from ..model.codec import encode_value
from ..model.encoded_tasks import TaskTemplate, plain_values
from ..model.values import Receipt
from ..state.caches.ready_cache import Row
from ..state.engine_state import EngineState
from ..state.lease_state import LeaseState
from ..state.long_polls import ClaimRequest
from ..state.queue_state import Shard, ShardQueue
from .claim import drop
from .lease_grant import take_one
from .lease_operations import encode_result
from .task_end import finish_one

__all__ = [
    "claim_in_turn",
    "line_of",
    "note_plain",
    "place_plain",
    "submit_claim",
    "submit_complete",
    "submit_plain",
    "submit_plain_many",
]

_receipt: Final = tuple.__new__  # what Receipt(…) does, without its Python frame
PLAIN: Final = 9 - 5  # the window of the default priority
MANY_MAX = 1024
MANY_BYTES_MAX: Final = 1 << 20


def place_plain(
    core: EngineState,
    group: Group,
    bucket: ShardQueue,
    shared: TaskTemplate,
    encoded: Sequence[tuple[int, bytes]],
    slot: int,
    now_us: int,
) -> list[Receipt]:
    """``place`` for tasks without options, in one tight loop: everything looked up once.

    Args:
        group: the open group of the task's shard; the rows go into it.
        bucket: of the queue on the group's shard.
        shared: of the queue.
        encoded: (kind, bytes) of each payload.
        slot: of the group's shard, for the new ids.
        now_us: wall microseconds.
    """
    fresh, plain = group.fresh, shared.plain
    # Queued when all are encoded.
    ops: list[Op] = []
    fresh_rows: dict[bytes, int] = {}
    before = len(group.ops)
    heads, prefix, ready_key = shared.plain_heads, bucket.ready_prefixes[PLAIN], bucket.ready_key
    ids = core.ids.run(now_us // 1000, slot, len(encoded))
    seq, is_awaited = core.seq, core.claim_sets.waiting > 0
    rows: list[Row] = []
    receipts: list[Receipt] = []
    held = 0
    for task_id, (kind, data) in zip(ids, encoded, strict=True):
        seq = now_us if now_us > seq else seq + 1
        size = len(data)
        pack, middle, value = plain.get(size) or shared.plain_parts(size)
        body = pack(heads[kind], now_us, seq, middle, data)
        record = body + checksum(body)
        key = ready_key(prefix, seq, task_id)
        ops.append((TASK + task_id, record))
        if is_awaited:
            fresh_rows[key] = before + len(ops)
        ops.append((key, value))
        size = len(record)
        held += size
        rows.append((key, key[-16:], 0, 0, 0, size, record))
        receipts.append(_receipt(Receipt, (task_id, False, None)))
    core.seq = seq
    if group.events is not None:
        group.events.append(
            pack_run(ENQUEUED, 5, 0, now_us, bucket.lane.tag, b"", [row[1] for row in rows])
        )
    group.ops += ops
    fresh.update(fresh_rows)
    core.totals.enqueued += len(rows)
    bucket.lane.flow.enqueued += len(rows)
    note_plain(core, group, bucket, rows, held)
    return receipts


def note_plain(
    core: EngineState, group: Group, bucket: ShardQueue, rows: list[Row], held: int
) -> None:
    """The memory side of ready tasks of the default priority whose rows have just been queued.

    Args:
        core: the engine's state.
        group: the open group of their shard.
        bucket: where they are ready.
        rows: as ``ReadyCache`` holds them, by key; at least one.
        held: bytes of their records.
    """
    window = bucket.windows[PLAIN]
    is_all_in = is_all_out = False
    if window is not None and bucket.ready:  # so the lane has its turn already
        is_all_in = (
            window.is_complete
            and len(window.rows) + len(rows) <= window.cap
            and (not window.rows or rows[0][0] > window.rows[-1][0])
            and core.held_bytes + held < core.held_bytes_max
        )
        is_all_out = not window.is_complete and rows[0][0] > window.edge
    if window is not None and is_all_in:
        window.rows.extend(rows)
        core.held_bytes += held
    if is_all_in or is_all_out:
        bucket.occupied |= 1 << PLAIN
        bucket.ready += len(rows)
        group.dirty[bucket] = None
        if core.claim_sets.is_noted:
            core.waiters.note(bucket.lane, rows[0][0])
    else:
        for row in rows:
            core.note_ready(group, bucket, PLAIN, row)


def submit_plain(
    core: EngineState,
    shared: TaskTemplate,
    payload: Any,
    durable: bool | None,
    waiter: Future | None = None,
    admitted: TaskId | None = None,
    headers: bytes = b"",
    face: bytes = b"",
) -> tuple[Future | None, Receipt] | None:
    """Queue an enqueue without options but headers and face. No future: it is committed already.

    Args:
        shared: of the queue.
        payload: bytes, or what the queue's codec or msgpack packs.
        durable: True waits for an fsync, whatever the engine's mode.
        waiter: gets the receipt, in place of a future; not with ``durable``.
        admitted: the id that ``line_of`` gave a caller who has stood in line since; a line that
            makes the call after the engine has begun to close gets None.
        headers: as ``encode_headers`` packs them.
        face: as ``packed_face`` packs it.
    """
    if not core.takes_plain or core.is_closed or (core.is_disk_low and admitted is None):
        return None
    if type(payload) is bytes and len(payload) <= core.plain_bytes_max:
        kind, data = 0, payload
    else:
        limit = core.limits.payload_bytes_max
        kind, data = encode_value(payload, shared.codec, limit, "payload")
        if len(data) > core.plain_bytes_max:
            return None
    shards = core.shards
    now_us = core.wall_ns() // 1000
    if admitted is not None:
        shard, task_id = core.shard_of(admitted), admitted
    elif len(shards) == 1:
        shard = shards[0]
        if shard.co.waiting >= shard.co.submit_queue_max or shard.co.submit_line.queued:
            return None  # as below, but before an id is made for nothing
        task_id = core.ids.new_unkeyed(now_us // 1000)
    else:
        home = core.home  # full or stalled meanwhile: the general way looks for another
        chosen = home.shard if home.is_chosen else home.current()
        if chosen is None:
            return None
        shard = chosen
        home.stayed += 1
        task_id = core.ids.new_within(now_us // 1000, home.first_slot, home.slots)
    co = shard.co
    if co.status > STALLED or (
        (co.waiting >= co.submit_queue_max or co.submit_line.queued) and admitted is None
    ):
        return None
    lane = shared.lane
    if lane is None or lane.is_dropped:
        lane = shared.lane = core.lane(shared.queue, shared.tenant)
    bucket = lane.buckets[shard.index]  # never kept: a shard that is led anew has others
    if bucket is None:
        bucket = lane.bucket(shard)
    seq = core.seq = now_us if now_us > core.seq else core.seq + 1
    size = len(data)
    if headers or face:
        names = shared.names + headers + face
        body = option_packer(len(names), size)(
            shared.plain_heads[kind],
            now_us,
            seq,
            0,
            0,
            shared.policy,
            NO_GHOST,
            0,
            len(headers),
            size,
            size,
            0,
            len(face),
            names,
            data,
        )
        value = ready_value(len(body) + 8, 5)
        cost = size + 300 + len(headers) + len(face)
    else:
        cost = size + 300
        pack, middle, value = shared.plain.get(size) or shared.plain_parts(size)
        body = pack(shared.plain_heads[kind], now_us, seq, middle, data)
    record = body + checksum(body)
    key = bucket.ready_key(bucket.ready_prefixes[PLAIN], seq, task_id)
    group = co.begin(cost)
    if group.events is not None:  # first: rows are queued when all is encoded
        group.events.append(pack_one(ENQUEUED, 5, 0, 1, 0, now_us, task_id) + lane.tag)
    ops = group.ops
    ops.append((TASK + task_id, record))
    group.fresh[key] = len(ops)
    ops.append((key, value))
    core.totals.enqueued += 1
    lane.flow.enqueued += 1
    size = len(record)
    window = bucket.windows[PLAIN]
    if (  # as in ``place_plain``
        window is not None
        and window.is_complete
        and len(window.rows) < window.cap
        and (not window.rows or key > window.rows[-1][0])
        and core.held_bytes < core.held_bytes_max
    ):
        if not bucket.ready:  # else the lane has its turn already
            lane.topic.turns.setdefault(lane.tenant)
        window.rows.append((key, key[-16:], 0, 0, 0, size, record))
        bucket.occupied |= 1 << PLAIN
        bucket.ready += 1
        core.held_bytes += size
        group.dirty[bucket] = None
        if core.claim_sets.is_noted:
            core.waiters.note(lane, key)
    else:
        core.note_ready(group, bucket, PLAIN, (key, key[-16:], 0, 0, 0, size, record))
    receipt: Receipt = _receipt(Receipt, (task_id, False, None))
    if durable is True:
        return co.wait(group, None, is_durable=True), receipt
    if co.inline_left and co.commit_now(group):
        return None, receipt
    future = core.future() if waiter is None else waiter
    group.waiters.append((future, receipt))
    return future, receipt


def line_of(core: EngineState, payload: bytes) -> tuple[Shard, TaskId] | None:
    """Where a caller of ``submit_plain`` has to stand in line, and the id of its task.

    None: there is no line, or the task goes the general way.
    """
    if not core.takes_plain or core.is_disk_low or len(payload) > core.plain_bytes_max:
        return None
    for shard in core.shards:
        co = shard.co
        if co.status <= STALLED and co.waiting < co.submit_queue_max and not co.submit_line.queued:
            return None
    task_id = as_task_id(core.healthy_id(core.wall_ns() // 1_000_000))
    shard = core.shard_of(task_id)
    return None if shard.co.has_capacity else (shard, task_id)


def submit_plain_many(
    core: EngineState,
    shared: TaskTemplate,
    tasks: Sequence[Any],
    durable: bool | None,
    waiter: Future | None = None,
) -> tuple[Future, list[Receipt]] | None:
    """Queue tasks that all are without options, if they fit one submission.

    Args:
        shared: of the queue.
        tasks: at most 1,024; else None is returned.
        durable: True waits for an fsync, whatever the engine's mode.
        waiter: gets the receipts, in place of a future; not with ``durable``.
    """
    if not core.takes_plain or core.is_disk_low or not 0 < len(tasks) <= MANY_MAX:
        return None
    values = plain_values(shared, tasks, core.limits.payload_bytes_max, core.plain_bytes_max)
    if values is None:
        return None
    encoded, size = values
    size += 300 * len(encoded)
    if len(core.shards) == 1:
        shard, slot = core.shards[0], core.ids.slot()
    else:
        home = core.home
        chosen = home.current()
        if chosen is None:
            return None
        shard, slot = chosen, core.ids.slot_within(home.first_slot, home.slots)
        home.stayed += len(encoded)
    co = shard.co
    if size > MANY_BYTES_MAX or not co.has_capacity or co.status > STALLED:
        return None
    if size > co.submission_bytes_max:
        return None
    now_us = core.wall_ns() // 1000
    bucket = core.lane(shared.queue, shared.tenant).bucket(shard)
    group = co.begin(size)
    receipts = place_plain(core, group, bucket, shared, encoded, slot, now_us)
    if waiter is not None:
        group.waiters.append((waiter, receipts))
        return waiter, receipts
    return co.wait(group, receipts, is_durable=durable is True), receipts


def submit_claim(
    core: EngineState,
    request: ClaimRequest,
    waiter: Future | None = None,
    is_admitted: bool = False,
) -> tuple[Future | None, list[Any]] | None:
    """Queue a claim of one task whose body is in memory. No future: it is committed already.

    Args:
        request: the lease is of ``core.lease_type``.
        waiter: gets the leases, in place of a future.
        is_admitted: the caller has stood in line.
    """
    taken = take_one(core, request, is_caller=not is_admitted)
    if taken is None:
        return None
    leases, group = taken
    co = leases[0].bucket.shard.co
    core.totals.claimed += 1
    try:
        if co.inline_left and co.commit_now(group):
            return None, leases
    except LodeqError:
        drop(leases)
        raise
    future = core.future() if waiter is None else waiter
    group.waiters.append((future, leases))
    return future, leases


def claim_in_turn(
    core: EngineState, request: ClaimRequest, future: Future, taken: list[Any]
) -> tuple[Future | None, list[Any]] | None:
    """``submit_claim`` for a line: ``taken`` gets the leases, for a caller who is cancelled.

    Args:
        request: the lease is of ``core.lease_type``.
        future: gets the leases.
        taken: gets them when they are granted, before that is committed.
    """
    if core.is_closed:
        return None
    submitted = submit_claim(core, request, future, True)
    if submitted is not None:
        taken += submitted[1]
    return submitted


def submit_complete(
    lease: LeaseState,
    result: Any,
    keep: bool,
    durable: bool | None,
    waiter: Future | None = None,
    is_admitted: bool = False,
) -> tuple[Future | None] | None:
    """Queue the end of a live lease. No future: it is committed already.

    Args:
        lease: a live one, in the engine's lease table.
        result: bytes, None for none, or what the codec or msgpack packs.
        keep: False stores no result.
        durable: True waits for an fsync, whatever the engine's mode.
        waiter: gets the answer, in place of a future; not with ``durable``.
        is_admitted: the caller has stood in line.
    """
    core: EngineState = lease.core
    if type(result) is bytes and core.stores_plain and len(result) <= core.limits.result_bytes_max:
        flags, value, raw_bytes = HAS_VALUE, result, len(result)
    else:
        flags, value, raw_bytes = encode_result(core, lease, result)
    co = lease.bucket.shard.co
    if (
        not lease.is_live
        or core.is_closed
        or ((co.waiting >= co.submit_queue_max or co.submit_line.queued) and not is_admitted)
    ):
        return None
    if core.leases.get(lease.task_id) is not lease:
        return None
    group = co.begin(300 + len(value))
    finish_one(core, group, lease, flags, value, raw_bytes, keep)
    core.totals.completed += 1
    if durable is True:
        return (co.wait(group, None, is_durable=True),)
    if co.inline_left and co.commit_now(group):
        return (None,)
    future = core.future() if waiter is None else waiter
    group.waiters.append((future, None))
    return (future,)
