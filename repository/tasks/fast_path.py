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
from ...engine.records.keyspace import ID_AT, TASK
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
PLAIN: Final = 9 - 5  # the ready cache of the default priority
MANY_MAX = 1024
MANY_BYTES_MAX: Final = 1 << 20


def place_plain(
    state: EngineState,
    group: Group,
    shard_queue: ShardQueue,
    shared: TaskTemplate,
    encoded: Sequence[tuple[int, bytes]],
    slot: int,
    now_us: int,
) -> list[Receipt]:
    """``place`` for tasks without options, in one tight loop: everything looked up once.

    Args:
        group: of the task's shard; gets the rows.
        shard_queue: of the queue on the group's shard.
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
    heads, prefix, ready_key = (
        shared.plain_heads,
        shard_queue.ready_prefixes[PLAIN],
        shard_queue.ready_key,
    )
    ids = state.ids.run(now_us // 1000, slot, len(encoded))
    seq, is_awaited = state.seq, state.claim_sets.waiting > 0
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
        rows.append((key, key[ID_AT:], 0, 0, 0, size, record))
        receipts.append(_receipt(Receipt, (task_id, False, None)))
    state.seq = seq
    if group.events is not None:
        group.events.append(
            pack_run(
                ENQUEUED, 5, 0, now_us, shard_queue.tenant_queue.tag, b"", [row[1] for row in rows]
            )
        )
    group.ops += ops
    fresh.update(fresh_rows)
    state.totals.enqueued += len(rows)
    shard_queue.tenant_queue.flow.enqueued += len(rows)
    note_plain(state, group, shard_queue, rows, held)
    return receipts


def note_plain(
    state: EngineState, group: Group, shard_queue: ShardQueue, rows: list[Row], held: int
) -> None:
    """The memory side of ready tasks of the default priority whose rows have just been queued.

    Args:
        state: the engine's state.
        group: the open group of their shard.
        shard_queue: where they are ready.
        rows: as ``ReadyCache`` holds them, by key; at least one.
        held: bytes of their records.
    """
    ready_cache = shard_queue.ready_caches[PLAIN]
    is_all_in = is_all_out = False
    if ready_cache is not None and shard_queue.ready:  # so the tenant queue has its turn already
        is_all_in = (
            ready_cache.is_complete
            and len(ready_cache.rows) + len(rows) <= ready_cache.cap
            and (not ready_cache.rows or rows[0][0] > ready_cache.rows[-1][0])
            and state.held_bytes + held < state.held_bytes_max
        )
        is_all_out = not ready_cache.is_complete and rows[0][0] > ready_cache.edge
    if ready_cache is not None and is_all_in:
        ready_cache.rows.extend(rows)
        state.held_bytes += held
    if is_all_in or is_all_out:
        shard_queue.occupied |= 1 << PLAIN
        shard_queue.ready += len(rows)
        group.dirty[shard_queue] = None
        if state.claim_sets.is_noted:
            state.waiters.note(shard_queue.tenant_queue, rows[0][0])
    else:
        for row in rows:
            state.note_ready(group, shard_queue, PLAIN, row)


def submit_plain(
    state: EngineState,
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
    if not state.takes_plain or state.is_closed or (state.is_disk_low and admitted is None):
        return None
    if type(payload) is bytes and len(payload) <= state.plain_bytes_max:
        kind, data = 0, payload
    else:
        limit = state.limits.payload_bytes_max
        kind, data = encode_value(payload, shared.codec, limit, "payload")
        if len(data) > state.plain_bytes_max:
            return None
    shards = state.shards
    now_us = state.wall_ns() // 1000
    if admitted is not None:
        shard, task_id = state.shard_of(admitted), admitted
    elif len(shards) == 1:
        shard = shards[0]
        if (
            shard.coalescer.waiting >= shard.coalescer.submit_queue_max
            or shard.coalescer.submit_line.queued
        ):
            return None  # as below, but before an id is made for nothing
        task_id = state.ids.new_unkeyed(now_us // 1000)
    else:
        home = state.home  # full or stalled meanwhile: the general way looks for another
        chosen = home.shard if home.is_chosen else home.current()
        if chosen is None:
            return None
        shard = chosen
        home.stayed += 1
        task_id = state.ids.new_within(now_us // 1000, home.first_slot, home.slots)
    coalescer = shard.coalescer
    if coalescer.status > STALLED or (
        (coalescer.waiting >= coalescer.submit_queue_max or coalescer.submit_line.queued)
        and admitted is None
    ):
        return None
    tenant_queue = shared.tenant_queue
    if tenant_queue is None or tenant_queue.is_dropped:
        tenant_queue = shared.tenant_queue = state.tenant_queue(shared.queue, shared.tenant)
    shard_queue = tenant_queue.shard_queues[
        shard.index
    ]  # never kept: a shard that is led anew has others
    if shard_queue is None:
        shard_queue = tenant_queue.shard_queue(shard)
    seq = state.seq = now_us if now_us > state.seq else state.seq + 1
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
    key = shard_queue.ready_key(shard_queue.ready_prefixes[PLAIN], seq, task_id)
    group = coalescer.begin(cost)
    if group.events is not None:  # first: rows are queued when all is encoded
        group.events.append(pack_one(ENQUEUED, 5, 0, 1, 0, now_us, task_id) + tenant_queue.tag)
    ops = group.ops
    ops.append((TASK + task_id, record))
    group.fresh[key] = len(ops)
    ops.append((key, value))
    state.totals.enqueued += 1
    tenant_queue.flow.enqueued += 1
    size = len(record)
    ready_cache = shard_queue.ready_caches[PLAIN]
    if (  # as in ``place_plain``
        ready_cache is not None
        and ready_cache.is_complete
        and len(ready_cache.rows) < ready_cache.cap
        and (not ready_cache.rows or key > ready_cache.rows[-1][0])
        and state.held_bytes < state.held_bytes_max
    ):
        if not shard_queue.ready:  # else the tenant queue has its turn already
            tenant_queue.queue_state.turns.setdefault(tenant_queue.tenant)
        ready_cache.rows.append((key, key[ID_AT:], 0, 0, 0, size, record))
        shard_queue.occupied |= 1 << PLAIN
        shard_queue.ready += 1
        state.held_bytes += size
        group.dirty[shard_queue] = None
        if state.claim_sets.is_noted:
            state.waiters.note(tenant_queue, key)
    else:
        state.note_ready(group, shard_queue, PLAIN, (key, key[ID_AT:], 0, 0, 0, size, record))
    receipt: Receipt = _receipt(Receipt, (task_id, False, None))
    if durable is True:
        return coalescer.wait(group, None, is_durable=True), receipt
    if coalescer.inline_left and coalescer.commit_now(group):
        return None, receipt
    future = state.future() if waiter is None else waiter
    group.waiters.append((future, receipt))
    return future, receipt


def line_of(state: EngineState, payload: bytes) -> tuple[Shard, TaskId] | None:
    """Where a caller of ``submit_plain`` has to stand in line, and the id of its task.

    None: there is no line, or the task goes the general way.
    """
    if not state.takes_plain or state.is_disk_low or len(payload) > state.plain_bytes_max:
        return None
    for shard in state.shards:
        coalescer = shard.coalescer
        if (
            coalescer.status <= STALLED
            and coalescer.waiting < coalescer.submit_queue_max
            and not coalescer.submit_line.queued
        ):
            return None
    task_id = as_task_id(state.healthy_id(state.wall_ns() // 1_000_000))
    shard = state.shard_of(task_id)
    return None if shard.coalescer.has_capacity else (shard, task_id)


def submit_plain_many(
    state: EngineState,
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
    if not state.takes_plain or state.is_disk_low or not 0 < len(tasks) <= MANY_MAX:
        return None
    values = plain_values(shared, tasks, state.limits.payload_bytes_max, state.plain_bytes_max)
    if values is None:
        return None
    encoded, size = values
    size += 300 * len(encoded)
    if len(state.shards) == 1:
        shard, slot = state.shards[0], state.ids.slot()
    else:
        home = state.home
        chosen = home.current()
        if chosen is None:
            return None
        shard, slot = chosen, state.ids.slot_within(home.first_slot, home.slots)
        home.stayed += len(encoded)
    coalescer = shard.coalescer
    if size > MANY_BYTES_MAX or not coalescer.has_capacity or coalescer.status > STALLED:
        return None
    if size > coalescer.submission_bytes_max:
        return None
    now_us = state.wall_ns() // 1000
    shard_queue = state.tenant_queue(shared.queue, shared.tenant).shard_queue(shard)
    group = coalescer.begin(size)
    receipts = place_plain(state, group, shard_queue, shared, encoded, slot, now_us)
    if waiter is not None:
        group.waiters.append((waiter, receipts))
        return waiter, receipts
    return coalescer.wait(group, receipts, is_durable=durable is True), receipts


def submit_claim(
    state: EngineState,
    request: ClaimRequest,
    waiter: Future | None = None,
    is_admitted: bool = False,
) -> tuple[Future | None, list[Any]] | None:
    """Queue a claim of one task whose body is in memory. No future: it is committed already.

    Args:
        request: the lease is of ``state.lease_type``.
        waiter: gets the leases, in place of a future.
        is_admitted: the caller has stood in line.
    """
    taken = take_one(state, request, is_caller=not is_admitted)
    if taken is None:
        return None
    leases, group = taken
    coalescer = leases[0].shard_queue.shard.coalescer
    state.totals.claimed += 1
    try:
        if coalescer.inline_left and coalescer.commit_now(group):
            return None, leases
    except LodeqError:
        drop(leases)
        raise
    future = state.future() if waiter is None else waiter
    group.waiters.append((future, leases))
    return future, leases


def claim_in_turn(
    state: EngineState, request: ClaimRequest, future: Future, taken: list[Any]
) -> tuple[Future | None, list[Any]] | None:
    """``submit_claim`` for a line: ``taken`` gets the leases, for a caller who is cancelled.

    Args:
        request: the lease is of ``state.lease_type``.
        future: gets the leases.
        taken: gets them when they are granted, before that is committed.
    """
    if state.is_closed:
        return None
    submitted = submit_claim(state, request, future, True)
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
    state: EngineState = lease.state
    if (
        type(result) is bytes
        and state.stores_plain
        and len(result) <= state.limits.result_bytes_max
    ):
        flags, value, raw_bytes = HAS_VALUE, result, len(result)
    else:
        flags, value, raw_bytes = encode_result(state, lease, result)
    coalescer = lease.shard_queue.shard.coalescer
    if (
        not lease.is_live
        or state.is_closed
        or (
            (coalescer.waiting >= coalescer.submit_queue_max or coalescer.submit_line.queued)
            and not is_admitted
        )
    ):
        return None
    if state.leases.get(lease.task_id) is not lease:
        return None
    group = coalescer.begin(300 + len(value))
    finish_one(state, group, lease, flags, value, raw_bytes, keep)
    state.totals.completed += 1
    if durable is True:
        return (coalescer.wait(group, None, is_durable=True),)
    if coalescer.inline_left and coalescer.commit_now(group):
        return (None,)
    future = state.future() if waiter is None else waiter
    group.waiters.append((future, None))
    return (future,)
