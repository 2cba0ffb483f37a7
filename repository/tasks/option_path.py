"""Enqueues with options, flattened as in ``fast_path``: priority, delay, TTL, dedup key, headers.

They queue exactly the rows the general code queues (a test compares them byte for byte). Shard
keys, ``run_at`` and what may replace or refuse a duplicate go the general way, policies of a task's
own but where ``submit_task`` is given one, and so does whatever is wrong: there it gets its error.

- ``submit_keyed``: one task with a dedup key, without delay and TTL: ``+t +q +g``.
- ``submit_task``: one task: ``+t +q``, with a dedup key ``+g``.
- ``submit_tasks``: the tasks of one call, if they fit one submission to one shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any, Final

from ...coalescer.commit_loop import Coalescer
from ...coalescer.group import Group
from ...coalescer.shard_status import STALLED
from ...engine.records.events import ENQUEUED, pack_one
from ...engine.records.frame import checksum
from ...engine.records.keyspace import GHOST, ID_AT, TASK, delayed_key, ghost_hash
from ...engine.records.rows import (
    KEYED_FORM,
    MOVED_ROW,
    decode_ghost,
    pack_ghost,
    pack_row,
    ready_value,
)
from ...engine.records.task import FIRST_DELAYED, FIRST_READY, NO_GHOST, option_packer
from ...engine.runtime.event_loop import Future
from ...engine.runtime.ids import slot_of
from ...engine.runtime.task_id import TaskId, as_task_id
from ...errors import CorruptionError
from ..model.arguments import is_plain
from ..model.codec import encode_headers, encode_value
from ..model.encoded_tasks import TaskTemplate
from ..model.faces import packed_face
from ..model.task_options import CONFLICT_DEFAULT, DURATION_S_MAX, KEY_BYTES_MAX, PRIORITY_DEFAULT
from ..model.values import NewTask, Receipt
from ..state.caches.ready_cache import Row
from ..state.engine_state import EngineState
from ..state.queue_state import Shard, ShardQueue
from .enqueue import ghost_owner
from .fast_path import PLAIN, note_plain

__all__ = ["place_task", "submit_keyed", "submit_task", "submit_tasks"]

_receipt: Final = tuple.__new__  # what Receipt(…) does, without its Python frame
_as_task_id: Final = as_task_id
WORK_MAX: Final = 1024  # as ``batches``: tasks of a chunk, where one with a key counts four times
BYTES_MAX: Final = 1 << 20
_NO_OTHERS: Final = NewTask(b"")[NewTask._fields.index("preview") + 1 :]  # those behind it
_NUMBERS: Final = frozenset((int, float))

# Of one task: priority, milliseconds of delay, TTL and dedup window (0: none), the dedup key,
# headers and face as stored.
Options = tuple[int, int, int, int, bytes, bytes, bytes]
_PLAIN: Final[Options] = (5, 0, 0, 0, b"", b"", b"")


def _options(
    priority: Any, delay: Any, ttl: Any, key: Any, window: Any
) -> tuple[int, int, int, int, bytes] | None:
    """Options as rows need them, without the last two; None: not all are of the common types.

    Args:
        priority: 0 to 9.
        delay: seconds, or None.
        ttl: seconds, or None.
        key: dedup key, or None.
        window: dedup window in seconds, or None.
    """
    if type(priority) is not int or not 0 <= priority <= 9:
        return None
    delay_ms = ttl_ms = window_ms = 0
    raw = b""
    if delay is not None:
        if type(delay) not in _NUMBERS or not 0 <= delay <= DURATION_S_MAX:
            return None
        delay_ms = round(delay * 1000)
    if ttl is not None:
        if type(ttl) not in _NUMBERS or not 0 <= ttl <= DURATION_S_MAX:
            return None
        ttl_ms = round(ttl * 1000) or 1
    if key is not None:
        if type(key) is bytes:
            raw = key
        elif type(key) is str:
            try:
                raw = key.encode()
            except UnicodeEncodeError:
                return None
        if not 1 <= len(raw) <= KEY_BYTES_MAX:
            return None
        if window is not None:
            if type(window) not in _NUMBERS or not 0 <= window <= DURATION_S_MAX:
                return None
            window_ms = round(window * 1000) or 1
    elif window is not None:
        return None
    return priority, delay_ms, ttl_ms, window_ms, raw


def place_task(
    state: EngineState,
    shard: Shard,
    group: Group,
    shard_queue: ShardQueue,
    shared: TaskTemplate,
    task_id: TaskId,
    kind: int,
    data: bytes,
    options: Options,
    ghost: bytes,
    now_us: int,
    policy: bytes,
) -> None:
    """``place`` for a task with these options: its rows, and what memory knows of it.

    Args:
        state: the engine's state.
        shard: of the task.
        group: of the shard; gets the rows.
        shard_queue: of the queue on the shard.
        shared: of the queue.
        task_id: new, of a slot of ``shard``.
        kind: of the payload.
        data: the payload's bytes.
        options: as checked.
        ghost: hash of the dedup key, which nobody holds and the filter knows; else ``NO_GHOST``.
        now_us: wall microseconds.
        policy: the task's.
    """
    priority, delay_ms, ttl_ms, window_ms, _, headers, face = options
    now_ms = now_us // 1000
    due_ms = now_ms + delay_ms if delay_ms else 0
    expires_ms = (due_ms or now_ms) + ttl_ms if ttl_ms else 0
    ghost_expires_ms = now_ms + window_ms if window_ms else 0
    seq = state.seq = now_us if now_us > state.seq else state.seq + 1
    n = len(data)
    names = shared.names
    if headers or face:
        names += headers + face
        pack, value = option_packer(len(names), n), b""
    else:
        pack, value = shared.option_packs.get(n) or shared.option_pack(n)
    if due_ms or priority != 5:
        head = shared.head(kind, priority, FIRST_DELAYED if due_ms else FIRST_READY)
    else:
        head = shared.plain_heads[kind]
    body = pack(
        head,
        now_us,
        seq,
        due_ms,
        expires_ms,
        policy,
        ghost,
        ghost_expires_ms,
        len(headers),
        n,
        n,
        0 if ghost is NO_GHOST else KEYED_FORM,
        len(face),
        names,
        data,
    )
    record = body + checksum(body)
    size = len(record)
    # All is encoded before anything is queued: what is raised here leaves nothing half-built.
    if expires_ms:
        value = pack_row(0, priority, 0, size, expires_ms)
    elif priority != 5 or headers or face:
        value = ready_value(size, priority)
    index, later = 9 - priority, b""
    if not due_ms:
        key = shard_queue.ready_key(shard_queue.ready_prefixes[index], seq, task_id)
    else:
        key = delayed_key(shard_queue.prefix, due_ms, seq, task_id)
        if expires_ms:
            later = pack_row(MOVED_ROW, priority, 0, size, expires_ms)
        else:
            later = ready_value(size, priority, MOVED_ROW)
    entry = b"" if ghost is NO_GHOST else pack_ghost(task_id, ghost_expires_ms)
    event = b""
    if group.events is not None:
        event = (
            pack_one(ENQUEUED, priority, 0, 1, 0, now_us, task_id) + shard_queue.tenant_queue.tag
        )
    if expires_ms:
        state.file_expiry(shard, group, expires_ms, b"t" + task_id)
    if ghost_expires_ms:
        at_ms = -(-ghost_expires_ms // 1000) * 1000
        filed = group.expiry.get(at_ms)
        if filed is not None:
            filed.append(b"g" + ghost)
        else:
            state.file_expiry(shard, group, at_ms, b"g" + ghost)
    if group.events is not None:
        group.events.append(event)
    ops = group.ops
    ops.append((TASK + task_id, record))
    if due_ms:
        held = (key, key[ID_AT:], priority, 0, 0, expires_ms, size, record, later)
        state.put_delayed(group, shard_queue, key, due_ms, value, held)
    else:
        group.fresh[key] = len(ops)
        ops.append((key, value))
        ready_cache = shard_queue.ready_caches[index]
        if (
            ready_cache is not None
            and not ready_cache.is_complete
            and key > ready_cache.edge
            and shard_queue.ready
        ):
            shard_queue.occupied |= 1 << index  # on disk only, as in ``place_plain``
            shard_queue.ready += 1
            group.dirty[shard_queue] = None
            if state.claim_sets.is_noted:
                state.waiters.note(shard_queue.tenant_queue, key)
        elif (  # as in ``submit_plain``
            ready_cache is not None
            and ready_cache.is_complete
            and len(ready_cache.rows) < ready_cache.cap
            and shard_queue.ready
            and (not ready_cache.rows or key > ready_cache.rows[-1][0])
            and state.held_bytes < state.held_bytes_max
        ):
            ready_cache.rows.append((key, key[ID_AT:], 0, 0, expires_ms, size, record))
            shard_queue.occupied |= 1 << index
            shard_queue.ready += 1
            state.held_bytes += size
            group.dirty[shard_queue] = None
            if state.claim_sets.is_noted:
                state.waiters.note(shard_queue.tenant_queue, key)
        else:
            state.note_ready(
                group, shard_queue, index, (key, key[ID_AT:], 0, 0, expires_ms, size, record)
            )
    if entry:
        ops.append((GHOST + ghost, entry))
    state.totals.enqueued += 1
    shard_queue.tenant_queue.flow.enqueued += 1


def _payload(state: EngineState, shared: TaskTemplate, payload: Any) -> tuple[int, bytes] | None:
    """Kind and bytes of a payload; None: it goes to a body file."""
    if type(payload) is bytes and len(payload) <= state.plain_bytes_max:
        return 0, payload
    if shared.codec is not None and state.plain_bytes_max < state.limits.payload_bytes_max:
        return None  # it may be large, and a codec is asked once
    kind, data = encode_value(payload, shared.codec, state.limits.payload_bytes_max, "payload")
    return (kind, data) if len(data) <= state.plain_bytes_max else None


def submit_keyed(
    state: EngineState,
    shared: TaskTemplate,
    payload: Any,
    priority: Any,
    dedup_key: Any,
    dedup_window: Any,
    durable: bool | None,
    waiter: Future | None = None,
) -> tuple[Future, Receipt] | None:
    """``submit_task`` for a dedup key without delay and TTL, with ``place_task`` folded into it.

    Args:
        state: the engine's state.
        shared: of the queue.
        payload: bytes, or what the queue's codec or msgpack packs.
        priority: 0 to 9.
        dedup_key: whoever holds it, its receipt is returned.
        dedup_window: seconds.
        durable: True waits for an fsync, whatever the engine's mode.
        waiter: gets the receipt, in place of a future; not with ``durable``.
    """
    if not state.takes_plain or state.is_disk_low:
        return None
    if type(priority) is not int or not 0 <= priority <= 9:
        return None
    key = dedup_key
    if type(key) is str:
        try:
            key = key.encode()
        except UnicodeEncodeError:
            return None
    if type(key) is not bytes or not 1 <= len(key) <= KEY_BYTES_MAX:
        return None
    now_us = state.wall_ns() // 1000
    now_ms = now_us // 1000
    ghost_expires_ms = 0
    if dedup_window is not None:
        if type(dedup_window) not in _NUMBERS or not 0 <= dedup_window <= DURATION_S_MAX:
            return None
        ghost_expires_ms = now_ms + (round(dedup_window * 1000) or 1)
    if type(payload) is bytes and len(payload) <= state.plain_bytes_max:
        kind, data = 0, payload
    else:
        packed = _payload(state, shared, payload)
        if packed is None:
            return None
        kind, data = packed
    routing = shared.routing + key
    slot, shards = slot_of(routing), state.shards
    shard = shards[0] if len(shards) == 1 else state.shard_of_slot(slot)
    coalescer = shard.coalescer
    if (
        not shard.secret
        or shard.old_ghosts
        or coalescer.waiting >= coalescer.submit_queue_max
        or coalescer.submit_line.queued
        or coalescer.status > STALLED
    ):
        return None
    hasher = shard.ghost_hasher.copy()  # ``ghost_hash``
    hasher.update(routing)
    ghost = hasher.digest()
    task_id = _as_task_id(state.ids.new(now_ms, slot))
    n = len(data)
    group = coalescer.begin(n + len(shared.names) + 376)
    known = shard.dedup_filter
    at = int.from_bytes(ghost[:4], "little") & known.mask
    if known.is_complete and known.next_bits is None and not known.bits[at >> 3] & 1 << (at & 7):
        known.bits[at >> 3] |= 1 << (at & 7)  # as ``take``: nobody holds it
        known.filled += 1
    elif not known.take(ghost):
        holder = _holder(state, shard, ghost, now_ms)
        if holder is not None:
            state.totals.duplicates += 1
            return _awaited(coalescer, group, (holder, True, None), durable, waiter)
    tenant_queue = shared.tenant_queue
    if tenant_queue is None or tenant_queue.is_dropped:
        tenant_queue = shared.tenant_queue = state.tenant_queue(shared.queue, shared.tenant)
    shard_queue = tenant_queue.shard_queues[shard.index]
    if shard_queue is None:
        shard_queue = tenant_queue.shard_queue(shard)
    seq = state.seq = now_us if now_us > state.seq else state.seq + 1
    pack, value = shared.option_packs.get(n) or shared.option_pack(n)
    head = shared.plain_heads[kind]
    if priority != 5:
        head = shared.head(kind, priority, FIRST_READY)
        value = ready_value(n + shared.frame_bytes, priority)
    body = pack(
        head,
        now_us,
        seq,
        0,
        0,
        shared.policy,
        ghost,
        ghost_expires_ms,
        0,
        n,
        n,
        KEYED_FORM,
        0,
        shared.names,
        data,
    )
    record = body + checksum(body)
    size = len(record)
    index = 9 - priority
    ready = shard_queue.ready_key(shard_queue.ready_prefixes[index], seq, task_id)
    entry = pack_ghost(task_id, ghost_expires_ms)
    event = b""
    if group.events is not None:
        event = pack_one(ENQUEUED, priority, 0, 1, 0, now_us, task_id) + tenant_queue.tag
    if ghost_expires_ms:
        filed = group.expiry.get(-(-ghost_expires_ms // 1000) * 1000)
        if filed is not None:
            filed.append(b"g" + ghost)
        else:
            state.file_expiry(shard, group, ghost_expires_ms, b"g" + ghost)
    if group.events is not None:  # rows are queued when all is encoded
        group.events.append(event)
    ops = group.ops
    group.fresh[ready] = len(ops) + 1
    ops += ((TASK + task_id, record), (ready, value), (GHOST + ghost, entry))
    state.totals.enqueued += 1
    tenant_queue.flow.enqueued += 1
    ready_cache = shard_queue.ready_caches[index]
    if (
        ready_cache is not None
        and not ready_cache.is_complete
        and shard_queue.ready
        and ready > ready_cache.edge
    ):
        shard_queue.occupied |= 1 << index  # on disk only, as in ``place_plain``
        shard_queue.ready += 1
        group.dirty[shard_queue] = None
        if state.claim_sets.is_noted:
            state.waiters.note(tenant_queue, ready)
    elif (  # as in ``submit_plain``
        ready_cache is not None
        and ready_cache.is_complete
        and len(ready_cache.rows) < ready_cache.cap
        and shard_queue.ready
        and (not ready_cache.rows or ready > ready_cache.rows[-1][0])
        and state.held_bytes < state.held_bytes_max
    ):
        ready_cache.rows.append((ready, ready[ID_AT:], 0, 0, 0, size, record))
        shard_queue.occupied |= 1 << index
        shard_queue.ready += 1
        state.held_bytes += size
        group.dirty[shard_queue] = None
        if state.claim_sets.is_noted:
            state.waiters.note(tenant_queue, ready)
    else:
        state.note_ready(group, shard_queue, index, (ready, ready[ID_AT:], 0, 0, 0, size, record))
    receipt: Receipt = _receipt(Receipt, (task_id, False, None))
    if durable is True:
        return coalescer.wait(group, None, is_durable=True), receipt
    future = state.future() if waiter is None else waiter
    group.waiters.append((future, receipt))
    return future, receipt


def _holder(state: EngineState, shard: Shard, ghost: bytes, now_ms: int) -> TaskId | None:
    """Who holds the dedup key with this hash; the filter does not know."""
    raw = shard.dedup_row(ghost)
    if raw is None:
        return None
    holder = ghost_owner(state, shard, decode_ghost(raw), now_ms)
    return None if holder is None else _as_task_id(holder)


def submit_task(
    state: EngineState,
    shared: TaskTemplate,
    payload: Any,
    priority: Any,
    delay: Any,
    ttl: Any,
    dedup_key: Any,
    dedup_window: Any,
    headers: Any,
    durable: bool | None,
    face: bytes = b"",
    waiter: Future | None = None,
    policy: bytes | None = None,
) -> tuple[Future, Receipt] | None:
    """Queue an enqueue with these options and no others. None: it has to go the general way.

    Args:
        state: the engine's state.
        shared: of the queue.
        payload: bytes, or what the queue's codec or msgpack packs.
        priority: 0 to 9.
        delay: seconds.
        ttl: seconds.
        dedup_key: whoever holds it, its receipt is returned.
        dedup_window: seconds.
        headers: a mapping that msgpack packs.
        durable: True waits for an fsync, whatever the engine's mode.
        face: as ``packed_face`` packs it.
        waiter: gets the receipt, in place of a future; not with ``durable``.
        policy: of the task; None: the queue's.
    """
    if not state.takes_plain or state.is_disk_low:
        return None
    given = _options(priority, delay, ttl, dedup_key, dedup_window)
    if given is None:
        return None
    packed = _payload(state, shared, payload)
    if packed is None:
        return None
    kind, data = packed
    packed_headers = b""
    if headers is not None:
        packed_headers = encode_headers(headers, state.limits.headers_bytes_max)
    options = (*given, packed_headers, face)
    key = options[4]
    now_us = state.wall_ns() // 1000
    if key:
        routing = shared.routing + key
        slot = slot_of(routing)
        shard = state.shard_of_slot(slot)
        if not shard.secret or shard.old_ghosts or not _takes(shard):
            return None
        ghost, cost = ghost_hash(shard.secret, routing), 376
        task_id = _as_task_id(state.ids.new(now_us // 1000, slot))
    else:
        if len(state.shards) == 1 and not _takes(state.shards[0]):
            return None
        ghost, cost = NO_GHOST, 248
        task_id = _as_task_id(state.healthy_id(now_us // 1000))
        shard = state.shard_of(task_id)
        if not _takes(shard):
            return None
    coalescer = shard.coalescer
    group = coalescer.begin(len(data) + len(shared.names) + len(packed_headers) + len(face) + cost)
    if key and not shard.dedup_filter.take(ghost):
        holder = _holder(state, shard, ghost, now_us // 1000)
        if holder is not None:
            state.totals.duplicates += 1
            return _awaited(coalescer, group, (holder, True, None), durable, waiter)
    tenant_queue = shared.tenant_queue
    if tenant_queue is None or tenant_queue.is_dropped:
        tenant_queue = shared.tenant_queue = state.tenant_queue(shared.queue, shared.tenant)
    shard_queue = tenant_queue.shard_queue(shard)
    place_task(
        state,
        shard,
        group,
        shard_queue,
        shared,
        task_id,
        kind,
        data,
        options,
        ghost,
        now_us,
        shared.policy if policy is None else policy,
    )
    return _awaited(coalescer, group, (task_id, False, None), durable, waiter)


def _awaited(
    coalescer: Coalescer,
    group: Group,
    fields: tuple[TaskId, bool, None],
    durable: bool | None,
    waiter: Future | None,
) -> tuple[Future, Receipt]:
    """A receipt, and what gets it once the group is applied, or durable."""
    receipt: Receipt = _receipt(Receipt, fields)
    if waiter is None:
        return coalescer.wait(group, None, is_durable=durable is True), receipt
    group.waiters.append((waiter, receipt))
    return waiter, receipt


def _takes(shard: Shard) -> bool:
    """Whether a submission to the shard need not wait, nor go elsewhere."""
    return shard.coalescer.has_capacity and shard.coalescer.status <= STALLED


def submit_tasks(
    state: EngineState,
    shared: TaskTemplate,
    tasks: Sequence[Any],
    durable: bool | None,
    waiter: Future | None = None,
) -> tuple[Future, list[Receipt]] | None:
    """Queue tasks that have these options and no others, if they fit one submission.

    Args:
        state: the engine's state.
        shared: of the queue.
        tasks: of one call.
        durable: True waits for an fsync, whatever the engine's mode.
        waiter: gets the receipts, in place of a future; not with ``durable``.
    """
    if not state.takes_plain or state.is_disk_low or not 0 < len(tasks) <= WORK_MAX:
        return None
    checked = _checked(state, shared, tasks)
    if checked is None:
        return None
    entries, keyed, n_bytes = checked
    n_bytes += 300 * len(entries) + 100 * len(keyed)
    is_single = len(state.shards) == 1
    if len(entries) + 3 * len(keyed) > WORK_MAX or n_bytes > BYTES_MAX:
        return None
    if keyed and not is_single:
        return None
    if is_single and not _takes(state.shards[0]):
        return None
    now_us = state.wall_ns() // 1000
    now_ms = now_us // 1000
    hashed: list[tuple[int, bytes]] = []  # slot and hash of each key, in order
    known: dict[bytes, TaskId] = {}  # who holds a hash
    if keyed:
        found = _holders(state, shared, keyed, hashed, now_ms)
        if found is None:
            return None
        known = found
    hashed.reverse()
    slot = state.healthy_slot(len(entries) - len(keyed))
    shard = state.shard_of_slot(slot)
    coalescer = shard.coalescer
    if not _takes(shard) or n_bytes > coalescer.submission_bytes_max:
        return None
    shard_queue: ShardQueue | None = None  # a duplicate makes none
    if len(keyed) < len(entries):
        shard_queue = state.tenant_queue(shared.queue, shared.tenant).shard_queue(shard)
    group = coalescer.begin(n_bytes)
    fresh = state.ids.run(now_ms, slot, len(entries) - len(keyed))
    fresh.reverse()
    receipts: list[Receipt] = []
    rows: list[Row] = []
    held, is_awaited, ops = 0, state.claim_sets.waiting > 0, group.ops
    plain, heads = shared.plain, shared.plain_heads
    with group:
        for kind, data, options in entries:
            ghost = NO_GHOST
            if options[4]:
                key_slot, ghost = hashed.pop()
                task_id = _as_task_id(state.ids.new(now_ms, key_slot))
                holder = known.get(ghost)
                if holder is not None:
                    state.totals.duplicates += 1
                    receipts.append(_receipt(Receipt, (holder, True, None)))
                    continue
                known[ghost] = task_id
                if shard_queue is None:
                    shard_queue = state.tenant_queue(shared.queue, shared.tenant).shard_queue(shard)
            else:
                task_id = fresh.pop()
            receipts.append(_receipt(Receipt, (task_id, False, None)))
            if options is _PLAIN and shard_queue is not None and group.events is None:
                seq = state.seq = (
                    now_us if now_us > state.seq else state.seq + 1
                )  # as ``place_plain``
                n = len(data)
                pack, middle, value = plain.get(n) or shared.plain_parts(n)
                body = pack(heads[kind], now_us, seq, middle, data)
                record = body + checksum(body)
                row_key = shard_queue.ready_key(shard_queue.ready_prefixes[PLAIN], seq, task_id)
                ops.append((TASK + task_id, record))
                if is_awaited:
                    group.fresh[row_key] = len(ops)
                ops.append((row_key, value))
                n = len(record)
                rows.append((row_key, row_key[ID_AT:], 0, 0, 0, n, record))
                held += n
            elif shard_queue is not None:
                place_task(
                    state,
                    shard,
                    group,
                    shard_queue,
                    shared,
                    task_id,
                    kind,
                    data,
                    options,
                    ghost,
                    now_us,
                    shared.policy,
                )
        if rows and shard_queue is not None:
            state.totals.enqueued += len(rows)
            shard_queue.tenant_queue.flow.enqueued += len(rows)
            note_plain(state, group, shard_queue, rows, held)
    if waiter is not None:
        group.waiters.append((waiter, receipts))
        return waiter, receipts
    return coalescer.wait(group, receipts, is_durable=durable is True), receipts


def _checked(
    state: EngineState, shared: TaskTemplate, tasks: Sequence[Any]
) -> tuple[list[tuple[int, bytes, Options]], list[bytes], int] | None:
    """(kind, payload, options) of each task, the dedup keys, and the bytes of all payloads."""
    entries: list[tuple[int, bytes, Options]] = []
    keyed: list[bytes] = []
    size, has_none, plain_max = 0, True, state.plain_bytes_max
    for task in tasks:
        if task.__class__ is not NewTask:
            return None
        if is_plain(task):
            payload = task[0]
            if type(payload) is bytes and len(payload) <= plain_max:
                size += len(payload)
                entries.append((0, payload, _PLAIN))
                continue
        fields: Any = task  # of any type: compiled code would refuse a wrong one before we can
        (
            payload,
            queue,
            tenant,
            priority,
            delay,
            run_at,
            ttl,
            key,
            window,
            on_conflict,
            headers,
            attempts,
            shard_key,
            retry,
            retention,
            dead_retention,
            labels,
            function,
            preview,
            *others,
        ) = fields
        if (
            queue is not None
            or tenant is not None
            or run_at is not None
            or attempts is not None
            or shard_key is not None
            or on_conflict is not CONFLICT_DEFAULT
            or retry is not None
            or retention is not None
            or dead_retention is not None
            or not all(map(is_, others, _NO_OTHERS))
        ):
            return None
        options = _PLAIN
        if not (
            priority is PRIORITY_DEFAULT
            and delay is None
            and ttl is None
            and key is None
            and window is None
            and headers is None
            and labels is None
            and function is None
            and preview is None
        ):
            given = _options(priority, delay, ttl, key, window)
            if given is None:
                return None
            face = b""
            has_face = function is not None or preview is not None or labels is not None
            if has_face and shared.faces and state.keeps_faces(shared.queue):
                face = packed_face(function, preview, labels, state.redaction)
            options = (*given, b"", face)
            size += len(face)
            if options[4]:
                keyed.append(options[4])
            has_none = False
        packed = _payload(state, shared, payload)
        if packed is None:
            return None
        kind, data = packed
        if headers is not None:
            raw = encode_headers(headers, state.limits.headers_bytes_max)
            options = (*options[:5], raw, options[6])
            size += len(raw)
        size += len(data)
        entries.append((kind, data, options))
    return None if has_none else (entries, keyed, size)


def _holders(
    state: EngineState,
    shared: TaskTemplate,
    keys: list[bytes],
    hashed: list[tuple[int, bytes]],
    now_ms: int,
) -> dict[bytes, TaskId] | None:
    """Who holds which of the keys, by hash; None: the general way has to find out.

    Args:
        state: of one shard.
        shared: of the queue.
        keys: dedup keys.
        hashed: gets slot and hash of each.
        now_ms: wall milliseconds.
    """
    shard = state.shards[0]
    if not shard.secret or shard.old_ghosts:
        return None
    start, take = shared.routing, shard.dedup_filter.take
    ghosts: list[bytes] = []  # that somebody may hold
    for key in keys:
        routing = start + key
        ghost = ghost_hash(shard.secret, routing)
        hashed.append((slot_of(routing), ghost))
        if not take(ghost):
            ghosts.append(ghost)
    known: dict[bytes, TaskId] = {}
    try:
        found = shard.overlay.multi_get([GHOST + ghost for ghost in ghosts]) if ghosts else []
        for ghost, raw in zip(ghosts, found, strict=True):
            if raw is not None:
                holder = ghost_owner(state, shard, decode_ghost(raw), now_ms)
                if holder is not None:
                    known[ghost] = _as_task_id(holder)
    except CorruptionError:
        return None
    return known
