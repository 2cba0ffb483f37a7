"""Which rows a claim gets: from the ready caches, refilled from disk.

Order: priority, merged over the shards' heads. Ties of priority go by seq, then by id. All
tenants: one task a turn. Several queues are merged as shards are, so that no queue named first
starves the others. With ``boost_after`` set, every eighth task granted is the oldest overdue one,
if there is any: counted over claims and within them, for a tenant queue or, of a claim from
several, over all of these claims.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from ...coalescer.shard_status import STALLED
from ...engine.records.compression import VALUE_BYTES_MAX
from ...engine.records.keyspace import ID_AT, ORDER_AT, SEQ_AT, prefix_end
from ...engine.records.rows import decode_index_row
from ...errors import InvariantError, RecordCorruptError
from ..state.caches.claim_sets import NO_ROW, ClaimSet, Slot
from ..state.caches.ready_cache import READY_ROWS, RECORD, SIZE, ReadyCache, Row, RowFacts
from ..state.engine_state import EngineState
from ..state.long_polls import ClaimRequest
from ..state.queue_state import QueueState, ShardQueue, TenantQueue
from ..state.turns import TURN_S

__all__ = [
    "Picked",
    "advance",
    "bytes_left",
    "claim_cost",
    "first_of_set",
    "head",
    "head_seq",
    "is_doubtful",
    "next_of_set",
    "pick",
    "put_back_picked",
    "refill",
    "uncount",
]

CLAIM_BYTES_MAX = 4 << 20
STREAMED_COST: Final = 64 << 10  # of a task whose payload stays in its file: its headers
REFILL_ROWS = READY_ROWS // 2
BOOST_EVERY: Final = 8
LOOKS: Final = 16  # tenants whose tasks are taken between two looks at the clock
LAST_ORDER: Final = b"\xff"  # behind every (inverted priority, seq, id)


Picked = tuple[ShardQueue, Row]
Head: TypeAlias = tuple[bytes, ShardQueue, int]  # its order, its shard queue, 9 - priority


def claim_cost(record_bytes: int) -> int:
    """Bytes that a claim reads of a task: of a streamed payload none; others are smaller."""
    return record_bytes if record_bytes <= VALUE_BYTES_MAX else STREAMED_COST


def bytes_left(request: ClaimRequest) -> int:
    """Bytes of records that a claim may take now, beside its first task."""
    if request.bound is None:
        return request.bytes_max or CLAIM_BYTES_MAX
    return min(request.bound.left_bytes(), request.bytes_max or CLAIM_BYTES_MAX)


def refill(
    state: EngineState, shard_queue: ShardQueue, index: int, ready_cache: ReadyCache
) -> None:
    """Bring the next rows of the backlog in: one bounded scan from the edge on.

    Rows behind a damaged block come in, those in it stay on disk (``unreadable.py``). Where this
    call may not look further, the ready cache stays empty and incomplete, and the next one goes on.

    Args:
        shard_queue: of the ready cache.
        index: 9 - priority.
        ready_cache: empty and incomplete, or nothing is done.
    """
    prefix = shard_queue.ready_prefixes[index]
    upper = prefix_end(prefix)
    values = state.index_values
    overlay = shard_queue.shard.overlay
    while not ready_cache.rows and not ready_cache.is_complete:
        lower = ready_cache.edge + b"\0"
        found, resume = overlay.scan_readable(lower, upper, REFILL_ROWS, renew=False)
        edge: bytes | None = None
        if resume is not None:  # the end of a damaged range need not end in a zero byte
            edge = max(resume[:-1], found[-1][0]) if found else resume[:-1]
            if edge < lower and not found:
                return
        rows: list[Row] = []
        for key, value in found:
            try:
                attempts, flags, expires_ms, size = values.get(value) or _decode(values, value)
            except RecordCorruptError as error:
                state.anomaly(f"shard {shard_queue.shard.index}: index row {key!r}: {error}")
                continue
            rows.append((key, key[ID_AT:], attempts, flags, expires_ms, size, None))
        ready_cache.refill(rows, edge)


def _decode(values: dict[bytes, RowFacts], value: bytes) -> RowFacts:
    """Decode an index value and keep it: tasks of one size that never ran all have the same."""
    row = decode_index_row(value)
    if len(values) >= 4096:
        values.clear()
    facts = values[value] = row.attempts, row.flags, row.expires_ms, row.record_bytes
    return facts


def head(
    state: EngineState, shard_queue: ShardQueue, *, may_rescan: bool
) -> tuple[int, Row] | None:
    """The first ready row of a shard queue: (9 - priority, row); None if there is none.

    ``may_rescan`` only while nothing has been picked: the deletes of picked rows are not queued
    yet, so a scan would find these rows again.
    """
    if shard_queue.ready <= 0 or shard_queue.shard.coalescer.status > STALLED:
        return None
    left = shard_queue.occupied
    while left:
        index = (left & -left).bit_length() - 1
        ready_cache = shard_queue.ready_caches[index]
        if ready_cache is not None:
            if not ready_cache.rows and not ready_cache.is_complete:
                refill(state, shard_queue, index, ready_cache)
            if ready_cache.rows:
                return index, ready_cache.rows[0]
        if ready_cache is None or ready_cache.is_complete:
            shard_queue.occupied &= ~(1 << index)
        left &= ~(1 << index)
    if not may_rescan or _is_unreadable(shard_queue):
        return None
    _rescan(state, shard_queue)
    return head(state, shard_queue, may_rescan=False)


def _is_unreadable(shard_queue: ShardQueue) -> bool:
    """Whether ready rows lie where nothing can be read: then the counter is right about them."""
    unreadable = shard_queue.shard.overlay.unreadable
    start = shard_queue.prefix + b"r"
    return unreadable is not None and unreadable.overlaps(start, prefix_end(start))


def _rescan(state: EngineState, shard_queue: ShardQueue) -> None:
    """The counter says there are rows, the ready caches say there are none: trust neither.

    The counter becomes what exists, where all of it fits the ready caches; else a later rescan,
    when these rows are gone, sees the rest.
    """
    counted = shard_queue.ready
    state.anomaly(
        f"shard {shard_queue.shard.index}: {shard_queue.tenant_queue.queue.decode()}: "
        f"counter {counted}, no rows in memory: rescanned"
    )
    state.let_go(shard_queue)
    b = shard_queue
    b.load(counted, b.delayed, b.leased, b.dead, b.results, b.waiting)
    state.claim_sets.touch(shard_queue.tenant_queue)
    exists, is_all = 0, True
    for index, ready_cache in enumerate(shard_queue.ready_caches):
        if ready_cache is not None:
            refill(state, shard_queue, index, ready_cache)
            exists += len(ready_cache.rows)
            is_all = is_all and ready_cache.is_complete
    if not is_all:
        exists = max(exists, counted)
    if exists != counted:
        coalescer = shard_queue.shard.coalescer
        group = coalescer.begin(
            0
        )  # first: it may seal the group before, with the counter as it was
        shard_queue.ready = exists
        group.dirty[shard_queue] = None
        coalescer.seal_full()  # the claim goes on to count down: not in a group that is full


def is_doubtful(tenant_queue: TenantQueue) -> bool:
    """Whether a counter says there are rows while no ready cache can have any: see ``_rescan``."""
    return any(
        b is not None and b.ready > 0 and not b.occupied and b.shard.coalescer.status <= STALLED
        for b in tenant_queue.shard_queues
        if b is None or not _is_unreadable(b)
    )


def head_seq(state: EngineState, tenant_queue: TenantQueue) -> int | None:
    """The least seq among the heads of all priorities and shards: the oldest ready task."""
    _renew_probes(state)
    oldest: int | None = None
    for _, _, row in _heads(state, tenant_queue, may_rescan=False):  # looking changes nothing
        seq = int.from_bytes(row[0][SEQ_AT:ID_AT], "big")
        if oldest is None or seq < oldest:
            oldest = seq
    return oldest


def _heads(
    state: EngineState, tenant_queue: TenantQueue, *, may_rescan: bool
) -> list[tuple[ShardQueue, int, Row]]:
    found: list[tuple[ShardQueue, int, Row]] = []
    for shard_queue in tenant_queue.shard_queues:
        if shard_queue is None or head(state, shard_queue, may_rescan=may_rescan) is None:
            continue
        for index, ready_cache in enumerate(shard_queue.ready_caches):
            if ready_cache is None:
                continue
            if not ready_cache.rows and not ready_cache.is_complete:
                refill(state, shard_queue, index, ready_cache)
            if ready_cache.rows:
                found.append((shard_queue, index, ready_cache.rows[0]))
    return found


def _best(state: EngineState, tenant_queue: TenantQueue, *, may_rescan: bool) -> Head | None:
    """The tenant queue's next row over its shards."""
    best: Head | None = None
    for shard_queue in tenant_queue.shard_queues:
        if shard_queue is None:
            continue
        first = head(state, shard_queue, may_rescan=may_rescan)
        if first is not None:
            order = first[1][0][ORDER_AT:]  # inverted priority, seq, id
            if best is None or order < best[0]:
                best = (order, shard_queue, first[0])
    return best


def _pop(state: EngineState, shard_queue: ShardQueue, index: int) -> Picked:
    ready_cache = shard_queue.ready_caches[index]
    if ready_cache is None:
        raise InvariantError("a row was picked from a ready cache that is not there")
    row = ready_cache.rows.popleft()
    shard_queue.ready -= 1
    if row[RECORD] is not None:
        state.held_bytes -= row[SIZE]
    return shard_queue, row


def _pick_tenant_queue(
    state: EngineState, tenant_queue: TenantQueue, limit: int, out: list[Picked], bytes_left: int
) -> int:
    """Pick up to ``limit`` rows of one tenant queue, of ``bytes_left`` at most; the bytes left."""
    queue_state = tenant_queue.queue_state
    if tenant_queue.is_paused or queue_state.is_held:
        return bytes_left
    before = len(out)
    if queue_state.limit is None:
        bytes_left = _pick_rows(state, tenant_queue, limit, out, bytes_left)
    else:
        most = min(limit, before + state.queue_limits.free(queue_state.limit))
        try:
            bytes_left = _pick_rows(state, tenant_queue, most, out, bytes_left)
        finally:
            state.queue_limits.picked(queue_state, len(out) - before)
    if len(out) > before and state.claim_sets.sets and not tenant_queue.ready:
        state.claim_sets.emptied(tenant_queue, None)
    return bytes_left


def _pick_rows(
    state: EngineState, tenant_queue: TenantQueue, limit: int, out: list[Picked], bytes_left: int
) -> int:
    if len(tenant_queue.shard_queues) > 1:
        return _pick_sharded(state, tenant_queue, limit, out, bytes_left)
    shard_queue = tenant_queue.shard_queues[0]
    while shard_queue is not None and len(out) < limit and bytes_left > 0:
        first = head(state, shard_queue, may_rescan=not out)
        if first is None:
            break
        ready_cache = shard_queue.ready_caches[first[0]]
        rows = ready_cache.rows if ready_cache is not None else None
        most = min(limit, len(out) + shard_queue.ready)  # a counter never goes below zero
        while rows and len(out) < most and bytes_left > 0:
            row = rows.popleft()
            size = row[SIZE]
            bytes_left -= size if size <= VALUE_BYTES_MAX else STREAMED_COST
            if row[RECORD] is not None:
                state.held_bytes -= size
            shard_queue.ready -= 1
            out.append((shard_queue, row))
    return bytes_left


def _pick_sharded(
    state: EngineState, tenant_queue: TenantQueue, limit: int, out: list[Picked], bytes_left: int
) -> int:
    """As ``_pick_tenant_queue``, over several shards: runs of the shard whose head is the best.

    Tasks of one turn lie on one shard, so a run is long, and the other heads are looked at once.
    """
    if len(out) + 1 >= limit:  # one: not worth a heap
        best = _best(state, tenant_queue, may_rescan=not out)
        if best is not None and len(out) < limit and bytes_left > 0:
            out.append(_pop(state, best[1], best[2]))
            bytes_left -= claim_cost(out[-1][1][SIZE])
        return bytes_left
    heads: list[tuple[bytes, int, int]] = []  # of each shard: order, number, 9 - priority
    for shard_queue in tenant_queue.shard_queues:
        first = None if shard_queue is None else head(state, shard_queue, may_rescan=not out)
        if shard_queue is not None and first is not None:
            heads.append((first[1][0][ORDER_AT:], shard_queue.shard.index, first[0]))
    heapify(heads)
    while heads and len(out) < limit and bytes_left > 0:
        _, nth, index = heappop(heads)
        until = heads[0][0] if heads else LAST_ORDER
        shard_queue = tenant_queue.shard_queues[nth]
        ready_cache = None if shard_queue is None else shard_queue.ready_caches[index]
        if shard_queue is None or ready_cache is None:
            continue
        rows = ready_cache.rows
        most = min(limit, len(out) + shard_queue.ready)  # a counter never goes below zero
        while rows and len(out) < most and bytes_left > 0 and rows[0][0][ORDER_AT:] < until:
            row = rows.popleft()
            bytes_left -= claim_cost(row[SIZE])
            if row[RECORD] is not None:
                state.held_bytes -= row[SIZE]
            shard_queue.ready -= 1
            out.append((shard_queue, row))
        if len(out) < limit and bytes_left > 0:
            first = head(state, shard_queue, may_rescan=False)
            if first is not None:
                heappush(heads, (first[1][0][ORDER_AT:], nth, first[0]))
    return bytes_left


def _pick_fair(
    state: EngineState,
    tenant_queue: TenantQueue,
    limit: int,
    out: list[Picked],
    bytes_left: int,
    boost_after_s: float,
) -> int:
    """As ``_pick_tenant_queue``, but every eighth of its tasks is the oldest overdue one."""
    while len(out) < limit and bytes_left > 0:
        until = BOOST_EVERY - 1 - tenant_queue.claims % BOOST_EVERY
        if not until:
            old = _oldest(state, ((tenant_queue, boost_after_s),), may_rescan=not out)
            if old is not None:
                tenant_queue.claims += 1
                out.append(_pop(state, old[0], old[1]))
                state.queue_limits.picked(tenant_queue.queue_state, 1)
                if state.claim_sets.sets and not tenant_queue.ready:
                    state.claim_sets.emptied(tenant_queue, None)
                bytes_left -= claim_cost(out[-1][1][SIZE])
                continue
            until = 1  # nothing is overdue: the turn passes
        before = len(out)
        try:
            bytes_left = _pick_tenant_queue(
                state, tenant_queue, min(limit, before + until), out, bytes_left
            )
        finally:
            tenant_queue.claims += len(out) - before
        if len(out) == before:
            break
    return bytes_left


def _oldest(
    state: EngineState, tenant_queues: Iterable[tuple[TenantQueue, float]], *, may_rescan: bool
) -> tuple[ShardQueue, int] | None:
    """Where the oldest overdue task of any priority is: (shard queue, 9 - priority)."""
    now_us = state.clock.wall_us()
    best: tuple[bytes, ShardQueue, int] | None = None
    for tenant_queue, boost_after_s in tenant_queues:
        if tenant_queue.is_paused or tenant_queue.queue_state.is_held:
            continue
        before = now_us - int(boost_after_s * 1e6)
        for shard_queue, index, row in _heads(state, tenant_queue, may_rescan=may_rescan):
            age = row[0][SEQ_AT:]  # seq, id
            if int.from_bytes(age[:8], "big") <= before and (best is None or age < best[0]):
                best = age, shard_queue, index
    return None if best is None else (best[1], best[2])


def _pick_turns(
    state: EngineState,
    queue_state: QueueState,
    limit: int,
    out: list[Picked],
    bytes_left: int,
    skip: frozenset[bytes],
    boost_after_s: float | None,
) -> bool:
    """One task a tenant a turn; none for those in ``skip``. A paused one leaves the line.

    Returns whether the loop's turn was over before that: the head of each tenant may be on disk.
    """
    turns = queue_state.turns
    skipped, is_cut = 0, False
    until = state.clock.mono() + TURN_S if limit > LOOKS else 0.0
    doubtful: bytes | None = None
    while len(out) < limit and bytes_left > 0 and turns and skipped < len(turns) and not is_cut:
        if queue_state.is_held:  # maybe by what was picked just now
            break
        tenant = next(iter(turns))
        tenant_queue = queue_state.tenant_queues[tenant]
        if tenant in skip:
            turns.move_to_end(tenant)
            skipped += 1
            if state.claim_sets.any_keys:
                state.claim_sets.turned(tenant_queue)
            continue
        if tenant_queue.is_paused:  # a task came to it; ``set_pause`` puts it back into the line
            del turns[tenant]
            if state.claim_sets.any_keys:
                state.claim_sets.turned(tenant_queue)
            continue
        before = len(out)
        if boost_after_s is None:
            bytes_left = _pick_tenant_queue(state, tenant_queue, before + 1, out, bytes_left)
        else:
            bytes_left = _pick_fair(state, tenant_queue, before + 1, out, bytes_left, boost_after_s)
        if len(out) > before:
            skipped = 0
            is_cut = not len(out) % LOOKS and len(out) < limit and state.clock.mono() >= until
        if state.claim_sets.any_keys:
            state.claim_sets.turned(tenant_queue)
        if not tenant_queue.ready:  # no skip: the line is shorter by it
            del turns[tenant]
            continue
        turns.move_to_end(tenant)
        if len(out) == before:
            skipped += 1
            if is_doubtful(tenant_queue):
                doubtful = tenant
    # Rows of others were picked before it: the next claim can rescan it.
    if doubtful is not None and doubtful in turns:
        turns.move_to_end(doubtful, last=False)
        state.claim_sets.touch(queue_state.tenant_queues[doubtful])
    return is_cut


def pick(state: EngineState, request: ClaimRequest) -> list[Picked]:
    """The rows a claim gets, taken out of their ready caches; their counters are down already."""
    out: list[Picked] = []
    _renew_probes(state)
    try:
        _pick_into(state, request, out)
    except BaseException:  # a range that cannot be read costs the claim, not the tasks
        put_back_picked(state, out, request)
        raise
    return out


def _renew_probes(state: EngineState) -> None:
    """Limit of the search for the end of a damaged range, per call and shard."""
    for shard in state.shards:
        unreadable = shard.overlay.unreadable
        if unreadable is not None:
            unreadable.renew()


def uncount(state: EngineState, request: ClaimRequest, tenant_queue: TenantQueue) -> None:
    """A task that was picked is not granted: whose turn it is does not move on by it."""
    state.queue_limits.unpicked(tenant_queue.queue_state)
    if len(request.keys) > 1:
        state.merged_claims -= 1 if request.boosts else 0
    elif request.boosts:
        tenant_queue.claims -= 1


def put_back_picked(
    state: EngineState, picked: list[Picked], request: ClaimRequest | None = None
) -> None:
    """Undo ``pick``: nothing has been queued yet."""
    for shard_queue, row in picked:
        if request is not None:
            uncount(state, request, shard_queue.tenant_queue)
        shard_queue.ready += 1
        if shard_queue.put(row[0][ORDER_AT], row) and row[RECORD] is not None:
            state.held_bytes += row[SIZE]
        shard_queue.tenant_queue.queue_state.turns.setdefault(shard_queue.tenant_queue.tenant)
        state.claim_sets.touch(shard_queue.tenant_queue)


def _pick_into(state: EngineState, request: ClaimRequest, out: list[Picked]) -> None:
    limit, left = request.limit, bytes_left(request)
    if len(request.keys) == 1:
        queue, tenant = request.keys[0]
        queue_state = state.queue_states.get(queue)
        if queue_state is None:
            return
        boost_after_s = request.boosts.get((queue, tenant))
        if tenant is None:
            request.is_cut = _pick_turns(
                state, queue_state, limit, out, left, request.skipped, boost_after_s
            )
            return
        tenant_queue = queue_state.tenant_queues.get(tenant)
        if tenant_queue is None:
            return
        if boost_after_s is not None:
            _pick_fair(state, tenant_queue, limit, out, left, boost_after_s)
        else:
            _pick_tenant_queue(state, tenant_queue, limit, out, left)
        return
    _pick_merged(state, request, out, left)


def _pick_overdue(state: EngineState, request: ClaimRequest, *, may_rescan: bool) -> Picked | None:
    """Over several queues: every eighth is the oldest overdue task of those that ask for it."""
    if state.merged_claims % BOOST_EVERY != BOOST_EVERY - 1:
        return None
    tenant_queues: list[tuple[TenantQueue, float]] = []
    for (queue, tenant), boost_after_s in request.boosts.items():
        queue_state = state.queue_states.get(queue)
        if queue_state is None:
            continue
        if tenant is None:  # of all tenants: that whose turn it is
            tenant = next(iter(queue_state.turns), b"")
        tenant_queue = queue_state.tenant_queues.get(tenant)
        if tenant_queue is not None:
            tenant_queues.append((tenant_queue, boost_after_s))
    old = _oldest(state, tenant_queues, may_rescan=may_rescan)
    return None if old is None else _pop(state, old[0], old[1])


def _pick_merged(
    state: EngineState, request: ClaimRequest, out: list[Picked], bytes_left: int
) -> None:
    """The best head over several queues, again and again.

    A queue is looked at anew where something of it was taken, or where its next row may be an
    earlier one than is known: what a task costs does not grow with the number of queues.
    """
    claim_set = request.claim_set
    if claim_set is None:
        claim_set = ClaimSet(request.keys)
    else:
        state.claim_sets.use(claim_set)
    _look_at_stale(state, claim_set, may_rescan=True)  # nothing has been picked yet
    is_simple = not request.boosts and not claim_set.has_any
    while len(out) < request.limit and bytes_left > 0:
        if is_simple and not state.claim_sets.any_keys:
            before = len(out)
            bytes_left = _pick_known(state, claim_set, request.limit, out, bytes_left)
            if len(out) > before:
                continue
        picked = _pick_overdue(state, request, may_rescan=not out) if request.boosts else None
        if picked is not None:
            out.append(picked)
            _note_limited(state, claim_set, picked[0].tenant_queue.queue_state)
            _note_taken(state, claim_set, picked[0].tenant_queue)
            _look_at_stale(state, claim_set, may_rescan=False)
        else:
            nth = next_of_set(state, claim_set, may_rescan=not out)
            if nth < 0:
                break
            slot = claim_set.slots[nth]
            if slot is None:
                raise InvariantError("a queue of a claim has an order and no row")
            picked = _pop(state, slot[0], slot[1])
            out.append(picked)
            _note_limited(state, claim_set, picked[0].tenant_queue.queue_state)
            advance(state, claim_set, nth, slot)
        if request.boosts:
            state.merged_claims += 1
        bytes_left -= claim_cost(picked[1][SIZE])


def _note_limited(state: EngineState, claim_set: ClaimSet, queue_state: QueueState) -> None:
    """A row was picked: count it, and pass the queue over once it is at its limit."""
    if queue_state.limit is None:
        return
    state.queue_limits.picked(queue_state, 1)
    if queue_state.is_held and not claim_set.is_kept:
        for nth, key in enumerate(claim_set.keys):
            if key[0] == queue_state.queue:
                claim_set.stale[nth] = None


def _pick_known(
    state: EngineState, claim_set: ClaimSet, limit: int, out: list[Picked], bytes_left: int
) -> int:
    """The best heads for as long as each has another row behind it, in memory."""
    heap, orders, slots = claim_set.heap, claim_set.orders, claim_set.slots
    while heap and len(out) < limit and bytes_left > 0 and not claim_set.stale:
        order, nth = heap[0]
        slot = slots[nth]
        if slot is None or orders[nth] != order:
            heappop(heap)
            continue
        shard_queue, index, tenant = slot
        ready_cache = shard_queue.ready_caches[index]
        if ready_cache is None or len(ready_cache.rows) < 2 or shard_queue.ready < 2:
            break
        if shard_queue.tenant_queue.queue_state.limit is not None:
            break
        row = ready_cache.rows[0]
        if row[0][ORDER_AT:] != order or shard_queue.occupied & -shard_queue.occupied != 1 << index:
            break
        if shard_queue.shard.coalescer.status > STALLED:
            break
        rows, following = ready_cache.rows, claim_set.second_order()
        other: Head | None = None  # the best of the tenant queue on the other shards
        if len(shard_queue.tenant_queue.shard_queues) > 1:
            is_known, other = _head_in_memory(shard_queue.tenant_queue, shard_queue)
            if not is_known or (other is not None and other[0] < order):
                break
            if other is not None and other[0] < following:
                following = other[0]
        turns = shard_queue.tenant_queue.queue_state.turns
        if len(turns) > 1 and tenant in turns:
            turns.move_to_end(tenant)
        while True:  # a run of this key and shard: up to where another one has the best
            shard_queue.ready -= 1
            bytes_left -= claim_cost(row[SIZE])
            if row[RECORD] is not None:
                state.held_bytes -= row[SIZE]
            out.append((shard_queue, rows.popleft()))
            row = rows[0]
            order = row[0][ORDER_AT:]
            if order >= following or len(out) >= limit or bytes_left <= 0:
                break
            if len(rows) < 2 or shard_queue.ready < 2:
                break
        if other is not None and other[0] < order:
            slots[nth], order = (other[1], other[2], tenant), other[0]
        claim_set.replace_first(nth, order)
    return bytes_left


def _head_in_memory(
    tenant_queue: TenantQueue, passed: ShardQueue | None = None
) -> tuple[bool, Head | None]:
    """The next row over its shards but ``passed``'s, if all of their heads are in memory.

    Returns whether they are, and ``_best`` of them; None: there is nothing ready.
    """
    best: Head | None = None
    for shard_queue in tenant_queue.shard_queues:
        if shard_queue is None or shard_queue is passed or shard_queue.ready <= 0:
            continue
        if shard_queue.shard.coalescer.status > STALLED:
            continue
        occupied = shard_queue.occupied
        if not occupied:
            return False, None
        index = (occupied & -occupied).bit_length() - 1
        ready_cache = shard_queue.ready_caches[index]
        if ready_cache is None or not ready_cache.rows:
            return False, None
        order = ready_cache.rows[0][0][ORDER_AT:]
        if best is None or order < best[0]:
            best = order, shard_queue, index
    return True, best


def first_of_set(state: EngineState, claim_set: ClaimSet) -> int:
    """``next_of_set`` for a claim of one; -1 also where it takes the long way."""
    sets = state.claim_sets
    if claim_set.doubtful or claim_set.epoch != sets.epoch or not claim_set.is_kept:
        sets.use(claim_set)
    else:
        sets.uses += 1
        claim_set.used = sets.uses
    if state.damaged_blocks:  # of whichever shard: a look there may take probes
        return -1
    nth = next_of_set(state, claim_set, may_rescan=False)
    return -1 if claim_set.doubtful else nth


def next_of_set(state: EngineState, claim_set: ClaimSet, *, may_rescan: bool) -> int:
    """Which key of a set has the best next row: ``slots`` says where it is; -1 if none has any.

    ``ClaimSets.use`` comes first, once a claim.
    """
    heap, orders, slots = claim_set.heap, claim_set.orders, claim_set.slots
    while True:
        if claim_set.stale:
            _look_at_stale(state, claim_set, may_rescan=may_rescan)
            heap = claim_set.heap
        if not heap:
            return -1
        order, nth = heap[0]
        slot = slots[nth]
        if slot is None or orders[nth] != order:  # it has been looked at since
            heappop(heap)
            continue
        shard_queue = slot[0]
        ready_cache = shard_queue.ready_caches[slot[1]]
        if (
            ready_cache is not None
            and ready_cache.rows
            and shard_queue.ready > 0
            and shard_queue.shard.coalescer.status <= STALLED
            and ready_cache.rows[0][0][ORDER_AT:] == order
        ):
            return nth
        heappop(heap)  # the row has gone another way
        claim_set.stale[nth] = None


def advance(state: EngineState, claim_set: ClaimSet, nth: int, slot: Slot) -> None:
    """The next row of a key was taken: enter the one behind it.

    Args:
        claim_set: whose key it is.
        nth: as ``next_of_set`` returned it.
        slot: where the row was.
    """
    shard_queue, index, tenant = slot
    tenant_queue = shard_queue.tenant_queue
    turns = tenant_queue.queue_state.turns
    if tenant in turns:
        turns.move_to_end(tenant)
    if state.claim_sets.any_keys:
        state.claim_sets.turned(tenant_queue)
    ready_cache = shard_queue.ready_caches[index]
    if (  # nearly always: one more row in memory, and nothing that could be better
        not claim_set.has_any
        and ready_cache is not None
        and ready_cache.rows
        and shard_queue.ready > 0
        and len(tenant_queue.shard_queues) == 1
        and shard_queue.occupied & -shard_queue.occupied == 1 << index
    ):
        claim_set.replace_first(nth, ready_cache.rows[0][0][ORDER_AT:])
        return
    if len(tenant_queue.shard_queues) > 1 and not claim_set.has_any:
        _, best = _head_in_memory(tenant_queue)
        if best is not None:
            claim_set.slots[nth] = best[1], best[2], tenant
            claim_set.replace_first(nth, best[0])
            return
    is_last = (
        shard_queue.ready == 0 if len(tenant_queue.shard_queues) == 1 else tenant_queue.ready == 0
    )
    if is_last and not claim_set.has_any:
        turns.pop(tenant, None)
        if not claim_set.remove_first(nth) or state.claim_sets.any_keys:
            state.claim_sets.emptied(tenant_queue, claim_set)
        return
    claim_set.stale[nth] = None
    _note_taken(state, claim_set, tenant_queue)
    _look_at_stale(state, claim_set, may_rescan=False)


def _note_taken(state: EngineState, claim_set: ClaimSet, tenant_queue: TenantQueue) -> None:
    """A row of ``tenant_queue`` was taken: the keys of the set that it is in are looked at."""
    for key in (tenant_queue.key, tenant_queue.any_key):
        nth = claim_set.where.get(key, -1)
        if nth >= 0:
            claim_set.stale[nth] = None
    if state.claim_sets.sets and not tenant_queue.ready:
        state.claim_sets.emptied(tenant_queue, None)


def _look_at_stale(state: EngineState, claim_set: ClaimSet, *, may_rescan: bool) -> None:
    stale = claim_set.stale
    while stale:
        for nth in list(stale):
            if not _look_in_memory(state, claim_set, nth):
                _look(state, claim_set, nth, may_rescan=may_rescan)
            del stale[nth]  # not before: what cannot be read is looked at again


def _look_in_memory(state: EngineState, claim_set: ClaimSet, nth: int) -> bool:
    """``_look`` for one tenant queue whose next row on each of its shards is in memory."""
    queue, tenant = claim_set.keys[nth]
    queue_state = state.queue_states.get(queue)
    if tenant is None or queue_state is None or queue_state.is_held:
        return False
    tenant_queue = queue_state.tenant_queues.get(tenant)
    if tenant_queue is None or tenant_queue.is_paused:
        return False
    _, best = _head_in_memory(tenant_queue)
    if best is None:
        return False
    claim_set.enter(nth, best[0], (best[1], best[2], tenant))
    return True


def _look(state: EngineState, claim_set: ClaimSet, nth: int, *, may_rescan: bool) -> None:
    """Enter the next row of one of several queues. All tenants: of the tenant whose turn it is."""
    queue, tenant = claim_set.keys[nth]
    queue_state = state.queue_states.get(queue)
    order = NO_ROW
    slot: Slot | None = None
    if queue_state is not None and not queue_state.is_held:
        empty: list[bytes] = []
        for name in queue_state.turns if tenant is None else (tenant,):
            tenant_queue = queue_state.tenant_queues.get(name)
            if tenant_queue is None or not tenant_queue.ready or tenant_queue.is_paused:
                empty.append(name)
                continue
            found = _best(state, tenant_queue, may_rescan=may_rescan)
            if found is None or _is_undecided(tenant_queue):
                claim_set.doubtful[nth] = None
            if found is not None:
                order, slot = found[0], (found[1], found[2], name)
                break
        for name in empty:  # as in ``_pick_turns``: looked at once, not by every claim
            queue_state.turns.pop(name, None)
    claim_set.enter(nth, order, slot)


def _is_undecided(tenant_queue: TenantQueue) -> bool:
    """Whether better rows than its head may come from where nothing could be read just now."""
    for shard_queue in tenant_queue.shard_queues:
        if shard_queue is not None and shard_queue.ready > 0:
            left = shard_queue.occupied
            while left:
                ready_cache = shard_queue.ready_caches[(left & -left).bit_length() - 1]
                if ready_cache is not None and ready_cache.rows:
                    break
                if ready_cache is not None and not ready_cache.is_complete:
                    return True
                left &= left - 1
    return False
